"""The life of a job: dependencies, queue, exceptions, ends of members, cleanup, requeue.

Each function takes a job as far as it can go and may be called at any time: what has been done is not done
twice. `starting` starts jobs, `releasing` frees their units, `open_intents` tracks their intents.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from math import inf
from typing import Final

from penstock.model.job import ExceptionType, JobState, result_of
from penstock.model.jobid import encode_jobid
from penstock.model.text import escape_controls
from penstock.protocol.facts import EndCause, MemberSet
from penstock.protocol.intents import (
    End,
    EndReason,
    Evict,
    WorkloadStatus,
)
from penstock.sched import vacancies
from penstock.sched.dependencies import DependencyState, JobProgress, Scheme, dependency_state
from penstock.sched.job import Job, Member
from penstock.sched.member_states import MemberEvent, MemberPhase
from penstock.sched.queue import priority_of
from penstock.sched.records import JobNodeGone
from penstock.sched.releasing import free_all, free_ended_slots, used_slots
from penstock.sched.state import SchedulerState, SlipCause

__all__ = [
    "EXCESS_KEY",
    "advance_jobs",
    "end_members",
    "enqueue",
    "evict_group",
    "forget_job",
    "leave_depend",
    "member_ended",
    "node_failed",
    "prioritise",
    "raise_exception",
    "release_singleton",
    "return_to_queue",
    "set_unsatisfiable",
    "set_urgency",
    "update_dependents",
    "update_dependents_of",
]

EXCESS_KEY: Final = "more: "  # keys of external usage: what members use beyond their requests
_PAST_KEPT: Final = 64  # ended members of a job that are kept for display
_END_S: Final = 1.0  # ends are reported in whole seconds
_INFRASTRUCTURE_CAUSES: Final = frozenset({EndCause.UNKNOWN, EndCause.NODE_FAILURE})
_END_REASONS: Final = {
    ExceptionType.CANCEL: EndReason.CANCEL,
    ExceptionType.TIMEOUT: EndReason.TIMEOUT,
}


# Before the start


def leave_depend(state: SchedulerState, job: Job, now: float) -> None:
    """Moves a job from DEPEND to the queue if no dependency is open and its group has assembled."""
    if (
        job.state is not JobState.DEPEND
        or job.open_dependencies
        or job.waits_for_begin_time
        or not job.is_assembled
    ):
        return
    state.journal.log(job, "depend", now)
    prioritise(state, job, now)


def prioritise(state: SchedulerState, job: Job, now: float) -> None:
    job.priority = priority_of(job.urgency, job.class_value)
    state.journal.log(job, "priority", now, priority=job.priority)
    enqueue(state, job, now)


def set_urgency(state: SchedulerState, job: Job, urgency: int, now: float) -> None:
    """Changes the urgency of a pending job; 0 holds it."""
    if job.urgency == urgency:
        return
    job.urgency = urgency
    state.journal.log(job, "urgency", now, userid=job.owner, urgency=urgency)
    state.plans.slip_cause = SlipCause("the urgency of ", job.id, f" was set to {urgency}", job.owner)
    if job.state is JobState.PRIORITY:
        prioritise(state, job, now)


def enqueue(state: SchedulerState, job: Job, since: float) -> None:
    """Adds a job to the queue if it is eligible to start, and keeps the verdict on its request up to date.

    A job that is added is eligible since `since`. One that waits outside the queue costs no proof. One that
    the settings do not admit any more is held until a start with others, or until it is cancelled; one whose
    queue was disabled when it appeared, until the queue is enabled.
    """
    is_pending = job.state.is_pending
    job.settings_reason = state.settings.refusal(job.queue, job.spec.limit_s) if is_pending else ""
    if job.settings_reason:
        state.journal.touch_status(job)
    if not job.is_admitted:
        state.satisfiability.forget(job.id)
    elif job.state.is_pending and job.spec.request.groups:
        reason = state.satisfiability.track(job.id, job.spec.request)
        if reason is not None:
            set_unsatisfiable(state, job, reason, since)
    state.queue.enqueue(job, since)


def set_unsatisfiable(state: SchedulerState, job: Job, reason: str, now: float) -> None:
    """Sets why the present nodes can never satisfy a pending job; "": they can."""
    if reason != job.unsatisfiable_reason:
        job.unsatisfiable_reason = reason
        state.journal.touch(job)
        state.queue.enqueue(job, now)


def update_dependents(state: SchedulerState, job: Job, now: float) -> None:
    """Updates the dependencies on this job."""
    if state.dependencies.dependents_of(job.id):
        update_dependents_of(state, job.id, job.progress(), now)


def update_dependents_of(state: SchedulerState, target: int, progress: JobProgress, now: float) -> None:
    for number in state.dependencies.dependents_of(target):
        other = state.jobs.get(number)
        if other is not None and other.state is JobState.DEPEND:  # It may have been cancelled in this step.
            _update_dependencies(state, other, target, progress, now)
    if progress.is_over:
        state.dependencies.drop_target(target)


def _update_dependencies(
    state: SchedulerState, job: Job, target: int, progress: JobProgress, now: float
) -> None:
    for dependency in job.spec.depends:
        if dependency.job != target or dependency.description not in job.open_dependencies:
            continue
        verdict = dependency_state(dependency.scheme, progress)
        if verdict is DependencyState.SATISFIED:
            job.open_dependencies.discard(dependency.description)
            state.journal.log(job, "dependency-remove", now, description=dependency.description)
        elif verdict is DependencyState.UNSATISFIABLE:
            never_started = not progress.had_alloc and dependency.scheme is not Scheme.AFTER_ANY
            why = "job never started" if never_started else "can never be satisfied"
            note = f"dependency {dependency.description} {why}"
            raise_exception(state, job, now, ExceptionType.DEPENDENCY, note)
            return
    leave_depend(state, job, now)


def release_singleton(state: SchedulerState, owner: str, name: str, now: float) -> None:
    """Releases the first job that waits for all others of the same owner and name to finish."""
    if not state.dependencies.has_singleton(owner, name):
        return
    waiting_job: Job | None = None
    for number in state.dependencies.jobs_named(owner, name):
        other = state.jobs[number]
        if "singleton" not in other.open_dependencies:
            return
        if waiting_job is None and other.state is JobState.DEPEND:  # It may have been cancelled in this step.
            waiting_job = other
    if waiting_job is None:
        state.dependencies.drop_singleton(owner, name)
        return
    waiting_job.open_dependencies.discard("singleton")
    state.journal.log(waiting_job, "dependency-remove", now, description="singleton")
    leave_depend(state, waiting_job, now)


# The end


def raise_exception(
    state: SchedulerState,
    job: Job,
    now: float,
    exception_type: ExceptionType,
    note: str,
    severity: int = 0,
    *,
    sent: int = signal.SIGTERM,
) -> None:
    """Records an exception. Severity 0 ends the job."""
    state.journal.log(job, "exception", now, type=exception_type.value, severity=severity, note=note)
    if severity != 0:
        return
    state.queue.dequeue(job.id)
    for member in job.members.values():
        state.queue.dequeue(job.id, member.key)
    reason = _END_REASONS.get(exception_type, EndReason.JOB_FAILED)
    end_members(state, job, sent, state.settings.grace_s, reason, note)
    state.worklist.advance(job.id)


def evict_group(
    state: SchedulerState, job: Job, now: float, exception_type: ExceptionType, note: str
) -> None:
    """Ends a job and evicts its members, so that their controllers create replacements for another start."""
    state.journal.log(job, "exception", now, type=exception_type.value, severity=0, note=note)
    for member in job.members.values():
        state.queue.dequeue(job.id, member.key)
    live = tuple(member.key for member in job.live_members())
    if live:
        state.intents.open(Evict(state.intents.next_number(), job.id, live))
    state.worklist.advance(job.id)


def end_members(
    state: SchedulerState, job: Job, sent: int, grace_s: float | None, reason: EndReason, note: str = ""
) -> None:
    members = tuple(member.key for member in job.live_members())
    if members:
        state.intents.open(End(state.intents.next_number(), job.id, members, sent, grace_s, reason, note))


def member_ended(
    state: SchedulerState,
    job: Job,
    member: Member,
    status: int,
    cause: EndCause,
    now: float,
    message: str = "",
    *,
    event: MemberEvent = MemberEvent.END,
    may_be_replaced: bool = True,
) -> None:
    """Marks a member as ended. Its slot is released, or kept for its replacement, at the end of the step."""
    was_live = member.phase.is_live
    if not state.journal.change_phase(job, member, event):
        return
    job.set_release_pending(member, was_live)
    member.status, member.cause, member.ended_at = status, cause, now
    member.message = escape_controls(message)  # Kubelets and agents choose their own words.
    state.queue.dequeue(job.id, member.key)
    state.workloads.member_left(job.workload, member.key)
    state.members.unassign(member.key, member.node)
    state.cluster.remove_external_usage(EXCESS_KEY + member.key)
    state.journal.forgotten.append(member.key)
    state.worklist.advance(job.id)
    if cause in _INFRASTRUCTURE_CAUSES and not job.is_infrastructure_failure:
        job.is_infrastructure_failure = True
        state.journal.touch(job)
    state.intents.resolve_all(member.key)
    is_replaced = may_be_replaced and job.ownership.is_replaced(state, job, member)
    if was_live and is_replaced:
        vacancies.leave(state, job, member, now)
    elif not was_live and member.replaces:
        vacancies.replacement_gone(state, job, member, now, is_replaced=is_replaced)


def return_to_queue(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """Returns a placed member that has not started to the queue, where it waits for another node."""
    state.intents.resolve_all(member.key)
    state.members.unassign(member.key, member.node)
    state.cluster.remove_external_usage(EXCESS_KEY + member.key)
    state.journal.change_phase(job, member, MemberEvent.RETURN)
    if member.slot not in used_slots(state, job, member.node):
        state.worklist.release_slots(job.id, [member.slot])
    member.node, member.slot, member.grants = "", -1, ()
    member.brings = member.late_brings = ()
    if not member.replaces and job.ownership.is_controlled:
        job.set_replaces(member, member.key)
    if job.incomplete_since is None:
        job.incomplete_since = now
        state.journal.touch(job)
        state.wake(now + state.settings.gang_repair_timeout_s, job.id)
    state.worklist.enqueue_late(job.id, member.key)


def node_failed(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """Ends a member whose node is removed, or was unreachable for too long."""
    member_ended(state, job, member, signal.SIGKILL, EndCause.NODE_FAILURE, now, event=MemberEvent.NODE_FAIL)
    if not job.is_ending:
        job.ownership.node_failed(state, job, member, now)


def advance_jobs(state: SchedulerState, now: float) -> None:
    """Releases the slots of ended members and moves their jobs on."""
    while jobs := state.worklist.take_jobs_to_advance():
        for number in jobs:
            job = state.jobs.get(number)
            if job is not None:
                state.subject = job
                _note_running(state, job, now)
                vacancies.settle(state, job, now)
                free_ended_slots(state, job, now)
                _drop_ended_members(state, job)
                _settle_job(state, job, now)
    state.subject = None


def _drop_ended_members(state: SchedulerState, job: Job) -> None:
    """Drops old ended members: a workload may replace members without limit. Only totals are kept."""
    if not job.ownership.is_controlled or len(job.members) <= _PAST_KEPT or job.state is not JobState.RUN:
        return
    count = job.members_by_phase[MemberPhase.ENDED]
    if count <= _PAST_KEPT + 2 * (len(job.members) - count):
        return
    ended = [
        one
        for one in job.members.values()
        if one.phase is MemberPhase.ENDED and not one.slot_release_pending and one.vacant_since is None
    ]
    if len(ended) <= _PAST_KEPT + 2 * (len(job.members) - len(ended)):
        return
    replaced = {member.replaces for member in job.members.values() if member.replaces != member.key}
    for member in ended[:-_PAST_KEPT]:
        job.past_members += 1
        if member.key not in replaced:
            job.past_status = max(job.past_status, _exit_of(member))
        _remove_member(state, job, member.key)
    state.journal.touch(job)
    _drop_resources(state, job, {member.node for member in job.members.values()})


def _remove_member(state: SchedulerState, job: Job, key: str) -> None:
    job.remove_member(key)
    state.members.remove(key)
    state.journal.touch_member(job, key)


def _drop_resources(state: SchedulerState, job: Job, nodes: Collection[str]) -> None:
    """Forgets what a job has held on other nodes than these."""
    for node in [node for node in job.resources_by_node if node not in nodes]:
        del job.resources_by_node[node]
        state.journal.add(JobNodeGone(job.id, node))


def _note_running(state: SchedulerState, job: Job, now: float) -> None:
    """Records `start` when every member of the group has started."""
    if job.state is not JobState.RUN or job.started_at is not None or not job.members:
        return
    if not job.members_not_started:
        job.started_at = max(member.started_at or now for member in job.members.values())
        state.journal.log(job, "start", now)
        update_dependents(state, job, now)


def _settle_job(state: SchedulerState, job: Job, now: float) -> None:
    """Finishes a job that has no live member, unless further members may appear."""
    if job.state not in (JobState.RUN, JobState.CLEANUP) or job.has_live_members:
        return
    is_fatal = job.is_ending
    if job.state is JobState.RUN and job.ownership.may_grow(job):
        return
    _finish(state, job, now, is_fatal)


def _finish(state: SchedulerState, job: Job, now: float, is_fatal: bool) -> None:
    has_run = any(member.started_at is not None for member in job.members.values())
    deleted_at = _deleted_at(job) if job.ownership.is_controlled and not is_fatal else None
    if deleted_at is not None and _status(job, is_fatal=False) == 0:
        kind, note = ExceptionType.CANCEL, "its owner has deleted or suspended it"
        if deleted_at >= _ended_by_controller_at(job) - _END_S:
            kind, note = ExceptionType.TIMEOUT, "its controller has ended it at its time limit"
        state.journal.log(job, "exception", now, type=kind.value, severity=0, note=note)
        is_fatal = True
    if has_run or not is_fatal:
        state.journal.log(job, "finish", now, status=_status(job, is_fatal))
    if job.has_logged("alloc"):
        state.journal.log(job, "release", now, ranks="all", final=True)
        free_all(state, job, now)
        state.journal.log(job, "free", now)
    if job.ownership.may_requeue(job, state.settings):
        _requeue(state, job, now)
        return
    result, status = result_of(job.log)
    job.result, job.status, job.ended_at = result.value, status, now
    state.journal.log(job, "clean", now)
    forget_job(state, job, now)


def _status(job: Job, is_fatal: bool) -> int:
    """The wait status of a job: the largest exit code of its members, 128 + N for signal N."""
    replaced = {member.replaces for member in job.members.values() if member.replaces != member.key}
    if job.ownership.is_controlled and not is_fatal:
        replaced |= {one.key for one in job.members.values() if one.cause is EndCause.GONE}
    worst = max((_exit_of(one) for one in job.members.values() if one.key not in replaced), default=0)
    worst = max(worst, job.past_status)
    return 256 if worst == 0 and is_fatal else worst << 8


def _deleted_at(job: Job) -> float | None:
    """When the last members of a group were deleted; None if it has ended by itself.

    Members that were deleted before, such as those that a smaller Deployment does not need, say nothing.
    """
    ends = [
        (one.ended_at or 0.0, one.cause is EndCause.GONE)
        for one in job.members.values()
        if one.phase is MemberPhase.ENDED
    ]
    ended_at, was_deleted = max(ends, default=(0.0, False))
    return ended_at if was_deleted else None


def _ended_by_controller_at(job: Job) -> float:
    """When the controller of a workload deletes its members: at its deadline, which may be known late."""
    workload = job.reported_workload
    if workload is None:
        return inf
    ends = (workload.deadline_at, job.end_at if workload.enforced_by_backend else None)
    return min((at for at in ends if at is not None), default=inf)


def _exit_of(member: Member) -> int:
    low = member.status & 0x7F
    return 128 + low if low else member.status >> 8


def _requeue(state: SchedulerState, job: Job, now: float) -> None:
    for key in list(job.members):
        _remove_member(state, job, key)
    job.attempt += 1
    job.is_infrastructure_failure = False
    job.placed_at = job.end_at = job.started_at = job.incomplete_since = None
    _drop_resources(state, job, ())
    job.exception = None
    job.promise = None
    state.journal.log(job, "requeue", now, attempt=job.attempt)
    prioritise(state, job, now)


def forget_job(state: SchedulerState, job: Job, now: float) -> None:
    """Removes an inactive job from the state; the store keeps it."""
    state.jobs.pop(job.id, None)
    state.admission.remove(job.id)
    state.plans.forget(job.id)
    state.satisfiability.forget(job.id)
    for member in job.members:
        state.queue.dequeue(job.id, member)
        state.members.remove(member)
    _carry_over_members(state, job)
    state.dependencies.forget(job)
    update_dependents(state, job, now)
    release_singleton(state, job.owner, job.spec.name, now)
    status = WorkloadStatus.INADMISSIBLE if _is_inadmissible(job) else WorkloadStatus.FINISHED
    state.publish_status(job, status, _final_reason(job))
    state.workloads.remove_job(job.workload)


def _carry_over_members(state: SchedulerState, job: Job) -> None:
    """Lets the remaining members of a workload form its next job.

    If the job was cancelled or did not assemble in time, the workload becomes inadmissible instead.
    """
    members_of_next_job = state.workloads.take_next_members(job.workload)
    if job.workload not in state.workloads:
        return
    waiting = {
        member.key: MemberSet(
            job.workload,
            member.key,
            member.index,
            member.request.requests,
            member.request.constraint,
            member.is_ready,
            member.is_recreated,
            member.name,
            member.request.brings,
            member.request.forbids,
            member.request.prefers,
        )
        for member in job.members.values()
        if member.phase is MemberPhase.WAITING and member.request is not None
    }
    left = {**waiting, **members_of_next_job}
    if not _is_inadmissible(job):
        state.worklist.members_to_readmit.extend(left.values())
    elif left:
        state.workloads.mark_inadmissible(job.workload, left, _final_reason(job))


def _is_inadmissible(job: Job) -> bool:
    return job.exception_type in (ExceptionType.CANCEL, ExceptionType.ASSEMBLY)


def _final_reason(job: Job) -> str:
    """For the owner of members that still wait."""
    note = job.exception.note if job.exception is not None else ""
    what = "canceled" if job.exception_type is ExceptionType.CANCEL else "given up"
    text = f"its job {encode_jobid(job.id)} was {what}"
    return f"{text}: {note}" if note else text
