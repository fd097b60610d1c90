"""What an operator configures about the translation of Kubernetes objects."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.model.queue_rules import QueueRules, matches_any
from penstock.podspec.nodes import DEFAULT_TOPOLOGY_LEVELS, TopologyLevel

__all__ = ["TranslationSettings"]


@dataclass(frozen=True, slots=True)
class TranslationSettings:
    scheduler_names: tuple[str, ...] = ("penstock", "fluence", "fluxnetes")
    topology_levels: tuple[TopologyLevel, ...] = DEFAULT_TOPOLOGY_LEVELS
    queues: tuple[QueueRules, ...] = (QueueRules("default"),)  # the first one is the default
    default_queues: tuple[tuple[str, str], ...] = ()  # pattern of namespaces, queue; the first match counts
    group_size_max: int = 16_384  # pods of one group
    exclusion_keys_max: int = 200  # host ports and anti-affinity rules of the waiting pods of one namespace
    assembly_timeout_s: float = 3600.0  # how long a group may wait for its missing members
    limit_default_s: int | None = None  # run time to plan with where none is given; never enforced

    def queue(self, name: str) -> QueueRules:
        """The queue of that name; "" is the default one."""
        return next((one for one in self.queues if one.name == name), self.queues[0])

    def default_queue(self, namespace: str) -> str:
        """The queue of pods of a namespace that name none; "" is the default one."""
        matching = (queue for pattern, queue in self.default_queues if matches_any(namespace, (pattern,)))
        return next(matching, "")
