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

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from typing import Final

from penstock.kube.types import LabelSelector, Pod, PodAffinityTerm

__all__ = ["FOREIGN", "SPAN", "AntiAffinity", "Rule", "rule_of"]

SPAN: Final = 1024  # more than any node has pods
FOREIGN: Final = ""  # the group of all pods on nodes that are not ours

_HOSTNAME: Final = "kubernetes.io/hostname"
_TEXT_MAX: Final = 80
_ODD: Final = re.compile(r"[^A-Za-z0-9_./-]")  # in no label, though a selector may ask for it
_UNREADABLE: Final = re.compile(r"[^A-Za-z0-9_./=!,() -]")
_UNUSED_KEYS_MAX: Final = 16  # label keys that are kept in order although no rule asks for them

_Test = tuple[str, str, tuple[str, ...]]  # the key of a label, an operator, values in order


@dataclass(frozen=True, slots=True)
class Rule:
    namespace: str
    tests: tuple[_Test, ...]  # each once and in order, so that equal rules are equal values

    def selects(self, labels: Mapping[str, str]) -> bool:
        return all(_external_usage(test, labels) for test in self.tests)


def rule_of(namespace: str, term: PodAffinityTerm) -> Rule | None:
    """The rule in a term of a pod's anti-affinity; None if it is about other places or namespaces."""
    selector = term.label_selector
    is_here = term.namespace_selector is None and set(term.namespaces or ()) <= {namespace}
    if term.topology_key != _HOSTNAME or not is_here or selector is None:
        return None
    return Rule(namespace, _tests(selector))


def _tests(selector: LabelSelector) -> tuple[_Test, ...]:
    tests: set[_Test] = {(key, "In", (value,)) for key, value in (selector.match_labels or {}).items()}
    for one in selector.match_expressions or ():
        values = one.values or () if one.operator in ("In", "NotIn") else ()
        tests.add((one.key, one.operator, tuple(sorted(set(values)))))
    return tuple(sorted(tests))


def _external_usage(test: _Test, labels: Mapping[str, str]) -> bool:
    key, operator, values = test
    held = labels.get(key)
    match operator:
        case "In":
            return held is not None and held in values
        case "NotIn":
            return held is None or held not in values
        case "Exists":
            return held is not None
        case "DoesNotExist":
            return held is None
    return False


@lru_cache(maxsize=4096)
def _kind_of(rule: Rule) -> str:
    """`apart/<namespace>/<selector>`, the selector as people write it, and short."""
    text = ",".join(map(_shown, rule.tests)) or "*"
    is_odd = any(
        _ODD.search(word) for key, operator, values in rule.tests for word in (key, operator, *values)
    )
    if is_odd or len(text) > _TEXT_MAX:
        digest = sha256(repr(rule.tests).encode()).hexdigest()[:12]
        text = f"{_UNREADABLE.sub('?', text)[:_TEXT_MAX]}~{digest}"
    return f"apart/{rule.namespace}/{text}"


def _shown(test: _Test) -> str:
    key, operator, values = test
    match operator:
        case "In" if len(values) == 1:
            return f"{key}={values[0]}"
        case "In":
            return f"{key} in ({','.join(values)})"
        case "NotIn":
            return f"{key} notin ({','.join(values)})"
        case "Exists":
            return key
        case "DoesNotExist":
            return f"!{key}"
    return f"{key} {operator}"


@dataclass(eq=False, slots=True)
class _Kept:
    """A rule that somebody carries, and all whom it is about."""

    rule: Rule
    kind: str
    anchor: _Test | None  # the label that all selected pods have
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
        party = _Party(pod.metadata.namespace, labels, group, tuple(_carried(pod)))
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
        kept = self._rules[rule] = _Kept(rule, _kind_of(rule), anchor)
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


def _carried(pod: Pod) -> Iterable[Rule]:
    affinity = pod.spec.affinity
    if affinity is None or affinity.pod_anti_affinity is None:
        return ()
    terms = affinity.pod_anti_affinity.required or ()
    rules = (rule_of(pod.metadata.namespace, term) for term in terms)
    return dict.fromkeys(rule for rule in rules if rule is not None)
