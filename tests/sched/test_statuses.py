"""What owners of workloads are told: it is true, current, and for the pods that it concerns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.protocol.commands import QueueChange, SetUrgency
from penstock.protocol.facts import MemberGone, WorkloadSet
from penstock.protocol.intents import WorkloadStatus
from penstock.sched.reasons import WaitCause
from penstock.sched.subjects import Culprit, CulpritKind, Fault
from tests.sched.driving import Driver, settings_of
from tests.sched.pod_driver import Pods
from tests.sched.workloads import endless, member, only_job, pods


def gang(driver: Driver, **rules: object) -> None:
    """Three members that appear one by one, as the Job controller creates them."""
    driver.feed(WorkloadSet("w", "mpi", 3, **rules), member("w", 0))  # type: ignore[arg-type]
    driver.settle()
    driver.feed(member("w", 1))
    driver.settle()
    driver.feed(member("w", 2))
    driver.settle()


# Reasons of the job itself


def test_a_held_group_is_told_that_it_is_held_and_when_it_is_released() -> None:
    driver = Driver(pods(), settings_of("easy"))
    gang(driver, urgency=0)
    told = driver.statuses["w"]
    assert told.status is WorkloadStatus.HELD
    assert told.reason.startswith("held; `penstock release ")
    driver.feed(SetUrgency(only_job(driver).id, 16))
    assert driver.statuses["w"].status is WorkloadStatus.WAITING


def test_a_delayed_group_is_told_its_begin_time() -> None:
    driver = Driver(pods(), settings_of("easy"))
    gang(driver, begin_at=7200.0)
    told = driver.statuses["w"]
    assert told.status is WorkloadStatus.DELAYED
    assert told.reason == "starts no earlier than its begin time, 1970-01-01T02:00:00Z"


def test_a_group_in_a_stopped_queue_is_told_so_at_once_and_behind_many_others() -> None:
    driver = Driver(pods(), settings_of("easy", forecast_depth=2))
    driver.feed(QueueChange("default", started=False, reason="maintenance"))
    for number in range(5):
        name = f"w{number}"
        driver.feed(WorkloadSet(name, name, 1), member(name, 0, cpu=100 + number))
    driver.settle()
    told = {driver.statuses[f"w{number}"] for number in range(5)}
    assert {one.status for one in told} == {WorkloadStatus.QUEUE_STOPPED}
    assert {one.reason for one in told} == {"queue default is stopped: maintenance"}


def test_an_incomplete_group_is_told_how_long_it_waits_and_what_happens_then() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(WorkloadSet("w", "mpi", 3, assembly_timeout_s=600), member("w", 0))
    told = driver.statuses["w"]
    assert told.status is WorkloadStatus.ASSEMBLING
    text = "if none appears for 10m, the group is inadmissible until a further one does"
    assert told.reason == f"1 of 3 members are ready; {text}"


def test_a_member_that_appears_is_told_what_the_others_know_already() -> None:
    driver = Driver(pods(), settings_of("easy"))
    gang(driver, urgency=0)
    step = driver.feed(member("w", 3))
    assert [update.status for update in step.status_updates] == [WorkloadStatus.HELD]


def test_a_status_that_cannot_be_told_is_attributed_to_its_workload() -> None:
    """So that this workload alone is set aside."""
    driver = Driver(pods(), settings_of("easy"))
    gang(driver, begin_at=7200.0)
    job = only_job(driver)
    job.spec = replace(job.spec, begin_at=1e18)  # beyond every calendar
    with pytest.raises(Fault) as raised:
        driver.scheduler.handle([SetUrgency(job.id, 10)], driver.now)
    assert raised.value.subject == Culprit(CulpritKind.WORKLOAD, "w")


# Reasons that depend on others


def test_a_group_behind_the_forecast_depth_is_not_told_about_a_holder_that_has_ended() -> None:
    driver = Pods(nodes=1, forecast_depth=1)
    driver.pod("old", cpu=1000)
    driver.settle()
    driver.pod("next", cpu=1000)
    driver.pod("last", cpu=900)
    driver.settle()
    assert "ns/old" in driver.statuses["next"].reason
    assert "ns/old" not in driver.statuses["last"].reason
    driver.end("old")
    driver.settle()
    text = "many jobs are ahead of it; `penstock job why "
    assert driver.statuses["last"].reason.startswith(("needs ", text))
    assert "old" not in driver.statuses["last"].reason


def test_the_head_of_the_queue_is_marked_and_the_cost_of_reasons_is_bounded() -> None:
    driver = Pods(nodes=1, forecast_depth=3)
    driver.pod("old", cpu=1000)
    driver.settle()
    names = [f"w{number:02}" for number in range(20)]
    for number, name in enumerate(names):
        driver.pod(name, cpu=500 + number)
    driver.settle()
    assert [name for name in names if driver.statuses[name].is_head] == names[:3]
    unexplained = [name for name in names if driver.statuses[name].reason.startswith("many jobs are ahead")]
    assert unexplained == names[3:], "so many distinct requests are not explained in one cycle"


def test_behind_the_forecast_depth_of_a_strict_queue_nobody_is_told_that_it_would_fit() -> None:
    driver = Pods(1, "fcfs", forecast_depth=1)
    for name in ("runs", "head", "behind"):
        driver.pod(name, cpu=1000)
        driver.settle()
    text = "queue default is strict first-come, first-served, and the job at its head waits"
    assert driver.statuses["behind"].reason == text


# Members of a job that runs


def deployment(driver: Driver, replicas: int = 3) -> None:
    """A workload that starts with its first member; the others join."""
    endless(driver)
    driver.feed(WorkloadSet("web", "web", 1, owner="ns", desired=replicas), member("web", 0, cpu=1000))
    driver.settle()
    for number in range(1, replicas):
        driver.feed(member("web", number, cpu=1000, recreated=True))
    driver.settle()


def test_pending_members_of_a_running_deployment_are_explained_without_naming_their_own_job() -> None:
    driver = Driver(pods(2), settings_of("easy"))
    deployment(driver)
    job = only_job(driver)
    reason = driver.scheduler.wait_reason(job.id, driver.now)
    assert reason.cause is WaitCause.INCOMPLETE
    assert reason.message.startswith("1 of 3 members waits for a node: needs ")
    assert reason.message.endswith("; held by other members of this job")
    told = driver.statuses["web-2"]
    assert (told.status, told.member) == (WorkloadStatus.WAITING, "web-2")
    assert told.reason.endswith("; held by other members of this job")


def test_members_of_one_job_with_different_requests_have_a_reason_each() -> None:
    driver = Driver(pods(2), settings_of("easy"))
    deployment(driver)
    driver.feed(member("web", 3, cpu=500, recreated=True))
    driver.settle()
    assert "1 free cpu" in driver.statuses["web-2"].reason or "1 cpu" in driver.statuses["web-2"].reason
    assert "500m" in driver.statuses["web-3"].reason


def test_a_late_member_that_its_placement_rule_keeps_off_the_nodes_is_not_called_unplanned() -> None:
    driver = Driver(pods(2, cpu=4000), settings_of("easy"))
    endless(driver)
    rules = WorkloadSet("web", "web", 2, owner="ns", distinct_nodes=True, desired=3)
    driver.feed(rules, *(member("web", number, cpu=100, recreated=True) for number in range(3)))
    driver.settle()
    driver.feed(member("web", 3, cpu=100, recreated=True))
    driver.settle()
    reason = driver.scheduler.wait_reason(only_job(driver).id, driver.now)
    assert "next scheduling cycle" not in reason.message
    assert "needs" in reason.message


def test_a_late_member_that_is_deleted_and_created_again_is_told_again() -> None:
    driver = Driver(pods(2), settings_of("easy"))
    deployment(driver)
    driver.feed(MemberGone("web-2"))
    driver.settle()
    driver.statuses.clear()
    driver.feed(member("web", 2, cpu=1000, recreated=True))
    driver.settle()
    assert driver.statuses["web-2"].status is WorkloadStatus.WAITING


def test_late_members_in_a_stopped_queue_are_told_that_it_is_stopped() -> None:
    driver = Driver(pods(2), settings_of("easy", forecast_depth=1))
    deployment(driver, replicas=1)
    driver.feed(QueueChange("default", started=False, reason="maintenance"))
    driver.feed(*(member("web", number, cpu=100 + number, recreated=True) for number in (1, 2, 3)))
    driver.settle()
    text = "queue default is stopped: maintenance"
    told = {driver.statuses[f"web-{number}"] for number in (1, 2, 3)}
    assert {(one.status, one.reason) for one in told} == {(WorkloadStatus.QUEUE_STOPPED, text)}
    reason = driver.scheduler.wait_reason(only_job(driver).id, driver.now)
    assert reason.message == f"3 of 4 members wait for a node: {text}"
    driver.feed(QueueChange("default", started=True))
    driver.settle()
    assert only_job(driver).live_count == 4
