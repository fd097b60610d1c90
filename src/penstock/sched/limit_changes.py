"""A time limit that its owner changes while the job of the workload runs.

The end of a job is its start plus its limit. A workload that reports another limit, or another deadline,
moves it: the allocation is booked until then, and the backend gets the new end. What the members of a group
declare changes as well when members leave, so a group follows a later end only; a job that has had one member
follows every change. A changed limit of a job that waits counts when it starts.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from penstock.engine.planner import FOREVER
from penstock.model.job import JobState
from penstock.protocol.facts import WorkloadSet
from penstock.protocol.intents import Place
from penstock.sched.job import Job
from penstock.sched.member_states import MemberPhase
from penstock.sched.starting import assignment_of
from penstock.sched.state import SchedulerState, SlipCause

__all__ = ["follow_limit", "restore_end", "with_limit_of"]

_CONFIRMED = (MemberPhase.PLACED, MemberPhase.RUNNING)


def follow_limit(
    state: SchedulerState, job: Job, before: WorkloadSet, after: WorkloadSet, now: float
) -> None:
    """Moves the end of a running job whose workload reports another limit."""
    is_changed = (before.limit_s, before.deadline_at) != (after.limit_s, after.deadline_at)
    if not is_changed or job.state is not JobState.RUN or job.is_ending or job.placed_at is None:
        return
    ends = [] if after.limit_s is None else [job.placed_at + after.limit_s]
    if after.deadline_at is not None:
        ends.append(after.deadline_at)
    end_at = min(ends, default=None)
    is_later = job.end_at is not None and end_at is not None and end_at > job.end_at
    is_single = len(job.members) == 1 and not job.past_members
    if end_at == job.end_at or not (is_later or is_single):
        return
    job.end_at = end_at
    limit_s = None if end_at is None else max(1, round(end_at - job.placed_at))
    job.spec = replace(job.spec, limit_s=limit_s, is_limit_enforced=after.is_limit_enforced)
    state.journal.log(job, "resource-update", now, expiration=end_at or 0)
    _book_until(state, job, None if end_at is None else max(ceil(end_at), int(now) + 1))
    if end_at is not None:
        state.wake(end_at, job.id)
    state.plans.slip_cause = SlipCause("the time limit of ", job.id, " was changed", job.owner)
    state.queue.mark_dirty()
    # Placing a member again where it is has one effect: the backend learns of the end that it enforces.
    placed = tuple(assignment_of(one) for one in job.live_members() if one.phase in _CONFIRMED)
    if placed:
        number, spec = state.intents.next_number(), job.ownership.backend_spec(job)
        state.intents.open(Place(number, job.id, job.workload, placed, end_at, len(job.members), spec))


def with_limit_of(fact: WorkloadSet, before: WorkloadSet | None) -> WorkloadSet:
    """A workload with the limit that it declared before."""
    if before is None:
        return fact
    return replace(
        fact,
        limit_s=before.limit_s,
        deadline_at=before.deadline_at,
        enforced_by_backend=before.enforced_by_backend,
        is_limit_enforced=before.is_limit_enforced,
    )


def restore_end(state: SchedulerState, job: Job) -> None:
    """Books a restored allocation until the end of its job: allocations are recorded as they were made."""
    holder = state.cluster.engine.jobs.get(job.id)
    end = FOREVER if job.end_at is None else ceil(job.end_at)
    if holder is not None and holder.end < end:
        _book_until(state, job, None if job.end_at is None else end)


def _book_until(state: SchedulerState, job: Job, end: int | None) -> None:
    holder = state.cluster.engine.jobs.get(job.id)
    if holder is not None:
        latest = max(part.span.start for part in holder.parts.values())
        state.cluster.engine.set_end(job.id, None if end is None else max(end, latest + 1))
