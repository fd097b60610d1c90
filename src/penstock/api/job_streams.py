"""Streams of the service: the output of a job, and the events of all jobs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from penstock.api.documents import event_context
from penstock.api.identity import Namespaces
from penstock.api.job_records import JobRecords
from penstock.api.outputs import OutputReader, TaskOutput
from penstock.api.responses import EventLogEntry, InstanceEvent, OutputItem
from penstock.instance.feed import Feed
from penstock.model.jobid import encode_jobid
from penstock.sched.jobspec import payload_of
from penstock.sched.records import JobNew, MemberRecord

__all__ = ["OutputPaths", "stream_events", "stream_output", "task_outputs"]

# From job id, task index and the payload of the job to the paths of stdout and stderr.
OutputPaths: TypeAlias = Callable[[int, int, Mapping[str, object]], tuple[Path, Path]]


def task_outputs(new: JobNew, members: Iterable[MemberRecord], paths: OutputPaths | None) -> list[TaskOutput]:
    """The output files of all tasks of a submitted job; none where the backend has no such files."""
    text = new.spec.get("jobspec")
    if paths is None or not isinstance(text, str):
        return []
    payload = {**payload_of(text), "id_f58": encode_jobid(new.id), "owner": new.owner}
    return [(member.index, *paths(new.id, member.index, payload)) for member in members]


async def stream_output(
    records: JobRecords, job: int, follow: bool, paths: OutputPaths | None, namespaces: Namespaces = None
) -> AsyncGenerator[OutputItem, None]:
    """Output of the tasks; with `follow` also the events of the job, until it is inactive.

    The last item is the summary of the job.
    """
    reader = OutputReader()
    events: asyncio.Queue[EventLogEntry | None] = asyncio.Queue()
    follower = asyncio.create_task(_enqueue_events(records, job, events, namespaces)) if follow else None
    try:
        is_over = not follow
        while True:
            found, members = await records.with_members(job)
            for chunk in reader.read(task_outputs(found.new, members, paths)):
                yield chunk
            if is_over:
                break
            try:
                event = await asyncio.wait_for(events.get(), reader.poll_s)
            except TimeoutError:
                continue
            is_over = event is None
            if event is not None:
                yield event
        for chunk in reader.finish():
            yield chunk
        yield await records.summary(job, namespaces)
    finally:
        if follower is not None:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)


async def _enqueue_events(
    records: JobRecords,
    job: int,
    events: asyncio.Queue[EventLogEntry | None],
    namespaces: Namespaces,
) -> None:
    """Puts the events of a job into a queue, then None."""
    stream = records.follow_eventlog(job, namespaces)
    try:
        async for event in stream:
            events.put_nowait(event)
    finally:
        await stream.aclose()
        events.put_nowait(None)


async def stream_events(
    feed: Feed, since: int | None, records: JobRecords, namespaces: Namespaces = None
) -> AsyncGenerator[InstanceEvent, None]:
    """The events of all jobs that somebody with these namespaces may see."""
    items = feed.watch(None, since)
    try:
        async for item in items:
            event = item.event
            if namespaces is not None and not await records.is_visible(item.job, namespaces):
                continue
            context = event_context(event, namespaces)
            yield InstanceEvent(item.seq, encode_jobid(item.job), event.at, event.name, context, item.state)
    finally:
        await items.aclose()
