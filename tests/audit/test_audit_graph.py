"""The graph snapshot of a running scheduler, and the comparison of all three snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.app.audit_snapshot import graph_snapshot
from penstock.audit.compare import compare
from penstock.audit.differences import DifferenceKind
from penstock.audit.snapshots import (
    ApiNode,
    ApiPod,
    ApiSnapshot,
    GraphExternalUsage,
    GraphMember,
    GraphSnapshot,
    JobAssignments,
    StoreSnapshot,
)
from penstock.audit.store import read_store
from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.protocol.facts import Capacity, ExternalUsageSet, MemberSet, MemberStatus, Phase, WorkloadSet
from penstock.store.memory import MemoryStore
from tests.sched.driving import Driver, settings_of
from tests.sched.internals import corruptible_state

CAPACITY = {"cpu": 1000, "memory": 1 << 30, "pods": 10}


def driver_of(nodes: int = 2) -> Driver:
    capacity = [Capacity(resource, units, divisible=True) for resource, units in CAPACITY.items()]
    backend = SimBackend({node.node: node for node in uniform_nodes(nodes, capacity)})
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    return Driver(backend, settings_of("easy"))


def member(number: int, cpu: int = 400) -> MemberSet:
    return MemberSet("w", f"w-{number}", number, (("cpu", cpu), ("pods", 1)))


def gang() -> Driver:
    """Three members on two nodes, and one pod of others."""
    driver = driver_of()
    driver.feed(ExternalUsageSet("other", "node1", (("cpu", 100), ("pods", 1)), standing=True))
    driver.feed(WorkloadSet("w", "gang", 3), *(member(number) for number in range(3)))
    driver.settle()
    return driver


def store_of(driver: Driver) -> StoreSnapshot:
    async def workload() -> StoreSnapshot:
        store = MemoryStore()
        epoch, _ = await store.take_over(0.0)
        await store.record(epoch, driver.changes)
        return await read_store(store)

    return asyncio.run(workload())


def api_of(graph: GraphSnapshot) -> ApiSnapshot:
    """The cluster in which everything is as the graph says."""
    pods: dict[str, ApiPod] = {}
    for uid, assignment in graph.members.items():
        pods[uid] = ApiPod("team", uid, assignment.node, "penstock", False, False, assignment.usage)
    for uid, usage_entry in graph.external_usage.items():
        pods[uid] = ApiPod("team", uid, usage_entry.node, "other", False, False, usage_entry.usage)
    return ApiSnapshot({name: ApiNode(CAPACITY) for name in graph.nodes}, pods)


def resources(driver: Driver, api: ApiSnapshot, graph: GraphSnapshot) -> list[DifferenceKind]:
    found = compare(api, store_of(driver), graph, ("penstock",), now=driver.now)
    return [difference.kind for difference in found]


def without_zeros(usage: Mapping[str, int]) -> dict[str, int]:
    return {resource: units for resource, units in usage.items() if units}


def test_the_snapshot_has_nodes_members_and_external_usage() -> None:
    driver = gang()
    (job,) = driver.scheduler.jobs
    found = graph_snapshot(driver.scheduler)
    usage = {"cpu": 400, "pods": 1}
    assert found.members == {
        "w-0": GraphMember(job, "node0", "running", usage),
        "w-1": GraphMember(job, "node1", "running", usage),
        "w-2": GraphMember(job, "node1", "running", usage),
    }
    assert found.external_usage == {
        "other": GraphExternalUsage("node1", {"cpu": 100, "pods": 1}, standing=True)
    }
    assert found.jobs == {job: JobAssignments(3, 3, False, None)}
    assert found.empty_slots == {}
    assert {name: node.capacity for name, node in found.nodes.items()} == {
        "node0": CAPACITY,
        "node1": CAPACITY,
    }
    assert without_zeros(found.nodes["node0"].used) == {"cpu": 400, "pods": 1}
    assert without_zeros(found.nodes["node1"].used) == {"cpu": 800, "pods": 2}  # the fuller node first
    assert without_zeros(found.nodes["node1"].external) == {"cpu": 100, "pods": 1}


def test_scheduler_store_and_cluster_agree_while_jobs_run() -> None:
    driver = gang()
    graph = graph_snapshot(driver.scheduler)
    assert resources(driver, api_of(graph), graph) == []


def test_they_agree_while_members_end_arrive_late_and_are_orphaned() -> None:
    driver = gang()
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, "node0"))
    driver.feed(member(3, cpu=300), WorkloadSet("far", "big", 1))
    driver.feed(MemberSet("far", "far-0", 0, (("cpu", 900),)))  # It waits: a reservation has no slot.
    driver.settle()
    graph = graph_snapshot(driver.scheduler)
    assert sorted(graph.members) == ["w-1", "w-2", "w-3"]
    assert graph.empty_slots == {}
    assert resources(driver, api_of(graph), graph) == []


def test_a_member_whose_node_differs_from_its_slot_has_no_slot() -> None:
    driver = gang()
    (job,) = driver.scheduler.jobs.values()
    strayed = job.members["w-2"]
    strayed.node = "node0"
    found = graph_snapshot(driver.scheduler)
    assert sorted(found.members) == ["w-0", "w-1"]
    assert found.empty_slots == {f"{job.id}/{strayed.slot}": "node1"}


def test_a_slot_missing_in_the_engine_is_a_disagreed_member() -> None:
    driver = gang()
    api = api_of(graph_snapshot(driver.scheduler))
    state = corruptible_state(driver.scheduler)
    (job,) = state.jobs.values()
    state.cluster.engine.release_slots(job.id, [job.members["w-2"].slot])
    assert resources(driver, api, graph_snapshot(driver.scheduler)) == [DifferenceKind.MEMBER_DISAGREED]


def test_booked_units_without_a_member_are_an_empty_slot() -> None:
    driver = gang()
    state = corruptible_state(driver.scheduler)
    (job,) = state.jobs.values()
    slot = job.members.pop("w-2").slot
    assert graph_snapshot(driver.scheduler).empty_slots == {f"{job.id}/{slot}": "node1"}


def test_external_usage_unknown_to_the_engine_is_a_booking_difference() -> None:
    driver = gang()
    api = api_of(graph_snapshot(driver.scheduler))
    corruptible_state(driver.scheduler).cluster.engine.external_usage.remove("other")
    assert resources(driver, api, graph_snapshot(driver.scheduler)) == [
        DifferenceKind.EXTERNAL_BOOKING_DIFFERS
    ]


def test_units_of_an_unknown_job_are_empty_slots() -> None:
    driver = gang()
    state = corruptible_state(driver.scheduler)
    (number,) = state.jobs
    del state.jobs[number]
    found = graph_snapshot(driver.scheduler)
    assert found.members == {}
    assert sorted(found.empty_slots.values()) == ["node0", "node1", "node1"]


def test_standing_and_transient_external_usage_are_summed() -> None:
    driver = gang()
    driver.feed(ExternalUsageSet("guest", "node1", (("cpu", 50), ("pods", 1))))
    driver.settle()
    graph = graph_snapshot(driver.scheduler)
    assert without_zeros(graph.nodes["node1"].external) == {"cpu": 150, "pods": 2}
    assert resources(driver, api_of(graph), graph) == []


def test_ended_members_do_not_count_for_their_group() -> None:
    driver = gang()
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, "node0"))
    driver.settle()
    graph = graph_snapshot(driver.scheduler)
    assert [(paths.size, paths.placed) for paths in graph.jobs.values()] == [(2, 2)]
    assert graph.jobs == store_of(driver).jobs
