"""The state of the scheduler, and the journal of the changes that one step makes.

Only the functions of this package modify a `SchedulerState`. A step (one batch of inputs, or one scheduling
cycle) collects its changes in the journal. The caller commits them before any intent is applied and before
any command is answered.
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
    """The answer to one command: a value, or the error that refused it."""

    value: object = None
    error: PenstockError | None = None


@dataclass(slots=True)
class InadmissibleWorkload:
    """A workload that gets no further job, with its members that were reported as waiting since then."""

    record: InadmissibleSet
    waiting: dict[str, MemberSet] = field(default_factory=dict)


@dataclass(slots=True)
class OpenIntent:
    """An intent that is not confirmed for all of its members."""

    intent: Intent
    waits_for: set[str]


class Shapes:
    """Numbers requests: equal requests have the same number, called their shape."""

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
        """Drops all other requests. A number is never reused."""
        self._requests = {number: request for number, request in self._requests.items() if number in numbers}
        self._numbers = {request: number for number, request in self._requests.items()}


class Journal:
    """The changes and outputs of one step, in order."""

    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._touched: dict[int, Job] = {}
        self.intents: list[Intent] = []
        self.probes: list[str] = []
        self.status_updates: dict[str, StatusUpdate] = {}
        self.forgotten: list[str] = []  # members whose end is recorded with this step

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
        """Removes and returns the changes of the step. Intents and status updates stay."""
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
    """Queue, jobs, members and resources, with their indexes. Dicts with values None are ordered sets."""

    settings: Settings
    cluster: Cluster
    ids: JobIds
    journal: Journal = field(default_factory=Journal)

    # Active jobs, workloads and members.
    jobs: dict[int, Job] = field(default_factory=dict)
    job_of_workload: dict[str, int] = field(default_factory=dict)
    job_of_member: dict[str, int] = field(default_factory=dict)
    members_by_node: dict[str, dict[str, None]] = field(default_factory=dict)  # live members
    workloads: dict[str, WorkloadSet] = field(default_factory=dict)
    # Members that appeared while the job of their workload was ending. They form its next job.
    members_of_next_job: dict[str, dict[str, MemberSet]] = field(default_factory=dict)
    inadmissible: dict[str, InadmissibleWorkload] = field(default_factory=dict)
    inadmissible_waiting: dict[str, str] = field(default_factory=dict)  # member -> workload
    refusals: dict[str, dict[tuple[int, str], None]] = field(default_factory=dict)  # by node: refused members
    last_status: dict[str, StatusUpdate] = field(default_factory=dict)  # by workload: last published

    # The queue.
    pending: Pending = field(default_factory=Pending)
    shapes: Shapes = field(default_factory=Shapes)
    queues: dict[str, QueueSet] = field(default_factory=dict)
    submission_keys: dict[str, tuple[int, ...]] = field(default_factory=dict)

    # Dependencies.
    dependents: dict[int, set[int]] = field(default_factory=dict)  # by the job that they wait for
    finished_jobs: dict[int, JobProgress] = field(default_factory=dict)  # those that have dependents
    jobs_by_name: dict[tuple[str, str], dict[int, None]] = field(default_factory=dict)  # (owner, name)
    singletons: set[tuple[str, str]] = field(default_factory=set)  # names with a singleton dependency

    # Nodes and intents.
    # of known nodes, and of those recorded before a restart
    ranks: dict[str, int] = field(default_factory=dict)
    drains: dict[str, DrainSet] = field(default_factory=dict)
    # job, parts, freed slots; until the first snapshot
    allocations_to_restore: list[
        tuple[int, list[tuple[int, JsonObject, int, int | None]], tuple[int, ...]]
    ] = field(default_factory=list)
    intents: dict[int, OpenIntent] = field(default_factory=dict)
    intents_of_member: dict[str, set[int]] = field(default_factory=dict)

    # Work that is left until the end of the present step.
    to_reassemble: dict[int, None] = field(default_factory=dict)  # jobs whose ready members are to be counted
    newly_assembled: dict[int, None] = field(default_factory=dict)
    late_members: dict[tuple[int, str], None] = field(default_factory=dict)  # members to enqueue on their own
    members_to_readmit: list[MemberSet] = field(default_factory=list)
    slots_to_release: dict[int, list[int]] = field(default_factory=dict)
    intents_to_resend: set[int] = field(default_factory=set)
    jobs_to_advance: dict[int, None] = field(default_factory=dict)  # jobs whose members have changed

    # Plans.
    timers: list[tuple[float, int]] = field(default_factory=list)
    reservations: dict[int, float] = field(default_factory=dict)  # job -> start, from the last cycle
    planned_starts: dict[int, PlannedStart] = field(default_factory=dict)
    slip_causes: list[str] = field(default_factory=list)  # events since the last cycle that may delay a start
    recheck_unsatisfiable: bool = False  # nodes have changed, so unsatisfiable jobs must be checked again
    unsatisfiable: dict[Request, str] = field(default_factory=dict)  # memo: reason, or "" if satisfiable
    is_dirty: bool = True  # something may start that could not start in the last cycle

    intent_highest: int = 0
    rank_highest: int = -1
    recorded_highest: IdHighest = field(default_factory=lambda: IdHighest(0, 0, -1))

    def next_intent(self) -> int:
        self.intent_highest += 1
        return self.intent_highest

    def wake(self, at: float, job: int) -> None:
        if len(self.timers) > _TIMERS_SWEEP and len(self.timers) > 8 * len(self.jobs):
            # Most jobs end long before their limits. Drop their timers from time to time.
            self.timers = [timer for timer in self.timers if timer[1] in self.jobs]
            heapq.heapify(self.timers)
        heapq.heappush(self.timers, (at, job))

    def wake_at(self) -> float | None:
        return self.timers[0][0] if self.timers else None

    def nodes_changed(self) -> None:
        """Requests that were unsatisfiable may be satisfiable on the changed nodes, and vice versa."""
        self.recheck_unsatisfiable = True
        self.unsatisfiable.clear()

    def unsatisfiable_reason_of(self, request: Request) -> str:
        """Why the cluster can never satisfy a request; "" if it can. Equal requests are checked once."""
        found = self.unsatisfiable.get(request)
        if found is None:
            try:
                answer = self.cluster.engine.match(0, request, 0, MatchOp.SATISFIABILITY)
                found = str(answer.reason) if isinstance(answer, Never) else ""
            except BadRequest as error:  # A workload was not submitted by a command that could fail.
                found = f"invalid request: {error}"
            if len(self.unsatisfiable) >= _SHAPES_SWEEP:
                self.unsatisfiable.clear()
            self.unsatisfiable[request] = found
        return found

    def mark_dirty(self) -> None:
        """Something may start that could not start before: the next cycle is due."""
        self.is_dirty = True

    def take_changes(self) -> tuple[Change, ...]:
        changes = self.journal.take()
        highest = IdHighest(self.ids.highest, self.intent_highest, self.rank_highest)
        if highest != self.recorded_highest:
            self.recorded_highest = highest
            changes = (*changes, highest)
        return changes

    def enqueue(self, job: Job) -> None:
        """Adds a job to the queue if it is eligible to start, else removes it."""
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
        members = self.members_by_node.get(node)
        if members is not None:
            members.pop(member, None)
            if not members:
                del self.members_by_node[node]

    def restore_allocations(self) -> list[Job]:
        """Books the recorded allocations of active jobs, once their nodes are known.

        Returns the jobs whose allocation is lost completely.
        """
        for number, rows, freed in self.allocations_to_restore:
            if number in self.jobs:
                self.cluster.restore(number, rows, freed)
        jobs = [self.jobs[number] for number, _, _ in self.allocations_to_restore if number in self.jobs]
        self.allocations_to_restore = []
        return [job for job in jobs if job.id not in self.cluster.engine.jobs]

    def sweep_shapes(self) -> None:
        """Drops shapes without pending entries, once there are many."""
        if len(self.shapes) > _SHAPES_SWEEP and len(self.shapes) > 2 * len(self.pending):
            self.shapes.keep({bucket.shape for bucket in self.pending.buckets()})

    def backend_spec(self, job: Job) -> dict[str, object]:
        """What a backend needs to start members of a submitted job; empty for a workload."""
        if job.workload:
            return {}
        return {**job.spec.payload, "id_f58": encode_jobid(job.id), "owner": job.owner}

    def mark_inadmissible(self, workload: str, members: tuple[str, ...], reason: str) -> None:
        """The remaining members of a workload get no further job until a new member appears."""
        record = InadmissibleSet(workload, members, reason)
        self.inadmissible[workload] = InadmissibleWorkload(record)
        self.journal.add(record)

    def readmit(self, workload: str) -> dict[str, MemberSet]:
        """Makes a workload admissible again. Returns its members that were reported as waiting."""
        known = self.inadmissible.pop(workload, None)
        if known is None:
            return {}
        self.journal.add(InadmissibleGone(workload))
        for member in known.waiting:
            del self.inadmissible_waiting[member]
        return known.waiting

    def add_inadmissible_member(self, fact: MemberSet) -> None:
        """Notes a waiting member of an inadmissible workload, and publishes the status again."""
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
        """Removes an entry from the queue without starting it."""
        if self.pending.entry(job, member) is not None:
            self.pending.remove(job, member)
            self.mark_dirty()

    def queue_state(self, name: str) -> QueueSet:
        return self.queues.get(name) or QueueSet(name, enabled=True, started=True)
