"""Bounds for the scores of slots, from what holds for all vertices of a type."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.engine.graph import Vertex
from penstock.engine.planner import FOREVER
from penstock.engine.walker import NODE

__all__ = ["TypeFacts"]


class TypeFacts:
    """What holds for all vertices of a type, as bounds: vertices that are removed still count."""

    __slots__ = ("id_max", "id_min", "is_one_per_node", "is_unit")

    def __init__(self, vertices: Iterable[Vertex]) -> None:
        self.id_min, self.id_max = FOREVER, -1
        self.is_unit = True  # each is one whole unit
        self.is_one_per_node = True
        parents: set[int] = set()
        for vertex in vertices:
            parent = vertex.parent()
            self.note(vertex, is_alone=parent is None or parent.index not in parents)
            if parent is not None:
                parents.add(parent.index)

    def note(self, vertex: Vertex, is_alone: bool) -> None:
        self.id_min = min(self.id_min, vertex.id)
        self.id_max = max(self.id_max, vertex.id)
        self.is_unit = self.is_unit and vertex.size == 1 and not vertex.divisible
        parent = vertex.parent()
        if not is_alone or parent is None or parent.type != NODE:
            self.is_one_per_node = False
