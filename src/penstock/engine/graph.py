"""The resource graph: vertices of any type, joined by edges that belong to a subsystem.

A vertex is what can be given away: a rack, a node, a core, a pool of memory. Its place is told once
per subsystem (`containment` is the one that the matcher walks today): children in the order in
which their edges were made. Below the root of containment there is no cycle, and few enough levels
to walk it recursively; readers refuse anything else. Mostly it is a tree. A vertex that several
others contain (storage that a rack and a chassis both list) belongs to the first of them, and
`has_shared` tells walks that they must not enter it twice.

Vertices carry what they are, never what is booked there: `state` stays `None` until something is
booked on or below the vertex, and becomes `None` again when the last booking is gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.errors import BadRequest

if TYPE_CHECKING:
    from penstock.engine.vertex_state import VertexState

__all__ = ["CONTAINMENT", "DEPTH_MAX", "BadGraph", "Graph", "Vertex", "VertexSpec"]

CONTAINMENT: Final = "containment"
DEPTH_MAX: Final = 64

_NO_PROPERTIES: Final[dict[str, str]] = {}
_NO_CHILDREN: Final[list[Vertex]] = []


class BadGraph(BadRequest):
    """A description of resources that is no tree of well-formed vertices."""


@dataclass(frozen=True, slots=True)
class VertexSpec:
    """What a reader knows of a vertex before it is in a graph."""

    type: str
    id: int
    basename: str = ""  # "": the type
    name: str = ""  # "": basename followed by id
    uniq_id: int = -1  # -1: the next free one
    rank: int = -1
    size: int = 1
    unit: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    up: bool = True
    divisible: bool = False


class Vertex:
    """One resource. `order` is the place of its containment edge among all edges made."""

    __slots__ = (
        "basename",
        "children",
        "divisible",
        "id",
        "index",
        "name",
        "order",
        "parents",
        "paths",
        "properties",
        "rank",
        "size",
        "state",
        "totals",
        "type",
        "uniq_id",
        "unit",
        "up",
    )

    def __init__(self, spec: VertexSpec, index: int) -> None:
        self.index = index
        self.type = spec.type
        self.basename = spec.basename or spec.type
        self.id = spec.id
        self.name = spec.name or (f"{self.basename}{spec.id}" if spec.id != -1 else self.basename)
        self.uniq_id = spec.uniq_id if spec.uniq_id >= 0 else index
        self.rank = spec.rank
        self.size = spec.size
        self.unit = spec.unit
        self.properties: dict[str, str] = dict(spec.properties) if spec.properties else _NO_PROPERTIES
        self.up = spec.up
        self.divisible = spec.divisible
        self.paths: dict[str, str] = {}
        self.parents: dict[str, Vertex] = {}
        self.children: dict[str, list[Vertex]] = {}
        self.order = 0
        # Units of every filter type below this vertex; `None` where no filter is kept.
        self.totals: dict[str, int] | None = None
        self.state: VertexState | None = None

    def below(self, subsystem: str = CONTAINMENT) -> list[Vertex]:
        """The children in a subsystem, in edge order. Not to be changed by the caller."""
        return self.children.get(subsystem, _NO_CHILDREN)

    def parent(self, subsystem: str = CONTAINMENT) -> Vertex | None:
        return self.parents.get(subsystem)

    def ancestors(self, subsystem: str = CONTAINMENT) -> Iterator[Vertex]:
        """The parent, its parent, and so on to the root."""
        above = self.parents.get(subsystem)
        while above is not None:
            yield above
            above = above.parents.get(subsystem)

    def path(self, subsystem: str = CONTAINMENT) -> str:
        return self.paths.get(subsystem, "")

    def set_property(self, key: str, value: str) -> None:
        if self.properties is _NO_PROPERTIES:
            self.properties = {}
        self.properties[key] = value

    def remove_property(self, key: str) -> None:
        if key in self.properties:
            del self.properties[key]

    def __repr__(self) -> str:
        return f"Vertex({self.path() or self.name})"


class Graph:
    """All vertices, one root per subsystem, and the ways to find a vertex."""

    def __init__(self) -> None:
        self.vertices: dict[int, Vertex] = {}
        self.roots: dict[str, Vertex] = {}
        self.has_shared = False  # some vertex lies below several others in containment
        self._extra_edges: set[tuple[int, int, str]] = set()  # to vertices that have a parent already
        self._by_path: dict[str, list[Vertex]] = {}
        self._by_type: dict[str, dict[int, Vertex]] = {}
        self._by_rank: dict[int, dict[int, Vertex]] = {}
        self._next_index = 0
        self._next_order = 1

    @property
    def root(self) -> Vertex:
        """The root of containment."""
        if CONTAINMENT not in self.roots:
            raise BadGraph(
                "the graph has no root",
                where="graph",
                found=f"{len(self)} vertices",
                expected="one vertex without a parent in containment",
            )
        return self.roots[CONTAINMENT]

    def __len__(self) -> int:
        return len(self.vertices)

    def edges(self) -> int:
        return sum(len(kids) for vertex in self.vertices.values() for kids in vertex.children.values())

    def types(self) -> frozenset[str]:
        return frozenset(resource_type for resource_type, members in self._by_type.items() if members)

    def of_type(self, resource_type: str) -> list[Vertex]:
        """Every vertex of a type, in the order in which they were added."""
        return list(self._by_type.get(resource_type, {}).values())

    def newest(self, resource_type: str) -> int:
        """The index of the vertex of a type that was added last: another one when one has come."""
        return next(reversed(self._by_type.get(resource_type, {})), -1)

    def of_rank(self, rank: int) -> list[Vertex]:
        return list(self._by_rank.get(rank, {}).values())

    def ranks(self) -> list[int]:
        return sorted(rank for rank, members in self._by_rank.items() if members and rank >= 0)

    def at_path(self, path: str) -> list[Vertex]:
        """The vertices at a path: one, unless a reader was told of several ranks at the same path."""
        return list(self._by_path.get(path, ()))

    def one_at(self, path: str) -> Vertex:
        found = self._by_path.get(path, [])
        if not found:
            raise BadGraph(
                "no such resource",
                where=path or "path",
                found="no vertex at this path",
                expected=f"a path below {self.root.path()}",
            )
        return found[0]

    def add_root(self, spec: VertexSpec, subsystem: str = CONTAINMENT, path: str = "") -> Vertex:
        if subsystem in self.roots:
            raise BadGraph(
                f"a second root in {subsystem}",
                where=path or spec.name,
                found=self.roots[subsystem].path(subsystem),
                expected="one root per subsystem",
            )
        vertex = self._add(spec)
        self.roots[subsystem] = vertex
        self.set_path(vertex, subsystem, path or f"/{vertex.name}")
        return vertex

    def add_child(
        self, parent: Vertex, spec: VertexSpec, subsystem: str = CONTAINMENT, path: str = ""
    ) -> Vertex:
        vertex = self._add(spec)
        self.link(parent, vertex, subsystem)
        self.set_path(vertex, subsystem, path or f"{parent.path(subsystem)}/{vertex.name}")
        return vertex

    def add_unlinked(self, spec: VertexSpec) -> Vertex:
        """A vertex without a place yet; the reader links it or the graph stays incomplete."""
        return self._add(spec)

    def link(self, parent: Vertex, child: Vertex, subsystem: str) -> None:
        if self.roots.get(subsystem) is child:
            raise BadGraph(
                f"an edge to the root of {subsystem}",
                where=child.path(subsystem),
                found=f"an edge from {parent.name}",
                expected="no edge that leads to a root",
            )
        first = child.parents.get(subsystem)
        edge = (parent.index, child.index, subsystem)
        if first is parent or edge in self._extra_edges:
            return  # It is there already.
        if first is None:
            child.parents[subsystem] = parent
        else:
            self._extra_edges.add(edge)
            self.has_shared = self.has_shared or subsystem == CONTAINMENT
        kids = parent.children.get(subsystem)
        if kids is None:
            parent.children[subsystem] = [child]
        else:
            kids.append(child)
        if subsystem == CONTAINMENT and child.order == 0:
            child.order = self._next_order
            self._next_order += 1

    def set_path(self, vertex: Vertex, subsystem: str, path: str) -> None:
        vertex.paths[subsystem] = path
        self._by_path.setdefault(path, []).append(vertex)

    def remove_subtree(self, top: Vertex) -> list[Vertex]:
        """Takes a vertex and all below it out of the graph. Returns what is gone, children last."""
        parent = top.parent()
        if parent is None:
            raise BadGraph(
                "the root cannot be removed",
                where=top.path(),
                found="the root of the graph",
                expected="a vertex below the root",
            )
        gone = self.subtree(top)
        inside = {vertex.index for vertex in gone}
        is_simple = len(top.parents) == 1 and not self.has_shared
        for above in [parent] if is_simple else list(self.vertices.values()):
            if above.index in inside:
                continue
            for subsystem, kids in list(above.children.items()):
                left = [child for child in kids if child.index not in inside]
                if left:
                    above.children[subsystem] = left
                else:
                    del above.children[subsystem]
        self._extra_edges = {edge for edge in self._extra_edges if not inside & set(edge[:2])}
        for vertex in gone:
            self._forget(vertex)
        if self.has_shared:
            self._hand_on(inside)
        return gone

    def _hand_on(self, gone: set[int]) -> None:
        """What stays although its first parent has gone belongs to the next one."""
        for vertex in self.vertices.values():
            for child in vertex.below():
                first = child.parents.get(CONTAINMENT)
                if first is None or first.index in gone:
                    child.parents[CONTAINMENT] = vertex

    def subtree(self, top: Vertex) -> list[Vertex]:
        """What would leave with a vertex: all below it that nothing else contains."""
        return self._only_below(top) if self.has_shared else list(self.walk(top))

    def _only_below(self, top: Vertex) -> list[Vertex]:
        """A vertex and what lies below it alone; what somebody else contains too stays with them."""
        parents: dict[int, set[int]] = {}
        for vertex in self.vertices.values():
            for child in vertex.below():
                parents.setdefault(child.index, set()).add(vertex.index)
        gone = {top.index: top}
        order = [top]
        for vertex in order:  # grows while it is walked
            for child in vertex.below():
                if child.index not in gone and parents[child.index] <= gone.keys():
                    gone[child.index] = child
                    order.append(child)
        return order

    def walk(self, top: Vertex, subsystem: str = CONTAINMENT) -> Iterator[Vertex]:
        """A vertex and all below it, each once, parents first, in edge order."""
        pending = [top]
        seen: set[int] = set()
        while pending:
            vertex = pending.pop()
            if self.has_shared or subsystem != CONTAINMENT:
                if vertex.index in seen:
                    continue
                seen.add(vertex.index)
            yield vertex
            pending.extend(reversed(vertex.below(subsystem)))

    def check_complete(self) -> None:
        """Every vertex must hang below the root of containment, at most `DEPTH_MAX` deep, in no cycle."""
        depth = {self.root.index: 1}
        pending = [self.root]
        while pending:
            vertex = pending.pop()
            if depth[vertex.index] > DEPTH_MAX:
                raise BadGraph(
                    "a cycle, or too many levels",
                    where=vertex.path(),
                    found=f"{vertex.name} on level {DEPTH_MAX + 1} or again below itself",
                    expected=f"at most {DEPTH_MAX} levels",
                )
            for child in vertex.below():
                if depth.get(child.index, 0) <= depth[vertex.index]:
                    depth[child.index] = depth[vertex.index] + 1
                    pending.append(child)
        for vertex in self.vertices.values():
            if CONTAINMENT in vertex.paths and vertex.index not in depth:
                raise BadGraph(
                    f"{vertex.name} does not hang below the root",
                    where=vertex.path() or vertex.name,
                    found="no chain of edges from the root",
                    expected="edges that lead from the root to every vertex",
                )

    def _add(self, spec: VertexSpec) -> Vertex:
        vertex = Vertex(spec, self._next_index)
        self._next_index += 1
        self.vertices[vertex.index] = vertex
        self._by_type.setdefault(vertex.type, {})[vertex.index] = vertex
        self._by_rank.setdefault(vertex.rank, {})[vertex.index] = vertex
        return vertex

    def _forget(self, vertex: Vertex) -> None:
        del self.vertices[vertex.index]
        del self._by_type[vertex.type][vertex.index]
        del self._by_rank[vertex.rank][vertex.index]
        for path in vertex.paths.values():
            self._by_path[path].remove(vertex)
            if not self._by_path[path]:
                del self._by_path[path]
