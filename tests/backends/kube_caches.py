"""Mirrors for the tests: filled as the watches would, and what somebody knows who has heard them out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import (
    KubeObject,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
    UnstructuredObject,
)
from penstock.protocol.facts import (
    ExternalUsageGone,
    ExternalUsageSet,
    Fact,
    MemberGone,
    MemberSet,
    MemberStatus,
    NodeGone,
    NodeSet,
    Snapshot,
    WorkloadGone,
    WorkloadSet,
)
from tests.backends.kube_objects import as_controller

NOW = 2000.0
GROUP = "penstock.dev/group"
SIZE = "penstock.dev/group-size"


def cache_of(*objects: KubeObject) -> ClusterCache:
    cache = ClusterCache(KubeSettings())
    for one in objects:
        put(cache, one)
    return cache


def put(cache: ClusterCache, one: KubeObject, *, gone: bool = False) -> None:
    """What a watch of the object's kind does."""
    match one:
        case Pod():
            (cache.remove_pod if gone else cache.set_pod)(one)
        case Node():
            (cache.remove_node if gone else cache.set_node)(one)
        case UnstructuredObject():
            if gone:
                cache.remove_controller(one.metadata.uid)
            else:
                cache.set_controller(as_controller(one))
        case PodGroup():
            cache.set_pod_group(one, gone=gone)
        case PersistentVolumeClaim():
            cache.set_claim(one, gone=gone)
        case PersistentVolume():
            cache.set_volume(one, gone=gone)
        case _:
            raise AssertionError(one)


def told(cache: ClusterCache) -> list[Fact]:
    return cache.facts(NOW)


@dataclass
class Folded:
    """What somebody knows who has heard all facts. Taking one that could not be taken is an error."""

    nodes: dict[str, NodeSet] = field(default_factory=dict)
    holds: dict[str, ExternalUsageSet] = field(default_factory=dict)
    workloads: dict[str, WorkloadSet] = field(default_factory=dict)
    members: dict[str, MemberSet] = field(default_factory=dict)
    seen: dict[str, MemberStatus] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # nodes that were there: if they are back, all is told again

    def _forget_those_on(self, node: str) -> None:
        self.seen = {uid: one for uid, one in self.seen.items() if one.node != node}

    def take(self, fact: Fact) -> None:
        match fact:
            case NodeSet():
                assert self.nodes.get(fact.node) != fact
                self.nodes[fact.node] = fact
                if fact.node in self.gone:
                    self.gone.discard(fact.node)
                    self._forget_those_on(fact.node)
            case NodeGone():
                del self.nodes[fact.node]
                self.gone.add(fact.node)
                self._forget_those_on(fact.node)
            case ExternalUsageSet():
                assert self.holds.get(fact.key) != fact
                self.holds[fact.key] = fact
            case ExternalUsageGone():
                del self.holds[fact.key]
            case WorkloadSet():
                assert self.workloads.get(fact.workload) != fact
                self.workloads[fact.workload] = fact
            case WorkloadGone():
                del self.workloads[fact.workload]
                assert not any(one.workload == fact.workload for one in self.members.values())
            case MemberSet():
                assert fact.workload in self.workloads, "a member's work is told before it"
                assert self.members.get(fact.member) != fact
                assert fact.member not in self.members or self.members[fact.member].workload == fact.workload
                self.members[fact.member] = fact
            case MemberGone():
                self.members.pop(fact.member, None)
                self.seen.pop(fact.member, None)
            case MemberStatus():
                fact = replace(fact, at=0.0)
                assert self.seen.get(fact.member) != fact
                self.members.pop(fact.member, None)
                self.seen[fact.member] = fact
            case _:
                raise AssertionError(fact)

    def assert_equals(self, snapshot: Snapshot) -> None:
        assert self.nodes == {one.node: one for one in snapshot.nodes}
        assert self.holds == {one.key: one for one in snapshot.external_usage}
        assert self.members == {one.member: one for one in snapshot.members}
        assert self.workloads == {one.workload: one for one in snapshot.workloads}
        present = {one.member: replace(one, at=0.0) for one in snapshot.statuses}
        # What ran on a node that is gone went with it, and is told again only if the node is back.
        kept = {uid: one for uid, one in present.items() if one.node in self.nodes or uid in self.seen}
        assert {uid: one for uid, one in self.seen.items() if uid in kept} == kept
        assert set(self.seen) <= set(present)
