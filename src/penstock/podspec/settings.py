"""What an operator configures about the translation of Kubernetes objects."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.podspec.nodes import DEFAULT_TOPOLOGY_LEVELS, TopologyLevel

__all__ = ["TranslationSettings"]


@dataclass(frozen=True, slots=True)
class TranslationSettings:
    scheduler_names: tuple[str, ...] = ("penstock", "fluence", "fluxnetes")
    topology_levels: tuple[TopologyLevel, ...] = DEFAULT_TOPOLOGY_LEVELS
    queues: tuple[str, ...] = ("default",)  # the valid values of penstock.dev/queue
    assembly_timeout_s: float = 3600.0  # how long a group may wait for its missing members
    limit_default_s: int | None = None  # run time to plan with where none is given; never enforced
