"""Three readings that agree, and every way to make them disagree in one thing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from penstock.audit.compare import HALF_GANG_S, compare
from penstock.audit.differences import Difference, DifferenceKind
from penstock.audit.readings import (
    LEFT_OVER,
    MORE,
    ApiNode,
    ApiPod,
    ApiReading,
    GraphExternalUsage,
    GraphMember,
    GraphNode,
    GraphReading,
    JobAssignments,
    StoreMember,
    StoreReading,
)

__all__ = ["CORRUPTIONS", "NAMES", "NOW", "Pick", "Triple", "example"]

NOW = 10_000.0
NAMES = ("penstock", "fluence")
ALLOCATABLE = {"cpu": 64_000, "memory": 1 << 38, "pods": 110, "example.com/gpu": 8}

Expected = tuple[DifferenceKind, str]
Pick = Callable[[Sequence[str]], str]


@dataclass
class Triple:
    """Readings that can still be changed."""

    nodes: dict[str, ApiNode] = field(default_factory=dict)
    pods: dict[str, ApiPod] = field(default_factory=dict)
    store_members: dict[str, StoreMember] = field(default_factory=dict)
    store_jobs: dict[int, JobAssignments] = field(default_factory=dict)
    graph_nodes: dict[str, GraphNode] = field(default_factory=dict)
    graph_members: dict[str, GraphMember] = field(default_factory=dict)
    graph_jobs: dict[int, JobAssignments] = field(default_factory=dict)
    holds: dict[str, GraphExternalUsage] = field(default_factory=dict)
    empty_slots: dict[str, str] = field(default_factory=dict)

    def node(self, name: str, *, ready: bool = True) -> None:
        self.nodes[name] = ApiNode(dict(ALLOCATABLE), ready)
        self.graph_nodes[name] = GraphNode({**ALLOCATABLE, "hostport/TCP/80": 1}, up=ready)

    def pod(
        self, uid: str, node: str, amounts: Mapping[str, int], *, scheduler: str = "default-scheduler"
    ) -> None:
        told = {**amounts, "pods": 1}
        self.pods[uid] = ApiPod("default", f"pod-{uid}", node, scheduler, False, False, told)

    def foreign(self, uid: str, node: str, amounts: Mapping[str, int]) -> None:
        self.pod(uid, node, amounts)
        self.holds[uid] = GraphExternalUsage(node, {**self.pods[uid].amounts, "hostport/TCP/80": 1})

    def left_over(self, uid: str, node: str, amounts: Mapping[str, int]) -> None:
        self.pod(uid, node, amounts, scheduler=NAMES[0])
        self.holds[LEFT_OVER + uid] = GraphExternalUsage(node, self.pods[uid].amounts)

    def member(
        self, uid: str, node: str, amounts: Mapping[str, int], job: int = 1, more_cpu: int = 0
    ) -> None:
        self.pod(uid, node, amounts, scheduler=NAMES[-1])
        assignment = self.pods[uid].amounts
        self.store_members[uid] = StoreMember(job, node, "running")
        self.graph_members[uid] = GraphMember(job, node, "running", assignment)
        if more_cpu:
            grown = {**assignment, "cpu": assignment.get("cpu", 0) + more_cpu}
            self.pods[uid] = replace(self.pods[uid], amounts=grown)
            self.holds[MORE + uid] = GraphExternalUsage(node, {"cpu": more_cpu})
        size = 1 + (self.graph_jobs[job].size if job in self.graph_jobs else 0)
        self.store_jobs[job] = self.graph_jobs[job] = JobAssignments(size, size, broken=False, since=None)

    def settle(self) -> Triple:
        """Counts what is booked at every node, as an engine does."""
        for name, node in self.graph_nodes.items():
            used: dict[str, int] = {}
            held: dict[str, int] = {}
            for sums, parts in ((used, self.graph_members), (held, self.holds)):
                for part in parts.values():
                    for kind, units in part.amounts.items() if part.node == name else ():
                        if node.capacity.get(kind):
                            sums[kind] = sums.get(kind, 0) + units
            self.graph_nodes[name] = replace(node, used=used, held=held)
        return self

    def readings(self) -> tuple[ApiReading, StoreReading, GraphReading]:
        return (
            ApiReading(dict(self.nodes), dict(self.pods)),
            StoreReading(dict(self.store_members), dict(self.store_jobs)),
            GraphReading(
                dict(self.graph_nodes),
                dict(self.graph_members),
                dict(self.holds),
                dict(self.graph_jobs),
                dict(self.empty_slots),
            ),
        )

    def compare(self, grace: Collection[Difference] | None = None) -> tuple[Difference, ...]:
        return compare(*self.readings(), NAMES, now=NOW, grace=grace)

    def found(self) -> list[Expected]:
        return [(difference.kind, difference.subject) for difference in self.compare()]


def example() -> Triple:
    """Something of everything, in order."""
    triple = Triple()
    triple.node("n0")
    triple.node("n1")
    triple.node("n2", ready=False)
    triple.foreign("f0", "n0", {"cpu": 500, "memory": 1 << 30})
    triple.foreign("f1", "n2", {"cpu": 250})
    triple.left_over("l0", "n1", {"cpu": 100})
    triple.member("m0", "n0", {"cpu": 1000, "example.com/gpu": 2})
    triple.member("m1", "n1", {"cpu": 1000, "example.com/gpu": 2})
    triple.member("m2", "n1", {"cpu": 2000}, job=2, more_cpu=300)
    triple.pod("waiting", "", {"cpu": 100}, scheduler=NAMES[0])
    triple.pod("over", "n0", {"cpu": 100}, scheduler=NAMES[0])
    triple.pods["over"] = replace(triple.pods["over"], terminal=True)
    return triple.settle()


# One function for each way to go wrong: it changes one thing, and says what must be found.
# None: there is nothing that could go wrong in this way.


def graph_misses_a_node(triple: Triple, pick: Pick) -> Expected | None:
    name = pick(sorted(triple.graph_nodes))
    del triple.graph_nodes[name]
    return DifferenceKind.NODE_MISSING, name


def cluster_loses_a_node(triple: Triple, pick: Pick) -> Expected | None:
    name = pick(sorted(triple.nodes))
    del triple.nodes[name]
    return DifferenceKind.NODE_SURPLUS, name


def capacity_is_old(triple: Triple, pick: Pick) -> Expected | None:
    name = pick(sorted(triple.graph_nodes))
    node = triple.graph_nodes[name]
    kind = pick(sorted(ALLOCATABLE))
    triple.graph_nodes[name] = replace(node, capacity={**node.capacity, kind: node.capacity[kind] + 1})
    return DifferenceKind.NODE_CAPACITY, name


def a_kind_is_missing(triple: Triple, pick: Pick) -> Expected | None:
    name = pick(sorted(triple.nodes))
    node = triple.nodes[name]
    triple.nodes[name] = replace(node, allocatable={**node.allocatable, "example.com/fpga": 1})
    return DifferenceKind.NODE_CAPACITY, name


def state_is_old(triple: Triple, pick: Pick) -> Expected | None:
    name = pick(sorted(triple.graph_nodes))
    node = triple.graph_nodes[name]
    triple.graph_nodes[name] = replace(node, up=not node.up)
    return DifferenceKind.NODE_STATE, name


def a_hold_was_never_set(triple: Triple, pick: Pick) -> Expected | None:
    holds = sorted(name for name in triple.holds if not name.startswith(LEFT_OVER))
    if not holds:
        return None
    name = pick(holds)
    del triple.holds[name]
    triple.settle()
    return DifferenceKind.EXTERNAL_USAGE_MISSING, name


def a_foreign_pod_is_gone(triple: Triple, pick: Pick) -> Expected | None:
    holds = sorted(name for name in triple.holds if not name.startswith(MORE))
    if not holds:
        return None
    name = pick(holds)
    del triple.pods[name.removeprefix(LEFT_OVER)]
    return DifferenceKind.EXTERNAL_USAGE_SURPLUS, name


def a_foreign_pod_is_terminal(triple: Triple, pick: Pick) -> Expected | None:
    holds = sorted(name for name in triple.holds if not name.startswith(MORE))
    if not holds:
        return None
    name = pick(holds)
    uid = name.removeprefix(LEFT_OVER)
    triple.pods[uid] = replace(triple.pods[uid], terminal=True)
    return DifferenceKind.EXTERNAL_USAGE_SURPLUS, name


def a_member_counts_twice(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.graph_members:
        return None
    uid = pick(sorted(triple.graph_members))
    name = pick([uid, LEFT_OVER + uid])
    triple.holds[name] = GraphExternalUsage(triple.pods[uid].node, triple.pods[uid].amounts)
    triple.settle()
    return DifferenceKind.EXTERNAL_USAGE_SURPLUS, name


def a_pod_was_resized(triple: Triple, pick: Pick) -> Expected | None:
    """Downwards, so that nothing is over-committed."""
    if not triple.holds:
        return None
    name = pick(sorted(triple.holds))
    hold = triple.holds[name]
    triple.holds[name] = replace(hold, amounts={**hold.amounts, "cpu": hold.amounts.get("cpu", 0) + 1})
    triple.settle()
    return DifferenceKind.EXTERNAL_USAGE_DIFFERS, name


def a_hold_is_on_another_node(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.holds:
        return None
    name = pick(sorted(triple.holds))
    triple.holds[name] = replace(triple.holds[name], node="elsewhere")
    triple.settle()
    return DifferenceKind.EXTERNAL_USAGE_DIFFERS, name


def bookings_for_others_are_no_sum(triple: Triple, pick: Pick) -> Expected | None:
    name = pick(sorted(triple.graph_nodes))
    node = triple.graph_nodes[name]
    triple.graph_nodes[name] = replace(node, held={**node.held, "cpu": node.held.get("cpu", 0) + 1})
    return DifferenceKind.ALLOCATION_DIFFERS, name


def a_pod_of_ours_is_not_known(triple: Triple, pick: Pick) -> Expected | None:
    ready = sorted(name for name, node in triple.nodes.items() if node.ready)
    if not ready:
        return None
    triple.pod("stray", pick(ready), {"cpu": 1}, scheduler=pick(NAMES))
    return DifferenceKind.POD_UNKNOWN, "stray"


def the_store_has_forgotten_a_member(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.store_members:
        return None
    uid = pick(sorted(triple.store_members))
    del triple.store_members[uid]
    return DifferenceKind.MEMBER_DISAGREED, uid


def the_graph_has_forgotten_a_member(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.graph_members:
        return None
    uid = pick(sorted(triple.graph_members))
    del triple.graph_members[uid]
    triple.settle()
    return DifferenceKind.MEMBER_DISAGREED, uid


def the_store_has_another_node(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.store_members:
        return None
    uid = pick(sorted(triple.store_members))
    triple.store_members[uid] = replace(triple.store_members[uid], node="elsewhere")
    return DifferenceKind.MEMBER_DISAGREED, uid


def the_graph_has_another_job(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.graph_members:
        return None
    uid = pick(sorted(triple.graph_members))
    triple.graph_members[uid] = replace(triple.graph_members[uid], job=99)
    return DifferenceKind.MEMBER_DISAGREED, uid


def the_pod_of_a_member_is_gone(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.graph_members:
        return None
    uid = pick(sorted(triple.graph_members))
    del triple.pods[uid]
    return DifferenceKind.MEMBER_LEAKED, uid


def the_pod_of_a_member_is_terminal(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.graph_members:
        return None
    uid = pick(sorted(triple.graph_members))
    triple.pods[uid] = replace(triple.pods[uid], terminal=True)
    return DifferenceKind.MEMBER_LEAKED, uid


def a_member_was_never_bound(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.graph_members:
        return None
    uid = pick(sorted(triple.graph_members))
    triple.pods[uid] = replace(triple.pods[uid], node="")
    return DifferenceKind.MEMBER_UNBOUND, uid


def somebody_else_bound_a_member(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.graph_members:
        return None
    uid = pick(sorted(triple.graph_members))
    others = sorted(name for name in triple.nodes if name != triple.pods[uid].node)
    if not others:
        return None
    triple.pods[uid] = replace(triple.pods[uid], node=pick(others))
    return DifferenceKind.MEMBER_ELSEWHERE, uid


def a_slot_was_not_given_back(triple: Triple, pick: Pick) -> Expected | None:
    triple.empty_slots["7/3"] = pick(sorted(triple.graph_nodes))
    return DifferenceKind.SLOT_EMPTY, "7/3"


def a_node_has_shrunk(triple: Triple, pick: Pick) -> Expected | None:
    used = sorted(name for name, node in triple.graph_nodes.items() if node.used.get("cpu", 0) > 1)
    if not used:
        return None
    name = pick(used)
    triple.nodes[name] = replace(triple.nodes[name], allocatable={**ALLOCATABLE, "cpu": 1})
    triple.graph_nodes[name] = replace(triple.graph_nodes[name], capacity={**ALLOCATABLE, "cpu": 1})
    return DifferenceKind.OVERCOMMITTED, name


def others_came_later(triple: Triple, pick: Pick) -> Expected | None:
    used = sorted(name for name, node in triple.graph_nodes.items() if node.used.get("cpu"))
    if not used:
        return None
    name = pick(used)
    triple.foreign("crowd", name, {"cpu": ALLOCATABLE["cpu"]})
    triple.settle()
    return DifferenceKind.OVERCOMMITTED, name


def a_group_stays_half(triple: Triple, pick: Pick) -> Expected | None:
    if not triple.graph_jobs:
        return None
    job = int(pick([str(number) for number in sorted(triple.graph_jobs)]))
    jobs = triple.graph_jobs if pick(["graph", "store"]) == "graph" else triple.store_jobs
    jobs[job] = JobAssignments(jobs[job].size + 1, jobs[job].placed, False, NOW - HALF_GANG_S - 1)
    return DifferenceKind.HALF_GANG, str(job)


CORRUPTIONS: tuple[Callable[[Triple, Pick], Expected | None], ...] = (
    graph_misses_a_node,
    cluster_loses_a_node,
    capacity_is_old,
    a_kind_is_missing,
    state_is_old,
    a_hold_was_never_set,
    a_foreign_pod_is_gone,
    a_foreign_pod_is_terminal,
    a_member_counts_twice,
    a_pod_was_resized,
    a_hold_is_on_another_node,
    bookings_for_others_are_no_sum,
    a_pod_of_ours_is_not_known,
    the_store_has_forgotten_a_member,
    the_graph_has_forgotten_a_member,
    the_store_has_another_node,
    the_graph_has_another_job,
    the_pod_of_a_member_is_gone,
    the_pod_of_a_member_is_terminal,
    a_member_was_never_bound,
    somebody_else_bound_a_member,
    a_slot_was_not_given_back,
    a_node_has_shrunk,
    others_came_later,
    a_group_stays_half,
)
