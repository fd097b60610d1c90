"""What a member has been given is its own, whatever becomes of the shape of the cluster meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.backends.sim.backend import MemberScript, SimBackend
from penstock.model.job import JobState
from penstock.protocol.facts import Capacity, ExternalUsageSet, MemberGone, NodeGone, WorkloadSet
from penstock.sched.member_states import MemberPhase
from penstock.sched.scheduler import Scheduler
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.instance.restarts import RestartingInstance
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import endless, member, only_job, pods

GPU = Capacity("example.com/gpu", 1, divisible=True)


def in_zone(backend: SimBackend, node: str, zone: str) -> None:
    backend.nodes[node] = replace(backend.nodes[node], topology_levels=(("zone", zone),) if zone else ())


def zones_of(scheduler: Scheduler) -> dict[str, str]:
    """The zones that the graph has for nodes; "": none."""
    found = {}
    for name, known in scheduler.nodes.items():
        above = known.vertex.parent()
        assert above is not None
        found[name] = above.name if above.type == "zone" else ""
    return found


def instance_with_group(backend: SimBackend, *, cpu: int = 400, **workload: object) -> RestartingInstance:
    """An instance in which a group of two runs."""
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    tables = MemoryTables()
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    backend.workloads["w"] = WorkloadSet("w", "gang", 2, **workload)  # type: ignore[arg-type]
    backend.members.update({f"w-{number}": member("w", number, cpu=cpu) for number in range(2)})
    instance.feed(backend.workloads["w"], *backend.members.values())
    instance.run_until(10)
    return instance


def scheduler_of(instance: RestartingInstance) -> Scheduler:
    return instance.scheduler


@pytest.mark.parametrize("before", ["", "a"])
@pytest.mark.parametrize("after", ["", "b"])
def test_members_run_on_when_the_topology_of_their_nodes_changed_over_a_restart(
    before: str, after: str
) -> None:
    backend = pods(nodes=2)
    for node in backend.nodes:
        in_zone(backend, node, before)
    instance = instance_with_group(backend, distinct_nodes=True)
    for node in backend.nodes:
        in_zone(backend, node, after)
    instance.restart()
    scheduler = scheduler_of(instance)
    (job,) = scheduler.jobs.values()
    assert [one.phase for one in job.members.values()] == [MemberPhase.RUNNING] * 2
    assert scheduler.assignments(job.id) == {one.slot: one.node for one in job.members.values()}
    assert not list(scheduler.external_usage())
    assert zones_of(scheduler) == {"node0": after, "node1": after}


def test_a_node_with_a_changed_topology_moves_when_no_job_uses_it() -> None:
    """Others are on it from the first moment on: its own daemons."""
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(ExternalUsageSet("daemon", "node0", (("cpu", 100),), standing=True))
    driver.feed(WorkloadSet("w", "one", 1), member("w", 0))
    driver.settle()
    in_zone(driver.backend, "node0", "a")
    driver.feed(driver.backend.nodes["node0"])
    assert zones_of(driver.scheduler) == {"node0": ""}
    driver.feed(MemberGone("w-0"))
    driver.feed()
    assert zones_of(driver.scheduler) == {"node0": "a"}
    driver.feed(WorkloadSet("z", "zoned", 1, within="zone"), member("z", 0, cpu=901))
    driver.settle()
    waiting = driver.scheduler.job_of_workload("z")
    assert waiting.state is JobState.SCHED, "what its daemons use is not forgotten on the way"
    driver.feed(member("z", 0, cpu=900))
    driver.settle()
    assert waiting.state is JobState.RUN


def test_a_group_within_an_unknown_topology_level_is_unsatisfiable_until_a_node_has_it() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "zoned", 1, within="zone"), member("w", 0))
    driver.settle()
    job = only_job(driver)
    assert job.state is JobState.SCHED
    assert job.unsatisfiable_reason == "needs one zone for all slots, the cluster has no zone"
    in_zone(driver.backend, "node0", "a")
    driver.feed(driver.backend.nodes["node0"])
    driver.settle()
    assert job.state is JobState.RUN


def test_a_group_within_a_topology_level_waits_when_its_last_node_is_removed() -> None:
    backend = pods(nodes=2)
    in_zone(backend, "node0", "a")
    driver = Driver(backend, settings_of("easy"))
    endless(driver)
    driver.feed(ExternalUsageSet("other", "node0", (("cpu", 1000),)))
    driver.feed(WorkloadSet("w", "zoned", 1, within="zone"), member("w", 0))
    driver.settle()
    del backend.nodes["node0"]
    driver.feed(NodeGone("node0"))
    driver.settle()
    assert only_job(driver).state is JobState.SCHED


def test_a_group_that_is_too_large_to_match_is_unsatisfiable() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    members = [member("w", number, cpu=1) for number in range(70_000)]
    driver.feed(WorkloadSet("w", "huge", len(members)), *members)
    assert "invalid request: " in only_job(driver).unsatisfiable_reason


def test_units_of_a_resource_missing_at_a_restart_are_not_free_when_it_returns() -> None:
    backend = pods(nodes=1)
    plain = backend.nodes["node0"]
    full = backend.nodes["node0"] = replace(plain, capacity=(*plain.capacity, GPU))
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    tables = MemoryTables()
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    asking = replace(member("w", 0), requests=(("cpu", 400), (GPU.resource, 1)))
    backend.workloads["w"], backend.members["w-0"] = WorkloadSet("w", "one", 1), asking
    instance.feed(backend.workloads["w"], asking)
    instance.run_until(10)
    backend.nodes["node0"] = plain
    instance.restart()
    backend.nodes["node0"] = full
    backend.workloads["v"] = WorkloadSet("v", "other", 1)
    backend.members["v-0"] = replace(asking, workload="v", member="v-0")
    instance.feed(full, backend.workloads["v"], backend.members["v-0"])
    instance.run_until(20)
    state = scheduler_of(instance).state
    states = {job.workload: job.state for job in state.jobs.values()}
    assert states == {"w": JobState.RUN, "v": JobState.SCHED}


@pytest.mark.parametrize("rule", ["distinct_nodes", "within"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_workload_whose_members_have_all_ended_keeps_its_placement_rules(rule: str, restarts: bool) -> None:
    backend = pods(nodes=2)
    in_zone(backend, "node0", "a")
    in_zone(backend, "node1", "b")
    is_distinct = rule == "distinct_nodes"
    instance = instance_with_group(backend, cpu=500 if is_distinct else 300, **{rule: is_distinct or "zone"})
    for key in ("w-0", "w-1"):
        del backend.members[key]
        backend.runs.pop(key, None)
    instance.feed(MemberGone("w-0"), MemberGone("w-1"))
    if restarts:
        instance.restart()
    cpu = 400 if is_distinct else 600
    newcomers = [member("w", number, cpu=cpu) for number in (2, 3)]
    backend.members.update({one.member: one for one in newcomers})
    instance.feed(*newcomers)
    instance.run_until(20)
    (job,) = scheduler_of(instance).jobs.values()
    paths = [one.node for one in job.members.values() if one.phase is not MemberPhase.ENDED]
    if is_distinct:
        assert sorted(paths) == ["node0", "node1"]
    else:
        assert sorted(paths) == ["", "node0"], "the other zone has room, and is another zone"


@pytest.mark.parametrize("workload", ["the same", "another"])
def test_a_late_member_that_was_not_ready_for_a_while_is_placed_later(workload: str) -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "grow", 1), member("w", 0, cpu=600))
    driver.settle()
    driver.feed(member("w", 1, cpu=600))
    driver.settle()
    driver.feed(MemberGone("w-1"))
    driver.settle()
    name = "w" if workload == "the same" else "v"
    driver.feed(WorkloadSet(name, "grow", 1), replace(member("w", 1, cpu=300), workload=name))
    driver.settle()
    job = driver.scheduler.job_of_workload(name)
    assert job.members["w-1"].node == "node0"
    assert driver.scheduler.job_of_member("w-1") is job
    driver.feed(MemberGone("w-0"))
    driver.settle()
    assert driver.scheduler.job_of_member("w-1") is job


def test_what_is_absent_from_a_snapshot_is_gone() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("idle", "idle", 1), WorkloadSet("w", "one", 1), member("w", 0))
    driver.settle()
    driver.feed(
        ExternalUsageSet("w-0", "node0", (("cpu", 100),)), ExternalUsageSet("other", "node0", (("cpu", 100),))
    )
    driver.backend.workloads = {"w": WorkloadSet("w", "one", 1)}
    driver.feed(driver.backend.snapshot())
    assert driver.scheduler.workloads() == ["w"]
    assert driver.scheduler.external_usage() == {}
    assert only_job(driver).members["w-0"].phase is MemberPhase.RUNNING
