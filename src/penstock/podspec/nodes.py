"""A Node as a fact: its capacity, its topology domains, its labels and taints.

The capacity of a node is its allocatable, each resource as one divisible pool. Labels become properties,
and the taints that keep pods off become one more property (`TAINTS_PROPERTY`). A cordon counts as a taint,
since a pod can tolerate it. A node is down only while its Ready condition is not True: no toleration makes
a kubelet that is not ready start a pod.

A fact contains nothing that changes with time alone, so that a heartbeat yields an equal fact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import BadRequest
from penstock.kube.types import Node
from penstock.model.constraint import CORDON_KEY, FORBIDDING_EFFECTS, TAINTS_PROPERTY, Taint, encode_taints
from penstock.podspec.pod_resources import PODS, is_counted, units_of
from penstock.protocol.facts import Capacity, NodeSet

__all__ = ["DEFAULT_TOPOLOGY_LEVELS", "LEVELS_MAX", "TopologyLevel", "node_fact", "parse_topology_levels"]

LEVELS_MAX: Final = 8

_CORDON: Final = Taint(CORDON_KEY, "", "NoSchedule")
_LEVEL_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,30}")
_LABEL: Final = re.compile(
    r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
)
_RESERVED: Final = frozenset(["cluster", "node", "slot", "cpu", "memory", "ephemeral-storage", PODS])
_FORM: Final = "NAME=LABEL, separated by commas, such as rack=example.com/rack,block=example.com/block"


@dataclass(frozen=True, slots=True)
class TopologyLevel:
    """A level such as `rack`, and the node label whose value names the domain."""

    name: str
    label: str


DEFAULT_TOPOLOGY_LEVELS: Final = (
    TopologyLevel("region", "topology.kubernetes.io/region"),
    TopologyLevel("zone", "topology.kubernetes.io/zone"),
)


def parse_topology_levels(text: str) -> tuple[TopologyLevel, ...]:
    """The topology levels of a cluster, outermost first: region, zone, and then those in the text."""
    topology_levels = list(DEFAULT_TOPOLOGY_LEVELS)
    for part in text.split(",") if text.strip() else ():
        name, equals, label = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise _bad_topology_levels("not a topology level", part, _FORM)
        if _LEVEL_NAME.fullmatch(name) is None or name in _RESERVED:
            raise _bad_topology_levels(
                "invalid name of a topology level",
                name,
                "a lower-case word of at most 31 characters that is not the name of a resource",
            )
        if _LABEL.fullmatch(label) is None:
            raise _bad_topology_levels("invalid label key", label, "a label key such as example.com/rack")
        if any(name == one.name or label == one.label for one in topology_levels):
            raise _bad_topology_levels(
                "duplicate topology level",
                part,
                "each name and each label once; region and zone are built in",
            )
        topology_levels.append(TopologyLevel(name, label))
    if len(topology_levels) > LEVELS_MAX:
        raise _bad_topology_levels(
            "too many topology levels",
            str(len(topology_levels)),
            f"at most {LEVELS_MAX}, region and zone included",
        )
    return tuple(topology_levels)


def node_fact(node: Node, topology_levels: Sequence[TopologyLevel]) -> NodeSet:
    """A quantity that cannot be read is a `BadRequest` with its location in the node."""
    labels = node.metadata.labels or {}
    not_ready = _why_not_ready(node)
    return NodeSet(
        node=node.metadata.name,
        capacity=_capacity(node.status.allocatable or {}),
        topology_levels=tuple(
            (level.name, domain) for level in topology_levels if (domain := labels.get(level.label))
        ),
        labels=_properties(labels, node),
        up=not not_ready,
        why=not_ready or ("cordoned" if node.spec.unschedulable else ""),
    )


def _capacity(allocatable: Mapping[str, str]) -> tuple[Capacity, ...]:
    """Sorted by resource. A resource of which the node has none is left out, except `pods`."""
    units = {
        resource: units_of(resource, text, "status.allocatable")
        for resource, text in allocatable.items()
        if resource == PODS or is_counted(resource)
    }
    units.setdefault(PODS, 0)
    return tuple(
        Capacity(resource, count, divisible=True)
        for resource, count in sorted(units.items())
        if count or resource == PODS
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
    """Empty if the node is ready."""
    for condition in node.status.conditions or ():
        if condition.type == "Ready":
            if condition.status == "True":
                return ""
            return f"not ready: {condition.reason or condition.status or 'no reason given'}"
    return "not ready: the kubelet has not reported the Ready condition"


def _bad_topology_levels(summary: str, found: str, expected: str) -> BadRequest:
    return BadRequest(summary, where="kube.topology_levels", found=repr(found), expected=expected)
