"""Views of active jobs and queues, read from the scheduler.

Every function takes the `Scheduler` and is called through `Instance.query`, which runs it between steps of
the loop: what it sees is committed and consistent.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from penstock.api.documents import (
    PendingInfo,
    WorkloadRequest,
    job_summary,
    wait_explanation,
)
from penstock.api.identity import Namespaces, sees
from penstock.api.requests import JobsQuery
from penstock.api.resource_counts import core_milli
from penstock.api.responses import JobCounts, JobSummary, NodeCounts, QueueInfo, WaitExplanation
from penstock.model.job import URGENCY_HOLD, JobEvent, JobState
from penstock.sched.job import Job, live_of, member_record
from penstock.sched.queue import OrderKey, order_key
from penstock.sched.reasons import ReasonMemo, WaitCause, WaitReason, redacted
from penstock.sched.records import JobNew, JobOverview, JobRow, JobSizes, MemberRecord, member_count
from penstock.sched.scheduler import Scheduler
from penstock.sched.set_aside import SetAsideJob

__all__ = [
    "count",
    "explain_wait",
    "find",
    "find_with_members",
    "list_queues",
    "list_summaries",
    "log_of",
    "members_of",
    "overview_of",
    "select",
    "state_metrics",
    "summary_of",
]

_JOBS_AHEAD_SHOWN: Final = 5
_NOT_PLANNED: Final = (
    WaitCause.LIMIT,
    WaitCause.HELD,
    WaitCause.QUEUE_DISABLED,
    WaitCause.QUEUE_STOPPED,
    WaitCause.UNSATISFIABLE,
)


def count(scheduler: Scheduler, _now: float) -> tuple[JobCounts, NodeCounts]:
    jobs = scheduler.state.jobs.values()
    pending = sum(1 for job in jobs if job.state.is_pending)
    up = sum(1 for node in scheduler.state.cluster.nodes.values() if node.vertex.up)
    total = len(scheduler.state.cluster.nodes)
    return JobCounts(pending, len(jobs) - pending, None), NodeCounts(up, total - up)


def state_metrics(scheduler: Scheduler, now: float) -> bytes:
    """What is in the queues and on the nodes at present, in the text format of Prometheus."""
    registry = CollectorRegistry(auto_describe=True)
    about = "Active jobs by queue and state."
    jobs = Gauge("penstock_jobs", about, ["queue", "state"], registry=registry)
    active = [state for state in JobState if state not in (JobState.NEW, JobState.INACTIVE)]
    for queue in scheduler.state.settings.queues:
        for state in active:
            jobs.labels(queue.name, state.value)
    for job in scheduler.state.jobs.values():
        jobs.labels(job.queue, job.state.value).inc()
    nodes = Gauge("penstock_nodes", "Nodes by whether jobs can start on them.", ["state"], registry=registry)
    counts = count(scheduler, now)[1]
    nodes.labels("up").set(counts.up or 0)
    nodes.labels("down").set(counts.down or 0)
    about = "Jobs that wait outside the queue because of a limit of their namespace."
    Gauge("penstock_jobs_outside_queue", about, registry=registry).set(
        scheduler.state.admission.outside_count()
    )
    about = "Started groups of which members are missing and cannot be replaced."
    incomplete = sum(1 for job in scheduler.state.jobs.values() if job.incomplete_reason)
    Gauge("penstock_jobs_incomplete", about, registry=registry).set(incomplete)
    return generate_latest(registry)


def _new_of(job: Job) -> JobNew:
    return JobNew(job.id, job.owner, job.spec.name, job.seen_at, job.recorded_spec, job.workload)


def overview_of(job: Job) -> JobOverview:
    nodes = frozenset(member.node for member in job.members.values() if member.node)
    sizes = JobSizes(member_count(members_of(job)), nodes, dict(job.resources_by_node))
    return JobOverview(_new_of(job), live_of(job), sizes)


def members_of(job: Job) -> list[MemberRecord]:
    return [member_record(member) for member in job.members.values()]


def find(scheduler: Scheduler, job_id: int) -> JobOverview | None:
    job = scheduler.state.jobs.get(job_id)
    if job is not None:
        return overview_of(job)
    aside = scheduler.state.set_aside.get(job_id)
    return _overview_of_row(aside.row) if aside is not None else None


def find_with_members(scheduler: Scheduler, job_id: int) -> tuple[JobOverview, list[MemberRecord]] | None:
    job = scheduler.state.jobs.get(job_id)
    if job is not None:
        return overview_of(job), members_of(job)
    aside = scheduler.state.set_aside.get(job_id)
    return (_overview_of_row(aside.row), list(aside.row.members)) if aside is not None else None


def _overview_of_row(row: JobRow) -> JobOverview:
    nodes = frozenset(member.node for member in row.members if member.node)
    return JobOverview(row.new, row.live, JobSizes(member_count(row.members), nodes, row.resources_by_node))


def log_of(scheduler: Scheduler, job_id: int) -> list[JobEvent] | None:
    job = scheduler.state.jobs.get(job_id)
    return list(job.log) if job is not None else None


def select(scheduler: Scheduler, query: JobsQuery, namespaces: Namespaces = None) -> list[int]:
    """Active jobs that match a query: pending ones in queue order, then running ones, newest first."""
    state = scheduler.state
    chosen = [
        job
        for job in state.jobs.values()
        if job.state in query.states
        and (query.ids is None or job.id in query.ids)
        and query.queue in ("", job.queue)
        and query.name in ("", job.spec.name)
        and query.owner in ("", job.owner)
        and sees(namespaces, job.owner)
    ]
    pending = [job for job in chosen if job.state.is_pending]
    running = [job for job in chosen if not job.state.is_pending]
    pending.sort(key=_queue_order)
    running.sort(key=lambda job: (-(job.placed_at or 0), -job.id))
    return [job.id for job in (*pending, *running)]


def _queue_order(job: Job) -> tuple[bool, OrderKey]:
    """The order of the queue; held jobs, which are not in it, come last."""
    key = order_key(job.urgency, job.class_value, job.seen_at, job.id)
    return job.urgency == URGENCY_HOLD, key


def list_summaries(
    scheduler: Scheduler, now: float, query: JobsQuery, namespaces: Namespaces = None
) -> list[JobSummary]:
    memo: ReasonMemo = {}
    ahead = scheduler.jobs_ahead() if len(scheduler.state.queue) else {}
    chosen = select(scheduler, query, namespaces)[: query.limit]
    jobs = (scheduler.state.jobs[job_id] for job_id in chosen)
    found = [_summary(scheduler, job, now, memo, ahead, namespaces) for job in jobs]
    aside = (scheduler.state.set_aside.get(job_id) for job_id in scheduler.state.set_aside)
    rest = [
        _summary_set_aside(scheduler, one)
        for one in aside
        if one is not None and _matches(one.row, query) and sees(namespaces, one.row.new.owner)
    ]
    return (found + rest)[: query.limit]


def _matches(row: JobRow, query: JobsQuery) -> bool:
    return (
        row.live.state in query.states
        and (query.ids is None or row.new.id in query.ids)
        and query.queue in ("", row.live.queue)
        and query.name in ("", row.new.name)
        and query.owner in ("", row.new.owner)
    )


def _summary_set_aside(scheduler: Scheduler, job: SetAsideJob) -> JobSummary:
    """A job that is set aside, as recorded."""
    pending = PendingInfo(reason=WaitReason(WaitCause.SET_ASIDE, job.reason))
    return job_summary(_overview_of_row(job.row), scheduler.state.nodes.ranks, pending)


def summary_of(
    scheduler: Scheduler, now: float, job_id: int, namespaces: Namespaces = None
) -> JobSummary | None:
    job = scheduler.state.jobs.get(job_id)
    if job is not None:
        return _summary(scheduler, job, now, {}, scheduler.jobs_ahead(), namespaces)
    aside = scheduler.state.set_aside.get(job_id)
    return _summary_set_aside(scheduler, aside) if aside is not None else None


def _summary(
    scheduler: Scheduler,
    job: Job,
    now: float,
    memo: ReasonMemo,
    ahead: dict[int, int],
    namespaces: Namespaces,
) -> JobSummary:
    reason = redacted(scheduler.wait_reason(job.id, now, memo), namespaces)
    pending = _pending_info(job, reason, ahead)
    return job_summary(overview_of(job), scheduler.state.nodes.ranks, pending)


def _pending_info(job: Job, reason: WaitReason, ahead: dict[int, int]) -> PendingInfo:
    # A job keeps its last forecast when it is held or its queue is stopped; that forecast no longer holds.
    is_planned = job.state is JobState.SCHED and reason.cause not in _NOT_PLANNED
    return PendingInfo(
        job.forecast if is_planned else None,
        reason,
        ahead.get(job.id),
        tuple(sorted(job.open_dependencies)),
        job.spec.begin_at if job.waits_for_begin_time else None,
        _workload_request(job) if job.workload and job.state.is_pending else None,
    )


def _workload_request(job: Job) -> WorkloadRequest:
    """The requests of the members of a workload that exist so far."""
    requests = [member.request for member in job.members.values() if member.request is not None]
    tasks = max(len(job.members), job.spec.size)
    nodes = tasks if job.spec.request.placement.distinct_nodes else None
    milli = sum(core_milli(request.requests) for request in requests)
    return WorkloadRequest(tasks, milli, nodes, job.spec.limit_s)


def explain_wait(
    scheduler: Scheduler, now: float, job_id: int, namespaces: Namespaces = None
) -> WaitExplanation | None:
    job = scheduler.state.jobs.get(job_id)
    aside = scheduler.state.set_aside.get(job_id)
    if aside is not None:
        set_aside = WaitReason(WaitCause.SET_ASIDE, aside.reason)
        return wait_explanation(job_id, aside.row.live.state, set_aside, PendingInfo(reason=set_aside), ())
    if job is None:
        return None
    reason = redacted(scheduler.wait_reason(job_id, now), namespaces)
    ahead = scheduler.jobs_ahead()
    first = sorted(ahead, key=lambda other: ahead[other])[: min(ahead.get(job_id, 0), _JOBS_AHEAD_SHOWN)]
    seen = [other for other in first if sees(namespaces, scheduler.state.jobs[other].owner)]
    return wait_explanation(job_id, job.state, reason, _pending_info(job, reason, ahead), seen)


def list_queues(scheduler: Scheduler) -> list[QueueInfo]:
    state = scheduler.state
    queues: list[QueueInfo] = []
    for index, settings in enumerate(state.settings.queues):
        queue = state.queue.state_of(settings.name)
        jobs = [job for job in state.jobs.values() if job.queue == settings.name]
        pending = sum(1 for job in jobs if job.state.is_pending)
        queues.append(
            QueueInfo(
                name=settings.name,
                default=index == 0,
                enabled=queue.enabled,
                started=queue.started,
                reason_disabled=queue.reason_disabled,
                reason_stopped=queue.reason_stopped,
                policy=str(settings.backfill),
                duration_default_s=settings.duration_default_s,
                duration_max_s=settings.duration_max_s,
                constraint=settings.constraint_text,
                namespaces=list(settings.namespaces),
                urgency_max=settings.urgency_max,
                pending_max=settings.pending_max,
                pending=pending,
                running=len(jobs) - pending,
            )
        )
    return queues
