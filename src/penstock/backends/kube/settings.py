"""What an operator configures about a Kubernetes cluster: the translation, and the load on the API server."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.podspec.settings import TranslationSettings

__all__ = ["KubeSettings"]


@dataclass(frozen=True, slots=True)
class KubeSettings(TranslationSettings):
    binds_in_flight_max: int = 64
    controller_wait_s: float = 2.0  # how long the watch may lag behind before a pod's owner is read by itself
    condition_interval_s: float = 15.0  # between two conditions of one pod that differ only in the start time
    status_writes_per_s: float = 300.0  # conditions and events of all pods together
