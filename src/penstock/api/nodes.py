"""Nodes as the API shows them: capacity, free resources, external usage, and why a node is closed.

The units of a node are allocated to jobs, used externally (pods of other schedulers) or free, and the three
add up to its capacity: external usage beyond what jobs leave is capped. Of the labels of a
Kubernetes node only those that a queue's constraint refers to are shown as properties; taints are shown as
the reason why a node is closed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from penstock.api.identity import Namespaces, sees
from penstock.api.resource_counts import core_milli, cores, is_gpu
from penstock.api.responses import NodeInfo, NodeState
from penstock.engine import Vertex
from penstock.model.constraint import (
    CORDON_KEY,
    TAINTS_PROPERTY,
    And,
    Constraint,
    Not,
    Or,
    Properties,
    Value,
    decode_taints,
)
from penstock.model.jobid import encode_jobid
from penstock.sched.cluster import ClusterNode
from penstock.sched.scheduler import Scheduler
from penstock.sched.state import SchedulerState

__all__ = ["node_cores", "node_infos"]

_CORDONED: Final = "cordoned"


@dataclass(slots=True)
class _ResourceUsage:
    """One resource of a node, summed over its vertices."""

    total: int = 0
    free: int = 0
    external: int = 0

    def add(self, vertex: Vertex, per_unit: int = 1) -> None:
        state = vertex.state
        booked = sum(one.units for one in state.bookings.values() if one.live) if state is not None else 0
        external = sum(state.external_units) if state is not None else 0
        free = max(0, vertex.size - booked - external)
        self.total += vertex.size * per_unit
        self.free += free * per_unit
        self.external += max(0, vertex.size - booked - free) * per_unit


def node_infos(scheduler: Scheduler, *, of_pods: bool, namespaces: Namespaces = None) -> list[NodeInfo]:
    """All nodes by rank. With the Kubernetes backend (`of_pods`), labels are not properties to show.

    Jobs of other namespaces than these are left out.
    """
    state = scheduler.state
    shown = _referenced(queue.constraint for queue in state.settings.queues) if of_pods else None
    known = sorted(state.cluster.nodes.items(), key=lambda item: item[1].rank)
    return [_node_info(state, name, node, shown, namespaces) for name, node in known]


def node_cores(known: ClusterNode) -> int | float:
    return cores(core_milli((vertex.type, vertex.size) for vertex in known.vertex.below()))


def _node_info(
    state: SchedulerState,
    name: str,
    known: ClusterNode,
    shown: frozenset[str] | None,
    namespaces: Namespaces,
) -> NodeInfo:
    drain = state.nodes.drains.get(name)
    cpu, gpu, memory = _ResourceUsage(), _ResourceUsage(), _ResourceUsage()
    for vertex in known.vertex.below():
        milli_per_unit = core_milli([(vertex.type, 1)])
        if milli_per_unit:
            cpu.add(vertex, milli_per_unit)
        elif is_gpu(vertex.type):
            gpu.add(vertex)
        elif vertex.type == "memory":
            memory.add(vertex)
    jobs = sorted({state.members.job_of(key) for key in state.members.on_node(name) if key in state.members})
    is_used = bool(jobs) or cpu.free + cpu.external < cpu.total
    closed, closed_why = _closed(known)
    return NodeInfo(
        name=name,
        rank=known.rank,
        state=_state(known, is_used=is_used, of_pods=shown is not None),
        up=known.fact.up,
        drained=drain is not None,
        drain_reason=drain.reason if drain is not None else "",
        drained_at=drain.at if drain is not None else None,
        why=known.fact.why,
        closed=closed,
        closed_why=closed_why,
        cores=cores(cpu.total),
        gpus=gpu.total,
        memory_bytes=memory.total or None,
        cores_free=cores(cpu.free),
        gpus_free=gpu.free,
        memory_free_bytes=memory.free if memory.total else None,
        cores_external=cores(cpu.external),
        gpus_external=gpu.external,
        memory_external_bytes=memory.external if memory.total else None,
        properties=_properties(known, shown),
        jobs=[encode_jobid(job) for job in jobs if _is_seen(state, job, namespaces)],
    )


def _is_seen(state: SchedulerState, number: int, namespaces: Namespaces) -> bool:
    job = state.jobs.get(number)
    return namespaces is None or (job is not None and sees(namespaces, job.owner))


def _state(known: ClusterNode, *, is_used: bool, of_pods: bool) -> NodeState:
    """A drained node is `down` as in `flux resource list`, but `drained` with the Kubernetes backend."""
    if of_pods and known.is_drained and known.fact.up:
        return "drained"
    if not known.vertex.up:
        return "down"
    return "allocated" if is_used else "free"


def _closed(known: ClusterNode) -> tuple[Literal["", "cordoned", "tainted"], str]:
    """Whether a node admits only pods with a toleration, and the taints that say so."""
    taints = decode_taints(known.vertex.properties.get(TAINTS_PROPERTY, ""))
    is_cordoned = known.fact.why == _CORDONED or any(taint.key == CORDON_KEY for taint in taints)
    texts = [str(taint) for taint in taints if taint.key != CORDON_KEY]
    if is_cordoned:
        return _CORDONED, "; ".join([_CORDONED, *texts])
    return ("tainted", "; ".join(texts)) if texts else ("", "")


def _properties(known: ClusterNode, shown: frozenset[str] | None) -> list[str]:
    """All properties, or those in `shown` as KEY=VALUE."""
    properties = known.vertex.properties
    if shown is None:
        return sorted(properties)
    return [
        f"{key}={properties[key]}" if properties[key] else key for key in sorted(shown & properties.keys())
    ]


def _referenced(constraints: Iterable[Constraint | None]) -> frozenset[str]:
    """Properties that constraints refer to."""
    found: set[str] = set()
    remaining = list(constraints)
    while remaining:
        match remaining.pop():
            case Properties(names=names):
                found.update(name.removeprefix("^") for name in names)
            case Value(key=key):
                found.add(key)
            case And(operands=operands) | Or(operands=operands) | Not(operands=operands):
                remaining.extend(operands)
    return frozenset(found - {TAINTS_PROPERTY})
