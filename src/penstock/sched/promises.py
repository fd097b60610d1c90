"""Forecasts and promises.

A forecast is the expected start of a pending job, replaced by every deep cycle. A promise keeps the first
expected start of a job, and the latest one that differs from it noticeably. A start that moves later by more
than a minute and a tenth of the wait is a slip, and is recorded with its cause.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.sched.cycle import CycleResult
from penstock.sched.forecast import PlannedStart, planned_of
from penstock.sched.job import Forecast, Job
from penstock.sched.records import Promise
from penstock.sched.state import SchedulerState, SlipCause

__all__ = ["FOREIGN_JOB_KEY", "update_forecasts"]

FOREIGN_JOB_KEY: Final = "cause_job"  # in the eventlog, for operators: a job of another namespace

_SLIP_S: Final = 60.0
_SLIP_SHARE: Final = 0.1


def update_forecasts(
    state: SchedulerState, cycle: CycleResult, starts: dict[int, PlannedStart], now: float, deep: bool
) -> None:
    """Sets the forecast of each planned job, and records promises that were made or have slipped.

    Where a job has a reservation and a forecast, the forecast is the more precise one: the last second of a
    job is partly used if it starts within a second, so a reservation begins and ends up to a second later.
    """
    extra_s = cycle.extra_s
    reserved = {entry.job: planned_of(allocation, True, extra_s) for entry, allocation in cycle.reserved}
    state.plans.reservations = {number: float(planned.start_s) for number, planned in reserved.items()}
    forecast_too = {
        number: replace(starts[number], is_reservation=True) for number in starts.keys() & reserved
    }
    fresh = {**starts, **reserved, **forecast_too}
    if deep:  # Without a forecast of their own, these are the best that is known.
        beyond = {entry.job: planned_of(found, False, extra_s) for entry, found in cycle.beyond_horizon}
        fresh = {**beyond, **fresh}
    for number, planned in fresh.items():
        _update_promise(state, state.jobs[number], float(planned.start_s), planned.is_reservation, now)
    if deep:
        for number in state.plans.planned_starts.keys() - fresh.keys():
            job = state.jobs.get(number)
            if job is not None:
                job.forecast = None
        state.plans.planned_starts = fresh
    else:
        state.plans.planned_starts.update(reserved)


def _update_promise(state: SchedulerState, job: Job, start: float, is_reservation: bool, now: float) -> None:
    if job.state is not JobState.SCHED:
        return
    job.forecast = Forecast(start, now, is_reservation)
    before = job.promise
    if before is None:
        job.promise = Promise(start, start, now, is_reservation)
        if is_reservation:
            state.journal.log(job, "promise", now, start=start)
        else:
            state.journal.touch(job)
        return
    tolerance = max(_SLIP_S, _SLIP_SHARE * (before.last_at - before.made_at))
    if start > before.last_at + tolerance:
        plans = state.plans
        cause = (
            plans.overrun_cause or plans.slip_cause or SlipCause("jobs before it take longer than planned")
        )
        context: dict[str, object] = {"cause": cause.text(job.owner)}
        if cause.job and cause.namespace != job.owner:
            context[FOREIGN_JOB_KEY] = encode_jobid(cause.job)
        state.journal.log(job, "promise", now, start=start, previous=before.last_at, **context)
    elif start >= before.last_at - tolerance and before.is_reservation == is_reservation:
        return
    job.promise = Promise(before.first_at, start, now, is_reservation)
    state.journal.touch(job)
