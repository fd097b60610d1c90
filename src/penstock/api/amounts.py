"""Amounts as people count them: cores and GPUs, whether they are whole units or shares of a pool.

A node of processes has `state` and `gpu`, each unit a vertex of its own. One of pods has a pool `cpu`, in
thousandths of a core, and pools such as `nvidia.com/gpu`. Sums are made in thousandths, which are exact; only
what is shown is divided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from penstock.model.idset import parse_idset

__all__ = ["core_milli", "cores", "held_milli", "is_gpu"]

_MILLI: Final = {"core": 1000, "cpu": 1}


def core_milli(amounts: Iterable[tuple[str, int]]) -> int:
    """Thousandths of a core in amounts by kind."""
    return sum(units * _MILLI.get(kind, 0) for kind, units in amounts)


def held_milli(kinds: Mapping[str, str]) -> int:
    """The same of what a job is recorded to hold on a node: ids of whole units, a number for pools."""
    whole = len(parse_idset(kinds["core"])) if "core" in kinds else 0
    return core_milli([("core", whole), ("cpu", int(kinds.get("cpu", "0")))])


def cores(milli: int) -> int | float:
    """Whole where it is whole: 4, 31.5."""
    return milli / 1000 if milli % 1000 else milli // 1000


def is_gpu(kind: str) -> bool:
    return kind == "gpu" or kind.endswith("/gpu")
