"""Resource types in the words of a message: `4 cores`, `500m cpu`, `64Mi memory`, `host port 80/TCP`.

Resources of a Kubernetes node are counted in millicores and bytes and are shown as quantities. Two families
of types are no resource of a node but encode a rule, so that the matcher needs no special case for it: every
node has one `hostport/<protocol>/<port>`, and the units of `anti-affinity/<namespace>/<selector>` keep pods
with anti-affinity off the same node.
"""

from __future__ import annotations

from typing import Final

from penstock.model.quantity import format_quantity

__all__ = [
    "ANTI_AFFINITY_PREFIX",
    "HOST_PORT_PREFIX",
    "anti_affinity_selector",
    "format_count",
    "format_units",
    "is_plural",
    "resource_name",
]

ANTI_AFFINITY_PREFIX: Final = "anti-affinity/"
HOST_PORT_PREFIX: Final = "hostport/"

_COUNTABLE: Final = frozenset({"slot", "node", "core", "gpu", "socket", "rack", "cluster"})
_MILLI: Final = frozenset({"cpu"})
_BYTES: Final = frozenset({"memory", "ephemeral-storage"})
_BYTES_MIN: Final = 1 << 20  # a smaller size is in a unit of the graph's author (Mi, Gi), not in bytes


def format_units(units: int, resource_type: str) -> str:
    """Units of a type without its name: `500m` of cpu, `64Mi` of memory, `3` of any other type."""
    if resource_type in _MILLI:
        return format_quantity(units, scale=1000)
    if resource_type in _BYTES and abs(units) >= _BYTES_MIN:
        return format_quantity(units, binary=True)
    return str(units)


def format_count(units: int, resource_type: str, adjective: str = "") -> str:
    """Units of a type with its name: `1 node`, `4 free cores`, `16 memory`."""
    number = "" if resource_type.startswith(HOST_PORT_PREFIX) else format_units(units, resource_type)
    plural = "s" if is_plural(units, resource_type) else ""
    return " ".join(filter(None, (number, adjective, f"{resource_name(resource_type)}{plural}")))


def resource_name(resource_type: str) -> str:
    """The type as a user writes it: `core`, `memory`, `host port 80/TCP`."""
    if not resource_type.startswith(HOST_PORT_PREFIX):
        return resource_type
    protocol, _, port = resource_type.removeprefix(HOST_PORT_PREFIX).partition("/")
    return f"host port {port}/{protocol}"


def is_plural(units: int, resource_type: str) -> bool:
    """Whether the verb for so many units is `are`: 4 cores are free, 64Mi memory is free."""
    return resource_type in _COUNTABLE and units != 1


def anti_affinity_selector(resource_type: str) -> str:
    """The label selector of a type that encodes anti-affinity; "" for every other type."""
    if not resource_type.startswith(ANTI_AFFINITY_PREFIX):
        return ""
    return resource_type.removeprefix(ANTI_AFFINITY_PREFIX).partition("/")[2]
