"""What a local cluster looks like, and how long its driver waits for what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.errors import BadRequest

__all__ = ["LocalSettings"]

_NODES_MAX = 1024


@dataclass(frozen=True, slots=True)
class LocalSettings:
    nodes: int = 1
    cores_per_node: int = 1
    gpus_per_node: int = 0
    return_within_s: float = 30.0  # an agent that is away for longer has lost its tasks: they are ended
    snapshot_within_s: float = 10.0  # who has not answered by then is told as down
    answer_within_s: float = 5.0  # an agent that is silent is asked; one that does not answer is replaced
    bind: bool = False  # tasks run only on the cores they got; not where nodes have more than the machine
    tasks_max: int = 10_000  # that one agent knows at once
    agent_environment: Mapping[str, str] = field(default_factory=dict)  # beside ours

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= _NODES_MAX:
            raise BadRequest(
                "a bad number of nodes", where="nodes", found=str(self.nodes), expected=f"1 to {_NODES_MAX}"
            )
        if self.cores_per_node < 1 or self.gpus_per_node < 0:
            raise BadRequest("a node needs a core", where="cores_per_node", found=str(self.cores_per_node))

    def node(self, rank: int) -> str:
        return f"node{rank}"
