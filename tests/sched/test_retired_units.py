"""Whole units that a node does not report any more while a job holds them, and slots on several nodes."""

from __future__ import annotations

import json

import pytest

from penstock.backends.sim.backend import MemberScript, SimBackend
from penstock.protocol.commands import Submission
from penstock.protocol.facts import (
    Capacity,
    MemberGone,
    MemberStatus,
    NodeSet,
    Phase,
    WorkloadGone,
    WorkloadSet,
)
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.instance.restarts import RestartingInstance
from tests.sched.driving import Driver, nodes_of, settings_of, submission
from tests.sched.workloads import member, pods


def report(backend: SimBackend, node: str, *capacity: Capacity) -> NodeSet:
    backend.nodes[node] = NodeSet(node, capacity)
    return backend.nodes[node]


def core_ids(driver: Driver | RestartingInstance) -> dict[int, str]:
    """By job: the ids of the cores that its members have."""
    members = [(job.id, member) for job in driver.scheduler.jobs.values() for member in job.members.values()]
    return {job: ids for job, member in members for kind, ids, _ in member.grants if kind == "core"}


def cores(driver: Driver | RestartingInstance) -> int:
    return len(driver.scheduler.graph.of_type("core"))


def end(driver: Driver | RestartingInstance, job: int) -> None:
    (member,) = driver.scheduler.jobs[job].members.values()
    del driver.backend.runs[member.key]
    driver.feed(MemberStatus(member.key, Phase.ENDED, driver.backend.now, member.node))
    driver.settle()


def four_jobs_on_four_cores() -> tuple[Driver, tuple[int, ...]]:
    driver = Driver(nodes_of(1, 4))
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    jobs = driver.submit(*(submission(duration_s=1e5) for _ in range(4)))
    driver.settle()
    assert [core_ids(driver)[job] for job in jobs] == ["0", "1", "2", "3"]
    return driver, jobs


def test_a_held_unit_that_returns_is_still_held() -> None:
    driver, _ = four_jobs_on_four_cores()
    driver.feed(report(driver.backend, "node0", Capacity("core", 2)))
    driver.feed(report(driver.backend, "node0", Capacity("core", 4)))
    (more,) = driver.submit(submission(duration_s=1e5))
    driver.settle()
    assert core_ids(driver).get(more) is None
    assert driver.backend.violations == []


def test_a_retired_unit_gets_no_other_job_and_is_removed_with_its_release() -> None:
    driver, jobs = four_jobs_on_four_cores()
    driver.feed(report(driver.backend, "node0", Capacity("core", 2)))
    (more,) = driver.submit(submission(duration_s=1e5))
    end(driver, jobs[3])
    assert core_ids(driver).get(more) is None, "core 3 does not exist any more"
    assert cores(driver) == 3
    end(driver, jobs[0])
    assert core_ids(driver)[more] == "0"
    end(driver, jobs[2])
    assert cores(driver) == 2


def test_units_return_by_their_numbers() -> None:
    """Of the retired cores 2 and 3, the first ends; then the node reports three."""
    driver, jobs = four_jobs_on_four_cores()
    driver.feed(report(driver.backend, "node0", Capacity("core", 2)))
    end(driver, jobs[2])
    driver.feed(report(driver.backend, "node0", Capacity("core", 3)))
    one, two = driver.submit(submission(duration_s=1e5), submission(duration_s=1e5))
    driver.settle()
    assert core_ids(driver)[one] == "2"
    assert core_ids(driver).get(two) is None


def test_a_request_for_retired_units_is_unsatisfiable_once_they_are_removed() -> None:
    driver, jobs = four_jobs_on_four_cores()
    driver.feed(report(driver.backend, "node0", Capacity("core", 2)))
    for job in jobs[2:]:
        end(driver, job)
    with pytest.raises(Exception, match="3 cores"):
        driver.submit(submission(nodes=1, cores=3))


def test_a_resource_that_becomes_a_pool_keeps_the_units_of_its_jobs_until_they_end() -> None:
    driver, jobs = four_jobs_on_four_cores()
    driver.feed(report(driver.backend, "node0", Capacity("core", 4, divisible=True)))
    assert cores(driver) == 5
    for job in jobs:
        end(driver, job)
    assert [vertex.size for vertex in driver.scheduler.graph.of_type("core")] == [4]
    driver.feed(report(driver.backend, "node0", Capacity("core", 2)))
    assert [vertex.divisible for vertex in driver.scheduler.graph.of_type("core")] == [False, False]


def restarting(backend: SimBackend) -> RestartingInstance:
    tables = MemoryTables()
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    return RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))


@pytest.mark.parametrize("kind", ["core", "h100"])
def test_a_held_unit_missing_at_a_restart_is_restored(kind: str) -> None:
    backend = SimBackend({"node0": NodeSet("node0", (Capacity(kind, 4),))})
    instance = restarting(backend)
    jobs = instance.submit(*(submission(duration_s=1e5, kind=kind) for _ in range(4)), key="four")
    instance.settle()
    report(backend, "node0", Capacity(kind, 2))
    for _ in range(2):
        instance.restart()
        instance.settle()
        assert set(instance.scheduler.jobs) == set(jobs)
        assert instance.scheduler.allocated_jobs() == set(jobs)
        assert len(instance.scheduler.graph.of_type(kind)) == 4
    instance.feed(report(backend, "node0", Capacity(kind, 4)))
    (more,) = instance.submit(submission(duration_s=1e5, kind=kind), key="more")
    instance.settle()
    assert more not in instance.scheduler.allocated_jobs()
    instance.feed(report(backend, "node0", Capacity(kind, 1)))
    end(instance, jobs[3])
    assert len(instance.scheduler.graph.of_type(kind)) == 3
    assert backend.violations == []


@pytest.mark.parametrize(
    "left",
    [
        pytest.param((), id="nothing"),
        pytest.param((Capacity("memory", 1 << 30, divisible=True),), id="another resource"),
        pytest.param((Capacity("cpu", 0, divisible=True),), id="no units"),
        pytest.param((Capacity("cpu", 8),), id="whole units"),
    ],
)
def test_a_member_keeps_its_slot_if_its_node_reports_none_of_its_units_any_more(
    left: tuple[Capacity, ...],
) -> None:
    """It runs on, so its units stay booked until it ends, also over a restart; nothing new starts there."""
    backend = pods(nodes=1)
    instance = restarting(backend)
    backend.workloads["w"], backend.members["w-0"] = WorkloadSet("w", "w", 1), member("w", 0)
    instance.feed(backend.workloads["w"], backend.members["w-0"])
    instance.settle()
    (number,) = instance.scheduler.jobs
    instance.feed(report(backend, "node0", *left))
    for _ in range(2):
        instance.settle()
        assert instance.scheduler.assignments(number) == {0: "node0"}
        instance.restart()
    backend.nodes["node0"] = pods(nodes=1).nodes["node0"]
    backend.workloads["v"], backend.members["v-0"] = WorkloadSet("v", "v", 1), member("v", 0, cpu=700)
    instance.feed(backend.nodes["node0"], backend.workloads["v"], backend.members["v-0"])
    instance.settle()
    assert instance.scheduler.allocated_jobs() == {number}, "the first member still has 400 of 1000 units"
    del backend.runs["w-0"], backend.members["w-0"], backend.workloads["w"]
    instance.feed(MemberGone("w-0"), WorkloadGone("w"))
    instance.settle()
    assert instance.scheduler.allocated_jobs() == set(instance.scheduler.jobs) == {number + 1}


# Slots on two nodes


def on_two_nodes(slots: int = 1) -> Submission:
    node = {"type": "node", "count": 2, "with": [{"type": "core", "count": 1}]}
    slot = {"type": "slot", "count": slots, "label": "task", "with": [node]}
    task = {"command": ["true"], "slot": "task", "count": {"per_slot": 1}}
    document = {
        "version": 1,
        "resources": [slot],
        "tasks": [task],
        "attributes": {"system": {"duration": 1e5}},
    }
    return Submission(json.dumps(document), "me")


def held_on(instance: RestartingInstance) -> dict[str, int]:
    """Booked cores by node."""
    graph = instance.scheduler.graph
    held = [core for core in graph.of_type("core") if core.state is not None and core.state.bookings]
    nodes = [core.parent() for core in held]
    return {node.name: nodes.count(node) for node in nodes if node is not None}


def test_a_slot_that_has_lost_a_node_does_not_hold_it_after_a_restart() -> None:
    backend = nodes_of(2, 1)
    instance = restarting(backend)
    (job,) = instance.submit(on_two_nodes(), key="two")
    instance.settle()
    assert held_on(instance) == {"node0": 1, "node1": 1}
    node1 = backend.nodes["node1"]
    instance.feed(backend.remove_node("node1"))
    instance.settle()
    assert held_on(instance) == {"node0": 1}
    backend.nodes["node1"] = node1
    instance.feed(node1)
    instance.settle()
    for _ in range(2):
        instance.restart()
        instance.settle()
        assert instance.scheduler.allocated_jobs() == {job}
        assert held_on(instance) == {"node0": 1}


def test_a_slot_that_loses_the_node_of_its_member_ends_on_its_other_node_too() -> None:
    """The job has two slots of two nodes each; the member on the second takes its time to end."""
    backend = nodes_of(4, 1)
    instance = restarting(backend)
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9, end_delay_s=100.0)
    instance.submit(on_two_nodes(2), key="four")
    instance.settle()
    assert len(held_on(instance)) == 4
    instance.feed(backend.remove_node("node0"))
    instance.settle()
    for _ in range(2):
        assert held_on(instance) == {"node2": 1, "node3": 1}
        instance.restart()
        instance.settle()
    instance.run_until(200.0)
    assert held_on(instance) == {}
