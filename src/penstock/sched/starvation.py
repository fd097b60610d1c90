"""Starving jobs: those that have been eligible to start for `starvation_after`, in a queue that backfills.

A job that becomes eligible gets a timer here. When the timer is due and the job still waits, it is starving,
and the next cycle may claim nodes for it. Starving jobs are kept by queue and owner, then by shape, in the
order of the queue: of equal requests of one owner only the first can need a claim, so the cost for a cycle
grows with the number of shapes, not of jobs.

While a queue is stopped its jobs are not eligible. When it is started again, they wait from then on.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from penstock.sched.queue import QueueEntry

__all__ = ["StarvingJob", "StarvingJobs"]

_SHAPES_MAX: Final = 8  # per queue and owner in one cycle; the first in order count
_NO_JOB: Final = -1


@dataclass(frozen=True, slots=True)
class StarvingJob:
    entry: QueueEntry
    queue: str
    owner: str
    shape: int
    since: float  # when it became eligible


class StarvingJobs:
    def __init__(self, starvation_after_s: float) -> None:
        self._after_s = starvation_after_s
        self._waiting: dict[int, StarvingJob] = {}  # jobs that may become starving, and those that are
        self._due: list[tuple[float, int]] = []  # times at which jobs must be looked at
        self._entries: dict[tuple[str, str], dict[int, list[QueueEntry]]] = {}  # of starving jobs
        self._started_at: dict[str, float] = {}  # when a queue was last started

    def copy(self) -> StarvingJobs:
        made = StarvingJobs(self._after_s)
        made._waiting, made._due = dict(self._waiting), list(self._due)
        made._entries = {
            of: {shape: list(entries) for shape, entries in shapes.items()}
            for of, shapes in self._entries.items()
        }
        made._started_at = dict(self._started_at)
        return made

    def add(self, entry: QueueEntry, queue: str, owner: str, shape: int, now: float) -> None:
        """Notes a job that is eligible. One that was eligible before keeps its time."""
        before = self._waiting.get(entry.job)
        was_starving = before is not None and self._is_starving(before)
        since = now if before is None else before.since
        self.remove(entry.job)
        job = self._waiting[entry.job] = StarvingJob(entry, queue, owner, shape, since)
        if was_starving:
            self._add_entry(job)
        elif before is None:
            heapq.heappush(self._due, (since + self._after_s, entry.job))

    def remove(self, job: int) -> None:
        known = self._waiting.pop(job, None)
        if known is None or not self._is_starving(known):
            return
        of, shape = (known.queue, known.owner), known.shape
        entries = self._entries[of][shape]
        del entries[bisect_left(entries, known.entry)]
        if not entries:
            del self._entries[of][shape]
            if not self._entries[of]:
                del self._entries[of]

    def queue_started(self, queue: str, now: float) -> None:
        self._started_at[queue] = now
        heapq.heappush(self._due, (now + self._after_s, _NO_JOB))

    def look_again(self, at: float) -> None:
        """A starving job got no claim: another cycle must run at this time."""
        heapq.heappush(self._due, (at, _NO_JOB))

    def next_at(self) -> float | None:
        while self._due and self._due[0][1] != _NO_JOB and self._due[0][1] not in self._waiting:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now: float) -> bool:
        """Marks the jobs that starve by now. Returns whether a cycle may have to claim nodes for one."""
        is_cycle_due = False
        while self._due and self._due[0][0] <= now:
            _, number = heapq.heappop(self._due)
            job = self._waiting.get(number)
            if number == _NO_JOB:
                is_cycle_due = is_cycle_due or bool(self._entries)
            elif job is not None and not self._is_starving(job):
                shapes = self._entries.get((job.queue, job.owner), {})
                is_cycle_due = is_cycle_due or job.shape not in shapes
                self._add_entry(job)
        return is_cycle_due

    def first_jobs(self, now: float) -> Iterator[StarvingJob]:
        """For each queue and owner the first starving jobs in order, one of each shape."""
        for (queue, _), shapes in self._entries.items():
            if self._started_at.get(queue, now - self._after_s) + self._after_s > now:
                continue
            heads = sorted(entries[0] for entries in shapes.values())
            yield from (self._waiting[entry.job] for entry in heads[:_SHAPES_MAX])

    def _is_starving(self, job: StarvingJob) -> bool:
        entries = self._entries.get((job.queue, job.owner), {}).get(job.shape, [])
        where = bisect_left(entries, job.entry)
        return where < len(entries) and entries[where] == job.entry

    def _add_entry(self, job: StarvingJob) -> None:
        shapes = self._entries.setdefault((job.queue, job.owner), {})
        insort(shapes.setdefault(job.shape, []), job.entry)
