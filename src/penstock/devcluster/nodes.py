"""Simulated nodes as documents, and the questions of when they can be used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.devcluster.commands import KWOK_LABEL
from penstock.devcluster.settings import NodeShape

__all__ = ["is_usable", "node_document"]


def node_document(
    name: str, index: int, shape: NodeShape, zone: str, labels: Mapping[str, str]
) -> dict[str, Any]:
    """A node that kwok will make Ready. `index` gives it an address of its own."""
    offers: dict[str, str] = {
        "cpu": shape.cpu,
        "memory": shape.memory,
        "pods": str(shape.pods),
        "ephemeral-storage": "100Gi",
    }
    if shape.gpus:
        offers["nvidia.com/gpu"] = str(shape.gpus)
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
            "capacity": offers,
            "allocatable": offers,
            "addresses": [
                {"type": "InternalIP", "address": address},
                {"type": "Hostname", "address": name},
            ],
        },
    }


def is_usable(node: Mapping[str, Any]) -> bool:
    """Ready, and without the taint that a new node has until the node lifecycle controller saw it Ready."""
    conditions = node.get("status", {}).get("conditions", ())
    is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    taints = node.get("spec", {}).get("taints", ())
    return is_ready and not any(one["key"].startswith("node.kubernetes.io/not-ready") for one in taints)
