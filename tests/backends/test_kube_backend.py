"""Terms of the backend: each starts with a snapshot, ends when cancelled, and raises every error."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from penstock.backends.kube import backend as backend_module
from penstock.backends.kube import executor
from penstock.backends.kube.backend import KubeBackend
from penstock.backends.kube.settings import KubeSettings
from penstock.errors import Unavailable
from penstock.kube.errors import NotFound
from penstock.kube.resources import JOBS, PODS
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
from penstock.protocol.intents import Assignment, End, EndReason, Evict, Place, StatusUpdate, WorkloadStatus
from tests.backends.kube_client import FakeClient
from tests.backends.kube_objects import job, node, owned_by, pod
from tests.backends.kube_server import Server
from tests.kube.fake_api import FakeApi
from tests.kube.raw_server import Request, ResponseWriter, eventually, quick_client, raw_server, running

pytestmark = pytest.mark.filterwarnings("error")

PLACE = Place(1, 77, "default/pod/uid-a", (Assignment("uid-a", 0, "n1"),))


class BackendHarness:
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
        assert asyncio.all_tasks() == before, "no task outlives a term"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[BackendHarness, Callable[[], Awaitable[None]]], None]:
    def run_it(harness: BackendHarness, scenario: Callable[[], Awaitable[None]]) -> None:
        monkeypatch.setattr(backend_module, "reflect", harness.server.reflect)

        async def whole() -> None:
            await scenario()

        asyncio.run(whole())
        gc.collect()  # Coroutines that were never awaited warn now, and warnings are errors here.

    return run_it


Run = Callable[[BackendHarness, Callable[[], Awaitable[None]]], None]


def test_a_term_starts_with_a_snapshot_of_everything(run: Run) -> None:
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[pod("a")]))

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            harness.server.receivers["pods"](Upserted(pod("b")))
            await harness.until(lambda: any(isinstance(fact, MemberSet) for fact in harness.facts))
            harness.server.receivers["pods"](Deleted(pod("b")))
            await harness.until(lambda: MemberGone("uid-b") in harness.facts)

    run(harness, scenario)
    first = harness.facts[0]
    assert isinstance(first, Snapshot)
    assert [one.member for one in first.members] == ["uid-a"]


def test_a_cancelled_term_leaves_no_action_behind(run: Run) -> None:
    """Queued and paused actions are dropped."""
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[pod("a", node="n1", placed=True)]))
    harness.client.responses["delete"] = [Unavailable("away")] * 100

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            ends = [End(number, 77, ("uid-a",), 15, 1.0, EndReason.CANCEL) for number in range(50)]
            await harness.backend.apply(1, ends)
            await harness.backend.probe(["uid-a"] * 50)
            await harness.until(lambda: "delete" in harness.client.verbs())
            await harness.backend.apply(1, ends)
        requests = len(harness.client.requests)
        await harness.backend.apply(1, ends)
        await harness.backend.probe(["uid-a"])
        assert not harness.backend.may_act()
        await asyncio.sleep(0.01)
        assert len(harness.client.requests) == requests

    run(harness, scenario)


def test_intents_of_another_epoch_are_ignored(run: Run) -> None:
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[pod("a")]))

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            await harness.backend.apply(2, [PLACE])
            await asyncio.sleep(0.02)
            assert harness.client.requests == []
            await harness.backend.apply(1, [PLACE])
            await harness.until(lambda: "bind" in harness.client.verbs())

    run(harness, scenario)


def test_intents_before_the_first_snapshot_are_ignored(run: Run) -> None:
    server = Server(nodes=[node("n1")], pods=[pod("a")])
    server.is_slow = {"nodes"}
    harness = BackendHarness(server)

    async def scenario() -> None:
        async with harness.running():
            await harness.until(lambda: "pods" in server.receivers)
            await harness.backend.apply(1, [PLACE, End(2, 77, ("uid-a",), 15, 1.0, EndReason.CANCEL)])
            await harness.backend.probe(["uid-a"])
            await asyncio.sleep(0.02)
            assert harness.facts == []
            assert not harness.backend.may_act()
            server.is_slow.clear()
            await harness.until(harness.snapshots)

    run(harness, scenario)
    assert harness.client.requests == []


def test_the_old_cache_stays_in_use_during_a_refresh(run: Run) -> None:
    """The new cache replaces it when all lists are complete."""
    server = Server(nodes=[node("n1")], pods=[pod("a"), pod("b")])
    harness = BackendHarness(server)

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            server.is_slow = {"pods"}
            harness.backend.refresh()
            await harness.until(lambda: server.lists > 10)
            await harness.backend.apply(1, [PLACE])
            await harness.until(lambda: harness.facts[1:])
            assert harness.facts[-1] == IntentResult(1, "uid-a", Outcome.APPLIED)
            server.is_slow.clear()
            await harness.until(lambda: len(harness.snapshots()) == 2)
            harness.backend.refresh()
            harness.backend.refresh()
            await harness.until(lambda: len(harness.snapshots()) == 3)

    run(harness, scenario)
    assert [[one.member for one in found.members] for found in harness.snapshots()] == [
        ["uid-a", "uid-b"],
        ["uid-a", "uid-b"],
        ["uid-a", "uid-b"],
    ]


def test_the_waiting_pods_of_an_inadmissible_group_get_the_condition_and_stay_members(run: Run) -> None:
    owner = owned_by("Job", "train")
    pods = [pod("a", owner=owner, node="n1", placed=True, phase="Running"), pod("b", owner=owner)]
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[*pods], jobs=[job("train")]))

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            (workload,) = harness.snapshots()[0].workloads
            harness.backend.publish_status(
                2 * [StatusUpdate(workload.workload, 5, WorkloadStatus.INADMISSIBLE, "canceled: not today")]
            )
            await harness.until(lambda: "patch" in harness.client.verbs())
            await harness.until(lambda: harness.client.verbs().count("event") == 2)
            harness.backend.refresh()
            await harness.until(lambda: len(harness.snapshots()) == 2)

    run(harness, scenario)
    (what,) = (what for verb, what in harness.client.requests if verb == "patch")
    assert what[0] == PODS.path("default", "b", "status")
    (condition,) = what[1]["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == ("GroupInadmissible", "canceled: not today")
    events = [what for verb, what in harness.client.requests if verb == "event"]
    assert [what for what in events if what[0] == "train"] == [
        ("train", "GroupInadmissible", "Penstock does not start the group: canceled: not today")
    ], "once, on the Job; not on the pod that runs"
    assert [one.member for one in harness.snapshots()[1].members] == ["uid-b"]


def test_gated_pods_and_pods_with_a_problem_keep_their_own_conditions(run: Run) -> None:
    owner, bad = owned_by("Job", "train"), {"nodeSelector": {}, "resourceClaims": [{"name": "gpu"}]}
    pods = [
        pod("gated", owner=owner, gated=True),
        pod("bad", owner=owner, spec=bad),
        pod("b", owner=owner),
        pod("c", owner=owner),
    ]
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[*pods], jobs=[job("train", wants=4)]))

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            (workload,) = harness.snapshots()[0].workloads
            harness.backend.publish_status(
                [
                    StatusUpdate(workload.workload, 5, WorkloadStatus.INCOMPLETE, "for all"),
                    StatusUpdate(workload.workload, 5, WorkloadStatus.INCOMPLETE, "for c", member="uid-c"),
                    StatusUpdate(workload.workload, 5, WorkloadStatus.INCOMPLETE, "x", member="uid-gated"),
                ]
            )
            await harness.until(lambda: harness.client.verbs().count("patch") == 3)

    run(harness, scenario)
    told = {
        what[0].split("/")[-2]: what[1]["status"]["conditions"][0]
        for verb, what in harness.client.requests
        if verb == "patch"
    }
    assert {name: condition["reason"] for name, condition in told.items()} == {
        "bad": "UnsupportedSpec",
        "b": "GroupIncomplete",
        "c": "GroupIncomplete",
    }
    assert (told["b"]["message"], told["c"]["message"]) == ("for all", "for c")


def test_the_placed_pods_of_an_incomplete_group_and_their_job_get_an_event(run: Run) -> None:
    owner = owned_by("Job", "train")
    pods = [pod(name, owner=owner, node="n1", placed=True, phase="Running") for name in "ab"]
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[*pods], jobs=[job("train", wants=3)]))

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            (workload,) = harness.snapshots()[0].workloads
            update = StatusUpdate(workload.workload, 5, WorkloadStatus.INCOMPLETE, "n1 refused c: OutOfcpu")
            harness.backend.publish_status([update])
            await harness.until(lambda: harness.client.verbs().count("event") == 3)

    run(harness, scenario)
    events = [what for verb, what in harness.client.requests if verb == "event"]
    assert [(name, reason) for name, reason, _ in events] == [
        ("train", "GroupIncomplete"),
        ("a", "GroupIncomplete"),
        ("b", "GroupIncomplete"),
    ]
    assert events[0][2] == "the group of ƒ6 is incomplete: n1 refused c: OutOfcpu"


def test_the_deadline_of_the_last_attempt_is_removed_when_a_group_waits(run: Run) -> None:
    """No pod was evicted: they were deleted with their node and recreated."""
    annotations = {DEADLINE_SET_ANNOTATION: "60"}
    made = job("train", wants=1, started=1000.0, activeDeadlineSeconds=60, annotations=annotations)
    waiting = pod("a", owner=owned_by("Job", "train"))
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[waiting], jobs=[made]))

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            (workload,) = harness.snapshots()[0].workloads
            harness.backend.publish_status(
                [StatusUpdate(workload.workload, 5, WorkloadStatus.WAITING, "no room")]
            )
            await harness.until(lambda: "patch" in harness.client.verbs())

    run(harness, scenario)
    path, body, _ = next(what for verb, what in harness.client.requests if verb == "patch")
    assert path == JOBS.path("default", "train")
    assert body["spec"] == {"activeDeadlineSeconds": None}


def test_a_running_group_keeps_its_deadline_while_a_late_pod_waits(run: Run) -> None:
    made = job("train", started=1000.0, activeDeadlineSeconds=60, annotations={DEADLINE_SET_ANNOTATION: "60"})
    owner = owned_by("Job", "train")
    pods = [pod("a", owner=owner, node="n1", placed=True, phase="Running"), pod("b", owner=owner)]
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[*pods], jobs=[made]))

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            (workload,) = harness.snapshots()[0].workloads
            harness.backend.publish_status(
                [StatusUpdate(workload.workload, 5, WorkloadStatus.WAITING, "no room")]
            )
            await asyncio.sleep(0.03)

    run(harness, scenario)
    assert JOBS.path("default", "train") not in [what[0] for _, what in harness.client.requests]


def test_a_started_group_keeps_its_deadline_while_its_only_pod_waits_for_a_node(run: Run) -> None:
    """Its placed pods have failed, and the first replacement waits."""
    annotations = {DEADLINE_SET_ANNOTATION: "60"}
    made = job("train", wants=1, started=1000.0, activeDeadlineSeconds=60, annotations=annotations)
    waiting = pod("b", owner=owned_by("Job", "train"))
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[waiting], jobs=[made]))

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            (workload,) = harness.snapshots()[0].workloads
            told = StatusUpdate(workload.workload, 5, WorkloadStatus.INCOMPLETE, "no room", member="uid-b")
            harness.backend.publish_status([told])
            await harness.until(lambda: "patch" in harness.client.verbs())
            await asyncio.sleep(0.03)

    run(harness, scenario)
    assert [what[0] for verb, what in harness.client.requests if verb == "patch"] == [
        PODS.path("default", "b", "status")
    ]


def test_an_action_that_is_paused_during_a_refresh_is_not_duplicated(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "_RETRY_S", 0.02)
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[pod("a", node="n1", placed=True)]))
    harness.client.responses["delete"] = [Unavailable("away")] * 10
    end = End(1, 77, ("uid-a",), 15, 1.0, EndReason.CANCEL)

    async def scenario() -> None:
        async with harness.running():
            for number in range(1, 5):
                await harness.until(lambda number=number: len(harness.snapshots()) == number)
                await harness.backend.apply(1, [end])
                harness.backend.refresh()
            await harness.until(lambda: any(isinstance(fact, IntentResult) for fact in harness.facts))
            await asyncio.sleep(0.05)

    run(harness, scenario)
    assert [fact for fact in harness.facts if isinstance(fact, IntentResult)] == [
        IntentResult(1, "uid-a", Outcome.APPLIED)
    ]
    assert harness.client.verbs().count("delete") == 11


@pytest.mark.parametrize("refreshes", [False, True])
def test_an_internal_error_ends_the_term_and_is_raised(run: Run, refreshes: bool) -> None:
    harness = BackendHarness(Server(nodes=[node("n1")]))

    async def scenario() -> None:
        harness.server.fault = asyncio.get_running_loop().create_future()
        async with harness.running() as task:
            await harness.until(harness.snapshots)
            if refreshes:
                harness.backend.refresh()
            harness.server.fault.set_exception(ValueError("an unforeseen pod"))
            with pytest.raises(ValueError, match="an unforeseen pod"):
                await asyncio.wait_for(asyncio.shield(task), 5)

    run(harness, scenario)


def test_an_unavailable_server_ends_the_term_and_another_can_start(run: Run) -> None:
    harness = BackendHarness(Server())

    async def scenario() -> None:
        harness.server.fault = asyncio.get_running_loop().create_future()
        async with harness.running() as task:
            harness.server.fault.set_exception(Unavailable("away"))
            with pytest.raises(Unavailable, match="away"):
                await asyncio.wait_for(asyncio.shield(task), 5)
        harness.server.fault = None
        async with harness.running():
            await harness.until(harness.snapshots)

    run(harness, scenario)


def test_conditions_of_deleted_and_bound_pods_are_forgotten(run: Run) -> None:
    bad = {"penstock.dev/group-size": "x"}
    pods = [pod(name, labels=bad) for name in "abc"]
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[*pods]))

    async def scenario() -> None:
        writer = harness.backend._condition_writer
        async with harness.running():
            await harness.until(lambda: len(writer._conditions) == 3)
            harness.server.receivers["pods"](Deleted(pods[0]))
            harness.server.receivers["pods"](Upserted(pod("b", labels=bad, node="n1")))
            assert writer._conditions.pods() == ["uid-c"]
            harness.server.objects["pods"] = []
            harness.backend.refresh()
            await harness.until(lambda: len(harness.snapshots()) == 2)
            assert not len(writer._conditions)

    run(harness, scenario)


def test_a_controller_that_no_watch_delivers_is_read(run: Run) -> None:
    made = pod("a", owner=owned_by("Job", "train"))
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[made]))
    harness.client.responses["get"] = [Unavailable("away"), job("train", wants=1)]

    async def scenario() -> None:
        async with harness.running():
            await harness.until(lambda: any(isinstance(fact, MemberSet) for fact in harness.facts))

    run(harness, scenario)
    assert harness.client.requests[0] == ("get", JOBS.path("default", "train"))
    assert harness.snapshots()[0].members == ()


def test_pods_of_a_controller_that_does_not_exist_are_not_scheduled(run: Run) -> None:
    made = pod("a", owner=owned_by("Job", "train"))
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[made]))
    harness.client.responses["get"] = [NotFound(404)]

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            problems = harness.backend.cache.problems
            await harness.until(lambda: problems["uid-a"].reason == "OwnerNotFound")
            await harness.until(lambda: "event" in harness.client.verbs())

    run(harness, scenario)
    assert not any(isinstance(fact, MemberSet) for fact in harness.facts)


# Objects that cannot be read


def raw_pod(**spec: object) -> dict[str, Any]:
    """A pod bound by us, without what the fake server adds."""
    whole = msgspec.to_builtins(pod("a", node="n1", placed=True))
    return {"spec": {**whole["spec"], **spec}, "status": {"phase": "Running"}}


@pytest.mark.parametrize("is_known", [True, False])
def test_a_running_pod_that_cannot_be_decoded_is_not_gone(is_known: bool) -> None:
    """Neither by an event nor by a list: its resources would be allocated twice."""

    async def scenario() -> None:
        pods, nodes = FakeApi(), FakeApi()
        annotations = {"annotations": {JOB_ANNOTATION: "f1"}}
        nodes.put("n1", status={"allocatable": {"cpu": "4", "pods": "110"}})
        pods.put("a", more_metadata=annotations, **(raw_pod() if is_known else raw_pod(containers="none")))

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
                pods.put("a", more_metadata=annotations, **raw_pod(containers="none"))
                nodes.put("n1", status=["no", "status"])
                backend.refresh()
                await eventually(lambda: len(snapshots()) == 2)
                pods.put(
                    "a",
                    more_metadata=annotations,
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
        assert cpu == (1000 if is_known else 0), "its last known requests count"

    asyncio.run(scenario())


def test_an_unexpected_exception_about_one_status_or_intent_does_not_end_the_backend(run: Run) -> None:
    harness = BackendHarness(Server(nodes=[node("n1")], pods=[pod("a"), pod("b")]))

    async def scenario() -> None:
        async with harness.running():
            await harness.until(harness.snapshots)
            first, second = (one.workload for one in harness.snapshots()[0].workloads)
            harness.backend.publish_status(
                [
                    # No calendar has this time.
                    StatusUpdate(first, 5, WorkloadStatus.UNSATISFIABLE, "never", 1e300),
                    StatusUpdate(second, 6, WorkloadStatus.UNSATISFIABLE, "never"),
                ]
            )
            await harness.until(lambda: "patch" in harness.client.verbs())
            with patch.object(executor.IntentExecutor, "put", side_effect=ZeroDivisionError("unexpected")):
                await harness.backend.apply(1, [Evict(7, 5, ("uid-a",))])
            harness.backend.refresh()
            await harness.until(lambda: len(harness.snapshots()) == 2)

    run(harness, scenario)
    (what,) = (what for verb, what in harness.client.requests if verb == "patch")
    assert what[0] == PODS.path("default", "b", "status")
    (result,) = (fact for fact in harness.facts if isinstance(fact, IntentResult))
    assert (result.member, result.outcome) == ("uid-a", Outcome.CONFLICT)
    assert "unexpected" in result.detail
