"""The order of the queue, and the pending entries in that order.

`order_key` defines the order: replacements in started groups, then the higher class, within a class expedited
jobs, then the higher urgency, the earlier submission, the lower id. Any user may set an urgency, but not any
class; so no urgency precedes a higher class. Jobs of one queue with equal requests share a bucket. If one of
them does not fit, the next does not fit either, so a cycle looks at the first entry of a bucket and may skip
the rest. Its cost therefore grows with the number of starts and of shapes, not with the number of jobs. Late
members have buckets of their own: they are considered even if no job of their queue is.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock.model.job import URGENCY_EXPEDITE, URGENCY_HOLD

__all__ = ["PRIORITY_MAX", "Bucket", "OrderKey", "Pending", "QueueEntry", "order_key", "priority_of"]

PRIORITY_MAX: Final = 4294967295

_COMPACT_AT: Final = 64


class OrderKey(NamedTuple):
    precedence: int  # -1 for a replacement, which is before everything else, and 0 for others
    class_value: int  # negated like urgency, so that the highest is first
    is_usual: bool  # False: expedited
    urgency: int
    seen_at: float
    id: int
    member: int  # 0 for a job, 1 for a late member

    @property
    def is_replacement(self) -> bool:
        return self.precedence < 0


class QueueEntry(NamedTuple):
    """An entry of the queue: a job, or a late member of a started job."""

    key: OrderKey
    job: int
    member: str = ""


def order_key(
    urgency: int,
    class_value: int,
    seen_at: float,
    job: int,
    member: int = 0,
    *,
    is_replacement: bool = False,
) -> OrderKey:
    is_usual = urgency != URGENCY_EXPEDITE
    return OrderKey(-1 if is_replacement else 0, -class_value, is_usual, -urgency, seen_at, job, member)


def priority_of(urgency: int, class_value: int) -> int:
    """The priority that Flux tools show; the queue is ordered by `order_key`."""
    if urgency == URGENCY_HOLD:
        return 0
    if urgency == URGENCY_EXPEDITE:
        return PRIORITY_MAX
    return min(max(class_value + urgency, 1), PRIORITY_MAX - 1)


class Bucket:
    """The pending entries of one queue with equal requests, in order: jobs, or late members."""

    __slots__ = ("_entries", "_head", "is_late", "queue", "shape")

    def __init__(self, queue: str, shape: int, is_late: bool) -> None:
        self.queue = queue
        self.shape = shape
        self.is_late = is_late  # has late members of started jobs
        self._entries: list[QueueEntry] = []
        self._head = 0  # entries before it are removed; most leave at the front

    def __len__(self) -> int:
        return len(self._entries) - self._head

    def add(self, entry: QueueEntry) -> None:
        insort(self._entries, entry, lo=self._head)

    def remove(self, entry: QueueEntry) -> bool:
        where = bisect_left(self._entries, entry, lo=self._head)
        if where >= len(self._entries) or self._entries[where] != entry:
            return False
        if where == self._head:
            self._head += 1
            if self._head >= _COMPACT_AT and self._head * 2 >= len(self._entries):
                del self._entries[: self._head]
                self._head = 0
        else:
            del self._entries[where]
        return True

    def copy(self) -> Bucket:
        made = Bucket(self.queue, self.shape, self.is_late)
        made._entries, made._head = list(self._entries), self._head
        return made

    def entries(self) -> Iterator[QueueEntry]:
        for where in range(self._head, len(self._entries)):
            yield self._entries[where]


class Pending:
    """All entries that may start, by queue and shape; late members apart from jobs."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, int, bool], Bucket] = {}
        self._where: dict[tuple[int, str], tuple[Bucket, QueueEntry]] = {}

    def copy(self) -> Pending:
        made = Pending()
        made._buckets = {key: bucket.copy() for key, bucket in self._buckets.items()}
        made._where = {
            key: (made._buckets[(bucket.queue, bucket.shape, bucket.is_late)], entry)
            for key, (bucket, entry) in self._where.items()
        }
        return made

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, job: int) -> bool:
        return (job, "") in self._where

    def add(self, entry: QueueEntry, queue: str, shape: int) -> None:
        self.remove(entry.job, entry.member)
        is_late = bool(entry.member)
        bucket = self._buckets.setdefault((queue, shape, is_late), Bucket(queue, shape, is_late))
        bucket.add(entry)
        self._where[(entry.job, entry.member)] = (bucket, entry)

    def remove(self, job: int, member: str = "") -> None:
        found = self._where.pop((job, member), None)
        if found is None:
            return
        bucket, entry = found
        bucket.remove(entry)
        if not len(bucket):
            del self._buckets[(bucket.queue, bucket.shape, bucket.is_late)]

    def entry(self, job: int, member: str = "") -> QueueEntry | None:
        found = self._where.get((job, member))
        return found[1] if found is not None else None

    def shape(self, entry: QueueEntry) -> int:
        """The shape of an entry."""
        return self._where[(entry.job, entry.member)][0].shape

    def buckets(self) -> list[Bucket]:
        return list(self._buckets.values())

    def in_order(self) -> Iterator[QueueEntry]:
        """All entries of all queues, in order."""
        return heapq.merge(*(bucket.entries() for bucket in self._buckets.values()))
