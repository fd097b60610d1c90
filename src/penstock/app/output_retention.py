"""Removes the output of jobs that are no longer kept.

The directory of a job's output, in the state directory, is removed when the job is deleted from the history,
and when it has ended longer ago than `retention.output_days`. Files that a user has named with `--output` are
elsewhere and stay.

The directory itself says how old a job is at most, so the store is asked about old directories alone.
Whatever a crash leaves behind is an old directory without a job one day, and is removed then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from penstock.errors import PenstockError
from penstock.instance.loop import Instance
from penstock.model.job import JobState
from penstock.store.port import JobFilter

__all__ = ["OutputRetention"]

_LOG: Final = logging.getLogger("penstock.local")
_EVERY_S: Final = 600.0
_BATCH: Final = 500  # jobs per query


class OutputRetention:
    def __init__(self, directory: Path, age_s: float | None) -> None:
        self._directory = directory
        self._age_s = age_s
        self._pruned: list[int] = []
        self._wakeup = asyncio.Event()

    def jobs_pruned(self, jobs: Sequence[int]) -> None:
        """These jobs have been deleted from the history."""
        self._pruned.extend(jobs)
        self._wakeup.set()

    async def run(self, instance: Instance) -> None:
        """Removes what is not kept, until cancelled."""
        await instance.readiness.until_ready()
        while True:
            self._wakeup.clear()
            pruned, self._pruned = self._pruned, []
            await asyncio.to_thread(self._remove, pruned)
            try:
                await self._remove_old(instance)
            except PenstockError as error:
                _LOG.info("the output of old jobs is looked at later: %s", error)
            except Exception:
                _LOG.exception("cannot remove the output of old jobs; trying again later")
            try:
                await asyncio.wait_for(self._wakeup.wait(), _EVERY_S)
            except TimeoutError:
                continue

    async def _remove_old(self, instance: Instance) -> None:
        if self._age_s is None:
            return
        before = time.time() - self._age_s
        old = await asyncio.to_thread(_jobs_of_old_directories, self._directory, before)
        for at in range(0, len(old), _BATCH):
            batch = tuple(old[at : at + _BATCH])
            # In this order: a job that ends meanwhile is found in the store.
            active = await instance.query(
                lambda scheduler, _, batch=batch: {job for job in batch if job in scheduler.jobs}  # type: ignore[misc]
            )
            found = await instance.store.jobs(JobFilter(ids=batch, limit=_BATCH))
            kept = {
                job.new.id
                for job in found
                if job.live.state is not JobState.INACTIVE or (job.live.ended_at or job.new.seen_at) >= before
            }
            await asyncio.to_thread(self._remove, [job for job in batch if job not in kept | active])

    def _remove(self, jobs: Sequence[int]) -> None:
        for job in jobs:
            shutil.rmtree(self._directory / str(job), ignore_errors=True)


def _jobs_of_old_directories(directory: Path, before: float) -> list[int]:
    """Jobs whose directory was last changed before a time: no attempt has begun since then."""
    found = []
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.isdecimal() and entry.stat(follow_symlinks=False).st_mtime < before:
                    found.append(int(entry.name))
    except FileNotFoundError:
        return []
    return found
