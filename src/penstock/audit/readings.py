"""The three readings that are compared: the cluster's API, the store, and the graph in memory.

Amounts are whole units by kind, as a node of Kubernetes names them: `cpu` in millicores, `memory` and
`ephemeral-storage` in bytes, `pods`, huge pages in bytes, extended resources as they are. A kind that is
absent is 0. A member is named by the uid of its pod, and so is the hold of a pod that is not ours. The hold
of a pod whose job is over is named `left over: <uid>`; that of what a member uses beyond what it was given,
`more: <uid>`. Kinds that the graph alone knows begin with `hostport/`, to keep host ports apart, or with
`anti-affinity/`, to keep pods apart that ask for it.

The readings are not of one instant. What differs only because something happened in between is gone in the
next ones; whoever compares must look twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "GRAPH_ALONE",
    "LEFT_OVER",
    "MORE",
    "PLACING",
    "ApiNode",
    "ApiPod",
    "ApiReading",
    "GraphExternalUsage",
    "GraphMember",
    "GraphNode",
    "GraphReading",
    "JobAssignments",
    "ResourceUsage",
    "StoreMember",
    "StoreReading",
]

ResourceUsage = Mapping[str, int]

LEFT_OVER: Final = "left over: "
MORE: Final = "more: "
GRAPH_ALONE: Final = ("hostport/", "anti-affinity/")  # what such kinds begin with
PLACING: Final = "placing"  # the phase of a member whose binding is under way


@dataclass(frozen=True, slots=True)
class ApiNode:
    allocatable: ResourceUsage
    ready: bool = True  # its kubelet says so


@dataclass(frozen=True, slots=True)
class ApiPod:
    namespace: str
    name: str
    node: str  # "": on none
    scheduler_name: str
    terminal: bool  # Succeeded or Failed: it uses nothing any more
    deleting: bool  # it counts all the same, until it is terminal or gone
    amounts: ResourceUsage

    @property
    def is_counted(self) -> bool:
        """It is on a node and uses what it asks for there; nothing else matters for that."""
        return bool(self.node) and not self.terminal


@dataclass(frozen=True, slots=True)
class ApiReading:
    nodes: Mapping[str, ApiNode] = field(default_factory=dict)
    pods: Mapping[str, ApiPod] = field(default_factory=dict)  # by uid


@dataclass(frozen=True, slots=True)
class JobAssignments:
    """How much of a job has its place. A job that is ending need not be whole."""

    size: int  # members that have a place or want one
    placed: int  # those that are known to be in their places
    broken: bool  # the job says that it cannot be made whole
    since: float | None  # it is not whole since then; None: it is, or need not be


@dataclass(frozen=True, slots=True)
class StoreMember:
    job: int
    node: str
    phase: str


@dataclass(frozen=True, slots=True)
class StoreReading:
    members: Mapping[str, StoreMember] = field(default_factory=dict)  # of active jobs, those with a place
    jobs: Mapping[int, JobAssignments] = field(default_factory=dict)  # those with such members


@dataclass(frozen=True, slots=True)
class GraphNode:
    capacity: ResourceUsage
    used: ResourceUsage = field(default_factory=dict)  # by jobs of ours
    held: ResourceUsage = field(default_factory=dict)  # by others, as the bookings have it
    up: bool = True  # as far as the world says; a drain is no business of the world's


@dataclass(frozen=True, slots=True)
class GraphMember:
    job: int
    node: str
    phase: str
    amounts: ResourceUsage = field(default_factory=dict)  # what its seat has


@dataclass(frozen=True, slots=True)
class GraphExternalUsage:
    node: str
    amounts: ResourceUsage
    standing: bool = False


@dataclass(frozen=True, slots=True)
class GraphReading:
    nodes: Mapping[str, GraphNode] = field(default_factory=dict)
    members: Mapping[str, GraphMember] = field(default_factory=dict)  # those with a seat in the engine
    holds: Mapping[str, GraphExternalUsage] = field(default_factory=dict)
    jobs: Mapping[int, JobAssignments] = field(default_factory=dict)
    empty_slots: Mapping[str, str] = field(default_factory=dict)  # "job/slot" -> node: booked for nobody
