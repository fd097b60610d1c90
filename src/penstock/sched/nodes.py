"""What a world tells of its nodes and of what others use there."""

from __future__ import annotations

from penstock.protocol.facts import HoldSet, NodeSet
from penstock.sched.job import MemberPhase
from penstock.sched.lifecycle import back_to_waiting, holds_nothing, node_failed
from penstock.sched.records import NodeForgotten, NodeNew
from penstock.sched.state import Core

__all__ = ["hold_gone", "hold_set", "node_gone", "node_set"]


def node_set(core: Core, fact: NodeSet) -> None:
    known = core.cluster.nodes.get(fact.node)
    if known is not None and known.fact == fact:
        return
    rank = core.ranks.get(fact.node, -1)
    if rank < 0:
        core.rank_highest += 1
        rank = core.ranks[fact.node] = core.rank_highest
        core.journal.add(NodeNew(fact.node, rank))
    if known is not None and known.fact.up and not fact.up:
        core.notable.append(f"{fact.node} went down")
    core.cluster.set_node(fact, rank, fact.node in core.drains)
    core.nodes_changed()
    _changed(core, fact.node)


def node_gone(core: Core, node: str, now: float) -> None:
    """The node and all that ran there are no more. Who was only on the way there goes elsewhere."""
    if node not in core.cluster.nodes:
        return
    for key in list(core.members_on.get(node, ())):
        job = core.jobs[core.job_of_member[key]]
        member = job.members[key]
        if job.work and member.phase is MemberPhase.PLACING:
            member.cause = f"{node} is gone"
            back_to_waiting(core, job, member, now)
            core.unsettled[job.id] = None
            continue
        node_failed(core, job, member, now)
        member.is_owed = False  # What it had went with the node.
    for number in core.cluster.remove_node(node):
        if number in core.jobs:
            holds_nothing(core, core.jobs[number], now)
    core.ranks.pop(node, None)
    core.journal.add(NodeForgotten(node))
    core.notable.append(f"{node} is gone")
    core.nodes_changed()
    _changed(core, node)


def _changed(core: Core, node: str) -> None:
    """Something is other than it was on a node: whom it refused may try it again."""
    for number, key in core.refusals.pop(node, {}):
        job = core.jobs.get(number)
        member = job.members.get(key) if job is not None else None
        if job is not None and member is not None:
            member.refused_by -= {node}
            core.journal.touch(job)
            core.late[(number, key)] = None
    core.disturb()


def hold_set(core: Core, fact: HoldSet) -> None:
    if core.cluster.hold(fact.hold) != fact:
        core.cluster.set_hold(fact)
        core.notable.append(f"others use more of {fact.node}")
        if fact.standing:
            core.nodes_changed()
        _changed(core, fact.node)


def hold_gone(core: Core, hold: str) -> None:
    known = core.cluster.hold(hold)
    if known is not None:
        core.cluster.remove_hold(hold)
        if known.standing:
            core.nodes_changed()
        _changed(core, known.node)
