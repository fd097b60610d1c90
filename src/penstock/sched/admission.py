"""Limits of one namespace: how many of its jobs, and how many distinct requests, are in the queue.

The cost of a scheduling cycle grows with the distinct requests (shapes) in the queue, that of forecasts and
lists with the jobs, so one namespace could slow down all others. The jobs of a namespace in a queue beyond
`pending_max`, and those with a shape beyond `shapes_max` of the namespace, wait *outside* the queue: no
cycle, forecast or explanation considers them. The oldest enters as soon as another job leaves.

Which jobs are outside follows from the pending jobs in the order of their arrival, so nothing is recorded: a
restart counts them again. Only jobs of workloads count. Submitted jobs are refused when the instance is full.
Each event costs a constant time or the logarithm of the number of jobs outside.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from penstock.engine.request import Request
from penstock.sched.settings import Settings

__all__ = ["Admission"]

_Place = tuple[float, int]  # when a job was first seen, and its id


@dataclass(slots=True)
class _Line:
    """Jobs outside, the oldest first. Those that have left are dropped when they come to the front."""

    heap: list[_Place] = field(default_factory=list)
    jobs: set[int] = field(default_factory=set)

    def copy(self) -> _Line:
        return _Line(list(self.heap), set(self.jobs))

    def add(self, place: _Place) -> None:
        self.jobs.add(place[1])
        heapq.heappush(self.heap, place)

    def first(self) -> int | None:
        while self.heap and self.heap[0][1] not in self.jobs:
            heapq.heappop(self.heap)
        return self.heap[0][1] if self.heap else None


@dataclass(slots=True)
class _Pending:
    """The pending jobs of a namespace in one queue."""

    inside: int = 0
    outside: _Line = field(default_factory=_Line)

    def copy(self) -> _Pending:
        return _Pending(self.inside, self.outside.copy())


@dataclass(slots=True)
class _Shapes:
    """The distinct requests of a namespace, each with the number of jobs that have it."""

    inside: dict[Request, int] = field(default_factory=dict)
    outside: _Line = field(default_factory=_Line)
    by_request: dict[Request, dict[int, None]] = field(default_factory=dict)  # the jobs outside

    def copy(self) -> _Shapes:
        by_request = {request: dict(jobs) for request, jobs in self.by_request.items()}
        return _Shapes(dict(self.inside), self.outside.copy(), by_request)


@dataclass(slots=True)
class _Tracked:
    owner: str
    queue: str
    place: _Place
    is_counted: bool = False  # it is among the pending jobs of its queue that are inside
    request: Request | None = None  # which is counted, or waits outside
    has_shape: bool = False  # its request is counted

    @property
    def is_outside(self) -> bool:
        return not self.is_counted or (self.request is not None and not self.has_shape)

    def copy(self) -> _Tracked:
        return _Tracked(self.owner, self.queue, self.place, self.is_counted, self.request, self.has_shape)


class Admission:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._jobs: dict[int, _Tracked] = {}
        self._pending: dict[tuple[str, str], _Pending] = {}  # by queue and namespace
        self._shapes: dict[str, _Shapes] = {}  # by namespace
        self._entered: dict[int, None] = {}

    def copy(self) -> Admission:
        made = Admission(self._settings)
        made._jobs = {job: tracked.copy() for job, tracked in self._jobs.items()}
        made._pending = {key: pending.copy() for key, pending in self._pending.items()}
        made._shapes = {owner: shapes.copy() for owner, shapes in self._shapes.items()}
        made._entered = dict(self._entered)
        return made

    def outside_reason(self, job: int) -> str:
        """Why a job waits outside the queue; "" if it does not."""
        tracked = self._jobs.get(job)
        if tracked is None or not tracked.is_outside:
            return ""
        who = f"namespace {tracked.owner}" if tracked.owner else "its owner"
        if not tracked.is_counted:
            most = self._settings.queue_of_job(tracked.queue).pending_max
            return (
                f"waits outside queue {tracked.queue}: {who} has {most} pending jobs in it, "
                f"as many as pending_max allows"
            )
        most = self._settings.shapes_max
        count = len(tracked.request.groups) if tracked.request is not None else 0
        if count > most:
            return (
                f"waits outside queue {tracked.queue}: its members have {count} distinct requests, "
                f"at most {most} (limits.shapes_max)"
            )
        return (
            f"waits outside queue {tracked.queue}: the pending jobs of {who} have {most} distinct requests, "
            f"as many as limits.shapes_max allows"
        )

    def jobs(self) -> Iterable[int]:
        """All jobs that are counted, inside the queue or outside."""
        return self._jobs

    def outside_count(self) -> int:
        """The number of jobs that wait outside the queue."""
        return sum(1 for tracked in self._jobs.values() if tracked.is_outside)

    def take_entered(self) -> Iterable[int]:
        """Jobs that waited outside before and may enter the queue, in the order of their arrival."""
        entered, self._entered = self._entered, {}
        return entered

    # Jobs

    def add(self, job: int, owner: str, queue: str, seen_at: float) -> None:
        """Counts a pending job, assembled or not. Jobs are added in the order of their arrival."""
        tracked = self._jobs[job] = _Tracked(owner, queue, (seen_at, job))
        self._enter_queue(tracked, is_new=True)

    def set_queue(self, job: int, queue: str) -> None:
        """Moves a job to another queue, behind those that are inside."""
        tracked = self._jobs.get(job)
        if tracked is None or tracked.queue == queue:
            return
        self._leave_queue(tracked)
        tracked.queue = queue
        self._enter_queue(tracked, is_new=True)

    def set_request(self, job: int, request: Request) -> None:
        """Counts the request of an assembled job in place of its previous one."""
        tracked = self._jobs.get(job)
        if tracked is None or tracked.request == request:
            return
        self._drop_request(tracked)
        tracked.request = request
        self._enter_shape(tracked, is_new=True)

    def remove(self, job: int) -> None:
        """A job has started or is over."""
        tracked = self._jobs.pop(job, None)
        if tracked is None:
            return
        self._entered.pop(job, None)
        self._drop_request(tracked)
        self._leave_queue(tracked)

    # Pending jobs of a queue

    def _enter_queue(self, tracked: _Tracked, *, is_new: bool) -> None:
        pending = self._pending.setdefault((tracked.queue, tracked.owner), _Pending())
        if pending.inside >= self._settings.queue_of_job(tracked.queue).pending_max:
            pending.outside.add(tracked.place)
            return
        pending.inside += 1
        tracked.is_counted = True
        if not is_new:
            self._entered[tracked.place[1]] = None

    def _leave_queue(self, tracked: _Tracked) -> None:
        key = (tracked.queue, tracked.owner)
        pending = self._pending[key]
        if tracked.is_counted:
            tracked.is_counted = False
            pending.inside -= 1
        else:
            pending.outside.jobs.discard(tracked.place[1])
        most = self._settings.queue_of_job(tracked.queue).pending_max
        while pending.inside < most and (first := pending.outside.first()) is not None:
            pending.outside.jobs.discard(first)
            self._enter_queue(self._jobs[first], is_new=False)
        if not pending.inside and not pending.outside.jobs:
            del self._pending[key]

    # Shapes of a namespace

    def _enter_shape(self, tracked: _Tracked, *, is_new: bool) -> None:
        assert tracked.request is not None
        shapes = self._shapes.setdefault(tracked.owner, _Shapes())
        most = self._settings.shapes_max
        if len(tracked.request.groups) > most:
            return  # It costs as much as so many shapes, and waits until it has fewer distinct requests.
        if tracked.request not in shapes.inside and len(shapes.inside) >= most:
            shapes.outside.add(tracked.place)
            shapes.by_request.setdefault(tracked.request, {})[tracked.place[1]] = None
            return
        shapes.inside[tracked.request] = shapes.inside.get(tracked.request, 0) + 1
        tracked.has_shape = True
        if not is_new:
            self._entered[tracked.place[1]] = None

    def _drop_request(self, tracked: _Tracked) -> None:
        if tracked.request is None:
            return
        shapes = self._shapes[tracked.owner]
        request, tracked.request = tracked.request, None
        if tracked.has_shape:
            tracked.has_shape = False
            shapes.inside[request] -= 1
            if not shapes.inside[request]:
                del shapes.inside[request]
                self._admit_shapes(shapes)
        elif tracked.place[1] in shapes.outside.jobs:
            shapes.outside.jobs.discard(tracked.place[1])
            del shapes.by_request[request][tracked.place[1]]
            if not shapes.by_request[request]:
                del shapes.by_request[request]
        if not shapes.inside and not shapes.outside.jobs:
            del self._shapes[tracked.owner]

    def _admit_shapes(self, shapes: _Shapes) -> None:
        """Admits the request of the oldest job outside, with all jobs that have it."""
        while (
            len(shapes.inside) < self._settings.shapes_max and (first := shapes.outside.first()) is not None
        ):
            request = self._jobs[first].request
            assert request is not None
            for job in shapes.by_request.pop(request):
                shapes.outside.jobs.discard(job)
                self._enter_shape(self._jobs[job], is_new=False)

    def violations(self) -> Iterator[str]:
        """Limits that are exceeded, and jobs that wait although there is room, in words."""
        for (queue, owner), pending in self._pending.items():
            most = self._settings.queue_of_job(queue).pending_max
            if pending.inside > most or (pending.inside < most and pending.outside.jobs):
                yield f"{pending.inside} jobs of {owner} are in {queue}, {len(pending.outside.jobs)} outside"
        for owner, shapes in self._shapes.items():
            most, count = self._settings.shapes_max, len(shapes.inside)
            if count > most or (count < most and shapes.outside.jobs):
                yield f"{owner} has {count} shapes, {len(shapes.outside.jobs)} jobs wait outside"
        if self._entered:
            yield f"jobs {list(self._entered)} have entered and are not enqueued"
