"""Three consistent snapshots, and a function for every way to make them inconsistent in one respect."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.audit.compare import HALF_GANG_S, compare
from penstock.audit.differences import Difference, DifferenceKind
from penstock.audit.snapshots import (
    EXCESS_PREFIX,
    ORPHAN_PREFIX,
    ApiNode,
    ApiPod,
    ApiSnapshot,
    GraphExternalUsage,
    GraphMember,
    GraphNode,
    GraphSnapshot,
    JobAssignments,
    StoreMember,
    StoreSnapshot,
)

__all__ = ["CORRUPTIONS", "NAMES", "NOW", "Pick", "SnapshotSet", "example"]

NOW = 10_000.0
NAMES = ("penstock", "fluence")
ALLOCATABLE = {"cpu": 64_000, "memory": 1 << 38, "pods": 110, "example.com/gpu": 8}

Expected = tuple[DifferenceKind, str]
Pick = Callable[[Sequence[str]], str]


@dataclass
class SnapshotSet:
    """Mutable data of the three snapshots."""

    nodes: dict[str, ApiNode] = field(default_factory=dict)
    pods: dict[str, ApiPod] = field(default_factory=dict)
    store_members: dict[str, StoreMember] = field(default_factory=dict)
    store_jobs: dict[int, JobAssignments] = field(default_factory=dict)
    graph_nodes: dict[str, GraphNode] = field(default_factory=dict)
    graph_members: dict[str, GraphMember] = field(default_factory=dict)
    graph_jobs: dict[int, JobAssignments] = field(default_factory=dict)
    external_usage: dict[str, GraphExternalUsage] = field(default_factory=dict)
    empty_slots: dict[str, str] = field(default_factory=dict)

    def node(self, name: str, *, ready: bool = True) -> None:
        self.nodes[name] = ApiNode(dict(ALLOCATABLE), ready)
        self.graph_nodes[name] = GraphNode(ALLOCATABLE, up=ready)

    def pod(
        self, uid: str, node: str, usage: Mapping[str, int], *, scheduler: str = "default-scheduler"
    ) -> None:
        usage = {**usage, "pods": 1}
        self.pods[uid] = ApiPod("default", f"pod-{uid}", node, scheduler, False, False, usage)

    def foreign(self, uid: str, node: str, usage: Mapping[str, int]) -> None:
        self.pod(uid, node, usage)
        self.external_usage[uid] = GraphExternalUsage(node, self.pods[uid].usage)

    def left_over(self, uid: str, node: str, usage: Mapping[str, int]) -> None:
        self.pod(uid, node, usage, scheduler=NAMES[0])
        self.external_usage[ORPHAN_PREFIX + uid] = GraphExternalUsage(node, self.pods[uid].usage)

    def member(self, uid: str, node: str, usage: Mapping[str, int], job: int = 1, more_cpu: int = 0) -> None:
        self.pod(uid, node, usage, scheduler=NAMES[-1])
        assignment = self.pods[uid].usage
        self.store_members[uid] = StoreMember(job, node, "running")
        self.graph_members[uid] = GraphMember(job, node, "running", assignment)
        if more_cpu:
            grown = {**assignment, "cpu": assignment.get("cpu", 0) + more_cpu}
            self.pods[uid] = replace(self.pods[uid], usage=grown)
            self.external_usage[EXCESS_PREFIX + uid] = GraphExternalUsage(node, {"cpu": more_cpu})
        size = 1 + (self.graph_jobs[job].size if job in self.graph_jobs else 0)
        self.store_jobs[job] = self.graph_jobs[job] = JobAssignments(
            size, size, is_marked_incomplete=False, since=None
        )

    def recompute_bookings(self) -> SnapshotSet:
        """Sums the bookings of every node, as the engine does."""
        for name, node in self.graph_nodes.items():
            used: dict[str, int] = {}
            held: dict[str, int] = {}
            for sums, parts in ((used, self.graph_members), (held, self.external_usage)):
                for part in parts.values():
                    for resource, units in part.usage.items() if part.node == name else ():
                        if node.capacity.get(resource):
                            sums[resource] = sums.get(resource, 0) + units
            self.graph_nodes[name] = replace(node, used=used, external=held)
        return self

    def frozen(self) -> tuple[ApiSnapshot, StoreSnapshot, GraphSnapshot]:
        return (
            ApiSnapshot(dict(self.nodes), dict(self.pods)),
            StoreSnapshot(dict(self.store_members), dict(self.store_jobs)),
            GraphSnapshot(
                dict(self.graph_nodes),
                dict(self.graph_members),
                dict(self.external_usage),
                dict(self.graph_jobs),
                dict(self.empty_slots),
            ),
        )

    def compare(self, previous: Collection[Difference] | None = None) -> tuple[Difference, ...]:
        return compare(*self.frozen(), NAMES, now=NOW, previous=previous)

    def found(self) -> list[Expected]:
        return [(difference.kind, difference.subject) for difference in self.compare()]


def example() -> SnapshotSet:
    """A consistent example of every kind of node, pod and member."""
    snapshots = SnapshotSet()
    snapshots.node("n0")
    snapshots.node("n1")
    snapshots.node("n2", ready=False)
    snapshots.foreign("f0", "n0", {"cpu": 500, "memory": 1 << 30})
    snapshots.foreign("f1", "n2", {"cpu": 250})
    snapshots.left_over("l0", "n1", {"cpu": 100})
    snapshots.member("m0", "n0", {"cpu": 1000, "example.com/gpu": 2})
    snapshots.member("m1", "n1", {"cpu": 1000, "example.com/gpu": 2})
    snapshots.member("m2", "n1", {"cpu": 2000}, job=2, more_cpu=300)
    snapshots.pod("waiting", "", {"cpu": 100}, scheduler=NAMES[0])
    snapshots.pod("over", "n0", {"cpu": 100}, scheduler=NAMES[0])
    snapshots.pods["over"] = replace(snapshots.pods["over"], terminal=True)
    return snapshots.recompute_bookings()


# Each function corrupts one thing and returns the expected difference.
# None: the snapshots contain nothing that it could corrupt.


def graph_misses_a_node(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    name = pick(sorted(snapshots.graph_nodes))
    del snapshots.graph_nodes[name]
    return DifferenceKind.NODE_MISSING, name


def cluster_loses_a_node(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    name = pick(sorted(snapshots.nodes))
    del snapshots.nodes[name]
    return DifferenceKind.NODE_SURPLUS, name


def capacity_is_old(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    name = pick(sorted(snapshots.graph_nodes))
    node = snapshots.graph_nodes[name]
    resource = pick(sorted(ALLOCATABLE))
    snapshots.graph_nodes[name] = replace(
        node, capacity={**node.capacity, resource: node.capacity[resource] + 1}
    )
    return DifferenceKind.NODE_CAPACITY, name


def a_resource_is_missing(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    name = pick(sorted(snapshots.nodes))
    node = snapshots.nodes[name]
    snapshots.nodes[name] = replace(node, allocatable={**node.allocatable, "example.com/fpga": 1})
    return DifferenceKind.NODE_CAPACITY, name


def state_is_old(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    name = pick(sorted(snapshots.graph_nodes))
    node = snapshots.graph_nodes[name]
    snapshots.graph_nodes[name] = replace(node, up=not node.up)
    return DifferenceKind.NODE_STATE, name


def external_usage_was_never_set(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    external_usage = sorted(name for name in snapshots.external_usage if not name.startswith(ORPHAN_PREFIX))
    if not external_usage:
        return None
    name = pick(external_usage)
    del snapshots.external_usage[name]
    snapshots.recompute_bookings()
    return DifferenceKind.EXTERNAL_USAGE_MISSING, name


def a_foreign_pod_is_gone(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    external_usage = sorted(name for name in snapshots.external_usage if not name.startswith(EXCESS_PREFIX))
    if not external_usage:
        return None
    name = pick(external_usage)
    del snapshots.pods[name.removeprefix(ORPHAN_PREFIX)]
    return DifferenceKind.EXTERNAL_USAGE_SURPLUS, name


def a_foreign_pod_is_terminal(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    external_usage = sorted(name for name in snapshots.external_usage if not name.startswith(EXCESS_PREFIX))
    if not external_usage:
        return None
    name = pick(external_usage)
    uid = name.removeprefix(ORPHAN_PREFIX)
    snapshots.pods[uid] = replace(snapshots.pods[uid], terminal=True)
    return DifferenceKind.EXTERNAL_USAGE_SURPLUS, name


def a_member_counts_twice(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.graph_members:
        return None
    uid = pick(sorted(snapshots.graph_members))
    name = pick([uid, ORPHAN_PREFIX + uid])
    snapshots.external_usage[name] = GraphExternalUsage(snapshots.pods[uid].node, snapshots.pods[uid].usage)
    snapshots.recompute_bookings()
    return DifferenceKind.EXTERNAL_USAGE_SURPLUS, name


def a_pod_was_resized(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    """Downwards, so that no node is overcommitted."""
    if not snapshots.external_usage:
        return None
    name = pick(sorted(snapshots.external_usage))
    usage_entry = snapshots.external_usage[name]
    snapshots.external_usage[name] = replace(
        usage_entry, usage={**usage_entry.usage, "cpu": usage_entry.usage.get("cpu", 0) + 1}
    )
    snapshots.recompute_bookings()
    return DifferenceKind.EXTERNAL_USAGE_DIFFERS, name


def external_usage_is_on_another_node(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.external_usage:
        return None
    name = pick(sorted(snapshots.external_usage))
    snapshots.external_usage[name] = replace(snapshots.external_usage[name], node="elsewhere")
    snapshots.recompute_bookings()
    return DifferenceKind.EXTERNAL_USAGE_DIFFERS, name


def bookings_are_not_the_sum_of_external_usage(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    name = pick(sorted(snapshots.graph_nodes))
    node = snapshots.graph_nodes[name]
    snapshots.graph_nodes[name] = replace(
        node, external={**node.external, "cpu": node.external.get("cpu", 0) + 1}
    )
    return DifferenceKind.EXTERNAL_BOOKING_DIFFERS, name


def a_pod_of_this_scheduler_is_unknown(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    ready = sorted(name for name, node in snapshots.nodes.items() if node.ready)
    if not ready:
        return None
    snapshots.pod("stray", pick(ready), {"cpu": 1}, scheduler=pick(NAMES))
    return DifferenceKind.POD_UNKNOWN, "stray"


def the_store_has_forgotten_a_member(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.store_members:
        return None
    uid = pick(sorted(snapshots.store_members))
    del snapshots.store_members[uid]
    return DifferenceKind.MEMBER_DISAGREED, uid


def the_graph_has_forgotten_a_member(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.graph_members:
        return None
    uid = pick(sorted(snapshots.graph_members))
    del snapshots.graph_members[uid]
    snapshots.recompute_bookings()
    return DifferenceKind.MEMBER_DISAGREED, uid


def the_store_has_another_node(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.store_members:
        return None
    uid = pick(sorted(snapshots.store_members))
    snapshots.store_members[uid] = replace(snapshots.store_members[uid], node="elsewhere")
    return DifferenceKind.MEMBER_DISAGREED, uid


def the_graph_has_another_job(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.graph_members:
        return None
    uid = pick(sorted(snapshots.graph_members))
    snapshots.graph_members[uid] = replace(snapshots.graph_members[uid], job=99)
    return DifferenceKind.MEMBER_DISAGREED, uid


def the_pod_of_a_member_is_gone(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.graph_members:
        return None
    uid = pick(sorted(snapshots.graph_members))
    del snapshots.pods[uid]
    return DifferenceKind.MEMBER_LEAKED, uid


def the_pod_of_a_member_is_terminal(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.graph_members:
        return None
    uid = pick(sorted(snapshots.graph_members))
    snapshots.pods[uid] = replace(snapshots.pods[uid], terminal=True)
    return DifferenceKind.MEMBER_LEAKED, uid


def a_member_was_never_bound(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.graph_members:
        return None
    uid = pick(sorted(snapshots.graph_members))
    snapshots.pods[uid] = replace(snapshots.pods[uid], node="")
    return DifferenceKind.MEMBER_UNBOUND, uid


def another_scheduler_bound_a_member(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.graph_members:
        return None
    uid = pick(sorted(snapshots.graph_members))
    others = sorted(name for name in snapshots.nodes if name != snapshots.pods[uid].node)
    if not others:
        return None
    snapshots.pods[uid] = replace(snapshots.pods[uid], node=pick(others))
    return DifferenceKind.MEMBER_ELSEWHERE, uid


def a_slot_was_not_given_back(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    snapshots.empty_slots["7/3"] = pick(sorted(snapshots.graph_nodes))
    return DifferenceKind.SLOT_EMPTY, "7/3"


def a_node_has_shrunk(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    used = sorted(name for name, node in snapshots.graph_nodes.items() if node.used.get("cpu", 0) > 1)
    if not used:
        return None
    name = pick(used)
    snapshots.nodes[name] = replace(snapshots.nodes[name], allocatable={**ALLOCATABLE, "cpu": 1})
    snapshots.graph_nodes[name] = replace(snapshots.graph_nodes[name], capacity={**ALLOCATABLE, "cpu": 1})
    return DifferenceKind.OVERCOMMITTED, name


def external_usage_came_later(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    used = sorted(name for name, node in snapshots.graph_nodes.items() if node.used.get("cpu"))
    if not used:
        return None
    name = pick(used)
    snapshots.foreign("crowd", name, {"cpu": ALLOCATABLE["cpu"]})
    snapshots.recompute_bookings()
    return DifferenceKind.OVERCOMMITTED, name


def a_group_stays_half(snapshots: SnapshotSet, pick: Pick) -> Expected | None:
    if not snapshots.graph_jobs:
        return None
    job = int(pick([str(number) for number in sorted(snapshots.graph_jobs)]))
    jobs = snapshots.graph_jobs if pick(["graph", "store"]) == "graph" else snapshots.store_jobs
    jobs[job] = JobAssignments(jobs[job].size + 1, jobs[job].placed, False, NOW - HALF_GANG_S - 1)
    return DifferenceKind.HALF_GANG, str(job)


CORRUPTIONS: tuple[Callable[[SnapshotSet, Pick], Expected | None], ...] = (
    graph_misses_a_node,
    cluster_loses_a_node,
    capacity_is_old,
    a_resource_is_missing,
    state_is_old,
    external_usage_was_never_set,
    a_foreign_pod_is_gone,
    a_foreign_pod_is_terminal,
    a_member_counts_twice,
    a_pod_was_resized,
    external_usage_is_on_another_node,
    bookings_are_not_the_sum_of_external_usage,
    a_pod_of_this_scheduler_is_unknown,
    the_store_has_forgotten_a_member,
    the_graph_has_forgotten_a_member,
    the_store_has_another_node,
    the_graph_has_another_job,
    the_pod_of_a_member_is_gone,
    the_pod_of_a_member_is_terminal,
    a_member_was_never_bound,
    another_scheduler_bound_a_member,
    a_slot_was_not_given_back,
    a_node_has_shrunk,
    external_usage_came_later,
    a_group_stays_half,
)
