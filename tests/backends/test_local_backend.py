"""The local backend over real agents: facts, restarts of every part, and results when an agent is
disconnected."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import get_args

import pytest

from penstock.agent.processes import processes_with_token
from penstock.backends.local import INTENTS
from penstock.errors import Conflict
from penstock.failpoints import REGISTRY
from penstock.protocol.facts import Capacity, EndCause, Outcome, Phase
from penstock.protocol.intents import (
    End,
    EndReason,
    Evict,
    Intent,
    StatusUpdate,
    WorkloadStatus,
)
from tests.backends.local_rig import Site, assignment, eventually, instance, place, run

WAIT = "echo up >> up; while [ ! -e go ]; do sleep 0.02; done; exit 3"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_every_intent_type_with_an_effect_has_its_failpoints() -> None:
    assert set(INTENTS) == set(get_args(Intent)) - {Evict}  # An eviction is refused.
    for points in INTENTS.values():
        assert points.before in REGISTRY
        assert points.after in REGISTRY


def test_the_tasks_of_a_job_run_with_their_ranks_and_local_ids() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=2, cores_per_node=4, gpus_per_node=1) as one:
            snapshot = await one.start()
            assert [(node.node, node.up) for node in snapshot.nodes] == [("node0", True), ("node1", True)]
            assert snapshot.nodes[0].capacity == (Capacity("core", 4), Capacity("gpu", 1))
            assignments = (
                assignment("1/1/0", "node0", 0),
                assignment("1/1/1", "node1", 1),
                assignment("1/1/2", "node1", 2),
            )
            shown = "$FLUX_TASK_RANK $FLUX_TASK_LOCAL_ID $FLUX_JOB_NNODES $FLUX_JOB_SIZE"
            script = f"echo {shown}; exit $FLUX_TASK_RANK"
            await one.apply(place(site, script, *assignments))
            for index, (local, node) in enumerate(((0, "node0"), (0, "node1"), (1, "node1"))):
                member = f"1/1/{index}"
                assert (await one.intent_result(1, member))[0] is Outcome.APPLIED
                ended = await one.member_status(member, Phase.ENDED)
                assert (ended.status, ended.node) == (index << 8, node)
                stdout, _ = one.backend.output_paths(1, index, place(site, script).spec)
                assert stdout.read_text() == f"{index} {local} 2 3\n"
            one.backend.forget([f"1/1/{index}" for index in range(3)])
            await eventually(lambda: site.tokens() == [], "the agents remove released tasks")
            assert [(status.state, status.tasks) for status in one.backend.status()] == [("up", 0)] * 2
            one.backend.publish_status([StatusUpdate("", 1, WorkloadStatus.WAITING)])

    run(test)


def test_an_eviction_is_refused_and_an_end_can_be_repeated() -> None:
    async def test(site: Site) -> None:
        async with instance(site) as one:
            await one.start()
            await one.apply(place(site, "echo up >> up; exec sleep 1000"))
            await eventually(lambda: site.lines("up"), "the task runs")
            await one.apply(Evict(2, 1, ("1/1/0",)))
            assert await one.intent_result(2) == (
                Outcome.CONFLICT,
                "a task has no controller that would replace it",
            )
            await one.apply(End(3, 1, ("1/1/0",), signal.SIGTERM, 5.0, EndReason.CANCEL))
            assert (await one.intent_result(3))[0] is Outcome.APPLIED
            ended = await one.member_status("1/1/0", Phase.ENDED)
            assert (ended.status, ended.cause, ended.message) == (signal.SIGTERM, EndCause.OTHER, "cancel")
            await one.apply(End(4, 1, ("1/1/0",), signal.SIGTERM, 5.0, EndReason.CANCEL))
            assert (await one.intent_result(4))[0] is Outcome.GONE

    run(test)


def test_a_member_that_was_ended_first_never_starts_on_any_node() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=2) as one:
            await one.start()
            await one.apply(End(1, 1, ("1/1/0",), signal.SIGTERM, 5.0, EndReason.CANCEL))
            assert (await one.intent_result(1))[0] is Outcome.GONE
            await one.apply(place(site, "echo ran >> ran", assignment("1/1/0", "node1"), intent=2))
            assert (await one.intent_result(2))[0] is Outcome.GONE
            assert site.lines("ran") == []

    run(test)


def test_an_invalid_placement_is_a_conflict_for_each_of_its_members() -> None:
    async def test(site: Site) -> None:
        async with instance(site) as one:
            await one.start()
            bad = (
                place(site, "true", assignment("1/1/0", "node9"), intent=1),
                place(site, "true", intent=2, command=[]),
                place(site, "true", intent=3, environment={"A": "\udcff"}),
                place(site, "true", intent=4, cwd=7),
            )
            await one.apply(*bad)
            for intent in range(1, 5):
                assert (await one.intent_result(intent))[0] is Outcome.CONFLICT

    run(test)


def test_a_restarted_instance_finds_its_members_and_runs_none_twice() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=2) as one:
            await one.start()
            await one.apply(place(site, WAIT), place(site, "exit 5", assignment("2/1/0", "node1"), intent=2))
            await eventually(lambda: site.lines("up"), "the task runs")
            await one.member_status("2/1/0", Phase.ENDED)
        async with instance(site, epoch=2, nodes=2) as two:
            snapshot = await two.start()
            found = {
                status.member: (status.phase, status.node, status.status) for status in snapshot.statuses
            }
            expected = {"1/1/0": (Phase.RUNNING, "node0", 0), "2/1/0": (Phase.ENDED, "node1", 5 << 8)}
            assert found == expected
            await two.apply(place(site, WAIT))
            assert (await two.intent_result(1))[0] is Outcome.APPLIED
            (site.workdir / "go").touch()
            assert (await two.member_status("1/1/0", Phase.ENDED)).status == 3 << 8
            assert site.lines("up") == ["up"]
        async with instance(site, epoch=1, nodes=2) as old:
            with pytest.raises(Conflict, match="epoch 1 has ended"):
                await old.start()

    run(test)


def test_a_killed_agent_is_replaced_and_its_members_are_lost_until_then() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=2) as one:
            await one.start()
            await one.apply(place(site, WAIT))
            await eventually(lambda: site.lines("up"), "the task runs")
            since = len(one.facts)
            kill(one.backend.status()[0].pid)
            assert (await one.node("node0", up=False, since=since)).why
            await one.member_status("1/1/0", Phase.LOST, since)
            await one.node("node0", up=True, since=since)
            await one.member_status("1/1/0", Phase.RUNNING, since)
            (site.workdir / "go").touch()
            assert (await one.member_status("1/1/0", Phase.ENDED)).status == 3 << 8
            assert site.lines("up") == ["up"]

    run(test)


def test_a_hanging_agent_is_replaced_and_its_tasks_continue() -> None:
    async def test(site: Site) -> None:
        async with instance(site, agent_response_timeout_s=1.0) as one:
            await one.start()
            await one.apply(place(site, WAIT))
            await eventually(lambda: site.lines("up"), "the task runs")
            since, pid = len(one.facts), one.backend.status()[0].pid
            os.kill(pid, signal.SIGSTOP)
            await one.node("node0", up=False, since=since)
            await one.member_status("1/1/0", Phase.RUNNING, since)
            assert one.backend.status()[0].pid != pid
            (site.workdir / "go").touch()
            assert (await one.member_status("1/1/0", Phase.ENDED)).status == 3 << 8
            assert site.lines("up") == ["up"]

    run(test)


def test_without_an_agent_members_end_when_their_processes_are_gone() -> None:
    async def test(site: Site) -> None:
        environment: dict[str, str] = {}
        async with instance(site, agent_return_timeout_s=0.3, agent_environment=environment) as one:
            await one.start()
            await one.apply(place(site, WAIT))
            await eventually(lambda: site.lines("up"), "the task runs")
            environment["PYTHONHOME"] = "/nonexistent"
            tokens = site.tokens()
            kill(one.backend.status()[0].pid)
            ended = await one.member_status("1/1/0", Phase.ENDED)
            assert (ended.status, ended.cause) == (signal.SIGKILL, EndCause.NODE_FAILURE)
            assert [pid for token in tokens for pid in processes_with_token(token)] == []
            await one.apply(place(site, "true", assignment("2/1/0"), intent=2))
            assert (await one.intent_result(2, "2/1/0"))[0] is Outcome.UNKNOWN
            await one.backend.probe(["2/1/0"])
            await one.member_status("2/1/0", Phase.LOST)
            since = len(one.facts)
            environment.clear()
            await one.node("node0", up=True, since=since)
            await one.member_status("2/1/0", Phase.WAITING, since)
            assert site.lines("up") == ["up"]

    run(test)


def test_members_of_an_agent_that_is_disconnected_at_the_start_are_lost() -> None:
    async def test(site: Site) -> None:
        async with instance(site) as one:
            await one.start()
            await one.apply(place(site, WAIT))
            await eventually(lambda: site.lines("up"), "the task runs")
            pid = one.backend.status()[0].pid
        kill(pid)
        broken = {"PYTHONHOME": "/nonexistent"}
        async with instance(site, epoch=2, snapshot_timeout_s=0.3, agent_environment=broken) as two:
            snapshot = await two.start()
            assert [node.up for node in snapshot.nodes] == [False]
            assert [(status.member, status.phase) for status in snapshot.statuses] == [("1/1/0", Phase.LOST)]
            broken.clear()
            await two.member_status("1/1/0", Phase.RUNNING)
            (site.workdir / "go").touch()
            assert (await two.member_status("1/1/0", Phase.ENDED)).status == 3 << 8

    run(test)


def test_a_probe_reports_a_known_member_and_an_unknown_one_as_waiting() -> None:
    async def test(site: Site) -> None:
        async with instance(site) as one:
            await one.start()
            await one.apply(place(site, "exit 3"))
            await one.member_status("1/1/0", Phase.ENDED)
            since = len(one.facts)
            await one.backend.probe(["1/1/0", "9/1/0"])
            assert (await one.member_status("1/1/0", Phase.ENDED, since)).status == 3 << 8
            await one.member_status("9/1/0", Phase.WAITING, since)

    run(test)


def test_a_node_can_be_removed_although_its_agent_hangs() -> None:
    """The agent was started by an earlier instance, so nobody here has its process."""

    async def test(site: Site) -> None:
        async with instance(site, nodes=2) as before:
            await before.start()
            pid = before.backend.status()[1].pid
        async with instance(site, epoch=2, agent_stop_timeout_s=0.2) as one:
            await one.start()
            assert one.backend.leaving() == ["node1"]
            assert not await one.backend.probe_unknown("node1", [])
            os.kill(pid, signal.SIGSTOP)
            await one.backend.remove_node("node1")
            await eventually(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, "the agent is gone")
            assert not site.paths.agent("node1").exists()
            assert one.backend.leaving() == []

    run(test)


def test_stop_keeps_tasks_or_ends_them() -> None:
    async def test(site: Site) -> None:
        for epoch, keep in ((1, True), (2, False)):
            async with instance(site, epoch=epoch) as one:
                await one.start()
                await one.apply(place(site, "echo up >> up; exec sleep 1000"))
                await eventually(lambda: site.lines("up"), "the task runs")
                await one.leave()
                await one.backend.stop(keep_tasks=keep)
                assert bool(processes_with_token(site.tokens()[0])) is keep
        async with instance(site, epoch=3) as one:
            (status,) = (await one.start()).statuses
            assert (status.phase, status.status, status.message) == (Phase.ENDED, signal.SIGTERM, "shutdown")
            assert site.lines("up") == ["up"]

    run(test)


CHILD = """
import asyncio, signal, sys
from tests.backends.local_rig import Instance, Site, place
from penstock.backends.local import LocalSettings
from penstock.paths import InstancePaths
from penstock.protocol.intents import End, EndReason
from pathlib import Path

async def main():
    site = Site.__new__(Site)
    site.base = Path(sys.argv[1])
    site.paths, site.workdir = InstancePaths(site.base / "state", site.base / "run"), site.base / "work"
    one = Instance(site, LocalSettings())
    await one.start()
    await one.apply(place(site, "echo ran >> ran"))
    await one.apply(End(2, 1, ("8/1/0",), signal.SIGTERM, 1.0, EndReason.CANCEL))
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("point", [p for points in INTENTS.values() for p in (points.before, points.after)])
def test_intents_can_be_repeated_after_a_crash_of_the_instance(point: str) -> None:
    async def test(site: Site) -> None:
        child = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", CHILD, str(site.base)],
            env={**os.environ, "PENSTOCK_FAILPOINTS": point},
            timeout=30,
            check=False,
        )
        assert child.returncode == -signal.SIGKILL
        async with instance(site, epoch=2) as two:
            await two.start()
            await two.apply(place(site, "echo ran >> ran"))
            await two.apply(End(2, 1, ("8/1/0",), signal.SIGTERM, 1.0, EndReason.CANCEL))
            assert (await two.intent_result(1))[0] is Outcome.APPLIED
            assert (await two.intent_result(2, "8/1/0"))[0] is Outcome.GONE
            assert (await two.member_status("1/1/0", Phase.ENDED)).status == 0
            assert site.lines("ran") == ["ran"]

    run(test)


def test_many_short_tasks_over_four_agents() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=4, cores_per_node=64) as one:
            await one.start()
            await one.apply(
                *(
                    place(
                        site,
                        "echo >> ran$FLUX_TASK_RANK",
                        assignment(f"{n}/1/{n}", f"node{n % 4}", n),
                        intent=n,
                    )
                    for n in range(1, 101)
                )
            )
            for n in range(1, 101):
                assert (await one.member_status(f"{n}/1/{n}", Phase.ENDED)).status == 0
            assert all((site.workdir / f"ran{n}").read_text() == "\n" for n in range(1, 101))

    run(test)
