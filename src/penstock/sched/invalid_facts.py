"""Facts that cannot be handled as they are: refused with a reason, or reduced to what is valid.

A workload or member is left out, and its owner is told why. A node gets nothing new, and keeps what it has.
Usage and statuses are about things that exist, so they are moved into their bounds.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from penstock.errors import BadRequest
from penstock.protocol.facts import (
    ExternalUsageSet,
    Fact,
    MemberSet,
    MemberStatus,
    NodeSet,
    Snapshot,
    WorkloadSet,
)
from penstock.protocol.intents import StatusUpdate, WorkloadStatus
from penstock.protocol.validity import bounded_status, bounded_usage, problem_of
from penstock.sched.state import SchedulerState

__all__ = ["valid_fact"]

M = TypeVar("M", WorkloadSet, MemberSet)


def valid_fact(state: SchedulerState, fact: Fact, now: float) -> Fact | None:
    """The fact as it can be handled; None if there is nothing to handle."""
    match fact:
        case NodeSet():
            return _valid_node(state, fact)
        case WorkloadSet():
            return _valid_member(state, fact)
        case MemberSet():
            return _valid_member(state, fact)
        case ExternalUsageSet():
            return bounded_usage(fact)
        case MemberStatus():
            return bounded_status(fact, now)
        case Snapshot():
            return _valid_snapshot(state, fact, now)
    return fact


def _valid_node(state: SchedulerState, fact: NodeSet) -> NodeSet | None:
    problem = problem_of(fact)
    if not problem:
        return fact
    why = f"the node cannot be used: {problem}"
    known = state.cluster.nodes.get(fact.node)
    if known is not None:
        return replace(known.fact, up=False, why=why)
    return NodeSet(fact.node, (), up=False, why=why) if not problem_of(NodeSet(fact.node, ())) else None


def _valid_member(state: SchedulerState, fact: M) -> M | None:
    problem = problem_of(fact) or (_queue_problem(state, fact) if isinstance(fact, WorkloadSet) else "")
    if not problem:
        return fact
    update = StatusUpdate(fact.workload, 0, WorkloadStatus.INADMISSIBLE, problem)
    state.journal.status_updates[fact.workload, ""] = update
    return None


def _queue_problem(state: SchedulerState, fact: WorkloadSet) -> str:
    """A queue that does not exist. A job that was accepted while it did goes on, or is held if it waits."""
    job = state.job_of_workload(fact.workload)
    if job is not None and job.queue == fact.queue:
        return ""
    try:
        state.settings.queue(fact.queue)
    except BadRequest as error:
        return f"its queue is not valid: {error}"
    return ""


def _valid_snapshot(state: SchedulerState, fact: Snapshot, now: float) -> Snapshot:
    nodes = (_valid_node(state, node) for node in fact.nodes)
    workloads = (_valid_member(state, workload) for workload in fact.workloads)
    members = (_valid_member(state, member) for member in fact.members)
    return Snapshot(
        tuple(node for node in nodes if node is not None),
        tuple(usage for usage in map(bounded_usage, fact.external_usage) if usage is not None),
        tuple(workload for workload in workloads if workload is not None),
        tuple(member for member in members if member is not None),
        tuple(one for status in fact.statuses if (one := bounded_status(status, now)) is not None),
    )
