"""Works and members as a world tells of them: groups that assemble, members that come, go, fail and return.

A work becomes one job with its first member. It assembles once, when as many members are ready as it wants;
from then on a member that comes is placed by itself (`extend`), in its own turn. A member that a node
refused is placed elsewhere, and not on that node again until the node changes. If a group that has begun
cannot be made whole in time, members that somebody would make again are taken away, and the job says that
it is broken. A member whose job is over counts as use by others until it ends.
"""

from __future__ import annotations

import signal
from typing import Final

from penstock.engine.request import Request
from penstock.model.constraint import HostIn, Not
from penstock.model.job import URGENCY_HOLD, ExceptionType, JobState
from penstock.protocol.facts import (
    EndCause,
    ExternalUsageSet,
    IntentResult,
    MemberSet,
    MemberStatus,
    Outcome,
    Phase,
    WorkloadSet,
)
from penstock.protocol.intents import End, EndReason, Place, Retract, RetractMode, WorkloadStatus
from penstock.sched.commands import add_job
from penstock.sched.job import Job, Member, MemberPhase
from penstock.sched.jobspec import (
    MemberRequest,
    group_of,
    member_request,
    placement_of,
    spec_of_workload,
    with_queue_constraint,
)
from penstock.sched.lifecycle import (
    EXCESS_KEY,
    evict_group,
    member_ended,
    node_failed,
    open_intent,
    raise_exception,
    requeue_workload,
    resolve_intent,
    return_to_queue,
)
from penstock.sched.nodes import external_usage_gone, external_usage_set
from penstock.sched.queue import QueueEntry, order_key
from penstock.sched.records import JobNew
from penstock.sched.state import SchedulerState

__all__ = [
    "ORPHAN_KEY",
    "assemble",
    "assembly_deadline",
    "end_repair",
    "enqueue_late",
    "intent_resolved",
    "member_gone",
    "member_set",
    "member_status_changed",
    "member_vanished",
    "workload_gone",
    "workload_set",
]

ORPHAN_KEY: Final = "left over: "  # holds of members whose job is over


# Groups


def workload_set(state: SchedulerState, fact: WorkloadSet) -> None:
    before = state.workloads.get(fact.workload)
    state.workloads[fact.workload] = fact
    job = state.jobs.get(state.job_of_workload.get(fact.workload, 0))
    if job is not None and before != fact:
        state.to_reassemble[job.id] = None


def member_set(state: SchedulerState, fact: MemberSet, now: float) -> None:
    workload = state.workloads.get(fact.workload)
    if workload is None:
        return  # Its work has not been told, or is gone.
    if _is_inadmissible(state, fact):
        return
    job = state.jobs.get(state.job_of_member.get(fact.member, 0))
    if job is not None and job.members[fact.member].phase is MemberPhase.ENDED:
        _detach(state, job, fact.member)
        job = None
    if job is not None and job.workload != fact.workload:
        return  # It has come with another group, and stays there while that job lasts.
    job = job or state.jobs.get(state.job_of_workload.get(fact.workload, 0))
    if job is not None and job.is_ending and fact.member not in job.members:
        state.members_of_next_job.setdefault(fact.workload, {})[fact.member] = fact
        return
    if job is None:
        job = _new_job(state, workload, now)
    member = job.members.get(fact.member)
    if member is None:
        member = Member(fact.member, fact.index, seen_at=now, name=fact.name)
        job.members[fact.member] = member
        state.job_of_member[fact.member] = job.id
        state.journal.touch(job)
    ask = MemberRequest(fact.requests, fact.constraint)
    has_changed = (member.request, member.is_ready) != (ask, fact.ready)
    member.request, member.is_ready, member.is_recreated = ask, fact.ready, fact.recreated
    member.name = fact.name
    if member.phase.is_live:  # It is on its way to a node, and may ask for more than it was given.
        _update_excess_usage(state, member, fact.requests)
    if job.state is JobState.DEPEND or (has_changed and job.state.is_pending):
        state.to_reassemble[job.id] = None
    elif job.state is JobState.RUN and member.phase is MemberPhase.WAITING:
        enqueue_late(state, job, member)


def _is_inadmissible(state: SchedulerState, fact: MemberSet) -> bool:
    """Whether a member waits for somebody to act. One who comes new does that, for all who wait."""
    known = state.inadmissible.get(fact.workload)
    if known is None:
        return False
    if fact.member in known.record.members:
        state.add_inadmissible_member(fact)
        return True
    state.members_to_readmit.extend(state.readmit(fact.workload).values())
    return False


def _detach(state: SchedulerState, job: Job, key: str) -> None:
    """It was taken from the job while it waited, and waits again: as somebody who has never been there."""
    del job.members[key], state.job_of_member[key]
    state.journal.touch(job)


def _new_job(state: SchedulerState, workload: WorkloadSet, now: float) -> Job:
    number = state.ids.next(now)
    plain: dict[str, object] = {"work": workload.workload, "name": workload.name, "urgency": workload.urgency}
    spec, _ = spec_of_workload(workload, [], state.settings, workload.limit_s)
    job = Job(
        number,
        workload.owner,
        spec,
        plain,
        now,
        workload.workload,
        queue=spec.queue,
        urgency=workload.urgency,
    )
    job.class_value = workload.class_value
    job.is_assembled = False
    state.journal.add(JobNew(number, workload.owner, workload.name, now, plain, workload.workload))
    state.journal.log(job, "submit", now, userid=workload.owner, urgency=workload.urgency, flags=0, version=1)
    state.journal.log(job, "validate", now)
    state.job_of_workload[workload.workload] = number
    add_job(state, job, now)
    return job


def assembly_deadline(job: Job, workload: WorkloadSet) -> float | None:
    """When a group that is not whole is given up: counted by our own clock, from its last member on."""
    if workload.assembly_timeout_s is None:
        return None
    return (
        max((member.seen_at for member in job.members.values()), default=job.seen_at)
        + workload.assembly_timeout_s
    )


def assemble(state: SchedulerState, job: Job, now: float) -> None:
    """Counts the members of a work; when enough are ready, the group is whole and queues."""
    workload = state.workloads.get(job.workload)
    if workload is None or not job.state.is_pending:
        return
    ready = [member for member in job.members.values() if member.is_ready and member.request is not None]
    if len(ready) < max(workload.size, 1):
        if job.is_assembled:  # It was whole, and is not any more: it waits aside until it is again.
            job.is_assembled = False
            state.dequeue(job.id)
            state.journal.touch(job)
        reason = f"{len(ready)} of {max(workload.size, 1)} members are there"
        state.publish_status(job, WorkloadStatus.ASSEMBLING, reason)
        until = assembly_deadline(job, workload)
        if until is not None:
            state.wake(until, job.id)
        return
    asks = [member.request for member in ready if member.request is not None]
    job.spec, groups = spec_of_workload(workload, asks, state.settings, _limit(workload, now))
    for member, group in zip(ready, groups, strict=True):
        member.group = group
    if not job.is_assembled and job.state is JobState.DEPEND:
        state.journal.log(job, "assemble", now, members=len(ready))
    job.is_assembled = True
    state.journal.touch(job)
    state.newly_assembled[job.id] = None


def _limit(workload: WorkloadSet, now: float) -> int | None:
    """How long it may run at most: its own limit, or what is left until the end of the whole."""
    if workload.deadline_at is None:
        return workload.limit_s
    left_s = max(1, int(workload.deadline_at - now))
    return left_s if workload.limit_s is None else min(left_s, workload.limit_s)


def enqueue_late(state: SchedulerState, job: Job, member: Member) -> None:
    """A member without a place, of a job that has begun, queues by itself."""
    if not member.is_ready or job.urgency == URGENCY_HOLD:
        return
    shape = state.shapes.number(_late_request(state, job, member))
    key = order_key(job.urgency, job.class_value, member.seen_at or job.seen_at, job.id, 1)
    state.pending.add(QueueEntry(key, job.id, member.key), job.queue, shape)
    state.mark_dirty()


def _late_request(state: SchedulerState, job: Job, member: Member) -> Request:
    """What it asks for by itself, on any node that has not refused it."""
    extra = Not((HostIn(member.refused_by),)) if member.refused_by else None
    workload = state.workloads.get(job.workload)
    placement = job.spec.request.placement if workload is None else placement_of(workload)
    if member.request is None:
        return member_request(job.spec.request.groups[member.group], placement, extra)
    ask = with_queue_constraint(member.request, state.settings.queue(job.queue))
    return member_request(group_of(ask, 1), placement, extra)


def workload_gone(state: SchedulerState, workload: str, now: float) -> None:
    state.workloads.pop(workload, None)
    state.readmit(workload)
    job = state.jobs.get(state.job_of_workload.get(workload, 0))
    if job is None:
        return
    job.is_workload_gone = True
    state.journal.touch(job)
    state.jobs_to_advance[job.id] = None
    if job.state.is_pending:
        raise_exception(state, job, now, ExceptionType.CANCEL, "its owner is gone")


def member_gone(state: SchedulerState, key: str, now: float) -> None:
    """It was taken away by somebody: what it had is free."""
    external_usage_gone(state, ORPHAN_KEY + key)
    for members_of_next_job in state.members_of_next_job.values():
        members_of_next_job.pop(key, None)
    state.drop_inadmissible_member(key)
    job = state.jobs.get(state.job_of_member.get(key, 0))
    member = job.members.get(key) if job is not None else None
    if job is None or member is None:
        return
    if job.state.is_pending:
        del job.members[key]
        state.job_of_member.pop(key, None)
        state.journal.touch(job)
        if not job.members:
            raise_exception(state, job, now, ExceptionType.CANCEL, "its last member is gone")
        elif job.state is JobState.SCHED:
            state.to_reassemble[job.id] = None
        return
    member_ended(state, job, member, 9, EndCause.GONE, now)


# What became of members


def member_status_changed(state: SchedulerState, fact: MemberStatus, now: float) -> None:
    job = state.jobs.get(state.job_of_member.get(fact.member, 0))
    member = job.members.get(fact.member) if job is not None else None
    if job is None or member is None or member.phase is MemberPhase.ENDED:
        _handle_orphan(state, fact)
        return
    if _is_elsewhere(job, member, fact):
        _placed_elsewhere(state, job, member, fact, now)
        return
    match fact.phase:
        case Phase.WAITING:
            _handle_absent_member(state, job, member, now)
        case Phase.PLACED:
            _confirm_placement(state, job, member, MemberPhase.PLACED)
            _update_excess_usage(state, member, fact.usage)
        case Phase.RUNNING:
            member.started_at = member.started_at or fact.at
            _confirm_placement(state, job, member, MemberPhase.RUNNING)
            _update_excess_usage(state, member, fact.usage)
            state.jobs_to_advance[job.id] = None
        case Phase.ENDED:
            _ended(state, job, member, fact, now)
        case Phase.REFUSED:
            _refused(state, job, member, fact.node or member.node, fact.message or fact.cause.value, now)
        case Phase.LOST:
            if member.phase is not MemberPhase.LOST and member.phase.is_live:
                member.phase, member.lost_at = MemberPhase.LOST, now
                state.journal.touch(job)
                state.wake(now + state.settings.lost_timeout_s, job.id)


def _is_elsewhere(job: Job, member: Member, fact: MemberStatus) -> bool:
    """Whether a member of a work is on a node that we have not sent it to."""
    is_there = fact.phase in (Phase.PLACED, Phase.RUNNING) and bool(fact.node)
    return bool(job.workload) and is_there and member.node != fact.node


def _placed_elsewhere(
    state: SchedulerState, job: Job, member: Member, fact: MemberStatus, now: float
) -> None:
    """Somebody else has placed it: what it uses counts as use by others, and our job does without it."""
    if job.state.is_pending:
        member_gone(state, member.key, now)
    else:
        note = f"placed on {fact.node} by others"
        member_ended(state, job, member, signal.SIGKILL, EndCause.OTHER, now, note)
    _handle_orphan(state, fact)


def _confirm_placement(state: SchedulerState, job: Job, member: Member, phase: MemberPhase) -> None:
    if member.phase is phase or not member.phase.is_live:
        return
    if member.phase is MemberPhase.RUNNING and phase is MemberPhase.PLACED:
        return
    was_silent = member.phase is MemberPhase.LOST
    member.phase, member.lost_at = phase, None
    state.journal.touch(job)
    for number in list(state.intents_of_member.get(member.key, ())):
        if isinstance(state.intents[number].intent, Place):
            resolve_intent(state, number, member.key)
        elif was_silent:
            state.intents_to_resend.add(number)  # Whoever was silent may not have heard it.


def _update_excess_usage(state: SchedulerState, member: Member, amounts: tuple[tuple[str, int], ...]) -> None:
    """What it uses beyond what it was given (it was resized in place) counts as use by others."""
    given = {kind: units for kind, _, units in member.grants}
    beyond = ((kind, units - given.get(kind, 0)) for kind, units in amounts)
    more = tuple((kind, units) for kind, units in beyond if units > 0)
    if more:
        external_usage_set(
            state,
            ExternalUsageSet(
                EXCESS_KEY + member.key, member.node, more, name=EXCESS_KEY + member.display_name
            ),
        )
    else:
        external_usage_gone(state, EXCESS_KEY + member.key)


def _handle_absent_member(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """The world says that it knows no such member, or that it is on no node.

    One that was never seen there has not begun, also if its node was silent meanwhile: its intents are
    carried out again. Of a job that is ending it need not begin any more.
    """
    numbers = state.intents_of_member.get(member.key, set())
    placing = {number for number in numbers if isinstance(state.intents[number].intent, Place)}
    again = numbers - placing if job.is_ending else numbers
    if placing and again:
        state.intents_to_resend.update(again)
    elif placing and job.workload and member.phase is MemberPhase.PLACING:
        _drop_unstarted(state, job, member, "", now, reached_node=False)
    elif member.phase.is_live:
        member_vanished(state, job, member, now)


def member_vanished(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """It was placed, and nobody knows of it any more: what became of it will never be known."""
    member_ended(state, job, member, 9, EndCause.UNKNOWN, now)
    _fail_if_submitted(state, job, now, f"task {member.index} has member_vanished; its end is unknown")


def _ended(state: SchedulerState, job: Job, member: Member, fact: MemberStatus, now: float) -> None:
    if member.started_at is None and fact.started:
        member.started_at = fact.at
    if fact.cause is EndCause.NODE_FAILURE:
        node_failed(state, job, member, now)
        member.ended_at = fact.at
        return
    member_ended(state, job, member, fact.status, fact.cause, now, fact.message)
    member.ended_at = fact.at
    if job.workload:
        _workload_member_ended(state, job, member, fact, now)
    elif fact.cause is EndCause.TIMEOUT and not job.is_ending:
        note = "resource allocation expired"
        raise_exception(state, job, now, ExceptionType.TIMEOUT, note, sent=signal.SIGALRM)
    elif fact.cause is EndCause.UNKNOWN:
        _fail_if_submitted(state, job, now, f"the end of task {member.index} is unknown")
    elif fact.cause not in (EndCause.EXITED, EndCause.SIGNALED) and fact.status != 0:
        _fail_if_submitted(state, job, now, member.cause_text)  # It could not even be started.


def _workload_member_ended(
    state: SchedulerState, job: Job, member: Member, fact: MemberStatus, now: float
) -> None:
    """The owner of a work decides what an end means; we see to it that no half group goes on unsaid."""
    if job.is_ending or job.state is not JobState.RUN:
        return
    if fact.status != 0 and requeue_workload(state, job, now, member):
        return
    if fact.started or fact.status == 0:
        return
    note = (
        f"{member.display_name} was not started on {member.node}: {member.cause_text or 'no cause was given'}"
    )
    state.journal.log(job, "exception", now, type=ExceptionType.ALLOC.value, severity=2, note=note)
    if member.is_recreated:
        if job.incomplete_since is None:
            job.incomplete_since = now
            state.wake(now + state.settings.gang_repair_timeout_s, job.id)
    elif len(job.members) > 1:
        _mark_incomplete(state, job, note, now)


def _mark_incomplete(state: SchedulerState, job: Job, note: str, now: float) -> None:
    """The group cannot be made whole, and those who are there cannot be taken away: that is said."""
    job.incomplete_reason = job.incomplete_reason or note
    state.journal.log(job, "exception", now, type=ExceptionType.INCOMPLETE.value, severity=1, note=note)
    state.publish_status(job, WorkloadStatus.INCOMPLETE, note)


def _fail_if_submitted(state: SchedulerState, job: Job, now: float, note: str) -> None:
    """A submitted job fails with its first member; a work's owner decides for itself."""
    if not job.workload and not job.is_ending:
        raise_exception(state, job, now, ExceptionType.EXEC, note)


def intent_resolved(state: SchedulerState, fact: IntentResult, now: float) -> None:
    open_one = state.intents.get(fact.intent)
    if open_one is None or fact.member not in open_one.waits_for:
        return
    intent = open_one.intent
    if fact.outcome is Outcome.UNKNOWN:
        state.journal.probes.append(fact.member)
        return
    job = state.jobs.get(intent.job)
    member = job.members.get(fact.member) if job is not None else None
    if not isinstance(intent, Place):
        if fact.outcome is not Outcome.CONFLICT or isinstance(intent, Retract):
            resolve_intent(state, fact.intent, fact.member)
        if isinstance(intent, Retract) and job is not None and member is not None and member.phase.is_live:
            if fact.outcome is Outcome.APPLIED and intent.mode is RetractMode.FORGET:
                return_to_queue(state, job, member, now)
        elif fact.outcome is Outcome.GONE and job is not None and member is not None:
            member_ended(state, job, member, 9, EndCause.GONE, now)
        return
    resolve_intent(state, fact.intent, fact.member)
    if job is None or member is None or member.phase is MemberPhase.ENDED:
        return
    if fact.outcome is Outcome.APPLIED:
        _confirm_placement(state, job, member, MemberPhase.PLACED)
    elif fact.outcome is Outcome.GONE:
        member_ended(state, job, member, 9, EndCause.GONE, now)
    else:
        _refused(state, job, member, member.node, fact.detail, now, reached_node=False)


def _refused(
    state: SchedulerState,
    job: Job,
    member: Member,
    node: str,
    message: str,
    now: float,
    *,
    reached_node: bool = True,
) -> None:
    """Its node did not take it: another one may. A job that is ending needs none.

    One that never came to its node is still there and waits; one that did is made anew by whoever made it.
    """
    if not member.phase.is_live:
        return
    member.message = message
    if job.is_ending or job.state is not JobState.RUN:
        _drop_unstarted(state, job, member, message, now, reached_node=reached_node)
        return
    member.refused_by |= {node}
    if job.workload and member.is_recreated and reached_node:
        member_ended(state, job, member, 9, EndCause.OTHER if message else EndCause.EXITED, now, message)
        return
    state.refusals.setdefault(node, {})[(job.id, member.key)] = None
    return_to_queue(state, job, member, now)
    state.journal.log(
        job,
        "exception",
        now,
        type=ExceptionType.ALLOC.value,
        severity=2,
        note=f"{node} refused {member.display_name}: {message}",
    )


def _drop_unstarted(
    state: SchedulerState, job: Job, member: Member, message: str, now: float, *, reached_node: bool
) -> None:
    """Its job is ending. If the world still has it, unplaced, it is there for the next job of its work."""
    if job.workload and not reached_node:
        return_to_queue(state, job, member, now)
        state.jobs_to_advance[job.id] = None
    else:
        member_ended(state, job, member, 9, EndCause.OTHER if message else EndCause.EXITED, now, message)


def _handle_orphan(state: SchedulerState, fact: MemberStatus) -> None:
    """Something of a job that is over is still there: it counts as use by others, and is asked to end."""
    name = ORPHAN_KEY + fact.member
    if fact.phase in (Phase.ENDED, Phase.WAITING, Phase.REFUSED):
        external_usage_gone(state, name)
        state.journal.forgotten.append(fact.member)
        return
    if fact.phase is Phase.LOST or not fact.node:
        return
    external_usage_set(state, ExternalUsageSet(name, fact.node, fact.usage))
    if not fact.has_owner and not state.intents_of_member.get(fact.member):
        number = state.next_intent()
        open_intent(
            state, End(number, 0, (fact.member,), signal.SIGTERM, state.settings.grace_s, EndReason.ORPHAN)
        )


def end_repair(state: SchedulerState, job: Job, now: float) -> None:
    """A group that could not be made whole in time: what can be made again is taken away."""
    waiting = [member for member in job.members.values() if member.phase is MemberPhase.WAITING]
    why = "; ".join(sorted({member.message for member in waiting if member.message})) or "no place was found"
    missing = f"{len(waiting)} of {len(job.members)} members have no place: {why}"
    if not job.workload:
        raise_exception(state, job, now, ExceptionType.EXEC, missing)
        return
    live = job.live_members()
    if all(member.is_recreated for member in live):
        evict_group(state, job, now, ExceptionType.INCOMPLETE, missing)
        return
    _mark_incomplete(state, job, missing, now)
    again = tuple(member.key for member in live if member.is_recreated)
    if again:
        open_intent(state, Retract(state.next_intent(), job.id, again, RetractMode.EVICT))
