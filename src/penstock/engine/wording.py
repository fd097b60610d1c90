"""Phrases of a refusal: what a group needs, and which resource is short.

A group is described by its outermost resources with what each of them contains: `4 nodes with 2 free cores
each`. Nested levels between are multiplied out; they would make the phrase longer, not clearer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from penstock.engine.exclusion import Exclusion
from penstock.engine.request import SLOT, Demand
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.resource_types import format_count, format_units, is_plural

__all__ = ["contents", "describe", "excluding", "flatten", "has_one_item", "join", "shortage"]

_PODS: Final = "pods"  # every pod takes one; a node has as many as its kubelet allows


def describe(demands: tuple[Demand, ...], within: str, exclusion: Exclusion, *, free: bool = False) -> str:
    """What a group needs; with `free`, that it must be free."""
    return join(_describe(demand, within, exclusion, free) for demand in demands)


def _describe(demand: Demand, within: str, exclusion: Exclusion, free: bool) -> str:
    inside = contents(demand)
    exclusive = demand.exclusive is True
    adjective = ""
    if free:
        adjective = "idle" if exclusive else "" if inside else "free"
    text = format_count(demand.count.min, demand.type, adjective)
    if inside:
        inner = "free" if free and not exclusive else ""
        items = [format_count(units, name, inner) for name, units in inside.items()]
        text += f" with {join(items)}" + (" each" if demand.count.min != 1 else "")
    if demand.type == SLOT and exclusion.one_slot_per and demand.count.min > 1:
        text += f" on distinct {join(f'{level}s' for level in exclusion.one_slot_per)}"
        text += f" ({join(exclusion.because_of)})" if exclusion.because_of else ""
    return f"{text} inside one {within}" if within else text


def has_one_item(demand: Demand) -> bool:
    """Whether `it` and not `them` refers to the contents of a demand."""
    inside = contents(demand)
    return len(inside) == 1 and not any(is_plural(units, name) for name, units in inside.items())


def contents(demand: Demand) -> dict[str, int]:
    """Units of each innermost resource in one unit of a demand, without the limit of pods."""
    inside: dict[str, int] = {}
    pending = [(inner, inner.count.min) for inner in reversed(demand.with_)]
    while pending:
        inner, units = pending.pop()
        if inner.with_:
            pending.extend((below, units * below.count.min) for below in reversed(inner.with_))
        elif inner.type != _PODS:
            inside[inner.type] = inside.get(inner.type, 0) + units
    return inside


def shortage(demand: Demand, most: int) -> str:
    """That at most `most` units of an inner resource are free in one place."""
    if demand.type == _PODS:
        return "the limit of pods per node is reached"
    needed = f"{demand.type}: needs {format_units(demand.count.min, demand.type)}"
    if most <= 0:
        return f"{needed}, none is free"
    return f"{needed}, the largest free node has {format_units(most, demand.type)}"


def excluding(keys: Iterable[ExclusionKey]) -> list[str]:
    """Which keys exclude how many nodes, given one key for each excluded node."""
    counts = Counter(key.name for key in keys)
    return [f"{name} excludes {format_count(count, 'node')}" for name, count in sorted(counts.items())]


def flatten(demands: Iterable[Demand]) -> list[Demand]:
    """Demands and everything inside them, outer ones first."""
    flat = list(demands)
    for demand in flat:  # grows during the iteration
        flat.extend(demand.with_)
    return flat


def join(items: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last
