"""The event feed: committed job events with sequence numbers, for clients that watch.

The most recent events are kept, so that a client that reconnects can continue after the last number it saw.
A client whose backlog grows too large is disconnected: its stream ends. Numbers increase over restarts,
because the epoch forms their high bits.
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

_RECENT_MAX: Final = 10_000
_BACKLOG_MAX: Final = 50_000


@dataclass(frozen=True, slots=True)
class FeedItem:
    seq: int
    job: int
    event: JobEvent
    state: JobState


class Feed:
    def __init__(self) -> None:
        self._recent: deque[FeedItem] = deque(maxlen=_RECENT_MAX)
        self._queues: dict[asyncio.Queue[FeedItem | None], int | None] = {}  # one job, or None for all
        self._seq = 0

    def begin(self, epoch: int) -> None:
        self._seq = max(self._seq, epoch << 32)

    def publish(self, changes: Sequence[Change]) -> None:
        states = {change.id: change.state for change in changes if isinstance(change, JobLive)}
        for change in changes:
            if isinstance(change, JobLogged):
                self._seq += 1
                item = FeedItem(self._seq, change.id, change.event, states.get(change.id, JobState.NEW))
                self._recent.append(item)
                for queue, job in list(self._queues.items()):
                    if job is None or job == change.id:
                        self._send(queue, item)

    def _send(self, queue: asyncio.Queue[FeedItem | None], item: FeedItem) -> None:
        if queue.qsize() >= _BACKLOG_MAX:
            self._queues.pop(queue, None)
            queue.put_nowait(None)
        else:
            queue.put_nowait(item)

    async def watch(self, job: int | None = None, since: int | None = None) -> AsyncGenerator[FeedItem, None]:
        """Yields events of one job or of all, starting with the recent ones after number `since`."""
        queue: asyncio.Queue[FeedItem | None] = asyncio.Queue()
        for item in self._recent:
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
