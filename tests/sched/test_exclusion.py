"""Exclusion keys of members: placements, late members, running members whose keys grow, orphans, restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.engine import ExclusionKey
from penstock.protocol.facts import (
    Capacity,
    ExternalUsageSet,
    MemberSet,
    MemberStatus,
    Phase,
    Snapshot,
    WorkloadSet,
)
from penstock.sched.allocation_records import allocation_record
from penstock.sched.cluster import Cluster
from penstock.sched.former_pools import keys_of_pool, split_grants
from penstock.sched.records import AllocationNew, SlotRecord
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.instance.restarts import RestartingInstance
from tests.sched.driving import Driver, settings_of

PORT = ExclusionKey("node", "host port 80/TCP")
CARRIER = ExclusionKey("node", "anti-affinity with app=db", "default/carrier")
SELECTED = ExclusionKey("node", "anti-affinity with app=db", "default/selected")
CPU = Capacity("cpu", 8, divisible=True)


def driver_of(nodes: int) -> Driver:
    driver = Driver(SimBackend({node.node: node for node in uniform_nodes(nodes, (CPU,))}))
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    return driver


def server(workload: str, number: int = 0, *keys: ExclusionKey, **more: Any) -> MemberSet:
    """A member that brings and forbids the same keys, a host port by default."""
    keys = keys or (PORT,)
    return MemberSet(
        workload, f"{workload}-{number}", number, (("cpu", 1),), brings=keys, forbids=keys, **more
    )


def placed(driver: Driver) -> dict[str, str]:
    members = [member for job in driver.scheduler.jobs.values() for member in job.members.values()]
    return {member.key: member.node for member in members if member.node}


def start(driver: Driver, *workloads: str) -> None:
    for workload in workloads:
        driver.feed(WorkloadSet(workload, workload, 1), server(workload))
    driver.settle()


# Placements


def test_members_with_one_key_are_on_different_nodes() -> None:
    driver = driver_of(2)
    start(driver, "a", "b", "c")
    assert placed(driver) == {"a-0": "node0", "b-0": "node1"}
    (job,) = [job for job in driver.scheduler.jobs.values() if job.workload == "c"]
    message = driver.scheduler.wait_reason(job.id, driver.now).message
    assert message.startswith(
        "needs 1 slot with 1m free cpu, 0 of 2 nodes qualify; host port 80/TCP excludes 2 nodes"
    )


def test_a_group_of_unlike_members_is_placed_by_the_keys_of_each() -> None:
    driver = driver_of(3)
    driver.feed(
        WorkloadSet("w", "w", 4),
        server("w", 0),
        server("w", 1),
        server("w", 2, PORT, CARRIER),
        MemberSet("w", "w-3", 3, (("cpu", 1),), brings=(SELECTED,), forbids=(CARRIER,)),
    )
    driver.settle()
    found = placed(driver)
    assert {found["w-0"], found["w-1"], found["w-2"]} == {"node0", "node1", "node2"}
    assert found["w-3"] != found["w-2"]


def test_members_with_equal_keys_have_one_shape() -> None:
    driver = driver_of(1)
    start(driver, *(f"w{number}" for number in range(5)))
    assert len({job.shape for job in driver.scheduler.jobs.values() if job.state.is_pending}) == 1


def test_a_late_member_sees_the_keys_of_its_own_job() -> None:
    driver = driver_of(2)
    start(driver, "w")
    driver.feed(server("w", 1))
    driver.settle()
    assert placed(driver) == {"w-0": "node0", "w-1": "node1"}
    driver.feed(server("w", 2))
    driver.settle()
    assert set(placed(driver)) == {"w-0", "w-1"}


# Members whose keys grow, and members without a job


def test_keys_that_a_running_member_gets_later_exclude_others() -> None:
    """A rule becomes shared when the second group appears; the first one was placed without its keys."""
    driver = driver_of(2)
    driver.feed(WorkloadSet("w", "w", 1), MemberSet("w", "w-0", 0, (("cpu", 1),)))
    driver.settle()
    running = MemberStatus("w-0", Phase.RUNNING, driver.now, "node0", usage=(("cpu", 1),), brings=(CARRIER,))
    driver.feed(running)
    driver.feed(
        WorkloadSet("v", "v", 1),
        MemberSet("v", "v-0", 0, (("cpu", 1),), brings=(SELECTED,), forbids=(CARRIER,)),
    )
    driver.settle()
    assert placed(driver)["v-0"] == "node1"
    assert driver.scheduler.external_usage() == {}
    driver.feed(MemberStatus("w-0", Phase.RUNNING, driver.now, "node0", usage=(("cpu", 1),)))
    driver.feed(
        WorkloadSet("u", "u", 1),
        MemberSet("u", "u-0", 0, (("cpu", 8),), brings=(SELECTED,), forbids=(CARRIER,)),
        WorkloadSet("t", "t", 1),
        MemberSet("t", "t-0", 0, (("cpu", 7),), brings=(SELECTED,), forbids=(CARRIER,)),
    )
    driver.settle()
    assert placed(driver)["t-0"] == "node0", "the key is not in use any more"


def late_keys(driver: Driver, *keys: ExclusionKey) -> MemberStatus:
    return MemberStatus("w-0", Phase.RUNNING, driver.now, "node0", usage=(("cpu", 1),), brings=keys)


def test_keys_that_a_running_member_gets_later_end_with_its_limit() -> None:
    driver = driver_of(1)
    driver.feed(WorkloadSet("w", "w", 1, limit_s=100), MemberSet("w", "w-0", 0, (("cpu", 1),)))
    driver.settle()
    driver.feed(late_keys(driver, CARRIER))
    driver.feed(
        WorkloadSet("v", "v", 1),
        MemberSet("v", "v-0", 0, (("cpu", 1),), brings=(SELECTED,), forbids=(CARRIER,)),
    )
    driver.settle()
    (job,) = [job for job in driver.scheduler.jobs.values() if job.workload == "v"]
    assert driver.scheduler.reservations() == {job.id: 100.0}
    assert job.forecast is not None
    assert job.forecast.start_at == 100.0
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, "node0"))
    driver.settle()
    assert placed(driver)["v-0"] == "node0", "the keys are released with the slot"


def test_a_report_without_the_keys_of_the_placement_takes_none_away() -> None:
    driver = driver_of(1)
    start(driver, "w")
    driver.feed(late_keys(driver, CARRIER))
    driver.feed(late_keys(driver))
    start(driver, "v")
    assert "v-0" not in placed(driver), "the host port is in use"


def test_keys_of_its_slot_are_no_excess_of_a_member() -> None:
    driver = driver_of(1)
    start(driver, "w")
    driver.feed(MemberStatus("w-0", Phase.RUNNING, driver.now, "node0", usage=(("cpu", 1),), brings=(PORT,)))
    assert driver.scheduler.external_usage().get("more: w-0") is None


def test_an_orphan_keeps_its_keys() -> None:
    driver = driver_of(2)
    usage = (("cpu", 1),)
    driver.feed(
        MemberStatus("gone", Phase.RUNNING, 0.0, "node0", usage=usage, has_owner=True, brings=(PORT,))
    )
    start(driver, "w")
    assert placed(driver) == {"w-0": "node1"}


@pytest.mark.parametrize("standing", [True, False])
def test_keys_of_external_usage_count(standing: bool) -> None:
    driver = driver_of(1)
    driver.feed(ExternalUsageSet("daemon", "node0", (("cpu", 1),), standing, brings=(PORT,)))
    start(driver, "w")
    (job,) = driver.scheduler.jobs.values()
    assert placed(driver) == {}
    assert bool(job.unsatisfiable_reason) is standing
    if standing:
        assert "host port 80/TCP excludes 1 node permanently" in job.unsatisfiable_reason
    driver.feed(ExternalUsageSet("daemon", "node0", (("cpu", 1),), standing))
    driver.settle()
    assert placed(driver) == {"w-0": "node0"}


# Restarts


def test_keys_are_booked_again_after_a_restart() -> None:
    tables = MemoryTables()
    backend = SimBackend({node.node: node for node in uniform_nodes(2, (CPU,))})
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    for name in "abc":
        backend.workloads[name], backend.members[f"{name}-0"] = WorkloadSet(name, name, 1), server(name)
    instance.feed(*backend.workloads.values(), *backend.members.values())
    instance.run_until(10)
    for _ in range(2):
        instance.restart()
        instance.run_until(backend.now + 10)
        scheduler = instance.scheduler
        held = [scheduler.allocation(job) for job in scheduler.allocated_jobs()]
        brought = [
            slot.brings
            for holder in held
            if holder is not None
            for part in holder.parts.values()
            for slot in part.slots
        ]
        assert brought == [(PORT,), (PORT,)]
        members = [
            member for job in scheduler.jobs.values() for member in job.members.values() if member.node
        ]
        assert [member.brings for member in members] == [(PORT,), (PORT,)]
        assert not scheduler.external_usage()


class KeyedBackend(SimBackend):
    """Reports the keys of members that run, as the backend for pods does."""

    def snapshot(self) -> Snapshot:
        found = super().snapshot()
        statuses = (replace(one, brings=self.members[one.member].brings) for one in found.statuses)
        return replace(found, statuses=tuple(statuses))


def test_keys_that_a_member_got_later_survive_a_restart() -> None:
    tables = MemoryTables()
    backend = KeyedBackend({node.node: node for node in uniform_nodes(1, (CPU,))})
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    backend.workloads["w"], backend.members["w-0"] = WorkloadSet("w", "w", 1, limit_s=100), server("w")
    instance.feed(*backend.workloads.values(), *backend.members.values())
    instance.run_until(10)
    instance.feed(MemberStatus("w-0", Phase.RUNNING, 10.0, "node0", usage=(("cpu", 1),), brings=(CARRIER,)))
    backend.members["w-0"] = server("w", 0, PORT, CARRIER)
    for _ in range(2):
        (slot,) = tables.slots[next(iter(tables.slots))].values()
        assert slot[1].data["brings"] == [[key.level, key.name, key.scope] for key in (PORT, CARRIER)]
        instance.restart()
        (job,) = instance.scheduler.jobs.values()
        assert job.members["w-0"].brings == (PORT, CARRIER)
    backend.workloads["v"] = WorkloadSet("v", "v", 1)
    backend.members["v-0"] = MemberSet("v", "v-0", 0, (("cpu", 1),), forbids=(CARRIER,))
    instance.feed(backend.workloads["v"], backend.members["v-0"])
    instance.settle()
    (waiting,) = [job for job in instance.scheduler.jobs.values() if job.workload == "v"]
    assert instance.scheduler.reservations() == {waiting.id: 100.0}
    assert instance.scheduler.external_usage() == {}


OLD_CLAIMS: list[list[object]] = [
    ["node0", 1, False, False, "", False],
    ["node0:cpu", 1, True, False, "", False],
    ["node0:hostport/TCP/80", 1, True, False, "", False],
    ["node0:anti-affinity/default/app=db", 1024, True, False, "", False],
]
OLD_SLOT: dict[str, Any] = {
    "group": 0,
    "node": "node0",
    "grants": [["node0:cpu", 1], ["node0:hostport/TCP/80", 1], ["node0:anti-affinity/default/app=db", 1024]],
}
OLD_PART = AllocationNew(7, 1, 0, None, {"claims": OLD_CLAIMS}, (SlotRecord(0, OLD_SLOT),))


def test_a_recorded_grant_on_a_pool_is_restored_as_a_key() -> None:
    cluster = Cluster("lonode")
    (node,) = uniform_nodes(1, (CPU,))
    cluster.set_node(node, 0, False)
    cluster.restore_later(7, [OLD_PART])
    for recorded in cluster.take_recorded():
        cluster.restore(recorded)
    cluster.apply_updates()
    holder = cluster.engine.jobs[7]
    (part,) = holder.parts.values()
    (slot,) = part.slots
    assert [grant.vertex.type for grant in slot.grants] == ["cpu"]
    assert slot.brings == (CARRIER, SELECTED, PORT)
    assert {vertex.type for vertex in cluster.engine.graph.vertices.values()} == {"cluster", "node", "cpu"}
    known = cluster.nodes["node0"].vertex
    assert known.state is not None
    assert known.state.keys is not None
    assert set(known.state.keys) == {CARRIER, SELECTED, PORT}
    written = allocation_record(7, 1, part, holder.placement)
    again = Cluster("lonode")
    again.set_node(node, 0, False)
    again.restore_later(7, [written])
    for recorded in again.take_recorded():
        again.restore(recorded)
    (restored,) = again.engine.jobs[7].parts.values()
    assert allocation_record(7, 1, restored, holder.placement) == written
    cluster.engine.release(7)
    assert known.state is None


@pytest.mark.parametrize(
    ("location", "units", "keys"),
    [
        ("n1:hostport/UDP/53", 1, (ExclusionKey("node", "host port 53/UDP"),)),
        ("hostport/TCP/80", 1, (PORT,)),
        ("n1:anti-affinity/default/app=db", 1024, (CARRIER, SELECTED)),
        ("n1:anti-affinity/default/app=db", 1, (SELECTED,)),
        (
            "n1:anti-affinity/ns/app.kubernetes.io/name in (a,b),!tier",
            1,
            (
                ExclusionKey(
                    "node", "anti-affinity with app.kubernetes.io/name in (a,b),!tier", "ns/selected"
                ),
            ),
        ),
        ("n1:cpu", 1, ()),
        ("n1:example.com/hostport", 1, ()),
        ("n1:hostport/x", 1, ()),
        ("n1/core0", 1, ()),
        ("n1", 1, ()),
        ("/cluster0/rack0", 1, ()),
    ],
)
def test_which_pools_stand_for_keys(location: str, units: int, keys: tuple[ExclusionKey, ...]) -> None:
    assert keys_of_pool(location, units) == keys
    left = [(location, units)] if not keys else []
    assert split_grants([("n1:pods", 1), (location, units)]) == ([("n1:pods", 1), *left], keys)
