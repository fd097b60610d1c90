"""Jobs past their limit: when they are expected to end, and what is planned around them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.timeline import live_timeline
from penstock.backends.sim.backend import MemberScript
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.facts import MemberSet, WorkloadSet
from penstock.protocol.intents import Assignment, Place
from penstock.sched.job import Job
from penstock.sched.overruns import expected_end
from penstock.sched.reasons import WaitBlocker
from tests.sched.driving import Driver, nodes_of, settings_of, submission
from tests.sched.workloads import member, pods

HOUR_S = 3600
LIMIT_S = 100
WHOLE = 1000  # cpu of a node


@pytest.mark.parametrize(
    ("now", "end"),
    [
        (0, 100),
        (99.5, 100),
        (100, 160),
        (160, 400),
        (399.9, 400),
        (400, 1000),
        (1000, 1900),
        (1900, 100 + HOUR_S),
        (100 + HOUR_S, 100 + 2 * HOUR_S),
        (100 + 49 * HOUR_S, 100 + 50 * HOUR_S),
        (100 + 50 * HOUR_S, 100 + 100 * HOUR_S),
        (100 + 100 * HOUR_S, None),
    ],
)
def test_the_expected_end_moves_on_in_growing_steps(now: float, end: float | None) -> None:
    assert expected_end(100.0, now) == end


@given(limit_at=st.floats(0, 1e9), over_s=st.floats(0, 99 * HOUR_S))
def test_an_expected_end_lies_ahead(limit_at: float, over_s: float) -> None:
    found = expected_end(limit_at, limit_at + over_s)
    assert found is not None
    assert found > limit_at + over_s


def cluster(nodes: int, **runs_s: float) -> Driver:
    """Nodes, and the run time of the pods of each workload; others run for as long as their limit says."""
    driver = Driver(pods(nodes=nodes), settings_of("easy"))

    def script(place: Place, _assignment: Assignment) -> MemberScript:
        workload = driver.backend.workloads[place.workload]
        return MemberScript(runs_s=runs_s.get(place.workload, float(workload.limit_s or 1e9)))

    driver.backend.script_for = script
    return driver


def add(driver: Driver, name: str, pods: int = 1, limit_s: int | None = LIMIT_S) -> Job:
    workload = WorkloadSet(name, name, pods, limit_s=limit_s)
    members: list[MemberSet] = [member(name, number, cpu=WHOLE) for number in range(pods)]
    driver.backend.workloads[name] = workload
    driver.backend.members.update({one.member: one for one in members})
    driver.feed(workload, *members)
    driver.settle()
    job = driver.scheduler.job_of_workload(name)
    assert job is not None
    return job


def reservation(driver: Driver) -> list[float]:
    return list(driver.scheduler.reservations().values())


def test_what_is_free_beside_an_overrunning_job_goes_to_jobs_that_end_before_its_expected_end() -> None:
    driver = cluster(10, late=2000.0)
    add(driver, "late")
    head = add(driver, "head", pods=10)
    long = add(driver, "long", limit_s=10_000)
    driver.run_until(120)
    waits: list[float] = []
    for number in range(100):
        short = add(driver, f"short{number}", limit_s=20)
        submitted = driver.now
        driver.run_until(driver.now + 18)
        if short.id in driver.starts:
            waits.append(driver.starts[short.id] - submitted)
    assert driver.now < 2000
    assert len(waits) > 90, "they do not wait until the job that overruns has ended"
    assert max(waits) <= 40, "those that would reach past an expected end wait for the next one"
    assert (head.state, long.state) == (JobState.SCHED, JobState.SCHED)
    driver.run_until(2020)
    assert driver.starts[head.id] <= 2020, "the head starts when the short jobs on its nodes have ended"
    assert long.id not in driver.starts


def test_the_reservation_behind_an_overrunning_job_is_at_its_expected_end() -> None:
    driver = cluster(2, late=1e9)
    add(driver, "late")
    add(driver, "head", pods=2)
    for now, start in ((50, 100), (120, 160), (170, 400), (500, 1000), (50 * HOUR_S, 100 + 50 * HOUR_S)):
        driver.run_until(now)
        assert reservation(driver) == [start]
    driver.run_until(101 * HOUR_S)
    assert reservation(driver) == []
    job = driver.scheduler.job_of_workload("head")
    assert job is not None
    assert job.forecast is None


def test_all_parts_of_an_allocation_are_extended() -> None:
    driver = cluster(3, late=1e9)
    add(driver, "late")
    driver.run_until(150)
    extra = member("late", 1, cpu=WHOLE)
    driver.backend.members[extra.member] = extra
    driver.feed(extra)
    driver.settle()
    add(driver, "head", pods=2)
    assert reservation(driver) == [160]
    driver.run_until(170)
    assert reservation(driver) == [400]


@pytest.mark.parametrize("down_s", [0, 1000])
def test_expected_ends_follow_from_the_records_after_a_restart(down_s: int) -> None:
    driver = cluster(2, late=1e9)
    add(driver, "late")
    add(driver, "head", pods=2)
    driver.run_until(170)
    assert reservation(driver) == [400]
    for fact in driver.backend.advance(driver.now + down_s):
        raise AssertionError(fact)
    again = Driver(driver.backend, driver.settings, store=driver.store)
    again.settle()
    assert reservation(again) == [400 if down_s == 0 else 1900]
    again.run_until(2000)
    assert reservation(again) == [100 + HOUR_S]


def test_the_reason_and_the_timeline_say_that_a_job_is_past_its_limit() -> None:
    driver = cluster(2, late=1e9)
    late = add(driver, "late")
    head = add(driver, "head", pods=2)
    driver.run_until(50)
    (blocker,) = driver.scheduler.wait_reason(head.id, driver.now).blockers
    assert blocker == WaitBlocker(encode_jobid(late.id), late.id, 100.0, title="late")
    driver.run_until(105)
    (blocker,) = driver.scheduler.wait_reason(head.id, driver.now).blockers
    assert blocker == WaitBlocker(encode_jobid(late.id), late.id, None, has_overrun=True, title="late")
    driver.run_until(170)
    reason = driver.scheduler.wait_reason(head.id, driver.now)
    overrun = WaitBlocker(encode_jobid(late.id), late.id, 400.0, has_overrun=True, title="late")
    assert reason.blockers == (overrun,)
    assert reason.message.endswith(f"held by {encode_jobid(late.id)} (late, past its limit)")
    spans = [span for node in live_timeline(driver.scheduler, driver.now, 0.0).nodes for span in node.spans]
    assert [(span.kind, span.to) for span in spans if span.job == encode_jobid(late.id)] == [("overrun", 400)]


def test_a_later_slip_has_its_own_cause_although_a_job_still_overruns() -> None:
    driver = cluster(3, late=1e9)
    late = add(driver, "late")
    busy = add(driver, "busy", limit_s=3000)
    head = add(driver, "head", pods=2, limit_s=10_000)
    driver.run_until(2000)
    causes = [str(event.context["cause"]) for event in driver.logs[head.id] if "cause" in event.context]
    assert causes
    assert all(encode_jobid(late.id) in cause for cause in causes)
    node = next(name for name in driver.backend.nodes if name not in _nodes(late) | _nodes(busy))
    driver.feed(driver.backend.remove_node(node))
    driver.settle()
    assert driver.logs[head.id][-1].context["cause"] == f"{node} was removed"


def _nodes(job: Job) -> set[str]:
    return {one.node for one in job.members.values()}


def test_an_enforced_limit_keeps_its_place_for_the_next_job_while_the_job_is_ended() -> None:
    driver = Driver(nodes_of(2, 1), settings_of("easy"))
    driver.backend.script_for = lambda place, _assignment: MemberScript(
        103.0 if place.job == first else 50.0, end_delay_s=3.0
    )
    (first,) = driver.submit(submission(duration_s=100))
    (head,) = driver.submit(submission(nodes=2, duration_s=50))
    driver.run_until(100)
    (short,) = driver.submit(submission(duration_s=50))
    driver.run_until(200)
    assert driver.starts[head] == 103
    assert driver.starts[short] == 153
