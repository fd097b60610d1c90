"""One scheduling cycle over the queue: start what fits, reserve for the first jobs that do not, backfill.

One function serves every queue policy, the cycle of the present and the simulated cycles of a forecast. The
entries of all queues are taken in one order. While a queue has reservations left, a job that cannot start
gets the earliest start that delays nothing booked before it, and that start is booked, so no later entry of
the cycle can delay it. A job that waits only for resources without a known end, or whose earliest start is
beyond the horizon, gets no reservation and blocks no other job (`_cannot_reserve`). A strict queue (`fcfs`)
has no reservations: its first job that must wait, for whatever it waits, is the head of the queue and blocks
the jobs behind it. Late members of started jobs are neither blocked by a head, nor block anything.

A job that starves because it gets no reservation claims nodes (see `claims`). At its place in the order its
claim comes into force: entries behind it use nothing on these nodes, unless they are sure to end soon. A job
with a claim gets a reservation as soon as there is a start time for it, whatever the depth of its queue; the
reservation then stands in for the claim.

A shape that failed is not matched again in the cycle, because a cycle only adds bookings and claims. For the
same reason a node that is full for a shape is not searched again for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Final, Protocol

from penstock.engine import Allocation, AllocationKind, Engine, MatchOp
from penstock.engine.allocation import MatchResult
from penstock.engine.planner import FOREVER
from penstock.engine.request import Request
from penstock.sched.queue import Bucket, QueueEntry
from penstock.sched.settings import Backfill, BackfillKind

__all__ = ["Claimant", "Claiming", "Cycle", "CycleResult", "run_cycle"]

_HOLDERS: Final = -1  # the stream of jobs with a claim; buckets are numbered from 0


@dataclass(frozen=True, slots=True)
class Claimant:
    """A job that claims nodes, or that is starving and may get a claim."""

    entry: QueueEntry
    queue: str
    owner: str
    shape: int
    nodes: frozenset[int] = frozenset()  # indexes of the nodes that it claims


class Claiming(Protocol):
    """Decides about claims during a cycle."""

    def may_claim(self, claimant: Claimant) -> bool:
        """Whether this cycle should find out if a starving job needs a claim."""

    def refuse(self, claimant: Claimant) -> None:
        """A starving job has a start time, and gets no claim for now."""

    def decide(self, claimant: Claimant) -> Generator[None, None, frozenset[int]]:
        """The nodes that a job claims, by index: the same as before if possible; none if it gets no claim."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """The input of a cycle: the engine, the buckets of the started queues, and how to read them."""

    engine: Engine
    now: int
    extra_s: int  # 1 if the cycle starts within a second: the last second of a job is then partly used
    buckets: list[Bucket]
    backfill: Callable[[str], Backfill]  # by queue
    request: Callable[[int], Request]  # by shape
    end_at: Callable[[int], float | None]  # end of a started job
    made: Callable[[int], tuple[int, int]]  # parts and slots that the allocations of a job have had
    reservation_horizon_s: float = inf  # a later start is not booked
    queue_depth: int | None = None
    starts_max: int | None = None  # the cycle stops after this many starts
    chosen: frozenset[QueueEntry] | None = None  # restricts the cycle to these entries; None: all
    on_entry: Callable[[QueueEntry], None] = lambda _: None  # called before each match
    is_short: Callable[[int], bool] = lambda _shape: False  # by shape: it may use claimed nodes
    holders: Sequence[Claimant] = ()  # jobs that have a claim, in order
    starving: Sequence[Claimant] = ()  # jobs that may get one, in order
    claiming: Claiming | None = None  # None: claims are not made, and do not move


@dataclass(slots=True)
class CycleResult:
    started: list[tuple[QueueEntry, Allocation]] = field(default_factory=list)
    reserved: list[tuple[QueueEntry, Allocation]] = field(default_factory=list)
    failed: set[int] = field(default_factory=set)  # shapes
    beyond_horizon: list[tuple[QueueEntry, Allocation]] = field(default_factory=list)  # not booked
    unreservable: set[int] = field(default_factory=set)  # shapes without a start within the horizon
    heads: dict[str, QueueEntry] = field(default_factory=dict)  # by strict queue: the job that blocks it
    # by shape and, if its placement matters, job: the earliest end with which a late member did not fit
    failed_late: dict[tuple[int, int | None], int] = field(default_factory=dict)
    full: dict[int, set[int]] = field(default_factory=dict)  # by shape: nodes that cannot hold it
    decided: set[int] = field(default_factory=set)  # jobs that need no further look in this cycle
    claimed: set[int] = field(default_factory=set)  # nodes of the claims that are in force, by index
    matches: int = 0
    is_cut: bool = False  # the cycle stopped at `starts_max`
    extra_s: int = 0  # of `Cycle`: what reservations have beyond the limits of their jobs


@dataclass(slots=True)
class _Queue:
    backfill: Backfill
    reservations_left: int
    looked_at: int = 0
    is_blocked: bool = False

    @property
    def is_strict(self) -> bool:
        return self.backfill.kind is BackfillKind.FCFS


def run_cycle(plan: Cycle) -> Generator[None, None, CycleResult]:
    """Runs one cycle; yields between matches. Starts and reservations stay booked in the engine."""
    result = CycleResult(extra_s=plan.extra_s)
    queues: dict[str, _Queue] = {}
    heap: list[tuple[QueueEntry, int, Iterator[QueueEntry]]] = []
    for index, bucket in enumerate(plan.buckets):
        _push(heap, index, bucket.entries())
        if bucket.queue not in queues:
            backfill = plan.backfill(bucket.queue)
            queues[bucket.queue] = _Queue(backfill, backfill.depth)
    claimants = {one.entry: one for one in (*plan.holders, *plan.starving) if one.queue in queues}
    # At its place in the order, a job with a claim comes before its bucket, a starving one after it.
    _push(heap, _HOLDERS, (one.entry for one in plan.holders))
    _push(heap, len(plan.buckets), (one.entry for one in plan.starving))
    while heap:
        if plan.starts_max is not None and len(result.started) >= plan.starts_max:
            result.is_cut = True
            break
        entry, index, rest = heap[0]
        if not 0 <= index < len(plan.buckets):
            _advance(heap, index, rest)
            claimant = claimants.get(entry)
            if claimant is not None and (plan.chosen is None or entry in plan.chosen):
                plan.on_entry(entry)
                yield
                claim = _keep_claim if index == _HOLDERS else _seek_claim
                yield from claim(plan, claimant, queues[claimant.queue], result)
            continue
        bucket = plan.buckets[index]
        queue = queues[bucket.queue]
        if _is_over(plan, queue, bucket, result):
            heapq.heappop(heap)
            continue
        _advance(heap, index, rest)
        if plan.chosen is not None and entry not in plan.chosen:
            continue
        if not bucket.is_late and entry.job in result.decided:
            continue
        queue.looked_at += 1
        plan.on_entry(entry)
        if bucket.is_late:
            yield
            _extend(plan, entry, bucket, result)
        elif not _is_futile(queue, bucket, result):
            yield
            yield from _try(plan, entry, bucket, queue, result)
    return result


def _push(
    heap: list[tuple[QueueEntry, int, Iterator[QueueEntry]]], index: int, entries: Iterator[QueueEntry]
) -> None:
    first = next(entries, None)
    if first is not None:
        heapq.heappush(heap, (first, index, entries))


def _advance(
    heap: list[tuple[QueueEntry, int, Iterator[QueueEntry]]], index: int, rest: Iterator[QueueEntry]
) -> None:
    following = next(rest, None)
    if following is None:
        heapq.heappop(heap)
    else:
        heapq.heapreplace(heap, (following, index, rest))


def _is_over(plan: Cycle, queue: _Queue, bucket: Bucket, result: CycleResult) -> bool:
    """Whether no further entry of a bucket can start or get a reservation in this cycle."""
    if plan.queue_depth is not None and queue.looked_at >= plan.queue_depth:
        return True
    if bucket.is_late:
        return False
    # With a queue depth, skipped entries count too, so they are skipped one by one.
    return queue.is_blocked or (plan.queue_depth is None and _is_futile(queue, bucket, result))


def _is_futile(queue: _Queue, bucket: Bucket, result: CycleResult) -> bool:
    if queue.is_strict:
        return False  # Its first job that must wait blocks it, also if another queue has tried the shape.
    if bucket.shape in result.unreservable:
        return True
    return bucket.shape in result.failed and queue.reservations_left <= 0


def _try(
    plan: Cycle, entry: QueueEntry, bucket: Bucket, queue: _Queue, result: CycleResult
) -> Generator[None, None, None]:
    may_reserve = queue.reservations_left > 0
    answer = yield from _match(plan, entry, bucket.shape, may_reserve, result)
    if isinstance(answer, Allocation) and answer.kind is AllocationKind.ALLOCATED:
        result.started.append((entry, answer))
        result.decided.add(entry.job)
        return
    result.failed.add(bucket.shape)
    if queue.is_strict:
        queue.is_blocked = True
        result.heads[bucket.queue] = entry
    elif not isinstance(answer, Allocation):
        if may_reserve:
            _cannot_reserve(entry, bucket, None, result)
    elif answer.start_s <= plan.now + plan.reservation_horizon_s:
        result.reserved.append((entry, answer))
        result.decided.add(entry.job)
        queue.reservations_left -= 1
    else:
        plan.engine.unbook_job(entry.job)  # A release would move external usage, also in a forecast.
        _cannot_reserve(entry, bucket, answer, result)


def _cannot_reserve(
    entry: QueueEntry, bucket: Bucket, earliest: Allocation | None, result: CycleResult
) -> None:
    """Leaves a job without a reservation at its place in the queue; it delays nobody.

    `earliest` starts beyond the horizon; None: what the job waits for has no known end.
    """
    result.unreservable.add(bucket.shape)
    if earliest is not None:
        result.beyond_horizon.append((entry, earliest))


def _request(plan: Cycle, shape: int) -> Request:
    request = plan.request(shape)
    if request.duration_s is not None and plan.extra_s:
        return replace(request, duration_s=request.duration_s + plan.extra_s)
    return request


def _claimed_by_others(plan: Cycle, shape: int, result: CycleResult) -> Set[int]:
    """The nodes that an entry at this place must not use."""
    return frozenset() if plan.is_short(shape) else result.claimed


def _match(
    plan: Cycle, entry: QueueEntry, shape: int, may_reserve: bool, result: CycleResult
) -> Generator[None, None, MatchResult]:
    op = MatchOp.ALLOCATE_ORELSE_RESERVE if may_reserve else MatchOp.ALLOCATE
    result.matches += 1
    return (
        yield from plan.engine.match_stepwise(
            entry.job,
            _request(plan, shape),
            plan.now,
            op,
            explain=False,
            prove=False,
            full_nodes=result.full.setdefault(shape, set()),
            excluded_nodes=_claimed_by_others(plan, shape, result),
            made=plan.made(entry.job),
        )
    )


def _extend(plan: Cycle, entry: QueueEntry, bucket: Bucket, result: CycleResult) -> None:
    """Places one late member of a started job now, or leaves it for a later cycle.

    A late member that does not fit says nothing about jobs with an equal request: it must share the domain of
    its job, avoid its nodes, and end with it.
    """
    request = plan.request(bucket.shape)
    holder = plan.engine.jobs.get(entry.job)
    placement = request.placement if holder is None else holder.placement
    if holder is not None:
        end = max(holder.end, plan.now + 1)
    else:  # Its allocation was released completely.
        end_at = plan.end_at(entry.job)
        end = FOREVER if end_at is None else max(ceil(end_at), plan.now + 1)
    key = (bucket.shape, entry.job if placement.within or placement.distinct_nodes else None)
    if end >= result.failed_late.get(key, FOREVER + 1):
        return
    result.matches += 1
    claimed = _claimed_by_others(plan, bucket.shape, result)
    if holder is not None:
        answer = plan.engine.extend(entry.job, request, plan.now, explain=False, excluded_nodes=claimed)
    else:
        left = replace(request, duration_s=None if end == FOREVER else end - plan.now)
        answer = plan.engine.match(
            entry.job,
            left,
            plan.now,
            explain=False,
            prove=False,
            excluded_nodes=claimed,
            made=plan.made(entry.job),
        )
    if isinstance(answer, Allocation):
        result.started.append((entry, answer))
    else:
        result.failed_late[key] = end


def _keep_claim(
    plan: Cycle, claimant: Claimant, queue: _Queue, result: CycleResult
) -> Generator[None, None, None]:
    """Starts a job that has a claim, else reserves a start for it, else puts its claim into force."""
    entry, shape = claimant.entry, claimant.shape
    result.decided.add(entry.job)
    queue.looked_at += 1
    answer = yield from _match(plan, entry, shape, False, result)
    if isinstance(answer, Allocation):
        result.started.append((entry, answer))
        return
    result.failed.add(shape)
    others = _claimed_by_others(plan, shape, result)
    everything = frozenset(node.index for node in plan.engine.graph.of_type("node"))
    # On its own nodes it comes closer to its start with every job that ends, so these are tried first.
    for excluded_nodes in (others | (everything - claimant.nodes), others):
        reserved = yield from _later_start(plan, claimant, excluded_nodes, result, book=True)
        if reserved is not None:
            result.reserved.append((entry, reserved))
            queue.reservations_left -= 1
            return
    result.claimed |= claimant.nodes if plan.claiming is None else (yield from plan.claiming.decide(claimant))


def _seek_claim(
    plan: Cycle, claimant: Claimant, _queue: _Queue, result: CycleResult
) -> Generator[None, None, None]:
    """Makes a claim for a starving job that has no start time within the horizon."""
    claiming, shape = plan.claiming, claimant.shape
    if claiming is None or claimant.entry.job in result.decided or not claiming.may_claim(claimant):
        return
    if shape not in result.unreservable:
        others = _claimed_by_others(plan, shape, result)
        if (yield from _later_start(plan, claimant, others, result, book=False)) is not None:
            claiming.refuse(claimant)
            return
    result.claimed |= yield from claiming.decide(claimant)


def _later_start(
    plan: Cycle, claimant: Claimant, excluded_nodes: Set[int], result: CycleResult, *, book: bool
) -> Generator[None, None, Allocation | None]:
    """A start after the present instant and within the horizon; None if there is none.

    What running jobs hold only shrinks over time, so what does not fit at the last instant fits at no earlier
    one, and the first instant is found by bisection. If reservations are in between, the start is a possible
    one, not always the first. A reservation without an end would hide the starts before it.
    """
    yield
    engine, job = plan.engine, claimant.entry.job
    request, latest = _request(plan, claimant.shape), plan.now + plan.reservation_horizon_s
    if any(reserved.end_s is None for _, reserved in result.reserved):
        op = MatchOp.ALLOCATE_ORELSE_RESERVE if book else MatchOp.WITHOUT_ALLOCATING_FUTURE
        answer = yield from engine.match_stepwise(
            job, request, plan.now, op, explain=False, prove=False, excluded_nodes=excluded_nodes
        )
        if not isinstance(answer, Allocation):
            return None
        if answer.start_s > latest and book:
            engine.unbook_job(job)
        return answer if answer.start_s <= latest else None
    times = [at for at in engine.instants(plan.now) if at <= latest]

    def start(at: int, book: bool) -> Allocation | None:
        result.matches += 1
        return engine.reserve(job, request, at, plan.now, excluded_nodes, book=book)

    if not times or start(times[-1], False) is None:
        return None
    too_early, late_enough = -1, len(times) - 1
    while late_enough - too_early > 1:
        yield
        middle = (too_early + late_enough) // 2
        if start(times[middle], False) is None:
            too_early = middle
        else:
            late_enough = middle
    return start(times[late_enough], book)
