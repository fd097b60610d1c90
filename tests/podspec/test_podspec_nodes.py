"""A Node as a fact."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.errors import BadRequest
from penstock.kube.types import Node
from penstock.model.constraint import TAINTS_PROPERTY, Taint, decode_taints
from penstock.podspec.nodes import (
    DEFAULT_TOPOLOGY_LEVELS,
    LEVELS_MAX,
    TopologyLevel,
    node_fact,
    parse_topology_levels,
)
from penstock.protocol.facts import Capacity, NodeSet

READY = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
ALLOCATABLE = {"cpu": "63500m", "memory": "256Gi", "pods": "110"}
RACK = TopologyLevel("rack", "example.com/rack")


def node_of(
    *,
    name: str = "n0",
    labels: dict[str, str] | None = None,
    allocatable: dict[str, str] | None = None,
    conditions: tuple[dict[str, Any], ...] = (READY,),
    **spec: Any,
) -> Node:
    raw = {
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
        "status": {"allocatable": allocatable or ALLOCATABLE, "conditions": list(conditions)},
    }
    return msgspec.convert(raw, Node)


def fact_of(node: Node) -> NodeSet:
    return node_fact(node, DEFAULT_TOPOLOGY_LEVELS)


def pool(resource: str, units: int) -> Capacity:
    return Capacity(resource, units, divisible=True)


def taints_of(fact: NodeSet) -> tuple[Taint, ...] | None:
    text = dict(fact.labels).get(TAINTS_PROPERTY)
    return None if text is None else decode_taints(text)


def test_a_plain_node_is_translated_whole() -> None:
    labels = {"topology.kubernetes.io/zone": "a", "kubernetes.io/hostname": "n0"}
    assert fact_of(node_of(labels=labels)) == NodeSet(
        node="n0",
        capacity=(pool("cpu", 63500), pool("memory", 256 << 30), pool("pods", 110)),
        topology_levels=(("zone", "a"),),
        labels=(("kubernetes.io/hostname", "n0"), ("topology.kubernetes.io/zone", "a")),
        up=True,
        why="",
    )


def test_capacity_is_the_allocatable_sorted_by_resource() -> None:
    allocatable = {
        "pods": "10",
        "nvidia.com/gpu": "8",
        "hugepages-1Gi": "0",
        "hugepages-2Mi": "4Mi",
        "ephemeral-storage": "1k",
        "memory": "1500m",
        "cpu": "1",
        "storage": "5",
    }
    expected = (
        pool("cpu", 1000),
        pool("ephemeral-storage", 1000),
        pool("hugepages-2Mi", 4 << 20),
        pool("memory", 2),
        pool("nvidia.com/gpu", 8),
        pool("pods", 10),
    )
    assert fact_of(node_of(allocatable=allocatable)).capacity == expected
    backwards = dict(reversed(allocatable.items()))
    assert fact_of(node_of(allocatable=backwards)).capacity == expected


def test_a_node_without_a_pod_capacity_has_none() -> None:
    assert fact_of(node_of(allocatable={"cpu": "1"})).capacity == (pool("cpu", 1000), pool("pods", 0))


@pytest.mark.parametrize("text", ["lots", "-1"])
def test_a_bad_quantity_is_reported_with_its_location(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        fact_of(node_of(allocatable={"cpu": "1", "memory": text}))
    assert caught.value.where == "status.allocatable[memory]"


@pytest.mark.parametrize(
    ("conditions", "up", "why"),
    [
        ((READY,), True, ""),
        (({"type": "MemoryPressure", "status": "True"}, READY), True, ""),
        (({"type": "Ready", "status": "False", "reason": "KubeletNotReady"},), False, "KubeletNotReady"),
        (
            ({"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"},),
            False,
            "NodeStatusUnknown",
        ),
        (({"type": "Ready", "status": "Unknown"},), False, "Unknown"),
        ((), False, "the kubelet has not reported the Ready condition"),
    ],
)
def test_a_node_is_up_if_its_ready_condition_is_true(
    conditions: tuple[dict[str, Any], ...], up: bool, why: str
) -> None:
    fact = fact_of(node_of(conditions=conditions))
    assert (fact.up, fact.why) == (up, f"not ready: {why}" if why else "")


def test_a_cordon_is_a_taint_and_does_not_take_a_node_down() -> None:
    cordon = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
    fact = fact_of(node_of(unschedulable=True))
    assert (fact.up, fact.why) == (True, "cordoned")
    assert taints_of(fact) == (cordon,)
    taints = [{"key": cordon.key, "effect": cordon.effect, "timeAdded": "2026-01-01T00:00:00Z"}]
    assert fact_of(node_of(unschedulable=True, taints=taints)) == fact
    assert fact_of(node_of(unschedulable=True, conditions=())).why.startswith("not ready")


def test_taints_that_keep_pods_off_are_sorted() -> None:
    taints = [
        {"key": "b", "value": "x", "effect": "NoExecute"},
        {"key": "a", "effect": "NoSchedule"},
        {"key": "c", "effect": "PreferNoSchedule"},
    ]
    fact = fact_of(node_of(taints=taints))
    assert taints_of(fact) == (Taint("a", "", "NoSchedule"), Taint("b", "x", "NoExecute"))
    assert fact_of(node_of(taints=taints[::-1])) == fact
    assert taints_of(fact_of(node_of())) is None
    assert taints_of(fact_of(node_of(taints=taints[2:]))) is None


def test_topology_levels_are_outermost_first_and_skip_missing_labels() -> None:
    topology_levels = parse_topology_levels("rack=example.com/rack")
    labels = {
        "example.com/rack": "r7",
        "topology.kubernetes.io/zone": "a",
        "topology.kubernetes.io/region": "eu",
    }
    assert node_fact(node_of(labels=labels), topology_levels).topology_levels == (
        ("region", "eu"),
        ("zone", "a"),
        ("rack", "r7"),
    )
    del labels["topology.kubernetes.io/zone"]
    labels["topology.kubernetes.io/region"] = ""
    assert node_fact(node_of(labels=labels), topology_levels).topology_levels == (("rack", "r7"),)
    assert node_fact(node_of(), topology_levels).topology_levels == ()


def test_a_heartbeat_changes_nothing() -> None:
    def beat(at: str) -> Node:
        times = {"lastHeartbeatTime": at, "lastTransitionTime": at, "message": at}
        node = node_of(labels={"b": "1", "a": "2"}, conditions=({**READY, **times},))
        metadata = msgspec.structs.replace(node.metadata, resource_version=at, annotations={"at": at})
        return msgspec.structs.replace(node, metadata=metadata)

    assert fact_of(beat("2026-01-01T00:00:00Z")) == fact_of(beat("2026-01-01T00:00:10Z"))
    assert hash(fact_of(beat("a"))) == hash(fact_of(beat("b")))


@pytest.mark.parametrize(
    ("text", "topology_levels"),
    [
        ("", ()),
        ("  ", ()),
        ("rack=example.com/rack", (RACK,)),
        (
            " block = example.com/block , rack=example.com/rack",
            (TopologyLevel("block", "example.com/block"), RACK),
        ),
        ("row=row", (TopologyLevel("row", "row"),)),
    ],
)
def test_configured_topology_levels_follow_region_and_zone(
    text: str, topology_levels: tuple[TopologyLevel, ...]
) -> None:
    assert parse_topology_levels(text) == DEFAULT_TOPOLOGY_LEVELS + topology_levels


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("rack", "not a topology level"),
        ("rack=a,", "not a topology level"),
        ("=example.com/rack", "invalid name of a topology level"),
        ("Rack=example.com/rack", "invalid name of a topology level"),
        ("node=example.com/node", "invalid name of a topology level"),
        ("cpu=example.com/cpu", "invalid name of a topology level"),
        ("rack=", "invalid label key"),
        ("rack=example.com/a/b", "invalid label key"),
        ("rack=a=b", "invalid label key"),
        ("rack=a,rack=b", "duplicate topology level"),
        ("rack=a,row=a", "duplicate topology level"),
        ("zone=example.com/zone", "duplicate topology level"),
        (",".join(f"l{number}=l{number}" for number in range(LEVELS_MAX)), "too many topology levels"),
    ],
)
def test_invalid_topology_levels_are_rejected(text: str, summary: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_topology_levels(text)
    assert (caught.value.summary, caught.value.where) == (summary, "kube.topology_levels")
    assert caught.value.found
    assert caught.value.expected
