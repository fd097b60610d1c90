"""Use by others: what runs on our vertices without being our job.

A hold has a name, a vertex (mostly a node), amounts by type, and no end. The engine spreads the
amounts over the vertices of each type below, in edge order, filling one before the next. Others
can use more than there is; the rest then burdens the first of them, and its free units are
negative until the hold is gone. Setting a hold again replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.engine.graph import Graph, Vertex
from penstock.engine.state import Holding, VertexState
from penstock.errors import BadRequest

__all__ = ["Holds"]


class Holds:
    """All holds of an engine, by name."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._where: dict[str, list[Vertex]] = {}

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
        self._where[name] = list(touched.values())

    def remove(self, name: str) -> None:
        """Forgets a hold; one that is not there is forgotten already."""
        for vertex in self._where.pop(name, ()):
            state = vertex.state
            if state is not None and name in state.holds:
                state.unhold(name)
                if state.is_empty():
                    vertex.state = None

    def forget_below(self, gone: frozenset[int]) -> None:
        """Holds on vertices that have left the graph are gone with them."""
        for name, vertices in list(self._where.items()):
            if any(vertex.index in gone for vertex in vertices):
                self.remove(name)

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
