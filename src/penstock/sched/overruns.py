"""Jobs that run past their time limit, and when they are expected to end.

A limit that nobody enforces is an estimate, and a job that overruns it may go on for a second or for days. If
it were expected to end at once, a reservation behind it would begin in the next second, in every cycle, and
keep everything else from starting. Instead a job is expected to end at one of a series of times after its
limit, the next one whenever the last has passed, and in the end has no known end. Its allocation is booked
until then, so that reservations, backfill and forecasts follow.

The expected end follows from the limit and the time alone; nothing about it is recorded. Where a limit is
enforced, the end may take the grace period and a while; only after that the job counts as overrunning.
"""

from __future__ import annotations

from math import ceil
from typing import Final

from penstock.engine.planner import FOREVER
from penstock.sched.job import Job
from penstock.sched.settings import Settings
from penstock.sched.state import SchedulerState, SlipCause

__all__ = ["expected_end", "extend_overrun", "overrun_at"]

_BACKSTOP_S: Final = 10.0  # time after limit and grace in which the end of a job must have been reported
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_EXTENSIONS_S: Final = (
    *(minutes * _MINUTE_S for minutes in (1, 5, 15, 30)),
    *(hours * _HOUR_S for hours in (1, 2, 5, 10, 20, 50, 100)),
)


def expected_end(limit_at: float, now: float) -> float | None:
    """When a running job is expected to end: at its limit, or at the next extension. None: not known."""
    if now < limit_at:
        return limit_at
    return next((limit_at + more_s for more_s in _EXTENSIONS_S if limit_at + more_s > now), None)


def overrun_at(limit_at: float, settings: Settings) -> float:
    """From when on a running job counts as overrunning."""
    return limit_at + settings.grace_s + _BACKSTOP_S


def extend_overrun(state: SchedulerState, job: Job, now: float) -> float | None:
    """Books the allocation of an overrunning job until its expected end, at the cost of that job.

    Returns when the end must be moved again; None: never.
    """
    if job.end_at is None or now < overrun_at(job.end_at, state.settings):
        return None
    until = expected_end(job.end_at, now)
    holder = state.cluster.engine.jobs.get(job.id)
    end = FOREVER if until is None else ceil(until)
    if holder is not None and holder.end != end:
        state.cluster.engine.set_end(job.id, None if until is None else end)
        text = " runs past its limit; its end is unknown"
        state.plans.overrun_cause = SlipCause("", job.id, text, job.owner)
        state.queue.mark_dirty()  # Reservations behind it move, and shorter jobs fit before them.
    return until
