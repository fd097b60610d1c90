"""Workloads and their members, as a backend reports them.

The first member of a workload creates its job. The job assembles when as many members are ready as the
workload needs, and these are then placed as a whole. Every further member is late, whether it appears after
the start or is ready before: it is enqueued on its own and extends the allocation. `members` handles what
happens to members after their placement.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.engine.request import Request
from penstock.model.constraint import HostIn, Not
from penstock.model.job import URGENCY_HOLD, ExceptionType, JobState
from penstock.protocol.facts import (
    EndCause,
    MemberSet,
    WorkloadSet,
)
from penstock.protocol.intents import WorkloadStatus
from penstock.sched import vacancies
from penstock.sched.commands import add_job
from penstock.sched.controlled_jobs import CONTROLLED
from penstock.sched.dependencies import begin_time_text
from penstock.sched.job import Job, Member
from penstock.sched.jobspec import (
    MemberRequest,
    group_of,
    member_request,
    order_of,
    placement_of,
    spec_of_workload,
    with_queue_constraint,
)
from penstock.sched.lifecycle import (
    member_ended,
    raise_exception,
    set_urgency,
)
from penstock.sched.limit_changes import follow_limit, with_limit_of
from penstock.sched.member_states import MemberEvent, MemberPhase
from penstock.sched.nodes import ORPHAN_KEY, external_usage_gone, update_usage
from penstock.sched.queue import order_key
from penstock.sched.records import JobNew
from penstock.sched.state import SchedulerState

__all__ = [
    "assemble",
    "assembly_deadline",
    "enqueue_late",
    "limit_at",
    "member_gone",
    "member_set",
    "workload_gone",
    "workload_set",
]


# Groups


def workload_set(state: SchedulerState, fact: WorkloadSet, now: float) -> None:
    known = state.workloads.get(fact.workload)
    job = state.job_of_workload(fact.workload)
    if job is not None and job.state is JobState.RUN and fact.keeps_limit:
        fact = with_limit_of(fact, job.reported_workload)
    has_changed = state.workloads.set(fact)
    if job is None:
        if known is not None and _asks_less(known, fact):
            state.worklist.members_to_readmit.extend(state.workloads.readmit(fact.workload).values())
        return
    before = job.reported_workload
    if before != fact:
        job.reported_workload = fact
        state.journal.touch(job)
        if before is not None:
            # What a user has set by a command stays as it is until the workload itself changes.
            if before.urgency != fact.urgency and job.state.is_pending and not job.is_ending:
                set_urgency(state, job, fact.urgency, now)
            follow_limit(state, job, before, fact, now)
    if has_changed:
        state.worklist.assemble(job.id)
        state.worklist.advance(job.id)  # Its controllers may want another number of members.


def _asks_less(before: WorkloadSet, after: WorkloadSet) -> bool:
    """Whether a workload that did not assemble may assemble by now."""
    waits_longer = before.assembly_timeout_s is not None and (
        after.assembly_timeout_s is None or after.assembly_timeout_s > before.assembly_timeout_s
    )
    return after.size < before.size or waits_longer


def member_set(state: SchedulerState, fact: MemberSet, now: float) -> None:
    workload = state.workloads.get(fact.workload)
    if workload is None:
        return  # The workload is unknown or gone.
    if _is_inadmissible(state, fact):
        return
    job = state.job_of_member(fact.member)
    if job is not None and job.members[fact.member].phase is MemberPhase.ENDED:
        if job.members[fact.member].started_at is not None:
            return  # It has run: the report is outdated, and a replacement has a key of its own.
        _detach(state, job, fact.member)
        job = None
    if job is not None and job.workload != fact.workload:
        return  # It stays in the job of its first workload while that job lasts.
    job = job or state.job_of_workload(fact.workload)
    if job is not None and job.is_ending and fact.member not in job.members:
        state.workloads.add_next_member(fact)
        return
    if job is None:
        job = _new_job(state, workload, now)
    member = job.members.get(fact.member)
    if member is None:
        member = Member(fact.member, fact.index, seen_at=now, name=fact.name)
        job.add_member(member)
        state.members.add(fact.member, job.id)
        external_usage_gone(state, ORPHAN_KEY + fact.member)  # It waits, so it is on no node.
        state.workloads.drop_waiting_member(fact.member)  # It may have waited in another workload.
        state.journal.touch_member(job, member.key)
    request = MemberRequest(fact.requests, fact.constraint, fact.brings, fact.forbids, fact.prefers)
    has_changed = (member.request, member.is_ready) != (request, fact.ready)
    job.set_request(member, request, is_ready=fact.ready)
    if has_changed and member.phase is MemberPhase.WAITING:
        state.workloads.member_appeared(job.workload, member.key)
        state.journal.touch_status(job)
    if (member.is_recreated, member.name) != (fact.recreated, fact.name):
        job.set_recreated(member, fact.recreated)
        member.name = fact.name
        state.journal.touch_member(job, member.key)
    if member.phase.is_live:  # Its requests may have grown since it was placed.
        update_usage(state, job, member, fact.requests, fact.brings)
    if job.state is JobState.DEPEND or (has_changed and job.state.is_pending):
        state.worklist.assemble(job.id)
    elif job.state is JobState.RUN and member.phase is MemberPhase.WAITING:
        if member.is_recreated and not member.replaces:
            vacancies.fill(state, job, member, now)
        enqueue_late(state, job, member)


def _is_inadmissible(state: SchedulerState, fact: MemberSet) -> bool:
    """Whether the workload of a member is inadmissible.

    A new member makes it admissible again, and so does one that becomes ready.
    """
    known = state.workloads.inadmissible(fact.workload)
    if known is None:
        return False
    before = known.waiting.get(fact.member)
    becomes_ready = before is not None and not before.ready and fact.ready
    if fact.member in known.record.members and not becomes_ready:
        state.workloads.add_inadmissible_member(fact)
        return True
    state.worklist.members_to_readmit.extend(state.workloads.readmit(fact.workload).values())
    return False


def _detach(state: SchedulerState, job: Job, key: str) -> None:
    """Removes a member from its job. If it is reported again, it counts as a new one."""
    member = job.members[key]
    if member.vacant_since is not None:
        vacancies.withdraw(state, job, member)
    if member.slot_release_pending:
        state.worklist.release_slots(job.id, [member.slot])
    job.remove_member(key)
    state.members.remove(key)
    state.journal.touch_member(job, key)


def _new_job(state: SchedulerState, workload: WorkloadSet, now: float) -> Job:
    number = state.ids.next(now)
    document: dict[str, object] = {
        "workload": workload.workload,
        "name": workload.name,
        "urgency": workload.urgency,
    }
    spec = spec_of_workload(workload, [], state.settings, workload.limit_s)
    job = Job(
        number,
        workload.owner,
        spec,
        document,
        now,
        CONTROLLED,
        workload.workload,
        queue=spec.queue,
        urgency=workload.urgency,
    )
    job.reported_workload = workload
    job.class_value = workload.class_value
    job.is_assembled = False
    _enter_queue(state, job)
    state.journal.add(JobNew(number, workload.owner, workload.name, now, document, workload.workload))
    state.journal.log(job, "submit", now, userid=workload.owner, urgency=workload.urgency, flags=0, version=1)
    state.journal.log(job, "validate", now)
    state.workloads.set_job(workload.workload, number)
    state.admission.add(number, job.owner, job.queue, job.seen_at)
    job.outside_reason = state.admission.outside_reason(number)
    add_job(state, job, now)
    return job


def _enter_queue(state: SchedulerState, job: Job) -> None:
    """A disabled queue takes no new workload, but all jobs of one that it has accepted."""
    is_accepted = state.workloads.is_accepted(job.workload, job.queue)
    job.awaits_queue = not is_accepted and not state.queue.state_of(job.queue).enabled
    if not job.awaits_queue:
        state.workloads.accept(job.workload, job.queue)


def assembly_deadline(job: Job, workload: WorkloadSet) -> float | None:
    """When assembly fails: the timeout counts from the time at which the last member was first seen."""
    if workload.assembly_timeout_s is None:
        return None
    last = next(reversed(job.members.values()), None)  # They are in the order of their appearance.
    return (job.seen_at if last is None else last.seen_at) + workload.assembly_timeout_s


def assemble(state: SchedulerState, job: Job, now: float) -> None:
    """Builds the request of a job once enough members of its workload are ready."""
    workload = state.workloads.get(job.workload)
    if workload is None or not job.state.is_pending:
        return
    _update_begin_time(state, job, workload.begin_at, now)
    job.assembly.set_size(workload.size)
    if not job.assembly.is_complete:
        if job.is_assembled:  # A member was removed: the group assembles again.
            job.is_assembled = False
            state.queue.dequeue(job.id)
            state.journal.touch(job)
        state.journal.touch_status(job)
        until = assembly_deadline(job, workload)
        if until is not None:
            state.wake(until, job.id)
        return
    spec = spec_of_workload(workload, job.assembly.groups(), state.settings, limit_at(workload, now))
    job.spec = replace(spec, name=job.spec.name)  # A job keeps the name that it was created with.
    if job.queue != job.spec.queue:  # Its limit is that of the queue which its oldest member names by now.
        job.queue = job.spec.queue
        _enter_queue(state, job)
        state.admission.set_queue(job.id, job.queue)
        state.journal.touch(job)
    if not job.is_assembled:
        if job.state is JobState.DEPEND:
            state.journal.log(job, "assemble", now, members=len(job.assembly))
        job.is_assembled = True
        state.journal.touch(job)
    state.worklist.enqueue_assembled(job.id)


def _update_begin_time(state: SchedulerState, job: Job, begin_at: float | None, now: float) -> None:
    """Follows a workload whose begin time has changed: every further member can have a later one."""
    before = job.spec.begin_at
    if job.state is not JobState.DEPEND or begin_at == before:
        return
    job.spec = replace(job.spec, begin_at=begin_at)
    if job.waits_for_begin_time and before is not None:
        job.waits_for_begin_time = False
        state.journal.log(job, "dependency-remove", now, description=begin_time_text(before))
    if begin_at is not None and begin_at > now:
        job.waits_for_begin_time = True
        state.wake(begin_at, job.id)
        state.journal.log(job, "dependency-add", now, description=begin_time_text(begin_at))


def limit_at(workload: WorkloadSet, now: float) -> int | None:
    """The time limit: its own, or the time left until the deadline of the workload."""
    if workload.deadline_at is None:
        return workload.limit_s
    left_s = max(1, int(workload.deadline_at - now))
    return left_s if workload.limit_s is None else min(left_s, workload.limit_s)


def enqueue_late(state: SchedulerState, job: Job, member: Member) -> None:
    """Enqueues a waiting member of a started job on its own."""
    if not member.is_ready or job.urgency == URGENCY_HOLD:
        return
    if member.request is None and job.ownership.is_controlled:
        return  # It was placed before a restart, and its request is not reported yet.
    key = order_key(
        job.urgency,
        job.class_value,
        member.seen_at or job.seen_at,
        job.id,
        1,
        is_replacement=bool(member.replaces),
    )
    if not state.queue.enqueue_member(job, member.key, key, _late_request(state, job, member)):
        reason = (
            f"{member.display_name} waits outside queue {job.queue}: late members of namespace {job.owner} "
            f"have {state.settings.shapes_max} distinct requests, as many as limits.shapes_max allows"
        )
        state.publish_status(job, WorkloadStatus.WAITING, reason, member=member.key)


def _late_request(state: SchedulerState, job: Job, member: Member) -> Request:
    """The request of one member, without the nodes that refused it."""
    extra = Not((HostIn(member.refused_by),)) if member.refused_by else None
    workload = state.workloads.get(job.workload)
    placement = job.spec.request.placement if workload is None else placement_of(workload)
    order = job.spec.request.order if workload is None else order_of(workload)
    if member.request is None:
        return member_request(job.spec.request.groups[member.group], placement, extra, order)
    request = with_queue_constraint(member.request, state.settings.queue_of_job(job.queue))
    return member_request(group_of(request, 1), placement, extra, order)


def workload_gone(state: SchedulerState, workload: str, now: float) -> None:
    state.workloads.remove(workload)
    state.workloads.readmit(workload)
    job = state.job_of_workload(workload)
    if job is None:
        return
    job.is_workload_gone = True
    state.journal.touch(job)
    state.worklist.advance(job.id)
    if job.state.is_pending:
        raise_exception(state, job, now, ExceptionType.CANCEL, "its owner is deleted or finished")


def member_gone(state: SchedulerState, key: str, now: float) -> None:
    """Handles a deleted member: its slot becomes free."""
    external_usage_gone(state, ORPHAN_KEY + key)
    state.workloads.drop_waiting_member(key)
    job = state.job_of_member(key)
    member = job.members.get(key) if job is not None else None
    if job is None or member is None:
        return
    if job.state.is_pending:
        _detach(state, job, key)
        if not job.members:
            raise_exception(state, job, now, ExceptionType.CANCEL, "its last member was deleted")
        else:
            state.worklist.assemble(job.id)
        return
    member_ended(state, job, member, 9, EndCause.GONE, now, event=MemberEvent.DELETE)
