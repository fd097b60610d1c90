"""Documents of what is active, read off the scheduler. To be called between turns only."""

from __future__ import annotations

from typing import cast

from penstock.api.amounts import core_milli, cores
from penstock.api.documents import Beside, Size, job_doc, spans_of, why_doc
from penstock.api.interface import Doc, JobsQuery
from penstock.api.nodes import node_cores
from penstock.model.job import JobEvent, JobState
from penstock.model.jobid import encode_jobid
from penstock.sched.job import Job
from penstock.sched.reasons import WaitCause, WaitReason
from penstock.sched.records import JobLive, JobNew
from penstock.sched.scheduler import Scheduler
from penstock.sched.state import live_of

__all__ = [
    "active_doc",
    "active_docs",
    "active_why",
    "count",
    "log_of",
    "queue_docs",
    "rows_of",
    "select",
    "start_doc",
    "timeline",
]


def count(scheduler: Scheduler, _now: float) -> tuple[Doc, Doc]:
    jobs = scheduler.state.jobs.values()
    pending = sum(1 for job in jobs if job.state.is_pending)
    up = sum(1 for node in scheduler.state.cluster.nodes.values() if node.vertex.up)
    total = len(scheduler.state.cluster.nodes)
    return (
        {"pending": pending, "running": len(jobs) - pending, "inactive": None},
        {"up": up, "down": total - up},
    )


def new_of(job: Job) -> JobNew:
    return JobNew(job.id, job.owner, job.spec.name, job.seen_at, job.recorded_spec, job.workload)


def rows_of(scheduler: Scheduler, number: int) -> tuple[JobNew, JobLive] | None:
    job = scheduler.state.jobs.get(number)
    return (new_of(job), live_of(job)) if job is not None else None


def log_of(scheduler: Scheduler, number: int) -> list[JobEvent] | None:
    job = scheduler.state.jobs.get(number)
    return list(job.log) if job is not None else None


def select(scheduler: Scheduler, query: JobsQuery) -> list[int]:
    """Active jobs that a query wants: pending in the order of the queue, then running, newest first."""
    state = scheduler.state
    chosen = [
        job
        for job in state.jobs.values()
        if job.state in query.states
        and (query.ids is None or job.id in query.ids)
        and query.queue in ("", job.queue)
        and query.name in ("", job.spec.name)
        and query.owner in ("", job.owner)
    ]
    pending = [job for job in chosen if job.state.is_pending]
    running = [job for job in chosen if not job.state.is_pending]
    pending.sort(key=lambda job: (-job.priority, job.seen_at, job.id))
    running.sort(key=lambda job: (-(job.placed_at or 0), -job.id))
    return [job.id for job in (*pending, *running)]


def active_docs(scheduler: Scheduler, now: float, query: JobsQuery) -> list[Doc]:
    memo: dict[int, WaitReason] = {}
    ahead = scheduler.jobs_ahead() if len(scheduler.state.pending) else {}
    chosen = select(scheduler, query)[: query.limit]
    return [doc_of(scheduler, scheduler.state.jobs[number], now, memo, ahead) for number in chosen]


def active_doc(scheduler: Scheduler, now: float, number: int) -> Doc | None:
    job = scheduler.state.jobs.get(number)
    return doc_of(scheduler, job, now, {}, scheduler.jobs_ahead()) if job is not None else None


def doc_of(
    scheduler: Scheduler, job: Job, now: float, memo: dict[int, WaitReason], ahead: dict[int, int]
) -> Doc:
    beside = beside_of(job, scheduler.wait_reason(job.id, now, memo), ahead)
    return job_doc(new_of(job), live_of(job), scheduler.state.ranks, beside)


_UNPLANNED_CAUSES = (WaitCause.HELD, WaitCause.QUEUE_STOPPED, WaitCause.UNSATISFIABLE)


def beside_of(job: Job, why: WaitReason, ahead: dict[int, int]) -> Beside:
    # Who was planned and then held, or whose queue was stopped, is not planned any more.
    is_planned = job.state is JobState.SCHED and why.cause not in _UNPLANNED_CAUSES
    return Beside(
        job.forecast if is_planned else None,
        why,
        ahead.get(job.id),
        tuple(sorted(job.open_dependencies)),
        job.spec.begin_at if job.waits_for_begin_time else None,
        _size_of(job) if job.workload and job.state.is_pending else None,
    )


def _size_of(job: Job) -> Size:
    """What the members of a work ask for, as far as they are there."""
    asked = [member.request for member in job.members.values() if member.request is not None]
    tasks = max(len(job.members), job.spec.size)
    nodes = tasks if job.spec.request.placement.distinct_nodes else None
    return Size(tasks, sum(core_milli(ask.requests) for ask in asked), nodes, job.spec.limit_s)


def active_why(scheduler: Scheduler, now: float, number: int) -> Doc | None:
    job = scheduler.state.jobs.get(number)
    if job is None:
        return None
    why = scheduler.wait_reason(number, now)
    ahead = scheduler.jobs_ahead()
    first = sorted(ahead, key=lambda other: ahead[other])[: min(ahead.get(number, 0), 5)]
    return why_doc(number, job.state, why, beside_of(job, why, ahead), first)


def queue_docs(scheduler: Scheduler) -> list[Doc]:
    state = scheduler.state
    docs: list[Doc] = []
    for place, queue in enumerate(state.settings.queues):
        shown = state.queue_state(queue.name)
        mine = [job for job in state.jobs.values() if job.queue == queue.name]
        pending = sum(1 for job in mine if job.state.is_pending)
        docs.append(
            {
                "name": queue.name,
                "default": place == 0,
                "enabled": shown.enabled,
                "started": shown.started,
                "reason_disabled": shown.reason_disabled,
                "reason_stopped": shown.reason_stopped,
                "policy": str(queue.backfill),
                "duration_default_s": queue.duration_default_s,
                "duration_max_s": queue.duration_max_s,
                "constraint": queue.constraint_text,
                "pending": pending,
                "running": len(mine) - pending,
            }
        )
    return docs


def timeline(scheduler: Scheduler, now: float, begin: float) -> Doc:
    state = scheduler.state
    known = sorted(state.cluster.nodes.items(), key=lambda item: item[1].rank)
    rows: dict[str, list[Doc]] = {name: [] for name, _ in known}
    starts: list[Doc] = []
    for job in state.jobs.values():
        new, live = new_of(job), live_of(job)
        for node, span in spans_of(new, live, now).items():
            if node in rows:
                rows[node].append(span)
        start = start_doc(new, live)
        if start is not None:
            starts.append(start)
    for number, planned in state.planned_starts.items():
        waiting = state.jobs.get(number)
        if waiting is None or waiting.state is not JobState.SCHED:
            continue
        for node, milli in planned.cores_milli:
            if node in rows:
                kind = "reserved" if planned.is_reservation else "forecast"
                rows[node].append(
                    {
                        "job": encode_jobid(number),
                        "name": waiting.spec.name,
                        "from": float(planned.start_s),
                        "to": None if planned.end_s is None else float(planned.end_s),
                        "kind": kind,
                        "cores": cores(milli),
                    }
                )
    nodes = [{"name": name, "cores": node_cores(one), "spans": rows[name]} for name, one in known]
    return {"now": now, "from": begin, "to": now, "nodes": nodes, "starts": starts}


def start_doc(new: JobNew, live: JobLive) -> Doc | None:
    """What a job was promised, and when it really began."""
    promise = cast(list[float] | None, live.detail.get("promise"))
    if not promise:
        return None
    begun = cast(float | None, live.detail.get("placed_at"))
    return {
        "job": encode_jobid(new.id),
        "name": new.name,
        "promised_first": promise[0],
        "promised_last": promise[1],
        "started_at": begun,
        "error_s": None if begun is None else begun - promise[0],
    }
