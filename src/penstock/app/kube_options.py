"""Options of an instance that schedules pods: kubeconfig, leader election, audit interval."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock.backends.kube.settings import KubeSettings

__all__ = ["KubeOptions"]


@dataclass(frozen=True, slots=True)
class KubeOptions:
    kubeconfig: Path | None = None
    context: str = ""
    settings: KubeSettings = field(default_factory=KubeSettings)
    lease_namespace: str = "penstock-system"
    lease_name: str = "penstock"
    audit_every_s: float = 60.0
    progress_timeout_s: float = 60.0  # a leader whose loop is stuck for longer gives up
