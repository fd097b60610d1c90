"""Jobs that people submit: order, dependencies, queues, urgency, limits, promises and reasons."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backends.sim.backend import MemberScript
from penstock.errors import BadRequest, Conflict, PenstockError
from penstock.instance.steps import advance_once
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import Cancel, Command, Drain, QueueChange, SetUrgency, Submit, Undrain
from penstock.protocol.facts import Fact, MemberStatus, NodeGone, Phase, Requeue
from penstock.sched.commands import CanNeverRun
from penstock.sched.reasons import WaitBlocker, WaitCause
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import QueueSettings, Settings, parse_backfill
from tests.sched.driving import Driver, nodes_of, pool_of, settings_of, submission


def state(driver: Driver, job: int) -> JobState:
    found = driver.scheduler.jobs.get(job)
    return found.state if found is not None else JobState.INACTIVE


def after(scheme: str, job: int) -> list[dict[str, str]]:
    return [{"scheme": scheme, "value": encode_jobid(job)}]


def test_expedited_jobs_come_first_then_urgency_then_submission_order() -> None:
    driver = Driver(pool_of(1), settings_of("fcfs"), runs_s=lambda _job: 10)
    (running,) = driver.submit(submission())
    driver.settle()
    usual, also, low, high, first = driver.submit(
        submission(), submission(), submission(urgency=5), submission(urgency=20), submission(urgency=31)
    )
    driver.run()
    order = sorted(driver.starts, key=lambda job: driver.starts[job])
    assert order == [running, first, high, usual, also, low]


def test_a_held_job_waits_until_it_is_released_and_says_so() -> None:
    driver = Driver(pool_of(4), settings_of())
    (held,) = driver.submit(submission(urgency=0))
    driver.settle()
    assert state(driver, held) is JobState.SCHED
    assert driver.scheduler.wait_reason(held, driver.now).cause is WaitCause.HELD
    driver.feed(SetUrgency(held, 16))
    driver.settle()
    assert state(driver, held) is JobState.RUN


@pytest.mark.parametrize(
    ("scheme", "status", "runs"),
    [
        ("afterok", 0, True),
        ("afterok", 256, False),
        ("afternotok", 256, True),
        ("afternotok", 0, False),
        ("afterany", 256, True),
        ("afterstart", 256, True),
    ],
)
def test_a_dependency_releases_a_job_or_ends_it(scheme: str, status: int, runs: bool) -> None:
    driver = Driver(pool_of(4), settings_of())
    driver.backend.script_for = lambda place, _assignment: MemberScript(
        runs_s=5, status=status if place.job == first else 0
    )
    (first,) = driver.submit(submission())
    (second,) = driver.submit(submission(dependencies=after(scheme, first)))
    assert state(driver, second) is JobState.DEPEND
    driver.run()
    assert ("alloc" in driver.names(second)) == runs
    if not runs:
        notes = [event.context.get("note", "") for event in driver.logs[second] if event.name == "exception"]
        assert "can never be satisfied" in str(notes)


def test_unsatisfiable_dependencies_are_refused_in_the_words_of_flux() -> None:
    driver = Driver(pool_of(4), settings_of())
    with pytest.raises(Conflict, match=r"dependency afterok:.*: no such job"):
        driver.submit(submission(dependencies=after("afterok", 12345)))
    with pytest.raises(BadRequest, match="unknown dependency scheme"):
        driver.submit(submission(dependencies=[{"scheme": "never", "value": "1"}]))
    with pytest.raises(BadRequest, match="invalid job id"):
        driver.submit(submission(dependencies=[{"scheme": "afterok", "value": "!"}]))
    assert not driver.scheduler.jobs


@pytest.mark.parametrize("scheme", ["afterany", "afterok", "afternotok", "after"])
def test_a_job_can_be_cancelled_together_with_one_that_depends_on_it(scheme: str) -> None:
    driver = Driver(pool_of(1), settings_of("easy"), runs_s=lambda _job: 10)
    first, waiting = driver.submit(submission(), submission())
    (behind,) = driver.submit(submission(dependencies=after(scheme, waiting)))
    (last,) = driver.submit(submission(dependencies=after("afterany", behind)))
    driver.settle()
    driver.feed(Cancel((waiting, behind), "both"))
    driver.run()
    assert driver.names(behind).count("exception") == 1
    assert {state(driver, job) for job in (first, waiting, behind, last)} == {JobState.INACTIVE}
    assert driver.starts.keys() == {first, last}


def test_singletons_can_be_cancelled_together() -> None:
    driver = Driver(pool_of(1), settings_of("easy"), runs_s=lambda _job: 10)
    asked = {"dependencies": [{"scheme": "singleton", "value": ""}], "job": {"name": "one"}}
    (busy,) = driver.submit(submission())
    driver.settle()
    jobs = driver.submit(*(submission(**asked) for _ in range(4)))
    driver.feed(Cancel(jobs[:3], "all but the last"))
    driver.run()
    assert driver.starts.keys() == {busy, jobs[3]}
    again = driver.submit(*(submission(**asked) for _ in range(2)))
    driver.run()
    assert [driver.starts[job] for job in again] == sorted(driver.starts[job] for job in again)


def test_a_job_can_be_cancelled_at_its_begin_time() -> None:
    driver = Driver(pool_of(1), settings_of("easy"))
    (job,) = driver.submit(submission(dependencies=[{"scheme": "begin-time", "value": "100.0"}]))
    driver.settle()
    driver.backend.advance(100.0)
    driver.feed(Cancel((job,), "enough"))
    assert state(driver, job) is JobState.INACTIVE
    assert "dependency-remove" not in driver.names(job)


def test_singletons_run_one_after_the_other() -> None:
    driver = Driver(pool_of(4), settings_of(), runs_s=lambda _job: 10)
    asked = {"dependencies": [{"scheme": "singleton", "value": ""}], "job": {"name": "one"}}
    numbers = driver.submit(*(submission(**asked) for _ in range(3)))
    driver.run()
    assert [driver.starts[number] for number in numbers] == [0, 10, 20]


def test_a_job_waits_for_its_begin_time() -> None:
    driver = Driver(pool_of(4), settings_of())
    (job,) = driver.submit(submission(dependencies=[{"scheme": "begin-time", "value": "100.0"}]))
    driver.settle()
    assert driver.scheduler.wait_reason(job, driver.now).cause is WaitCause.BEGIN_TIME
    driver.run()
    assert driver.starts[job] == 100


def test_a_request_that_can_never_run_is_refused_with_what_would_fit() -> None:
    driver = Driver(nodes_of(4, 2), settings_of())
    with pytest.raises(CanNeverRun) as refused:
        driver.submit(submission(nodes=9, cores=1))
    assert "9 nodes" in str(refused.value)
    assert "4 node" in str(refused.value)
    with pytest.raises(CanNeverRun, match="2 core"):
        driver.submit(submission(cores=3))
    assert not driver.scheduler.jobs


def test_a_submission_of_several_jobs_is_accepted_completely_or_not_at_all() -> None:
    driver = Driver(nodes_of(1, 2), settings_of())
    with pytest.raises(BadRequest, match=r"jobs\[1\]"):
        driver.submit(submission(), submission(cores=3), submission())
    assert not driver.scheduler.jobs


def test_the_same_key_is_the_same_submission() -> None:
    driver = Driver(nodes_of(1, 2), settings_of())
    one = driver.feed(Submit((submission(),), "key")).replies[0].value
    again = driver.feed(Submit((submission(),), "key")).replies[0].value
    assert one == again
    assert len(driver.scheduler.jobs) == 1


def test_a_stopped_queue_starts_nothing_and_a_disabled_one_accepts_nothing() -> None:
    queues = (QueueSettings("batch"), QueueSettings("debug", duration_max_s=60))
    driver = Driver(nodes_of(1, 2), Settings(queues=queues))
    driver.feed(QueueChange("batch", started=False, reason="maintenance"))
    (waits,) = driver.submit(submission())
    (runs,) = driver.submit(submission(queue="debug"))
    driver.settle()
    assert (state(driver, waits), state(driver, runs)) == (JobState.SCHED, JobState.RUN)
    assert driver.scheduler.wait_reason(waits, driver.now).message == "queue batch is stopped: maintenance"
    driver.feed(QueueChange("debug", enabled=False, reason="closed"))
    with pytest.raises(Conflict, match="job submission to debug is disabled: closed"):
        driver.submit(submission(queue="debug"))
    with pytest.raises(BadRequest, match="longer than the queue allows"):
        driver.submit(submission(queue="debug", duration_s=61))
    with pytest.raises(BadRequest, match=r"no such queue \(found 'none'; expected "):
        driver.submit(submission(queue="none"))
    driver.feed(QueueChange("batch", started=True))
    driver.settle()
    assert state(driver, waits) is JobState.RUN


def test_a_drained_node_gets_no_new_member_and_its_members_run_on() -> None:
    driver = Driver(nodes_of(2, 1), settings_of("easy"), runs_s=lambda _job: 50)
    (first,) = driver.submit(submission())
    driver.settle()
    node = driver.scheduler.jobs[first].members[f"{first}/1/0"].node
    driver.feed(Drain((node,), "bad DIMM"))
    gang, single = driver.submit(submission(nodes=2), submission())
    driver.settle()
    assert [state(driver, job) for job in (first, gang, single)] == [
        JobState.RUN,
        JobState.SCHED,
        JobState.RUN,
    ]
    driver.run_until(200)
    assert state(driver, gang) is JobState.SCHED
    driver.feed(Undrain((node,)))
    driver.run()
    assert state(driver, gang) is JobState.INACTIVE


def test_an_overrun_holds_its_units_and_the_promise_behind_it_slips_with_the_cause() -> None:
    driver = Driver(pool_of(1), settings_of("easy"))
    driver.backend.script_for = lambda place, _assignment: MemberScript(
        500 if place.job == late else 1, end_delay_s=400.0
    )
    (late,) = driver.submit(submission(duration_s=100))
    (behind,) = driver.submit(submission(duration_s=10))
    driver.run_until(99)
    job = driver.scheduler.jobs[behind]
    assert job.forecast is not None
    assert job.forecast.start_at == 100
    driver.run_until(114)
    driver.plan()
    driver.run_until(300)
    driver.plan()
    slips = [event for event in driver.logs[behind] if event.name == "promise" and "cause" in event.context]
    assert slips
    assert "runs past its limit; its end is unknown" in str(slips[0].context["cause"])
    blockers = driver.scheduler.wait_reason(behind, driver.now).blockers
    blocker = WaitBlocker(encode_jobid(late), late, 400.0, has_overrun=True, namespace="me", title="true")
    assert blockers == (blocker,)


def test_a_forecast_that_slips_names_the_event_although_a_cycle_without_forecasts_ran_first() -> None:
    driver = Driver(pool_of(2), settings_of("easy"), runs_s=lambda _job: 1000)
    _, _, behind, last = driver.submit(*(submission(cores=2, duration_s=1000) for _ in range(4)))
    driver.run_until(5)
    driver.feed(SetUrgency(last, 20))
    driver.settle()
    (slip,) = (event for event in driver.logs[behind] if event.name == "promise")
    assert (slip.context["previous"], slip.context["start"]) == (2000.0, 3000.0)
    assert slip.context["cause"] == f"the urgency of {encode_jobid(last)} was set to 20"
    driver.submit(submission(urgency=25, cores=2, duration_s=1000))
    driver.settle()
    slips = [event for event in driver.logs[behind] if event.name == "promise"]
    assert [event.context["cause"] for event in slips[1:]] == ["jobs before it take longer than planned"]


def test_a_job_without_an_end_blocks_no_job_that_fits_beside_it() -> None:
    driver = Driver(pool_of(2), settings_of("easy"))
    driver.backend.script_for = lambda place, _assignment: MemberScript(
        runs_s=1e9 if place.job == endless else 5
    )
    (endless,) = driver.submit(submission(duration_s=0))
    large, small = driver.submit(submission(cores=2), submission(cores=1))
    driver.run_until(1)
    assert driver.scheduler.jobs[large].forecast is None
    assert state(driver, small) is JobState.RUN


@pytest.mark.parametrize(
    ("policy", "again"), [(Requeue.NEVER, False), (Requeue.NODE_FAILURE, True), (Requeue.ALWAYS, True)]
)
def test_a_job_is_requeued_after_a_node_failure_only_by_its_policy(policy: Requeue, again: bool) -> None:
    driver = Driver(nodes_of(2, 1), settings_of(), runs_s=lambda _job: 10)
    (job,) = driver.submit(submission(requeue=policy))
    driver.settle()
    node = driver.scheduler.jobs[job].members[f"{job}/1/0"].node
    driver.feed(driver.backend.remove_node(node))
    driver.run()
    assert driver.names(job).count("alloc") == (2 if again else 1)
    assert ("requeue" in driver.names(job)) == again


def test_a_job_that_fails_by_itself_is_not_requeued() -> None:
    driver = Driver(nodes_of(1, 1), settings_of())
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1, status=256)
    (job,) = driver.submit(submission(requeue=Requeue.ALWAYS))
    driver.run()
    assert driver.names(job).count("alloc") == 1


def test_a_cancelled_job_is_over_when_its_last_member_is() -> None:
    driver = Driver(nodes_of(2, 1), settings_of())
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9, end_delay_s=3.0)
    (job,) = driver.submit(submission(nodes=2, duration_s=0))
    driver.settle()
    driver.feed(Cancel((job,), "enough"))
    driver.run_until(1)
    assert state(driver, job) is JobState.CLEANUP
    driver.run_until(4)
    assert state(driver, job) is JobState.INACTIVE
    assert driver.names(job)[-5:] == ["exception", "finish", "release", "free", "clean"]


def test_the_units_of_an_ended_task_are_free_at_once() -> None:
    driver = Driver(nodes_of(2, 1), settings_of())
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=5 if assignment.index == 0 else 50
    )
    (gang,) = driver.submit(submission(nodes=2))
    (small,) = driver.submit(submission())
    driver.run()
    assert driver.starts[small] == 5
    releases = [event.context for event in driver.logs[gang] if event.name == "release"]
    assert releases == [{"ranks": "0", "final": False}, {"ranks": "all", "final": True}]


@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 30), st.integers(0, 10)), min_size=1, max_size=12
    ),
    policy=st.sampled_from(["fcfs", "easy", "hybrid:2", "conservative"]),
)
def test_replay_of_the_recorded_facts_gives_the_same_decisions(
    jobs: list[tuple[int, int, int]], policy: str
) -> None:
    runs: dict[int, float] = {}
    calls: list[Callable[[Scheduler], Step]] = []
    handle, plan, prove = Scheduler.handle, Scheduler.plan, Scheduler.prove

    def noted_handle(scheduler: Scheduler, inputs: Sequence[Fact | Command], now: float) -> Step:
        inputs = tuple(inputs)
        calls.append(lambda again: handle(again, inputs, now))
        return handle(scheduler, inputs, now)

    def noted_plan(
        scheduler: Scheduler, now: float, *, deep: bool, hurry: Callable[[], bool]
    ) -> Generator[None, None, Step]:
        calls.append(lambda again: run_cycle(plan(again, now, deep=deep)))
        return plan(scheduler, now, deep=deep, hurry=hurry)

    def noted_prove(
        scheduler: Scheduler, now: float, enough: Callable[[], bool]
    ) -> Generator[None, None, Step]:
        calls.append(lambda again: run_cycle(prove(again, now)))
        return prove(scheduler, now, enough)

    with (
        patch.object(Scheduler, "handle", noted_handle),
        patch.object(Scheduler, "plan", noted_plan),
        patch.object(Scheduler, "prove", noted_prove),
    ):
        driver = Driver(nodes_of(3, 2), settings_of(policy), runs_s=lambda job: runs[job])
        for cores, limit_s, wait_s in jobs:
            (number,) = driver.submit(submission(slots=cores, duration_s=limit_s))
            runs[number] = max(1, limit_s - wait_s)
            driver.run_until(driver.now + wait_s)
        driver.run()
    again = scheduler_from(driver.settings, Recorded(), 0.0)
    assert [call(again) for call in calls] == driver.steps


def run_cycle(cycle: Generator[None, None, Step]) -> Step:
    while (step := advance_once(cycle)) is None:
        pass
    return step


@given(
    jobs=st.lists(st.tuples(st.integers(1, 8), st.integers(1, 40)), min_size=2, max_size=12),
    depth=st.integers(1, 4),
)
def test_within_a_pass_nothing_delays_a_reservation_made_earlier_in_it(
    jobs: list[tuple[int, int]], depth: int
) -> None:
    """With the running jobs ending as planned, every reserved job can start by its reservation."""
    policy = settings_of(f"hybrid:{depth}")
    limits: dict[int, float] = {}
    driver = Driver(pool_of(8), policy, runs_s=lambda job: limits[job], deep=False)
    for cores, limit_s in jobs:
        (number,) = driver.submit(submission(cores=cores, duration_s=limit_s))
        limits[number] = limit_s
    driver.settle()
    promised = driver.scheduler.reservations()
    driver.run()
    for number, start in promised.items():
        assert driver.starts[number] <= start


def test_bad_input_changes_nothing() -> None:
    driver = Driver(nodes_of(1, 1), settings_of())
    before = len(driver.changes)
    for command in (
        SetUrgency(5, 16),
        SetUrgency(5, 99),
        Drain(("nowhere",)),
        Undrain(("node0",)),
        Submit(()),
    ):
        reply = driver.feed(command).replies[0]
        assert isinstance(reply.error, PenstockError)
    assert len(driver.changes) == before
    assert parse_backfill("hybrid:8").depth == 8
    with pytest.raises(BadRequest, match="no such queue policy"):
        parse_backfill("easy:3")


def test_facts_about_unknown_objects_are_harmless() -> None:
    driver = Driver(nodes_of(1, 1), settings_of())
    before = len(driver.changes)
    driver.feed(NodeGone("nowhere"), MemberStatus("nobody", Phase.ENDED, 0.0))
    assert len(driver.changes) == before


@pytest.mark.parametrize("leaves", [lambda job: SetUrgency(job, 0), lambda job: Cancel((job,))])
def test_a_job_behind_a_reservation_starts_when_that_reservation_is_dropped(
    leaves: Callable[[int], SetUrgency | Cancel],
) -> None:
    driver = Driver(nodes_of(1, 4), settings_of("easy"))
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e6)
    driver.submit(submission(cores=2, duration_s=1000))
    large, long = driver.submit(submission(cores=4, duration_s=100), submission(cores=2, duration_s=5000))
    driver.settle()
    assert state(driver, long) is JobState.SCHED
    driver.feed(leaves(large))
    driver.settle()
    assert state(driver, long) is JobState.RUN


def test_a_failed_shape_of_another_queue_does_not_unblock_an_fcfs_queue() -> None:
    queues = (QueueSettings("a", parse_backfill("easy")), QueueSettings("b", parse_backfill("fcfs")))
    driver = Driver(nodes_of(1, 4), Settings(queues=queues))
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e6)
    driver.submit(submission(cores=3, duration_s=100, queue="a"))
    driver.settle()
    _, first, second = driver.submit(
        submission(cores=2, duration_s=60, queue="a"),
        submission(cores=2, duration_s=60, queue="b"),
        submission(cores=1, duration_s=50, queue="b"),
    )
    driver.settle()
    assert [state(driver, job) for job in (first, second)] == [JobState.SCHED, JobState.SCHED]


def test_a_member_that_waits_gets_the_units_of_a_member_of_its_job_that_has_ended() -> None:
    driver = Driver(nodes_of(2, 1), settings_of("easy"))
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=5, refused="not here" if assignment.node == "node0" else ""
    )
    (number,) = driver.submit(submission(slots=2, duration_s=1000))
    driver.run_until(60)
    assert number not in driver.scheduler.jobs
    assert driver.names(number)[-1] == "clean"
    assert [event.context["status"] for event in driver.logs[number] if event.name == "finish"] == [0]


def test_a_member_that_no_node_accepts_ends_its_job_though_another_one_found_a_node_later() -> None:
    driver = Driver(nodes_of(3, 1), settings_of("easy"))

    def refused(index: int, node: str) -> bool:
        return index == 0 or (index == 1 and node != "node2")  # Member 2 runs there.

    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=20, refused="not here" if refused(assignment.index, assignment.node) else ""
    )
    (number,) = driver.submit(submission(slots=3, duration_s=1000))
    driver.run_until(60)
    ended = [one.index for one in driver.scheduler.jobs[number].members.values() if one.ended_at is not None]
    assert ended == [1, 2]
    driver.run_until(driver.settings.gang_repair_timeout_s + 60)
    assert number not in driver.scheduler.jobs
    (note,) = (
        str(event.context["note"])
        for event in driver.logs[number]
        if event.name == "exception" and event.context["severity"] == 0
    )
    assert note == "1 of 3 members has no node: not here"
