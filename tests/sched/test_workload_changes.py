"""Workloads that change while their jobs wait or run: queue, urgency and time limit follow them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.model.job import JobState
from penstock.protocol.commands import Cancel, QueueChange, SetUrgency
from penstock.protocol.facts import IntentResult, MemberGone, Outcome, WorkloadSet
from penstock.protocol.intents import Place, WorkloadStatus
from penstock.sched.job import Job
from penstock.sched.reasons import WaitCause
from penstock.sched.settings import QueueSettings, Settings
from tests.sched.driving import Driver, submission
from tests.sched.pod_driver import Pods
from tests.sched.workloads import member

TWO_QUEUES = (QueueSettings("batch"), QueueSettings("debug"))


def job_of(driver: Driver, workload: str) -> Job:
    job = driver.scheduler.job_of_workload(workload)
    assert job is not None
    return job


def change(driver: Pods, workload: str, **fields: object) -> None:
    """The owner of a workload changes what it declares."""
    fact = replace(driver.backend.workloads[workload], **fields)  # type: ignore[arg-type]
    driver.backend.workloads[workload] = fact
    driver.feed(fact)
    driver.settle()


# Disabled queues


def disable(driver: Driver, queue: str = "default", reason: str = "maintenance") -> None:
    driver.feed(QueueChange(queue, enabled=False, reason=reason))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_disabled_queue_takes_new_workloads_when_it_is_enabled_again(restarts: bool) -> None:
    driver = Pods(2)
    accepted = driver.gang("accepted", 2, 1000)
    disable(driver)
    waiting = driver.pod("new")
    driver.settle()
    driver.end("accepted")
    assert accepted in driver.starts
    if restarts:
        driver.restart()
        driver.settle()
    assert driver.started(waiting) == []
    told = driver.statuses["new"]
    assert told.status is WorkloadStatus.QUEUE_DISABLED
    assert told.reason == (
        "queue default is disabled and takes no new jobs: maintenance; "
        "it is taken when the queue is enabled again"
    )
    assert driver.scheduler.wait_reason(waiting, driver.now).cause is WaitCause.QUEUE_DISABLED
    driver.feed(QueueChange("default", enabled=True))
    assert driver.started(waiting) == [waiting]


def test_jobs_that_were_accepted_before_start_in_a_disabled_queue() -> None:
    driver = Pods(1)
    (old,) = [driver.pod("old", 1000)]
    driver.settle()
    waiting = driver.pod("accepted", 1000)
    disable(driver)
    driver.end("old")
    assert driver.started(old, waiting) == [old, waiting]


def test_a_group_that_assembles_in_a_disabled_queue_starts_when_that_is_enabled() -> None:
    driver = Pods(2)
    disable(driver, reason="")
    driver.feed(WorkloadSet("w", "w", 2), member("w", 0))
    assert driver.statuses["w"].status is WorkloadStatus.QUEUE_DISABLED
    driver.feed(member("w", 1))
    driver.settle()
    job = job_of(driver, "w")
    assert job.state is JobState.SCHED
    assert driver.started(job.id) == []
    driver.feed(QueueChange("default", enabled=True))
    assert driver.started(job.id) == [job.id]


def test_late_members_and_further_jobs_of_an_accepted_workload_are_no_new_work() -> None:
    driver = Pods(2)
    first = driver.pod("w", 100)
    driver.settle()
    disable(driver)
    driver.feed(member("w", 1, 100))
    driver.settle()
    assert driver.scheduler.jobs[first].live_count == 2
    for number in range(2):  # The job ends with its members; the workload lasts, and makes another one.
        driver.feed(MemberGone(f"w-{number}"))
    driver.feed(member("w", 2, 100))
    driver.settle()
    assert job_of(driver, "w").live_count == 1


def test_a_cancelled_workload_is_new_work_for_a_disabled_queue() -> None:
    driver = Pods(1)
    driver.pod("old", 1000)
    driver.settle()
    waiting = driver.pod("w", 1000)
    driver.feed(Cancel((waiting,)))
    disable(driver)
    driver.feed(member("w", 1, 1000))
    driver.settle()
    assert driver.statuses["w"].status is WorkloadStatus.QUEUE_DISABLED


def test_a_workload_leaves_a_disabled_queue_for_another_one_and_cannot_move_into_it() -> None:
    driver = Pods(1, "", queues=TWO_QUEUES)
    disable(driver, "debug")
    moves = driver.pod("moves", 100, queue="debug")
    driver.pod("fills", 900)
    assert driver.started(moves) == []
    change(driver, "moves", queue="batch")
    assert driver.started(moves) == [moves]
    enters = driver.pod("enters", 1000)
    change(driver, "enters", queue="debug")
    driver.end("fills", "moves")
    assert driver.started(enters) == []
    assert driver.statuses["enters"].status is WorkloadStatus.QUEUE_DISABLED


def test_a_disabled_queue_does_not_concern_workloads_in_others() -> None:
    driver = Pods(1, "", queues=TWO_QUEUES)
    disable(driver, "debug")
    other = driver.pod("other", queue="batch")
    assert driver.started(other) == [other]


# Urgency


def test_a_held_group_is_released_by_another_urgency_of_its_workload() -> None:
    driver = Pods(2)
    held = driver.gang("held", urgency=0)
    assert driver.started(held) == []
    change(driver, "held", urgency=16)
    assert driver.started(held) == [held]
    assert "urgency" in driver.names(held)


def test_a_group_is_held_by_urgency_0_before_it_has_assembled() -> None:
    driver = Pods(2)
    driver.backend.workloads["w"] = WorkloadSet("w", "w", 2)
    driver.feed(driver.backend.workloads["w"], member("w", 0))
    change(driver, "w", urgency=0)
    driver.feed(member("w", 1))
    driver.settle()
    job = job_of(driver, "w")
    assert driver.started(job.id) == []
    assert driver.statuses["w"].status is WorkloadStatus.HELD


def test_an_urgency_that_a_user_has_set_stays_while_the_workload_says_the_same() -> None:
    driver = Pods(2)
    held = driver.gang("held", urgency=0)
    driver.settle()
    driver.feed(SetUrgency(held, 0))
    change(driver, "held", distinct_nodes=False)
    assert driver.scheduler.jobs[held].urgency == 0
    driver.feed(SetUrgency(held, 20))
    driver.feed(driver.backend.workloads["held"])
    assert driver.scheduler.jobs[held].urgency == 20


def test_an_urgency_that_changed_while_nobody_was_there_is_followed_after_a_restart() -> None:
    driver = Pods(2)
    held = driver.gang("held", urgency=0)
    driver.settle()
    driver.backend.workloads["held"] = replace(driver.backend.workloads["held"], urgency=16)
    driver.restart()
    assert driver.started(held) == [held]


# Time limits of running jobs


def limited(driver: Pods, size: int = 1, limit_s: int = 100) -> int:
    job = driver.gang("w", size, 500, limit_s=limit_s, enforced_by_backend=False)
    assert driver.started(job) == [job]
    return job


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_a_raised_limit_of_a_running_workload_takes_effect(size: int, restarts: bool) -> None:
    driver = Pods(2)
    job = limited(driver, size)
    driver.run_until(50)
    change(driver, "w", limit_s=300)
    if restarts:
        driver.restart()
    driver.run_until(290)
    assert driver.scheduler.jobs[job].state is JobState.RUN
    driver.run_until(310)
    assert "exception" in driver.names(job)


def test_others_are_planned_behind_the_raised_limit_also_after_a_restart() -> None:
    driver = Pods(1)
    job = driver.gang("w", 1, 1000, limit_s=100, enforced_by_backend=False)
    driver.settle()
    waiting = driver.pod("next", 1000)
    driver.run_until(50)
    assert driver.statuses["next"].start_at == 100
    change(driver, "w", limit_s=300)
    assert driver.scheduler.jobs[job].end_at == 300
    assert driver.statuses["next"].start_at == 300
    driver.restart()
    driver.settle()
    assert driver.started(waiting) == []
    assert driver.statuses["next"].start_at == 300


def test_a_single_member_follows_a_lower_limit_and_the_end_of_its_limit() -> None:
    driver = Pods(2)
    job = limited(driver, limit_s=1000)
    driver.run_until(50)
    change(driver, "w", limit_s=None)
    assert driver.scheduler.jobs[job].end_at is None
    driver.run_until(2000)
    assert driver.scheduler.jobs[job].state is JobState.RUN
    change(driver, "w", limit_s=100)
    assert "exception" in driver.names(job)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_limit_that_cannot_be_read_does_not_change_that_of_a_running_job(restarts: bool) -> None:
    driver = Pods(2)
    job = limited(driver)
    unreadable = replace(
        driver.backend.workloads["w"], limit_s=None, enforced_by_backend=True, keeps_limit=True
    )
    driver.backend.workloads["w"] = unreadable
    if restarts:
        driver.restart()
    driver.feed(unreadable)
    driver.run_until(90)
    assert driver.scheduler.jobs[job].end_at == 100
    driver.run_until(110)
    assert "exception" in driver.names(job)


def test_a_group_keeps_its_limit_when_members_that_declared_a_longer_one_have_left() -> None:
    driver = Pods(2)
    job = limited(driver, 2, limit_s=300)
    driver.run_until(50)
    change(driver, "w", limit_s=100)
    driver.run_until(200)
    assert driver.scheduler.jobs[job].state is JobState.RUN


def test_the_backend_learns_of_the_new_end_and_a_refusal_does_not_move_a_placed_member() -> None:
    driver = Pods(2)
    job = limited(driver, 2)
    seen = len(driver.steps)
    change(driver, "w", limit_s=300)
    (place,) = [one for step in driver.steps[seen:] for one in step.intents if isinstance(one, Place)]
    assert place.end_at == 300
    assert sorted(one.member for one in place.assignments) == ["w-0", "w-1"]
    before = driver.nodes_of(job)
    driver.feed(replace(driver.backend.workloads["w"], limit_s=400))
    (intent,) = driver.scheduler.open_intents()
    driver.feed(IntentResult(intent, "w-0", Outcome.CONFLICT, "no"))
    driver.settle()
    assert driver.nodes_of(job) == before
    assert driver.scheduler.jobs[job].live_count == 2
    assert driver.scheduler.open_intents() == []


def test_submitted_jobs_are_still_refused_by_a_disabled_queue() -> None:
    driver = Driver(Pods(1).backend, Settings())
    disable(driver)
    with pytest.raises(Exception, match="submission to default is disabled"):
        driver.submit(submission())
