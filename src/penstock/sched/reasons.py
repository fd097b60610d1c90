"""Why a job waits, in one sentence and in facts. Every pending job has a reason.

What can be read off the job itself (held, depends, its queue is stopped) is told first. Otherwise the
engine is asked whether it would fit now if nobody had a reservation: if not, the reason is what is missing
and who has it until when; if it would, it is behind somebody whose start it must not delay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.engine.allocation import Blocker, FunnelStage
from penstock.engine.request import Request
from penstock.model.job import URGENCY_HOLD, JobState
from penstock.model.jobid import encode_jobid
from penstock.sched.job import Job, MemberPhase
from penstock.sched.queue import QueueEntry
from penstock.sched.state import SchedulerState

__all__ = ["Why", "jobs_ahead", "why", "why_late"]


_APART: Final = re.compile(r"apart/[^/]*/(.+?): \d+ of \d+")
_APART_NOWHERE: Final = re.compile(r"asks for apart/[^/]*/(.+?) in a place that has none")


@dataclass(frozen=True, slots=True)
class Why:
    kind: str  # held, depends, begin-time, assembling, queue-stopped, never, resources, behind, unplanned, ""
    sentence: str
    clause: str = ""
    steps: tuple[FunnelStage, ...] = ()
    blockers: tuple[tuple[str, int | None, float | None], ...] = ()  # who, which job, until when


def why(state: SchedulerState, job: Job, now: float, memo: dict[int, Why] | None = None) -> Why:
    """The reason of one job. With a `memo` for one look at the queue, equal requests are asked once."""
    told = _by_itself(state, job)
    if told is not None:
        return told
    if job.state is not JobState.SCHED:
        return Why("", "")
    found = _asked_once(state, job.shape, job.spec.request, now, memo)
    return _behind(state, state.pending.entry(job.id)) if found.kind == "behind" else found


def why_late(state: SchedulerState, entry: QueueEntry, now: float, memo: dict[int, Why]) -> Why:
    """The reason of a member that waits by itself, because its job has begun."""
    shape = state.pending.shape(entry)
    found = _asked_once(state, shape, state.shapes.request(shape), now, memo)
    return _behind(state, entry) if found.kind == "behind" else found


def _asked_once(
    state: SchedulerState, shape: int, request: Request, now: float, memo: dict[int, Why] | None
) -> Why:
    found = memo.get(shape) if memo is not None else None
    if found is None:
        found = _asked(state, request, now)
        if memo is not None:
            memo[shape] = found
    return found


def _by_itself(state: SchedulerState, job: Job) -> Why | None:
    if job.state is JobState.RUN and (job.incomplete_reason or job.incomplete_since is not None):
        missing = sum(1 for member in job.members.values() if member.phase is MemberPhase.WAITING)
        return Why("incomplete", job.incomplete_reason or f"{missing} of its members have no place yet")
    if not job.state.is_pending:
        return Why("", "")
    if not job.is_assembled:
        workload = state.workloads.get(job.workload)
        there = sum(1 for member in job.members.values() if member.is_ready)
        return Why("assembling", f"{there} of {workload.size if workload else '?'} members are there")
    if job.open_dependencies:
        return Why("depends", f"it depends on {', '.join(sorted(job.open_dependencies))}")
    if job.is_begin_waiting:
        return Why("begin-time", "it asked to begin later")
    if job.urgency == URGENCY_HOLD:
        return Why("held", "it is held; `penstock release` lets it go")
    queue = state.queue_state(job.queue)
    if not queue.started:
        reason = f": {queue.reason_stopped}" if queue.reason_stopped else ""
        return Why("queue-stopped", f"queue {job.queue} is stopped{reason}")
    if job.unsatisfiable_reason:
        return Why("never", f"it can never run here: {job.unsatisfiable_reason}", job.unsatisfiable_reason)
    return None


def _asked(state: SchedulerState, request: Request, now: float) -> Why:
    state.cluster.settle()
    reason = state.cluster.engine.explain(request, int(now))
    if reason is None:
        return Why("behind", "")
    blockers = tuple(_blocker(state, blocker, now) for blocker in reason.blockers)
    clause = _in_words(reason.clause)
    return Why("resources", _sentence(clause, blockers), clause, reason.stages, blockers)


def _blocker(state: SchedulerState, blocker: Blocker, now: float) -> tuple[str, int | None, float | None]:
    """Jobs by their id, others by their name; an end that has passed is not known."""
    number = blocker.job
    if number is None:
        hold = state.cluster.hold(blocker.external_usage)
        return (hold.name if hold is not None else "") or blocker.external_usage, None, None
    job = state.jobs.get(number)
    end_at = job.end_at if job is not None else None
    return encode_jobid(number), number, end_at if end_at is not None and end_at > now else None


def _in_words(clause: str) -> str:
    """Kinds that only keep members apart say whom; how many units there are says nothing to people."""
    clause = _APART_NOWHERE.sub(r"finds no place: those with \1 are kept apart", clause)
    return _APART.sub(r"those with \1 are kept apart", clause)


def _sentence(clause: str, blockers: tuple[tuple[str, int | None, float | None], ...]) -> str:
    if not blockers:
        return f"it {clause}"
    names = ", ".join(who for who, _, _ in blockers[:3])
    more = f" and {len(blockers) - 3} more" if len(blockers) > 3 else ""
    return f"it {clause}; in the way: {names}{more}"


def _behind(state: SchedulerState, entry: QueueEntry | None) -> Why:
    """It would fit, but somebody before it has the first right to what is free."""
    before = [
        (start, number)
        for number, start in state.reservations.items()
        if (other := state.pending.entry(number)) is not None and entry is not None and other < entry
    ]
    if not before:
        return Why("unplanned", "the next pass will look at it")
    start, number = min(before)
    name = encode_jobid(number)
    return Why(
        "behind",
        f"starting it now would delay {name}, which is before it",
        f"behind {name}",
        blockers=((name, number, start),),
    )


def jobs_ahead(state: SchedulerState) -> dict[int, int]:
    """For every job in the queue, how many are before it."""
    return {entry.job: place for place, entry in enumerate(state.pending.in_order()) if not entry.member}
