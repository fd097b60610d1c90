"""Everything the scheduler knows, in one place, and the journal of what became true in this step.

The functions of this package work on a `SchedulerState`; nothing outside the package does. A step (one
batch of facts, or one pass) collects its changes in the journal and takes them out at the end: the caller
makes them durable, and only then are they told or acted upon.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Final

from penstock.engine import Never
from penstock.engine.engine import MatchOp
from penstock.engine.request import Request
from penstock.errors import BadRequest, PenstockError
from penstock.model.job import URGENCY_HOLD, JobEvent, JobState, next_state
from penstock.model.jobid import JobIds, encode_jobid
from penstock.protocol.facts import MemberSet, WorkloadSet
from penstock.protocol.intents import Intent, StatusUpdate, WorkloadStatus
from penstock.sched.cluster import Cluster
from penstock.sched.dependencies import JobProgress
from penstock.sched.forecast import PlannedStart
from penstock.sched.job import Job, dump
from penstock.sched.queue import Pending, QueueEntry, order_key
from penstock.sched.records import (
    Change,
    DrainSet,
    IdHighest,
    InadmissibleGone,
    InadmissibleSet,
    JobLive,
    JobLogged,
    JsonObject,
    QueueSet,
)
from penstock.sched.settings import Settings

__all__ = ["Journal", "OpenIntent", "Reply", "SchedulerState", "Shapes", "live_of"]

_SHAPES_SWEEP: Final = 10_000
_TIMERS_SWEEP: Final = 10_000


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one wish of a batch: a value, or why not."""

    value: object = None
    error: PenstockError | None = None


@dataclass(slots=True)
class InadmissibleWorkload:
    """A work that was given up, and those of its members who have said since that they still wait."""

    record: InadmissibleSet
    waiting: dict[str, MemberSet] = field(default_factory=dict)


@dataclass(slots=True)
class OpenIntent:
    """An intent that is not intent_resolved for all of its members."""

    intent: Intent
    waits_for: set[str]


class Shapes:
    """Numbers for requests: equal requests have equal numbers."""

    def __init__(self) -> None:
        self._numbers: dict[Request, int] = {}
        self._requests: dict[int, Request] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, request: Request) -> int:
        found = self._numbers.get(request)
        if found is None:
            found = self._numbers[request] = self._made
            self._requests[found] = request
            self._made += 1
        return found

    def request(self, number: int) -> Request:
        return self._requests[number]

    def keep(self, numbers: set[int]) -> None:
        """Forgets all others. A number is never used for another request."""
        self._requests = {number: request for number, request in self._requests.items() if number in numbers}
        self._numbers = {request: number for number, request in self._requests.items()}


class Journal:
    """What became true in this step, in order."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._touched: dict[int, Job] = {}
        self.intents: list[Intent] = []
        self.probes: list[str] = []
        self.status_updates: dict[str, StatusUpdate] = {}
        self.forgotten: list[str] = []  # members whose end is recorded: a driver need not remember them

    def add(self, change: Change) -> None:
        self._changes.append(change)

    def touch(self, job: Job) -> None:
        self._touched[job.id] = job

    def log(self, job: Job, name: str, at: float, **context: object) -> None:
        event = JobEvent(at, name, context)
        before, job.state = job.state, next_state(job.state, event)
        job.log.append(event)
        if job.state is not before:
            job.times[job.state.value] = at
        if event.is_fatal and not job.exception:
            job.exception = dict(context)
        self._changes.append(JobLogged(job.id, len(job.log) - 1, event))
        self._touched[job.id] = job

    def take(self) -> tuple[Change, ...]:
        """All changes of the step; the journal is empty afterwards, but for what goes to drivers."""
        live: list[Change] = [live_of(job) for job in self._touched.values()]
        changes = (*self._changes, *live)
        self._changes = []
        self._touched = {}
        return changes


def live_of(job: Job) -> JobLive:
    return JobLive(
        id=job.id,
        state=job.state,
        queue=job.queue,
        urgency=job.urgency,
        priority=job.priority,
        result=job.result,
        status=job.status,
        started_at=job.started_at,
        ended_at=job.ended_at,
        detail=dump(job),
    )


@dataclass(slots=True)
class SchedulerState:
    settings: Settings
    cluster: Cluster
    ids: JobIds
    journal: Journal = field(default_factory=Journal)
    jobs: dict[int, Job] = field(default_factory=dict)  # the active ones
    job_of_workload: dict[str, int] = field(default_factory=dict)
    job_of_member: dict[str, int] = field(default_factory=dict)
    members_by_node: dict[str, dict[str, None]] = field(default_factory=dict)  # live ones, by node
    workloads: dict[str, WorkloadSet] = field(default_factory=dict)
    to_reassemble: dict[int, None] = field(default_factory=dict)  # jobs whose members are to be counted again
    newly_assembled: dict[int, None] = field(default_factory=dict)  # jobs that have assembled in this step
    late_members: dict[tuple[int, str], None] = field(
        default_factory=dict
    )  # members to queue when the step ends
    slots_to_release: dict[int, list[int]] = field(default_factory=dict)  # slots to give back when it ends
    refusals: dict[str, dict[tuple[int, str], None]] = field(
        default_factory=dict
    )  # by node: who may try again
    members_of_next_job: dict[str, dict[str, MemberSet]] = field(
        default_factory=dict
    )  # by work: members that came while its job was ending; they make its next job
    inadmissible: dict[str, InadmissibleWorkload] = field(default_factory=dict)  # by work
    inadmissible_waiting: dict[str, str] = field(
        default_factory=dict
    )  # members that still wait -> their work
    members_to_readmit: list[MemberSet] = field(
        default_factory=list
    )  # to be taken in when the step is intent_resolved
    last_status: dict[str, StatusUpdate] = field(
        default_factory=dict
    )  # what the people behind a work were told last
    intents_to_resend: set[int] = field(default_factory=set)  # intents to be carried out once more
    pending: Pending = field(default_factory=Pending)
    shapes: Shapes = field(default_factory=Shapes)
    queues: dict[str, QueueSet] = field(default_factory=dict)
    drains: dict[str, DrainSet] = field(default_factory=dict)
    intents: dict[int, OpenIntent] = field(default_factory=dict)
    intents_of_member: dict[str, set[int]] = field(default_factory=dict)
    jobs_to_advance: dict[int, None] = field(
        default_factory=dict
    )  # jobs to be looked at before the step ends
    dependents: dict[int, set[int]] = field(default_factory=dict)  # by the job that they wait for
    jobs_by_name: dict[tuple[str, str], dict[int, None]] = field(default_factory=dict)
    singletons: set[tuple[str, str]] = field(default_factory=set)  # names that somebody waits for
    finished_jobs: dict[int, JobProgress] = field(
        default_factory=dict
    )  # inactive jobs that somebody waits for
    submission_keys: dict[str, tuple[int, ...]] = field(default_factory=dict)
    timers: list[tuple[float, int]] = field(default_factory=list)
    reservations: dict[int, float] = field(default_factory=dict)  # of the last pass: job -> start
    planned_starts: dict[int, PlannedStart] = field(
        default_factory=dict
    )  # where and when, as far as is foreseen
    slip_causes: list[str] = field(default_factory=list)  # what happened since the last pass, for slips
    allocations_to_restore: list[
        tuple[int, list[tuple[int, JsonObject, int, int | None]], tuple[int, ...]]
    ] = field(default_factory=list)
    ranks: dict[str, int] = field(default_factory=dict)  # of nodes that are there, or were at the last stop
    recheck_unsatisfiable: bool = False  # nodes have changed: what could never run may be able to now
    unsatisfiable: dict[Request, str] = field(
        default_factory=dict
    )  # why a request can never be met; "": it can
    intent_highest: int = 0
    rank_highest: int = -1
    recorded_highest: IdHighest = field(default_factory=lambda: IdHighest(0, 0, -1))
    is_dirty: bool = True  # something may start that could not before

    def next_intent(self) -> int:
        self.intent_highest += 1
        return self.intent_highest

    def wake(self, at: float, job: int) -> None:
        if len(self.timers) > _TIMERS_SWEEP and len(self.timers) > 8 * len(self.jobs):
            # Most jobs end long before their limits: what waits for those is forgotten now and then.
            self.timers = [timer for timer in self.timers if timer[1] in self.jobs]
            heapq.heapify(self.timers)
        heapq.heappush(self.timers, (at, job))

    def wake_at(self) -> float | None:
        return self.timers[0][0] if self.timers else None

    def nodes_changed(self) -> None:
        """What could never run may be able to now, and the other way round."""
        self.recheck_unsatisfiable = True
        self.unsatisfiable.clear()

    def unsatisfiable_reason_of(self, request: Request) -> str:
        """Why a request can never be met on these nodes; "" if it can. Equal ones are asked once."""
        found = self.unsatisfiable.get(request)
        if found is None:
            try:
                answer = self.cluster.engine.match(0, request, 0, MatchOp.SATISFIABILITY)
                found = str(answer.reason) if isinstance(answer, Never) else ""
            except BadRequest as error:  # Nobody can be told at once who has only said it to the world.
                found = f"asks for what cannot be: {error}"
            if len(self.unsatisfiable) >= _SHAPES_SWEEP:
                self.unsatisfiable.clear()
            self.unsatisfiable[request] = found
        return found

    def mark_dirty(self) -> None:
        """Something may start now that could not before."""
        self.is_dirty = True

    def take_changes(self) -> tuple[Change, ...]:
        changes = self.journal.take()
        highest = IdHighest(self.ids.highest, self.intent_highest, self.rank_highest)
        if highest != self.recorded_highest:
            self.recorded_highest = highest
            changes = (*changes, highest)
        return changes

    def enqueue(self, job: Job) -> None:
        """Puts a job where a pass finds it, if it may start at all."""
        is_ready = job.is_assembled and job.urgency != URGENCY_HOLD and not job.unsatisfiable_reason
        if job.state is not JobState.SCHED or not is_ready:
            self.dequeue(job.id)
            return
        job.shape = self.shapes.number(job.spec.request)
        key = order_key(job.urgency, job.class_value, job.seen_at, job.id)
        self.pending.add(QueueEntry(key, job.id), job.queue, job.shape)
        self.mark_dirty()

    def assign(self, job: Job, member: str, node: str) -> None:
        self.job_of_member[member] = job.id
        self.members_by_node.setdefault(node, {})[member] = None

    def unassign(self, member: str, node: str) -> None:
        there = self.members_by_node.get(node)
        if there is not None:
            there.pop(member, None)
            if not there:
                del self.members_by_node[node]

    def restore_allocations(self) -> list[Job]:
        """Books what was recorded of active jobs, once the nodes are known that it lies on.

        Returns the jobs of which nothing is left to book.
        """
        for number, rows, freed in self.allocations_to_restore:
            if number in self.jobs:
                self.cluster.restore(number, rows, freed)
        jobs = [self.jobs[number] for number, _, _ in self.allocations_to_restore if number in self.jobs]
        self.allocations_to_restore = []
        return [job for job in jobs if job.id not in self.cluster.engine.jobs]

    def sweep_shapes(self) -> None:
        """Forgets the shapes that nobody asks for, once there are many."""
        if len(self.shapes) > _SHAPES_SWEEP and len(self.shapes) > 2 * len(self.pending):
            self.shapes.keep({bucket.shape for bucket in self.pending.buckets()})

    def backend_spec(self, job: Job) -> dict[str, object]:
        """What a driver needs to start members of a submitted job; those of a work start by themselves."""
        if job.workload:
            return {}
        return {**job.spec.payload, "id_f58": encode_jobid(job.id), "owner": job.owner}

    def mark_inadmissible(self, workload: str, members: tuple[str, ...], reason: str) -> None:
        """Members that are still there when their job is over for good wait for somebody to act."""
        record = InadmissibleSet(workload, members, reason)
        self.inadmissible[workload] = InadmissibleWorkload(record)
        self.journal.add(record)

    def readmit(self, workload: str) -> dict[str, MemberSet]:
        """It was given up, and is no more. Returns who has said since that they still wait."""
        known = self.inadmissible.pop(workload, None)
        if known is None:
            return {}
        self.journal.add(InadmissibleGone(workload))
        for member in known.waiting:
            del self.inadmissible_waiting[member]
        return known.waiting

    def add_inadmissible_member(self, fact: MemberSet) -> None:
        """A member of a work that was given up says that it still waits: its world does not know yet."""
        known = self.inadmissible[fact.workload]
        known.waiting[fact.member] = fact
        self.inadmissible_waiting[fact.member] = fact.workload
        self.journal.status_updates[fact.workload] = StatusUpdate(
            fact.workload, 0, WorkloadStatus.INADMISSIBLE, known.record.reason
        )

    def drop_inadmissible_member(self, member: str) -> None:
        workload = self.inadmissible_waiting.pop(member, None)
        if workload is not None:
            del self.inadmissible[workload].waiting[member]

    def publish_status(
        self, job: Job, status: WorkloadStatus, reason: str, start_at: float | None = None
    ) -> None:
        """Adds a status update for the owner of the job's workload, unless the last one said the same."""
        update = StatusUpdate(job.workload, job.id, status, reason, start_at)
        if job.workload and self.last_status.get(job.workload) != update:
            self.last_status[job.workload] = self.journal.status_updates[job.workload] = update

    def dequeue(self, job: int, member: str = "") -> None:
        """Takes somebody out of the queue who does not start: others need not wait for it any more."""
        if self.pending.entry(job, member) is not None:
            self.pending.remove(job, member)
            self.mark_dirty()

    def queue_state(self, name: str) -> QueueSet:
        return self.queues.get(name) or QueueSet(name, enabled=True, started=True)
