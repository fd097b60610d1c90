"""Results and sizes of jobs whose controllers replace, delete or suspend their pods."""

from __future__ import annotations

import pytest

from penstock.api.documents import job_summary
from penstock.api.live_jobs import overview_of, state_metrics
from penstock.protocol.facts import EndCause, MemberGone, MemberStatus, Phase, WorkloadGone, WorkloadSet
from penstock.protocol.intents import WorkloadStatus
from tests.sched.controllers import ControllerBackend
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import endless, member, only_job, pods


def running(members: int = 2, **rules: object) -> Driver:
    driver = Driver(pods(2), settings_of("easy"))
    endless(driver)
    fact = WorkloadSet("w", "w", members, owner="ns", desired=members, **rules)  # type: ignore[arg-type]
    driver.feed(fact, *(member("w", number, recreated=True) for number in range(members)))
    driver.settle()
    return driver


def test_a_job_that_completed_after_the_replacement_of_a_pod_is_completed() -> None:
    backend = ControllerBackend(nodes=pods(2).nodes)
    driver = Driver(backend, settings_of("easy"))
    driver.feed(*backend.create(WorkloadSet("w", "w", 2, owner="ns", desired=2), cpu=400))
    driver.settle()
    job = only_job(driver)
    driver.feed(*backend.fail("w-1"))
    driver.run_until(driver.now + 60)
    assert job_summary(overview_of(job), {}).ntasks == 2, "the pod that was replaced is not counted"
    for key in backend.running("w"):
        driver.feed(*backend.fail(key, status=0))
    driver.feed(WorkloadGone("w"))
    driver.settle()
    assert (job.result, job.status) == ("COMPLETED", 0)


def test_a_deleted_deployment_is_canceled_and_not_failed() -> None:
    driver = running()
    job = only_job(driver)
    driver.feed(MemberGone("w-0"), MemberGone("w-1"), WorkloadGone("w"))
    driver.settle()
    assert job.result == "CANCELED"
    assert job.exception is not None
    assert job.exception.note == "its owner has deleted or suspended it"


def test_a_suspended_job_is_canceled_also_if_some_of_its_pods_had_completed() -> None:
    driver = running()
    job = only_job(driver)
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now))
    driver.run_until(driver.now + 10)
    driver.feed(MemberGone("w-1"), WorkloadGone("w"))
    driver.settle()
    assert job.result == "CANCELED"


@pytest.mark.parametrize(
    ("at_first", "later"), [({"limit_s": 60}, {"limit_s": 60}), ({}, {"deadline_at": 60.0})]
)
def test_a_job_whose_pods_are_deleted_at_its_deadline_has_reached_it(
    at_first: dict[str, float], later: dict[str, float]
) -> None:
    """The Job controller deletes them. The deadline is known when the Job has a start time."""
    driver = running(**at_first)
    job = only_job(driver)
    driver.feed(WorkloadSet("w", "w", 2, owner="ns", desired=2, **later))  # type: ignore[arg-type]
    driver.run_until(60.0)
    driver.feed(MemberGone("w-0"), MemberGone("w-1"), WorkloadGone("w"))
    driver.settle()
    assert job.result == "TIMEOUT"


def test_pods_that_a_smaller_job_has_deleted_do_not_fail_it() -> None:
    driver = running()
    job = only_job(driver)
    driver.feed(WorkloadSet("w", "w", 2, owner="ns", desired=1), MemberGone("w-1"))
    driver.run_until(driver.now + 10)
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now), WorkloadGone("w"))
    driver.settle()
    assert job.result == "COMPLETED"


def test_a_pod_that_failed_and_was_not_replaced_fails_the_job() -> None:
    driver = running()
    job = only_job(driver)
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, status=3 << 8))
    driver.run_until(driver.now + 10)
    driver.feed(MemberStatus("w-1", Phase.ENDED, driver.now), WorkloadGone("w"))
    driver.settle()
    assert (job.result, job.status) == ("FAILED", 3 << 8)


def test_a_job_that_failed_is_not_canceled_by_the_deletion_of_its_other_pods() -> None:
    """The Job controller deletes the pods that still run when a Job has failed."""
    driver = running()
    job = only_job(driver)
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, status=3 << 8))
    driver.run_until(driver.now + 10)
    driver.feed(MemberStatus("w-1", Phase.ENDED, driver.now, status=143 << 8, cause=EndCause.GONE))
    driver.feed(WorkloadGone("w"))
    driver.settle()
    assert (job.result, job.status) == ("FAILED", 3 << 8)


def test_a_gang_of_bare_pods_with_a_refused_member_is_told_and_counted() -> None:
    driver = Driver(pods(2), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "w", 2, owner="ns"), member("w", 0), member("w", 1))
    driver.settle()
    node = only_job(driver).members["w-1"].node
    refused = EndCause.OTHER
    driver.feed(MemberStatus("w-1", Phase.ENDED, driver.now, node, 256, refused, "OutOfcpu", started=False))
    driver.settle()
    assert driver.statuses["w"].status is WorkloadStatus.INCOMPLETE
    assert "OutOfcpu" in driver.statuses["w"].reason
    assert b"penstock_jobs_incomplete 1.0" in state_metrics(driver.scheduler, driver.now)
