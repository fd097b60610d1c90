"""Use by others: what runs on our vertices without being our job.

A hold has a name, a vertex (mostly a node), amounts by type, and no end. The engine spreads the
amounts over the vertices of each type below, in edge order, filling one before the next. Others
can use more than there is; the rest then burdens the first of them, and its free units are
negative until the hold is gone. Setting a hold again replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.engine.graph import Graph, Vertex
from penstock.engine.state import Holding, VertexState, refresh_excess
from penstock.errors import BadRequest

__all__ = ["Hold", "Holds"]


@dataclass(frozen=True, slots=True)
class Hold:
    name: str
    at: Vertex
    amounts: Mapping[str, int]
    standing: bool


class Holds:
    """All holds of an engine, by name."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._where: dict[str, list[Vertex]] = {}
        self._told: dict[str, Hold] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def set(self, name: str, at: Vertex, amounts: Mapping[str, int], *, standing: bool = False) -> None:
        """Records that others use `amounts` (type to units) at or below a vertex."""
        for kind, units in amounts.items():
            if units < 0:
                raise BadRequest(
                    "a hold cannot give", where=f"{name}.{kind}", found=str(units), expected=">= 0"
                )
        self.remove(name)
        own = self._spread(at, amounts)
        below: dict[int, dict[str, int]] = {}
        touched: dict[int, Vertex] = {at.index: at}
        for vertex, units in own:
            touched[vertex.index] = vertex
            for above in self._graph.ancestors(vertex):
                used = below.setdefault(above.index, {})
                used[vertex.type] = used.get(vertex.type, 0) + units
        for vertex in list(touched.values()):
            for above in self._graph.ancestors(vertex):
                touched[above.index] = above
        units_of = {vertex.index: units for vertex, units in own}
        for vertex in touched.values():
            if vertex.state is None:
                vertex.state = VertexState()
            holding = Holding(units_of.get(vertex.index, 0), below.get(vertex.index, {}), standing)
            vertex.state.hold(name, holding)
        for vertex in touched.values():
            refresh_excess(vertex)
        self._where[name] = list(touched.values())
        self._told[name] = Hold(name, at, dict(amounts), standing)

    def remove(self, name: str) -> None:
        """Forgets a hold; one that is not there is forgotten already."""
        self._told.pop(name, None)
        touched = self._where.pop(name, [])
        for vertex in touched:
            state = vertex.state
            if state is not None and name in state.holds:
                state.unhold(name)
                refresh_excess(vertex)
        for vertex in touched:
            if vertex.state is not None and vertex.state.is_empty():
                vertex.state = None

    def lift(self, vertices: Iterable[Vertex]) -> list[Hold]:
        """Takes up every hold that touches one of these vertices, so that it can be set again."""
        inside = {vertex.index for vertex in vertices}
        names = [name for name, touched in self._where.items() if any(v.index in inside for v in touched)]
        lifted = [self._told[name] for name in names]
        for hold in lifted:
            self.remove(hold.name)
        return lifted

    def _spread(self, at: Vertex, amounts: Mapping[str, int]) -> list[tuple[Vertex, int]]:
        own: list[tuple[Vertex, int]] = []
        for kind, units in amounts.items():
            pools = [vertex for vertex in self._graph.walk(at) if vertex.type == kind]
            left = units
            shares: list[int] = []
            for vertex in pools:
                held = sum(vertex.state.held) if vertex.state is not None else 0
                share = min(left, max(vertex.size - held, 0))
                shares.append(share)
                left -= share
            if pools:
                shares[0] += left
                own.extend((vertex, share) for vertex, share in zip(pools, shares, strict=True) if share)
        return own
