"""Jobs that are set aside: listed, explained, and not to be cancelled."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from penstock.api import live_jobs
from penstock.api.requests import JobsQuery
from penstock.app.audit_snapshot import graph_snapshot
from penstock.backends.sim.backend import MemberScript
from penstock.errors import Conflict
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import Cancel
from penstock.sched import deadlines
from penstock.sched.job import Job
from penstock.sched.state import SchedulerState
from tests.sched.driving import Driver, nodes_of, submission


@pytest.fixture
def driver() -> Driver:
    """An instance with one job that runs and is set aside, and one that runs."""
    driver = Driver(nodes_of(2, 4))
    driver.backend.script_for = lambda *_: MemberScript(runs_s=1e6)
    driver.submit(submission(slots=4, duration_s=0), submission(slots=1, duration_s=0))
    driver.settle()
    aside = next(iter(driver.scheduler.jobs))
    check = deadlines._check_deadlines

    def failing(state: SchedulerState, job: Job, now: float) -> None:
        if job.id == aside:
            raise RuntimeError("unexpected")
        check(state, job, now)

    driver.scheduler.state.wake(driver.now + 1, aside)
    with patch.object(deadlines, "_check_deadlines", failing):
        driver.run_until(driver.now + 2)
    return driver


def test_a_job_that_is_set_aside_is_listed_and_explained(driver: Driver) -> None:
    scheduler = driver.scheduler
    (aside,) = scheduler.state.set_aside
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


def test_a_job_that_is_set_aside_cannot_be_cancelled_and_says_why(driver: Driver) -> None:
    (aside,) = driver.scheduler.state.set_aside
    (reply,) = driver.feed(Cancel((aside,))).replies
    assert isinstance(reply.value, dict)
    assert isinstance(reply.value[aside], Conflict)
    assert "RuntimeError: unexpected" in str(reply.value[aside])


def test_the_auditor_sees_the_members_of_a_job_that_is_set_aside(driver: Driver) -> None:
    (aside,) = driver.scheduler.state.set_aside
    found = graph_snapshot(driver.scheduler)
    assert sum(member.job == aside for member in found.members.values()) == 4
    assert found.empty_slots == {}
