"""Jobs as processes on this machine, through agents that each stand for a node.

`world` is the port, `link` one agent and the connection to it, `translate` makes tasks of placements.
"""

from penstock.drivers.local.settings import LocalSettings
from penstock.drivers.local.world import INTENTS, LocalWorld, NodeStatus

__all__ = ["INTENTS", "LocalSettings", "LocalWorld", "NodeStatus"]
