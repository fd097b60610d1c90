"""The service of a running instance.

Queries run between steps of the instance's loop (`Instance.query`), so they see committed state only; jobs
that are inactive come from the store. Changes are commands to the scheduler (`Instance.execute`) and return
once their effect is committed.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import msgspec

from penstock.api import live_jobs
from penstock.api.claims import claim_metrics
from penstock.api.documents import (
    PendingInfo,
    eventlog_entry,
    job_detail,
    job_summary,
    wait_explanation,
)
from penstock.api.errors import DependencyRefused, UnknownJobId, UnknownObject
from penstock.api.identity import Caller, Namespaces
from penstock.api.inputs import InputPaths, write_input
from penstock.api.interface import ALL_QUEUES
from penstock.api.job_records import JobRecords
from penstock.api.job_streams import OutputPaths, stream_events, stream_output, task_outputs
from penstock.api.nodes import node_infos
from penstock.api.requests import (
    CancelRequest,
    DrainRequest,
    InputRequest,
    JobsQuery,
    QueueAction,
    QueueRequest,
    ShutdownRequest,
    SignalRequest,
    SubmitRequest,
    TimelineQuery,
    UndrainRequest,
    UrgencyRequest,
)
from penstock.api.responses import (
    AgentInfo,
    CancelFailure,
    CancelResult,
    DatabaseInfo,
    EmptyResponse,
    EventLog,
    EventLogEntry,
    InputResult,
    InstanceEvent,
    InstanceInfo,
    InstanceSettings,
    InstanceStatus,
    JobCounts,
    JobDetail,
    JobList,
    JobSummary,
    NodeCounts,
    NodeList,
    OutputFiles,
    OutputItem,
    QueueList,
    SubmitResult,
    SubmittedJob,
    Timeline,
    UrgencyResult,
    WaitExplanation,
)
from penstock.api.timeline import begin_of, live_timeline, with_history
from penstock.errors import Conflict, PenstockError
from penstock.instance.loop import Instance
from penstock.model.hostlist import parse_hostlist
from penstock.model.idset import encode_idset, parse_idset
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import (
    Cancel,
    Command,
    Drain,
    FinishedJob,
    QueueChange,
    SetUrgency,
    Signal,
    Submission,
    Submit,
    Undrain,
)
from penstock.sched.dependencies import parse_dependencies
from penstock.sched.reasons import WaitCause, WaitReason
from penstock.sched.records import JobNew, JobOverview, MemberRecord
from penstock.store.port import JobFilter

__all__ = ["InstanceService", "ServiceContext"]

_TIMELINE_JOBS_MAX: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceContext:
    """What only the application knows about the instance."""

    instance_id: str
    version: str
    state_dir: str
    started_at: float
    backend: str
    agents: Callable[[], list[AgentInfo]]
    database: Callable[[], DatabaseInfo]
    settings: Callable[[], InstanceSettings]
    output_paths: OutputPaths | None  # None: the backend keeps no output files
    shutdown: Callable[[bool], None]
    input_paths: InputPaths | None = None  # None: the backend forwards no input
    metrics: Callable[[], bytes] = bytes
    accepts_submissions: bool = True  # False: all jobs are workloads that the backend reports


class InstanceService:
    """Implements `penstock.api.interface.Service`."""

    def __init__(self, instance: Instance, context: ServiceContext) -> None:
        self._instance = instance
        self._context = context
        self._records = JobRecords(instance)

    @property
    def _is_of_pods(self) -> bool:
        return not self._context.accepts_submissions

    # The instance

    async def get_status(self, caller: Caller) -> InstanceStatus:
        del caller
        instance, context = self._instance, self._context
        readiness = instance.readiness.current
        jobs, nodes = JobCounts(), NodeCounts()
        if readiness.is_ready:
            jobs, nodes = await instance.query(live_jobs.count)
        info = InstanceInfo(
            id=context.instance_id,
            version=context.version,
            state=context.state_dir,
            started_at=context.started_at,
            backend=context.backend,
            pid=os.getpid(),
            epoch=instance.epoch,
            ready=readiness.is_ready,
            why_not_ready=msgspec.UNSET if readiness.is_ready else str(readiness),
        )
        return InstanceStatus(info, context.agents(), context.database(), jobs, nodes, context.settings())

    async def get_metrics(self, caller: Caller) -> bytes:
        del caller
        instance = self._instance
        if not instance.readiness.current.is_ready:
            return self._context.metrics()
        of_claims = await instance.query(claim_metrics)
        return self._context.metrics() + of_claims + await instance.query(live_jobs.state_metrics)

    async def shutdown(self, caller: Caller, request: ShutdownRequest) -> EmptyResponse:
        del caller
        self._context.shutdown(request.keep_tasks)
        return EmptyResponse()

    # Jobs

    async def submit_jobs(self, caller: Caller, request: SubmitRequest) -> SubmitResult:
        if self._is_of_pods:
            raise Conflict(
                "this instance schedules pods, not processes: "
                "create pods with kubectl and with the schedulerName of this instance"
            )
        jobs = tuple(
            Submission(bytes(job.jobspec).decode(), caller.user, job.urgency, job.requeue, caller.is_operator)
            for job in request.jobs
        )
        finished = await self._finished_jobs(jobs)
        while True:
            try:
                ids = cast(tuple[int, ...], await self._instance.execute(Submit(jobs, request.key, finished)))
                return SubmitResult([SubmittedJob(encode_jobid(job_id)) for job_id in ids])
            except DependencyRefused:
                before, finished = finished, await self._finished_jobs(jobs)
                if finished == before:
                    raise
                # A dependency became inactive after `finished` was read: submit again with its outcome.

    async def _finished_jobs(self, jobs: Sequence[Submission]) -> tuple[FinishedJob, ...]:
        """The outcomes of inactive jobs that some of these jobs depend on."""
        wanted = sorted({target for job in jobs for target in _dependency_targets(job.jobspec)})
        if not wanted:
            return ()
        active = await self._instance.query(lambda scheduler, _: set(scheduler.state.jobs))
        inactive = tuple(job_id for job_id in wanted if job_id not in active)
        if not inactive:
            return ()
        rows = await self._instance.store.jobs(JobFilter(ids=inactive, limit=len(inactive)))
        return tuple(
            FinishedJob(
                row.new.id,
                "RUN" in row.live.record.times,
                row.live.started_at is not None,
                row.live.result == "COMPLETED",
                row.live.record.exception is not None,
            )
            for row in rows
        )

    async def list_jobs(self, caller: Caller, query: JobsQuery) -> JobList:
        jobs: list[JobSummary] = []
        if query.states - {JobState.INACTIVE}:
            jobs = await self._instance.query(
                lambda scheduler, now: live_jobs.list_summaries(scheduler, now, query, caller.namespaces)
            )
        remaining = query.limit - len(jobs)
        if remaining > 0 and (JobState.INACTIVE in query.states or query.results):
            jobs += await self._list_inactive(query, remaining, caller.namespaces)
        return JobList(jobs)

    async def _list_inactive(self, query: JobsQuery, limit: int, namespaces: Namespaces) -> list[JobSummary]:
        is_any_result = JobState.INACTIVE in query.states
        wanted = JobFilter(
            ids=query.ids,
            states=(JobState.INACTIVE.value,),
            results=None if is_any_result else tuple(result.value for result in query.results),
            queue=query.queue or None,
            name=query.name or None,
            owner=query.owner or None,
            since=query.since,
            limit=limit,
        )
        rows = await self._rows(wanted, namespaces)
        ranks = await self._records.ranks()
        return [job_summary(row, ranks) for row in rows]

    async def _rows(self, wanted: JobFilter, namespaces: Namespaces) -> list[JobOverview]:
        """Inactive jobs of some namespaces, the last ones first."""
        if namespaces is None:
            return await self._instance.store.jobs(wanted)
        owners = sorted(namespaces) if wanted.owner is None else sorted(namespaces & {wanted.owner})
        rows: list[JobOverview] = []
        for owner in owners:
            rows += await self._instance.store.jobs(replace(wanted, owner=owner))
        rows.sort(key=lambda row: (row.live.ended_at or 0.0, row.new.id), reverse=True)
        return rows[: wanted.limit]

    async def _check_visible(self, caller: Caller, job: int) -> None:
        """Raises if the job is of a namespace that the caller may not see, as if it did not exist."""
        if not caller.is_operator:
            await self._records.overview(job, caller.namespaces)

    async def get_job(self, caller: Caller, job: int) -> JobDetail:
        summary = await self._records.summary(job, caller.namespaces)
        found, members = await self._records.with_members(job)
        outputs = task_outputs(found.new, members, self._context.output_paths)
        files = [OutputFiles(index, str(stdout), str(stderr)) for index, stdout, stderr in outputs]
        return job_detail(summary, found, members, await self._records.ranks(), files)

    async def get_eventlog(self, caller: Caller, job: int) -> EventLog:
        await self._check_visible(caller, job)
        log = await self._records.eventlog(job)
        return EventLog([eventlog_entry(event, caller.namespaces) for event in log])

    async def follow_eventlog(self, caller: Caller, job: int) -> AsyncGenerator[EventLogEntry, None]:
        await self._check_visible(caller, job)
        await self._records.eventlog(job)  # Raises if the job is unknown.
        return self._records.follow_eventlog(job, caller.namespaces)

    async def explain_wait(self, caller: Caller, job: int) -> WaitExplanation:
        await self._check_visible(caller, job)
        found = await self._instance.query(
            lambda scheduler, now: live_jobs.explain_wait(scheduler, now, job, caller.namespaces)
        )
        if found is not None:
            return found
        live = (await self._records.overview(job)).live
        reason = WaitReason(WaitCause.NONE, f"has ended: {live.result}")
        return wait_explanation(job, live.state, reason, PendingInfo(), ())

    async def cancel_jobs(self, caller: Caller, request: CancelRequest) -> CancelResult:
        selection = request.selection()
        ids = selection.ids
        if ids is None:
            query = JobsQuery(states=selection.states, queue=selection.queue, limit=sys.maxsize)
            ids = await self._instance.query(
                lambda scheduler, _: tuple(live_jobs.select(scheduler, query, caller.namespaces))
            )
        foreign: list[int] = []
        if not caller.is_operator:
            foreign = [one for one in ids if not await self._records.is_visible(one, caller.namespaces)]
        command = Cancel(tuple(one for one in ids if one not in foreign), request.note)
        outcomes = cast(dict[int, PenstockError | None], await self._instance.execute(command))
        canceled = [encode_jobid(job_id) for job_id, error in outcomes.items() if error is None]
        failures = [CancelFailure(encode_jobid(job_id), "no such job") for job_id in foreign]
        for job_id, error in outcomes.items():
            if error is not None:
                is_inactive = await self._records.exists(job_id)
                message = "job is inactive" if is_inactive else "no such job"
                if not isinstance(error, UnknownJobId):
                    message = str(error)
                failures.append(CancelFailure(encode_jobid(job_id), message))
        return CancelResult(canceled, failures)

    async def set_urgency(self, caller: Caller, job: int, request: UrgencyRequest) -> UrgencyResult:
        await self._check_visible(caller, job)
        command = SetUrgency(job, request.urgency, caller.is_operator)
        old = cast(int, await self._execute_on_active(job, command))
        return UrgencyResult(old, request.urgency)

    async def _execute_on_active(self, job: int, command: Command) -> object:
        """Executes a command that needs an active job. An inactive job exists, but its state forbids it."""
        try:
            return await self._instance.execute(command)
        except UnknownJobId:
            if await self._records.exists(job):
                raise Conflict(f"{encode_jobid(job)}: job is inactive") from None
            raise

    async def signal_job(self, caller: Caller, job: int, request: SignalRequest) -> EmptyResponse:
        await self._check_visible(caller, job)
        if self._is_of_pods:
            await self._records.overview(job)  # Raises if the job is unknown.
            raise Conflict("a pod cannot be sent a signal; `penstock cancel` ends the job")
        await self._execute_on_active(job, Signal(job, request.signal))
        return EmptyResponse()

    async def write_input(self, caller: Caller, job: int, request: InputRequest) -> InputResult:
        await self._check_visible(caller, job)
        return await write_input(self._records, job, request, self._context.input_paths)

    async def wait_for_job(self, caller: Caller, job: int, timeout_s: float) -> JobSummary:
        await self._records.overview(job, caller.namespaces)  # Raises if the job is unknown.
        try:
            async with asyncio.timeout(timeout_s):
                events = await self.follow_eventlog(caller, job)
                try:
                    async for _ in events:
                        pass
                finally:
                    await events.aclose()
        except TimeoutError:
            pass
        return await self._records.summary(job, caller.namespaces)

    async def stream_output(self, caller: Caller, job: int, follow: bool) -> AsyncGenerator[OutputItem, None]:
        await self._check_visible(caller, job)
        found, members = await self._records.with_members(job)
        if self._is_of_pods:
            command = _logs_command(found.new, members)
            raise Conflict(f"this instance does not keep the output of pods; use {command}")
        paths = self._context.output_paths
        return stream_output(self._records, job, follow, paths, caller.namespaces)

    async def stream_events(self, caller: Caller, since: int | None) -> AsyncGenerator[InstanceEvent, None]:
        return stream_events(self._instance.feed, since, self._records, caller.namespaces)

    # Nodes and queues

    async def list_nodes(self, caller: Caller) -> NodeList:
        of_pods, namespaces = self._is_of_pods, caller.namespaces
        nodes = await self._instance.query(
            lambda scheduler, _: node_infos(scheduler, of_pods=of_pods, namespaces=namespaces)
        )
        return NodeList(nodes)

    async def drain_nodes(self, caller: Caller, request: DrainRequest) -> NodeList:
        names = await self._node_names(request.targets)
        await self._instance.execute(Drain(names, request.reason, caller.user, request.overwrite))
        return await self._nodes_named(caller, names)

    async def undrain_nodes(self, caller: Caller, request: UndrainRequest) -> NodeList:
        names = await self._node_names(request.targets)
        await self._instance.execute(Undrain(names))
        return await self._nodes_named(caller, names)

    async def _nodes_named(self, caller: Caller, names: Sequence[str]) -> NodeList:
        return NodeList([node for node in (await self.list_nodes(caller)).nodes if node.name in names])

    async def _node_names(self, targets: str) -> tuple[str, ...]:
        """The names that a hostlist of names or an idset of ranks stands for."""
        if targets.strip("0123456789,-[] "):
            return parse_hostlist(targets)
        names = {rank: node for node, rank in (await self._records.ranks()).items()}
        found: list[str] = []
        for rank in parse_idset(targets):
            if rank not in names:
                raise UnknownObject(f"no such rank {rank}; there are {encode_idset(names)}")
            found.append(names[rank])
        return tuple(found)

    async def list_queues(self, caller: Caller) -> QueueList:
        del caller
        return QueueList(await self._instance.query(lambda scheduler, _: live_jobs.list_queues(scheduler)))

    async def change_queue(
        self, caller: Caller, queue: str, action: QueueAction, request: QueueRequest
    ) -> QueueList:
        names = [settings.name for settings in self._instance.settings.queues]
        enabled = {QueueAction.ENABLE: True, QueueAction.DISABLE: False}.get(action)
        started = {QueueAction.START: True, QueueAction.STOP: False}.get(action)
        for name in names if queue == ALL_QUEUES else [queue]:
            await self._instance.execute(QueueChange(name, enabled, started, request.reason))
        queues = (await self.list_queues(caller)).queues
        return QueueList([info for info in queues if queue in (ALL_QUEUES, info.name)])

    # Time

    async def get_timeline(self, caller: Caller, query: TimelineQuery) -> Timeline:
        now = time.time()
        begin = begin_of(query, now)
        history = await self._instance.store.jobs(
            JobFilter(states=(JobState.INACTIVE.value,), since=begin, limit=_TIMELINE_JOBS_MAX)
        )
        live = await self._instance.query(
            lambda scheduler, at: live_timeline(scheduler, at, begin, caller.namespaces)
        )
        return with_history(live, history, query, now, caller.namespaces)


def _logs_command(new: JobNew, members: Sequence[MemberRecord]) -> str:
    """The command that shows the output of the first pod."""
    names = [member.name for member in members if member.name]
    namespace = f" -n {new.owner}" if new.owner else ""
    more = f" (the first of {len(names)})" if len(names) > 1 else ""
    return f"`kubectl logs {names[0] if names else 'POD'}{namespace}`{more}"


def _dependency_targets(text: str) -> list[int]:
    """The jobs that a jobspec depends on; none if its dependencies are invalid."""
    if '"dependencies"' not in text:
        return []
    try:
        found = msgspec.json.decode(text)
        for key in ("attributes", "system"):
            found = found.get(key) if isinstance(found, dict) else None
        depends, _ = parse_dependencies(found.get("dependencies") if isinstance(found, dict) else None)
    except (PenstockError, msgspec.DecodeError):
        return []  # The scheduler raises the error when the job is submitted.
    return [dependency.job for dependency in depends if dependency.job]
