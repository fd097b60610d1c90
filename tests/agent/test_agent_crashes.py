"""Death at every place where an agent or a supervisor can die: nothing runs twice, no exit is lost."""

from __future__ import annotations

import os
import signal
import time

import pytest

import penstock.agent.server  # noqa: F401  so that all points are registered
from penstock.agent.processes import bearers
from penstock.agent.records import Stage
from penstock.agent.wire import Answered
from penstock.failpoints import REGISTRY
from tests.agent.rig import DEADLINE_S, Client, Lost, Rig, processes_with, until

POINTS = sorted(name for name in REGISTRY if name.startswith(("agent.", "supervisor.")))
OF_A_LIFE = [
    name
    for name in POINTS
    if name.split(".")[1] in {"epoch", "spec", "fork", "start", "command", "sweep", "exit"}
]
ELSEWHERE = {"agent.end", "agent.gone", "agent.exit", "agent.release"}


def test_every_point_has_a_test() -> None:
    rest = {name.rpartition(".")[0] for name in POINTS if name not in OF_A_LIFE}
    assert rest <= ELSEWHERE


@pytest.mark.parametrize("point", [name for name in OF_A_LIFE if not name.startswith("agent.exit")])
def test_dying_there_neither_repeats_a_task_nor_loses_its_exit(point: str) -> None:
    with Rig() as rig:
        spec = rig.spec("echo ran >> ran; sleep 0.1; echo done >> done")
        client: Client | None = None
        deadline = time.monotonic() + DEADLINE_S
        failpoints = point
        while time.monotonic() < deadline:
            try:
                client = rig.agent(failpoints)
                failpoints = ""
                if spec.member not in client.reports:
                    assert client.start(spec).outcome is Answered.APPLIED
                if point == "supervisor.start.before" and not rig.died() and len(rig.agents) == 1:
                    rig.kill_agent()  # every supervisor of this agent would die there
                ended = client.wait(spec.member)
                break
            except Lost:
                failpoints = ""
                until(rig.died, "the agent is dead")
        assert len(rig.lines("ran")) <= 1
        if ended.status == 0:
            assert rig.lines("done") == ["done"]
        else:
            assert (ended.status, ended.cause) == (signal.SIGKILL, "unknown")
            assert point.startswith("supervisor.")
            assert point != "supervisor.start.before"
        assert [pid for token in rig.tokens() for pid in bearers(token)] == []
        assert "exit.json" in rig.files_of(spec.member)


@pytest.mark.parametrize("point", ["agent.end.before", "agent.end.after"])
def test_a_request_to_end_that_was_written_is_obeyed_by_the_next_agent(point: str) -> None:
    with Rig() as rig:
        client = rig.agent(point)
        client.start(rig.spec("echo up >> up; exec sleep 1000"))
        until(lambda: rig.lines("up"), "the task runs")
        with pytest.raises(Lost):
            client.end("1/1/0")
        until(rig.died, "the agent is dead")
        client = rig.agent()
        if point == "agent.end.before":
            assert client.end("1/1/0").outcome is Answered.APPLIED
        ended = client.wait("1/1/0")
        assert (ended.status, ended.cause) == (signal.SIGTERM, "cancel")


@pytest.mark.parametrize("point", ["agent.gone.before", "agent.gone.after"])
def test_a_tombstone_is_there_whole_or_not_at_all(point: str) -> None:
    with Rig() as rig:
        client = rig.agent(point)
        with pytest.raises(Lost):
            client.end("1/1/0")
        until(rig.died, "the agent is dead")
        client = rig.agent()
        if point == "agent.gone.before":
            client.end("1/1/0")
        assert client.start(rig.spec("echo ran >> ran")).outcome is Answered.GONE
        assert rig.lines("ran") == []


@pytest.mark.parametrize("point", ["agent.exit.before", "agent.exit.after"])
def test_the_end_of_a_dead_supervisor_is_written_by_whichever_agent_lives(point: str) -> None:
    with Rig() as rig:
        client = rig.agent(point)
        client.start(rig.spec("echo up >> up; setsid sleep 6543.2 & sleep 1000"))
        until(lambda: rig.lines("up"), "the task runs")
        os.kill(rig.supervisor("1/1/0"), signal.SIGKILL)
        until(rig.died, "the agent is dead")
        client = rig.agent()
        ended = client.wait("1/1/0")
        assert (ended.status, ended.cause) == (signal.SIGKILL, "unknown")
        assert rig.lines("up") == ["up"]
        assert processes_with("6543.2") == []


@pytest.mark.parametrize("point", ["agent.release.before", "agent.release.after"])
def test_a_task_that_is_being_removed_does_not_start_again(point: str) -> None:
    with Rig() as rig:
        client = rig.agent(point)
        client.start(rig.spec("echo ran >> ran"))
        client.wait("1/1/0")
        client.release("1/1/0")
        until(rig.died, "the agent is dead")
        client = rig.agent()
        if point == "agent.release.before":
            assert client.wait("1/1/0").status == 0
        else:
            assert client.reports == {}
            assert os.listdir(rig.home / "trash") == []
        assert rig.lines("ran") == ["ran"]


@pytest.mark.parametrize("victims", ["agent", "supervisor", "both"])
def test_killing_them_under_a_running_task(victims: str) -> None:
    mark = f"7654.{os.getpid()}"  # Others may run the same at the same time.
    with Rig() as rig:
        client = rig.agent()
        hide = f"(setsid sleep {mark} &); echo up >> up; while [ ! -e go ]; do sleep 0.02; done; exit 2"
        client.start(rig.spec(hide))
        until(lambda: rig.lines("up"), "the task runs")
        supervisor = rig.supervisor("1/1/0")
        if victims != "supervisor":
            rig.kill_agent()
        if victims != "agent":
            os.kill(supervisor, signal.SIGKILL)
        if victims != "supervisor":
            client = rig.agent()
        if victims == "agent":
            assert client.reports["1/1/0"].stage is Stage.RUNNING
        (rig.work / "go").touch()
        ended = client.wait("1/1/0")
        expected = (2 << 8, "") if victims == "agent" else (signal.SIGKILL, "unknown")
        assert (ended.status, ended.cause) == expected
        assert rig.lines("up") == ["up"]
        assert processes_with(mark) == []
        assert [pid for token in rig.tokens() for pid in bearers(token)] == []


def test_what_a_dead_supervisor_leaves_is_killed_even_without_its_token() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("(env -i setsid sleep 8765.4 &); echo up >> up; sleep 1000"))
        until(lambda: rig.lines("up") and processes_with("8765.4"), "the task runs")
        os.kill(rig.supervisor("1/1/0"), signal.SIGKILL)
        client.wait("1/1/0")
        assert processes_with("8765.4") == []


def test_many_tasks_survive_many_agents() -> None:
    """Agents are killed while tasks start and end: each task runs once, each exit is told."""
    members = [f"1/1/{rank}" for rank in range(30)]
    with Rig() as rig:
        left = list(members)
        ended: dict[str, int] = {}
        for life in range(4):
            client = rig.agent()
            for member in members:
                if member in client.reports and member in left:
                    left.remove(member)
            batch = left[: 8 if life < 3 else None]
            for member in batch:
                rank = int(member.rpartition("/")[2])
                script = f"echo {rank} >> ran; sleep 0.0{rank % 7}; exit {rank}"
                client.start(rig.spec(script, member))
                left.remove(member)
            if life < 3:
                rig.kill_agent()
        for member in members:
            ended[member] = client.wait(member).status >> 8
        assert sorted(map(int, rig.lines("ran"))) == list(range(30))
        assert [ended[member] for member in members] == list(range(30))
