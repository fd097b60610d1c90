"""What the owners of workloads are told while their jobs wait: the published reasons.

A reason that follows from the job, its workload or its queue (held, delayed, incomplete) is published at the
end of the step that changed it. Reasons that depend on resources and other jobs are published by each deep
cycle, for the whole queue:

- The first `forecast_depth` entries have a full reason, which names who holds what they need.
- Those behind them have a short one, without names: names change with every start and end, and a long queue
  would be told anew each time. Nobody waits for one certain job while hundreds are ahead.
- At most `forecast_depth` distinct requests are explained in one cycle; others are told how to ask.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from penstock.model.jobid import encode_jobid
from penstock.protocol.intents import WorkloadStatus
from penstock.sched.job import Job
from penstock.sched.queue import QueueEntry
from penstock.sched.reasons import (
    ReasonMemo,
    WaitCause,
    WaitReason,
    member_wait_reason,
    own_reason,
    redacted,
    stopped_reason,
    wait_reason,
)
from penstock.sched.state import SchedulerState

__all__ = ["publish_own_reasons", "publish_waiting"]

_STATUSES: Final = {
    WaitCause.ASSEMBLING: WorkloadStatus.ASSEMBLING,
    WaitCause.DEPENDENCY: WorkloadStatus.DELAYED,
    WaitCause.BEGIN_TIME: WorkloadStatus.DELAYED,
    WaitCause.HELD: WorkloadStatus.HELD,
    WaitCause.QUEUE_DISABLED: WorkloadStatus.QUEUE_DISABLED,
    WaitCause.QUEUE_STOPPED: WorkloadStatus.QUEUE_STOPPED,
    WaitCause.UNSATISFIABLE: WorkloadStatus.UNSATISFIABLE,
    WaitCause.INCOMPLETE: WorkloadStatus.INCOMPLETE,
}
_OWN: Final = frozenset(_STATUSES.values())
_UNPLANNED: Final = "the next scheduling cycle will consider it"
_OTHERS_FIRST: Final = "it would fit, but jobs ahead of it in the queue come first"


def publish_own_reasons(state: SchedulerState, jobs: Iterable[Job]) -> None:
    """Publishes why these jobs are not in the queue, or that the reason why they were not is gone."""
    for job in jobs:
        if not job.ownership.is_controlled or not job.state.is_pending or job.is_ending:
            continue
        state.subject = job
        found = own_reason(state, job)
        if found is not None:
            _publish_own(state, job, found)
        elif state.workloads.last_status(job.workload) in _OWN:
            state.publish_status(job, WorkloadStatus.WAITING, _UNPLANNED)
    state.subject = None


def _publish_own(
    state: SchedulerState, job: Job, found: WaitReason, *, member: str = "", is_head: bool = False
) -> None:
    text = found.clause if found.cause is WaitCause.UNSATISFIABLE else found.message
    if found.cause is WaitCause.BEGIN_TIME and job.spec.begin_at is not None:
        text = f"{text}, {datetime.fromtimestamp(int(job.spec.begin_at), UTC):%Y-%m-%dT%H:%M:%SZ}"
    status = _STATUSES.get(found.cause, WorkloadStatus.WAITING)
    state.publish_status(job, status, text, member=member, is_head=is_head)


def publish_waiting(state: SchedulerState, now: float) -> None:
    """Publishes why queued workloads and late members wait, and when jobs are expected to start."""
    memo: ReasonMemo = {}
    explained: set[int] = set()  # shapes
    depth = state.settings.forecast_depth
    for position, entry in enumerate(state.queue.in_order()):
        job = state.subject = state.jobs[entry.job]
        if not job.ownership.is_controlled:
            continue
        shape = state.queue.shape_of(entry)
        if position >= depth and len(explained) >= depth and shape not in explained:
            _publish_unexplained(state, job, entry)
            continue
        explained.add(shape)
        _publish_entry(state, job, entry, now, memo, is_head=position < depth)
    state.subject = None


def _publish_unexplained(state: SchedulerState, job: Job, entry: QueueEntry) -> None:
    own = stopped_reason(state, job.queue) if entry.member else own_reason(state, job)
    if own is not None:
        _publish_own(state, job, own, member=entry.member)
        return
    text = f"many jobs are ahead of it; `penstock job why {encode_jobid(job.id)}` says what it needs"
    state.publish_status(job, WorkloadStatus.WAITING, text, member=entry.member)


def _publish_entry(
    state: SchedulerState, job: Job, entry: QueueEntry, now: float, memo: ReasonMemo, *, is_head: bool
) -> None:
    if entry.member:
        found, start_at = member_wait_reason(state, entry, now, memo), None
        status = _STATUSES.get(found.cause, WorkloadStatus.WAITING)
        if job.incomplete_reason:
            status = WorkloadStatus.INCOMPLETE
    else:
        found = wait_reason(state, job, now, memo)
        if found.cause in _STATUSES:
            _publish_own(state, job, found, is_head=is_head)
            return
        status = WorkloadStatus.WAITING
        start_at = job.forecast.start_at if job.forecast is not None else None
    text = redacted(found, (job.owner,)).message if is_head else _brief(found)
    state.publish_status(job, status, text, start_at, member=entry.member, is_head=is_head)


def _brief(found: WaitReason) -> str:
    """A reason without the names of others."""
    if not found.blockers:
        return found.message
    if found.cause is WaitCause.QUEUE_ORDER:  # Whether it would fit is not known.
        return "the job".join(found.around)
    return found.clause if found.cause is WaitCause.RESOURCES else _OTHERS_FIRST
