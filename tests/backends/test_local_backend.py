"""The port over real agents: what is told, what survives whom, what is answered when nobody knows."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from typing import get_args

import pytest

from penstock.agent.processes import bearers
from penstock.backends.local import INTENTS
from penstock.errors import Conflict
from penstock.failpoints import REGISTRY
from penstock.protocol.facts import Capacity, EndCause, Outcome, Phase
from penstock.protocol.intents import (
    End,
    EndReason,
    Intent,
    Retract,
    RetractMode,
    StatusUpdate,
    WorkloadStatus,
)
from tests.backends.local_rig import Site, assignment, eventually, instance, place, run

WAIT = "echo up >> up; while [ ! -e go ]; do sleep 0.02; done; exit 3"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_every_kind_of_intent_has_its_failpoints() -> None:
    assert set(INTENTS) == set(get_args(Intent))
    for points in INTENTS.values():
        assert points.before in REGISTRY
        assert points.after in REGISTRY


def test_a_job_of_several_tasks_runs_and_every_task_knows_its_place() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=2, cores_per_node=4, gpus_per_node=1) as one:
            snapshot = await one.begin()
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
                assert (await one.settled(1, member))[0] is Outcome.APPLIED
                ended = await one.observed(member, Phase.ENDED)
                assert (ended.status, ended.node) == (index << 8, node)
                stdout, _ = one.backend.output_paths(1, index, place(site, script).spec)
                assert stdout.read_text() == f"{index} {local} 2 3\n"
            one.backend.forget([f"1/1/{index}" for index in range(3)])
            await eventually(lambda: site.tokens() == [], "the agents forget what is released")
            assert [(status.state, status.tasks) for status in one.backend.status()] == [("up", 0)] * 2
            one.backend.publish_status([StatusUpdate("", 1, WorkloadStatus.WAITING)])

    run(test)


def test_an_end_a_signal_and_what_is_no_longer_there() -> None:
    async def test(site: Site) -> None:
        async with instance(site) as one:
            await one.begin()
            await one.apply(place(site, "echo up >> up; exec sleep 1000"))
            await eventually(lambda: site.lines("up"), "the task runs")
            await one.apply(Retract(2, 1, ("1/1/0",), RetractMode.FORGET))
            assert await one.settled(2) == (Outcome.CONFLICT, "it has started")
            await one.apply(End(3, 1, ("1/1/0",), signal.SIGTERM, 5.0, EndReason.CANCEL))
            assert (await one.settled(3))[0] is Outcome.APPLIED
            ended = await one.observed("1/1/0", Phase.ENDED)
            assert (ended.status, ended.cause, ended.message) == (signal.SIGTERM, EndCause.OTHER, "cancel")
            await one.apply(End(4, 1, ("1/1/0",), signal.SIGTERM, 5.0, EndReason.CANCEL))
            assert (await one.settled(4))[0] is Outcome.GONE

    run(test)


def test_what_is_ended_or_taken_back_before_it_comes_never_starts_anywhere() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=2) as one:
            await one.begin()
            await one.apply(End(1, 1, ("1/1/0",), signal.SIGTERM, 5.0, EndReason.CANCEL))
            assert (await one.settled(1))[0] is Outcome.GONE
            await one.apply(Retract(2, 2, ("2/1/0",), RetractMode.FORGET))
            assert (await one.settled(2, "2/1/0"))[0] is Outcome.APPLIED
            for intent, member in ((3, "1/1/0"), (4, "2/1/0")):
                await one.apply(place(site, "echo ran >> ran", assignment(member, "node1"), intent=intent))
                assert (await one.settled(intent, member))[0] is Outcome.GONE
            assert site.lines("ran") == []

    run(test)


def test_a_bad_placement_is_a_conflict_for_each_of_its_members() -> None:
    async def test(site: Site) -> None:
        async with instance(site) as one:
            await one.begin()
            bad = (
                place(site, "true", assignment("1/1/0", "node9"), intent=1),
                place(site, "true", intent=2, command=[]),
                place(site, "true", intent=3, environment={"A": "\udcff"}),
                place(site, "true", intent=4, cwd=7),
            )
            await one.apply(*bad)
            for intent in range(1, 5):
                assert (await one.settled(intent))[0] is Outcome.CONFLICT

    run(test)


def test_an_instance_that_comes_back_finds_its_members_and_runs_none_twice() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=2) as one:
            await one.begin()
            await one.apply(place(site, WAIT), place(site, "exit 5", assignment("2/1/0", "node1"), intent=2))
            await eventually(lambda: site.lines("up"), "the task runs")
            await one.observed("2/1/0", Phase.ENDED)
        async with instance(site, epoch=2, nodes=2) as two:
            snapshot = await two.begin()
            found = {seen.member: (seen.phase, seen.node, seen.status) for seen in snapshot.statuses}
            expected = {"1/1/0": (Phase.RUNNING, "node0", 0), "2/1/0": (Phase.ENDED, "node1", 5 << 8)}
            assert found == expected
            await two.apply(place(site, WAIT))
            assert (await two.settled(1))[0] is Outcome.APPLIED
            (site.workload / "go").touch()
            assert (await two.observed("1/1/0", Phase.ENDED)).status == 3 << 8
            assert site.lines("up") == ["up"]
        async with instance(site, epoch=1, nodes=2) as old:
            with pytest.raises(Conflict, match="epoch 1 is over"):
                await old.begin()

    run(test)


def test_an_agent_that_dies_is_replaced_and_its_members_are_lost_only_so_long() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=2) as one:
            await one.begin()
            await one.apply(place(site, WAIT))
            await eventually(lambda: site.lines("up"), "the task runs")
            since = len(one.facts)
            kill(one.backend.status()[0].pid)
            assert (await one.node("node0", up=False, since=since)).why
            await one.observed("1/1/0", Phase.LOST, since)
            await one.node("node0", up=True, since=since)
            await one.observed("1/1/0", Phase.RUNNING, since)
            (site.workload / "go").touch()
            assert (await one.observed("1/1/0", Phase.ENDED)).status == 3 << 8
            assert site.lines("up") == ["up"]

    run(test)


def test_an_agent_that_hangs_is_replaced_and_its_tasks_go_on() -> None:
    async def test(site: Site) -> None:
        async with instance(site, answer_within_s=1.0) as one:
            await one.begin()
            await one.apply(place(site, WAIT))
            await eventually(lambda: site.lines("up"), "the task runs")
            since, pid = len(one.facts), one.backend.status()[0].pid
            os.kill(pid, signal.SIGSTOP)
            await one.node("node0", up=False, since=since)
            await one.observed("1/1/0", Phase.RUNNING, since)
            assert one.backend.status()[0].pid != pid
            (site.workload / "go").touch()
            assert (await one.observed("1/1/0", Phase.ENDED)).status == 3 << 8
            assert site.lines("up") == ["up"]

    run(test)


def test_where_no_agent_comes_back_members_are_ended_once_they_are_certainly_gone() -> None:
    async def test(site: Site) -> None:
        environment: dict[str, str] = {}
        async with instance(site, return_within_s=0.3, agent_environment=environment) as one:
            await one.begin()
            await one.apply(place(site, WAIT))
            await eventually(lambda: site.lines("up"), "the task runs")
            environment["PYTHONHOME"] = "/nonexistent"
            tokens = site.tokens()
            kill(one.backend.status()[0].pid)
            ended = await one.observed("1/1/0", Phase.ENDED)
            assert (ended.status, ended.cause) == (signal.SIGKILL, EndCause.NODE_FAILURE)
            assert [pid for token in tokens for pid in bearers(token)] == []
            await one.apply(place(site, "true", assignment("2/1/0"), intent=2))
            assert (await one.settled(2, "2/1/0"))[0] is Outcome.UNKNOWN
            await one.backend.probe(["2/1/0"])
            await one.observed("2/1/0", Phase.LOST)
            since = len(one.facts)
            environment.clear()
            await one.node("node0", up=True, since=since)
            await one.observed("2/1/0", Phase.WAITING, since)
            assert site.lines("up") == ["up"]

    run(test)


def test_an_agent_that_is_away_at_the_start_has_its_members_told_as_lost() -> None:
    async def test(site: Site) -> None:
        async with instance(site) as one:
            await one.begin()
            await one.apply(place(site, WAIT))
            await eventually(lambda: site.lines("up"), "the task runs")
            pid = one.backend.status()[0].pid
        kill(pid)
        broken = {"PYTHONHOME": "/nonexistent"}
        async with instance(site, epoch=2, snapshot_within_s=0.3, agent_environment=broken) as two:
            snapshot = await two.begin()
            assert [node.up for node in snapshot.nodes] == [False]
            assert [(seen.member, seen.phase) for seen in snapshot.statuses] == [("1/1/0", Phase.LOST)]
            broken.clear()
            await two.observed("1/1/0", Phase.RUNNING)
            (site.workload / "go").touch()
            assert (await two.observed("1/1/0", Phase.ENDED)).status == 3 << 8

    run(test)


def test_a_probe_tells_what_is_known_and_that_nothing_is() -> None:
    async def test(site: Site) -> None:
        async with instance(site) as one:
            await one.begin()
            await one.apply(place(site, "exit 3"))
            await one.observed("1/1/0", Phase.ENDED)
            since = len(one.facts)
            await one.backend.probe(["1/1/0", "9/1/0"])
            assert (await one.observed("1/1/0", Phase.ENDED, since)).status == 3 << 8
            await one.observed("9/1/0", Phase.WAITING, since)

    run(test)


def test_stopping_keeps_tasks_or_ends_them() -> None:
    async def test(site: Site) -> None:
        for epoch, keep in ((1, True), (2, False)):
            async with instance(site, epoch=epoch) as one:
                await one.begin()
                await one.apply(place(site, "echo up >> up; exec sleep 1000"))
                await eventually(lambda: site.lines("up"), "the task runs")
                await one.leave()
                await one.backend.stop(keep_tasks=keep)
                assert bool(bearers(site.tokens()[0])) is keep
        async with instance(site, epoch=3) as one:
            (seen,) = (await one.begin()).statuses
            assert (seen.phase, seen.status, seen.message) == (Phase.ENDED, signal.SIGTERM, "shutdown")
            assert site.lines("up") == ["up"]

    run(test)


CHILD = """
import asyncio, signal, sys
from tests.backends.local_rig import Instance, Site, place
from penstock.backends.local import LocalSettings
from penstock.paths import InstancePaths
from penstock.protocol.intents import End, EndReason, RetractMode, Retract
from pathlib import Path

async def main():
    site = Site.__new__(Site)
    site.base = Path(sys.argv[1])
    site.paths, site.workload = InstancePaths(site.base / "state", site.base / "run"), site.base / "work"
    one = Instance(site, LocalSettings())
    await one.begin()
    await one.apply(place(site, "echo ran >> ran"))
    await one.apply(End(2, 1, ("8/1/0",), signal.SIGTERM, 1.0, EndReason.CANCEL))
    await one.apply(Retract(3, 1, ("9/1/0",), RetractMode.FORGET))
    await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("point", [p for points in INTENTS.values() for p in (points.before, points.after)])
def test_an_instance_that_dies_there_may_say_everything_again(point: str) -> None:
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
            await two.begin()
            await two.apply(place(site, "echo ran >> ran"))
            await two.apply(End(2, 1, ("8/1/0",), signal.SIGTERM, 1.0, EndReason.CANCEL))
            await two.apply(Retract(3, 1, ("9/1/0",), RetractMode.FORGET))
            assert (await two.settled(1))[0] is Outcome.APPLIED
            assert (await two.settled(2, "8/1/0"))[0] is Outcome.GONE
            assert (await two.settled(3, "9/1/0"))[0] is Outcome.APPLIED
            assert (await two.observed("1/1/0", Phase.ENDED)).status == 0
            assert site.lines("ran") == ["ran"]

    run(test)


def test_many_short_tasks_over_four_agents() -> None:
    async def test(site: Site) -> None:
        async with instance(site, nodes=4, cores_per_node=64) as one:
            await one.begin()
            time.monotonic()
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
                assert (await one.observed(f"{n}/1/{n}", Phase.ENDED)).status == 0
            assert all((site.workload / f"ran{n}").read_text() == "\n" for n in range(1, 101))

    run(test)
