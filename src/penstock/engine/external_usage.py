"""Use by others: what runs on our vertices without being our job.

A hold has a name, a vertex (mostly a node), amounts by type, and no end. The engine spreads the
amounts over the vertices of each type below, in edge order, filling one before the next, those that
we have last. Others can use more than there is; the rest then burdens the first of them, and its
free units are negative until that is over. Setting a hold again replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.engine.graph import Graph, Vertex
from penstock.engine.planner import FOREVER
from penstock.engine.vertex_state import ExternalShare, VertexState, refresh_excess
from penstock.errors import BadRequest

__all__ = ["ExternalUsage", "ExternalUsageTable"]


@dataclass(frozen=True, slots=True)
class ExternalUsage:
    name: str
    at: Vertex
    amounts: Mapping[str, int]
    standing: bool


class ExternalUsageTable:
    """All holds of an engine, by name."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._vertices: dict[str, list[Vertex]] = {}
        self._told: dict[str, ExternalUsage] = {}
        self._crowded: set[str] = set()  # holds that did not find room beside us and the others
        self._unplaced: dict[str, dict[str, None]] = {}  # by type: holds that found no vertex of it below
        self._newest: dict[str, int] = {}  # by such a type: its newest vertex when that was last looked at

    def __contains__(self, name: str) -> bool:
        return name in self._vertices

    def set(self, name: str, at: Vertex, amounts: Mapping[str, int], *, standing: bool = False) -> None:
        """Records that others use `amounts` (type to units) at or below a vertex."""
        for resource_type, units in amounts.items():
            if units < 0:
                raise BadRequest(
                    "a hold cannot give", where=f"{name}.{resource_type}", found=str(units), expected=">= 0"
                )
        self._detach(name)
        own, is_crowded = self._distribute(name, at, amounts)
        if is_crowded:
            self._crowded.add(name)
        below: dict[int, dict[str, int]] = {}
        touched: dict[int, Vertex] = {at.index: at}
        for vertex, units in own:
            touched[vertex.index] = vertex
            for above in vertex.ancestors():
                used = below.setdefault(above.index, {})
                used[vertex.type] = used.get(vertex.type, 0) + units
        for vertex in list(touched.values()):
            for above in vertex.ancestors():
                touched[above.index] = above
        units_of = {vertex.index: units for vertex, units in own}
        for vertex in touched.values():
            if vertex.state is None:
                vertex.state = VertexState()
            share = ExternalShare(units_of.get(vertex.index, 0), below.get(vertex.index, {}), standing)
            vertex.state.add_external(name, share)
        for vertex in touched.values():
            refresh_excess(vertex)
        self._vertices[name] = list(touched.values())
        self._told[name] = ExternalUsage(name, at, dict(amounts), standing)

    def remove(self, name: str) -> None:
        """Forgets a hold; one that is not there is forgotten already."""
        self._detach(name)
        self.redistribute()

    def _detach(self, name: str) -> None:
        told = self._told.pop(name, None)
        self._crowded.discard(name)
        for resource_type in told.amounts if told is not None and self._unplaced else ():
            unplaced = self._unplaced.get(resource_type, {})
            if name in unplaced:
                del unplaced[name]
                if not unplaced:
                    del self._unplaced[resource_type], self._newest[resource_type]
        touched = self._vertices.pop(name, [])
        for vertex in touched:
            state = vertex.state
            if state is not None and name in state.external:
                state.remove_external(name)
                refresh_excess(vertex)
        for vertex in touched:
            if vertex.state is not None and vertex.state.is_empty():
                vertex.state = None

    def detach(self, vertices: Iterable[Vertex]) -> list[ExternalUsage]:
        """Takes up every hold that touches one of these vertices, so that it can be set again."""
        states = (vertex.state for vertex in vertices)
        names = dict.fromkeys(name for state in states if state is not None for name in state.external)
        detached = [self._told[name] for name in names]
        for add_external in detached:
            self._detach(add_external.name)
        return detached

    def redistribute(self) -> None:
        """Spreads anew the holds that did not find room; to be called when something has changed."""
        again = set(self._crowded)
        for resource_type, unplaced in self._unplaced.items():
            if self._graph.newest(resource_type) != self._newest[resource_type]:
                self._newest[resource_type] = self._graph.newest(resource_type)
                again.update(unplaced)
        for name in [name for name in self._told if name in again] if again else ():
            add_external = self._told[name]
            self.set(add_external.name, add_external.at, add_external.amounts, standing=add_external.standing)

    def _distribute(
        self, name: str, at: Vertex, amounts: Mapping[str, int]
    ) -> tuple[list[tuple[Vertex, int]], bool]:
        """Which vertices the amounts burden, and whether there was too little room for them.

        What nobody has comes first. Others do not say which core or gpu is theirs, but they do not
        use ours.
        """
        own: list[tuple[Vertex, int]] = []
        is_crowded = False
        for resource_type, units in amounts.items():
            pools = [vertex for vertex in self._graph.walk(at) if vertex.type == resource_type]
            if not pools:
                # No end of anything makes room for it, only a vertex that comes: thousands of such holds
                # (ports of nodes that nobody else asks for) would be spread anew each time.
                self._unplaced.setdefault(resource_type, {})[name] = None
                self._newest.setdefault(resource_type, self._graph.newest(resource_type))
                continue
            shares = [0] * len(pools)
            left = units
            for with_ours in (False, True):
                for place, vertex in enumerate(pools):
                    share = min(left, max(_room(vertex, with_ours) - shares[place], 0))
                    shares[place] += share
                    left -= share
                is_crowded = is_crowded or (left > 0 and not with_ours)
            shares[0] += left
            own.extend((vertex, share) for vertex, share in zip(pools, shares, strict=True) if share)
            is_crowded = is_crowded or left > 0
        return own, is_crowded


def _room(vertex: Vertex, with_ours: bool) -> int:
    """Units that no hold has; and, unless `with_ours`, that no job of ours has at any time."""
    state = vertex.state
    if state is None:
        return vertex.size
    booked = 0 if with_ours else state.plan.booked_most(0, FOREVER)
    return vertex.size - state.external_units[0] - state.external_units[1] - booked
