"""The API's questions and wishes, put to a running instance.

Questions are answered between the turns of the loop, so what is told is durable; the history comes from the
store. Wishes are fulfilled by the scheduler and answered once that is recorded.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from penstock.api import live_jobs as actives
from penstock.api.documents import Beside, job_doc, members_doc, rset_doc, spans_of, why_doc
from penstock.api.interface import CancelSelection, Doc, JobsQuery, Stream, Submission
from penstock.api.nodes import node_docs
from penstock.api.outputs import follow_files
from penstock.errors import BadRequest, Conflict, PenstockError
from penstock.instance.loop import Instance
from penstock.model.hostlist import parse_hostlist
from penstock.model.idset import encode_idset, parse_idset
from penstock.model.job import JobEvent, JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import (
    Cancel,
    Drain,
    FinishedJob,
    QueueChange,
    SetUrgency,
    Signal,
    Submit,
    Undrain,
)
from penstock.protocol.commands import Submission as Asked
from penstock.protocol.facts import Requeue
from penstock.sched.commands import UnknownJobId
from penstock.sched.dependencies import DependencyRefused, parse_dependencies
from penstock.sched.jobspec import payload_of
from penstock.sched.reasons import WaitCause, WaitReason
from penstock.sched.records import JobLive, JobNew
from penstock.store.port import JobFilter

__all__ = ["Answers", "ServiceContext"]

_TIMELINE_BACK_S: Final = 60.0
_TIMELINE_AHEAD_S: Final = 600.0
_TIMELINE_JOBS_MAX: Final = 2000


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What only the application knows of itself."""

    identity: Mapping[str, object]
    agents: Callable[[], list[Doc]]
    database: Callable[[], Doc]
    settings: Callable[[], Mapping[str, object]]
    output_paths: Callable[[int, int, Mapping[str, object]], tuple[Path, Path]] | None
    shutdown: Callable[[bool], None]
    metrics: Callable[[], bytes] = lambda: b""
    takes_submissions: bool = True  # False: works come from the world alone


class Answers:
    def __init__(self, instance: Instance, context: ServiceContext) -> None:
        self._instance = instance
        self._context = context

    @property
    def _is_of_pods(self) -> bool:
        return not self._context.takes_submissions

    # The instance

    async def status(self) -> Doc:
        ready = self._instance.is_ready.is_set()
        counts: Doc = {"pending": None, "running": None, "inactive": None}
        nodes: Doc = {"up": None, "down": None}
        if ready:
            counts, nodes = await self._instance.query(actives.count)
        identity = {
            **self._context.identity,
            "pid": os.getpid(),
            "epoch": self._instance.epoch,
            "ready": ready,
        }
        if not ready:
            identity["why_not_ready"] = str(self._instance.not_ready)
        return {
            "instance": identity,
            "agents": self._context.agents(),
            "database": self._context.database(),
            "jobs": counts,
            "nodes": nodes,
            "settings": dict(self._context.settings()),
        }

    async def metrics(self) -> bytes:
        return self._context.metrics()

    async def shutdown(self, keep_tasks: bool) -> None:
        self._context.shutdown(keep_tasks)

    # Jobs

    async def submit(self, jobs: list[Submission], key: str, owner: str) -> list[Doc]:
        if self._is_of_pods:
            raise Conflict(
                "this instance schedules the pods of a Kubernetes cluster: "
                "use `kubectl apply` with a schedulerName of ours"
            )
        asked = tuple(Asked(job.jobspec.decode(), owner, job.urgency, Requeue(job.requeue)) for job in jobs)
        past = await self._past(asked)
        while True:
            try:
                numbers = cast(tuple[int, ...], await self._instance.execute(Submit(asked, key, past)))
                return [{"id": encode_jobid(number)} for number in numbers]
            except DependencyRefused:
                before, past = past, await self._past(asked)
                if past == before:
                    raise
                # A job that is depended on has ended between the question and the wish.

    async def _past(self, asked: Sequence[Asked]) -> tuple[FinishedJob, ...]:
        """What became of jobs that are over and that some of these depend on."""
        wanted = sorted({number for one in asked for number in _targets(one.jobspec)})
        if not wanted:
            return ()
        active = await self._instance.query(lambda scheduler, _: set(scheduler.state.jobs))
        over = tuple(number for number in wanted if number not in active)
        rows = await self._instance.store.jobs(JobFilter(ids=over, limit=len(over))) if over else []
        told: list[FinishedJob] = []
        for row in rows:
            times = cast(dict[str, float], row.live.detail.get("times", {}))
            has_exception = bool(row.live.detail.get("exception"))
            told.append(
                FinishedJob(
                    row.new.id,
                    "RUN" in times,
                    row.live.started_at is not None,
                    row.live.result == "COMPLETED",
                    has_exception,
                )
            )
        return tuple(told)

    async def jobs(self, query: JobsQuery) -> list[Doc]:
        docs: list[Doc] = []
        if query.states - {JobState.INACTIVE}:
            docs = await self._instance.query(
                lambda scheduler, now: actives.active_docs(scheduler, now, query)
            )
        left = query.limit - len(docs)
        if left > 0 and (JobState.INACTIVE in query.states or query.results):
            docs += await self._inactive_docs(query, left)
        return docs

    async def _inactive_docs(self, query: JobsQuery, limit: int) -> list[Doc]:
        results = None if JobState.INACTIVE in query.states else tuple(one.value for one in query.results)
        wanted = JobFilter(
            ids=query.ids,
            states=(JobState.INACTIVE.value,),
            results=results,
            queue=query.queue or None,
            name=query.name or None,
            owner=query.owner or None,
            since=query.since,
            limit=limit,
        )
        rows = await self._instance.store.jobs(wanted)
        ranks = await self._ranks()
        return [job_doc(row.new, row.live, ranks) for row in rows]

    async def _ranks(self) -> dict[str, int]:
        return await self._instance.query(lambda scheduler, _: dict(scheduler.state.ranks))

    async def _rows(self, job: int) -> tuple[JobNew, JobLive]:
        """A job as it is recorded, active or over."""
        found = await self._instance.query(lambda scheduler, _: actives.rows_of(scheduler, job))
        if found is not None:
            return found
        rows = await self._instance.store.jobs(JobFilter(ids=(job,), limit=1))
        if not rows:
            raise UnknownJobId(job)
        return rows[0].new, rows[0].live

    async def _doc(self, job: int) -> Doc:
        doc = await self._instance.query(lambda scheduler, now: actives.active_doc(scheduler, now, job))
        if doc is not None:
            return doc
        new, live = await self._rows(job)
        return job_doc(new, live, await self._ranks())

    async def job(self, job: int) -> Doc:
        doc = await self._doc(job)
        new, live = await self._rows(job)
        ranks = await self._ranks()
        doc["jobspec"] = _decoded(new)
        doc["R"] = rset_doc(new, live, ranks)
        doc["members"] = members_doc(live)
        doc["output"] = [
            {"index": index, "stdout": str(stdout), "stderr": str(stderr)}
            for index, stdout, stderr in self._outputs(new, live)
        ]
        return doc

    def _outputs(self, new: JobNew, live: JobLive) -> list[tuple[int, Path, Path]]:
        paths = self._context.output_paths
        payload = _payload(new)
        if paths is None or payload is None:
            return []
        members = cast(list[Doc], live.detail.get("members", []))
        told: list[tuple[int, Path, Path]] = []
        for member in members:
            stdout, stderr = paths(new.id, member["index"], payload)
            told.append((member["index"], stdout, stderr))
        return told

    async def eventlog(self, job: int) -> list[Doc]:
        log = await self._log(job)
        if not log:
            raise UnknownJobId(job)
        return [_event_doc(event) for event in log]

    async def _log(self, job: int) -> list[JobEvent]:
        active = await self._instance.query(lambda scheduler, _: actives.log_of(scheduler, job))
        return active if active is not None else await self._instance.store.log(job)

    async def follow_eventlog(self, job: int) -> Stream:
        log = await self._log(job)
        if not log:
            raise UnknownJobId(job)
        return self._followed(job, log)

    async def _followed(self, job: int, log: list[JobEvent]) -> Stream:
        feed = self._instance.feed.watch(job)
        told = 0
        try:
            waiting = asyncio.ensure_future(anext(feed, None))
            await asyncio.sleep(0)  # From here on nothing is missed; what came meanwhile is in the log.
            log = await self._log(job)
            while True:
                for event in log[told:]:
                    yield _event_doc(event)
                    if event.name == "clean":
                        return
                told = len(log)
                if await waiting is None:
                    return
                waiting = asyncio.ensure_future(anext(feed, None))
                log = await self._log(job)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await feed.aclose()

    async def why(self, job: int) -> Doc:
        doc = await self._instance.query(lambda scheduler, now: actives.active_why(scheduler, now, job))
        if doc is not None:
            return doc
        _, live = await self._rows(job)
        sentence = f"it is over: {live.result}"
        return why_doc(job, live.state, WaitReason(WaitCause.NONE, sentence), Beside(), ())

    async def cancel(self, selection: CancelSelection, note: str) -> Doc:
        ids = selection.ids
        if ids is None:
            wanted = JobsQuery(states=selection.states, queue=selection.queue, limit=sys.maxsize)
            ids = await self._instance.query(lambda scheduler, _: tuple(actives.select(scheduler, wanted)))
        done = cast(dict[int, PenstockError | None], await self._instance.execute(Cancel(ids, note)))
        canceled = [encode_jobid(number) for number, error in done.items() if error is None]
        errors: list[Doc] = []
        for number, error in done.items():
            if error is not None:
                known = await self._instance.store.jobs(JobFilter(ids=(number,), limit=1))
                note_told = "job is inactive" if known else "unknown job id"
                errors.append({"id": encode_jobid(number), "message": note_told})
        return {"canceled": canceled, "errors": errors}

    async def urgency(self, job: int, urgency: int) -> Doc:
        try:
            old = await self._instance.execute(SetUrgency(job, urgency))
        except UnknownJobId:
            if await self._instance.store.jobs(JobFilter(ids=(job,), limit=1)):
                raise Conflict(f"{encode_jobid(job)}: job is inactive") from None
            raise
        return {"old": old, "urgency": urgency}

    async def signal(self, job: int, signum: int) -> None:
        if self._is_of_pods:
            await self._rows(job)
            raise Conflict("a pod cannot be sent a signal; `penstock cancel` ends the job")
        await self._instance.execute(Signal(job, signum))

    async def wait(self, job: int, timeout_s: float) -> Doc:
        await self._rows(job)
        try:
            async with asyncio.timeout(timeout_s):
                stream = await self.follow_eventlog(job)
                try:
                    async for _ in stream:
                        pass
                finally:
                    await stream.aclose()
        except TimeoutError:
            pass
        return await self._doc(job)

    # Output and events

    async def output(self, job: int, follow: bool) -> AsyncGenerator[tuple[str, Doc], None]:
        new, live = await self._rows(job)
        if self._is_of_pods:
            raise Conflict(f"the output of pods is with Kubernetes: {_logs_command(new, live)}")
        return self._output(job, follow)

    async def _output(self, job: int, follow: bool) -> AsyncGenerator[tuple[str, Doc], None]:
        """What the tasks print and what happens to the job, until it is over."""
        files = follow_files()
        events: asyncio.Queue[Doc | None] = asyncio.Queue()
        follower = asyncio.create_task(self._pump(job, events)) if follow else None
        try:
            is_over = not follow
            while True:
                new, live = await self._rows(job)
                for piece in files.read(self._outputs(new, live)):
                    yield "output", piece
                if is_over:
                    break
                try:
                    event = await asyncio.wait_for(events.get(), files.pause_s)
                except TimeoutError:
                    continue
                is_over = event is None
                if event is not None:
                    yield "job", event
            for piece in files.rest():
                yield "output", piece
            yield "end", await self._doc(job)
        finally:
            if follower is not None:
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)

    async def _pump(self, job: int, events: asyncio.Queue[Doc | None]) -> None:
        stream = await self.follow_eventlog(job)
        try:
            async for event in stream:
                events.put_nowait(event)
        finally:
            await stream.aclose()
            events.put_nowait(None)

    async def events(self, since: int | None) -> Stream:
        return self._events(since)

    async def _events(self, since: int | None) -> Stream:
        feed = self._instance.feed.watch(None, since)
        try:
            async for item in feed:
                yield {
                    "seq": item.seq,
                    "id": encode_jobid(item.job),
                    **_event_doc(item.event),
                    "state": item.state.value,
                }
        finally:
            await feed.aclose()

    # Nodes and queues

    async def resources(self) -> list[Doc]:
        of_pods = self._is_of_pods
        return await self._instance.query(lambda scheduler, _: node_docs(scheduler, of_pods=of_pods))

    async def drain(self, targets: str, reason: str, overwrite: bool) -> list[Doc]:
        nodes = await self._targets(targets)
        await self._instance.execute(Drain(nodes, reason, "", overwrite))
        return [doc for doc in await self.resources() if doc["name"] in nodes]

    async def undrain(self, targets: str) -> list[Doc]:
        nodes = await self._targets(targets)
        await self._instance.execute(Undrain(nodes))
        return [doc for doc in await self.resources() if doc["name"] in nodes]

    async def _targets(self, text: str) -> tuple[str, ...]:
        """A hostlist of names, or an idset of ranks."""
        names = {rank: node for node, rank in (await self._ranks()).items()}
        if not text.strip("0123456789,-[] "):
            found: list[str] = []
            for rank in parse_idset(text):
                if rank not in names:
                    raise BadRequest(
                        "no such rank",
                        where="targets",
                        found=str(rank),
                        expected=encode_idset(names),
                    )
                found.append(names[rank])
            return tuple(found)
        return parse_hostlist(text)

    async def queues(self) -> list[Doc]:
        return await self._instance.query(lambda scheduler, _: actives.queue_docs(scheduler))

    async def change_queue(self, name: str, verb: str, reason: str) -> list[Doc]:
        every = [queue.name for queue in self._instance.settings.queues]
        for one in every if name == "-" else [name]:
            enabled = verb == "enable" if verb in ("enable", "disable") else None
            started = verb == "start" if verb in ("start", "stop") else None
            await self._instance.execute(QueueChange(one, enabled, started, reason))
        return [doc for doc in await self.queues() if name in ("-", doc["name"])]

    # Time

    async def timeline(self, since_s: float | None, until_s: float | None) -> Doc:
        now = time.time()
        begin = now - (since_s if since_s is not None else _TIMELINE_BACK_S)
        past = await self._instance.store.jobs(
            JobFilter(states=(JobState.INACTIVE.value,), since=begin, limit=_TIMELINE_JOBS_MAX)
        )
        told = await self._instance.query(lambda scheduler, at: actives.timeline(scheduler, at, begin))
        rows = {node["name"]: node["spans"] for node in told["nodes"]}
        for row in past:
            for node, span in spans_of(row.new, row.live, now).items():
                if node in rows:
                    rows[node].append(span)
            start = actives.start_doc(row.new, row.live)
            if start is not None:
                told["starts"].append(start)
        ends = [span["to"] for spans in rows.values() for span in spans if span["to"] is not None]
        told["to"] = now + until_s if until_s is not None else max([*ends, now + 60.0])
        told["to"] = min(told["to"], now + 100 * _TIMELINE_AHEAD_S) if until_s is None else told["to"]
        return told


def _event_doc(event: JobEvent) -> Doc:
    return {"timestamp": event.at, "name": event.name, "context": event.context}


def _decoded(new: JobNew) -> Any:
    text = new.spec.get("jobspec")
    return msgspec.json.decode(text) if isinstance(text, str) else None


def _payload(new: JobNew) -> Mapping[str, object] | None:
    """What the driver got of a submitted job."""
    text = new.spec.get("jobspec")
    if not isinstance(text, str):
        return None
    return {**payload_of(text), "id_f58": encode_jobid(new.id), "owner": new.owner}


def _logs_command(new: JobNew, live: JobLive) -> str:
    """How to see what the first of its pods has printed."""
    names = [str(member["name"]) for member in members_doc(live) if member["name"]]
    namespace = f" -n {new.owner}" if new.owner else ""
    more = f" (the first of {len(names)})" if len(names) > 1 else ""
    return f"`kubectl logs {names[0] if names else 'POD'}{namespace}`{more}"


def _targets(text: str) -> list[int]:
    if '"dependencies"' not in text:
        return []
    found = msgspec.json.decode(text)
    system = found.get("attributes", {}).get("system", {}) if isinstance(found, dict) else {}
    try:
        depends, _ = parse_dependencies(system.get("dependencies") if isinstance(system, dict) else None)
    except PenstockError:
        return []  # The scheduler refuses it with the reason.
    return [dependency.job for dependency in depends if dependency.job]
