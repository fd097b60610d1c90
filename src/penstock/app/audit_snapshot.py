"""What the graph in memory says, as the auditor reads it.

Bookings are read from the vertices themselves, seats from what the engine has given to each job, holds from
the facts: three places that must say the same, so that a mistake in one of them is seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.audit.readings import GraphExternalUsage, GraphMember, GraphNode, GraphReading, JobAssignments
from penstock.audit.store import assignments_of
from penstock.engine import AllocationKind, Slot
from penstock.sched.cluster import ClusterNode
from penstock.sched.job import Job, MemberPhase
from penstock.sched.scheduler import Scheduler
from penstock.sched.state import SchedulerState

__all__ = ["graph_reading"]

_NO_NODE: Final = ""


def graph_reading(scheduler: Scheduler) -> GraphReading:
    """To be called between turns. It takes time in proportion to nodes and members, and changes nothing."""
    state = scheduler.state
    members, empty_slots = _assignments(state)
    holds = (state.cluster.external_usage(name) for name in state.cluster.external_usage_keys())
    return GraphReading(
        nodes={name: _node(known) for name, known in state.cluster.nodes.items()},
        members=members,
        holds={
            fact.key: GraphExternalUsage(fact.node, dict(fact.usage), fact.standing)
            for fact in holds
            if fact is not None
        },
        jobs={
            job.id: _paths(job)
            for job in state.jobs.values()
            if job.workload and job.id in state.cluster.engine.jobs
        },
        empty_slots=empty_slots,
    )


def _node(known: ClusterNode) -> GraphNode:
    capacity: dict[str, int] = {}
    used: dict[str, int] = {}
    held: dict[str, int] = {}
    for vertex in known.vertex.below():
        kind, state = vertex.type, vertex.state
        capacity[kind] = capacity.get(kind, 0) + vertex.size
        if state is not None:
            live = sum(booking.units for booking in state.bookings.values() if booking.live)
            used[kind] = used.get(kind, 0) + live
            held[kind] = held.get(kind, 0) + sum(state.external_units)
    return GraphNode(capacity, used, held, known.fact.up)


def _assignments(state: SchedulerState) -> tuple[dict[str, GraphMember], dict[str, str]]:
    """Members that sit on a slot of their job, and slots of works that nobody sits on."""
    members: dict[str, GraphMember] = {}
    empty: dict[str, str] = {}
    for number, holder in state.cluster.engine.jobs.items():
        if holder.kind is not AllocationKind.ALLOCATED:
            continue
        slots = {slot.number: slot for part in holder.parts.values() for slot in part.slots}
        job = state.jobs.get(number)
        taken: set[int] = set()
        for member in job.live_members() if job is not None else ():
            slot = slots.get(member.slot)
            if slot is not None and _node_name(slot) == member.node:
                taken.add(slot.number)
                members[member.key] = GraphMember(number, member.node, member.phase.value, _amounts(slot))
        if job is None or job.workload:
            left = (slot for slot in slots.values() if slot.number not in taken)
            empty.update((f"{number}/{slot.number}", _node_name(slot)) for slot in left)
    return members, empty


def _node_name(slot: Slot) -> str:
    return slot.node.name if slot.node is not None else _NO_NODE


def _amounts(slot: Slot) -> dict[str, int]:
    amounts: dict[str, int] = {}
    for grant in slot.grants:
        amounts[grant.vertex.type] = amounts.get(grant.vertex.type, 0) + grant.units
    return amounts


def _paths(job: Job) -> JobAssignments:
    there: Iterable[tuple[str, float]] = (
        (member.phase.value, member.seen_at)
        for member in job.members.values()
        if member.phase is not MemberPhase.ENDED
    )
    return assignments_of(
        list(there), job.placed_at, job.incomplete_since, bool(job.incomplete_reason), job.is_ending
    )
