"""Nodes and external usage, as a backend reports them.

Only a change that can let a job start makes a scheduling cycle due. What takes resources away (a usage that
grows, a node that goes down) does not, because in a busy cluster that happens all the time. Forecasts follow
with the next deep cycle; so do jobs that are backfilled because a reservation before them has moved.
"""

from __future__ import annotations

from typing import Final

from penstock.model.exclusion_key import ExclusionKey
from penstock.protocol.facts import EndCause, ExternalUsageSet, NodeSet
from penstock.sched import vacancies
from penstock.sched.job import Job, Member
from penstock.sched.lifecycle import EXCESS_KEY, node_failed, return_to_queue
from penstock.sched.member_states import MemberPhase
from penstock.sched.releasing import record_changed_slots, record_freed_slots, record_release
from penstock.sched.state import SchedulerState, SlipCause

__all__ = [
    "ORPHAN_KEY",
    "external_usage_gone",
    "external_usage_set",
    "node_gone",
    "node_set",
    "update_usage",
]

ORPHAN_KEY: Final = "left over: "  # keys of external usage: members whose job is over


def node_set(state: SchedulerState, fact: NodeSet) -> None:
    known = state.cluster.nodes.get(fact.node)
    if known is not None and known.fact == fact:
        return
    rank = state.nodes.rank_of(fact.node)
    if known is not None and known.fact.up and not fact.up:
        state.plans.slip_cause = SlipCause(f"{fact.node} went down")
    before = known.fact if known is not None else None
    state.cluster.set_node(fact, rank, fact.node in state.nodes.drains)
    vacancies.check_kept_slots(state, fact.node)
    _changed(state, fact.node, can_start_more=_offers_more(before, fact))


def _offers_more(before: NodeSet | None, after: NodeSet) -> bool:
    """Whether a node can hold something that it could not hold before."""
    if not after.up:
        return False
    if before is None or not before.up:
        return True
    had = {capacity.resource: capacity for capacity in before.capacity}
    for capacity in after.capacity:
        known = had.get(capacity.resource)
        if known is None or capacity.units > known.units or capacity.divisible != known.divisible:
            return True
    return (before.labels, before.topology_levels) != (after.labels, after.topology_levels)


def node_gone(state: SchedulerState, node: str, now: float) -> None:
    """Removes a node and its members. Members that were not yet bound to it are placed elsewhere."""
    if node not in state.cluster.nodes:
        return
    for key in state.members.on_node(node):
        job = state.jobs[state.members.job_of(key)]
        member = job.members[key]
        if job.ownership.is_controlled and member.phase is MemberPhase.PLACING:
            member.cause, member.message = EndCause.OTHER, f"{node} was removed"
            return_to_queue(state, job, member, now)
            state.worklist.advance(job.id)
            continue
        node_failed(state, job, member, now)
        job.set_release_pending(member, False)  # Its units are gone with the node.
    vacancies.node_lost(state, node)
    removal = state.cluster.remove_node(node)
    for number in (*removal.shrunk, *removal.emptied):
        if number in state.jobs:
            _record_lost_slots(state, state.jobs[number], node, removal.shortened.get(number, ()), now)
    state.nodes.forget(node)
    state.plans.slip_cause = SlipCause(f"{node} was removed")
    _changed(state, node, can_start_more=True)  # Keys that it had in use at a level above it are free.


def _record_lost_slots(
    state: SchedulerState, job: Job, node: str, shortened: tuple[int, ...], now: float
) -> None:
    """Records that the slots of a job on a removed node are gone.

    A slot can span several nodes. It ends with the node of its member; without another one it is shorter.
    """
    engine = state.cluster.engine
    slots = job.slots.on_node(node)
    left = [slot for slot in shortened if slot in slots]
    if job.id not in engine.jobs or (left and engine.release_slots(job.id, left)):
        record_release(state, job, now)
        return
    if slots:
        record_freed_slots(state, job, slots)
    record_changed_slots(state, job, [slot for slot in shortened if slot not in left])


def _changed(state: SchedulerState, node: str, *, can_start_more: bool) -> None:
    """Lets members that a node refused try it again, because the node has changed."""
    if state.claims.node_changed(node):
        state.queue.mark_dirty()
    for number, key in state.members.take_refusals(node):
        job = state.jobs.get(number)
        member = job.members.get(key) if job is not None else None
        if job is not None and member is not None:
            member.refused_by -= {node}
            state.journal.touch_member(job, key)
            state.worklist.enqueue_late(number, key)
    if can_start_more:
        state.queue.mark_dirty()


def external_usage_set(state: SchedulerState, fact: ExternalUsageSet) -> None:
    before = state.cluster.external_usage(fact.key)
    if before == fact:
        return
    state.cluster.set_external_usage(fact)
    vacancies.check_kept_slots(state, fact.node)
    if before is None or _exceeds(fact, before):
        state.plans.slip_cause = SlipCause(f"external usage of {fact.node} has changed")
    if before is not None and before.node != fact.node:
        _changed(state, before.node, can_start_more=True)
    _changed(state, fact.node, can_start_more=before is not None and _exceeds(before, fact))


def _exceeds(one: ExternalUsageSet, other: ExternalUsageSet) -> bool:
    """Whether a usage has something that the other has not."""
    if one.node != other.node or not set(one.brings) <= set(other.brings):
        return True
    units = dict(other.usage)
    return any(count > units.get(resource, 0) for resource, count in one.usage)


def external_usage_gone(state: SchedulerState, key: str) -> None:
    known = state.cluster.external_usage(key)
    if known is not None:
        state.cluster.remove_external_usage(key)
        _changed(state, known.node, can_start_more=True)


def update_usage(
    state: SchedulerState,
    job: Job,
    member: Member,
    usage: tuple[tuple[str, int], ...],
    brings: tuple[ExclusionKey, ...],
) -> None:
    """Counts what a placed member uses beyond its slot as external usage, and gives its slot further keys.

    A member can be resized in place, and can bring further keys when other members appear.
    """
    given = {resource: units for resource, _, units in member.grants}
    beyond = ((resource, units - given.get(resource, 0)) for resource, units in usage)
    more = tuple((resource, units) for resource, units in beyond if units > 0)
    if more:
        external_usage_set(
            state,
            ExternalUsageSet(
                EXCESS_KEY + member.key,
                member.node,
                more,
                name=EXCESS_KEY + member.display_name,
                owner=job.owner,
            ),
        )
    else:
        external_usage_gone(state, EXCESS_KEY + member.key)
    if job.ownership.is_controlled and member.slot in job.slots:
        _set_keys(state, job, member, brings)


def _set_keys(state: SchedulerState, job: Job, member: Member, brings: tuple[ExclusionKey, ...]) -> None:
    """Sets the keys of a member's slot: those it was placed with, and what it brings besides.

    A report may lack keys of the placement, because a backend may not know them.
    """
    placed_with = tuple(key for key in member.brings if key not in member.late_brings)
    further = tuple(key for key in brings if key not in placed_with)
    if further == member.late_brings:
        return
    if any(key not in member.brings for key in further):
        state.plans.slip_cause = SlipCause(f"exclusion keys on {member.node} have changed")
    is_free = any(key not in further for key in member.late_brings)
    member.brings, member.late_brings = (*placed_with, *further), further
    state.cluster.engine.set_slot_keys(job.id, member.slot, member.brings)
    record_changed_slots(state, job, [member.slot])
    state.journal.touch_member(job, member.key)
    _changed(state, member.node, can_start_more=is_free)
