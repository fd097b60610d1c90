"""The shape of a local cluster, and the timeouts of its backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import BadRequest

__all__ = ["NODES_MAX", "LocalSettings"]

NODES_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class LocalSettings:
    nodes: int = 1
    cores_per_node: int = 1
    gpus_per_node: int = 0
    memory_per_node_bytes: int = 0  # 0: nodes have no memory to request
    # After a longer disconnection the backend ends the tasks of the agent.
    agent_return_timeout_s: float = 30.0
    snapshot_timeout_s: float = 10.0  # an agent that has not connected by then is reported as down
    # A silent agent is probed; one that does not respond is replaced.
    agent_response_timeout_s: float = 5.0
    agent_stop_timeout_s: float = 10.0  # an agent that has not ended by then is killed
    bind: bool = False  # bind tasks to their cores; ignored if the nodes have more cores than the machine
    tasks_max: int = 10_000  # per agent
    # Added to the environment of the instance.
    agent_environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= NODES_MAX:
            raise BadRequest(
                "invalid number of nodes", where="nodes", found=str(self.nodes), expected=f"1 to {NODES_MAX}"
            )
        if self.cores_per_node < 1 or self.gpus_per_node < 0:
            raise BadRequest(
                "invalid size of a node",
                where="cores_per_node, gpus_per_node",
                found=f"{self.cores_per_node}, {self.gpus_per_node}",
                expected="at least 1 core and 0 gpus",
            )

    def node(self, rank: int) -> str:
        return f"node{rank}"
