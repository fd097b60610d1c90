"""Cancels a submitted job that is set aside.

The usual end of a job needs a job that can be restored. Instead, this one is recorded as cancelled at once,
and its members are treated as those of a job that is over: they are ended, and what they use is external
usage until they are gone. A crash in between changes nothing, because a snapshot reports them as such.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from penstock.model.job import ExceptionType, JobEvent, JobState, Result, result_of
from penstock.protocol.facts import ExternalUsageSet
from penstock.protocol.intents import End, EndReason
from penstock.sched.dependencies import JobProgress
from penstock.sched.lifecycle import update_dependents_of
from penstock.sched.nodes import ORPHAN_KEY, external_usage_set
from penstock.sched.records import (
    AllocationGone,
    ExceptionRecord,
    IntentDone,
    JobLogged,
    MemberRecord,
)
from penstock.sched.set_aside import SetAsideJob, unblock_nodes_of
from penstock.sched.state import SchedulerState

__all__ = ["cancel_set_aside"]


def cancel_set_aside(state: SchedulerState, job: SetAsideJob, note: str, now: float) -> None:
    number, live = job.row.new.id, [one for one in job.row.members if one.key in job.slots]
    _record_end(state, job, note, now)
    state.set_aside.remove(number)
    if number in state.cluster.engine.jobs:
        state.cluster.engine.release(number)
        state.cluster.remove_retired(number)
    unblock_nodes_of(state, job)
    state.queue.mark_dirty()
    for member in live:
        _end_member(state, member)
    started = any(member.started_at is not None for member in job.row.members)
    progress = JobProgress(
        had_alloc=_has_logged(job, "alloc"),
        started=started or _has_logged(job, "start"),
        is_over=True,
        is_completed=False,
        had_exception=True,
    )
    update_dependents_of(state, number, progress, now)


def _has_logged(job: SetAsideJob, name: str) -> bool:
    return any(event.name == name for event in job.row.log)


def _record_end(state: SchedulerState, job: SetAsideJob, note: str, now: float) -> None:
    """Appends what the end of a job logs, and deletes what a job that is over does not have."""
    row, journal = job.row, state.journal
    exception = ExceptionRecord(ExceptionType.CANCEL.value, 0, note)
    events = [JobEvent(now, "exception", {"type": exception.type, "severity": 0, "note": note})]
    if _has_logged(job, "alloc"):
        events += [JobEvent(now, "release", {"ranks": "all", "final": True}), JobEvent(now, "free")]
    events.append(JobEvent(now, "clean"))
    for index, event in enumerate(events, len(row.log)):
        journal.add(JobLogged(row.new.id, index, event))
    _, status = result_of((*row.log, *events))
    record = replace(row.live.record, exception=exception)
    journal.add(
        replace(
            row.live,
            state=JobState.INACTIVE,
            result=Result.CANCELED.value,
            status=status,
            ended_at=now,
            record=record,
        )
    )
    if job.has_allocation:
        journal.add(AllocationGone(row.new.id, now))
    for intent in job.intents:
        journal.add(IntentDone(intent))


def _end_member(state: SchedulerState, member: MemberRecord) -> None:
    usage = tuple((resource, units) for resource, _, units in member.grants)
    if member.node in state.cluster.nodes:
        key = ORPHAN_KEY + member.key
        external_usage_set(state, ExternalUsageSet(key, member.node, usage, brings=member.brings))
    number = state.intents.next_number()
    state.intents.open(
        End(number, 0, (member.key,), signal.SIGTERM, state.settings.grace_s, EndReason.CANCEL)
    )
