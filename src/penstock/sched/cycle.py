"""One walk through the queue: start what can start now, reserve for who must wait, let others fill the holes.

The same walk serves every queue policy, the pass of this instant and the imagined passes of a forecast. The
entries of all queues are taken in one order. While a queue has reservations left to make, a job that cannot
start now gets the earliest start that is free of everything booked before it, and that start is booked too:
nothing that comes later in the walk can delay it. A queue without any (`fcfs`) stops at the first job that
must wait. What waits only for something without an end gets no reservation, and stops nobody.

A shape that failed is not tried again in the walk, because bookings are only added in it; nor is a node that
had no room for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from math import ceil

from penstock.engine import Allocation, AllocationKind, Engine, MatchOp
from penstock.engine.request import Request
from penstock.sched.queue import Bucket, QueueEntry
from penstock.sched.settings import Backfill, BackfillKind

__all__ = ["Cycle", "CycleResult", "run_cycle"]


@dataclass(frozen=True, slots=True)
class Cycle:
    """What a walk is over: the engine, the buckets of the queues that are started, and how to read them."""

    engine: Engine
    now: int
    extra_s: int  # a start within a second takes a part of one more
    buckets: list[Bucket]
    backfill: Callable[[str], Backfill]  # by queue
    request: Callable[[int], Request]  # by shape
    end_at: Callable[[int], float | None]  # of a job that has begun
    queue_depth: int | None = None
    starts_max: int | None = None  # after so many starts the walk ends, and the next one goes on
    chosen: frozenset[QueueEntry] | None = None  # only these; None: all


@dataclass(slots=True)
class CycleResult:
    started: list[tuple[QueueEntry, Allocation]] = field(default_factory=list)
    reserved: list[tuple[QueueEntry, Allocation]] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)  # shapes
    unreservable: set[int] = field(default_factory=set)  # shapes that wait for something without an end
    full: dict[int, set[int]] = field(default_factory=dict)  # by shape: nodes without room for it
    matches: int = 0
    is_cut: bool = False  # there may be more to start


@dataclass(slots=True)
class _Queue:
    backfill: Backfill
    reservations_left: int
    looked_at: int = 0
    is_blocked: bool = False


def run_cycle(plan: Cycle) -> Generator[None, None, CycleResult]:
    """Walks once; yields between matches. Starts and reservations stay booked in the engine."""
    result = CycleResult()
    queues: dict[str, _Queue] = {}
    heap: list[tuple[QueueEntry, int, Iterator[QueueEntry]]] = []
    for place, bucket in enumerate(plan.buckets):
        _push(heap, place, bucket.entries())
        if bucket.queue not in queues:
            backfill = plan.backfill(bucket.queue)
            queues[bucket.queue] = _Queue(backfill, backfill.depth)
    while heap:
        if plan.starts_max is not None and len(result.started) >= plan.starts_max:
            result.is_cut = True
            break
        entry, place, rest = heap[0]
        bucket = plan.buckets[place]
        queue = queues[bucket.queue]
        if _is_over(plan, queue, bucket, result):
            heapq.heappop(heap)
            continue
        _advance(heap, place, rest)
        if plan.chosen is not None and entry not in plan.chosen:
            continue
        queue.looked_at += 1
        if _is_futile(queue, bucket, result):
            continue
        yield
        if entry.member:
            _extend(plan, entry, bucket, result)
        else:
            yield from _try(plan, entry, bucket, queue, result)
    return result


def _push(
    heap: list[tuple[QueueEntry, int, Iterator[QueueEntry]]], place: int, entries: Iterator[QueueEntry]
) -> None:
    first = next(entries, None)
    if first is not None:
        heapq.heappush(heap, (first, place, entries))


def _advance(
    heap: list[tuple[QueueEntry, int, Iterator[QueueEntry]]], place: int, rest: Iterator[QueueEntry]
) -> None:
    following = next(rest, None)
    if following is None:
        heapq.heappop(heap)
    else:
        heapq.heapreplace(heap, (following, place, rest))


def _is_over(plan: Cycle, queue: _Queue, bucket: Bucket, result: CycleResult) -> bool:
    """Whether nothing that is left in a bucket can be started or reserved in this walk."""
    if queue.is_blocked or (plan.queue_depth is not None and queue.looked_at >= plan.queue_depth):
        return True
    # With a depth, the ones that are passed over count too, so they are passed over one by one.
    return plan.queue_depth is None and _is_futile(queue, bucket, result)


def _is_futile(queue: _Queue, bucket: Bucket, result: CycleResult) -> bool:
    if bucket.shape in result.unreservable:
        return True
    is_strict = queue.backfill.kind is BackfillKind.FCFS  # There the first that must wait stops the rest.
    return bucket.shape in result.failed and queue.reservations_left <= 0 and not is_strict


def _try(
    plan: Cycle, entry: QueueEntry, bucket: Bucket, queue: _Queue, result: CycleResult
) -> Generator[None, None, None]:
    is_strict = queue.backfill.kind is BackfillKind.FCFS
    may_wait = is_strict or queue.reservations_left > 0
    request = plan.request(bucket.shape)
    if request.duration_s is not None and plan.extra_s:
        request = replace(request, duration_s=request.duration_s + plan.extra_s)
    op = MatchOp.ALLOCATE_ORELSE_RESERVE if may_wait else MatchOp.ALLOCATE
    result.matches += 1
    full = result.full.setdefault(bucket.shape, set())
    answer = yield from plan.engine.match_stepwise(
        entry.job, request, plan.now, op, explain=False, prove=False, full_nodes=full
    )
    if isinstance(answer, Allocation) and answer.kind is AllocationKind.ALLOCATED:
        result.started.append((entry, answer))
        return
    result.failed.add(bucket.shape)
    if isinstance(answer, Allocation):
        result.reserved.append((entry, answer))
        queue.reservations_left -= 1
        queue.is_blocked = is_strict
    elif may_wait:
        result.unreservable.add(bucket.shape)


def _extend(plan: Cycle, entry: QueueEntry, bucket: Bucket, result: CycleResult) -> None:
    """One more member for a job that has begun: now, or in a later walk."""
    result.matches += 1
    request = plan.request(bucket.shape)
    if entry.job in plan.engine.jobs:
        answer = plan.engine.extend(entry.job, request, plan.now)
    else:  # It has nothing left that could be extended.
        end_at = plan.end_at(entry.job)
        left_s = None if end_at is None else max(1, ceil(end_at) - plan.now)
        left = replace(request, duration_s=left_s)
        answer = plan.engine.match(entry.job, left, plan.now, explain=False, prove=False)
    if isinstance(answer, Allocation):
        result.started.append((entry, answer))
    else:
        result.failed.add(bucket.shape)
