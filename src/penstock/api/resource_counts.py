"""Counts of CPU and GPU resources in the units that users see.

The local backend models every core and GPU as a vertex of its own (`core`, `gpu`). The Kubernetes backend has
one divisible pool `cpu` per node, in thousandths of a core, and pools such as `nvidia.com/gpu`. Sums are
computed in thousandths of a core, which is exact; only the result is divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.model.idset import parse_idset

__all__ = ["allocated_core_milli", "core_milli", "cores", "is_gpu"]

_MILLI_PER_UNIT: Final = {"core": 1000, "cpu": 1}


def core_milli(units: Iterable[tuple[str, int]]) -> int:
    """Thousandths of a core in units by resource."""
    return sum(count * _MILLI_PER_UNIT.get(resource, 0) for resource, count in units)


def allocated_core_milli(allocated: Mapping[str, str]) -> int:
    """Thousandths of a core in the recorded share of a node: an idset of `core`, a number of `cpu`."""
    whole = len(parse_idset(allocated["core"])) if "core" in allocated else 0
    return core_milli([("core", whole), ("cpu", int(allocated.get("cpu", "0")))])


def cores(milli: int) -> int | float:
    """An integer where the count is whole: 4, 31.5."""
    return milli / 1000 if milli % 1000 else milli // 1000


def is_gpu(resource: str) -> bool:
    return resource == "gpu" or resource.endswith("/gpu")
