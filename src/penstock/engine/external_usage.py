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
from penstock.engine.vertex_state import Holding, VertexState, refresh_excess
from penstock.errors import BadRequest

__all__ = ["ExternalUsage", "ExternalUsages"]


@dataclass(frozen=True, slots=True)
class ExternalUsage:
    name: str
    at: Vertex
    amounts: Mapping[str, int]
    standing: bool


class ExternalUsages:
    """All holds of an engine, by name."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._where: dict[str, list[Vertex]] = {}
        self._told: dict[str, ExternalUsage] = {}
        self._crowded: set[str] = set()  # holds that did not find room beside us and the others
        self._homeless: dict[str, dict[str, None]] = {}  # by type: holds that found no vertex of it below
        self._newest: dict[str, int] = {}  # by such a type: its newest vertex when that was last looked at

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def set(self, name: str, at: Vertex, amounts: Mapping[str, int], *, standing: bool = False) -> None:
        """Records that others use `amounts` (type to units) at or below a vertex."""
        for kind, units in amounts.items():
            if units < 0:
                raise BadRequest(
                    "a hold cannot give", where=f"{name}.{kind}", found=str(units), expected=">= 0"
                )
        self._take_up(name)
        own, is_crowded = self._spread(name, at, amounts)
        if is_crowded:
            self._crowded.add(name)
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
        self._told[name] = ExternalUsage(name, at, dict(amounts), standing)

    def remove(self, name: str) -> None:
        """Forgets a hold; one that is not there is forgotten already."""
        self._take_up(name)
        self.settle()

    def _take_up(self, name: str) -> None:
        told = self._told.pop(name, None)
        self._crowded.discard(name)
        for kind in told.amounts if told is not None and self._homeless else ():
            homeless = self._homeless.get(kind, {})
            if name in homeless:
                del homeless[name]
                if not homeless:
                    del self._homeless[kind], self._newest[kind]
        touched = self._where.pop(name, [])
        for vertex in touched:
            state = vertex.state
            if state is not None and name in state.holds:
                state.unhold(name)
                refresh_excess(vertex)
        for vertex in touched:
            if vertex.state is not None and vertex.state.is_empty():
                vertex.state = None

    def lift(self, vertices: Iterable[Vertex]) -> list[ExternalUsage]:
        """Takes up every hold that touches one of these vertices, so that it can be set again."""
        states = (vertex.state for vertex in vertices)
        names = dict.fromkeys(name for state in states if state is not None for name in state.holds)
        lifted = [self._told[name] for name in names]
        for hold in lifted:
            self._take_up(hold.name)
        return lifted

    def settle(self) -> None:
        """Spreads anew the holds that did not find room; to be called when something has changed."""
        again = set(self._crowded)
        for kind, homeless in self._homeless.items():
            if self._graph.newest(kind) != self._newest[kind]:
                self._newest[kind] = self._graph.newest(kind)
                again.update(homeless)
        for name in [name for name in self._told if name in again] if again else ():
            hold = self._told[name]
            self.set(hold.name, hold.at, hold.amounts, standing=hold.standing)

    def _spread(
        self, name: str, at: Vertex, amounts: Mapping[str, int]
    ) -> tuple[list[tuple[Vertex, int]], bool]:
        """Which vertices the amounts burden, and whether there was too little room for them.

        What nobody has comes first. Others do not say which core or gpu is theirs, but they do not
        use ours.
        """
        own: list[tuple[Vertex, int]] = []
        is_crowded = False
        for kind, units in amounts.items():
            pools = [vertex for vertex in self._graph.walk(at) if vertex.type == kind]
            if not pools:
                # No end of anything makes room for it, only a vertex that comes: thousands of such holds
                # (ports of nodes that nobody else asks for) would be spread anew each time.
                self._homeless.setdefault(kind, {})[name] = None
                self._newest.setdefault(kind, self._graph.newest(kind))
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
    return vertex.size - state.held[0] - state.held[1] - booked
