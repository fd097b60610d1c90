"""Resource types in the words of a message: `4 cores`, `500m cpu`, `64Mi memory`.

Resources of a Kubernetes node are counted in millicores and bytes and are shown as quantities.
"""

from __future__ import annotations

from typing import Final

from penstock.model.quantity import format_quantity

__all__ = [
    "format_count",
    "format_units",
    "is_plural",
]

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
    number = format_units(units, resource_type)
    plural = "s" if is_plural(units, resource_type) else ""
    return " ".join(filter(None, (number, adjective, f"{resource_type}{plural}")))


def is_plural(units: int, resource_type: str) -> bool:
    """Whether the verb for so many units is `are`: 4 cores are free, 64Mi memory is free."""
    return resource_type in _COUNTABLE and units != 1
