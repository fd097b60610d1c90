"""Works and members as a world tells of them: groups that assemble, members that come, go, fail and return.

A work becomes one job with its first member. It assembles once, when as many members are ready as it wants;
from then on a member that comes is placed by itself (`extend`), in its own turn. A member that a node
refused is placed elsewhere, and not on that node again until the node changes. If a group that has begun
cannot be made whole in time, members that somebody would make again are taken away, and the job says that
it is broken. What is observed of a member whose job is over counts as use by others until it ends.
"""

from __future__ import annotations

import signal
from typing import Final

from penstock.engine.request import Request
from penstock.model.constraint import NodeSet, Not
from penstock.model.job import URGENCY_HOLD, JobState
from penstock.protocol.facts import HoldSet, MemberSet, Observed, Outcome, Phase, Settled, WorkSet
from penstock.protocol.intents import End, How, Place, Retract
from penstock.sched.commands import add_job
from penstock.sched.job import Job, Member, MemberPhase
from penstock.sched.jobspec import MemberAsk, group_of, in_queue, member_request, placement_of, spec_of_work
from penstock.sched.lifecycle import (
    MORE,
    NODE_FAILURE,
    TIMEOUT,
    UNKNOWN_END,
    back_to_waiting,
    member_ended,
    node_failed,
    open_intent,
    raise_exception,
    requeue_work,
    settle_member,
    start_over,
)
from penstock.sched.nodes import hold_gone, hold_set
from penstock.sched.queue import Entry, order_key
from penstock.sched.records import JobNew
from penstock.sched.state import Core

__all__ = [
    "LEFT_OVER",
    "assemble",
    "assemble_by",
    "enqueue_late",
    "member_gone",
    "member_set",
    "observed",
    "settled",
    "unwind",
    "vanished",
    "work_gone",
    "work_set",
]

LEFT_OVER: Final = "left over: "  # holds of members whose job is over
_SIGNALLED: Final = "signal"


# Groups


def work_set(core: Core, fact: WorkSet) -> None:
    before = core.works.get(fact.work)
    core.works[fact.work] = fact
    job = core.jobs.get(core.job_of_work.get(fact.work, 0))
    if job is not None and before != fact:
        core.counting[job.id] = None


def member_set(core: Core, fact: MemberSet, now: float) -> None:
    work = core.works.get(fact.work)
    if work is None:
        return  # Its work has not been told, or is gone.
    if _is_given_up(core, fact):
        return
    job = core.jobs.get(core.job_of_member.get(fact.member, 0))
    if job is not None and job.members[fact.member].phase is MemberPhase.ENDED:
        _part_with(core, job, fact.member)
        job = None
    if job is not None and job.work != fact.work:
        return  # It has come with another group, and stays there while that job lasts.
    job = job or core.jobs.get(core.job_of_work.get(fact.work, 0))
    if job is not None and job.is_ending and fact.member not in job.members:
        core.deferred.setdefault(fact.work, {})[fact.member] = fact
        return
    if job is None:
        job = _new_job(core, work, now)
    member = job.members.get(fact.member)
    if member is None:
        member = Member(fact.member, fact.index, seen_at=now, name=fact.name)
        job.members[fact.member] = member
        core.job_of_member[fact.member] = job.id
        core.journal.touch(job)
    ask = MemberAsk(fact.amounts, fact.constraint)
    has_changed = (member.ask, member.is_ready) != (ask, fact.ready)
    member.ask, member.is_ready, member.is_recreated = ask, fact.ready, fact.recreated
    member.name = fact.name
    if member.phase.is_live:  # It is on its way to a node, and may ask for more than it was given.
        _note_use(core, member, fact.amounts)
    if job.state is JobState.DEPEND or (has_changed and job.state.is_pending):
        core.counting[job.id] = None
    elif job.state is JobState.RUN and member.phase is MemberPhase.WAITING:
        enqueue_late(core, job, member)


def _is_given_up(core: Core, fact: MemberSet) -> bool:
    """Whether a member waits for somebody to act. One who comes new does that, for all who wait."""
    known = core.given_up.get(fact.work)
    if known is None:
        return False
    if fact.member in known.record.members:
        core.waits_on(fact)
        return True
    core.returning.extend(core.take_up(fact.work).values())
    return False


def _part_with(core: Core, job: Job, key: str) -> None:
    """It was taken from the job while it waited, and waits again: as somebody who has never been there."""
    del job.members[key], core.job_of_member[key]
    core.journal.touch(job)


def _new_job(core: Core, work: WorkSet, now: float) -> Job:
    number = core.ids.next(now)
    plain: dict[str, object] = {"work": work.work, "name": work.name, "urgency": work.urgency}
    spec, _ = spec_of_work(work, [], core.settings, work.limit_s)
    job = Job(number, work.owner, spec, plain, now, work.work, queue=spec.queue, urgency=work.urgency)
    job.class_value = work.class_value
    job.is_assembled = False
    core.journal.add(JobNew(number, work.owner, work.name, now, plain, work.work))
    core.journal.log(job, "submit", now, userid=work.owner, urgency=work.urgency, flags=0, version=1)
    core.journal.log(job, "validate", now)
    core.job_of_work[work.work] = number
    add_job(core, job, now)
    return job


def assemble_by(job: Job, work: WorkSet) -> float | None:
    """When a group that is not whole is given up: counted by our own clock, from its last member on."""
    if work.assemble_s is None:
        return None
    return max((member.seen_at for member in job.members.values()), default=job.seen_at) + work.assemble_s


def assemble(core: Core, job: Job, now: float) -> None:
    """Counts the members of a work; when enough are ready, the group is whole and queues."""
    work = core.works.get(job.work)
    if work is None or not job.state.is_pending:
        return
    ready = [member for member in job.members.values() if member.is_ready and member.ask is not None]
    if len(ready) < max(work.size, 1):
        if job.is_assembled:  # It was whole, and is not any more: it waits aside until it is again.
            job.is_assembled = False
            core.leave(job.id)
            core.journal.touch(job)
        core.tell(job, "assembling", f"{len(ready)} of {max(work.size, 1)} members are there")
        until = assemble_by(job, work)
        if until is not None:
            core.wake(until, job.id)
        return
    asks = [member.ask for member in ready if member.ask is not None]
    job.spec, groups = spec_of_work(work, asks, core.settings, _limit(work, now))
    for member, group in zip(ready, groups, strict=True):
        member.group = group
    if not job.is_assembled and job.state is JobState.DEPEND:
        core.journal.log(job, "assemble", now, members=len(ready))
    job.is_assembled = True
    core.journal.touch(job)
    core.lately[job.id] = None


def _limit(work: WorkSet, now: float) -> int | None:
    """How long it may run at most: its own limit, or what is left until the end of the whole."""
    if work.deadline_at is None:
        return work.limit_s
    left_s = max(1, int(work.deadline_at - now))
    return left_s if work.limit_s is None else min(left_s, work.limit_s)


def enqueue_late(core: Core, job: Job, member: Member) -> None:
    """A member without a place, of a job that has begun, queues by itself."""
    if not member.is_ready or job.urgency == URGENCY_HOLD:
        return
    shape = core.shapes.number(_late_request(core, job, member))
    key = order_key(job.urgency, job.class_value, member.seen_at or job.seen_at, job.id, 1)
    core.pending.add(Entry(key, job.id, member.key), job.queue, shape)
    core.disturb()


def _late_request(core: Core, job: Job, member: Member) -> Request:
    """What it asks for by itself, on any node that has not refused it."""
    extra = Not((NodeSet(member.refused_by),)) if member.refused_by else None
    work = core.works.get(job.work)
    placement = job.spec.request.placement if work is None else placement_of(work)
    if member.ask is None:
        return member_request(job.spec.request.groups[member.group], placement, extra)
    ask = in_queue(member.ask, core.settings.queue(job.queue))
    return member_request(group_of(ask, 1), placement, extra)


def work_gone(core: Core, work: str, now: float) -> None:
    core.works.pop(work, None)
    core.take_up(work)
    job = core.jobs.get(core.job_of_work.get(work, 0))
    if job is None:
        return
    job.is_work_gone = True
    core.journal.touch(job)
    core.unsettled[job.id] = None
    if job.state.is_pending:
        raise_exception(core, job, now, "cancel", "its owner is gone")


def member_gone(core: Core, key: str, now: float) -> None:
    """It was taken away by somebody: what it had is free."""
    hold_gone(core, LEFT_OVER + key)
    for deferred in core.deferred.values():
        deferred.pop(key, None)
    core.waits_no_more(key)
    job = core.jobs.get(core.job_of_member.get(key, 0))
    member = job.members.get(key) if job is not None else None
    if job is None or member is None:
        return
    if job.state.is_pending:
        del job.members[key]
        core.job_of_member.pop(key, None)
        core.journal.touch(job)
        if not job.members:
            raise_exception(core, job, now, "cancel", "its last member is gone")
        elif job.state is JobState.SCHED:
            core.counting[job.id] = None
        return
    member_ended(core, job, member, 9, "gone", now)


# What became of members


def observed(core: Core, fact: Observed, now: float) -> None:
    job = core.jobs.get(core.job_of_member.get(fact.member, 0))
    member = job.members.get(fact.member) if job is not None else None
    if job is None or member is None or member.phase is MemberPhase.ENDED:
        _left_over(core, fact)
        return
    if _is_elsewhere(job, member, fact):
        _taken_by_others(core, job, member, fact, now)
        return
    match fact.phase:
        case Phase.WAITING:
            _not_there(core, job, member, now)
        case Phase.PLACED:
            _take_place(core, job, member, MemberPhase.PLACED)
            _note_use(core, member, fact.amounts)
        case Phase.RUNNING:
            member.started_at = member.started_at or fact.at
            _take_place(core, job, member, MemberPhase.RUNNING)
            _note_use(core, member, fact.amounts)
            core.unsettled[job.id] = None
        case Phase.ENDED:
            _ended(core, job, member, fact, now)
        case Phase.REFUSED:
            _refused(core, job, member, fact.node or member.node, fact.cause, now)
        case Phase.LOST:
            if member.phase is not MemberPhase.LOST and member.phase.is_live:
                member.phase, member.lost_at = MemberPhase.LOST, now
                core.journal.touch(job)
                core.wake(now + core.settings.lost_s, job.id)


def _is_elsewhere(job: Job, member: Member, fact: Observed) -> bool:
    """Whether a member of a work is on a node that we have not sent it to."""
    is_there = fact.phase in (Phase.PLACED, Phase.RUNNING) and bool(fact.node)
    return bool(job.work) and is_there and member.node != fact.node


def _taken_by_others(core: Core, job: Job, member: Member, fact: Observed, now: float) -> None:
    """Somebody else has placed it: what it uses counts as use by others, and our job does without it."""
    if job.state.is_pending:
        member_gone(core, member.key, now)
    else:
        member_ended(core, job, member, signal.SIGKILL, f"placed on {fact.node} by others", now)
    _left_over(core, fact)


def _take_place(core: Core, job: Job, member: Member, phase: MemberPhase) -> None:
    if member.phase is phase or not member.phase.is_live:
        return
    if member.phase is MemberPhase.RUNNING and phase is MemberPhase.PLACED:
        return
    was_silent = member.phase is MemberPhase.LOST
    member.phase, member.lost_at = phase, None
    core.journal.touch(job)
    for number in list(core.intents_of_member.get(member.key, ())):
        if isinstance(core.intents[number].intent, Place):
            settle_member(core, number, member.key)
        elif was_silent:
            core.again.add(number)  # Whoever was silent may not have heard it.


def _note_use(core: Core, member: Member, amounts: tuple[tuple[str, int], ...]) -> None:
    """What it uses beyond what it was given (it was resized in place) counts as use by others."""
    given = {kind: units for kind, _, units in member.grants}
    beyond = ((kind, units - given.get(kind, 0)) for kind, units in amounts)
    more = tuple((kind, units) for kind, units in beyond if units > 0)
    if more:
        hold_set(core, HoldSet(MORE + member.key, member.node, more, name=MORE + member.shown_as))
    else:
        hold_gone(core, MORE + member.key)


def _not_there(core: Core, job: Job, member: Member, now: float) -> None:
    """The world says that it knows no such member, or that it is on no node.

    One that was never seen there has not begun, also if its node was silent meanwhile: its intents are
    carried out again. Of a job that is ending it need not begin any more.
    """
    numbers = core.intents_of_member.get(member.key, set())
    placing = {number for number in numbers if isinstance(core.intents[number].intent, Place)}
    again = numbers - placing if job.is_ending else numbers
    if placing and again:
        core.again.update(again)
    elif placing and job.work and member.phase is MemberPhase.PLACING:
        _need_not_begin(core, job, member, "", now, is_used_up=False)
    elif member.phase.is_live:
        vanished(core, job, member, now)


def vanished(core: Core, job: Job, member: Member, now: float) -> None:
    """It was placed, and nobody knows of it any more: what became of it will never be known."""
    member_ended(core, job, member, 9, UNKNOWN_END, now)
    _fail_if_submitted(core, job, now, "exec", f"task {member.index} has vanished; its end is unknown")


def _ended(core: Core, job: Job, member: Member, fact: Observed, now: float) -> None:
    if member.started_at is None and fact.started:
        member.started_at = fact.at
    if fact.cause == NODE_FAILURE:
        node_failed(core, job, member, now)
        member.ended_at = fact.at
        return
    member_ended(core, job, member, fact.status, fact.cause, now)
    member.ended_at = fact.at
    if job.work:
        _work_member_ended(core, job, member, fact, now)
    elif fact.cause == TIMEOUT and not job.is_ending:
        raise_exception(core, job, now, TIMEOUT, "resource allocation expired", sent=signal.SIGALRM)
    elif fact.cause == UNKNOWN_END:
        _fail_if_submitted(core, job, now, "exec", f"the end of task {member.index} is unknown")
    elif fact.cause not in ("", _SIGNALLED) and fact.status != 0:
        _fail_if_submitted(core, job, now, "exec", fact.cause)  # It could not even be started.


def _work_member_ended(core: Core, job: Job, member: Member, fact: Observed, now: float) -> None:
    """The owner of a work decides what an end means; we see to it that no half group goes on unsaid."""
    if job.is_ending or job.state is not JobState.RUN:
        return
    if fact.status != 0 and requeue_work(core, job, now, fact.cause):
        return
    if fact.started or fact.status == 0:
        return
    note = f"{member.shown_as} was not started on {member.node}: {fact.cause or 'no cause was given'}"
    core.journal.log(job, "exception", now, type="alloc", severity=2, note=note)
    if member.is_recreated:
        if job.incomplete_since is None:
            job.incomplete_since = now
            core.wake(now + core.settings.whole_s, job.id)
    elif len(job.members) > 1:
        _break(core, job, note, now)


def _break(core: Core, job: Job, note: str, now: float) -> None:
    """The group cannot be made whole, and those who are there cannot be taken away: that is said."""
    job.broken = job.broken or note
    core.journal.log(job, "exception", now, type="broken", severity=1, note=note)
    core.tell(job, "broken", note)


def _fail_if_submitted(core: Core, job: Job, now: float, kind: str, note: str) -> None:
    """A submitted job fails with its first member; a work's owner decides for itself."""
    if not job.work and not job.is_ending:
        raise_exception(core, job, now, kind, note)


def settled(core: Core, fact: Settled, now: float) -> None:
    open_one = core.intents.get(fact.intent)
    if open_one is None or fact.member not in open_one.waits_for:
        return
    intent = open_one.intent
    if fact.outcome is Outcome.UNKNOWN:
        core.journal.probes.append(fact.member)
        return
    job = core.jobs.get(intent.job)
    member = job.members.get(fact.member) if job is not None else None
    if not isinstance(intent, Place):
        if fact.outcome is not Outcome.CONFLICT or isinstance(intent, Retract):
            settle_member(core, fact.intent, fact.member)
        if isinstance(intent, Retract) and job is not None and member is not None and member.phase.is_live:
            if fact.outcome is Outcome.APPLIED and intent.how is How.FORGET:
                back_to_waiting(core, job, member, now)
        elif fact.outcome is Outcome.GONE and job is not None and member is not None:
            member_ended(core, job, member, 9, "gone", now)
        return
    settle_member(core, fact.intent, fact.member)
    if job is None or member is None or member.phase is MemberPhase.ENDED:
        return
    if fact.outcome is Outcome.APPLIED:
        _take_place(core, job, member, MemberPhase.PLACED)
    elif fact.outcome is Outcome.GONE:
        member_ended(core, job, member, 9, "gone", now)
    else:
        _refused(core, job, member, member.node, fact.detail, now, is_used_up=False)


def _refused(
    core: Core, job: Job, member: Member, node: str, cause: str, now: float, *, is_used_up: bool = True
) -> None:
    """Its node did not take it: another one may. A job that is ending needs none.

    One that never came to its node is still there and waits; one that did is made anew by whoever made it.
    """
    if not member.phase.is_live:
        return
    member.cause = cause
    if job.is_ending or job.state is not JobState.RUN:
        _need_not_begin(core, job, member, cause, now, is_used_up=is_used_up)
        return
    member.refused_by |= {node}
    if job.work and member.is_recreated and is_used_up:
        member_ended(core, job, member, 9, cause, now)
        return
    core.refusals.setdefault(node, {})[(job.id, member.key)] = None
    back_to_waiting(core, job, member, now)
    core.journal.log(
        job, "exception", now, type="alloc", severity=2, note=f"{node} refused {member.shown_as}: {cause}"
    )


def _need_not_begin(
    core: Core, job: Job, member: Member, cause: str, now: float, *, is_used_up: bool
) -> None:
    """Its job is ending. If the world still has it, unplaced, it is there for the next job of its work."""
    if job.work and not is_used_up:
        back_to_waiting(core, job, member, now)
        core.unsettled[job.id] = None
    else:
        member_ended(core, job, member, 9, cause, now)


def _left_over(core: Core, fact: Observed) -> None:
    """Something of a job that is over is still there: it counts as use by others, and is asked to end."""
    name = LEFT_OVER + fact.member
    if fact.phase in (Phase.ENDED, Phase.WAITING, Phase.REFUSED):
        hold_gone(core, name)
        core.journal.forgotten.append(fact.member)
        return
    if fact.phase is Phase.LOST or not fact.node:
        return
    hold_set(core, HoldSet(name, fact.node, fact.amounts))
    if not fact.is_kept and not core.intents_of_member.get(fact.member):
        number = core.next_intent()
        open_intent(core, End(number, 0, (fact.member,), signal.SIGTERM, core.settings.grace_s, "left over"))


def unwind(core: Core, job: Job, now: float) -> None:
    """A group that could not be made whole in time: what can be made again is taken away."""
    waiting = [member for member in job.members.values() if member.phase is MemberPhase.WAITING]
    why = "; ".join(sorted({member.cause for member in waiting if member.cause})) or "no place was found"
    missing = f"{len(waiting)} of {len(job.members)} members have no place: {why}"
    if not job.work:
        raise_exception(core, job, now, "exec", missing)
        return
    live = job.live_members()
    if all(member.is_recreated for member in live):
        start_over(core, job, now, "incomplete", missing)
        return
    _break(core, job, missing, now)
    again = tuple(member.key for member in live if member.is_recreated)
    if again:
        open_intent(core, Retract(core.next_intent(), job.id, again, How.EVICT))
