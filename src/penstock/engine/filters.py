"""Prune filters: totals at inner vertices that let the walker skip a subtree with too little.

A filter `HIGH:LOW` keeps, at every vertex of type HIGH, the units of type LOW below it; `ALL:LOW` keeps them
at every vertex that has children. The types of leaf vertices are always kept at vertices of type `cluster`
(at every vertex, for policies that rank nodes by usage). A filter changes the cost of a match, not its
result, with one exception: `first` visits children in the order of their last filter type (see `policies`).

`compute_totals` counts a whole graph. `count_added`, `count_removed` and `count_resized` adjust the totals of
the ancestors of one change instead, with the same result. A type stays a filter type without its last leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from penstock.engine.graph import CONTAINMENT, Graph, Vertex
from penstock.errors import BadRequest

__all__ = ["DEFAULT_FILTERS", "BadFilter", "Filters"]

DEFAULT_FILTERS: Final = "ALL:core,ALL:node"

_ANY: Final = "*"
_LEAF_ANCHOR: Final = "cluster"
# Fluxion orders these types first; other types follow in the order in which they are first named.
_KNOWN_TYPES: Final = ("cluster", "core", "socket", "gpu", "node", "rack", "slot")


class BadFilter(BadRequest):
    """A prune filter that is not of the form HIGH:LOW."""


class Filters:
    """The filter types, by the type of the vertex that keeps their totals."""

    def __init__(self, spec: str = DEFAULT_FILTERS, *, leaves_everywhere: bool = False) -> None:
        self._leaf_anchor = _ANY if leaves_everywhere else _LEAF_ANCHOR
        self._kept: dict[str, list[str]] = {}
        self._order: dict[str, int] = {
            resource_type: place for place, resource_type in enumerate(_KNOWN_TYPES)
        }
        self._all: set[str] = set()
        self._tracked: frozenset[str] = frozenset()
        for pair in spec.split(",") if spec else ():
            high, colon, low = ("".join(part.split()) for part in pair.partition(":"))
            if not colon or not high or not low:
                raise BadFilter(
                    "invalid prune filter",
                    where="prune filters",
                    found=repr(pair),
                    expected="HIGH:LOW or ALL:LOW",
                )
            self._keep(_ANY if high == "ALL" else high, low)

    def copy(self) -> Filters:
        other = Filters.__new__(Filters)
        other._leaf_anchor = self._leaf_anchor
        other._kept = {anchor: list(kept) for anchor, kept in self._kept.items()}
        other._order = dict(self._order)
        other._all = set(self._all)
        other._tracked = self._tracked
        return other

    @property
    def tracked(self) -> frozenset[str]:
        """All types that have a total at some vertex."""
        return self._tracked

    def at(self, resource_type: str) -> list[str]:
        """The filter types of a vertex of type `resource_type`, in order."""
        return self._kept.get(resource_type, []) + [
            low for low in self._kept.get(_ANY, []) if low != resource_type
        ]

    def compute_totals(self, graph: Graph) -> None:
        """Computes the totals of every vertex."""
        self.keep_leaves(graph.vertices.values())
        if graph.has_shared:
            self._count_shared(graph)
        elif CONTAINMENT in graph.roots:
            self._count(graph.root)

    def keep_leaves(self, vertices: Iterable[Vertex]) -> list[str]:
        """Makes the types of the leaves among these vertices filter types. Returns those that were none."""
        kept: list[str] = []
        for vertex in vertices:
            if not vertex.children and vertex.type not in self._all:
                self._keep(self._leaf_anchor, vertex.type)
                kept.append(vertex.type)
        return kept

    def count_added(self, graph: Graph, top: Vertex, kept: Sequence[str]) -> None:
        """Counts a subtree that was added to a tree; `kept` are filter types that it is the first to have."""
        anchors = graph.vertices.values() if self._leaf_anchor == _ANY else graph.of_type(self._leaf_anchor)
        for vertex in anchors if kept else ():
            totals = vertex.totals
            if totals is not None:
                vertex.totals = {
                    resource_type: totals.get(resource_type, 0) for resource_type in self.at(vertex.type)
                }
        units = self._count(top)
        for above in top.ancestors():
            if above.totals is None:  # It was a leaf.
                above.totals = dict.fromkeys(self.at(above.type), 0)
            _shift(above.totals, units, 1)

    def count_removed(self, removed: Iterable[Vertex], ancestors: Iterable[Vertex]) -> None:
        """Subtracts a subtree that was removed from a tree."""
        units: dict[str, int] = {}
        for vertex in removed:
            if vertex.type in self._all:
                units[vertex.type] = units.get(vertex.type, 0) + vertex.size
        for above in ancestors:
            if not above.children:
                above.totals = None
            elif above.totals is not None:
                _shift(above.totals, units, -1)

    def count_resized(self, vertex: Vertex, added_units: int) -> None:
        for above in vertex.ancestors():
            if above.totals is not None:
                _shift(above.totals, {vertex.type: added_units}, 1)

    def _count(self, top: Vertex) -> dict[str, int]:
        """Computes the totals below every vertex; returns the units of filter types, the top included.

        Without recursion, because graphs can be deep.
        """
        order = [top]
        for vertex in order:  # grows during the iteration: parents come before their children
            order.extend(vertex.below())
        all_units: dict[str, int] = {}
        sums: dict[int, dict[str, int]] = {}
        for vertex in reversed(order):
            below = sums.pop(vertex.index, {})
            vertex.totals = (
                {resource_type: below.get(resource_type, 0) for resource_type in self.at(vertex.type)}
                if vertex.children
                else None
            )
            above = vertex.parent() if vertex is not top else None
            totals = sums.setdefault(above.index, {}) if above is not None else all_units
            if vertex.type in self._all:
                totals[vertex.type] = totals.get(vertex.type, 0) + vertex.size
            for resource_type, units in below.items():
                totals[resource_type] = totals.get(resource_type, 0) + units
        return all_units

    def _count_shared(self, graph: Graph) -> None:
        """As `_count` for graphs with shared vertices: each ancestor counts a vertex once."""
        parents: dict[int, list[Vertex]] = {}
        for vertex in graph.vertices.values():
            for child in vertex.below():
                parents.setdefault(child.index, []).append(vertex)
            vertex.totals = dict.fromkeys(self.at(vertex.type), 0) if vertex.children else None
        for vertex in graph.vertices.values():
            seen: set[int] = set()
            pending = list(parents.get(vertex.index, ()))
            while pending:
                above = pending.pop()
                if above.index in seen:
                    continue
                seen.add(above.index)
                pending.extend(parents.get(above.index, ()))
                if above.totals is not None and vertex.type in above.totals:
                    above.totals[vertex.type] += vertex.size

    def _keep(self, anchor: str, low: str) -> None:
        self._order.setdefault(low, len(self._order))
        self._all.add(low)
        self._tracked = frozenset(self._all)
        if anchor == _ANY:
            for kept in self._kept.values():
                if low in kept:
                    kept.remove(low)
        elif low in self._kept.get(_ANY, []):
            return
        kept = self._kept.setdefault(anchor, [])
        if low not in kept:
            kept.append(low)
            kept.sort(key=lambda resource_type: self._order[resource_type])


def _shift(totals: dict[str, int], units: dict[str, int], sign: int) -> None:
    for resource_type, count in units.items():
        if resource_type in totals:
            totals[resource_type] += sign * count
