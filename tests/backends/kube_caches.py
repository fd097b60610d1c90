"""Mirrors for the tests: filled as the watches would, and what somebody knows who has heard them out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from penstock.backends.kube.cache import Mirror
from penstock.kube.types import (
    Deployment,
    Job,
    Node,
    Object,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
    ReplicaSet,
    StatefulSet,
)
from penstock.podspec.grouping import maker_of
from penstock.podspec.settings import KubeSettings
from penstock.protocol.facts import (
    Fact,
    HoldGone,
    HoldSet,
    MemberGone,
    MemberSet,
    NodeGone,
    NodeSet,
    Observed,
    Snapshot,
    WorkGone,
    WorkSet,
)

NOW = 2000.0
GROUP = "penstock.dev/group"
SIZE = "penstock.dev/group-size"


def mirror_of(*objects: Object) -> Mirror:
    mirror = Mirror(KubeSettings())
    for one in objects:
        put(mirror, one)
    return mirror


def put(mirror: Mirror, one: Object, *, gone: bool = False) -> None:
    """What a watch of the object's kind does."""
    match one:
        case Pod():
            (mirror.pod_gone if gone else mirror.pod_set)(one)
        case Node():
            (mirror.node_gone if gone else mirror.node_set)(one)
        case Job() | ReplicaSet() | StatefulSet() | Deployment():
            if gone:
                mirror.maker_gone(one.metadata.uid)
            else:
                mirror.maker_set(maker_of(one))
        case PodGroup():
            mirror.pod_group_set(one, gone=gone)
        case PersistentVolumeClaim():
            mirror.claim_set(one, gone=gone)
        case PersistentVolume():
            mirror.volume_set(one, gone=gone)
        case _:
            raise AssertionError(one)


def told(mirror: Mirror) -> list[Fact]:
    return mirror.facts(NOW)


@dataclass
class Folded:
    """What somebody knows who has heard all facts. Taking one that could not be taken is an error."""

    nodes: dict[str, NodeSet] = field(default_factory=dict)
    holds: dict[str, HoldSet] = field(default_factory=dict)
    works: dict[str, WorkSet] = field(default_factory=dict)
    members: dict[str, MemberSet] = field(default_factory=dict)
    seen: dict[str, Observed] = field(default_factory=dict)
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
            case HoldSet():
                assert self.holds.get(fact.hold) != fact
                self.holds[fact.hold] = fact
            case HoldGone():
                del self.holds[fact.hold]
            case WorkSet():
                assert self.works.get(fact.work) != fact
                self.works[fact.work] = fact
            case WorkGone():
                del self.works[fact.work]
                assert not any(one.work == fact.work for one in self.members.values())
            case MemberSet():
                assert fact.work in self.works, "a member's work is told before it"
                assert self.members.get(fact.member) != fact
                assert fact.member not in self.members or self.members[fact.member].work == fact.work
                self.members[fact.member] = fact
            case MemberGone():
                self.members.pop(fact.member, None)
                self.seen.pop(fact.member, None)
            case Observed():
                fact = replace(fact, at=0.0)
                assert self.seen.get(fact.member) != fact
                self.members.pop(fact.member, None)
                self.seen[fact.member] = fact
            case _:
                raise AssertionError(fact)

    def assert_equals(self, snapshot: Snapshot) -> None:
        assert self.nodes == {one.node: one for one in snapshot.nodes}
        assert self.holds == {one.hold: one for one in snapshot.holds}
        assert self.members == {one.member: one for one in snapshot.members}
        assert self.works == {one.work: one for one in snapshot.works}
        present = {one.member: replace(one, at=0.0) for one in snapshot.observations}
        # What ran on a node that is gone went with it, and is told again only if the node is back.
        kept = {uid: one for uid, one in present.items() if one.node in self.nodes or uid in self.seen}
        assert {uid: one for uid, one in self.seen.items() if uid in kept} == kept
        assert set(self.seen) <= set(present)
