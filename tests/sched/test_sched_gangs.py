"""Workloads and members: groups that assemble, grow, lose members and are repaired."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.api import live_jobs
from penstock.api.requests import JobsQuery
from penstock.backends.sim.backend import MemberScript, uniform_nodes
from penstock.model.constraint import Properties
from penstock.model.job import JobState
from penstock.protocol.commands import QueueChange
from penstock.protocol.facts import (
    Capacity,
    EndCause,
    ExternalUsageGone,
    ExternalUsageSet,
    IntentResult,
    MemberGone,
    MemberStatus,
    NodeGone,
    Outcome,
    Phase,
    Requeue,
    WorkloadGone,
    WorkloadSet,
    end_cause_of,
)
from penstock.protocol.intents import Evict, WorkloadStatus
from penstock.sched.job import Job
from penstock.sched.member_states import MemberPhase
from penstock.sched.reasons import WaitCause
from penstock.sched.settings import QueueSettings, Settings
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.instance.restarts import RestartingInstance
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import endless, member, only_job, pods


def test_a_group_starts_as_a_whole_when_its_last_member_is_ready() -> None:
    driver = Driver(pods(), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "mpi", 3), member("w", 0), member("w", 1))
    driver.settle()
    assert only_job(driver).state is JobState.DEPEND
    told = driver.scheduler.wait_reason(only_job(driver).id, driver.now).message
    assert told == "2 of 3 members are ready; it waits for the others without a limit"
    driver.feed(member("w", 2))
    driver.settle()
    job = only_job(driver)
    assert job.state is JobState.RUN
    assert {one.phase for one in job.members.values()} == {MemberPhase.RUNNING}
    assert sorted(one.node for one in job.members.values()) == ["node0", "node0", "node1"]


def test_a_class_precedes_an_expedited_workload_which_precedes_other_urgencies() -> None:
    driver = Driver(pods(1, cpu=400), settings_of("fcfs"), runs_s=lambda _job: 10)
    driver.feed(WorkloadSet("running", "running", 1), member("running", 0))
    driver.settle()
    ranks = {"expedited": (0, 31), "urgent": (0, 30), "usual": (0, 16), "classy": (1, 16), "lazy": (1, 1)}
    for name, (class_value, urgency) in ranks.items():
        driver.feed(WorkloadSet(name, name, 1, class_value=class_value, urgency=urgency), member(name, 0))
    driver.settle()
    listed = live_jobs.select(driver.scheduler, JobsQuery())
    names = {job.id: job.spec.name for job in driver.scheduler.jobs.values()}
    expected = ["classy", "lazy", "expedited", "urgent", "usual"]
    assert [names[job] for job in listed if names[job] != "running"] == expected
    for name in ("running", *expected):
        driver.feed(WorkloadGone(name))
        driver.run_until(driver.now + 11)
    order = sorted(driver.starts, key=lambda job: driver.starts[job])
    assert [names[job] for job in order] == ["running", *expected]


def test_a_waiting_workload_moves_to_the_queue_that_it_names() -> None:
    queues = (QueueSettings("default"), QueueSettings("night"))
    driver = Driver(pods(1, cpu=400), Settings(queues=queues))
    endless(driver)
    driver.feed(WorkloadSet("first", "first", 1), member("first", 0))
    driver.settle()
    driver.feed(WorkloadSet("w", "w", 1), member("w", 0))
    driver.settle()
    driver.feed(WorkloadSet("w", "w", 1, queue="night", limit_s=60))
    driver.settle()
    moved = driver.scheduler.job_of_workload("w")
    assert moved is not None
    assert moved.queue == "night"
    driver.feed(QueueChange("night", started=False))
    assert driver.scheduler.wait_reason(moved.id, driver.now).cause is WaitCause.QUEUE_STOPPED


def test_a_member_reported_twice_counts_once() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(WorkloadSet("w", "twice", 2), member("w", 0), member("w", 0))
    driver.settle()
    assert only_job(driver).state is JobState.DEPEND


def test_members_with_different_requests_each_get_their_own() -> None:
    driver = Driver(pods(), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "mixed", 2), member("w", 0, cpu=900), member("w", 1, cpu=300))
    driver.settle()
    grants = {
        one.index: {kind: units for kind, _, units in one.grants} for one in only_job(driver).members.values()
    }
    assert grants == {0: {"cpu": 900}, 1: {"cpu": 300}}


def test_the_units_of_a_member_are_released_when_it_ends() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    driver.backend.script_for = lambda _place, assignment: MemberScript(runs_s=10.0 + 10 * assignment.index)
    driver.feed(WorkloadSet("w", "gang", 2), member("w", 0), member("w", 1))
    driver.feed(WorkloadSet("later", "one", 1), member("later", 0, cpu=500))
    driver.run_until(5)
    waiting = driver.scheduler.job_of_workload("later")
    assert waiting.state is JobState.SCHED
    driver.run_until(11)
    assert waiting.state is JobState.RUN


def test_a_late_member_extends_the_job_under_its_placement_rules() -> None:
    driver = Driver(pods(nodes=3), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "grow", 2, distinct_nodes=True), member("w", 0), member("w", 1))
    driver.settle()
    driver.feed(member("w", 2))
    driver.settle()
    job = only_job(driver)
    assert len({one.node for one in job.members.values()}) == 3
    driver.feed(member("w", 3))
    driver.settle()
    assert job.members["w-3"].phase is MemberPhase.WAITING  # Every node has one of its own already.
    driver.feed(MemberGone("w-0"))
    driver.settle()
    assert job.members["w-3"].phase is MemberPhase.RUNNING


def test_a_workload_ends_with_its_owner_and_releases_everything() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=5)
    driver.feed(WorkloadSet("w", "done", 2), member("w", 0), member("w", 1))
    driver.run_until(10)
    assert only_job(driver).state is JobState.RUN  # The owner may make more.
    driver.feed(WorkloadGone("w"))
    driver.settle()
    assert not driver.scheduler.jobs
    assert not driver.scheduler.allocated_jobs()


def test_a_refused_member_is_placed_on_another_node() -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    refusing = {"node0"}
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=1e9, refused="OutOfcpu" if assignment.node in refusing else ""
    )
    driver.feed(WorkloadSet("w", "refused", 1), member("w", 0))
    driver.settle()
    assert only_job(driver).members["w-0"].node == "node1"


def evictions(driver: Driver) -> list[Evict]:
    """What is taken away from now on, as it comes."""
    evicted: list[Evict] = []
    apply = driver.backend.apply

    def watch(epoch: int, intents: object) -> None:
        evicted.extend(one for one in intents if isinstance(one, Evict))  # type: ignore[attr-defined]
        apply(epoch, intents)  # type: ignore[arg-type]

    driver.backend.apply = watch  # type: ignore[method-assign]
    return evicted


def half_a_group(*, recreated: bool, has_run: bool) -> tuple[Driver, Job, list[Evict]]:
    """Two nodes, a group of two; the second member is refused everywhere."""
    driver = Driver(pods(nodes=2, cpu=500), settings_of("easy"))
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=1e9,
        refused="OutOfcpu" if assignment.member == "w-1" else "",
        place_delay_s=0.0 if has_run or assignment.member == "w-1" else 1e9,
    )
    driver.feed(WorkloadSet("w", "half", 2), member("w", 0, recreated=recreated), member("w", 1))
    driver.settle()
    return driver, only_job(driver), evictions(driver)


def test_an_incomplete_group_of_which_nothing_has_run_is_evicted_if_controllers_replace_its_members() -> None:
    driver, job, evicted = half_a_group(recreated=True, has_run=False)
    driver.run_until(121)
    assert job.exception is not None
    assert "1 of 2 members has no node: OutOfcpu" in job.exception.note
    assert [one.members for one in evicted] == [("w-0",)]
    driver.feed(MemberGone("w-0"))
    again = only_job(driver)  # What was not taken away waits for the member that is made again.
    assert (again.id != job.id, list(again.members), again.is_assembled) == (True, ["w-1"], False)
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    driver.feed(member("w", 2, recreated=True))
    driver.settle()
    assert {one.phase for one in again.members.values()} == {MemberPhase.RUNNING}


@pytest.mark.parametrize(("recreated", "has_run"), [(False, False), (False, True), (True, True)])
def test_an_incomplete_group_that_has_run_or_has_no_controllers_is_reported_as_incomplete(
    recreated: bool, has_run: bool
) -> None:
    driver, job, evicted = half_a_group(recreated=recreated, has_run=has_run)
    driver.run_until(121)
    assert "1 of 2 members has no node: OutOfcpu" in job.incomplete_reason
    assert evicted == []
    assert driver.scheduler.wait_reason(job.id, driver.now).cause is WaitCause.INCOMPLETE


def test_a_group_that_does_not_assemble_in_time_ends_with_the_reason() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(WorkloadSet("w", "stuck", 3, assembly_timeout_s=60.0), member("w", 0))
    driver.run_until(61)
    (log,) = driver.logs.values()
    assert any(
        "only 1 of 3 members became ready within the assembly timeout" in str(event.context) for event in log
    )
    assert not driver.scheduler.jobs


def test_an_unsatisfiable_workload_is_checked_again_when_nodes_change() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "huge", 1), member("w", 0, cpu=5000))
    driver.settle()
    job = only_job(driver)
    assert (job.state, driver.scheduler.wait_reason(job.id, driver.now).cause) == (
        JobState.SCHED,
        WaitCause.UNSATISFIABLE,
    )
    assert driver.statuses["w"].status is WorkloadStatus.UNSATISFIABLE
    (large,) = uniform_nodes(1, [Capacity("cpu", 8000, divisible=True)])
    driver.backend.nodes["big"] = replace(large, node="big")
    driver.feed(driver.backend.nodes["big"])
    driver.settle()
    assert job.state is JobState.RUN


def test_external_usage_without_an_end_gives_no_promise_and_blocks_no_job() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.backend.external_usage["other"] = ExternalUsageSet("other", "node0", (("cpu", 700),))
    driver.feed(driver.backend.external_usage["other"])
    driver.feed(WorkloadSet("first", "large", 1), member("first", 0, cpu=600))
    driver.feed(WorkloadSet("second", "small", 1), member("second", 0, cpu=200))
    driver.settle()
    first, second = (driver.scheduler.job_of_workload(name) for name in ("first", "second"))
    assert first.state is JobState.SCHED
    assert first.forecast is None
    assert second.state is JobState.RUN


def test_a_lost_member_holds_its_units_until_it_returns_or_times_out() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy", lost_timeout_s=30.0))
    endless(driver)
    driver.feed(WorkloadSet("w", "lost", 1), member("w", 0, cpu=800))
    driver.settle()
    driver.feed(MemberStatus("w-0", Phase.LOST, driver.now, "node0"))
    driver.feed(WorkloadSet("x", "next", 1), member("x", 0, cpu=800))
    driver.run_until(20)
    following = driver.scheduler.job_of_workload("x")
    assert following.state is JobState.SCHED
    driver.feed(MemberStatus("w-0", Phase.RUNNING, driver.now, "node0"))
    driver.run_until(40)
    assert following.state is JobState.SCHED  # It was found again.
    driver.feed(MemberStatus("w-0", Phase.LOST, driver.now, "node0"))
    driver.run_until(80)
    assert following.state is JobState.RUN


def test_an_orphan_counts_as_external_usage_until_it_ends() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(MemberStatus("ghost", Phase.RUNNING, 0.0, "node0", usage=(("cpu", 900),)))
    driver.feed(WorkloadSet("w", "waits", 1), member("w", 0, cpu=500))
    driver.plan()
    job = only_job(driver)
    assert job.state is JobState.SCHED
    driver.feed(MemberStatus("ghost", Phase.ENDED, 1.0, "node0"))
    driver.settle()
    assert job.state is JobState.RUN


@given(
    story=st.lists(
        st.tuples(
            st.sampled_from(
                ["member", "gone", "node-gone", "node-back", "wait", "work-gone", "refuse", "shrink"]
            ),
            st.integers(0, 5),
            st.integers(1, 9),
        ),
        max_size=25,
    )
)
@example(story=[("member", 0, 4), ("member", 0, 8), ("node-gone", 2, 1), ("member", 0, 7)])
@example(story=[("member", 0, 4), ("member", 0, 7), ("node-gone", 1, 1), ("member", 0, 7)])
def test_whatever_members_and_nodes_do_nothing_is_over_committed_or_left(
    story: list[tuple[str, int, int]],
) -> None:
    driver = Driver(pods(nodes=3), settings_of("easy", lost_timeout_s=5.0))
    backend = driver.backend
    refusing: set[str] = set()
    backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=7.0, refused="no" if assignment.node in refusing else ""
    )
    nodes = dict(backend.nodes)
    deletions = Counter[str]()
    for kind, which, size in story:
        workload, node = f"w{which % 3}", f"node{which % 3}"
        # A workload that is created again after its deletion has new members.
        key = f"{workload}-{deletions[workload]}-{size}"
        if kind == "member":
            reported = replace(member(workload, size, cpu=100 * size), member=key)
            driver.feed(WorkloadSet(workload, workload, 1 + which % 3), reported)
            backend.workloads[workload] = WorkloadSet(workload, workload, 1 + which % 3)
        elif kind == "gone":
            driver.feed(MemberGone(key))
        elif kind == "work-gone":
            driver.feed(WorkloadGone(workload))
            deletions[workload] += 1
        elif kind == "node-gone" and node in backend.nodes:
            driver.feed(backend.remove_node(node))
        elif kind == "node-back" and node not in backend.nodes:
            backend.nodes[node] = nodes[node]
            driver.feed(nodes[node])
        elif kind == "shrink" and node in backend.nodes:
            smaller = (Capacity("cpu", 100 * size, divisible=True),)
            backend.nodes[node] = replace(nodes[node], capacity=smaller)
            driver.feed(backend.nodes[node])
        elif kind == "refuse":
            refusing.symmetric_difference_update({node})
            driver.feed(
                replace(backend.nodes[node], labels=(("turn", str(size)),))
                if node in backend.nodes
                else NodeGone("x")
            )
        else:
            driver.run_until(driver.now + size)
        driver.settle()
    for workload in ("w0", "w1", "w2"):
        driver.feed(WorkloadGone(workload))
    driver.run(limit=driver.now + 10_000)
    assert backend.violations == []
    assert not driver.scheduler.allocated_jobs()
    assert not driver.scheduler.jobs
    assert not driver.scheduler.open_intents()


def test_a_waiting_group_that_loses_a_member_assembles_again() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("o", "occupant", 1), member("o", 0, cpu=800))
    driver.settle()
    driver.feed(WorkloadSet("w", "gang", 2), member("w", 0, cpu=500), member("w", 1, cpu=500))
    driver.settle()
    gang = driver.scheduler.job_of_workload("w")
    driver.feed(MemberGone("w-1"))
    driver.feed(MemberGone("o-0"), WorkloadGone("o"))
    driver.settle()
    assert gang.state is JobState.SCHED
    assert driver.scheduler.wait_reason(gang.id, driver.now).message.startswith("1 of 2 members are ready;")
    driver.feed(member("w", 2, cpu=500))
    driver.settle()
    assert gang.state is JobState.RUN
    assert {one.phase for one in gang.members.values()} == {MemberPhase.RUNNING}


def test_a_member_refused_and_deleted_at_once_is_not_placed_again() -> None:
    driver = Driver(pods(), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "gang", 2), member("w", 0), member("w", 1))
    driver.settle()
    node = only_job(driver).members["w-1"].node
    driver.feed(MemberStatus("w-1", Phase.REFUSED, driver.now, node, message="OutOfcpu"), MemberGone("w-1"))
    assert driver.scheduler.queue_length == 0


def test_the_assembly_timeout_survives_a_restart() -> None:
    tables = MemoryTables()
    workload = WorkloadSet("w", "stuck", 3, assembly_timeout_s=60.0)
    backend = pods()
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    backend.workloads["w"], backend.members["w-0"] = workload, member("w", 0)
    instance.feed(workload, member("w", 0))
    instance.run_until(10)
    instance.restart()
    instance.run_until(61)
    instance.check_all_inactive([])


@pytest.mark.parametrize("lost", ["the node", "the record"])
def test_a_member_whose_allocation_is_lost_over_a_restart_counts_as_external_usage(lost: str) -> None:
    tables = MemoryTables()
    backend = pods(nodes=2)
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    backend.workloads["w"] = WorkloadSet("w", "gang", 2, distinct_nodes=True)
    backend.members.update({key: member("w", number) for number, key in enumerate(("w-0", "w-1"))})
    instance.feed(backend.workloads["w"], *backend.members.values())
    instance.run_until(10)
    if lost == "the node":
        del backend.nodes["node0"]
    else:
        tables.allocations.clear()
    instance.restart()
    scheduler = instance.scheduler
    (job,) = scheduler.jobs.values()
    left = {hold.removeprefix("left over: ") for hold in list(scheduler.external_usage())}
    seated = {one.key for one in job.live_members()}
    assert left | seated == {"w-0", "w-1"}
    assert not left & seated
    assert seated == {one.key for one in job.members.values() if one.slot in scheduler.assignments(job.id)}
    assert len(seated) == (1 if lost == "the node" else 0)


def test_a_slot_without_a_recorded_member_is_released() -> None:
    tables = MemoryTables()
    backend = pods(nodes=2)
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    backend.workloads["w"] = WorkloadSet("w", "gang", 2)
    backend.members.update({key: member("w", number) for number, key in enumerate(("w-0", "w-1"))})
    instance.feed(backend.workloads["w"], *backend.members.values())
    instance.run_until(10)
    ((number, members),) = tables.members.items()
    del members["w-0"]
    instance.restart()
    scheduler = instance.scheduler
    assert len(scheduler.assignments(number)) == 1
    assert list(scheduler.external_usage()) == ["left over: w-0"]


def test_a_late_member_is_placed_on_nodes_of_its_queue_only() -> None:
    backend = pods(nodes=3)
    backend.nodes["node2"] = replace(backend.nodes["node2"], labels=(("fast", "yes"),))
    queues = (QueueSettings("default"), QueueSettings("fast", constraint=Properties(("fast",))))
    driver = Driver(backend, Settings(queues=queues))
    endless(driver)
    driver.feed(WorkloadSet("w", "grow", 1, queue="fast"), member("w", 0))
    driver.settle()
    driver.feed(member("w", 1))
    driver.settle()
    assert {one.node for one in only_job(driver).members.values()} == {"node2"}


@pytest.mark.parametrize("what", ["the node", "its holds"])
def test_a_node_that_refused_a_member_is_tried_again_when_it_changes(what: str) -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    refusing = {"node0"}
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=1e9, refused="OutOfcpu" if assignment.node in refusing else ""
    )
    driver.backend.external_usage["other"] = ExternalUsageSet("other", "node0", (("cpu", 100),))
    driver.feed(driver.backend.external_usage["other"])
    driver.feed(WorkloadSet("w", "refused", 1), member("w", 0))
    driver.settle()
    refusing.clear()
    driver.run_until(10)
    assert only_job(driver).members["w-0"].phase is MemberPhase.WAITING  # Nothing has changed there.
    if what == "the node":
        driver.feed(replace(driver.backend.nodes["node0"], labels=(("kernel", "new"),)))
    else:
        driver.feed(ExternalUsageGone("other"))
    driver.settle()
    assert only_job(driver).members["w-0"].phase is MemberPhase.RUNNING


def running_group(**more: object) -> tuple[Driver, Job]:
    driver = Driver(pods(), settings_of("easy"))
    endless(driver)
    workload = WorkloadSet("w", "group", 2, **more)  # type: ignore[arg-type]
    driver.feed(workload, member("w", 0, recreated=True), member("w", 1, recreated=True))
    driver.settle()
    return driver, only_job(driver)


def used_by_others(driver: Driver) -> dict[str, tuple[str, tuple[tuple[str, int], ...]]]:
    found = driver.scheduler.external_usage()
    return {name: (usage.node, usage.usage) for name, usage in found.items()}


def test_a_member_placed_by_another_scheduler_leaves_its_job() -> None:
    driver = Driver(pods(), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "group", 2), member("w", 0))
    driver.settle()
    seen = MemberStatus("w-0", Phase.RUNNING, driver.now, "node1", usage=(("cpu", 700),), has_owner=True)
    step = driver.feed(seen)
    assert used_by_others(driver) == {"left over: w-0": ("node1", (("cpu", 700),))}
    assert step.intents == ()  # Somebody looks after it: it is not asked to end.
    assert not driver.scheduler.jobs
    driver.feed(MemberGone("w-0"))
    assert used_by_others(driver) == {}


def test_a_placed_member_that_appears_on_another_node_releases_its_slot() -> None:
    driver, job = running_group()
    node = job.members["w-0"].node
    other = next(name for name in driver.scheduler.nodes if name != node)
    driver.feed(MemberStatus("w-0", Phase.RUNNING, driver.now, other, usage=(("cpu", 1000),), has_owner=True))
    assert job.members["w-0"].phase is MemberPhase.ENDED
    assert used_by_others(driver) == {"left over: w-0": (other, (("cpu", 1000),))}


def test_usage_beyond_the_grant_of_a_member_counts_as_external_usage() -> None:
    driver, job = running_group()
    node = job.members["w-0"].node
    driver.feed(MemberStatus("w-0", Phase.RUNNING, driver.now, node, usage=(("cpu", 700),)))
    assert used_by_others(driver) == {"more: w-0": (node, (("cpu", 300),))}
    driver.feed(MemberStatus("w-0", Phase.RUNNING, driver.now, node, usage=(("cpu", 400),)))
    assert used_by_others(driver) == {}
    driver.feed(MemberStatus("w-0", Phase.RUNNING, driver.now, node, usage=(("cpu", 700),)))
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, node))
    assert used_by_others(driver) == {}


@pytest.mark.parametrize(
    ("policy", "cause", "status", "again"),
    [
        (Requeue.NEVER, "node-failure", 9, False),
        (Requeue.NODE_FAILURE, "node-failure", 9, True),
        (Requeue.NODE_FAILURE, "Error", 256, False),
        (Requeue.ALWAYS, "Error", 256, True),
        (Requeue.ALWAYS, "", 0, False),
    ],
)
def test_a_group_is_requeued_as_a_whole_by_its_policy(
    policy: Requeue, cause: str, status: int, again: bool
) -> None:
    driver, job = running_group(requeue=policy)
    evicted = evictions(driver)
    driver.feed(
        MemberStatus("w-0", Phase.ENDED, driver.now, job.members["w-0"].node, status, *end_cause_of(cause))
    )
    driver.feed(member("w", 2, recreated=True))
    driver.settle()
    assert bool(evicted) is again
    if again:
        driver.feed(MemberGone("w-1"), member("w", 3, recreated=True))
        driver.settle()
        following = only_job(driver)
        assert following.id != job.id
        assert {one.phase for one in following.members.values()} == {MemberPhase.RUNNING}
        assert set(following.members) == {"w-2", "w-3"}
    else:
        assert only_job(driver) is job
        assert job.members["w-2"].phase is MemberPhase.RUNNING


@pytest.mark.parametrize("recreated", [True, False])
def test_a_member_that_did_not_reach_its_node_is_placed_elsewhere(recreated: bool) -> None:
    driver = Driver(pods(nodes=3), settings_of("easy"))
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=1e9, outcome=Outcome.CONFLICT if assignment.node == "node0" else Outcome.APPLIED
    )
    driver.feed(
        WorkloadSet("w", "group", 2, distinct_nodes=True),
        member("w", 0, recreated=recreated),
        member("w", 1, recreated=recreated),
    )
    driver.settle()
    assert {one.node for one in only_job(driver).members.values()} == {"node1", "node2"}


@pytest.mark.parametrize("recreated", [True, False])
def test_a_member_that_is_being_placed_on_a_removed_node_is_placed_elsewhere(recreated: bool) -> None:
    driver = Driver(pods(nodes=3), settings_of("easy"))
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=1e9, place_delay_s=1e9 if assignment.node == "node0" else 0.0
    )
    workload = WorkloadSet("w", "group", 2, distinct_nodes=True)
    driver.feed(workload, member("w", 0, recreated=recreated), member("w", 1, recreated=recreated))
    driver.settle()
    job = only_job(driver)
    assert {one.node: one.phase for one in job.members.values()}["node0"] is MemberPhase.PLACING
    driver.feed(NodeGone("node0"))
    driver.settle()
    assert {one.node for one in job.members.values()} == {"node1", "node2"}
    assert {one.phase for one in job.members.values()} == {MemberPhase.RUNNING}
    assert job.incomplete_since is None


def test_a_member_that_did_not_reach_its_node_joins_the_next_job_of_its_workload() -> None:
    """Its group begins anew meanwhile: nobody makes it again, as it is still there."""
    driver = Driver(pods(nodes=2), settings_of("easy"))
    scripts = {"w-0": MemberScript(runs_s=1e9), "w-1": MemberScript(runs_s=1e9, place_delay_s=1e9)}
    driver.backend.script_for = lambda _place, assignment: scripts[assignment.member]
    workload = WorkloadSet("w", "group", 2, requeue=Requeue.ALWAYS)
    driver.feed(workload, member("w", 0, recreated=True), member("w", 1, recreated=True))
    driver.settle()
    job = only_job(driver)
    (place,) = driver.scheduler.open_intents()
    driver.feed(
        MemberStatus("w-0", Phase.ENDED, driver.now, job.members["w-0"].node, 256, EndCause.OTHER, "Error")
    )
    driver.feed(IntentResult(place, "w-1", Outcome.CONFLICT, "others were quicker"))
    following = only_job(driver)
    assert (following.id != job.id, list(following.members)) == (True, ["w-1"])


@pytest.mark.parametrize("recreated", [True, False])
def test_a_member_that_was_not_started_is_replaced_or_its_job_is_incomplete(
    recreated: bool,
) -> None:
    driver = Driver(pods(), settings_of("easy"))
    endless(driver)
    one, two = member("w", 0, recreated=recreated), member("w", 1, recreated=recreated)
    driver.feed(WorkloadSet("w", "group", 2), one, two)
    driver.settle()
    job = only_job(driver)
    refused = MemberStatus(
        "w-0", Phase.ENDED, driver.now, job.members["w-0"].node, 256, EndCause.OTHER, "OutOfcpu", False
    )
    driver.feed(refused)
    assert bool(job.incomplete_reason) is not recreated
    if recreated:
        evicted = evictions(driver)
        driver.run_until(driver.now + 121)
        assert evicted == []  # It has run.
        assert "has not been replaced" in job.incomplete_reason
    else:
        assert "OutOfcpu" in job.incomplete_reason


def test_a_workload_keeps_few_of_its_ended_members() -> None:
    driver = Driver(pods(), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "long", 1), member("w", 0, recreated=True))
    driver.settle()
    job = only_job(driver)
    for number in range(400):
        status = 3 << 8 if number == 7 else 0
        node = job.members[f"w-{number}"].node
        driver.feed(MemberStatus(f"w-{number}", Phase.ENDED, driver.now, node, status))
        driver.feed(member("w", number + 1, recreated=True))
        driver.settle()
    assert len(job.members) < 200
    assert len(job.members) + job.past_members == 401
    driver.feed(MemberStatus("w-400", Phase.ENDED, driver.now), WorkloadGone("w"))
    driver.settle()
    assert job.status == 3 << 8  # The failure of one that is not kept counts all the same.
    assert not driver.scheduler.allocated_jobs()


def test_the_status_of_a_late_member_says_why_it_waits() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "web", 2), member("w", 0), member("w", 1))
    driver.settle()
    driver.feed(member("w", 2))
    driver.settle()
    told = driver.statuses["w-2"]
    assert told.status is WorkloadStatus.WAITING
    short = "cpu: needs 400m, the largest free node has 200m"
    assert f"needs 1 slot with 400m free cpu, 0 of 1 nodes have it; {short}" in told.reason


def test_the_assembly_timeout_counts_from_the_last_new_member() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(WorkloadSet("w", "slow", 3, assembly_timeout_s=60.0), member("w", 0))
    driver.run_until(50)
    driver.feed(member("w", 1))
    driver.run_until(100)
    assert not only_job(driver).is_assembled
    driver.run_until(111)
    assert not driver.scheduler.jobs
