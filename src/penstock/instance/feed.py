"""The feed of what happens, for those who watch: committed events, numbered, the last ones kept.

A watcher that falls too far behind is cut off and told so by the end of its stream; it can come back with
the number it saw last. Numbers grow over restarts, because they begin with the epoch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.model.job import JobEvent, JobState
from penstock.sched.records import Change, JobLive, JobLogged

__all__ = ["Feed", "FeedItem"]

_KEPT: Final = 10_000
_BACKLOG_MAX: Final = 50_000


@dataclass(frozen=True, slots=True)
class FeedItem:
    seq: int
    job: int
    event: JobEvent
    state: JobState


class Feed:
    def __init__(self) -> None:
        self._kept: deque[FeedItem] = deque(maxlen=_KEPT)
        self._queues: dict[asyncio.Queue[FeedItem | None], int | None] = {}
        self._seq = 0

    def begin(self, epoch: int) -> None:
        self._seq = max(self._seq, epoch << 32)

    def publish(self, changes: Sequence[Change]) -> None:
        states = {change.id: change.state for change in changes if isinstance(change, JobLive)}
        for change in changes:
            if isinstance(change, JobLogged):
                self._seq += 1
                item = FeedItem(self._seq, change.id, change.event, states.get(change.id, JobState.NEW))
                self._kept.append(item)
                for queue, job in list(self._queues.items()):
                    if job is None or job == change.id:
                        self._give(queue, item)

    def _give(self, queue: asyncio.Queue[FeedItem | None], item: FeedItem) -> None:
        if queue.qsize() >= _BACKLOG_MAX:
            self._queues.pop(queue, None)
            queue.put_nowait(None)
        else:
            queue.put_nowait(item)

    async def watch(self, job: int | None = None, since: int | None = None) -> AsyncGenerator[FeedItem, None]:
        """Items as they come, of one job or of all; first those after `since` that are still kept."""
        queue: asyncio.Queue[FeedItem | None] = asyncio.Queue()
        for item in self._kept:
            if since is not None and item.seq > since and (job is None or item.job == job):
                queue.put_nowait(item)
        self._queues[queue] = job
        try:
            while (item_or_end := await queue.get()) is not None:
                yield item_or_end
        finally:
            self._queues.pop(queue, None)

    def close(self) -> None:
        """Ends every stream."""
        for queue in self._queues:
            queue.put_nowait(None)
        self._queues = {}
