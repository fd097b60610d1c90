"""R_lite: groups the ranks of nodes with the same core and gpu ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.engine.allocation import Pick
from penstock.engine.graph import Vertex
from penstock.engine.walker import CONSTRAINED_TYPES
from penstock.fluxion.writers.json_text import Json, dumps
from penstock.model.hostlist import encode_hostlist

__all__ = ["RLite", "rlite_of"]

_CHILD_TYPES = ("core", "gpu")


@dataclass(frozen=True, slots=True)
class RLite:
    groups: list[Json]
    nodelist: str
    properties: dict[str, str]


def rlite_of(picks: tuple[Pick, ...]) -> RLite:
    """Picks are ordered children first: the cores and gpus before a node belong to that node."""
    gathered: dict[str, list[int]] = {}
    groups: dict[str, list[Vertex]] = {}
    children_of: dict[str, dict[str, str]] = {}
    for pick in picks:
        vertex = pick.vertex
        if vertex.type in _CHILD_TYPES:
            gathered.setdefault(vertex.type, []).append(vertex.id)
        elif vertex.type in CONSTRAINED_TYPES and gathered:
            children = {name: _ids(gathered[name]) for name in _CHILD_TYPES if name in gathered}
            key = dumps(children)
            children_of[key] = children
            groups.setdefault(key, []).append(vertex)
            gathered = {}
    nodes = sorted((node for members in groups.values() for node in members), key=lambda node: node.rank)
    lite: list[Json] = [
        {"rank": _ids(node.rank for node in groups[key]), "children": children_of[key]}
        for key in sorted(groups)
    ]
    return RLite(lite, encode_hostlist(node.name for node in nodes), _properties(nodes))


def _properties(nodes: list[Vertex]) -> dict[str, str]:
    ranks: dict[str, list[int]] = {}
    for node in nodes:
        for key, value in node.properties.items():
            ranks.setdefault(f"{key}={value}" if value else key, []).append(node.rank)
    return {name: _ids(ranks[name]) for name in sorted(ranks)}


def _ids(ids: Iterable[int]) -> str:
    """An idset without duplicates (two sockets can each have a core 0). Ranks can be -1."""
    runs: list[tuple[int, int]] = []
    for number in sorted(set(ids)):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
