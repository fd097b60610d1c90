"""Caches for the tests, filled as the watches fill them, and the sum of the facts that they yield."""

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
    """Does what the watch of the object's kind does."""
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


def new_facts(cache: ClusterCache) -> list[Fact]:
    return cache.facts(NOW)


@dataclass
class FactSum:
    """What a receiver of all facts knows. A fact that repeats or contradicts an earlier one is an error."""

    nodes: dict[str, NodeSet] = field(default_factory=dict)
    external_usage: dict[str, ExternalUsageSet] = field(default_factory=dict)
    workloads: dict[str, WorkloadSet] = field(default_factory=dict)
    members: dict[str, MemberSet] = field(default_factory=dict)
    statuses: dict[str, MemberStatus] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)  # deleted nodes; if one returns, statuses on it are repeated

    def _forget_statuses_on(self, node: str) -> None:
        self.statuses = {uid: one for uid, one in self.statuses.items() if one.node != node}

    def take(self, fact: Fact) -> None:
        match fact:
            case NodeSet():
                assert self.nodes.get(fact.node) != fact
                self.nodes[fact.node] = fact
                if fact.node in self.gone:
                    self.gone.discard(fact.node)
                    self._forget_statuses_on(fact.node)
            case NodeGone():
                del self.nodes[fact.node]
                self.gone.add(fact.node)
                self._forget_statuses_on(fact.node)
            case ExternalUsageSet():
                assert self.external_usage.get(fact.key) != fact
                self.external_usage[fact.key] = fact
            case ExternalUsageGone():
                del self.external_usage[fact.key]
            case WorkloadSet():
                assert self.workloads.get(fact.workload) != fact
                self.workloads[fact.workload] = fact
            case WorkloadGone():
                del self.workloads[fact.workload]
                assert not any(one.workload == fact.workload for one in self.members.values())
            case MemberSet():
                assert fact.workload in self.workloads, "the workload of a member is reported before it"
                assert self.members.get(fact.member) != fact
                assert fact.member not in self.members or self.members[fact.member].workload == fact.workload
                self.members[fact.member] = fact
            case MemberGone():
                self.members.pop(fact.member, None)
                self.statuses.pop(fact.member, None)
            case MemberStatus():
                fact = replace(fact, at=0.0)
                assert self.statuses.get(fact.member) != fact
                self.members.pop(fact.member, None)
                self.statuses[fact.member] = fact
            case _:
                raise AssertionError(fact)

    def assert_equals(self, snapshot: Snapshot) -> None:
        assert self.nodes == {one.node: one for one in snapshot.nodes}
        assert self.external_usage == {one.key: one for one in snapshot.external_usage}
        assert self.members == {one.member: one for one in snapshot.members}
        assert self.workloads == {one.workload: one for one in snapshot.workloads}
        present = {one.member: replace(one, at=0.0) for one in snapshot.statuses}
        # Statuses on a deleted node end with it, and are repeated only if the node returns.
        kept = {uid: one for uid, one in present.items() if one.node in self.nodes or uid in self.statuses}
        assert {uid: one for uid, one in self.statuses.items() if uid in kept} == kept
        assert set(self.statuses) <= set(present)
