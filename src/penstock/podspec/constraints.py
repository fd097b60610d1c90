"""Where a pod may go, as a constraint, and what it asks for that is not honoured.

A pod's node selector, required node affinity and tolerations, and the places of its bound volumes, become one
constraint. What cannot be said as a constraint on single nodes is a refusal: a pod that has one is left
alone and told so, since to place it all the same would break what it asks for. Preferences (preferred
affinity, `ScheduleAnyway`) are passed over by design, and limits on how many volumes a node can attach are
not counted.

Required anti-affinity to pods like itself, on the host name, is what people write to get one pod per node.
It becomes distinct nodes within the pod's group, and what `anti_affinity` makes of it beyond that. Two
nodes with the same host name label count as two. Anything else that is required of other pods is refused.

Pods of one template give equal values, and mostly the same object, so that equal requests are found quickly.
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

__all__ = ["Requirements", "VolumeLookup", "requirements_of"]

_BOUND: Final = "pv.kubernetes.io/bind-completed"
_ONE_POD: Final = "ReadWriteOncePod"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_ZONE_JOINT: Final = "__"
_ZONE_KEYS: Final = {  # by the label of a volume: what a node may have instead
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
    """What is known of claims and volumes."""

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None: ...

    def volume(self, name: str) -> PersistentVolume | None: ...


@dataclass(frozen=True, slots=True)
class Requirements:
    constraint: Constraint
    distinct_nodes: bool = False  # no two of its group on one node
    refusals: tuple[str, ...] = ()  # what it asks for and does not get, as sentences to be shown


def requirements_of(pod: Pod, volumes: VolumeLookup) -> Requirements:
    spec = pod.spec
    if not (
        spec.node_selector
        or spec.affinity
        or spec.topology_spread_constraints
        or spec.resource_claims
        or any(_has_claim(volume) for volume in spec.volumes or ())
    ):
        return _bare(spec.tolerations or ())
    parts: list[Constraint] = [
        Value(key, ValueOperator.IN, (value,)) for key, value in sorted((spec.node_selector or {}).items())
    ]
    affinity = spec.affinity
    if affinity is not None and affinity.node_affinity is not None:
        required = affinity.node_affinity.required
        if required is not None:
            parts.append(_any_of(_term(term) for term in required.node_selector_terms))
    parts.append(_tolerates(spec.tolerations or ()))
    distinct_nodes, refusals = _other_pods(pod)
    refusals += _beside_pods(pod)
    for claim in _claims(pod):
        places, refused = _claimed(pod.metadata.namespace, claim, volumes)
        parts += places
        refusals += refused
    return Requirements(_shared(_all_of(parts)), distinct_nodes, tuple(refusals))


@lru_cache(maxsize=1024)
def _bare(tolerations: tuple[types.PodToleration, ...]) -> Requirements:
    return Requirements(_tolerates(tolerations))


@lru_cache(maxsize=4096)
def _shared(constraint: Constraint) -> Constraint:
    """The first of equals: thousands of pods then have one tree in common."""
    return constraint


@lru_cache(maxsize=1024)
def _tolerates(tolerations: tuple[types.PodToleration, ...]) -> Tolerates:
    """Each once and in order. What can tolerate nothing that forbids is left out."""
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


# Nodes


def _term(term: types.NodeSelectorTerm, *, has_fields: bool = True) -> Constraint | None:
    """What a term of a node selector asks for; None if it matches nothing, as one that asks for nothing does.

    One bad requirement spoils its term. Fields are those of a node: a volume's term is tested on labels only.
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
    """Without a sign: a value with one is no value of a label, and Kubernetes takes only such."""
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


def _any_of(terms: Iterable[Constraint | None]) -> Constraint:
    alternatives = tuple(dict.fromkeys(term for term in terms if term is not None))
    if not alternatives:
        return _NOWHERE
    return alternatives[0] if len(alternatives) == 1 else Or(alternatives)


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


def _claimed(namespace: str, name: str, volumes: VolumeLookup) -> tuple[list[Constraint], list[str]]:
    """Where a claim lets its pods go, or why it lets them go nowhere."""
    claim = volumes.claim(namespace, name)
    if claim is None:
        return [], [f"volume claim {name} does not exist"]
    if claim.metadata.deletion_timestamp is not None:
        return [], [f"volume claim {name} is being deleted"]
    if claim.status.phase == "Lost":
        return [], [f"volume claim {name} has lost its volume"]
    if _ONE_POD in claim.spec.access_modes:
        text = f"volume claim {name} is for one pod at a time ({_ONE_POD}), which is not honoured"
        return [], [text]
    if not claim.spec.volume_name or _BOUND not in (claim.metadata.annotations or {}):
        text = f"volume claim {name} is not bound to a volume yet, and claims are not bound for pods here"
        return [], [text]
    volume = volumes.volume(claim.spec.volume_name)
    if volume is None:
        text = f"volume {claim.spec.volume_name} of volume claim {name} does not exist"
        return [], [text]
    return _places(volume), []


def _places(volume: PersistentVolume) -> list[Constraint]:
    parts: list[Constraint] = []
    affinity = volume.spec.node_affinity
    if affinity is not None and affinity.required is not None:
        terms = affinity.required.node_selector_terms
        parts.append(_any_of(_term(term, has_fields=False) for term in terms))
    labels = volume.metadata.labels or {}
    zones = [_zone_test(key, labels[key]) for key in _ZONE_KEYS if key in labels]
    tests = [test for test in zones if test is not None]
    if tests:
        unzoned = And(tuple(Value(key, ValueOperator.DOES_NOT_EXIST) for key in _ZONE_KEYS))
        parts.append(Or((_all_of(tests), unzoned)))
    return parts


def _zone_test(key: str, joined: str) -> Constraint | None:
    """That a node is in one of a volume's zones; None for a label that says nothing."""
    zones = tuple(sorted({zone.strip() for zone in joined.split(_ZONE_JOINT)}))
    if "" in zones:
        return None
    test = Value(key, ValueOperator.IN, zones)
    instead = _ZONE_KEYS[key]
    if not instead:
        return test
    absent = Value(key, ValueOperator.DOES_NOT_EXIST)
    return Or((test, And((absent, Value(instead, ValueOperator.IN, zones)))))


# What is not honoured


def _beside_pods(pod: Pod) -> list[str]:
    spec = pod.spec
    refusals = [
        f"spec.topologySpreadConstraints[{index}] (DoNotSchedule, on {spread.topology_key}) is not honoured"
        for index, spread in enumerate(spec.topology_spread_constraints or ())
        if spread.when_unsatisfiable != "ScheduleAnyway"
    ]
    refusals += [
        f"spec.resourceClaims[{index}] ({claim.name}) is not honoured"
        for index, claim in enumerate(spec.resource_claims or ())
    ]
    refusals += [
        f"spec.volumes[{index}] ({volume.name}) is a generic ephemeral volume, which is not honoured"
        for index, volume in enumerate(spec.volumes or ())
        if volume.ephemeral is not None
    ]
    return refusals


def _other_pods(pod: Pod) -> tuple[bool, list[str]]:
    """Whether a pod wants to be apart from its like, and what else it requires of other pods."""
    affinity = pod.spec.affinity
    if affinity is None:
        return False, []
    refusals: list[str] = []
    if affinity.pod_affinity is not None:
        for index, term in enumerate(affinity.pod_affinity.required or ()):
            refusals.append(_unhonoured("podAffinity", index, term))
    distinct_nodes = False
    if affinity.pod_anti_affinity is not None:
        for index, term in enumerate(affinity.pod_anti_affinity.required or ()):
            if _is_apart_from_itself(pod, term):
                distinct_nodes = True
            else:
                refusals.append(_unhonoured("podAntiAffinity", index, term))
    return distinct_nodes, refusals


def _unhonoured(part: str, index: int, term: types.PodAffinityTerm) -> str:
    place = f"spec.affinity.{part}.{_REQUIRED}[{index}]"
    return f"{place} (on {term.topology_key}) is not honoured"


def _is_apart_from_itself(pod: Pod, term: types.PodAffinityTerm) -> bool:
    rule = rule_of(pod.metadata.namespace, term)
    return rule is not None and rule.selects(pod.metadata.labels or {})
