"""The graph's own reading, taken of a scheduler that runs; and all three readings together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.app.audit_snapshot import graph_reading
from penstock.audit.compare import compare
from penstock.audit.differences import DifferenceKind
from penstock.audit.readings import (
    ApiNode,
    ApiPod,
    ApiReading,
    GraphExternalUsage,
    GraphMember,
    GraphReading,
    JobAssignments,
    StoreReading,
)
from penstock.audit.store import read_store
from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.protocol.facts import Capacity, ExternalUsageSet, MemberSet, MemberStatus, Phase, WorkloadSet
from penstock.store.memory import MemoryStore
from tests.sched.driving import Driver, settings_of

CAPACITY = {"cpu": 1000, "memory": 1 << 30, "pods": 10}


def driver_of(nodes: int = 2) -> Driver:
    capacity = [Capacity(kind, units, divisible=True) for kind, units in CAPACITY.items()]
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


def store_of(driver: Driver) -> StoreReading:
    async def workload() -> StoreReading:
        store = MemoryStore()
        epoch, _ = await store.take_over(0.0)
        await store.record(epoch, driver.changes)
        return await read_store(store)

    return asyncio.run(workload())


def api_of(graph: GraphReading) -> ApiReading:
    """The cluster in which everything is as the graph says."""
    pods: dict[str, ApiPod] = {}
    for uid, assignment in graph.members.items():
        pods[uid] = ApiPod("team", uid, assignment.node, "penstock", False, False, assignment.amounts)
    for uid, hold in graph.holds.items():
        pods[uid] = ApiPod("team", uid, hold.node, "other", False, False, hold.amounts)
    return ApiReading({name: ApiNode(CAPACITY) for name in graph.nodes}, pods)


def kinds(driver: Driver, api: ApiReading, graph: GraphReading) -> list[DifferenceKind]:
    found = compare(api, store_of(driver), graph, ("penstock",), now=driver.now)
    return [difference.kind for difference in found]


def without_zeros(amounts: Mapping[str, int]) -> dict[str, int]:
    return {kind: units for kind, units in amounts.items() if units}


def test_the_graph_tells_nodes_seats_and_holds() -> None:
    driver = gang()
    (job,) = driver.scheduler.state.jobs
    found = graph_reading(driver.scheduler)
    amounts = {"cpu": 400, "pods": 1}
    assert found.members == {
        "w-0": GraphMember(job, "node0", "running", amounts),
        "w-1": GraphMember(job, "node0", "running", amounts),
        "w-2": GraphMember(job, "node1", "running", amounts),
    }
    assert found.holds == {"other": GraphExternalUsage("node1", {"cpu": 100, "pods": 1}, standing=True)}
    assert found.jobs == {job: JobAssignments(3, 3, False, None)}
    assert found.empty_slots == {}
    assert {name: node.capacity for name, node in found.nodes.items()} == {
        "node0": CAPACITY,
        "node1": CAPACITY,
    }
    assert without_zeros(found.nodes["node0"].used) == {"cpu": 800, "pods": 2}
    assert without_zeros(found.nodes["node1"].used) == {"cpu": 400, "pods": 1}
    assert without_zeros(found.nodes["node1"].held) == {"cpu": 100, "pods": 1}


def test_a_running_scheduler_its_store_and_its_cluster_agree() -> None:
    driver = gang()
    graph = graph_reading(driver.scheduler)
    assert kinds(driver, api_of(graph), graph) == []


def test_they_agree_while_members_end_come_late_and_are_left_over() -> None:
    driver = gang()
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, "node0"))
    driver.feed(member(3, cpu=300), WorkloadSet("far", "big", 1))
    driver.feed(MemberSet("far", "far-0", 0, (("cpu", 900),)))  # It waits: a reservation is no seat.
    driver.settle()
    graph = graph_reading(driver.scheduler)
    assert sorted(graph.members) == ["w-1", "w-2", "w-3"]
    assert graph.empty_slots == {}
    assert kinds(driver, api_of(graph), graph) == []


def test_a_member_that_is_not_where_its_seat_is_has_none() -> None:
    driver = gang()
    (job,) = driver.scheduler.state.jobs.values()
    strayed = job.members["w-2"]
    strayed.node = "node0"
    found = graph_reading(driver.scheduler)
    assert sorted(found.members) == ["w-0", "w-1"]
    assert found.empty_slots == {f"{job.id}/{strayed.slot}": "node1"}


def test_a_seat_that_the_engine_has_lost_is_a_member_that_store_and_graph_disagree_on() -> None:
    driver = gang()
    api = api_of(graph_reading(driver.scheduler))
    state = driver.scheduler.state
    (job,) = state.jobs.values()
    state.cluster.engine.release_slots(job.id, [job.members["w-2"].slot])
    assert kinds(driver, api, graph_reading(driver.scheduler)) == [DifferenceKind.MEMBER_DISAGREED]


def test_units_that_no_member_has_are_a_seat_that_is_empty() -> None:
    driver = gang()
    state = driver.scheduler.state
    (job,) = state.jobs.values()
    slot = job.members.pop("w-2").slot
    assert graph_reading(driver.scheduler).empty_slots == {f"{job.id}/{slot}": "node1"}


def test_a_hold_that_the_engine_does_not_know_is_a_sum_that_is_none() -> None:
    driver = gang()
    api = api_of(graph_reading(driver.scheduler))
    driver.scheduler.state.cluster.engine.external_usage.remove("other")
    assert kinds(driver, api, graph_reading(driver.scheduler)) == [DifferenceKind.ALLOCATION_DIFFERS]


def test_units_of_a_job_that_nobody_knows_are_seats_that_are_empty() -> None:
    driver = gang()
    state = driver.scheduler.state
    (number,) = state.jobs
    del state.jobs[number]
    found = graph_reading(driver.scheduler)
    assert found.members == {}
    assert sorted(found.empty_slots.values()) == ["node0", "node0", "node1"]


def test_what_stands_and_what_comes_and_goes_are_held_together() -> None:
    driver = gang()
    driver.feed(ExternalUsageSet("guest", "node1", (("cpu", 50), ("pods", 1))))
    driver.settle()
    graph = graph_reading(driver.scheduler)
    assert without_zeros(graph.nodes["node1"].held) == {"cpu": 150, "pods": 2}
    assert kinds(driver, api_of(graph), graph) == []


def test_those_who_have_ended_are_not_of_their_group_any_more() -> None:
    driver = gang()
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, "node0"))
    driver.settle()
    graph = graph_reading(driver.scheduler)
    assert [(paths.size, paths.placed) for paths in graph.jobs.values()] == [(2, 2)]
    assert graph.jobs == store_of(driver).jobs
