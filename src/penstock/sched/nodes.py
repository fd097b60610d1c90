"""Nodes and external usage, as a backend reports them."""

from __future__ import annotations

from typing import Final

from penstock.protocol.facts import ExternalUsageSet, NodeSet
from penstock.sched.job import Member, MemberPhase
from penstock.sched.lifecycle import EXCESS_KEY, node_failed, return_to_queue
from penstock.sched.records import NodeForgotten, NodeNew
from penstock.sched.releasing import record_release
from penstock.sched.state import SchedulerState

__all__ = [
    "ORPHAN_KEY",
    "external_usage_gone",
    "external_usage_set",
    "node_gone",
    "node_set",
    "update_excess_usage",
]

ORPHAN_KEY: Final = "left over: "  # keys of external usage: members whose job is over


def node_set(state: SchedulerState, fact: NodeSet) -> None:
    known = state.cluster.nodes.get(fact.node)
    if known is not None and known.fact == fact:
        return
    rank = state.ranks.get(fact.node, -1)
    if rank < 0:
        state.rank_highest += 1
        rank = state.ranks[fact.node] = state.rank_highest
        state.journal.add(NodeNew(fact.node, rank))
    if known is not None and known.fact.up and not fact.up:
        state.slip_causes.append(f"{fact.node} went down")
    state.cluster.set_node(fact, rank, fact.node in state.drains)
    state.nodes_changed()
    _changed(state, fact.node)


def node_gone(state: SchedulerState, node: str, now: float) -> None:
    """Removes a node and its members. Members that were not yet bound to it are placed elsewhere."""
    if node not in state.cluster.nodes:
        return
    for key in list(state.members_by_node.get(node, ())):
        job = state.jobs[state.job_of_member[key]]
        member = job.members[key]
        if job.workload and member.phase is MemberPhase.PLACING:
            member.message = f"{node} was removed"
            return_to_queue(state, job, member, now)
            state.jobs_to_advance[job.id] = None
            continue
        node_failed(state, job, member, now)
        member.slot_release_pending = False  # Its units are gone with the node.
    for number in state.cluster.remove_node(node):
        if number in state.jobs:
            record_release(state, state.jobs[number], now)
    state.ranks.pop(node, None)
    state.journal.add(NodeForgotten(node))
    state.slip_causes.append(f"{node} was removed")
    state.nodes_changed()
    _changed(state, node)


def _changed(state: SchedulerState, node: str) -> None:
    """Lets members that a node refused try it again, because the node has changed."""
    for number, key in state.refusals.pop(node, {}):
        job = state.jobs.get(number)
        member = job.members.get(key) if job is not None else None
        if job is not None and member is not None:
            member.refused_by -= {node}
            state.journal.touch(job)
            state.late_members[(number, key)] = None
    state.mark_dirty()


def external_usage_set(state: SchedulerState, fact: ExternalUsageSet) -> None:
    if state.cluster.external_usage(fact.key) != fact:
        state.cluster.set_external_usage(fact)
        state.slip_causes.append(f"external usage of {fact.node} has changed")
        if fact.standing:
            state.nodes_changed()
        _changed(state, fact.node)


def external_usage_gone(state: SchedulerState, key: str) -> None:
    known = state.cluster.external_usage(key)
    if known is not None:
        state.cluster.remove_external_usage(key)
        if known.standing:
            state.nodes_changed()
        _changed(state, known.node)


def update_excess_usage(state: SchedulerState, member: Member, usage: tuple[tuple[str, int], ...]) -> None:
    """Counts what a member uses beyond its grant, after an in-place resize, as external usage."""
    given = {resource: units for resource, _, units in member.grants}
    beyond = ((resource, units - given.get(resource, 0)) for resource, units in usage)
    more = tuple((resource, units) for resource, units in beyond if units > 0)
    if more:
        external_usage_set(
            state,
            ExternalUsageSet(
                EXCESS_KEY + member.key, member.node, more, name=EXCESS_KEY + member.display_name
            ),
        )
    else:
        external_usage_gone(state, EXCESS_KEY + member.key)
