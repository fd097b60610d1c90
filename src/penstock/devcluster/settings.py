"""What a development cluster shall be like: its size, its switches, what is applied to it after the start."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["DevSettings", "NodeShape"]


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What one simulated node offers; quantities as Kubernetes writes them."""

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
    zones: int = 1  # nodes are dealt out to so many zones, in turn
    native_gang: bool = False  # Kubernetes' own gang scheduling: feature gates and API
    scheduler: bool = True  # whether kube-scheduler runs
    audit_log: bool = True
    apply: tuple[Path, ...] = ()  # manifests that are applied at the end of the start

    @property
    def shape(self) -> NodeShape:
        return NodeShape(str(self.cpu), self.memory, self.gpus, self.pods)
