"""Jobs as processes on this machine, through agents that each stand for a node.

`backend` is the port, `link` one agent and the connection to it, `translate` makes tasks of placements.
"""

from penstock.backends.local.backend import INTENTS, LocalBackend, NodeStatus
from penstock.backends.local.settings import LocalSettings

__all__ = ["INTENTS", "LocalBackend", "LocalSettings", "NodeStatus"]
