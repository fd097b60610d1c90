"""The three snapshots that are compared: the cluster's API, the store, and the resource graph in memory.

Usage is in whole units by resource, named as in Kubernetes: `cpu` in millicores, `memory` and
`ephemeral-storage` in bytes, `pods`, huge pages in bytes, extended resources as they are. An absent resource
is 0. A member is named by the uid of its pod, and so is the external usage of a pod that is not a member. The
external usage of a pod whose job has ended is named `left over: <uid>`; the usage of a member beyond its
allocation is named `more: <uid>`.

The snapshots are not taken at the same instant. A difference that only reflects a change in between is gone
in the next snapshots, so a caller must compare twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = [
    "EXCESS_PREFIX",
    "ORPHAN_PREFIX",
    "PLACING",
    "ApiNode",
    "ApiPod",
    "ApiSnapshot",
    "GraphExternalUsage",
    "GraphMember",
    "GraphNode",
    "GraphSnapshot",
    "JobAssignments",
    "ResourceUsage",
    "StoreMember",
    "StoreSnapshot",
]

ResourceUsage = Mapping[str, int]

ORPHAN_PREFIX: Final = "left over: "
EXCESS_PREFIX: Final = "more: "
PLACING: Final = "placing"  # phase of a member whose binding is in flight


@dataclass(frozen=True, slots=True)
class ApiNode:
    allocatable: ResourceUsage
    ready: bool = True  # the Ready condition


@dataclass(frozen=True, slots=True)
class ApiPod:
    namespace: str
    name: str
    node: str  # "": not bound
    scheduler_name: str
    terminal: bool  # Succeeded or Failed: it uses nothing
    deleting: bool  # it counts until it is terminal or gone
    usage: ResourceUsage

    @property
    def is_counted(self) -> bool:
        """Whether the pod uses resources of a node: it is bound and not terminal."""
        return bool(self.node) and not self.terminal


@dataclass(frozen=True, slots=True)
class ApiSnapshot:
    nodes: Mapping[str, ApiNode] = field(default_factory=dict)
    pods: Mapping[str, ApiPod] = field(default_factory=dict)  # by uid


@dataclass(frozen=True, slots=True)
class JobAssignments:
    """How many members of a job are placed. A job that is ending may be incomplete."""

    size: int  # members that are placed or wait for placement
    placed: int  # members that are known to be placed
    is_marked_incomplete: bool  # the scheduler has reported that it cannot complete the job
    since: float | None  # incomplete since; None: complete, or ending


@dataclass(frozen=True, slots=True)
class StoreMember:
    job: int
    node: str
    phase: str


@dataclass(frozen=True, slots=True)
class StoreSnapshot:
    # Members of active jobs that are assigned to a node.
    members: Mapping[str, StoreMember] = field(default_factory=dict)
    jobs: Mapping[int, JobAssignments] = field(default_factory=dict)  # jobs with such members


@dataclass(frozen=True, slots=True)
class GraphNode:
    capacity: ResourceUsage
    used: ResourceUsage = field(default_factory=dict)  # by jobs of Penstock
    external: ResourceUsage = field(default_factory=dict)  # booked for external usage
    up: bool = True  # as the backend reported it; drains do not count


@dataclass(frozen=True, slots=True)
class GraphMember:
    job: int
    node: str
    phase: str
    usage: ResourceUsage = field(default_factory=dict)  # units of its slot


@dataclass(frozen=True, slots=True)
class GraphExternalUsage:
    node: str
    usage: ResourceUsage
    standing: bool = False


@dataclass(frozen=True, slots=True)
class GraphSnapshot:
    nodes: Mapping[str, GraphNode] = field(default_factory=dict)
    members: Mapping[str, GraphMember] = field(default_factory=dict)  # members with a slot in the engine
    external_usage: Mapping[str, GraphExternalUsage] = field(default_factory=dict)
    jobs: Mapping[int, JobAssignments] = field(default_factory=dict)
    # "job/slot" -> node: booked without a member
    empty_slots: Mapping[str, str] = field(default_factory=dict)
