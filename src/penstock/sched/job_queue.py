"""The queue: entries that may start, the shapes of their requests, and the states of the named queues.

A job that leaves the queue, by its start or because it is not eligible any more, also gives up its claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from penstock.engine.request import Request
from penstock.model.job import URGENCY_HOLD, JobState
from penstock.sched.claims import NodeClaims
from penstock.sched.job import Job
from penstock.sched.late_shapes import LateShapes
from penstock.sched.queue import Bucket, OrderKey, Pending, QueueEntry, order_key
from penstock.sched.records import QueueSet
from penstock.sched.settings import BackfillKind, Settings
from penstock.sched.starvation import StarvingJobs

__all__ = ["JobQueue", "Shapes"]

_SHAPES_SWEEP: Final = 10_000
_SUBMISSION_KEYS_MAX: Final = 100_000


class Shapes:
    """Numbers requests: equal requests with equal rights on claimed nodes have one number, their shape."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[Request, bool], int] = {}
        self._requests: dict[int, tuple[Request, bool]] = {}
        self._made = 0

    def copy(self) -> Shapes:
        made = Shapes()
        made._numbers, made._requests, made._made = dict(self._numbers), dict(self._requests), self._made
        return made

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, request: Request, is_short: bool) -> int:
        key = (request, is_short)
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = self._made
            self._requests[found] = key
            self._made += 1
        return found

    def request(self, number: int) -> Request:
        return self._requests[number][0]

    def is_short(self, number: int) -> bool:
        return self._requests[number][1]

    def keep(self, numbers: set[int]) -> None:
        """Drops all other requests. A number is never reused."""
        self._requests = {number: request for number, request in self._requests.items() if number in numbers}
        self._numbers = {request: number for number, request in self._requests.items()}


class JobQueue:
    """`is_dirty`: something may start that could not start in the last cycle."""

    def __init__(self, settings: Settings, claims: NodeClaims) -> None:
        self._settings = settings
        self._claims = claims
        self.starving = StarvingJobs(settings.starvation_after_s)
        self._pending = Pending()
        self._shapes = Shapes()
        self._late_shapes = LateShapes(settings.shapes_max)
        self._states: dict[str, QueueSet] = {}
        self._submissions: dict[str, tuple[int, ...]] = {}  # jobs by the idempotency key of their submission
        self.is_dirty = True

    def copy(self, claims: NodeClaims) -> JobQueue:
        made = JobQueue(self._settings, claims)
        made.starving = self.starving.copy()
        made._pending, made._shapes = self._pending.copy(), self._shapes.copy()
        made._late_shapes = self._late_shapes.copy()
        made._states, made._submissions = dict(self._states), dict(self._submissions)
        made.is_dirty = self.is_dirty
        return made

    def mark_dirty(self) -> None:
        """Something may start that could not start before: the next cycle is due."""
        self.is_dirty = True

    # Entries

    def __len__(self) -> int:
        return len(self._pending)

    def __contains__(self, job: int) -> bool:
        return job in self._pending

    def enqueue(self, job: Job, now: float) -> None:
        """Adds a job to the queue if it is eligible to start, else removes it.

        A job that is added is eligible since `now`.
        """
        is_ready = job.is_assembled and job.urgency != URGENCY_HOLD and not job.unsatisfiable_reason
        if job.state is not JobState.SCHED or not is_ready or not job.is_admitted:
            self.dequeue(job.id)
            return
        before, job.shape = job.shape, self._shapes.number(job.spec.request, self._is_short(job))
        if job.shape != before:
            self._claims.request_changed(job.id)
        entry = QueueEntry(order_key(job.urgency, job.class_value, job.seen_at, job.id), job.id)
        self._pending.add(entry, job.queue, job.shape)
        if self._settings.queue_of_job(job.queue).backfill.kind is BackfillKind.FCFS:
            self._claims.end(job.id)  # The configuration has changed.
        else:
            self.starving.add(entry, job.queue, job.owner, job.shape, now)
        self.mark_dirty()

    def _is_short(self, job: Job) -> bool:
        """Whether a job may use nodes that others claim, because it is certain to end soon."""
        limit_s = job.spec.limit_s
        is_short = limit_s is not None and limit_s <= self._settings.claim_backfill_max_s
        return is_short and job.spec.is_limit_enforced

    def enqueue_member(self, job: Job, member: str, key: OrderKey, request: Request) -> bool:
        """Adds a late member of a started job. False: it waits outside, see `late_shapes`."""
        self._remove_late(job.id, member)
        shape = self._shapes.number(request, self._is_short(job))
        entry = QueueEntry(key, job.id, member)
        if not self._late_shapes.add(job.owner, (entry, job.queue, shape)):
            return False
        self._pending.add(entry, job.queue, shape)
        self.mark_dirty()
        return True

    def _remove_late(self, job: int, member: str) -> None:
        self._pending.remove(job, member)
        for entry, queue, shape in self._late_shapes.remove(job, member):
            self._pending.add(entry, queue, shape)
            self.mark_dirty()

    def dequeue(self, job: int, member: str = "") -> None:
        """Removes an entry that does not start."""
        if not member:
            self._leave(job)
        if self._pending.entry(job, member) is not None:
            self._pending.remove(job, member)
            self.mark_dirty()
        if member:
            self._remove_late(job, member)

    def remove_started(self, job: int, member: str = "") -> None:
        if member:
            self._remove_late(job, member)
            return
        self._leave(job)
        self._pending.remove(job)

    def _leave(self, job: int) -> None:
        self.starving.remove(job)
        self._claims.end(job)

    def entry(self, job: int, member: str = "") -> QueueEntry | None:
        return self._pending.entry(job, member)

    def in_order(self) -> Iterator[QueueEntry]:
        """All entries of all queues, in order."""
        return self._pending.in_order()

    def started_buckets(self) -> list[Bucket]:
        """The buckets of the queues that are not stopped."""
        return [bucket for bucket in self._pending.buckets() if self.state_of(bucket.queue).started]

    # Shapes

    def shape_of(self, entry: QueueEntry) -> int:
        return self._pending.shape(entry)

    def request_of(self, shape: int) -> Request:
        return self._shapes.request(shape)

    def is_short(self, shape: int) -> bool:
        """Whether entries of a shape may use nodes that others claim."""
        return self._shapes.is_short(shape)

    def sweep_shapes(self) -> None:
        """Drops shapes without pending entries, once there are many."""
        if len(self._shapes) > _SHAPES_SWEEP and len(self._shapes) > 2 * len(self._pending):
            shapes = {bucket.shape for bucket in self._pending.buckets()}
            self._shapes.keep(shapes | self._late_shapes.outside_shapes())

    # States of queues

    def state_of(self, queue: str) -> QueueSet:
        return self._states.get(queue) or QueueSet(queue, enabled=True, started=True)

    def set_state(self, state: QueueSet, now: float) -> None:
        was_started = self.state_of(state.queue).started
        self._states[state.queue] = state
        if not state.started:
            self._claims.end_queue(state.queue)
        elif not was_started:
            self.starving.queue_started(state.queue, now)

    # Submissions

    def submitted_as(self, key: str) -> tuple[int, ...] | None:
        """The jobs that were submitted with an idempotency key."""
        return self._submissions.get(key)

    def remember_submission(self, key: str, jobs: tuple[int, ...]) -> None:
        self._submissions[key] = jobs
        if len(self._submissions) > _SUBMISSION_KEYS_MAX:
            # The oldest key; a client does not retry after so many other submissions.
            del self._submissions[next(iter(self._submissions))]

    def restore(self, states: Iterable[QueueSet], submissions: Mapping[str, tuple[int, ...]]) -> None:
        self._states = {state.queue: state for state in states}
        self._submissions = dict(submissions)
