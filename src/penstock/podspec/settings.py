"""What an operator decides about the world of Kubernetes. Every bound has a unit in its name."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.podspec.nodes import DEFAULT_TOPOLOGY_LEVELS, TopologyLevel

__all__ = ["KubeSettings"]


@dataclass(frozen=True, slots=True)
class KubeSettings:
    scheduler_names: tuple[str, ...] = ("penstock", "fluence", "fluxnetes")
    topology_levels: tuple[TopologyLevel, ...] = DEFAULT_TOPOLOGY_LEVELS
    queues: tuple[str, ...] = ("default",)  # the names that a pod may ask for
    assembly_timeout_s: float = 3600.0  # how long a group may wait for its members
    limit_default_s: int | None = None  # planned with where nobody says how long; never enforced
    binds_in_flight_max: int = 64
    controller_wait_s: float = 2.0  # how long an owner may be unheard of, before it is asked for
    tell_every_s: float = 15.0  # how often the same pod is told something that has only drifted
    tells_per_s: float = 20.0  # all conditions and events together
