"""Why a job waits, in one sentence and in facts. Every pending job has a reason.

What can be read off the job itself (held, depends, its queue is stopped) is told first. Otherwise the
engine is asked whether it would fit now if nobody had a reservation: if not, the reason is what is missing
and who has it until when; if it would, it is behind somebody whose start it must not delay.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from penstock.engine.allocation import Blocker, Step
from penstock.engine.request import Request
from penstock.model.job import URGENCY_HOLD, JobState
from penstock.model.jobid import encode_jobid, parse_jobid
from penstock.sched.job import Job, MemberPhase
from penstock.sched.queue import Entry
from penstock.sched.state import Core

__all__ = ["Why", "jobs_ahead", "why", "why_late"]


_APART: Final = re.compile(r"apart/[^/]*/(.+?): \d+ of \d+")
_APART_NOWHERE: Final = re.compile(r"asks for apart/[^/]*/(.+?) in a place that has none")


@dataclass(frozen=True, slots=True)
class Why:
    kind: str  # held, depends, begin-time, assembling, queue-stopped, never, resources, behind, unplanned, ""
    sentence: str
    clause: str = ""
    steps: tuple[Step, ...] = ()
    blockers: tuple[tuple[str, int | None, float | None], ...] = ()  # who, which job, until when


def why(core: Core, job: Job, now: float, memo: dict[int, Why] | None = None) -> Why:
    """The reason of one job. With a `memo` for one look at the queue, equal requests are asked once."""
    told = _by_itself(core, job)
    if told is not None:
        return told
    if job.state is not JobState.SCHED:
        return Why("", "")
    found = _asked_once(core, job.shape, job.spec.request, now, memo)
    return _behind(core, core.pending.entry(job.id)) if found.kind == "behind" else found


def why_late(core: Core, entry: Entry, now: float, memo: dict[int, Why]) -> Why:
    """The reason of a member that waits by itself, because its job has begun."""
    shape = core.pending.shape(entry)
    found = _asked_once(core, shape, core.shapes.request(shape), now, memo)
    return _behind(core, entry) if found.kind == "behind" else found


def _asked_once(core: Core, shape: int, request: Request, now: float, memo: dict[int, Why] | None) -> Why:
    found = memo.get(shape) if memo is not None else None
    if found is None:
        found = _asked(core, request, now)
        if memo is not None:
            memo[shape] = found
    return found


def _by_itself(core: Core, job: Job) -> Why | None:
    if job.state is JobState.RUN and (job.broken or job.incomplete_since is not None):
        missing = sum(1 for member in job.members.values() if member.phase is MemberPhase.WAITING)
        return Why("broken", job.broken or f"{missing} of its members have no place yet")
    if not job.state.is_pending:
        return Why("", "")
    if not job.is_assembled:
        work = core.works.get(job.work)
        there = sum(1 for member in job.members.values() if member.is_ready)
        return Why("assembling", f"{there} of {work.size if work else '?'} members are there")
    if job.open_dependencies:
        return Why("depends", f"it depends on {', '.join(sorted(job.open_dependencies))}")
    if job.is_begin_waiting:
        return Why("begin-time", "it asked to begin later")
    if job.urgency == URGENCY_HOLD:
        return Why("held", "it is held; `penstock release` lets it go")
    queue = core.queue_state(job.queue)
    if not queue.started:
        reason = f": {queue.reason_stopped}" if queue.reason_stopped else ""
        return Why("queue-stopped", f"queue {job.queue} is stopped{reason}")
    if job.is_parked:
        return Why("never", f"it can never run here: {job.is_parked}", job.is_parked)
    return None


def _asked(core: Core, request: Request, now: float) -> Why:
    core.cluster.settle()
    reason = core.cluster.engine.explain(request, int(now))
    if reason is None:
        return Why("behind", "")
    blockers = tuple(_blocker(core, blocker, now) for blocker in reason.blockers)
    clause = _in_words(reason.clause)
    return Why("resources", _sentence(clause, blockers), clause, reason.steps, blockers)


def _blocker(core: Core, blocker: Blocker, now: float) -> tuple[str, int | None, float | None]:
    """Jobs by their id, others by their name; an end that has passed is not known."""
    if not blocker.who.startswith("job "):
        hold = core.cluster.hold(blocker.who)
        return (hold.name if hold is not None else "") or blocker.who, None, None
    number = parse_jobid(blocker.who.removeprefix("job "))
    job = core.jobs.get(number)
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


def _behind(core: Core, entry: Entry | None) -> Why:
    """It would fit, but somebody before it has the first right to what is free."""
    before = [
        (start, number)
        for number, start in core.reservations.items()
        if (other := core.pending.entry(number)) is not None and entry is not None and other < entry
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


def jobs_ahead(core: Core) -> dict[int, int]:
    """For every job in the queue, how many are before it."""
    return {entry.job: place for place, entry in enumerate(core.pending.in_order()) if not entry.member}
