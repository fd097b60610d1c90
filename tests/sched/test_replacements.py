"""Members that controllers replace: kept slots, the order of the queue, timeouts, restarts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.backends.sim.backend import uniform_nodes
from penstock.model.job import JobState
from penstock.protocol.commands import Cancel, Drain, Undrain
from penstock.protocol.facts import (
    Capacity,
    EndCause,
    ExternalUsageGone,
    ExternalUsageSet,
    Fact,
    MemberGone,
    MemberSet,
    MemberStatus,
    Phase,
    WorkloadGone,
    WorkloadSet,
)
from penstock.protocol.intents import Evict, WorkloadStatus
from penstock.sched.job import Job
from penstock.sched.member_states import MemberPhase
from penstock.sched.reasons import WaitCause
from penstock.sched.settings import Settings
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.instance.restarts import RestartingInstance
from tests.sched.controllers import ControllerBackend
from tests.sched.driving import Driver, settings_of

GANG = WorkloadSet("gang", "gang", 2, desired=2)
OTHER = WorkloadSet("other", "other", 1, class_value=1000, desired=1)


def cluster(nodes: int = 2, backoff_s: float = 300.0) -> ControllerBackend:
    """Nodes that one member fills."""
    capacity = [Capacity("cpu", 1000, divisible=True)]
    return ControllerBackend(
        {node.node: node for node in uniform_nodes(nodes, capacity)}, backoff_s=backoff_s
    )


def feed(driver: Driver, facts: Sequence[Fact]) -> None:
    driver.feed(*facts)
    driver.settle()


def controllers(driver: Driver) -> ControllerBackend:
    assert isinstance(driver.backend, ControllerBackend)
    return driver.backend


def job(driver: Driver, workload: str = "gang") -> Job:
    found = driver.scheduler.job_of_workload(workload)
    assert found is not None
    return found


def is_running(driver: Driver, workload: str) -> bool:
    return job(driver, workload).state is JobState.RUN


def gang_and_other(nodes: int = 2, policy: str = "easy", backoff_s: float = 300.0) -> Driver:
    """A gang on two nodes, and a job of a higher class that waits for one."""
    driver = Driver(cluster(nodes, backoff_s), settings_of(policy))
    feed(driver, controllers(driver).create(GANG))
    feed(driver, controllers(driver).create(OTHER))
    assert is_running(driver, "gang")
    return driver


def fail_one(driver: Driver, status: int = 256) -> str:
    """The first member of the gang exits. Returns its node."""
    node = job(driver).members["gang-1"].node
    feed(driver, controllers(driver).fail("gang-1", status))
    return node


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_a_replacement_gets_the_slot_of_the_failed_member_although_a_higher_class_waits(policy: str) -> None:
    driver = gang_and_other(policy=policy)
    node = fail_one(driver)
    driver.run_until(driver.now + 299)
    assert not is_running(driver, "other")
    assert len(driver.scheduler.assignments(job(driver).id)) == 2
    driver.run_until(driver.now + 1)
    found = job(driver).members["gang-3"]
    assert (found.node, found.phase) == (node, MemberPhase.RUNNING)
    assert not is_running(driver, "other")
    assert controllers(driver).violations == []


def test_a_group_that_waits_for_a_replacement_says_so_in_its_reason_and_its_eventlog() -> None:
    driver = gang_and_other()
    node = fail_one(driver)
    driver.run_until(driver.now + 42)
    reason = driver.scheduler.wait_reason(job(driver).id, driver.now)
    assert reason.cause is WaitCause.INCOMPLETE
    kept = f"waits for a replacement of gang-1 for 42s, its slot on {node} is kept"
    assert reason.message == f"{kept}; after 11m it is reported as incomplete"
    driver.run_until(driver.now + 300)
    assert driver.scheduler.wait_reason(job(driver).id, driver.now).cause is WaitCause.NONE
    notes = [event.context["note"] for event in driver.logs[job(driver).id] if event.name == "memo"]
    assert notes == [
        f"the slot is kept for replacements of gang-1 on {node}",
        f"gang-3 replaces gang-1 on {node}",
    ]


def test_the_slot_of_a_member_that_succeeded_is_released_at_once() -> None:
    driver = gang_and_other()
    fail_one(driver, status=0)
    assert is_running(driver, "other")


@pytest.mark.parametrize("first", ["the controller", "the member"])
def test_the_slot_of_a_member_that_is_not_wanted_any_more_is_released_at_once(first: str) -> None:
    driver = gang_and_other()
    workload, gone = controllers(driver).scale("gang", 1)
    for fact in (workload, gone) if first == "the controller" else (gone, workload):
        assert not is_running(driver, "other")
        feed(driver, [fact])
    assert is_running(driver, "other")


def test_the_slots_are_released_when_a_controller_gives_up() -> None:
    """The Job has failed for good: its backoff limit is exceeded."""
    driver = gang_and_other()
    fail_one(driver)
    feed(driver, [replace(GANG, desired=0)])
    assert is_running(driver, "other")


@pytest.mark.parametrize("final", ["gang-1", "gang-2"])
def test_the_slot_of_an_index_that_has_failed_for_good_is_released_and_the_other_is_kept(final: str) -> None:
    """An Indexed Job with `backoffLimitPerIndex`: one index is not tried again, the other one is."""
    driver = Driver(cluster(2, 300.0), settings_of("easy"))
    backend = controllers(driver)
    gang = backend.create(GANG)
    indexed = {f"gang-{number}": number for number in (1, 2)}
    for key, index in indexed.items():
        backend.members[key] = replace(backend.members[key], index=index)
    feed(driver, [gang[0], *backend.members.values()])
    feed(driver, backend.create(OTHER))
    nodes = {key: job(driver).members[key].node for key in indexed}
    for key in indexed:
        feed(driver, backend.fail(key))
    assert not is_running(driver, "other")
    backend.workloads["gang"] = replace(GANG, desired=1, final_indexes=((indexed[final], indexed[final]),))
    feed(driver, [backend.workloads["gang"]])
    assert is_running(driver, "other")
    assert job(driver, "other").members["other-1"].node == nodes[final]
    kept = [one.key for one in job(driver).members.values() if one.is_slot_kept]
    assert kept == [key for key in indexed if key != final]
    driver.run_until(driver.now + 300)
    assert job(driver).incomplete_since is None
    assert job(driver).incomplete_reason == ""


def test_a_member_that_is_deleted_is_replaced_on_its_slot() -> None:
    driver = gang_and_other(backoff_s=1.0)
    node = job(driver).members["gang-2"].node
    feed(driver, controllers(driver).delete("gang-2"))
    driver.run_until(driver.now + 1)
    assert job(driver).members["gang-3"].node == node


def test_a_replacement_that_appears_before_the_end_of_its_predecessor_gets_its_slot() -> None:
    """A ReplicaSet creates it as soon as a pod is being deleted, which takes its grace period."""
    driver = gang_and_other()
    replacement = MemberSet("gang", "gang-3", 0, (("cpu", 1000),), recreated=True)
    controllers(driver).members["gang-3"] = replacement
    feed(driver, [replacement])
    assert job(driver).members["gang-3"].phase is MemberPhase.WAITING
    node = job(driver).members["gang-1"].node
    feed(driver, controllers(driver)._remove("gang-1"))
    assert job(driver).members["gang-3"].node == node
    assert not is_running(driver, "other")


def test_members_that_a_controller_adds_precede_nobody() -> None:
    driver = gang_and_other(nodes=3)
    assert is_running(driver, "other")
    feed(driver, controllers(driver).create(replace(OTHER, workload="next")))
    feed(driver, controllers(driver).scale("gang", 3))
    feed(driver, controllers(driver).fail(controllers(driver).running("other")[0], 0))
    assert is_running(driver, "next")
    assert job(driver).members["gang-3"].phase is MemberPhase.WAITING


@pytest.mark.parametrize("how", ["drained", "down", "removed"])
def test_a_replacement_whose_node_is_not_usable_precedes_other_jobs_elsewhere(how: str) -> None:
    driver = gang_and_other(nodes=3)
    feed(driver, controllers(driver).create(replace(OTHER, workload="next")))
    node = fail_one(driver)
    if how == "drained":
        driver.feed(Drain((node,), "repair", "op"))
    elif how == "down":
        driver.feed(replace(controllers(driver).nodes[node], up=False))
    else:
        driver.feed(controllers(driver).remove_node(node))
    assert len(driver.scheduler.assignments(job(driver).id)) == 1
    driver.run_until(driver.now + 310)
    assert job(driver).members["gang-3"].phase is MemberPhase.WAITING
    feed(driver, controllers(driver).fail(controllers(driver).running("other")[0], 0))
    assert job(driver).members["gang-3"].phase is MemberPhase.RUNNING
    assert not is_running(driver, "next")


def test_the_slot_of_a_member_that_its_node_refused_is_not_kept() -> None:
    driver = gang_and_other()
    node = job(driver).members["gang-1"].node
    del controllers(driver).members["gang-1"], controllers(driver).runs["gang-1"]
    rejected = MemberStatus("gang-1", Phase.ENDED, driver.now, node, 256, EndCause.OTHER, "OutOfcpu", False)
    feed(driver, [rejected])
    assert is_running(driver, "other")
    feed(driver, controllers(driver).create(replace(OTHER, workload="next")))
    feed(driver, controllers(driver)._new_member("gang", 1000, 0))
    assert job(driver).members["gang-3"].phase is MemberPhase.WAITING
    feed(driver, controllers(driver).fail(controllers(driver).running("other")[0], 0))
    assert job(driver).members["gang-3"].node == node  # The node may accept it.
    assert not is_running(driver, "next")


def test_a_replacement_that_does_not_fit_the_kept_slot_waits_for_another_node_before_other_jobs() -> None:
    driver = gang_and_other(nodes=3)
    fail_one(driver)
    large = MemberSet("gang", "gang-9", 0, (("cpu", 1000), ("gpu", 1)), recreated=True)
    nodes = controllers(driver).nodes
    feed(driver, [large])
    assert len(driver.scheduler.assignments(job(driver).id)) == 1
    capacity = (*nodes["node0"].capacity, Capacity("gpu", 1, divisible=True))
    nodes["node9"] = replace(nodes["node0"], node="node9", capacity=capacity)
    feed(driver, [nodes["node9"]])
    assert job(driver).members["gang-9"].node == "node9"


def test_a_slot_is_kept_until_the_replacement_timeout_and_then_the_group_is_incomplete() -> None:
    driver = gang_and_other(backoff_s=1e6)
    fail_one(driver)
    driver.run_until(driver.now + 659)
    assert not is_running(driver, "other")
    driver.run_until(driver.now + 1)
    assert is_running(driver, "other")
    assert job(driver).incomplete_reason == "no replacement of gang-1 appeared within 11m"
    assert driver.statuses["gang"].status is WorkloadStatus.INCOMPLETE
    assert job(driver).members["gang-2"].phase is MemberPhase.RUNNING
    feed(driver, controllers(driver).fail(controllers(driver).running("other")[0], 0))
    feed(driver, controllers(driver)._new_member("gang", 1000, 0))
    assert job(driver).incomplete_reason == ""  # It is complete again.


def test_the_time_to_repair_a_group_begins_with_the_replacement_and_nothing_that_ran_is_evicted() -> None:
    driver = gang_and_other(backoff_s=500.0)
    node = fail_one(driver)
    driver.feed(controllers(driver).remove_node(node))
    driver.run_until(619.0)
    assert job(driver).incomplete_reason == ""
    driver.run_until(621.0)
    assert "1 of 3 members has no node" in job(driver).incomplete_reason
    assert job(driver).members["gang-2"].phase is MemberPhase.RUNNING
    assert not any(isinstance(intent, Evict) for step in driver.steps for intent in step.intents)


def test_a_replacement_that_is_deleted_leaves_its_slot_to_the_next_one() -> None:
    driver = gang_and_other(backoff_s=1e6)
    node = fail_one(driver)
    driver.feed(MemberSet("gang", "gang-3", 0, (("cpu", 1000),), ready=False, recreated=True))
    driver.settle()
    assert job(driver).members["gang-3"].phase is MemberPhase.WAITING
    feed(driver, [MemberGone("gang-3")])
    assert not is_running(driver, "other")
    feed(driver, [MemberSet("gang", "gang-4", 0, (("cpu", 1000),), recreated=True)])
    assert job(driver).members["gang-4"].node == node


def test_a_replacement_that_is_not_ready_in_time_does_not_keep_its_slot() -> None:
    driver = gang_and_other(backoff_s=1e6)
    fail_one(driver)
    feed(driver, [MemberSet("gang", "gang-3", 0, (("cpu", 1000),), ready=False, recreated=True)])
    driver.run_until(driver.now + 121)
    assert is_running(driver, "other")
    assert "1 of 3 members has no node" in job(driver).incomplete_reason


@pytest.mark.parametrize("how", ["cancelled", "deleted"])
def test_the_end_of_a_job_releases_the_slots_that_it_keeps(how: str) -> None:
    driver = gang_and_other()
    fail_one(driver)
    number = job(driver).id
    if how == "cancelled":
        feed(driver, [])
        driver.feed(Cancel((number,), "enough"))
    else:
        del controllers(driver).workloads["gang"]
        driver.feed(WorkloadGone("gang"))
    driver.settle()
    assert is_running(driver, "other")
    names = driver.names(number)
    assert names.count("free") <= 1


def test_a_slot_is_not_kept_where_another_scheduler_has_used_the_units() -> None:
    driver = gang_and_other()
    node = fail_one(driver)
    usage = ExternalUsageSet("x", node, (("cpu", 500),))
    feed(driver, [usage])
    assert len(driver.scheduler.assignments(job(driver).id)) == 1
    driver.run_until(driver.now + 301)
    assert job(driver).members["gang-3"].phase is MemberPhase.WAITING
    feed(driver, [ExternalUsageGone("x")])
    assert job(driver).members["gang-3"].node == node
    assert not is_running(driver, "other")


@pytest.mark.parametrize("is_node_up", [True, False])
def test_a_kept_slot_survives_a_restart(is_node_up: bool) -> None:
    tables = MemoryTables()
    backend = cluster()
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    instance.feed(*backend.create(GANG))
    instance.settle()
    instance.feed(*backend.create(OTHER))
    instance.settle()
    before = instance.scheduler.job_of_workload("gang")
    assert before is not None
    node = before.members["gang-1"].node
    instance.feed(*backend.fail("gang-1"))
    instance.settle()
    if not is_node_up:
        backend.nodes[node] = replace(backend.nodes[node], up=False)
    instance.restart()
    instance.settle()
    gang, other = (instance.scheduler.job_of_workload(name) for name in ("gang", "other"))
    assert gang is not None
    assert other is not None
    assert len(instance.scheduler.assignments(gang.id)) == (2 if is_node_up else 1)
    assert other.state is JobState.SCHED
    instance.run_until(300.0)
    assert gang.members["gang-3"].node == (node if is_node_up else "")
    assert other.state is JobState.SCHED
    instance.feed(WorkloadGone("gang"), WorkloadGone("other"), *(MemberGone(key) for key in backend.members))
    instance.settle()
    assert not instance.scheduler.allocated_jobs()


def test_a_replacement_is_placed_once_wherever_the_instance_crashes() -> None:
    def story(crash_points: set[int]) -> RestartingInstance:
        tables = MemoryTables()
        backend = cluster(backoff_s=10.0)
        instance = RestartingInstance(
            backend, settings_of("easy"), lambda: MemoryStore(tables), crash_points=crash_points
        )
        for workload in (GANG, OTHER):
            facts = backend.create(workload)
            while instance.feed(*facts) is None:
                """The instance was restarted, and repeated facts change nothing."""
            instance.settle()
        failed = backend.fail("gang-1")
        instance.feed(*failed)
        instance.run_until(20.0)
        return instance

    passed = story(set()).failpoints_passed
    for point in range(1, passed + 1):
        instance = story({point})
        gang = instance.scheduler.job_of_workload("gang")
        assert gang is not None
        live = {member.key for member in gang.live_members()}
        assert live == {"gang-2", "gang-3"}, point
        assert instance.backend.violations == []


# Random histories

KINDS = "fail fail delete succeed scale down up gone back drain undrain job job wait wait restart"
ACTIONS = st.tuples(
    st.sampled_from(KINDS.split()),
    st.integers(0, 3),
    st.integers(1, 60),
)


class History:
    """Two gangs whose controllers replace members, jobs of a higher class, and nodes that come and go."""

    def __init__(self) -> None:
        self.backend = cluster(nodes=4, backoff_s=5.0)
        self.all_nodes = dict(self.backend.nodes)
        self.tables = MemoryTables()
        self.settings: Settings = settings_of("easy", replacement_timeout_s=100.0, gang_repair_timeout_s=30.0)
        self.jobs = 0
        self.restart()
        for name in ("a", "b"):
            self.feed(self.backend.create(WorkloadSet(name, name, 2, desired=2)))

    def restart(self) -> None:
        self.driver = Driver(self.backend, self.settings, store=MemoryStore(self.tables))
        self.settle()

    def feed(self, facts: Sequence[Fact]) -> None:
        self.driver.feed(*facts)
        self.settle()

    def settle(self) -> None:
        """Whatever is due at this time; replacements must have preceded everything else."""
        self.driver.settle()
        waiting = [
            member
            for found in self.driver.scheduler.jobs.values()
            for key in found.replacements
            if (member := found.members[key]).is_ready
        ]
        if not waiting:
            return
        used = self.nodes_in_use()
        for name, node in self.driver.scheduler.nodes.items():
            refused = all(name in member.refused_by for member in waiting)
            assert name in used or refused or not node.vertex.up, f"{name} is free, and {waiting} wait"

    def nodes_in_use(self) -> set[str]:
        """Nodes with live members, or with slots that are kept for replacements."""
        return {
            member.node
            for found in self.driver.scheduler.jobs.values()
            for member in found.members.values()
            if member.phase.is_live or member.is_slot_kept
        }

    def apply(self, action: str, which: int, number: int) -> None:
        backend, workload, node = self.backend, "ab"[which % 2], f"node{which}"
        running = backend.running(workload)
        member = running[number % len(running)] if running else ""
        if action in ("fail", "succeed") and member:
            backend.backoff_s = float(number)
            self.feed(backend.fail(member, 256 if action == "fail" else 0))
        elif action == "delete" and member:
            backend.backoff_s = float(number)
            self.feed(backend.delete(member))
        elif action == "scale":
            self.feed(backend.scale(workload, number % 3))
        elif action in ("down", "up") and node in backend.nodes:
            backend.nodes[node] = replace(backend.nodes[node], up=action == "up")
            self.feed([backend.nodes[node]])
        elif action == "gone" and node in backend.nodes:
            self.feed([backend.remove_node(node)])
        elif action == "back" and node not in backend.nodes:
            backend.nodes[node] = self.all_nodes[node]
            self.feed([backend.nodes[node]])
        elif action in ("drain", "undrain"):
            self.driver.feed(Drain((node,), "x", "op") if action == "drain" else Undrain((node,)))
            self.settle()
        elif action == "job":
            self.jobs += 1
            name = f"job{self.jobs}"
            backend.runs_s[name] = float(number)
            self.feed(backend.create(WorkloadSet(name, name, 1, class_value=9, desired=1)))
        elif action == "restart":
            self.restart()
        else:
            self.wait(float(number))

    def wait(self, seconds: float) -> None:
        """Lets the time pass from event to event."""
        until = self.driver.now + seconds
        while (soon := self.driver.instance.settle()) is not None and soon <= until:
            self.driver.run_until(soon)
            self.settle()
        self.driver.run_until(until)
        self.settle()

    def end(self) -> None:
        """All nodes return and no further jobs appear: every group is complete within the stated times."""
        for name, node in self.all_nodes.items():
            self.backend.nodes[name] = node
            self.feed([node])
            self.driver.feed(Undrain((name,)))
            self.settle()
        self.wait(60.0 + 5.0 + 60.0 * (self.jobs + 1))


def test_a_group_of_which_a_member_has_succeeded_does_not_start_over_when_its_repair_fails() -> None:
    """Its controller does not create that member again, so the next start would wait for it for ever."""
    driver = gang_and_other(nodes=3, backoff_s=1.0)
    feed(driver, controllers(driver).fail("gang-2", 0))
    node = fail_one(driver)
    driver.feed(Drain((node,), "repair", "op"))
    feed(driver, controllers(driver).create(replace(OTHER, workload="next")))
    first = job(driver).id
    driver.run_until(driver.now + 600)
    assert job(driver).id == first
    assert job(driver).incomplete_reason
    driver.feed(Undrain((node,)))
    driver.settle()
    assert job(driver).members["gang-3"].phase is MemberPhase.RUNNING
    assert job(driver).incomplete_reason == ""


# The last of two members fails again and again, and its node is down when the time to repair is over.
REPAIR_AFTER_SUCCESS = [
    *[("fail", 0, number) for number in (1, 2, 1, 1, 1)],
    ("succeed", 0, 1),
    ("job", 0, 32),
    *[("fail", 0, 1)] * 3,
    ("down", 0, 1),
    ("fail", 0, 31),
]


@given(st.lists(ACTIONS, max_size=30))
@example(REPAIR_AFTER_SUCCESS)
def test_no_group_stays_incomplete_while_there_is_room_for_its_replacement(
    story: list[tuple[str, int, int]],
) -> None:
    history = History()
    for action in story:
        history.apply(*action)
    history.end()
    assert history.backend.violations == []
    for workload in ("a", "b"):
        desired = history.backend.workloads[workload].desired
        assert len(history.backend.running(workload)) == desired, workload
        found = history.driver.scheduler.job_of_workload(workload)
        if found is not None and desired:
            assert found.live_count == desired
            assert not found.vacancies
            assert not found.incomplete_reason or found.incomplete_since is None
    kept = [one for found in history.driver.scheduler.jobs.values() for one in found.members.values()]
    assert not any(one.is_slot_kept for one in kept)
