"""Nodes as the API shows them: what they have, what is free there, and whom they are closed to.

What our jobs have and what others use (holds) are told apart, and with what is free they make up the whole:
where others use more than is left, they are shown with what is left. Of the labels of a cluster only those
are shown that a queue refers to; taints are told as the reason why a node is closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from penstock.api.amounts import core_milli, cores, is_gpu
from penstock.api.interface import Doc
from penstock.engine import Vertex
from penstock.model.constraint import (
    TAINTS_PROPERTY,
    And,
    Constraint,
    Not,
    Or,
    Properties,
    Taint,
    Value,
    decode_taints,
)
from penstock.model.jobid import encode_jobid
from penstock.sched.cluster import ClusterNode
from penstock.sched.scheduler import Scheduler
from penstock.sched.state import SchedulerState

__all__ = ["node_cores", "node_docs"]

_CORDONED: Final = "cordoned"
_CORDON_KEY: Final = "node.kubernetes.io/unschedulable"


@dataclass(slots=True)
class _Pool:
    """What a node has of one kind, however many vertices that are."""

    total: int = 0
    free: int = 0
    held: int = 0

    def add(self, vertex: Vertex, per_unit: int = 1) -> None:
        state = vertex.state
        booked = sum(one.units for one in state.bookings.values() if one.live) if state is not None else 0
        used = sum(state.external_units) if state is not None else 0
        free = max(0, vertex.size - booked - used)
        self.total += vertex.size * per_unit
        self.free += free * per_unit
        self.held += max(0, vertex.size - booked - free) * per_unit


def node_docs(scheduler: Scheduler, *, of_pods: bool) -> list[Doc]:
    """All nodes by rank. In a world of pods, labels are not properties to be shown."""
    state = scheduler.state
    named = _named(queue.constraint for queue in state.settings.queues) if of_pods else None
    known = sorted(state.cluster.nodes.items(), key=lambda item: item[1].rank)
    return [_doc(state, name, one, named) for name, one in known]


def node_cores(known: ClusterNode) -> int | float:
    return cores(core_milli((vertex.type, vertex.size) for vertex in known.vertex.below()))


def _doc(state: SchedulerState, name: str, known: ClusterNode, named: frozenset[str] | None) -> Doc:
    drain = state.drains.get(name)
    cpu, gpu, memory = _Pool(), _Pool(), _Pool()
    for vertex in known.vertex.below():
        per_unit = core_milli([(vertex.type, 1)])
        if per_unit:
            cpu.add(vertex, per_unit)
        elif is_gpu(vertex.type):
            gpu.add(vertex)
        elif vertex.type == "memory":
            memory.add(vertex)
    jobs = sorted(
        {
            state.job_of_member[key]
            for key in state.members_by_node.get(name, ())
            if key in state.job_of_member
        }
    )
    closed, closed_why = _closed(known)
    return {
        "name": name,
        "rank": known.rank,
        "state": _state(
            known, in_use=bool(jobs) or cpu.free + cpu.held < cpu.total, of_pods=named is not None
        ),
        "up": known.fact.up,
        "drained": drain is not None,
        "drain_reason": drain.reason if drain is not None else "",
        "drained_at": drain.at if drain is not None else None,
        "why": known.fact.why,
        "closed": closed,
        "closed_why": closed_why,
        "cores": cores(cpu.total),
        "gpus": gpu.total,
        "memory_bytes": memory.total or None,
        "cores_free": cores(cpu.free),
        "gpus_free": gpu.free,
        "memory_free_bytes": memory.free if memory.total else None,
        "cores_held": cores(cpu.held),
        "gpus_held": gpu.held,
        "memory_held_bytes": memory.held if memory.total else None,
        "properties": _properties(known, named),
        "jobs": [encode_jobid(job) for job in jobs],
    }


def _state(known: ClusterNode, *, in_use: bool, of_pods: bool) -> str:
    """As `flux resource list` has it, a drained node is down; people of Kubernetes know drained ones."""
    if of_pods and known.is_drained and known.fact.up:
        return "drained"
    if not known.vertex.up:
        return "down"
    return "allocated" if in_use else "free"


def _closed(known: ClusterNode) -> tuple[str, str]:
    """Whether a node takes only those that tolerate it, in one word, and why."""
    taints = decode_taints(known.vertex.properties.get(TAINTS_PROPERTY, ""))
    is_cordoned = known.fact.why == _CORDONED or any(taint.key == _CORDON_KEY for taint in taints)
    texts = [_taint_text(taint) for taint in taints if taint.key != _CORDON_KEY]
    if is_cordoned:
        return _CORDONED, "; ".join([_CORDONED, *texts])
    return ("tainted", "; ".join(texts)) if texts else ("", "")


def _taint_text(taint: Taint) -> str:
    """As `kubectl taint` takes it."""
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _properties(known: ClusterNode, named: frozenset[str] | None) -> list[str]:
    properties = known.vertex.properties
    if named is None:
        return sorted(properties)
    return [
        f"{key}={properties[key]}" if properties[key] else key for key in sorted(named & properties.keys())
    ]


def _named(constraints: Iterable[Constraint | None]) -> frozenset[str]:
    """Properties that constraints refer to."""
    found: set[str] = set()
    left = list(constraints)
    while left:
        match left.pop():
            case Properties(names=names):
                found.update(name.removeprefix("^") for name in names)
            case Value(key=key):
                found.add(key)
            case And(operands=operands) | Or(operands=operands) | Not(operands=operands):
                left.extend(operands)
    return frozenset(found - {TAINTS_PROPERTY})
