"""One life of the world: it begins with a snapshot, ends when it is cancelled, and hides no failure."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from penstock.backends.kube import backend as world_module
from penstock.backends.kube import executor
from penstock.backends.kube.backend import KubeBackend
from penstock.backends.kube.settings import KubeSettings
from penstock.errors import Unavailable
from penstock.kube.errors import NotFound
from penstock.kube.resources import JOBS
from penstock.kube.watch import Deleted, Upserted
from penstock.podspec.keys import DEADLINE_SET_ANNOTATION, JOB_ANNOTATION
from penstock.protocol.facts import (
    Fact,
    IntentResult,
    MemberGone,
    MemberSet,
    MemberStatus,
    Outcome,
    Phase,
    Snapshot,
)
from penstock.protocol.intents import Assignment, End, EndReason, Place, StatusUpdate, WorkloadStatus
from tests.backends.kube_client import FakeClient
from tests.backends.kube_objects import job, node, owned_by, pod
from tests.backends.kube_server import Server
from tests.kube.fake_api import FakeApi
from tests.kube.raw_server import Request, ResponseWriter, eventually, quick_client, raw_server, running

pytestmark = pytest.mark.filterwarnings("error")

PLACE = Place(1, 77, "default/pod/uid-a", (Assignment("uid-a", 0, "n1"),))


class Life:
    def __init__(self, server: Server, client: FakeClient | None = None) -> None:
        self.server = server
        self.client = client or FakeClient()
        self.facts: list[Fact] = []
        self.backend = KubeBackend(
            self.client,  # type: ignore[arg-type]
            KubeSettings(binds_in_flight_max=2, controller_wait_s=0.01, status_writes_per_s=1000.0),
            identity="me",
            clock=lambda: 2000.0,
        )

    def snapshots(self) -> list[Snapshot]:
        return [fact for fact in self.facts if isinstance(fact, Snapshot)]

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not holds():
                await asyncio.sleep(0.001)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[asyncio.Task[None]]:
        before = asyncio.all_tasks()
        task = asyncio.create_task(self.backend.run(1, self.facts.append))
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before, "no task outlives a life"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[Life, Callable[[], Awaitable[None]]], None]:
    def run_it(life: Life, scenario: Callable[[], Awaitable[None]]) -> None:
        monkeypatch.setattr(world_module, "reflect", life.server.reflect)

        async def whole() -> None:
            await scenario()

        asyncio.run(whole())
        gc.collect()  # What was never awaited says so now, and warnings are errors here.

    return run_it


Run = Callable[[Life, Callable[[], Awaitable[None]]], None]


def test_a_life_begins_with_a_snapshot_of_everything(run: Run) -> None:
    life = Life(Server(nodes=[node("n1")], pods=[pod("a")]))

    async def scenario() -> None:
        async with life.running():
            await life.until(life.snapshots)
            life.server.receivers["pods"](Upserted(pod("b")))
            await life.until(lambda: any(isinstance(fact, MemberSet) for fact in life.facts))
            life.server.receivers["pods"](Deleted(pod("b")))
            await life.until(lambda: MemberGone("uid-b") in life.facts)

    run(life, scenario)
    first = life.facts[0]
    assert isinstance(first, Snapshot)
    assert [one.member for one in first.members] == ["uid-a"]


def test_a_cancelled_life_leaves_nothing_behind(run: Run) -> None:
    """Intents that nobody has begun, and such as wait for another try, are dropped."""
    life = Life(Server(nodes=[node("n1")], pods=[pod("a", node="n1", placed=True)]))
    life.client.answers["delete"] = [Unavailable("away")] * 100

    async def scenario() -> None:
        async with life.running():
            await life.until(life.snapshots)
            ends = [End(number, 77, ("uid-a",), 15, 1.0, EndReason.CANCEL) for number in range(50)]
            await life.backend.apply(1, ends)
            await life.backend.probe(["uid-a"] * 50)
            await life.until(lambda: "delete" in life.client.verbs())
            await life.backend.apply(1, ends)
        asked = len(life.client.asked)
        await life.backend.apply(1, ends)
        await life.backend.probe(["uid-a"])
        assert not life.backend.may_act()
        await asyncio.sleep(0.01)
        assert len(life.client.asked) == asked

    run(life, scenario)


def test_what_another_epoch_wants_is_not_done(run: Run) -> None:
    life = Life(Server(nodes=[node("n1")], pods=[pod("a")]))

    async def scenario() -> None:
        async with life.running():
            await life.until(life.snapshots)
            await life.backend.apply(2, [PLACE])
            await asyncio.sleep(0.02)
            assert life.client.asked == []
            await life.backend.apply(1, [PLACE])
            await life.until(lambda: "bind" in life.client.verbs())

    run(life, scenario)


def test_before_the_first_snapshot_nobody_is_declared_gone(run: Run) -> None:
    server = Server(nodes=[node("n1")], pods=[pod("a")])
    server.is_slow = {"nodes"}
    life = Life(server)

    async def scenario() -> None:
        async with life.running():
            await life.until(lambda: "pods" in server.receivers)
            await life.backend.apply(1, [PLACE, End(2, 77, ("uid-a",), 15, 1.0, EndReason.CANCEL)])
            await life.backend.probe(["uid-a"])
            await asyncio.sleep(0.02)
            assert life.facts == []
            assert not life.backend.may_act()
            server.is_slow.clear()
            await life.until(life.snapshots)

    run(life, scenario)
    assert life.client.asked == []


def test_a_refresh_in_the_middle_of_things_loses_nobody(run: Run) -> None:
    """While everything is listed afresh, what was known before is what counts."""
    server = Server(nodes=[node("n1")], pods=[pod("a"), pod("b")])
    life = Life(server)

    async def scenario() -> None:
        async with life.running():
            await life.until(life.snapshots)
            server.is_slow = {"pods"}
            life.backend.publish_status(
                [StatusUpdate("default/pod/uid-b", 5, WorkloadStatus.INADMISSIBLE, "nobody wants it")]
            )
            life.backend.refresh()
            await life.until(lambda: server.lists > 10)
            await life.backend.apply(1, [PLACE])
            await life.until(lambda: life.facts[1:])
            assert life.facts[-1] == IntentResult(1, "uid-a", Outcome.APPLIED)
            server.is_slow.clear()
            await life.until(lambda: len(life.snapshots()) == 2)
            life.backend.refresh()
            life.backend.refresh()
            await life.until(lambda: len(life.snapshots()) == 3)

    run(life, scenario)
    assert [[one.member for one in found.members] for found in life.snapshots()] == [
        ["uid-a", "uid-b"],
        ["uid-a"],
        ["uid-a"],
    ], "what was given up stays so"


def test_a_group_that_is_told_to_wait_has_no_deadline_of_its_last_attempt(run: Run) -> None:
    """None of its pods had to be taken away: they were gone with their node, and are made again."""
    notes = {DEADLINE_SET_ANNOTATION: "60"}
    made = job("train", wants=1, started=1000.0, activeDeadlineSeconds=60, notes=notes)
    waiting = pod("a", owner=owned_by("Job", "train"))
    life = Life(Server(nodes=[node("n1")], pods=[waiting], jobs=[made]))

    async def scenario() -> None:
        async with life.running():
            await life.until(life.snapshots)
            (workload,) = life.snapshots()[0].workloads
            life.backend.publish_status(
                [StatusUpdate(workload.workload, 5, WorkloadStatus.WAITING, "no room")]
            )
            await life.until(lambda: "patch" in life.client.verbs())

    run(life, scenario)
    path, body, _ = next(what for verb, what in life.client.asked if verb == "patch")
    assert path == JOBS.path("default", "train")
    assert body["spec"] == {"activeDeadlineSeconds": None}


def test_a_group_that_runs_keeps_its_deadline_though_a_late_pod_waits(run: Run) -> None:
    made = job("train", started=1000.0, activeDeadlineSeconds=60, notes={DEADLINE_SET_ANNOTATION: "60"})
    owner = owned_by("Job", "train")
    pods = [pod("a", owner=owner, node="n1", placed=True, phase="Running"), pod("b", owner=owner)]
    life = Life(Server(nodes=[node("n1")], pods=[*pods], jobs=[made]))

    async def scenario() -> None:
        async with life.running():
            await life.until(life.snapshots)
            (workload,) = life.snapshots()[0].workloads
            life.backend.publish_status(
                [StatusUpdate(workload.workload, 5, WorkloadStatus.WAITING, "no room")]
            )
            await asyncio.sleep(0.03)

    run(life, scenario)
    assert JOBS.path("default", "train") not in [what[0] for _, what in life.client.asked]


def test_what_pauses_over_a_refresh_is_not_doubled_by_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_RETRY_S", 0.02)
    life = Life(Server(nodes=[node("n1")], pods=[pod("a", node="n1", placed=True)]))
    life.client.answers["delete"] = [Unavailable("away")] * 10
    end = End(1, 77, ("uid-a",), 15, 1.0, EndReason.CANCEL)

    async def scenario() -> None:
        async with life.running():
            for number in range(1, 5):
                await life.until(lambda number=number: len(life.snapshots()) == number)
                await life.backend.apply(1, [end])
                life.backend.refresh()
            await life.until(lambda: any(isinstance(fact, IntentResult) for fact in life.facts))
            await asyncio.sleep(0.05)

    run(life, scenario)
    assert [fact for fact in life.facts if isinstance(fact, IntentResult)] == [
        IntentResult(1, "uid-a", Outcome.APPLIED)
    ]
    assert life.client.verbs().count("delete") == 11


@pytest.mark.parametrize("refreshes", [False, True])
def test_a_fault_of_ours_ends_the_life_and_is_named(run: Run, refreshes: bool) -> None:
    life = Life(Server(nodes=[node("n1")]))

    async def scenario() -> None:
        life.server.fault = asyncio.get_running_loop().create_future()
        async with life.running() as task:
            await life.until(life.snapshots)
            if refreshes:
                life.backend.refresh()
            life.server.fault.set_exception(ValueError("a pod that nobody foresaw"))
            with pytest.raises(ValueError, match="a pod that nobody foresaw"):
                await asyncio.wait_for(asyncio.shield(task), 5)

    run(life, scenario)


def test_a_server_that_is_away_for_good_is_worth_another_life(run: Run) -> None:
    life = Life(Server())

    async def scenario() -> None:
        life.server.fault = asyncio.get_running_loop().create_future()
        async with life.running() as task:
            life.server.fault.set_exception(Unavailable("away"))
            with pytest.raises(Unavailable, match="away"):
                await asyncio.wait_for(asyncio.shield(task), 5)
        life.server.fault = None
        async with life.running():
            await life.until(life.snapshots)

    run(life, scenario)


def test_what_was_told_to_pods_is_forgotten_with_them(run: Run) -> None:
    bad = {"penstock.dev/group-size": "x"}
    pods = [pod(name, labels=bad) for name in "abc"]
    life = Life(Server(nodes=[node("n1")], pods=[*pods]))

    async def scenario() -> None:
        teller = life.backend._condition_writer
        async with life.running():
            await life.until(lambda: len(teller._written) == 3)
            life.server.receivers["pods"](Deleted(pods[0]))
            life.server.receivers["pods"](Upserted(pod("b", labels=bad, node="n1")))
            assert list(teller._written) == ["uid-c"]
            life.server.objects["pods"] = []
            life.backend.refresh()
            await life.until(lambda: len(life.snapshots()) == 2)
            assert not teller._written

    run(life, scenario)


def test_a_maker_that_is_not_heard_of_is_asked_for(run: Run) -> None:
    made = pod("a", owner=owned_by("Job", "train"))
    life = Life(Server(nodes=[node("n1")], pods=[made]))
    life.client.answers["get"] = [Unavailable("away"), job("train", wants=1)]

    async def scenario() -> None:
        async with life.running():
            await life.until(lambda: any(isinstance(fact, MemberSet) for fact in life.facts))

    run(life, scenario)
    assert life.client.asked[0] == ("get", JOBS.path("default", "train"))
    assert life.snapshots()[0].members == ()


def test_pods_of_a_maker_that_is_gone_are_not_started(run: Run) -> None:
    made = pod("a", owner=owned_by("Job", "train"))
    life = Life(Server(nodes=[node("n1")], pods=[made]))
    life.client.answers["get"] = [NotFound(404)]

    async def scenario() -> None:
        async with life.running():
            await life.until(life.snapshots)
            problems = life.backend.cache.problems
            await life.until(lambda: problems["uid-a"].reason == "OwnerNotFound")
            await life.until(lambda: "event" in life.client.verbs())

    run(life, scenario)
    assert not any(isinstance(fact, MemberSet) for fact in life.facts)


# Objects that cannot be read


def raw_pod(**spec: object) -> dict[str, Any]:
    """Of ours, on its node; all but what the fake server makes of it."""
    whole = msgspec.to_builtins(pod("a", node="n1", placed=True))
    return {"spec": {**whole["spec"], **spec}, "status": {"phase": "Running"}}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_pod_that_runs_is_not_gone_because_it_cannot_be_read(is_known: bool) -> None:
    """Not after a list, whether it could be read once or not: its share would be given to others."""

    async def scenario() -> None:
        pods, nodes = FakeApi(), FakeApi()
        notes = {"annotations": {JOB_ANNOTATION: "f1"}}
        nodes.put("n1", status={"allocatable": {"cpu": "4", "pods": "110"}})
        pods.put("a", more_metadata=notes, **(raw_pod() if is_known else raw_pod(containers="none")))

        async def serve(request: Request, answer: ResponseWriter) -> None:
            api = {"/api/v1/pods": pods, "/api/v1/nodes": nodes}.get(request.path)
            if api is None:
                answer.send(404, b"404 page not found")
            else:
                await api(request, answer)

        facts: list[Fact] = []

        def snapshots() -> list[Snapshot]:
            return [fact for fact in facts if isinstance(fact, Snapshot)]

        async with raw_server(serve) as server, quick_client(server.url) as client:
            backend = KubeBackend(client, KubeSettings(), identity="me")
            async with running(backend.run(1, facts.append)):
                await eventually(lambda: len(snapshots()) == 1)
                pods.put("a", more_metadata=notes, **raw_pod(containers="none"))
                nodes.put("n1", status=["no", "status"])
                backend.refresh()
                await eventually(lambda: len(snapshots()) == 2)
                pods.put(
                    "a",
                    more_metadata=notes,
                    **{**raw_pod(containers="none"), "status": {"phase": "Succeeded"}},
                )
                ended = Phase.ENDED
                await eventually(
                    lambda: any(isinstance(it, MemberStatus) and it.phase is ended for it in facts)
                )
        for found in snapshots():
            assert [(one.member, one.phase, one.node) for one in found.statuses] == [
                ("uid-a", Phase.RUNNING, "n1")
            ]
            assert [one.node for one in found.nodes] == ["n1"]
        cpu = dict(snapshots()[1].statuses[0].usage).get("cpu", 0)
        assert cpu == (1000 if is_known else 0), "what is known of it still counts"

    asyncio.run(scenario())
