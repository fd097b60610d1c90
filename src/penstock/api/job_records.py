"""Lookup of jobs: active ones in the scheduler, inactive ones in the store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from penstock.api import live_jobs
from penstock.api.documents import eventlog_entry, job_summary
from penstock.api.errors import UnknownJobId
from penstock.api.identity import Namespaces, sees
from penstock.api.responses import EventLogEntry, JobSummary
from penstock.instance.loop import Instance
from penstock.model.job import JobEvent
from penstock.sched.records import JobOverview, MemberRecord
from penstock.store.port import JobFilter

__all__ = ["JobRecords"]


class JobRecords:
    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    async def ranks(self) -> dict[str, int]:
        return await self._instance.query(lambda scheduler, _: dict(scheduler.state.nodes.ranks))

    async def exists(self, job: int) -> bool:
        """Whether the store has the job, active or not."""
        return bool(await self._instance.store.jobs(JobFilter(ids=(job,), limit=1)))

    async def overview(self, job: int, namespaces: Namespaces = None) -> JobOverview:
        """A job; one of other namespaces is unknown."""
        found = await self._instance.query(lambda scheduler, _: live_jobs.find(scheduler, job))
        if found is None:
            found = await self._inactive(job)
        if not sees(namespaces, found.new.owner):
            raise UnknownJobId(job)
        return found

    async def is_visible(self, job: int, namespaces: Namespaces) -> bool:
        try:
            await self.overview(job, namespaces)
        except UnknownJobId:
            return False
        return True

    async def with_members(self, job: int) -> tuple[JobOverview, list[MemberRecord]]:
        found = await self._instance.query(lambda scheduler, _: live_jobs.find_with_members(scheduler, job))
        if found is not None:
            return found
        return await self._inactive(job), await self._instance.store.members(job)

    async def _inactive(self, job: int) -> JobOverview:
        jobs = await self._instance.store.jobs(JobFilter(ids=(job,), limit=1))
        if not jobs:
            raise UnknownJobId(job)
        return jobs[0]

    async def summary(self, job: int, namespaces: Namespaces = None) -> JobSummary:
        found = await self._instance.query(
            lambda scheduler, now: live_jobs.summary_of(scheduler, now, job, namespaces)
        )
        if found is None:
            return job_summary(await self.overview(job, namespaces), await self.ranks())
        if not sees(namespaces, found.owner):
            raise UnknownJobId(job)
        return found

    async def eventlog(self, job: int) -> list[JobEvent]:
        log = await self._log(job)
        if not log:
            raise UnknownJobId(job)
        return log

    async def _log(self, job: int) -> list[JobEvent]:
        active = await self._instance.query(lambda scheduler, _: live_jobs.log_of(scheduler, job))
        return active if active is not None else await self._instance.store.log(job)

    async def follow_eventlog(
        self, job: int, namespaces: Namespaces = None
    ) -> AsyncGenerator[EventLogEntry, None]:
        """All events from the first one, then each as it is committed; ends after `clean`."""
        feed = self._instance.feed.watch(job)
        waiting = asyncio.ensure_future(anext(feed, None))
        sent = 0
        try:
            # One turn of the event loop subscribes to the feed. The log is read after that, so that an event
            # committed in between is in the log, in the feed, or in both, but never in neither.
            await asyncio.sleep(0)
            log = await self._log(job)
            while True:
                for event in log[sent:]:
                    yield eventlog_entry(event, namespaces)
                    if event.name == "clean":
                        return
                sent = len(log)
                if await waiting is None:
                    return
                waiting = asyncio.ensure_future(anext(feed, None))
                log = await self._log(job)
        finally:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            await feed.aclose()
