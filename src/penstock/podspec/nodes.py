"""A Node as a fact: what it has, what it lies in, what is written on it.

What a node can give is its allocatable, each resource a divisible pool. Labels become properties, and the
taints that forbid become one more (`TAINTS_PROPERTY`); a cordon is such a taint, since a pod can tolerate it.
A node is down only when its kubelet does not say that it is ready: tolerations cannot make it start anything.

Nothing that changes by the clock alone is in a fact, so a heartbeat gives the same one again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadRequest
from penstock.kube.types import Node
from penstock.model.constraint import FORBIDDING_EFFECTS, TAINTS_PROPERTY, Taint, encode_taints
from penstock.podspec.pod_resources import PODS, is_counted, units_of
from penstock.protocol.facts import Capacity, NodeSet

__all__ = ["DEFAULT_TOPOLOGY_LEVELS", "LEVELS_MAX", "TopologyLevel", "node_fact", "parse_topology_levels"]

LEVELS_MAX: Final = 8

_CORDON: Final = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
_KIND: Final = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_LABEL: Final = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
_TAKEN: Final = frozenset(["cluster", "node", "slot", "cpu", "memory", "ephemeral-storage", PODS])
_FORM: Final = "kind=label, with commas between: rack=example.com/rack,block=example.com/block"


@dataclass(frozen=True, slots=True)
class TopologyLevel:
    """A kind of place that nodes lie in, and the label that says in which."""

    kind: str
    label: str


DEFAULT_TOPOLOGY_LEVELS: Final = (
    TopologyLevel("region", "topology.kubernetes.io/region"),
    TopologyLevel("zone", "topology.kubernetes.io/zone"),
)


def parse_topology_levels(text: str) -> tuple[TopologyLevel, ...]:
    """The levels of a cluster, outermost first: regions, zones, and then those that the text adds."""
    topology_levels = list(DEFAULT_TOPOLOGY_LEVELS)
    for part in text.split(",") if text.strip() else ():
        kind, equals, label = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise _bad_topology_levels("not a level", part, _FORM)
        if _KIND.fullmatch(kind) is None or kind in _TAKEN:
            raise _bad_topology_levels(
                "not a name for a level", kind, "a short word in lower case that names no resource"
            )
        if _LABEL.fullmatch(label) is None:
            raise _bad_topology_levels("not the key of a label", label, "a key such as example.com/rack")
        if any(
            kind == topology_level.kind or label == topology_level.label for topology_level in topology_levels
        ):
            raise _bad_topology_levels("the level is there already", part, "each kind and each label once")
        topology_levels.append(TopologyLevel(kind, label))
    if len(topology_levels) > LEVELS_MAX:
        raise _bad_topology_levels(
            "too many levels", str(len(topology_levels)), f"at most {LEVELS_MAX}, region and zone included"
        )
    return tuple(topology_levels)


def node_fact(node: Node, topology_levels: Sequence[TopologyLevel], extra: Mapping[str, int]) -> NodeSet:
    """What the scheduler is told of a node. `extra` is what every node has because pods ask for it.

    A quantity that cannot be read is a `BadRequest` that says where in the node it stands.
    """
    labels = node.metadata.labels or {}
    not_ready = _why_not_ready(node)
    return NodeSet(
        node=node.metadata.name,
        capacity=_capacity(node.status.allocatable or {}, extra),
        topology_levels=tuple(
            (topology_level.kind, name)
            for topology_level in topology_levels
            if (name := labels.get(topology_level.label))
        ),
        labels=_properties(labels, node),
        up=not not_ready,
        why=not_ready or ("cordoned" if node.spec.unschedulable else ""),
    )


def _capacity(allocatable: Mapping[str, str], extra: Mapping[str, int]) -> tuple[Capacity, ...]:
    """In the order of kinds. What a node has none of is left out, except that it always tells of pods."""
    units = {
        name: units_of(name, text, "status.allocatable")
        for name, text in allocatable.items()
        if name == PODS or is_counted(name)
    }
    units.update(extra)
    units.setdefault(PODS, 0)
    return tuple(
        Capacity(kind, amount, divisible=True)
        for kind, amount in sorted(units.items())
        if amount or kind == PODS
    )


def _properties(labels: Mapping[str, str], node: Node) -> tuple[tuple[str, str], ...]:
    taints = [
        Taint(taint.key, taint.value, taint.effect)
        for taint in node.spec.taints or ()
        if taint.effect in FORBIDDING_EFFECTS
    ]
    if node.spec.unschedulable:
        taints.append(_CORDON)
    properties = sorted(labels.items())
    if taints:
        properties.append((TAINTS_PROPERTY, encode_taints(taints)))
    return tuple(properties)


def _why_not_ready(node: Node) -> str:
    """Empty for a node that is ready."""
    for condition in node.status.conditions or ():
        if condition.type == "Ready":
            if condition.status == "True":
                return ""
            return f"not ready: {condition.reason or condition.status or 'no reason given'}"
    return "not ready: its kubelet has not said so"


def _bad_topology_levels(summary: str, found: str, expected: str) -> BadRequest:
    return BadRequest(summary, where="levels", found=repr(found), expected=expected)
