"""Takes the auditor's snapshot of the resource graph in memory.

Bookings are read from the vertices, slots from the engine's allocations, and external usage from the facts.
The three must agree, so an error in one of them is visible.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.audit.snapshots import GraphExternalUsage, GraphMember, GraphNode, GraphSnapshot, JobAssignments
from penstock.audit.store import assignments_of
from penstock.engine import AllocationKind, Slot
from penstock.sched.cluster import ClusterNode
from penstock.sched.job import Job
from penstock.sched.member_states import MemberPhase
from penstock.sched.scheduler import Scheduler
from penstock.sched.state import SchedulerState

__all__ = ["graph_snapshot"]

_NO_NODE: Final = ""


def graph_snapshot(scheduler: Scheduler) -> GraphSnapshot:
    """Takes the snapshot. Call it between steps. The cost is linear in nodes and members."""
    state = scheduler.state
    members, empty_slots = _assignments(state)
    external_usage = (state.cluster.external_usage(name) for name in state.cluster.external_usage_keys())
    return GraphSnapshot(
        nodes={name: _node(known) for name, known in state.cluster.nodes.items()},
        members=members,
        external_usage={
            fact.key: GraphExternalUsage(fact.node, dict(fact.usage), fact.standing)
            for fact in external_usage
            if fact is not None
        },
        jobs={
            job.id: _job_assignments(job)
            for job in state.jobs.values()
            if job.workload and job.id in state.cluster.engine.jobs
        },
        empty_slots=empty_slots,
    )


def _node(known: ClusterNode) -> GraphNode:
    capacity: dict[str, int] = {}
    used: dict[str, int] = {}
    external: dict[str, int] = {}
    for vertex in known.vertex.below():
        resource, state = vertex.type, vertex.state
        capacity[resource] = capacity.get(resource, 0) + vertex.size
        if state is not None:
            live = sum(booking.units for booking in state.bookings.values() if booking.live)
            used[resource] = used.get(resource, 0) + live
            external[resource] = external.get(resource, 0) + sum(state.external_units)
    return GraphNode(capacity, used, external, known.fact.up)


def _assignments(state: SchedulerState) -> tuple[dict[str, GraphMember], dict[str, str]]:
    """Returns the members with a slot of their job, and the slots of workloads without a member."""
    members: dict[str, GraphMember] = {}
    empty: dict[str, str] = {}
    for number, holder in state.cluster.engine.jobs.items():
        if holder.kind is not AllocationKind.ALLOCATED:
            continue
        slots = {slot.number: slot for part in holder.parts.values() for slot in part.slots}
        if number in state.set_aside:
            members.update(_members_set_aside(state, number, slots))
            continue
        job = state.jobs.get(number)
        taken: set[int] = set() if job is None else _kept_slots(job)
        for member in job.live_members() if job is not None else ():
            slot = slots.get(member.slot)
            if slot is not None and _node_name(slot) == member.node:
                taken.add(slot.number)
                members[member.key] = GraphMember(number, member.node, member.phase.value, _usage(slot))
        if job is None or job.workload:
            unassigned = (slot for slot in slots.values() if slot.number not in taken)
            empty.update((f"{number}/{slot.number}", _node_name(slot)) for slot in unassigned)
    return members, empty


def _members_set_aside(state: SchedulerState, number: int, slots: dict[int, Slot]) -> dict[str, GraphMember]:
    """The members of a job that is set aside, as recorded, with what is booked for them."""
    job = state.set_aside.get(number)
    return {
        member.key: GraphMember(number, member.node, member.phase.value, _usage(slots[member.slot]))
        for member in (job.row.members if job is not None else ())
        if job is not None and member.key in job.slots and member.slot in slots
    }


def _kept_slots(job: Job) -> set[int]:
    """The slots that are booked for replacements of ended members."""
    return {member.slot for member in job.members.values() if member.is_slot_kept}


def _node_name(slot: Slot) -> str:
    return slot.node.name if slot.node is not None else _NO_NODE


def _usage(slot: Slot) -> dict[str, int]:
    usage: dict[str, int] = {}
    for grant in slot.grants:
        usage[grant.vertex.type] = usage.get(grant.vertex.type, 0) + grant.units
    return usage


def _job_assignments(job: Job) -> JobAssignments:
    members: Iterable[tuple[str, float]] = (
        (member.phase.value, member.seen_at)
        for member in job.members.values()
        if member.phase is not MemberPhase.ENDED
    )
    return assignments_of(
        list(members), job.placed_at, job.incomplete_since, bool(job.incomplete_reason), job.is_ending
    )
