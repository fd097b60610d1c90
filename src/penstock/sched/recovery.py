"""Restores a scheduler from what a store has recorded.

Jobs with all that they and their workloads specify, queues, drains, open intents and ids are restored at
once. Allocations are booked with the first snapshot, when the nodes are known. `snapshots` repairs the
differences between record and snapshot; an interrupted watch and a restarted scheduler are the same case.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import cast

from penstock.errors import Corrupt
from penstock.model.job import JobState, state_after
from penstock.model.jobid import JobIds
from penstock.protocol.commands import Submission
from penstock.protocol.facts import Requeue, WorkloadSet
from penstock.protocol.intents import (
    Assignment,
    End,
    EndReason,
    Evict,
    Intent,
    IntentKind,
    Place,
)
from penstock.sched.cluster import Cluster
from penstock.sched.controlled_jobs import CONTROLLED
from penstock.sched.dependencies import (
    DependencyState,
    Scheme,
    begin_time_of,
    begin_time_text,
    dependency_state,
)
from penstock.sched.gangs import limit_at
from penstock.sched.job import Job, job_from
from penstock.sched.jobspec import SchedulingSpec, spec_of_submission, spec_of_workload
from penstock.sched.lifecycle import enqueue
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import AllocationNew, IntentDone, IntentNew, JobRow, Recorded
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import Settings
from penstock.sched.state import SchedulerState
from penstock.sched.subjects import Culprit, CulpritKind, Fault, subject_of, subject_of_job
from penstock.sched.submitted_jobs import SUBMITTED

__all__ = ["scheduler_from"]


def scheduler_from(
    settings: Settings,
    recorded: Recorded,
    now: float,
    set_aside: Mapping[int, str] = MappingProxyType({}),
    intents_set_aside: Container[int] = (),
) -> Scheduler:
    """Restores all jobs but those in `set_aside`, with the reason of each, and all intents but these.

    Raises `Fault` with the job or intent that cannot be restored.
    """
    highest = recorded.highest
    ids = JobIds(recorded.began_at, highest.job)
    state = SchedulerState(settings, Cluster(settings.match_policy), ids, highest)
    try:
        _restore(state, recorded, now, set_aside)
        for intent in recorded.intents:
            if intent.job in state.set_aside:
                state.set_aside.note_intent(intent.job, intent.id)
            elif intent.id not in intents_set_aside:
                _restore_intent(state, intent)
    except Fault:
        raise
    except Exception as error:
        raise Fault(subject_of(state, state.subject), error) from error
    return Scheduler(state)


def _restore(state: SchedulerState, recorded: Recorded, now: float, set_aside: Mapping[int, str]) -> None:
    state.nodes.restore(recorded.nodes, recorded.drains)
    state.queue.restore(recorded.queues, recorded.keys)
    for record in recorded.inadmissible:
        state.workloads.restore_inadmissible(record)
    for row in recorded.jobs:
        if row.new.id in set_aside:
            state.set_aside.add(row, set_aside[row.new.id])
            continue
        try:
            if row.error:
                raise Corrupt(row.error)
            job = _job(state, row, now)
        except Exception as error:
            raise Fault(subject_of_job(row.new.id, row.new.workload), error) from error
        if job.state is JobState.INACTIVE:
            state.dependencies.add_finished(job.id, job.progress())
        else:
            state.jobs[job.id] = job
    state.claims.restore(recorded.claims, state.jobs)
    for job in sorted(state.jobs.values(), key=lambda job: (job.seen_at, job.id)):
        if job.state.is_pending and job.ownership.is_controlled:
            state.subject = job
            state.admission.add(job.id, job.owner, job.queue, job.seen_at)
            job.outside_reason = state.admission.outside_reason(job.id)
    for job in state.jobs.values():
        state.subject = job
        _restore_indexes(state, job, now)
    state.subject = None
    _allocations(state, recorded.allocations)


def _job(state: SchedulerState, row: JobRow, now: float) -> Job:
    ownership = CONTROLLED if row.new.workload else SUBMITTED
    job = job_from(row, _spec(state, row, now), ownership)
    if row.log and state_after(row.log) is not job.state:
        raise Corrupt(
            f"job {job.id} is in {job.state.value}, but its log leads to {state_after(row.log).value}"
        )
    return job


def _spec_of_workload(state: SchedulerState, row: JobRow, now: float) -> SchedulingSpec:
    """What a workload specifies. The requests of its members are reported with the first snapshot.

    The record of an earlier version has no workload.
    """
    record = row.live.record
    workload = record.workload or WorkloadSet(row.new.workload, row.new.name, 1)
    limit_s = limit_at(workload, now)
    if record.placed_at is not None:
        limit_s = None if record.end_at is None else round(record.end_at - record.placed_at)
    return spec_of_workload(workload, [], state.settings, limit_s)


def _spec(state: SchedulerState, row: JobRow, now: float) -> SchedulingSpec:
    document = row.new.spec
    if row.new.workload:
        return _spec_of_workload(state, row, now)
    submission = Submission(
        cast(str, document["jobspec"]),
        row.new.owner,
        cast(int, document.get("urgency", 16)),
        Requeue(document.get("requeue", "never")),
    )
    return spec_of_submission(submission, state.settings, is_recorded=True)


def _restore_indexes(state: SchedulerState, job: Job, now: float) -> None:
    """Adds an active job to all indexes."""
    state.dependencies.add_name(job)
    if job.workload:
        state.workloads.set_job(job.workload, job.id)
        if not job.awaits_queue:
            state.workloads.accept(job.workload, job.queue)
    if job.reported_workload is not None and not job.is_workload_gone:
        state.workloads.set(job.reported_workload)
    for member in job.members.values():
        state.members.add(member.key, job.id)
        if member.phase.is_live:
            state.members.assign(member.key, job.id, member.node)
        if member.is_slot_kept:
            state.members.keep(member.key, member.node)
        for node in member.refused_by:
            state.members.add_refusal(node, job.id, member.key)
        if member.phase is MemberPhase.LOST:
            lost_at = now if member.lost_at is None else member.lost_at
            state.wake(lost_at + state.settings.lost_timeout_s, job.id)
    if job.state is JobState.DEPEND:
        _restore_dependencies(state, job)
    timeout_s = state.settings.replacement_timeout_s
    vacant = [_plus(job.members[key].vacant_since, timeout_s) for key in job.vacancies]
    for at in (*vacant, job.end_at, _plus(job.incomplete_since, state.settings.gang_repair_timeout_s)):
        if at is not None:
            state.wake(at, job.id)
    state.worklist.advance(job.id)
    enqueue(state, job, job.times.get(JobState.SCHED.value, now))
    if job.state is JobState.RUN and not job.ownership.is_controlled:
        for member in job.members.values():
            if member.phase is MemberPhase.WAITING:
                state.worklist.enqueue_late(job.id, member.key)


def _plus(at: float | None, more_s: float) -> float | None:
    return None if at is None else at + more_s


def _restore_dependencies(state: SchedulerState, job: Job) -> None:
    removed = {
        str(event.context.get("description")) for event in job.log if event.name == "dependency-remove"
    }
    for dependency in job.spec.depends:
        if dependency.description in removed:
            continue
        if dependency.scheme is Scheme.SINGLETON:
            state.dependencies.add_singleton(job.owner, job.spec.name)
            job.open_dependencies.add("singleton")
            continue
        target = state.jobs.get(dependency.job)
        progress = target.progress() if target is not None else state.dependencies.progress_of(dependency.job)
        if progress is None or dependency_state(dependency.scheme, progress) is DependencyState.PENDING:
            job.open_dependencies.add(dependency.description)
            state.dependencies.add(job.id, dependency.job)
    logged_at = begin_time_of(job.log)
    if logged_at is not None:
        begin_at = job.spec.begin_at
        if begin_at is None or begin_time_text(begin_at) != begin_time_text(logged_at):
            begin_at = logged_at  # An earlier version did not record it elsewhere.
            job.spec = replace(job.spec, begin_at=begin_at)
        job.waits_for_begin_time = True
        state.wake(begin_at, job.id)


def _allocations(state: SchedulerState, records: tuple[AllocationNew, ...]) -> None:
    by_job: dict[int, list[AllocationNew]] = {}
    for record in records:
        by_job.setdefault(record.job, []).append(record)
    for number, parts in by_job.items():
        job = state.jobs.get(number)
        if job is not None:
            state.cluster.restore_later(number, parts, parts_made=job.parts_made, slots_made=job.slots_made)
            job.has_allocation = True
        elif (aside := state.set_aside.get(number)) is not None:
            state.cluster.restore_later(number, parts)
            aside.has_allocation = True


def _restore_intent(state: SchedulerState, row: IntentNew) -> None:
    """Opens a recorded intent again. One that is set aside stays recorded, and is not applied."""
    try:
        if row.error:
            raise Corrupt(row.error)
        found = _intent(state, row)
        waits_for = set(cast(list[str], row.payload["members"]))
        waits_for -= {key for key in waits_for if _is_resolved(state, found, key)}
    except Exception as error:
        job = state.jobs.get(row.job)
        of_job = subject_of_job(job.id, job.workload) if job is not None else None
        raise Fault(of_job or Culprit(CulpritKind.INTENT, str(row.id)), error) from error
    if waits_for:
        state.intents.track(found, waits_for)
    else:
        state.journal.add(IntentDone(row.id))


def _intent(state: SchedulerState, row: IntentNew) -> Intent:
    members = tuple(cast(list[str], row.payload["members"]))
    if row.kind is IntentKind.END:
        grace_s = cast(float | None, row.payload.get("grace_s"))
        return End(
            row.id,
            row.job,
            members,
            cast(int, row.payload["signal"]),
            grace_s,
            EndReason(row.payload["why"]),
            str(row.payload.get("note", "")),
        )
    if row.kind is IntentKind.EVICT:
        return Evict(row.id, row.job, members)
    job = state.jobs[row.job]
    assignments = tuple(
        Assignment(member.key, member.index, member.node, member.grants)
        for key in members
        if (member := job.members.get(key)) is not None
    )
    return Place(
        row.id,
        row.job,
        job.workload,
        assignments,
        cast(float | None, row.payload["end_at"]),
        len(job.members),
        job.ownership.backend_spec(job),
    )


def _is_resolved(state: SchedulerState, intent: Intent, key: str) -> bool:
    """Whether the recorded phase of a member shows that the intent is done for it."""
    job = state.jobs.get(intent.job)
    member = job.members.get(key) if job is not None else None
    if member is None:
        return intent.job != 0
    if isinstance(intent, Place):
        was_silent = member.phase is MemberPhase.LOST and member.started_at is None
        return member.phase is not MemberPhase.PLACING and not was_silent
    return member.phase is MemberPhase.ENDED
