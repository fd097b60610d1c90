"""Settings of a development cluster: nodes, features, and manifests to apply after the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["DevSettings", "NodeShape"]


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The capacity of one simulated node, in Kubernetes quantities."""

    cpu: str = "8"
    memory: str = "32Gi"
    gpus: int = 0
    pods: int = 110


@dataclass(frozen=True, slots=True)
class DevSettings:
    nodes: int = 3
    cpu: int | str = 8
    memory: str = "32Gi"
    gpus: int = 0
    pods: int = 110
    zones: int = 1  # nodes are assigned to this many zones round-robin
    native_gang: bool = False  # enable Kubernetes' own gang scheduling: feature gates and API
    scheduler: bool = True  # whether to run kube-scheduler
    audit_log: bool = True
    apply: tuple[Path, ...] = ()  # manifests to apply while the cluster starts

    @property
    def shape(self) -> NodeShape:
        return NodeShape(str(self.cpu), self.memory, self.gpus, self.pods)
