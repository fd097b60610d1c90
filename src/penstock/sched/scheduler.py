"""The scheduler: `handle` takes facts and commands, `plan` runs a scheduling cycle, both return a `Step`.

    handle(inputs, now) -> Step           quick; updates the state, replies to commands
    plan(now) -> generator -> Step        yields between matches; starts, reservations, forecasts
    prove(now) -> generator -> Step       yields between proofs; finds requests that can never be satisfied

No I/O, no clock, no randomness: the same calls return the same steps. The caller must commit the changes of a
step before it acts on the step. If the commit fails, it drops this object and restores another one from the
store (`recovery`). Between the yields of `plan` and `prove` no other method may be called.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from penstock.engine.graph import Graph
from penstock.engine.job_allocation import JobAllocation
from penstock.errors import Corrupt, PenstockError
from penstock.model.job import JobState
from penstock.protocol.commands import Command
from penstock.protocol.facts import (
    ExternalUsageGone,
    ExternalUsageSet,
    Fact,
    IntentResult,
    MemberGone,
    MemberSet,
    MemberStatus,
    NodeGone,
    NodeSet,
    Snapshot,
    WorkloadGone,
    WorkloadSet,
)
from penstock.protocol.intents import Intent, StatusUpdate
from penstock.sched import gangs, members, nodes, set_aside
from penstock.sched.claiming import ClaimDesk
from penstock.sched.cluster import ClusterNode
from penstock.sched.commands import apply_command
from penstock.sched.cycle import Cycle, run_cycle
from penstock.sched.deadlines import fire_timers
from penstock.sched.forecast import PlannedStart, forecast
from penstock.sched.invalid_facts import valid_fact
from penstock.sched.job import Job
from penstock.sched.lifecycle import (
    advance_jobs,
    enqueue,
    leave_depend,
    set_unsatisfiable,
)
from penstock.sched.member_states import MemberPhase
from penstock.sched.overruns import expected_end
from penstock.sched.promises import update_forecasts
from penstock.sched.queue import QueueEntry
from penstock.sched.reasons import ReasonMemo, WaitReason, jobs_ahead, wait_reason
from penstock.sched.records import Change, ClaimSet
from penstock.sched.releasing import free_slots
from penstock.sched.replacements import place_replacements
from penstock.sched.snapshots import handle_snapshot
from penstock.sched.starting import place_late_member, start_job
from penstock.sched.state import Reply, SchedulerState
from penstock.sched.statuses import publish_own_reasons, publish_waiting
from penstock.sched.subjects import CommandAt, Fault, subject_of

__all__ = ["Scheduler", "Step"]

_SETTLE_ROUNDS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Step:
    """The changes of one call, and what follows from them after their commit."""

    changes: tuple[Change, ...] = ()
    intents: tuple[Intent, ...] = ()
    probes: tuple[str, ...] = ()
    status_updates: tuple[StatusUpdate, ...] = ()
    forgotten: tuple[str, ...] = ()  # members whose end is recorded with this step
    replies: tuple[Reply, ...] = ()  # one per command, in order


class Scheduler:
    def __init__(self, state: SchedulerState) -> None:
        self.state = state

    def copy(self) -> Scheduler:
        """A scheduler that handles and plans on its own, for what-if questions; nobody commits its steps.

        It must not be copied while a cycle runs: between two yields of `plan` reservations are booked.
        """
        return Scheduler(self.state.copy())

    # Facts and commands

    def handle(self, inputs: Sequence[Fact | Command], now: float) -> Step:
        """An unexpected exception is raised as a `Fault`; this object must not be used after that."""
        try:
            return self._handle(inputs, now)
        except Exception as error:
            raise Fault(subject_of(self.state, self.state.subject), error) from error

    def _handle(self, inputs: Sequence[Fact | Command], now: float) -> Step:
        state = self.state
        replies: list[Reply] = []
        for one in inputs:
            if isinstance(one, Command):
                state.subject = None
                state.cluster.apply_updates()
                state.subject = CommandAt(len(replies))
                try:
                    replies.append(Reply(apply_command(state, one, now)))
                except Corrupt:
                    raise  # It was found while the state changed.
                except PenstockError as error:
                    replies.append(Reply(error=error))
            else:
                state.subject = one
                self._take(one, now)
        state.subject = None
        if not state.cluster.is_synced:
            # Restored jobs are as they were recorded: the snapshot comes before what follows from their age.
            return self._step(replies)
        self._assemble(now)
        fire_timers(state, now)
        self._settle(now)
        return self._step(replies)

    def wake_at(self) -> float | None:
        """When `handle` must be called even without inputs."""
        if not self.state.cluster.is_synced:
            return None
        times = (self.state.timers.next_at(), self.state.queue.starving.next_at())
        return min((at for at in times if at is not None), default=None)

    def _take(self, reported: Fact, now: float) -> None:
        state = self.state
        fact = valid_fact(state, reported, now)
        match fact:
            case MemberStatus():
                if not set_aside.status_changed(state, fact):
                    members.member_status_changed(state, fact, now)
            case IntentResult():
                members.intent_resolved(state, fact, now)
            case MemberSet():
                gangs.member_set(state, fact, now)
            case MemberGone():
                if not set_aside.member_left(state, fact.member):
                    gangs.member_gone(state, fact.member, now)
            case WorkloadSet():
                gangs.workload_set(state, fact, now)
            case WorkloadGone():
                gangs.workload_gone(state, fact.workload, now)
            case ExternalUsageSet():
                nodes.external_usage_set(state, fact)
            case ExternalUsageGone():
                nodes.external_usage_gone(state, fact.key)
            case NodeSet():
                nodes.node_set(state, fact)
            case NodeGone():
                nodes.node_gone(state, fact.node, now)
            case Snapshot():
                handle_snapshot(state, fact, now)

    # The end of a step

    def _assemble(self, now: float) -> None:
        """Counts the ready members of changed groups, once per step."""
        state = self.state
        for number in state.worklist.take_jobs_to_assemble():
            job = state.jobs.get(number)
            if job is not None:
                state.subject = job
                gangs.assemble(state, job, now)
        state.subject = None

    def _enqueue_assembled(self, now: float) -> None:
        """Enqueues groups that have assembled in this step."""
        state = self.state
        for number in state.worklist.take_assembled_jobs():
            assembled = state.jobs.get(number)
            if assembled is not None:
                state.subject = assembled
                state.admission.set_request(assembled.id, assembled.spec.request)
                state.update_outside(assembled)
                leave_depend(state, assembled, now)
                enqueue(state, assembled, now)  # Its request may have changed.
        state.subject = None

    def _admit(self, now: float) -> None:
        """Lets jobs that waited outside the queue enter in place of others that have left."""
        state = self.state
        while entered := state.admission.take_entered():
            for number in entered:
                job = state.subject = state.jobs[number]
                if job.is_assembled:
                    state.worklist.enqueue_assembled(number)
                elif not state.update_outside(job):
                    gangs.assemble(state, job, now)  # Its status says again how many members are ready.
            self._enqueue_assembled(now)

    def _settle(self, now: float) -> None:
        state = self.state
        state.cluster.apply_updates()
        for _ in range(_SETTLE_ROUNDS_MAX):  # A job that ends may leave members for another job.
            self._settle_once(now)
            if state.worklist.is_empty():
                break
        state.intents.flush_resends()

    def _settle_once(self, now: float) -> None:
        state = self.state
        advance_jobs(state, now)
        self._enqueue_assembled(now)
        for number, slots in state.worklist.take_slots_to_release().items():
            if number in state.jobs:
                state.subject = state.jobs[number]
                free_slots(state, state.jobs[number], slots, now)
        for member_fact in state.worklist.take_members_to_readmit():
            state.subject = member_fact
            gangs.member_set(state, member_fact, now)
        self._assemble(now)
        self._enqueue_assembled(now)
        self._enqueue_late_members()
        advance_jobs(state, now)
        self._admit(now)

    def _enqueue_late_members(self) -> None:
        state = self.state
        for number, key in state.worklist.take_late_members():
            begun = state.jobs.get(number)
            member = begun.members.get(key) if begun is not None else None
            if begun is None or member is None or begun.state is not JobState.RUN:
                continue
            if member.phase is MemberPhase.WAITING:
                state.subject = begun
                gangs.enqueue_late(state, begun, member)
        state.subject = None

    def _step(self, replies: Sequence[Reply] = ()) -> Step:
        journal = self.state.journal
        concerned = journal.take_status_touched()
        if self.state.cluster.is_synced:
            publish_own_reasons(self.state, concerned)
        changes = self.state.take_changes()
        step = Step(
            changes,
            tuple(journal.intents),
            tuple(journal.probes),
            tuple(journal.status_updates.values()),
            tuple(journal.forgotten),
            tuple(replies),
        )
        journal.intents, journal.probes, journal.forgotten = [], [], []
        journal.status_updates = {}
        return step

    # Requests that can never run

    @property
    def has_unproven_requests(self) -> bool:
        """Whether `prove` has something to do."""
        return self.state.satisfiability.is_pending

    def prove(self, now: float, enough: Callable[[], bool] = lambda: False) -> Generator[None, None, Step]:
        """Finds pending jobs that the present nodes can never satisfy, or can satisfy again.

        Yields between two proofs. It ends when everything is proven, or after the first part at which
        `enough` is true; the next call continues, whatever was handled meanwhile. An unexpected exception is
        raised as a `Fault`, as in `handle`.
        """
        try:
            return (yield from self._prove(now, enough))
        except Exception as error:
            raise Fault(subject_of(self.state, self.state.subject), error) from error

    def _prove(self, now: float, enough: Callable[[], bool]) -> Generator[None, None, Step]:
        state = self.state
        state.subject = None
        state.cluster.apply_updates()
        while state.satisfiability.is_pending:
            shape_job = state.satisfiability.next_job()
            state.subject = None if shape_job is None else state.jobs[shape_job]
            for verdict in state.satisfiability.advance():
                set_unsatisfiable(state, state.jobs[verdict.job], verdict.reason, now)
            state.subject = None
            if enough():
                break
            yield
        return self._step()

    # Scheduling

    @property
    def is_dirty(self) -> bool:
        """Whether a cycle could start something that the last one could not."""
        return self.state.queue.is_dirty

    def plan(
        self, now: float, *, deep: bool = True, hurry: Callable[[], bool] = lambda: False
    ) -> Generator[None, None, Step]:
        """Runs one scheduling cycle. A deep one also computes forecasts for `forecast_depth` jobs.

        Starts and reservations never depend on `hurry`; it only shortens the forecasts. An unexpected
        exception is raised as a `Fault`, as in `handle`.
        """
        try:
            return (yield from self._plan(now, deep, hurry))
        except Exception as error:
            raise Fault(subject_of(self.state, self.state.subject), error) from error

    def _plan(self, now: float, deep: bool, hurry: Callable[[], bool]) -> Generator[None, None, Step]:
        state = self.state
        state.subject = None
        state.cluster.apply_updates()
        state.queue.sweep_shapes()
        replaced = yield from place_replacements(state, now, state.settings.starts_max)
        state.queue.is_dirty = False
        desk = ClaimDesk(state, now)
        plan = desk.open_for(self._cycle_plan(now))
        found = yield from run_cycle(replace(plan, starts_max=state.settings.starts_max - replaced))
        if found.is_cut:
            state.queue.mark_dirty()
        desk.record()
        state.claims.cycle_ended({entry.job for entry, _ in found.reserved}, now)
        for entry, _ in found.reserved:
            state.cluster.engine.release(entry.job)
        for entry, allocation in found.started:
            job = state.jobs[entry.job]
            state.subject = job
            if entry.member:
                place_late_member(state, job, job.members[entry.member], allocation, now)
            else:
                start_job(state, job, allocation, now)
        self._enqueue_late_members()
        state.plans.heads = {queue: entry.job for queue, entry in found.heads.items()}
        starts: dict[int, PlannedStart] = {}
        if deep and state.settings.forecast_depth and len(state.queue):
            plan = replace(self._cycle_plan(now), holders=ClaimDesk(state, now).holders())
            entries = self._forecast_entries(plan)
            starts = yield from forecast(plan, entries, state.settings.forecast_matches_max, hurry)
        state.subject = None
        update_forecasts(state, found, starts, now, deep)
        if deep:
            publish_waiting(state, now)
        if deep or not len(state.queue):
            # All promises that they may have delayed have been compared.
            state.plans.slip_cause = state.plans.overrun_cause = None
        advance_jobs(state, now)
        self._admit(now)
        return self._step()

    def _cycle_plan(self, now: float) -> Cycle:
        state = self.state
        now_s = int(now)
        return Cycle(
            engine=state.cluster.engine,
            now=now_s,
            extra_s=1 if now > now_s else 0,
            buckets=state.queue.started_buckets(),
            backfill=lambda queue: state.settings.queue_of_job(queue).backfill,
            request=state.queue.request_of,
            end_at=lambda job: _expected_end(state.jobs[job], now),
            made=lambda job: (state.jobs[job].parts_made, state.jobs[job].slots_made),
            reservation_horizon_s=state.settings.reservation_horizon_s,
            queue_depth=state.settings.queue_depth,
            on_entry=self._note_entry,
            is_short=state.queue.is_short,
        )

    def _note_entry(self, entry: QueueEntry) -> None:
        self.state.subject = entry

    def _forecast_entries(self, plan: Cycle) -> list[QueueEntry]:
        merged = heapq.merge(*(bucket.entries() for bucket in plan.buckets))
        entries: list[QueueEntry] = []
        for entry in merged:
            if not entry.member:
                entries.append(entry)
                if len(entries) >= self.state.settings.forecast_depth:
                    break
        return entries

    # Queries

    @property
    def jobs(self) -> Mapping[int, Job]:
        """The active jobs by number. Only the scheduler changes them."""
        return MappingProxyType(self.state.jobs)

    def job_of_workload(self, workload: str) -> Job | None:
        """The active job of a workload."""
        return self.state.job_of_workload(workload)

    def members_on(self, node: str) -> dict[str, int]:
        """Members on a node, or on their way to it, with their jobs; those of jobs set aside, too."""
        members = self.state.members
        found = {member: members.job_of(member) for member in members.on_node(node)}
        for number in self.state.set_aside:
            job = self.state.set_aside.get(number)
            for member in job.row.members if job is not None else ():
                if member.node == node and self.state.set_aside.job_of(member.key) is not None:
                    found[member.key] = number
        return found

    def allocated_jobs(self) -> frozenset[int]:
        """The jobs that hold resources."""
        return frozenset(self.state.cluster.engine.jobs)

    def job_of_member(self, member: str) -> Job | None:
        """The active job that a member belongs to."""
        return self.state.job_of_member(member)

    def workloads(self) -> list[str]:
        """The workloads that are known or inadmissible."""
        return self.state.workloads.known()

    def allocation(self, job: int) -> JobAllocation | None:
        """What a job holds, part by part. Only the engine changes it."""
        return self.state.cluster.engine.jobs.get(job)

    @property
    def nodes(self) -> Mapping[str, ClusterNode]:
        """The nodes by name, with their vertices in the graph."""
        return MappingProxyType(self.state.cluster.nodes)

    @property
    def node_ranks(self) -> Mapping[str, int]:
        """The ranks of known nodes, and of those recorded before a restart, by name."""
        return MappingProxyType(self.state.nodes.ranks)

    @property
    def graph(self) -> Graph:
        """The graph of resources. Only the engine changes it."""
        return self.state.cluster.engine.graph

    @property
    def queue_length(self) -> int:
        """How many jobs and late members may start as soon as they fit."""
        return len(self.state.queue)

    def queued(self) -> list[tuple[int, str]]:
        """These jobs (with an empty text) and late members (job and member), in the order of the queue."""
        return [(entry.job, entry.member) for entry in self.state.queue.in_order()]

    def is_inadmissible(self, workload: str) -> bool:
        return self.state.workloads.inadmissible(workload) is not None

    @property
    def set_aside(self) -> Mapping[int, str]:
        """The jobs that are recorded, but could not be restored or handled, and why."""
        return {
            number: job.reason for number in self.state.set_aside if (job := self.state.set_aside.get(number))
        }

    def assignments(self, job: int) -> dict[int, str]:
        """The slots of a job, and the node of each."""
        return self.state.cluster.assignments(job)

    def external_usage(self) -> dict[str, ExternalUsageSet]:
        """Usage that is not of members, by its key."""
        return self.state.cluster.all_external_usage()

    def reservations(self) -> dict[int, float]:
        """The starts that the last cycle has reserved, by job."""
        return dict(self.state.plans.reservations)

    def claims(self) -> list[ClaimSet]:
        """The nodes that pending jobs claim."""
        return list(self.state.claims)

    def open_intents(self) -> list[int]:
        """The numbers of the intents that are not confirmed."""
        return list(self.state.intents)

    def members_of_intent(self, number: int) -> list[str]:
        """The members for which an intent is not confirmed."""
        found = self.state.intents.get(number)
        return sorted(found.waits_for) if found is not None else []

    def wait_reason(self, number: int, now: float, memo: ReasonMemo | None = None) -> WaitReason:
        return wait_reason(self.state, self.state.jobs[number], now, memo)

    def jobs_ahead(self) -> dict[int, int]:
        return jobs_ahead(self.state)


def _expected_end(job: Job, now: float) -> float | None:
    return None if job.end_at is None else expected_end(job.end_at, now)
