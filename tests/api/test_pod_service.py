"""The service with the Kubernetes backend: shares of pools, and workloads instead of submitted jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.api import live_jobs
from penstock.api.documents import job_summary, member_infos, rset_document, timeline_spans
from penstock.api.nodes import node_infos
from penstock.api.requests import JobsQuery, SignalRequest, SubmitRequest
from penstock.api.resource_counts import allocated_core_milli, core_milli, cores, is_gpu
from penstock.api.responses import JobSummary, NodeInfo
from penstock.api.service import InstanceService
from penstock.api.timeline import live_timeline
from penstock.backends.sim.backend import MemberScript, SimBackend
from penstock.errors import Conflict
from penstock.instance.loop import Instance
from penstock.model.constraint import TAINTS_PROPERTY, Properties, Taint, encode_taints
from penstock.model.job import JobState
from penstock.protocol.commands import Drain
from penstock.protocol.facts import Capacity, ExternalUsageSet, MemberSet, NodeSet, WorkloadGone, WorkloadSet
from penstock.sched.records import JobOverview, MemberRecord
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import QueueSettings, Settings
from tests.api.contexts import CALLER, context
from tests.sched.driving import Driver, nodes_of, submission

GIB = 1 << 30
CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")


def number_of(driver: Driver, workload: str) -> int:
    job = driver.scheduler.job_of_workload(workload)
    assert job is not None
    return job.id


def node(name: str, cpu: int = 4000, gpus: int = 0, taints: tuple[Taint, ...] = (), **more: Any) -> NodeSet:
    capacity = [Capacity("cpu", cpu, divisible=True), Capacity("memory", 8 * GIB, divisible=True)]
    if gpus:
        capacity.append(Capacity("nvidia.com/gpu", gpus, divisible=True))
    labels: tuple[tuple[str, str], ...] = (("kubernetes.io/os", "linux"), ("pool", "fast"))
    if taints:
        labels += ((TAINTS_PROPERTY, encode_taints(taints)),)
    return NodeSet(name, tuple(capacity), labels=labels, **more)


def pods(*nodes: NodeSet, settings: Settings | None = None) -> Driver:
    backend = SimBackend({one.node: one for one in nodes})
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    return Driver(backend, settings or Settings())


def member(workload: str, number: int, cpu: int, **more: Any) -> MemberSet:
    return MemberSet(
        workload, f"uid-{workload}-{number}", number, (("cpu", cpu),), name=f"{workload}-{number}", **more
    )


def gang(driver: Driver, workload: str, count: int, cpu: int, **more: Any) -> None:
    driver.feed(WorkloadSet(workload, workload, count, owner="team", **more))
    driver.feed(*(member(workload, number, cpu) for number in range(count)))
    driver.settle()


def jobs(driver: Driver) -> dict[str, JobSummary]:
    return {job.name: job for job in live_jobs.list_summaries(driver.scheduler, driver.now, JobsQuery())}


def rows(driver: Driver, workload: str) -> tuple[JobOverview, list[MemberRecord]]:
    found = live_jobs.find_with_members(driver.scheduler, number_of(driver, workload))
    assert found is not None
    return found


def nodes(driver: Driver) -> dict[str, NodeInfo]:
    return {info.name: info for info in node_infos(driver.scheduler, of_pods=True)}


def test_cores_are_counted_in_thousandths_and_shown_in_cores() -> None:
    assert core_milli([("core", 2), ("cpu", 250), ("memory", 7)]) == 2250
    assert [cores(milli) for milli in (0, 4000, 31_500, 1)] == [0, 4, 31.5, 0.001]
    assert allocated_core_milli({"core": "0-2,5", "gpu": "0"}) == 4000
    assert allocated_core_milli({"cpu": "1500", "memory": "64"}) == 1500
    assert [is_gpu(resource) for resource in ("gpu", "amd.com/gpu", "cpu", "example.com/gpus")] == [
        True, True, False, False,
    ]  # fmt: skip


def test_a_pending_workload_shows_the_requests_of_its_members() -> None:
    driver = pods(node("a"), node("b"))
    gang(driver, "first", 2, 3000)
    gang(driver, "second", 2, 2250, distinct_nodes=True, limit_s=600)
    driver.feed(WorkloadSet("third", "third", 3), member("third", 0, 500))
    driver.settle()
    found = jobs(driver)
    sizes = {name: (doc.ntasks, doc.ncores, doc.nnodes) for name, doc in found.items()}
    assert sizes == {"first": (2, 6, 2), "second": (2, 4.5, 2), "third": (3, 0.5, None)}
    assert (found["first"].nodelist, found["second"].nodelist) == ("a,b", "")
    assert found["second"].duration_s == 600
    assert "held by" in found["second"].reason
    assert (found["third"].reason_kind.value, found["third"].reason) == (
        "assembling", "1 of 3 members are ready; it waits for the others without a limit",
    )  # fmt: skip


def test_a_workload_looks_the_same_when_it_is_inactive() -> None:
    driver = pods(node("a"), node("b"))
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=5)
    gang(driver, "w", 2, 2500, limit_s=60)
    job = driver.scheduler.job_of_workload("w")
    before = jobs(driver)["w"]
    driver.run_until(10)
    driver.feed(WorkloadGone("w"))
    driver.settle()
    after = job_summary(live_jobs.overview_of(job), driver.scheduler.node_ranks)
    assert after.state is JobState.INACTIVE
    for key in ("ntasks", "ncores", "nnodes", "nodelist", "duration_s", "owner"):
        assert getattr(after, key) == getattr(before, key)
    assert (after.ncores, after.duration_s) == (5, 60)


def test_a_node_that_refused_a_member_is_not_among_its_nodes() -> None:
    driver = pods(node("a"), node("b"))
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=1e9, refused="OutOfcpu" if assignment.node == "a" else ""
    )
    gang(driver, "w", 1, 1000)
    doc = jobs(driver)["w"]
    assert (doc.nodelist, doc.nnodes, doc.ncores) == ("b", 1, 1)
    log = live_jobs.log_of(driver.scheduler, number_of(driver, "w")) or []
    assert [event.context["note"] for event in log if event.name == "exception"] == [
        "a refused w-0: OutOfcpu"
    ]


def test_members_have_names_and_shares_of_pools_have_no_resource_set() -> None:
    driver = pods(node("a"))
    gang(driver, "w", 2, 1000)
    found, members = rows(driver, "w")
    assert [(one.member, one.name) for one in member_infos(members)] == [
        ("uid-w-0", "w-0"), ("uid-w-1", "w-1"),
    ]  # fmt: skip
    assert rset_document(found, driver.scheduler.node_ranks) is None


def test_allocations_and_external_usage_reduce_what_is_free() -> None:
    driver = pods(node("a", gpus=4), node("b"))
    driver.feed(
        ExternalUsageSet("other", "a", (("cpu", 250), ("memory", GIB), ("nvidia.com/gpu", 1))),
        WorkloadSet("w", "w", 1),
        MemberSet("w", "w-0", 0, (("cpu", 1500), ("memory", 2 * GIB), ("nvidia.com/gpu", 2))),
    )
    driver.settle()
    found = nodes(driver)
    used = found["a"]
    assert (used.cores, used.cores_free, used.cores_external) == (4, 2.25, 0.25)
    assert (used.gpus, used.gpus_free, used.gpus_external) == (4, 1, 1)
    assert (used.memory_bytes, used.memory_free_bytes, used.memory_external_bytes) == (
        8 * GIB, 5 * GIB, GIB,
    )  # fmt: skip
    assert (used.state, found["b"].state) == ("allocated", "free")


def test_external_usage_beyond_the_capacity_leaves_nothing_free() -> None:
    driver = pods(node("a"))
    gang(driver, "w", 1, 3000)
    driver.feed(ExternalUsageSet("other", "a", (("cpu", 2500),)))
    found = nodes(driver)["a"]
    assert (found.cores, found.cores_free, found.cores_external) == (4, 0, 1)


def test_external_usage_alone_does_not_make_a_node_allocated() -> None:
    driver = pods(node("a"))
    driver.feed(ExternalUsageSet("daemon", "a", (("cpu", 100),), standing=True))
    found = nodes(driver)["a"]
    assert (found.state, found.cores_free) == ("free", 3.9)


def test_closed_nodes_show_their_taints_and_labels_are_not_properties() -> None:
    ml = Taint("dedicated", "ml", "NoSchedule")
    driver = pods(
        node("a"),
        node("b", taints=(CORDON, ml), why="cordoned"),
        node("c", taints=(ml, Taint("spot", "", "NoExecute"))),
        node("d", up=False, why="not ready: KubeletStopped"),
        node("e"),
    )
    driver.feed(Drain(("e",), "disk", "", False))
    found = nodes(driver)
    assert {name: (info.state, info.closed, info.closed_why) for name, info in found.items()} == {
        "a": ("free", "", ""),
        "b": ("free", "cordoned", "cordoned; dedicated=ml:NoSchedule"),
        "c": ("free", "tainted", "dedicated=ml:NoSchedule; spot:NoExecute"),
        "d": ("down", "", ""),
        "e": ("drained", "", ""),
    }
    assert (found["d"].why, found["e"].drain_reason) == ("not ready: KubeletStopped", "disk")
    assert {tuple(info.properties) for info in found.values()} == {()}


def test_labels_that_a_queue_refers_to_are_shown() -> None:
    queues = (QueueSettings("default"), QueueSettings("fast", constraint=Properties(("pool", "^gone"))))
    driver = pods(node("a"), settings=Settings(queues=queues))
    assert nodes(driver)["a"].properties == ["pool=fast"]


def test_nodes_of_the_local_backend_have_whole_cores() -> None:
    driver = Driver(nodes_of(2, 4), runs_s=lambda _: 1e9)
    driver.submit(submission(slots=3))
    driver.settle()
    driver.feed(Drain(("node1",), "disk", "", False))
    first, second = node_infos(driver.scheduler, of_pods=False)
    assert (first.cores, first.cores_free, first.cores_external, first.memory_bytes) == (
        4,
        1,
        0,
        None,
    )
    assert (first.state, second.state) == ("allocated", "down")


def test_the_timeline_counts_cores_of_pools() -> None:
    driver = pods(node("a"), node("b", cpu=1500))
    gang(driver, "runs", 1, 2500, limit_s=100)
    gang(driver, "waits", 1, 3500, limit_s=50)
    timeline = live_timeline(driver.scheduler, driver.now, 0.0)
    assert [(node.name, node.cores) for node in timeline.nodes] == [("a", 4), ("b", 1.5)]
    spans = [(span.name, span.kind, span.cores) for span in timeline.nodes[0].spans]
    assert spans == [("runs", "running", 2.5), ("waits", "reserved", 3.5)]
    assert timeline.nodes[1].spans == []


def test_a_node_on_which_all_members_have_ended_is_not_shown_as_running() -> None:
    driver = pods(node("a"), node("b"))
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=5 if assignment.node == "a" else 1e9
    )
    gang(driver, "w", 2, 3000)
    driver.run_until(10)
    spans = timeline_spans(*rows(driver, "w"), driver.now)
    assert {name: (span.kind, span.to) for name, span in spans.items()} == {
        "a": ("ran", 5.0), "b": ("running", None),
    }  # fmt: skip


class QueriedInstance:
    """An instance that answers queries and has no other method."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    async def query(self, about: Callable[[Scheduler, float], object]) -> object:
        return about(self._scheduler, 0.0)


def service_of(driver: Driver) -> InstanceService:
    instance = cast(Instance, QueriedInstance(driver.scheduler))
    return InstanceService(instance, context(accepts_submissions=False))


def test_output_and_signals_of_pods_are_refused_with_what_to_do_instead() -> None:
    driver = pods(node("a"))
    gang(driver, "w", 2, 1000)
    service = service_of(driver)
    job = number_of(driver, "w")
    with pytest.raises(Conflict, match=r"`kubectl logs w-0 -n team` \(the first of 2\)"):
        asyncio.run(service.stream_output(CALLER, job, follow=True))
    with pytest.raises(Conflict, match="a pod cannot be sent a signal; `penstock cancel`"):
        asyncio.run(service.signal_job(CALLER, job, SignalRequest(15)))
    with pytest.raises(Conflict, match="create pods with kubectl and with the schedulerName"):
        asyncio.run(service.submit_jobs(CALLER, SubmitRequest([])))


def test_nodes_of_a_cluster_show_no_labels() -> None:
    driver = pods(node("a"))
    (info,) = asyncio.run(service_of(driver).list_nodes(CALLER)).nodes
    assert (info.properties, info.cores) == ([], 4)
