"""Pods that keep others off their nodes: required anti-affinity on the host name, as kinds that nodes have.

A *rule* is a namespace and a label selector. Pods *carry* it (it stands in a required anti-affinity term of
theirs) or are *selected* by it, or both. No pod that it selects may be beside one that carries it, whoever
came first; pods that are only selected do not mind each other. So every node has `SPAN` units of a kind that
is the rule's own: whoever carries it uses all of them, whoever is only selected uses one, and the engine
chooses as it does with anything else that is scarce.

Within one work distinct nodes say the same, and most rules are about one work: each Job can have a rule about
its own name. A rule has its kind only while it *crosses*: while those who carry it or are selected by it
belong to at least two groups. A group is a work of ours; all pods on nodes that are not ours are one more.

What follows is a function of the pods that are known, whatever came before. Rules that select a pod are found
by one label that each of them asks for (its *anchor*), so pods with other labels cost nothing; only a rule
that asks for no label by value is tried on every pod of its namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.kube.types import Pod
from penstock.podspec.anti_affinity import Rule, Test, kind_of, rules_of

__all__ = ["FOREIGN", "SPAN", "AntiAffinity"]

SPAN: Final = 1024  # more than any node has pods
FOREIGN: Final = ""  # the group of all pods on nodes that are not ours

_UNUSED_KEYS_MAX: Final = 16  # label keys that are kept in order although no rule asks for them


@dataclass(eq=False, slots=True)
class _Kept:
    """A rule that somebody carries, and all whom it is about."""

    rule: Rule
    kind: str
    anchor: Test | None  # the label that all selected pods have
    pods: dict[str, int] = field(default_factory=dict)  # units that each uses while it crosses
    carriers: int = 0
    groups: dict[str, int] = field(default_factory=dict)  # pods of each
    crosses: bool = False


@dataclass(eq=False, slots=True)
class _Party:
    """A pod that is on a node or wants to be."""

    namespace: str
    labels: Mapping[str, str]
    group: str
    carries: tuple[Rule, ...]
    rules: dict[Rule, _Kept] = field(default_factory=dict)  # those that it carries or that select it

    def says_the_same(self, other: _Party) -> bool:
        return (self.labels, self.group, self.carries) == (other.labels, other.group, other.carries)


@dataclass(eq=False, slots=True)
class _Key:
    """Pods by the values of a label that rules are anchored at."""

    pods: dict[str, dict[str, None]] = field(default_factory=dict)  # by value
    rules: dict[str, dict[Rule, _Kept]] = field(default_factory=dict)  # by value

    def put(self, uid: str, value: str) -> None:
        self.pods.setdefault(value, {})[uid] = None

    def drop(self, uid: str, value: str) -> None:
        del self.pods[value][uid]
        if not self.pods[value]:
            del self.pods[value]


@dataclass(eq=False, slots=True)
class _Namespace:
    parties: dict[str, _Party] = field(default_factory=dict)
    keys: dict[str, _Key] = field(default_factory=dict)
    loose: dict[Rule, _Kept] = field(default_factory=dict)  # rules without an anchor


class AntiAffinity:
    def __init__(self) -> None:
        self._parties: dict[str, _Party] = {}
        self._namespaces: dict[str, _Namespace] = {}
        self._rules: dict[Rule, _Kept] = {}
        self._crossing: dict[str, int] = {}
        self._unused: dict[tuple[str, str], None] = {}  # namespaces and keys that no rule is anchored at
        self._dirty: dict[str, None] = {}

    def kinds(self) -> dict[str, int]:
        """What each node has of the kinds of all rules that cross."""
        return dict(self._crossing)

    def amounts(self, uid: str) -> list[tuple[str, int]]:
        """What a pod uses of them."""
        party = self._parties.get(uid)
        rules = party.rules.values() if party is not None else ()
        return [(kept.kind, kept.pods[uid]) for kept in rules if kept.crosses]

    def take_dirty(self) -> Iterable[str]:
        """Pods that may use something else of them than they did at the last call."""
        dirty, self._dirty = self._dirty, {}
        return dirty

    def note(self, uid: str, pod: Pod | None, group: str) -> None:
        """A pod as it is; None: it is on no node, and will not be."""
        before = self._parties.get(uid)
        if pod is None:
            if before is not None:
                self._leave(uid, before)
            return
        labels = pod.metadata.labels or {}
        party = _Party(pod.metadata.namespace, labels, group, tuple(rules_of(pod)))
        if before is None:
            self._join(uid, party)
        elif not before.says_the_same(party):
            self._leave(uid, before)
            self._join(uid, party)

    def _join(self, uid: str, party: _Party) -> None:
        here = self._namespaces.setdefault(party.namespace, _Namespace())
        self._parties[uid] = here.parties[uid] = party
        found = list(here.loose.values())
        for name, value in party.labels.items() if here.keys else ():
            key = here.keys.get(name)
            if key is not None:
                key.put(uid, value)
                found.extend(key.rules.get(value, {}).values())
        for kept in found:
            if kept.rule.selects(party.labels):
                self._enter(kept, uid, party, 1)
        for rule in party.carries:
            self._enter(self._rules.get(rule) or self._begin(rule, here), uid, party, SPAN)

    def _leave(self, uid: str, party: _Party) -> None:
        here = self._namespaces[party.namespace]
        for name, value in party.labels.items() if here.keys else ():
            key = here.keys.get(name)
            if key is not None:
                key.drop(uid, value)
        for kept in party.rules.values():
            if kept.pods.pop(uid) == SPAN:
                kept.carriers -= 1
            kept.groups[party.group] -= 1
            if not kept.groups[party.group]:
                del kept.groups[party.group]
            self._look_at(kept)
            if not kept.carriers:
                self._end(kept, here)
        del self._parties[uid], here.parties[uid]
        if not here.parties:
            del self._namespaces[party.namespace]
            for name in here.keys:
                self._unused.pop((party.namespace, name), None)

    def _enter(self, kept: _Kept, uid: str, party: _Party, units: int) -> None:
        before = kept.pods.get(uid, 0)
        kept.pods[uid] = max(before, units)
        if units == SPAN and before != SPAN:
            kept.carriers += 1
        if not before:
            party.rules[kept.rule] = kept
            kept.groups[party.group] = kept.groups.get(party.group, 0) + 1
        self._look_at(kept)

    def _look_at(self, kept: _Kept) -> None:
        crosses = kept.carriers > 0 and len(kept.groups) > 1
        if crosses == kept.crosses:
            return
        kept.crosses = crosses
        self._dirty.update(dict.fromkeys(kept.pods))
        if crosses:
            self._crossing[kept.kind] = SPAN
        else:
            del self._crossing[kept.kind]

    # Rules that are carried by somebody, or by nobody any more

    def _begin(self, rule: Rule, here: _Namespace) -> _Kept:
        by_value = [test for test in rule.tests if test[1] == "In"]
        anchor = min(by_value, key=lambda test: (len(test[2]), test[0]), default=None)
        kept = self._rules[rule] = _Kept(rule, kind_of(rule), anchor)
        candidates: Iterable[str] = here.parties
        if anchor is None:
            here.loose[rule] = kept
        else:
            name, _, values = anchor
            key = here.keys.get(name) or self._index(name, here)
            self._unused.pop((rule.namespace, name), None)
            for value in values:
                key.rules.setdefault(value, {})[rule] = kept
            candidates = [uid for value in values for uid in key.pods.get(value, ())]
        for uid in candidates:
            party = here.parties[uid]
            if rule.selects(party.labels):
                self._enter(kept, uid, party, 1)
        return kept

    def _index(self, name: str, here: _Namespace) -> _Key:
        key = here.keys[name] = _Key()
        for uid, party in here.parties.items():
            value = party.labels.get(name)
            if value is not None:
                key.put(uid, value)
        return key

    def _end(self, kept: _Kept, here: _Namespace) -> None:
        rule = kept.rule
        del self._rules[rule]
        for uid in kept.pods:
            del here.parties[uid].rules[rule]
        if kept.anchor is None:
            del here.loose[rule]
            return
        name, _, values = kept.anchor
        rules = here.keys[name].rules
        for value in values:
            del rules[value][rule]
            if not rules[value]:
                del rules[value]
        if not rules:
            self._unused[(rule.namespace, name)] = None
            self._sweep()

    def _sweep(self) -> None:
        """Forgets the keys that no rule asks for, when they are many: the same are mostly asked for again."""
        if len(self._unused) > _UNUSED_KEYS_MAX:
            for namespace, name in self._unused:
                del self._namespaces[namespace].keys[name]
            self._unused.clear()
