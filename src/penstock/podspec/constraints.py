"""On which nodes a pod may run, as a constraint, and which of its requirements are not supported.

Node selector, required node affinity, tolerations and the node affinity of bound volumes become one
constraint. A requirement that cannot be expressed as a constraint on single nodes is a problem: the pod is
not scheduled, since ignoring a requirement would break what the user relies on. Preferred node affinity
becomes weighted constraints; other preferences (preferred pod affinity, `ScheduleAnyway`, `PreferNoSchedule`)
are ignored by design, and attach limits of CSI drivers are not counted.

Required anti-affinity to pods with the pod's own labels, on the host name, is the usual way to request one
pod per node. It becomes `distinct_nodes` within the pod's group, and a resource beyond the group
(`anti_affinity`). Two nodes with the same host name label count as two. Other required relations to pods
are not supported.

Pods of one template yield equal values, mostly the same object, so that equal requests are recognised
quickly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from penstock.kube import types
from penstock.kube.types import PersistentVolume, PersistentVolumeClaim, Pod
from penstock.model.constraint import (
    And,
    Constraint,
    HostIn,
    Not,
    Or,
    Tolerates,
    Toleration,
    TolerationOperator,
    Value,
    ValueOperator,
)
from penstock.podspec.anti_affinity import rule_of
from penstock.podspec.problems import UNSUPPORTED_SPEC, VOLUME_NOT_READY, PodProblem

__all__ = ["Requirements", "VolumeLookup", "requirements_of"]

_BOUND_ANNOTATION: Final = "pv.kubernetes.io/bind-completed"
_ONCE_POD: Final = "ReadWriteOncePod"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_ZONE_SEPARATOR: Final = "__"
_ZONE_KEYS: Final = {  # label of a volume -> label that a node may have in its place
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "",
    "topology.kubernetes.io/region": "",
}
_LABEL_VALUE: Final = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_INTEGER: Final = re.compile(r"[0-9]{1,63}")
_INTEGER_MAX: Final = 2**63 - 1
_OPERATORS: Final = {operator.value: operator for operator in ValueOperator}
_TOLERATION_OPERATORS: Final = {
    "": TolerationOperator.EQUAL,
    "Equal": TolerationOperator.EQUAL,
    "Exists": TolerationOperator.EXISTS,
}
_NOWHERE: Final = Not(())


class VolumeLookup(Protocol):
    """Finds claims and volumes by name."""

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None: ...

    def volume(self, name: str) -> PersistentVolume | None: ...


@dataclass(frozen=True, slots=True)
class Requirements:
    constraint: Constraint
    distinct_nodes: bool = False  # no two pods of its group on one node
    problems: tuple[PodProblem, ...] = ()  # what is not supported first
    prefers: tuple[tuple[Constraint, int], ...] = ()  # nodes to use first, with weights


def requirements_of(pod: Pod, volumes: VolumeLookup) -> Requirements:
    spec = pod.spec
    if not (
        spec.node_selector
        or spec.affinity
        or spec.topology_spread_constraints
        or spec.resource_claims
        or any(_has_claim(volume) for volume in spec.volumes or ())
    ):
        return _only_tolerations(spec.tolerations or ())
    parts: list[Constraint] = [
        Value(key, ValueOperator.IN, (value,)) for key, value in sorted((spec.node_selector or {}).items())
    ]
    affinity = spec.affinity
    preferred: tuple[types.PreferredSchedulingTerm, ...] = ()
    if affinity is not None and affinity.node_affinity is not None:
        required, preferred = affinity.node_affinity.required, affinity.node_affinity.preferred or ()
        if required is not None:
            parts.append(_affinity(_term(term) for term in required.node_selector_terms))
    parts.append(_tolerates(spec.tolerations or ()))
    distinct_nodes, problems = _pod_relations(pod)
    problems += _unsupported(pod)
    not_ready: list[PodProblem] = []
    for name in _claims(pod):
        found = _claim_constraints(pod.metadata.namespace, name, volumes)
        if isinstance(found, PodProblem):
            (problems if found.reason == UNSUPPORTED_SPEC else not_ready).append(found)
        else:
            parts += found
    constraint = _interned(_all_of(parts))
    return Requirements(constraint, distinct_nodes, (*problems, *not_ready), _preferences(preferred))


@lru_cache(maxsize=1024)
def _only_tolerations(tolerations: tuple[types.PodToleration, ...]) -> Requirements:
    return Requirements(_tolerates(tolerations))


@lru_cache(maxsize=4096)
def _interned(constraint: Constraint) -> Constraint:
    """The first of equal constraints, so that thousands of pods share one tree."""
    return constraint


@lru_cache(maxsize=1024)
def _tolerates(tolerations: tuple[types.PodToleration, ...]) -> Tolerates:
    """Sorted and without duplicates, and without tolerations that tolerate no taint which keeps pods off."""
    kept = {
        Toleration(
            toleration.key,
            operator,
            "" if operator is TolerationOperator.EXISTS else toleration.value,
            toleration.effect,
        )
        for toleration in tolerations
        if (operator := _TOLERATION_OPERATORS.get(toleration.operator)) is not None
        and toleration.effect != "PreferNoSchedule"
    }
    return Tolerates(tuple(sorted(kept, key=lambda t: (t.key, t.operator.value, t.value, t.effect))))


@lru_cache(maxsize=1024)
def _preferences(terms: tuple[types.PreferredSchedulingTerm, ...]) -> tuple[tuple[Constraint, int], ...]:
    """Preferred node affinity, the greatest weight first. A term that matches no node says nothing."""
    tests = [(_term(one.preference), one.weight) for one in terms]
    found = [(test, weight) for test, weight in tests if test is not None and weight > 0]
    return tuple(sorted(found, key=lambda one: -one[1]))


# Node selector terms


def _term(term: types.NodeSelectorTerm, *, has_fields: bool = True) -> Constraint | None:
    """A term of a node selector; None if it matches no node.

    As in Kubernetes, an empty term matches nothing, and so does a term with an invalid requirement.
    `has_fields` is False for the terms of a volume, which Kubernetes tests on labels only.
    """
    if not term.match_expressions and not term.match_fields:
        return None
    parts: list[Constraint] = []
    for expression in term.match_expressions or ():
        test = _label_test(expression)
        if test is None:
            return None
        parts.append(test)
    for requirement in term.match_fields or ():
        named = _name_test(requirement)
        if named is None:
            return None
        if has_fields:
            parts.append(named)
    return _all_of(parts)


def _label_test(requirement: types.SelectorRequirement) -> Value | None:
    operator = _OPERATORS.get(requirement.operator)
    values = requirement.values or ()
    match operator:
        case None:
            return None
        case ValueOperator.IN | ValueOperator.NOT_IN:
            is_good = bool(values)
        case ValueOperator.EXISTS | ValueOperator.DOES_NOT_EXIST:
            is_good = not values
        case ValueOperator.GT | ValueOperator.LT:
            is_good = len(values) == 1 and _is_integer(values[0])
    if not is_good or not all(_LABEL_VALUE.fullmatch(value) for value in values):
        return None
    return Value(requirement.key, operator, values)


def _is_integer(text: str) -> bool:
    """Without a sign, since Kubernetes accepts only values that a label can have."""
    return _INTEGER.fullmatch(text) is not None and int(text) <= _INTEGER_MAX


def _name_test(requirement: types.SelectorRequirement) -> Constraint | None:
    values = requirement.values or ()
    if requirement.key != "metadata.name" or len(values) != 1:
        return None
    names = HostIn(frozenset(values))
    match requirement.operator:
        case "In":
            return names
        case "NotIn":
            return Not((names,))
    return None


def _affinity(terms: Iterable[Constraint | None]) -> Constraint:
    """Always alternatives, also if there is one: a refusal tells node affinity from a node selector so."""
    alternatives = tuple(dict.fromkeys(term for term in terms if term is not None))
    return Or(alternatives or (_NOWHERE,))


def _all_of(parts: Iterable[Constraint]) -> Constraint:
    operands = tuple(dict.fromkeys(parts))
    return operands[0] if len(operands) == 1 else And(operands)


# Volumes


def _has_claim(volume: types.Volume) -> bool:
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None


def _claims(pod: Pod) -> list[str]:
    return list(
        dict.fromkeys(
            volume.persistent_volume_claim.claim_name
            for volume in pod.spec.volumes or ()
            if volume.persistent_volume_claim is not None
        )
    )


def _claim_constraints(namespace: str, name: str, volumes: VolumeLookup) -> list[Constraint] | PodProblem:
    """On which nodes the volume of a claim can be used, or why the claim cannot be used."""
    claim = volumes.claim(namespace, name)
    where = f"PersistentVolumeClaim {name}"
    if claim is None:
        return PodProblem(VOLUME_NOT_READY, f"{where} does not exist")
    if claim.metadata.deletion_timestamp is not None:
        return PodProblem(VOLUME_NOT_READY, f"{where} is being deleted")
    if claim.status.phase == "Lost":
        return PodProblem(VOLUME_NOT_READY, f"{where} has lost its volume (phase Lost)")
    if _ONCE_POD in claim.spec.access_modes:
        text = f"{where}: access mode {_ONCE_POD} is not supported; use ReadWriteOnce"
        return PodProblem(UNSUPPORTED_SPEC, text)
    if not claim.spec.volume_name or _BOUND_ANNOTATION not in (claim.metadata.annotations or {}):
        text = (
            f"{where} is not bound to a volume, and Penstock does not bind claims; "
            "use a StorageClass with volumeBindingMode Immediate"
        )
        return PodProblem(VOLUME_NOT_READY, text)
    volume = volumes.volume(claim.spec.volume_name)
    if volume is None:
        text = f"PersistentVolume {claim.spec.volume_name} of {where} does not exist"
        return PodProblem(VOLUME_NOT_READY, text)
    return _volume_constraints(volume)


def _volume_constraints(volume: PersistentVolume) -> list[Constraint]:
    parts: list[Constraint] = []
    affinity = volume.spec.node_affinity
    if affinity is not None and affinity.required is not None:
        terms = affinity.required.node_selector_terms
        parts.append(_affinity(_term(term, has_fields=False) for term in terms))
    labels = volume.metadata.labels or {}
    zones = [_zone_test(key, labels[key]) for key in _ZONE_KEYS if key in labels]
    tests = [test for test in zones if test is not None]
    if tests:
        unzoned = And(tuple(Value(key, ValueOperator.DOES_NOT_EXIST) for key in _ZONE_KEYS))
        parts.append(Or((_all_of(tests), unzoned)))
    return parts


def _zone_test(key: str, joined: str) -> Constraint | None:
    """That a node is in one of a volume's zones; None if the label names an empty zone."""
    zones = tuple(sorted({zone.strip() for zone in joined.split(_ZONE_SEPARATOR)}))
    if "" in zones:
        return None
    test = Value(key, ValueOperator.IN, zones)
    alternative = _ZONE_KEYS[key]
    if not alternative:
        return test
    absent = Value(key, ValueOperator.DOES_NOT_EXIST)
    return Or((test, And((absent, Value(alternative, ValueOperator.IN, zones)))))


# What is not supported


def _unsupported(pod: Pod) -> list[PodProblem]:
    spec = pod.spec
    texts = [
        f"spec.topologySpreadConstraints[{index}] ({spread.topology_key}): DoNotSchedule is not supported; "
        "use ScheduleAnyway"
        for index, spread in enumerate(spec.topology_spread_constraints or ())
        if spread.when_unsatisfiable != "ScheduleAnyway"
    ]
    texts += [
        f"spec.resourceClaims[{index}] ({claim.name}): resource claims are not supported; "
        "request an extended resource"
        for index, claim in enumerate(spec.resource_claims or ())
    ]
    texts += [
        f"spec.volumes[{index}] ({volume.name}): generic ephemeral volumes are not supported; "
        "use a PersistentVolumeClaim that is bound"
        for index, volume in enumerate(spec.volumes or ())
        if volume.ephemeral is not None
    ]
    return [PodProblem(UNSUPPORTED_SPEC, text) for text in texts]


def _pod_relations(pod: Pod) -> tuple[bool, list[PodProblem]]:
    """Whether a pod has anti-affinity to its own labels, and its other required relations to pods."""
    affinity = pod.spec.affinity
    if affinity is None:
        return False, []
    problems: list[PodProblem] = []
    if affinity.pod_affinity is not None:
        for index, term in enumerate(affinity.pod_affinity.required or ()):
            where = _term_path("podAffinity", index, term)
            text = f"{where}: required pod affinity is not supported; use preferred affinity"
            problems.append(PodProblem(UNSUPPORTED_SPEC, text))
    distinct_nodes = False
    if affinity.pod_anti_affinity is not None:
        for index, term in enumerate(affinity.pod_anti_affinity.required or ()):
            if _excludes_own_labels(pod, term):
                distinct_nodes = True
                continue
            where = _term_path("podAntiAffinity", index, term)
            text = (
                f"{where}: required anti-affinity is supported only with topologyKey kubernetes.io/hostname, "
                "in the pod's namespace, and with a selector that matches the pod's own labels"
            )
            problems.append(PodProblem(UNSUPPORTED_SPEC, text))
    return distinct_nodes, problems


def _term_path(relation: str, index: int, term: types.PodAffinityTerm) -> str:
    return f"spec.affinity.{relation}.{_REQUIRED}[{index}] (topologyKey {term.topology_key})"


def _excludes_own_labels(pod: Pod, term: types.PodAffinityTerm) -> bool:
    rule = rule_of(pod.metadata.namespace, term)
    return rule is not None and rule.selects(pod.metadata.labels or {})
