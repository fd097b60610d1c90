"""Node objects for simulated nodes, and the check that a node accepts pods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.devcluster.commands import KWOK_LABEL
from penstock.devcluster.settings import NodeShape

__all__ = ["is_usable", "node_document"]


def node_document(
    name: str, index: int, shape: NodeShape, zone: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """A Node object that kwok makes Ready. `index` determines its IP address."""
    capacity: dict[str, str] = {
        "cpu": shape.cpu,
        "memory": shape.memory,
        "pods": str(shape.pods),
        "ephemeral-storage": "100Gi",
    }
    if shape.gpus:
        capacity["nvidia.com/gpu"] = str(shape.gpus)
    address = f"10.{32 + index // 65_536}.{index // 256 % 256}.{index % 256}"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/arch": "amd64",
                "kubernetes.io/os": "linux",
                "topology.kubernetes.io/zone": zone,
                KWOK_LABEL: "fake",
                **labels,
            },
        },
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": name},
            ],
        },
    }


def is_usable(node: Mapping[str, Any]) -> bool:
    """Ready, and without the not-ready taint that the node lifecycle controller removes from a new node."""
    conditions = node.get("status", {}).get("conditions", ())
    is_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
    taints = node.get("spec", {}).get("taints", ())
    return is_ready and not any(t["key"].startswith("node.kubernetes.io/not-ready") for t in taints)
