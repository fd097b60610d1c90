"""The anti-affinity rules on the host name that concern each pod, as exclusion keys.

Which keys a pod brings and forbids because of a rule is defined in `penstock.podspec.exclusion_keys`. Within
one group `distinct_nodes` has the same effect, and most rules concern one group: each Job can have a rule
about its own name. Pods have the keys of a rule only while it is *shared*: while the pods that carry it or
are selected by it belong to at least two groups, so that equal Jobs have equal requests. A group is a
workload of ours; all external pods form one more.

The result is a function of the tracked pods alone, not of the order of their changes. The rules that select
a pod are found by one label that the rule requires by value (its *anchor*), so that pods with other labels
cost nothing; only a rule without such a label is tested on every pod of its namespace.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from penstock.kube.types import Pod
from penstock.model.exclusion_key import ExclusionKey
from penstock.podspec.anti_affinity import AntiAffinityRule, LabelTest, rules_of
from penstock.podspec.exclusion_keys import carrier_key, selected_key
from penstock.podspec.problems import LIMIT_EXCEEDED, PodProblem

__all__ = ["EXTERNAL_PODS", "AntiAffinityTracker"]

EXTERNAL_PODS: Final = ""  # the group of all pods that are on nodes and not ours

_RETRIED_MAX: Final = 8  # refused pods that are tried again when a rule is gone
_UNUSED_INDEXES_MAX: Final = 16  # label indexes that are kept although no rule is anchored at them


class _Relation(enum.Flag):
    """Of a pod to a rule."""

    SELECTED = enum.auto()
    CARRIES = enum.auto()


@dataclass(eq=False, slots=True)
class _TrackedRule:
    """A rule that at least one pod carries, and the pods that carry it or are selected by it."""

    rule: AntiAffinityRule
    anchor: LabelTest | None  # a label that all selected pods have
    pods: dict[str, _Relation] = field(default_factory=dict)
    carriers: int = 0
    groups: dict[str, int] = field(default_factory=dict)  # group -> number of its pods
    is_shared: bool = False


@dataclass(eq=False, slots=True)
class _TrackedPod:
    namespace: str
    labels: Mapping[str, str]
    group: str
    carries: tuple[AntiAffinityRule, ...]
    rules: dict[AntiAffinityRule, _TrackedRule] = field(default_factory=dict)  # carried or selecting

    def is_equivalent(self, other: _TrackedPod) -> bool:
        return (self.labels, self.group, self.carries) == (other.labels, other.group, other.carries)


@dataclass(eq=False, slots=True)
class _LabelIndex:
    """The pods and the anchored rules of a namespace, by the value of one label."""

    pods: dict[str, dict[str, None]] = field(default_factory=dict)
    rules: dict[str, dict[AntiAffinityRule, _TrackedRule]] = field(default_factory=dict)

    def add(self, uid: str, value: str) -> None:
        self.pods.setdefault(value, {})[uid] = None

    def remove(self, uid: str, value: str) -> None:
        del self.pods[value][uid]
        if not self.pods[value]:
            del self.pods[value]


@dataclass(eq=False, slots=True)
class _Namespace:
    pods: dict[str, _TrackedPod] = field(default_factory=dict)
    indexes: dict[str, _LabelIndex] = field(default_factory=dict)  # by label key
    unanchored: dict[AntiAffinityRule, _TrackedRule] = field(default_factory=dict)


class AntiAffinityTracker:
    def __init__(self, rules_max: int = 200) -> None:
        self._rules_max = rules_max
        self._refused: dict[str, PodProblem] = {}  # by pod
        self._refused_in: dict[str, dict[str, None]] = {}  # by namespace: pods that may be tried again
        self._retries: dict[str, None] = {}  # pods
        self._pods: dict[str, _TrackedPod] = {}
        self._namespaces: dict[str, _Namespace] = {}
        self._rules: dict[AntiAffinityRule, _TrackedRule] = {}
        self._unused: dict[tuple[str, str], None] = {}  # namespace and label key of indexes without a rule
        self._dirty: dict[str, None] = {}

    def keys(self, uid: str) -> tuple[list[ExclusionKey], list[ExclusionKey]]:
        """The keys that a pod brings and forbids because of shared rules."""
        brings: list[ExclusionKey] = []
        forbids: list[ExclusionKey] = []
        pod = self._pods.get(uid)
        for tracked in pod.rules.values() if pod is not None else ():
            if tracked.is_shared and _Relation.CARRIES in tracked.pods[uid]:
                brings.append(carrier_key(tracked.rule))
                forbids.append(selected_key(tracked.rule))
            if tracked.is_shared and _Relation.SELECTED in tracked.pods[uid]:
                brings.append(selected_key(tracked.rule))
                forbids.append(carrier_key(tracked.rule))
        return brings, forbids

    def take_dirty(self) -> Iterable[str]:
        """Pods whose keys may have changed since the last call."""
        dirty, self._dirty = self._dirty, {}
        return dirty

    def set(self, uid: str, pod: Pod, group: str) -> None:
        before = self._pods.get(uid)
        labels = pod.metadata.labels or {}
        tracked = _TrackedPod(pod.metadata.namespace, labels, group, self._carried_rules(uid, pod))
        if before is None:
            self._add(uid, tracked)
        elif not before.is_equivalent(tracked):
            self._remove(uid, before)
            self._add(uid, tracked)

    def problem(self, uid: str) -> PodProblem | None:
        """Why the rules of a waiting pod are not tracked."""
        return self._refused.get(uid)

    def _carried_rules(self, uid: str, pod: Pod) -> tuple[AntiAffinityRule, ...]:
        """The rules of a pod. A waiting pod with too many is refused, and none of them is tracked.

        A rule without an anchor is tested on every pod of its namespace, so the limit holds for those of all
        waiting pods of the namespace together.
        """
        self._forget_refusal(uid, pod.metadata.namespace)
        rules = tuple(rules_of(pod))
        if pod.spec.node_name or not rules:
            return rules
        most, namespace = self._rules_max, self._namespaces.get(pod.metadata.namespace)
        if len(rules) > most:
            self._refused[uid] = PodProblem(
                LIMIT_EXCEEDED,
                f"the pod has {len(rules)} required anti-affinity terms, "
                f"at most {most} (limits.exclusion_keys_max)",
            )
            return ()
        known = namespace.unanchored if namespace is not None else {}
        fresh = sum(1 for rule in rules if rule not in known and _anchor_of(rule) is None)
        if fresh and len(known) + fresh > most:
            self._refused[uid] = PodProblem(
                LIMIT_EXCEEDED,
                f"the pods of namespace {pod.metadata.namespace} have {len(known)} anti-affinity rules that "
                f"require no label by value, with this pod {len(known) + fresh}, at most {most} "
                "(limits.exclusion_keys_max)",
            )
            self._refused_in.setdefault(pod.metadata.namespace, {})[uid] = None
            return ()
        return rules

    def _forget_refusal(self, uid: str, namespace: str) -> None:
        self._retries.pop(uid, None)
        if self._refused.pop(uid, None) is not None and uid in self._refused_in.get(namespace, ()):
            del self._refused_in[namespace][uid]
            if not self._refused_in[namespace]:
                del self._refused_in[namespace]

    def take_retries(self) -> Iterable[str]:
        """Refused pods that are to be set again, because rules of others are gone."""
        retries, self._retries = self._retries, {}
        return retries

    def remove(self, uid: str) -> None:
        before = self._pods.get(uid)
        if before is not None:
            self._forget_refusal(uid, before.namespace)
            self._remove(uid, before)

    def _add(self, uid: str, pod: _TrackedPod) -> None:
        namespace = self._namespaces.setdefault(pod.namespace, _Namespace())
        self._pods[uid] = namespace.pods[uid] = pod
        candidates = list(namespace.unanchored.values())
        for key, value in pod.labels.items() if namespace.indexes else ():
            index = namespace.indexes.get(key)
            if index is not None:
                index.add(uid, value)
                candidates.extend(index.rules.get(value, {}).values())
        for tracked in candidates:
            if tracked.rule.selects(pod.labels):
                self._enter(tracked, uid, pod, _Relation.SELECTED)
        for rule in pod.carries:
            tracked = self._rules.get(rule) or self._add_rule(rule, namespace)
            self._enter(tracked, uid, pod, _Relation.CARRIES)

    def _remove(self, uid: str, pod: _TrackedPod) -> None:
        namespace = self._namespaces[pod.namespace]
        for key, value in pod.labels.items() if namespace.indexes else ():
            index = namespace.indexes.get(key)
            if index is not None:
                index.remove(uid, value)
        for tracked in pod.rules.values():
            if _Relation.CARRIES in tracked.pods.pop(uid):
                tracked.carriers -= 1
            tracked.groups[pod.group] -= 1
            if not tracked.groups[pod.group]:
                del tracked.groups[pod.group]
            self._update_shared(tracked)
            if not tracked.carriers:
                self._remove_rule(tracked, namespace)
        del self._pods[uid], namespace.pods[uid]
        if not namespace.pods:
            del self._namespaces[pod.namespace]
            for key in namespace.indexes:
                self._unused.pop((pod.namespace, key), None)

    def _enter(self, tracked: _TrackedRule, uid: str, pod: _TrackedPod, relation: _Relation) -> None:
        before = tracked.pods.get(uid)
        tracked.pods[uid] = relation if before is None else before | relation
        if relation is _Relation.CARRIES:
            tracked.carriers += 1
        if before is None:
            pod.rules[tracked.rule] = tracked
            tracked.groups[pod.group] = tracked.groups.get(pod.group, 0) + 1
        self._update_shared(tracked)

    def _update_shared(self, tracked: _TrackedRule) -> None:
        is_shared = tracked.carriers > 0 and len(tracked.groups) > 1
        if is_shared == tracked.is_shared:
            return
        tracked.is_shared = is_shared
        self._dirty.update(dict.fromkeys(tracked.pods))

    # Rules: tracked from their first carrier to their last

    def _add_rule(self, rule: AntiAffinityRule, namespace: _Namespace) -> _TrackedRule:
        anchor = _anchor_of(rule)
        tracked = self._rules[rule] = _TrackedRule(rule, anchor)
        candidates: Iterable[str] = namespace.pods
        if anchor is None:
            namespace.unanchored[rule] = tracked
        else:
            key, _, values = anchor
            index = namespace.indexes.get(key) or self._add_index(key, namespace)
            self._unused.pop((rule.namespace, key), None)
            for value in values:
                index.rules.setdefault(value, {})[rule] = tracked
            candidates = [uid for value in values for uid in index.pods.get(value, ())]
        for uid in candidates:
            pod = namespace.pods[uid]
            if rule.selects(pod.labels):
                self._enter(tracked, uid, pod, _Relation.SELECTED)
        return tracked

    def _add_index(self, key: str, namespace: _Namespace) -> _LabelIndex:
        index = namespace.indexes[key] = _LabelIndex()
        for uid, pod in namespace.pods.items():
            value = pod.labels.get(key)
            if value is not None:
                index.add(uid, value)
        return index

    def _remove_rule(self, tracked: _TrackedRule, namespace: _Namespace) -> None:
        rule = tracked.rule
        del self._rules[rule]
        for uid in tracked.pods:
            del namespace.pods[uid].rules[rule]
        if tracked.anchor is None:
            del namespace.unanchored[rule]
            self._retries.update(
                dict.fromkeys(islice(self._refused_in.get(rule.namespace, ()), _RETRIED_MAX))
            )
            return
        key, _, values = tracked.anchor
        rules = namespace.indexes[key].rules
        for value in values:
            del rules[value][rule]
            if not rules[value]:
                del rules[value]
        if not rules:
            self._unused[(rule.namespace, key)] = None
            self._drop_unused_indexes()

    def _drop_unused_indexes(self) -> None:
        """Drops indexes in batches, since most rules come back with the same label key."""
        if len(self._unused) > _UNUSED_INDEXES_MAX:
            for namespace, key in self._unused:
                del self._namespaces[namespace].indexes[key]
            self._unused.clear()


def _anchor_of(rule: AntiAffinityRule) -> LabelTest | None:
    """A label that all selected pods have, with one of few values."""
    by_value = [test for test in rule.tests if test[1] == "In"]
    return min(by_value, key=lambda test: (len(test[2]), test[0]), default=None)
