"""Starts beyond the reservation horizon: forecast, not reserved, and no reason to keep other jobs waiting."""

from __future__ import annotations

from penstock.api.timeline import live_timeline
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.facts import WorkloadSet
from tests.sched.driving import Driver, nodes_of, settings_of, submission
from tests.sched.workloads import endless, member, pods

DAY_S = 86400
YEAR_S = 365 * DAY_S


def state(driver: Driver, job: int) -> JobState:
    return driver.scheduler.jobs[job].state


def test_a_limit_of_ten_years_does_not_keep_pods_without_a_limit_from_starting() -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("long", "long", 1, limit_s=10 * YEAR_S), member("long", 0, cpu=800))
    driver.settle()
    driver.feed(WorkloadSet("gang", "gang", 2), *(member("gang", number, cpu=800) for number in range(2)))
    driver.feed(WorkloadSet("small", "small", 1), member("small", 0, cpu=400))
    driver.settle()
    small, gang = (driver.scheduler.job_of_workload(name) for name in ("small", "gang"))
    assert small is not None
    assert small.state is JobState.RUN
    assert gang is not None
    assert gang.state is JobState.SCHED


def test_a_start_beyond_the_horizon_is_shown_as_a_forecast() -> None:
    driver = Driver(nodes_of(2, 1), settings_of("easy"), runs_s=lambda _job: 1e9)
    driver.submit(submission(duration_s=8 * DAY_S))
    (head,) = driver.submit(submission(nodes=2))
    driver.settle()
    forecast, promise = driver.scheduler.jobs[head].forecast, driver.scheduler.jobs[head].promise
    assert forecast is not None
    assert (forecast.start_at, forecast.is_reservation) == (8 * DAY_S, False)
    assert promise is not None
    assert not promise.is_reservation
    assert driver.scheduler.reservations() == {}
    nodes = live_timeline(driver.scheduler, driver.now, 0.0).nodes
    kinds = {span.kind for node in nodes for span in node.spans if span.job == encode_jobid(head)}
    assert kinds == {"forecast"}


def test_it_has_the_forecast_of_its_cycle_if_none_is_simulated() -> None:
    driver = Driver(nodes_of(2, 1), settings_of("easy", forecast_depth=0), runs_s=lambda _job: 1e9)
    driver.submit(submission(duration_s=8 * DAY_S))
    (head,) = driver.submit(submission(nodes=2))
    driver.settle()
    forecast = driver.scheduler.jobs[head].forecast
    assert forecast is not None
    assert (forecast.start_at, forecast.is_reservation) == (8 * DAY_S, False)


def test_a_job_beyond_the_horizon_leaves_the_reservation_to_the_next_one() -> None:
    driver = Driver(nodes_of(3, 1), settings_of("easy"), runs_s=lambda _job: 1e9)
    driver.submit(submission(duration_s=8 * DAY_S), submission(duration_s=DAY_S))
    far, near, late = driver.submit(
        submission(nodes=3), submission(nodes=2, duration_s=100), submission(duration_s=2 * DAY_S)
    )
    driver.settle()
    assert driver.scheduler.reservations() == {near: DAY_S}
    assert [state(driver, job) for job in (far, late)] == [JobState.SCHED, JobState.SCHED]


def test_a_start_at_the_horizon_is_reserved_and_a_horizon_without_end_reserves_all() -> None:
    for horizon_s in (1000.0, float("inf")):
        settings = settings_of("easy", reservation_horizon_s=horizon_s)
        driver = Driver(nodes_of(1, 1), settings, runs_s=lambda _job: 1e9)
        driver.submit(submission(duration_s=1000))
        (head,) = driver.submit(submission())
        driver.settle()
        assert driver.scheduler.reservations() == {head: 1000.0}


def test_a_job_is_reserved_when_its_start_comes_within_the_horizon() -> None:
    driver = Driver(nodes_of(2, 1), settings_of("easy"), runs_s=lambda _job: 1e9)
    driver.submit(submission(duration_s=8 * DAY_S))
    (head,) = driver.submit(submission(nodes=2))
    driver.settle()
    assert driver.scheduler.reservations() == {}
    driver.run_until(2 * DAY_S)
    driver.plan()
    assert driver.scheduler.reservations() == {head: 8 * DAY_S}
