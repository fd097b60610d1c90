"""Response structs built from recorded rows: a job looks the same whether it is active or long inactive.

Everything here is a function of records, so a job also looks the same before and after a restart. What only
the running scheduler knows of a pending job (forecast, wait reason, position in the queue) is passed in as
`PendingInfo`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from penstock.api.identity import Namespaces
from penstock.api.resource_counts import allocated_core_milli, cores
from penstock.api.responses import (
    BlockerInfo,
    EventLogEntry,
    ExceptionInfo,
    ForecastInfo,
    FunnelStageInfo,
    JobDetail,
    JobStartInfo,
    JobSummary,
    MemberInfo,
    OutputFiles,
    PromiseInfo,
    RLiteEntry,
    RSetDocument,
    RSetExecution,
    SpanKind,
    TimelineSpan,
    WaitExplanation,
)
from penstock.model.hostlist import encode_hostlist
from penstock.model.idset import encode_idset
from penstock.model.job import JobEvent, JobState, Result
from penstock.model.jobid import encode_jobid
from penstock.sched.job import Forecast
from penstock.sched.member_states import MemberPhase
from penstock.sched.overruns import expected_end
from penstock.sched.promises import FOREIGN_JOB_KEY
from penstock.sched.reasons import WaitCause, WaitReason
from penstock.sched.records import (
    ExceptionRecord,
    JobLive,
    JobOverview,
    MemberRecord,
    NodeResources,
    Promise,
)

__all__ = [
    "PendingInfo",
    "WorkloadRequest",
    "event_context",
    "eventlog_entry",
    "job_detail",
    "job_start",
    "job_summary",
    "member_infos",
    "rset_document",
    "timeline_spans",
    "wait_explanation",
]

_RANK_UNKNOWN: Final = 1 << 30  # sorts nodes that no longer exist after all others
_NO_REASON: Final = WaitReason(WaitCause.NONE)
_NO_FORECAST: Final = ForecastInfo(None, "none", None)
_NO_PROMISE: Final = PromiseInfo(None, None)
_NO_EXCEPTION: Final = ExceptionInfo(False, "", None, "")
_NULL: Final = msgspec.Raw(b"null")


@dataclass(frozen=True, slots=True)
class WorkloadRequest:
    """What the members of a pending workload request in total."""

    tasks: int
    cores_milli: int
    nodes: int | None  # None: any number
    limit_s: int | None  # None: no limit


@dataclass(frozen=True, slots=True)
class PendingInfo:
    """What the scheduler knows of a pending job beyond what is recorded."""

    forecast: Forecast | None = None
    reason: WaitReason = _NO_REASON
    jobs_ahead: int | None = None
    dependencies: tuple[str, ...] = ()
    begin_at: float | None = None
    requested: WorkloadRequest | None = None


_NOT_PENDING: Final = PendingInfo()


def job_summary(
    job: JobOverview, ranks: Mapping[str, int], pending: PendingInfo = _NOT_PENDING
) -> JobSummary:
    new, live, record = job.new, job.live, job.live.record
    allocated = _allocated(job)
    times, spec = record.times, new.spec
    nodes = sorted(allocated, key=lambda node: (ranks.get(node, _RANK_UNKNOWN), node))
    tasks, core_count, node_count = _sizes(job, allocated, pending.requested)
    state, result, reason = live.state, live.result, pending.reason
    job_id = new.id
    return JobSummary(
        id=encode_jobid(job_id),
        id_dec=str(job_id),
        name=new.name,
        owner=new.owner,
        queue=live.queue,
        state=state,
        state_single=state.letter,
        status=result if state is JobState.INACTIVE else state.value,
        result=result,
        urgency=live.urgency,
        priority=live.priority,
        ntasks=tasks,
        ncores=core_count,
        nnodes=node_count,
        ranks=encode_idset(ranks[node] for node in nodes if node in ranks),
        nodelist=encode_hostlist(nodes),
        duration_s=_duration_s(job, pending.requested),
        t_submit=new.seen_at,
        t_depend=times.get("DEPEND"),
        t_run=times.get("RUN"),
        t_start=live.started_at,
        t_cleanup=times.get("CLEANUP"),
        t_inactive=live.ended_at,
        expiration=record.end_at,
        waitstatus=live.status,
        returncode=_returncode(live),
        exception=_exception(record.exception),
        dependencies=list(pending.dependencies),
        begin_at=pending.begin_at,
        requeue=cast(str, spec.get("requeue", "never")),
        attempt=record.attempt,
        forecast=_forecast(pending.forecast),
        promise=_promise(record.promise),
        reason=reason.message,
        reason_kind=reason.cause,
        jobs_ahead=pending.jobs_ahead,
        incomplete_reason=record.incomplete_reason,
        namespace=new.owner if new.workload else "",
    )


def job_detail(
    summary: JobSummary,
    job: JobOverview,
    members: Iterable[MemberRecord],
    ranks: Mapping[str, int],
    output: list[OutputFiles],
) -> JobDetail:
    """`summary` extended by what only the view of a single job shows."""
    text = job.new.spec.get("jobspec")
    return JobDetail(
        **msgspec.structs.asdict(summary),
        jobspec=msgspec.Raw(text.encode()) if isinstance(text, str) else _NULL,
        R=rset_document(job, ranks),
        members=member_infos(members),
        output=output,
    )


def _allocated(job: JobOverview) -> Mapping[str, NodeResources]:
    """Units by node that a job holds or held; for a workload only nodes where a member is or was.

    A node that refused a member of a workload stays recorded although no member ran there.
    """
    allocated = job.sizes.resources_by_node
    if not job.new.workload:
        return allocated
    return {node: units for node, units in allocated.items() if node in job.sizes.member_nodes}


def _sizes(
    job: JobOverview, allocated: Mapping[str, NodeResources], requested: WorkloadRequest | None
) -> tuple[int, int | float, int | None]:
    """Tasks, cores and nodes: of the allocation if there is one, else of the request."""
    if requested is not None and not allocated:
        return requested.tasks, cores(requested.cores_milli), requested.nodes
    spec = job.new.spec
    workload = job.live.record.workload
    tasks = job.sizes.members or (workload.size if workload else cast(int, spec.get("ntasks", 0)))
    if not allocated:
        return tasks, cast(int, spec.get("ncores", 0)), cast(int | None, spec.get("nnodes"))
    return tasks, cores(sum(map(allocated_core_milli, allocated.values()))), len(allocated)


def _duration_s(job: JobOverview, requested: WorkloadRequest | None) -> float:
    """The time limit; 0 without one. A workload's limit is the one in force when it was placed."""
    if not job.new.workload:
        return cast(float, job.new.spec.get("duration_s", 0))
    start, end = job.live.record.placed_at, job.live.record.end_at
    if start is not None and end is not None:
        return end - start
    return requested.limit_s or 0 if requested is not None else 0


def _returncode(live: JobLive) -> int | None:
    """As Flux reports it: the exit code, minus the signal number, or -128 if canceled before the start."""
    if live.state is not JobState.INACTIVE or live.status is None:
        return None
    if live.result == Result.CANCELED.value and live.started_at is None:
        return -128
    return live.status >> 8 if not live.status & 0x7F else -(live.status & 0x7F)


def _exception(found: ExceptionRecord | None) -> ExceptionInfo:
    return _NO_EXCEPTION if found is None else ExceptionInfo(True, found.type, found.severity, found.note)


def _forecast(forecast: Forecast | None) -> ForecastInfo:
    if forecast is None:
        return _NO_FORECAST
    kind: Final = "reservation" if forecast.is_reservation else "forecast"
    return ForecastInfo(forecast.start_at, kind, forecast.made_at)


def _promise(promise: Promise | None) -> PromiseInfo:
    return _NO_PROMISE if promise is None else PromiseInfo(promise.first_at, promise.last_at)


def member_infos(members: Iterable[MemberRecord]) -> list[MemberInfo]:
    return [
        MemberInfo(
            member=member.key,
            name=member.name,
            index=member.index,
            node=member.node,
            phase=member.phase.value,
            status=member.status if member.phase is MemberPhase.ENDED else None,
            cause=member.cause,
            started_at=member.started_at,
            ended_at=member.ended_at,
        )
        for member in members
    ]


def rset_document(job: JobOverview, ranks: Mapping[str, int]) -> RSetDocument | None:
    """R version 1 (RFC 20) of what a job holds or held. R cannot express shares of a pool."""
    allocated, record = job.sizes.resources_by_node, job.live.record
    nodes = sorted((node for node in allocated if node in ranks), key=lambda node: ranks[node])
    if not nodes or not any("core" in units or "gpu" in units for units in allocated.values()):
        return None
    ranks_by_children: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for node in nodes:
        units = allocated[node].items()
        children = tuple(sorted((resource, ids) for resource, ids in units if resource in ("core", "gpu")))
        ranks_by_children.setdefault(children, []).append(ranks[node])
    execution = RSetExecution(
        R_lite=[
            RLiteEntry(encode_idset(equal), dict(children)) for children, equal in ranks_by_children.items()
        ],
        nodelist=[encode_hostlist(nodes)],
        nslots=job.sizes.members or cast(int, job.new.spec.get("ntasks", 1)),
        starttime=0 if record.placed_at is None else record.placed_at,
        expiration=record.end_at or 0,
    )
    return RSetDocument(1, execution)


def eventlog_entry(event: JobEvent, namespaces: Namespaces = None) -> EventLogEntry:
    return EventLogEntry(event.at, event.name, event_context(event, namespaces))


def event_context(event: JobEvent, namespaces: Namespaces) -> dict[str, Any]:
    """The context of an event; only operators see which job of another namespace was its cause."""
    if namespaces is None or FOREIGN_JOB_KEY not in event.context:
        return event.context
    return {key: value for key, value in event.context.items() if key != FOREIGN_JOB_KEY}


def wait_explanation(
    job: int, state: JobState, reason: WaitReason, pending: PendingInfo, ahead: Iterable[int]
) -> WaitExplanation:
    return WaitExplanation(
        id=encode_jobid(job),
        state=state,
        kind=reason.cause,
        sentence=reason.message,
        clause=reason.clause,
        steps=[FunnelStageInfo(stage.name, stage.passed, stage.needed) for stage in reason.stages],
        blockers=[
            BlockerInfo(
                who=blocker.name,
                job=encode_jobid(blocker.job) if blocker.job is not None else None,
                until=blocker.until,
                overrun=blocker.has_overrun,
                name=blocker.title,
            )
            for blocker in reason.blockers
        ],
        jobs_ahead=pending.jobs_ahead,
        ahead=[encode_jobid(other) for other in ahead],
        forecast=_forecast(pending.forecast),
        suggestion=_suggestion(reason),
        begin_at=pending.begin_at,
    )


def _suggestion(reason: WaitReason) -> str:
    """What the user can do about the reason; empty if there is nothing to suggest beyond its message."""
    if reason.cause is WaitCause.PRIORITY:
        return "a shorter time limit (-t) may let it fit before the job that it must not delay"
    if reason.cause is WaitCause.QUEUE_DISABLED:
        return "`penstock queue enable` enables the queue again"
    if reason.cause is WaitCause.QUEUE_STOPPED:
        return "`penstock queue start` starts the queue again"
    is_resources = reason.cause is WaitCause.RESOURCES
    if is_resources and reason.blockers and all(blocker.until is None for blocker in reason.blockers):
        return "what holds the resources has no known end, so no start time can be promised"
    return ""


def timeline_spans(job: JobOverview, members: Iterable[MemberRecord], now: float) -> dict[str, TimelineSpan]:
    """By node, from when to when a job occupies it, and with how many cores."""
    new, live, record = job.new, job.live, job.live.record
    if record.placed_at is None:
        return {}
    kind: SpanKind = "ran"
    end: float | None = live.ended_at
    if end is None:
        limit = record.end_at
        kind = "overrun" if limit is not None and limit <= now else "running"
        end = None if limit is None else expected_end(limit, now)
    vacated = _vacated(members) if new.workload and live.ended_at is None else {}
    return {
        node: TimelineSpan(
            job=encode_jobid(new.id),
            name=new.name,
            from_=record.placed_at,
            to=vacated.get(node, end),
            kind="ran" if node in vacated else kind,
            cores=cores(allocated_core_milli(units)),
        )
        for node, units in _allocated(job).items()
    }


def _vacated(members: Iterable[MemberRecord]) -> dict[str, float]:
    """Nodes on which all members of a running job have ended, and when the last one did."""
    ended: dict[str, float] = {}
    occupied: set[str] = set()
    for member in members:
        if member.phase is not MemberPhase.ENDED or member.ended_at is None:
            occupied.add(member.node)
        else:
            ended[member.node] = max(ended.get(member.node, 0.0), member.ended_at)
    return {node: ended_at for node, ended_at in ended.items() if node not in occupied}


def job_start(job: JobOverview) -> JobStartInfo | None:
    """The promised and the real start of a job; None if no start was promised."""
    promise, started_at = job.live.record.promise, job.live.record.placed_at
    if promise is None:
        return None
    return JobStartInfo(
        job=encode_jobid(job.new.id),
        name=job.new.name,
        promised_first=promise.first_at,
        promised_last=promise.last_at,
        started_at=started_at,
        error_s=None if started_at is None else started_at - promise.first_at,
    )
