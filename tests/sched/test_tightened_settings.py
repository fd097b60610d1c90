"""Settings that admit less than those under which jobs were accepted: such jobs are held, others go on."""

from __future__ import annotations

import pytest

from penstock.model.job import JobState
from penstock.protocol.commands import Cancel
from penstock.protocol.intents import WorkloadStatus
from penstock.sched.reasons import WaitCause
from penstock.sched.settings import QueueSettings, Settings
from tests.sched.driving import Driver, nodes_of, submission
from tests.sched.pod_driver import Pods
from tests.sched.workloads import member

TWO = Settings(queues=(QueueSettings("batch"), QueueSettings("debug")))
REMOVED = Settings(queues=(QueueSettings("batch"),))
SHORTER = Settings(queues=(QueueSettings("batch"), QueueSettings("debug", duration_max_s=600)))
REMOVED_TEXT = "held: the configuration has no queue debug any more, only batch"
SHORTER_TEXT = "held: its time limit is 2h, and queue debug allows at most 10m"


def restart(driver: Driver, settings: Settings) -> None:
    driver.settings = settings
    driver.__post_init__()
    driver.settle()


@pytest.mark.parametrize(("settings", "text"), [(REMOVED, REMOVED_TEXT), (SHORTER, SHORTER_TEXT)])
def test_a_job_that_is_not_admitted_any_more_is_held_until_it_is(settings: Settings, text: str) -> None:
    driver = Driver(nodes_of(1, 2), TWO, runs_s=lambda _: 60.0)
    running, waiting = driver.submit(*[submission(cores=2, duration_s=7200, queue="debug")] * 2)
    (other,) = driver.submit(submission(cores=2, duration_s=7200))
    driver.settle()
    restart(driver, settings)
    assert driver.scheduler.jobs[running].state is JobState.RUN
    reason = driver.scheduler.wait_reason(waiting, driver.now)
    assert (reason.cause, reason.message.partition(";")[0]) == (WaitCause.HELD, text)
    driver.run_until(100.0)
    assert running not in driver.scheduler.jobs  # It has ended as if nothing had changed.
    assert driver.scheduler.jobs[waiting].state is JobState.SCHED
    assert driver.scheduler.jobs[other].state is JobState.RUN  # The held one is not in its way.
    restart(driver, TWO)
    driver.run_until(200.0)
    assert waiting in driver.starts
    assert driver.scheduler.jobs.get(waiting) is None or driver.scheduler.jobs[waiting].queue == "debug"


def test_a_held_job_can_be_cancelled() -> None:
    driver = Driver(nodes_of(1, 2), TWO, runs_s=lambda _: 60.0)
    _, waiting = driver.submit(*[submission(cores=2, duration_s=7200, queue="debug")] * 2)
    driver.settle()
    restart(driver, REMOVED)
    driver.feed(Cancel((waiting,)))
    driver.settle()
    assert waiting not in driver.scheduler.jobs


def test_a_late_member_of_a_workload_in_a_removed_queue_is_handled() -> None:
    driver = Pods(2, "", queues=TWO.queues)
    pending = driver.gang("waits", 3, 1000, queue="debug")
    running = driver.gang("runs", 1, 500, queue="debug")
    driver.settle()
    restart(driver, REMOVED)
    driver.feed(member("waits", 3, 1000), member("runs", 1, 500))
    driver.settle()
    assert driver.scheduler.jobs[running].live_count == 2
    reason = driver.scheduler.wait_reason(pending, driver.now)
    assert reason.message.startswith(REMOVED_TEXT)
    assert driver.statuses["waits"].reason.startswith(REMOVED_TEXT)
    told = [update for step in driver.steps for update in step.status_updates if update.workload == "waits"]
    assert {update.status for update in told if update.reason.startswith("held")} == {WorkloadStatus.HELD}
