"""Runs jobs as processes on this machine, through agents that each represent a node.

`backend` implements the protocol, `agent_connection` starts one agent and connects to it, and `translate`
turns placements into task specs.
"""

from penstock.backends.local.backend import INTENTS, LocalBackend, NodeStatus
from penstock.backends.local.settings import LocalSettings

__all__ = ["INTENTS", "LocalBackend", "LocalSettings", "NodeStatus"]
