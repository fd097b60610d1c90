"""Jobs that are set aside: listed, explained, and cancelled by their owners."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest

from penstock.api import live_jobs
from penstock.api.requests import JobsQuery
from penstock.app.audit_snapshot import graph_snapshot
from penstock.backends.sim.backend import MemberScript
from penstock.errors import Conflict
from penstock.model.job import JobState, state_after
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import Cancel
from penstock.protocol.facts import WorkloadSet
from penstock.sched import deadlines
from penstock.sched.commands import UnknownJobId
from penstock.sched.job import Job
from penstock.sched.state import SchedulerState
from tests.sched.driving import Driver, nodes_of, settings_of, submission
from tests.sched.internals import corruptible_state
from tests.sched.workloads import endless, member, pods


@pytest.fixture
def driver() -> Driver:
    """An instance with one job that runs and is set aside, and one that runs."""
    return driver_with_set_aside()


def driver_with_set_aside(*, has_follower: bool = False) -> Driver:
    driver = Driver(nodes_of(2, 4))
    driver.backend.script_for = lambda *_: MemberScript(runs_s=1e6)
    driver.submit(submission(slots=4, duration_s=0), submission(slots=1, duration_s=0))
    driver.settle()
    aside = next(iter(driver.scheduler.jobs))
    if has_follower:
        driver.submit(submission(dependencies=[{"scheme": "afterok", "value": encode_jobid(aside)}]))
    check = deadlines._check_deadlines

    def failing(state: SchedulerState, job: Job, now: float) -> None:
        if job.id == aside:
            raise RuntimeError("unexpected")
        check(state, job, now)

    corruptible_state(driver.scheduler).wake(driver.now + 1, aside)
    with patch.object(deadlines, "_check_deadlines", failing):
        driver.run_until(driver.now + 2)
    return driver


def test_a_job_that_is_set_aside_is_listed_and_explained(driver: Driver) -> None:
    scheduler = driver.scheduler
    (aside,) = scheduler.set_aside
    (running,) = scheduler.jobs
    listed = live_jobs.list_summaries(scheduler, driver.now, JobsQuery())
    assert [job.id for job in listed] == [encode_jobid(running), encode_jobid(aside)]
    assert listed[1].state is JobState.RUN
    assert "RuntimeError: unexpected" in listed[1].reason
    explained = live_jobs.explain_wait(scheduler, driver.now, aside)
    assert explained is not None
    assert "RuntimeError: unexpected" in explained.sentence
    assert live_jobs.list_summaries(scheduler, driver.now, JobsQuery(owner="nobody")) == []
    found = live_jobs.find_with_members(scheduler, aside)
    assert found is not None
    assert len(found[1]) == 4


def test_a_job_that_is_set_aside_can_be_cancelled() -> None:
    driver = driver_with_set_aside(has_follower=True)
    (aside,) = driver.scheduler.set_aside
    follower = max(driver.scheduler.jobs)
    (after,) = driver.submit(submission(nodes=2, slots=3, duration_s=60))
    driver.settle()
    assert driver.scheduler.jobs[after].state is JobState.SCHED
    (reply,) = driver.feed(Cancel((aside,), "enough")).replies
    assert reply.value == {aside: None}
    live = driver.store.tables.live[aside]
    assert (live.state, live.result) == (JobState.INACTIVE, "CANCELED")
    assert driver.names(aside)[-4:] == ["exception", "release", "free", "clean"]
    assert state_after(driver.logs[aside]) is JobState.INACTIVE
    assert driver.names(follower)[-2:] == ["exception", "clean"]
    assert aside not in driver.scheduler.allocated_jobs()
    driver.plan()
    assert after not in driver.starts  # The tasks of the cancelled job have not ended yet.
    driver.settle()
    assert driver.scheduler.jobs[after].state is JobState.RUN
    assert driver.backend.violations == []
    assert not driver.store.tables.intents
    again = Driver(driver.backend, driver.settings, store=driver.store)
    assert aside not in again.scheduler.set_aside
    assert again.scheduler.jobs[after].state is JobState.RUN
    (reply,) = again.feed(Cancel((aside,))).replies
    assert isinstance(reply.value, dict)
    assert isinstance(reply.value[aside], UnknownJobId)


def test_a_pending_job_that_is_set_aside_can_be_cancelled() -> None:
    driver = Driver(nodes_of(1, 4))
    (bad,) = driver.submit(submission(urgency=0))
    live = driver.store.tables.live[bad]
    driver.store.tables.live[bad] = replace(live, state=JobState.RUN)
    again = Driver(driver.backend, driver.settings, store=driver.store)
    assert bad in again.scheduler.set_aside
    (reply,) = again.feed(Cancel((bad,))).replies
    assert reply.value == {bad: None}
    assert driver.store.tables.live[bad].result == "CANCELED"
    third = Driver(driver.backend, driver.settings, store=driver.store)
    assert bad not in third.scheduler.set_aside


def test_the_job_of_a_workload_that_is_set_aside_is_ended_through_its_pods() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "w", 1), member("w", 0))
    driver.settle()
    (job,) = driver.scheduler.jobs
    driver.store.tables.live[job] = replace(driver.store.tables.live[job], state=JobState.SCHED)
    again = Driver(driver.backend, driver.settings, store=driver.store)
    (reply,) = again.feed(Cancel((job,))).replies
    assert isinstance(reply.value, dict)
    assert isinstance(reply.value[job], Conflict)
    assert "delete its pods" in str(reply.value[job])


def test_the_auditor_sees_the_members_of_a_job_that_is_set_aside(driver: Driver) -> None:
    (aside,) = driver.scheduler.set_aside
    found = graph_snapshot(driver.scheduler)
    assert sum(member.job == aside for member in found.members.values()) == 4
    assert found.empty_slots == {}
