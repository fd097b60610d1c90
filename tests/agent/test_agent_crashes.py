"""Crashes of agents and supervisors at every failpoint: no task runs twice, no exit is lost."""

from __future__ import annotations

import os
import signal
import time

import pytest

import penstock.agent.server  # noqa: F401  registers all failpoints
from penstock.agent.processes import processes_with_token
from penstock.agent.records import TaskStage
from penstock.agent.wire import CommandOutcome
from penstock.failpoints import REGISTRY
from tests.agent.rig import DEADLINE_S, Client, Lost, Rig, processes_with, until

POINTS = sorted(name for name in REGISTRY if name.startswith(("agent.", "supervisor.")))
LIFECYCLE_POINTS = [
    name
    for name in POINTS
    if name.split(".")[1] in {"epoch", "spec", "fork", "start", "command", "sweep", "exit"}
]
OTHER_POINTS = {"agent.end", "agent.gone", "agent.exit", "agent.release"}


def test_every_failpoint_has_a_test() -> None:
    others = {name.rpartition(".")[0] for name in POINTS if name not in LIFECYCLE_POINTS}
    assert others <= OTHER_POINTS


@pytest.mark.parametrize("point", [name for name in LIFECYCLE_POINTS if not name.startswith("agent.exit")])
def test_a_crash_neither_repeats_a_task_nor_loses_its_exit(point: str) -> None:
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
                    assert client.start(spec).outcome is CommandOutcome.APPLIED
                if point == "supervisor.start.before" and not rig.has_died() and len(rig.agents) == 1:
                    rig.kill_agent()  # every supervisor of this agent would die at that point
                ended = client.wait(spec.member)
                break
            except Lost:
                failpoints = ""
                until(rig.has_died, "the agent is dead")
        assert len(rig.lines("ran")) <= 1
        if ended.status == 0:
            assert rig.lines("done") == ["done"]
        else:
            assert (ended.status, ended.cause) == (signal.SIGKILL, "unknown")
            assert point.startswith("supervisor.")
            assert point != "supervisor.start.before"
        assert [pid for token in rig.tokens() for pid in processes_with_token(token)] == []
        assert "exit.json" in rig.files_of(spec.member)


@pytest.mark.parametrize("point", ["agent.end.before", "agent.end.after"])
def test_a_persisted_end_request_is_executed_by_the_next_agent(point: str) -> None:
    with Rig() as rig:
        client = rig.agent(point)
        client.start(rig.spec("echo up >> up; exec sleep 1000"))
        until(lambda: rig.lines("up"), "the task runs")
        with pytest.raises(Lost):
            client.end("1/1/0")
        until(rig.has_died, "the agent is dead")
        client = rig.agent()
        if point == "agent.end.before":
            assert client.end("1/1/0").outcome is CommandOutcome.APPLIED
        ended = client.wait("1/1/0")
        assert (ended.status, ended.cause) == (signal.SIGTERM, "cancel")


@pytest.mark.parametrize("point", ["agent.gone.before", "agent.gone.after"])
def test_a_tombstone_is_written_atomically(point: str) -> None:
    with Rig() as rig:
        client = rig.agent(point)
        with pytest.raises(Lost):
            client.end("1/1/0")
        until(rig.has_died, "the agent is dead")
        client = rig.agent()
        if point == "agent.gone.before":
            client.end("1/1/0")
        assert client.start(rig.spec("echo ran >> ran")).outcome is CommandOutcome.GONE
        assert rig.lines("ran") == []


@pytest.mark.parametrize("point", ["agent.exit.before", "agent.exit.after"])
def test_the_next_agent_writes_the_exit_of_a_task_whose_supervisor_died(point: str) -> None:
    with Rig() as rig:
        client = rig.agent(point)
        client.start(rig.spec("echo up >> up; setsid sleep 6543.2 & sleep 1000"))
        until(lambda: rig.lines("up"), "the task runs")
        os.kill(rig.supervisor("1/1/0"), signal.SIGKILL)
        until(rig.has_died, "the agent is dead")
        client = rig.agent()
        ended = client.wait("1/1/0")
        assert (ended.status, ended.cause) == (signal.SIGKILL, "unknown")
        assert rig.lines("up") == ["up"]
        assert processes_with("6543.2") == []


@pytest.mark.parametrize("point", ["agent.release.before", "agent.release.after"])
def test_an_interrupted_removal_does_not_start_the_task_again(point: str) -> None:
    with Rig() as rig:
        client = rig.agent(point)
        client.start(rig.spec("echo ran >> ran"))
        client.wait("1/1/0")
        client.release("1/1/0")
        until(rig.has_died, "the agent is dead")
        client = rig.agent()
        if point == "agent.release.before":
            assert client.wait("1/1/0").status == 0
        else:
            assert client.reports == {}
            assert os.listdir(rig.directory / "trash") == []
        assert rig.lines("ran") == ["ran"]


@pytest.mark.parametrize("victims", ["agent", "supervisor", "both"])
def test_kills_of_agent_and_supervisor_under_a_running_task(victims: str) -> None:
    duration = f"7654.{os.getpid()}"  # Unique, because another worker may run the same test.
    with Rig() as rig:
        client = rig.agent()
        hide = f"(setsid sleep {duration} &); echo up >> up; while [ ! -e go ]; do sleep 0.02; done; exit 2"
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
            assert client.reports["1/1/0"].stage is TaskStage.RUNNING
        (rig.work / "go").touch()
        ended = client.wait("1/1/0")
        expected = (2 << 8, "") if victims == "agent" else (signal.SIGKILL, "unknown")
        assert (ended.status, ended.cause) == expected
        assert rig.lines("up") == ["up"]
        assert processes_with(duration) == []
        assert [pid for token in rig.tokens() for pid in processes_with_token(token)] == []


def test_orphans_of_a_dead_supervisor_are_killed_even_without_the_token() -> None:
    with Rig() as rig:
        client = rig.agent()
        client.start(rig.spec("(env -i setsid sleep 8765.4 &); echo up >> up; sleep 1000"))
        until(lambda: rig.lines("up") and processes_with("8765.4"), "the task runs")
        os.kill(rig.supervisor("1/1/0"), signal.SIGKILL)
        client.wait("1/1/0")
        assert processes_with("8765.4") == []


def test_many_tasks_survive_many_agents() -> None:
    """Agents are killed while tasks start and end: each task runs once, each exit is reported."""
    members = [f"1/1/{rank}" for rank in range(30)]
    with Rig() as rig:
        to_start = list(members)
        ended: dict[str, int] = {}
        for term in range(4):
            client = rig.agent()
            for member in members:
                if member in client.reports and member in to_start:
                    to_start.remove(member)
            batch = to_start[: 8 if term < 3 else None]
            for member in batch:
                rank = int(member.rpartition("/")[2])
                script = f"echo {rank} >> ran; sleep 0.0{rank % 7}; exit {rank}"
                client.start(rig.spec(script, member))
                to_start.remove(member)
            if term < 3:
                rig.kill_agent()
        for member in members:
            ended[member] = client.wait(member).status >> 8
        assert sorted(map(int, rig.lines("ran"))) == list(range(30))
        assert [ended[member] for member in members] == list(range(30))
