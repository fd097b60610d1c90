"""Members after their placement: reported statuses, results of intents, refusals, ends and orphans.

A member that a node refused is placed elsewhere, and not on that node again until the node changes. If a
started group cannot be completed within the repair timeout, it is evicted if nothing of it has run, and else
reported as incomplete. A member whose job is over is an orphan: it counts as external usage until
it ends.
"""

from __future__ import annotations

import signal

from penstock.model.duration import format_duration
from penstock.model.job import ExceptionType, JobState
from penstock.model.text import escape_controls
from penstock.protocol.facts import EndCause, ExternalUsageSet, IntentResult, MemberStatus, Outcome, Phase
from penstock.protocol.intents import End, EndReason, Evict, Place
from penstock.sched import vacancies
from penstock.sched.gangs import member_gone
from penstock.sched.job import Job, Member
from penstock.sched.lifecycle import (
    member_ended,
    node_failed,
    return_to_queue,
)
from penstock.sched.member_states import MemberEvent, MemberPhase
from penstock.sched.nodes import ORPHAN_KEY, external_usage_gone, external_usage_set, update_usage
from penstock.sched.state import SchedulerState

__all__ = [
    "end_repair",
    "end_replacement_wait",
    "intent_resolved",
    "member_status_changed",
    "member_vanished",
]


def member_status_changed(state: SchedulerState, fact: MemberStatus, now: float) -> None:
    job = state.job_of_member(fact.member)
    member = job.members.get(fact.member) if job is not None else None
    if job is None or member is None or member.phase is MemberPhase.ENDED:
        _handle_orphan(state, fact)
        return
    if job.ownership.is_elsewhere(member, fact):
        _placed_elsewhere(state, job, member, fact, now)
        return
    match fact.phase:
        case Phase.WAITING:
            _handle_absent_member(state, job, member, now)
        case Phase.PLACED:
            _confirm_placement(state, job, member, MemberEvent.PLACE)
            update_usage(state, job, member, fact.usage, fact.brings)
        case Phase.RUNNING:
            if member.started_at is None:
                job.set_started(member, fact.at)
                state.journal.touch_member(job, member.key)
            _confirm_placement(state, job, member, MemberEvent.START)
            update_usage(state, job, member, fact.usage, fact.brings)
            state.worklist.advance(job.id)
        case Phase.ENDED:
            _ended(state, job, member, fact, now)
        case Phase.REFUSED:
            _refused(state, job, member, fact.node or member.node, fact.message or fact.cause.value, now)
        case Phase.LOST:
            if state.journal.change_phase(job, member, MemberEvent.LOSE):
                member.lost_at = now
                state.wake(now + state.settings.lost_timeout_s, job.id)


def _placed_elsewhere(
    state: SchedulerState, job: Job, member: Member, fact: MemberStatus, now: float
) -> None:
    """Handles a member that something else has placed: it leaves the job and counts as external usage."""
    if job.state.is_pending:
        member_gone(state, member.key, now)
    else:
        note = f"placed on {fact.node} by another scheduler"
        member_ended(state, job, member, signal.SIGKILL, EndCause.OTHER, now, note, may_be_replaced=False)
    _handle_orphan(state, fact)


def _confirm_placement(state: SchedulerState, job: Job, member: Member, event: MemberEvent) -> None:
    was_silent = member.phase is MemberPhase.LOST
    if not state.journal.change_phase(job, member, event):
        return
    member.lost_at = None
    placing = state.intents.placements_of(member.key)
    for number in state.intents.of_member(member.key):
        if number in placing:
            state.intents.resolve(number, member.key)
        elif was_silent:
            state.intents.resend(number)  # The node may not have received it.


def _handle_absent_member(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """Handles a member that the backend does not know, or that is on no node.

    A member that was never seen on its node has not started: its intents are applied again. In a job that is
    ending it need not start any more.
    """
    numbers = state.intents.of_member(member.key)
    placing = state.intents.placements_of(member.key)
    to_resend = [number for number in numbers if number not in placing] if job.is_ending else numbers
    if placing and to_resend:
        for number in to_resend:
            state.intents.resend(number)
    elif placing and job.ownership.is_controlled and member.phase is MemberPhase.PLACING:
        _drop_unstarted(state, job, member, "", now, reached_node=False)
    elif member.phase.is_live:
        member_vanished(state, job, member, now)


def member_vanished(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """Ends a member that was placed and is unknown to the backend; its real outcome is lost."""
    member_ended(state, job, member, 9, EndCause.UNKNOWN, now, event=MemberEvent.VANISH)
    job.ownership.member_vanished(state, job, member, now)


def _ended(state: SchedulerState, job: Job, member: Member, fact: MemberStatus, now: float) -> None:
    if job.state.is_pending:
        member_gone(state, member.key, now)  # It ended before its group was placed.
        return
    if fact.started:
        job.set_started(member, fact.at)
    if fact.cause is EndCause.NODE_FAILURE:
        node_failed(state, job, member, now)
        member.ended_at = fact.at
        return
    member_ended(state, job, member, fact.status, fact.cause, now, fact.message)
    member.ended_at = fact.at
    job.ownership.member_ended(state, job, member, fact, now)


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
        if fact.outcome is not Outcome.CONFLICT or isinstance(intent, Evict):
            state.intents.resolve(fact.intent, fact.member)
        # After an eviction, the end of the member is reported on its own.
        is_gone = fact.outcome is Outcome.GONE and isinstance(intent, End)
        if is_gone and job is not None and member is not None:
            member_ended(state, job, member, 9, EndCause.GONE, now, event=MemberEvent.DELETE)
        elif is_gone:
            external_usage_gone(state, ORPHAN_KEY + fact.member)
        return
    state.intents.resolve(fact.intent, fact.member)
    if job is None or member is None or member.phase is MemberPhase.ENDED:
        return
    if fact.outcome is Outcome.APPLIED:
        _confirm_placement(state, job, member, MemberEvent.PLACE)
    elif fact.outcome is Outcome.GONE:
        member_ended(state, job, member, 9, EndCause.GONE, now, event=MemberEvent.DELETE)
    elif member.phase is MemberPhase.PLACING:  # Else it is on its node, whatever the result says.
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
    """Handles the refusal of a member by its node: another node may accept it.

    A member that did not reach its node still exists and returns to the queue. One that did is replaced by
    its controller.
    """
    if not member.phase.is_live:
        return
    message = escape_controls(message)
    member.cause, member.message = EndCause.OTHER if message else EndCause.EXITED, message
    if job.is_ending or job.state is not JobState.RUN:
        _drop_unstarted(state, job, member, message, now, reached_node=reached_node)
        return
    member.refused_by |= {node}
    if member.is_recreated and reached_node:
        member_ended(state, job, member, 9, EndCause.OTHER if message else EndCause.EXITED, now, message)
        return
    state.members.add_refusal(node, job.id, member.key)
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
    """Handles a member that did not start before its job began to end.

    If it still exists unplaced, it belongs to the next job of its workload.
    """
    if job.ownership.is_controlled and not reached_node:
        return_to_queue(state, job, member, now)
        state.worklist.advance(job.id)
    else:
        member_ended(state, job, member, 9, EndCause.OTHER if message else EndCause.EXITED, now, message)


def _handle_orphan(state: SchedulerState, fact: MemberStatus) -> None:
    """Counts a member whose job is over as external usage, and ends it unless its owner does."""
    name = ORPHAN_KEY + fact.member
    if fact.phase in (Phase.ENDED, Phase.WAITING, Phase.REFUSED):
        external_usage_gone(state, name)
        state.journal.forgotten.append(fact.member)
        return
    if fact.phase is Phase.LOST or not fact.node:
        return
    external_usage_set(state, ExternalUsageSet(name, fact.node, fact.usage, brings=fact.brings))
    if not fact.has_owner and not state.intents.of_member(fact.member):
        number = state.intents.next_number()
        state.intents.open(
            End(number, 0, (fact.member,), signal.SIGTERM, state.settings.grace_s, EndReason.ORPHAN)
        )


def end_repair(state: SchedulerState, job: Job, now: float) -> None:
    """Ends the repair of a started group that is still incomplete."""
    waiting = [member for member in job.members.values() if member.phase is MemberPhase.WAITING]
    why = "; ".join(sorted({member.message for member in waiting if member.message})) or "no node was found"
    has = "has" if len(waiting) == 1 else "have"
    missing = f"{len(waiting)} of {len(job.members)} members {has} no node: {why}"
    if not waiting:
        missing = "a member that was not started has not been replaced"
    for member in waiting:
        left = vacancies.replaced_member(job, member)
        if left is not None:
            vacancies.withdraw(state, job, left)  # The replacement stays first in the queue.
    job.ownership.repair_failed(state, job, missing, now)


def end_replacement_wait(state: SchedulerState, job: Job, now: float) -> None:
    """Ends the wait for replacements that have not appeared in time."""
    expired = vacancies.expire(state, job, now)
    if not expired:
        return
    more = f" and of {len(expired) - 1} more" if len(expired) > 1 else ""
    within = format_duration(state.settings.replacement_timeout_s)
    note = f"no replacement of {expired[0].display_name}{more} appeared within {within}"
    job.ownership.replacement_overdue(state, job, note, now)
