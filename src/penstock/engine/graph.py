"""The resource graph: vertices of any type, connected by edges that belong to a subsystem.

A vertex is an allocatable resource: a rack, a node, a core, a pool of memory. It has one position per
subsystem; the matcher walks `containment`. Children are kept in the order in which their edges were added.
Containment has no cycle and at most `DEPTH_MAX` levels, so it can be walked recursively; readers reject other
input. It is mostly a tree. A vertex with several parents (storage that a rack and a chassis both list)
belongs to the first of them, and `has_shared` makes walks visit it once.

A vertex describes the resource; bookings are kept apart in `state`, which is `None` while nothing is booked
on or below the vertex. Allocations of whole nodes are booked at the node; at the vertices inside that is
`deferred` until somebody reads the state of one of them (see `node_blocks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from penstock.errors import BadRequest

if TYPE_CHECKING:
    from _collections_abc import dict_values

    from penstock.engine.node_blocks import DeferredBookings
    from penstock.engine.vertex_state import VertexState

__all__ = ["CONTAINMENT", "DEPTH_MAX", "BadGraph", "Graph", "Vertex", "VertexSpec", "VertexTree"]

CONTAINMENT: Final = "containment"
DEPTH_MAX: Final = 64

_NO_PROPERTIES: Final[dict[str, str]] = {}
_NO_CHILDREN: Final[dict[int, Vertex]] = {}


class BadGraph(BadRequest):
    """An invalid description of a resource graph."""


@dataclass(frozen=True, slots=True)
class VertexSpec:
    """The attributes of a vertex before it is added to a graph."""

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


@dataclass(frozen=True, slots=True)
class VertexTree:
    """A vertex and its children before they are added to a graph."""

    spec: VertexSpec
    children: tuple[VertexTree, ...] = ()


class Vertex:
    """One resource. `order` is the position of its containment edge among all edges added."""

    __slots__ = (
        "_state",
        "basename",
        "children",
        "deferred",
        "divisible",
        "home",
        "id",
        "index",
        "name",
        "order",
        "parents",
        "paths",
        "properties",
        "rank",
        "size",
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
        self.children: dict[str, dict[int, Vertex]] = {}  # by subsystem and index, in edge order
        self.order = 0
        # Units of each filter type below this vertex; `None` if no filter applies.
        self.totals: dict[str, int] | None = None
        self._state: VertexState | None = None
        self.home: Vertex | None = None  # the node around it, once bookings inside that node can be deferred
        self.deferred: DeferredBookings | None = None  # of a node: bookings that vertices inside lack yet

    @property
    def state(self) -> VertexState | None:
        """Bookings and external usage on or below the vertex; None: nothing."""
        home = self.home
        if home is not None and home.deferred is not None:
            home.deferred.settle(home)
        return self._state

    @state.setter
    def state(self, state: VertexState | None) -> None:
        self._state = state

    @property
    def has_own_state(self) -> bool:
        """Whether it has a state apart from deferred bookings."""
        return self._state is not None

    def below(self, subsystem: str = CONTAINMENT) -> dict_values[int, Vertex]:
        """The children in a subsystem, in edge order. A view: the graph must not change meanwhile."""
        return self.children.get(subsystem, _NO_CHILDREN).values()

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

    # Copies of a vertex share properties and paths, so these are replaced, not changed.

    def set_property(self, key: str, value: str) -> None:
        self.properties = {**self.properties, key: value}

    def remove_property(self, key: str) -> None:
        if key in self.properties:
            self.properties = {other: value for other, value in self.properties.items() if other != key}

    def copy(self) -> Vertex:
        """A copy with its own state and totals, but without edges (see `Graph.copy`)."""
        other = Vertex.__new__(Vertex)
        other.index = self.index
        other.type = self.type
        other.basename = self.basename
        other.id = self.id
        other.name = self.name
        other.uniq_id = self.uniq_id
        other.rank = self.rank
        other.size = self.size
        other.unit = self.unit
        other.properties = self.properties
        other.up = self.up
        other.divisible = self.divisible
        other.paths = self.paths
        other.order = self.order
        other.parents = {}
        other.children = {}
        other.totals = None if self.totals is None else dict(self.totals)
        other._state = None if self._state is None else self._state.copy()
        other.home = other.deferred = None
        return other

    def __repr__(self) -> str:
        return f"Vertex({self.path() or self.name})"


class Graph:
    """All vertices, one root per subsystem, and indexes by path, type and rank."""

    def __init__(self) -> None:
        self.vertices: dict[int, Vertex] = {}
        self.roots: dict[str, Vertex] = {}
        self.has_shared = False  # some vertex has several parents in containment
        self.is_tree = True  # containment has no shared vertex, and there are no edges of other subsystems
        self._extra_edges: set[tuple[int, int, str]] = set()  # edges to vertices that already have a parent
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
        """All vertices of a type, in the order in which they were added."""
        return list(self._by_type.get(resource_type, {}).values())

    def each_of_type(self, resource_type: str) -> Iterable[Vertex]:
        """As `of_type`, as a view: the graph must not change meanwhile."""
        return self._by_type.get(resource_type, _NO_CHILDREN).values()

    def number_of(self, resource_type: str) -> int:
        return len(self._by_type.get(resource_type, ()))

    def of_rank(self, rank: int) -> list[Vertex]:
        return list(self._by_rank.get(rank, {}).values())

    def ranks(self) -> list[int]:
        return sorted(rank for rank, members in self._by_rank.items() if members and rank >= 0)

    def at_path(self, path: str) -> list[Vertex]:
        """The vertices at a path: one, unless the input has several ranks at the same path."""
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

    def copy(self) -> Graph:
        """An independent graph with equal vertices under the same indexes, and copies of their states."""
        other = Graph()
        copies = other.vertices = {index: vertex.copy() for index, vertex in self.vertices.items()}
        for index, vertex in self.vertices.items():
            # A parent in another subsystem may be gone.
            copies[index].parents = {
                subsystem: copies.get(above.index, above) for subsystem, above in vertex.parents.items()
            }
            if vertex.children:
                copies[index].children = {
                    subsystem: {child: copies[child] for child in kids}
                    for subsystem, kids in vertex.children.items()
                }
            if vertex.home is not None:
                copies[index].home = copies.get(vertex.home.index)
            if vertex.deferred is not None:
                copies[index].deferred = vertex.deferred.on_copies(copies)
        other.roots = {subsystem: copies[root.index] for subsystem, root in self.roots.items()}
        other.has_shared = self.has_shared
        other.is_tree = self.is_tree
        other._extra_edges = set(self._extra_edges)
        other._by_path = {path: [copies[v.index] for v in here] for path, here in self._by_path.items()}
        other._by_type = {name: {i: copies[i] for i in members} for name, members in self._by_type.items()}
        other._by_rank = {rank: {i: copies[i] for i in members} for rank, members in self._by_rank.items()}
        other._next_index = self._next_index
        other._next_order = self._next_order
        return other

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

    def add_tree(self, parent: Vertex, tree: VertexTree) -> list[Vertex]:
        """Adds a subtree. Returns the added vertices, parents first, in edge order."""
        added: list[Vertex] = []
        pending = [(parent, tree)]
        while pending:
            above, branch = pending.pop()
            vertex = self.add_child(above, branch.spec)
            added.append(vertex)
            pending.extend((vertex, child) for child in reversed(branch.children))
        return added

    def add_unlinked(self, spec: VertexSpec) -> Vertex:
        """Adds a vertex without an edge. The reader must link it, or the graph stays incomplete."""
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
            return  # The edge exists.
        if first is None:
            child.parents[subsystem] = parent
        else:
            self._extra_edges.add(edge)
            self.has_shared = self.has_shared or subsystem == CONTAINMENT
        self.is_tree = self.is_tree and subsystem == CONTAINMENT and not self.has_shared
        parent.children.setdefault(subsystem, {})[child.index] = child
        if subsystem == CONTAINMENT and child.order == 0:
            child.order = self._next_order
            self._next_order += 1

    def set_path(self, vertex: Vertex, subsystem: str, path: str) -> None:
        vertex.paths = {**vertex.paths, subsystem: path}
        self._by_path.setdefault(path, []).append(vertex)

    def remove_subtree(self, top: Vertex) -> list[Vertex]:
        """Removes a vertex and its subtree. Returns the removed vertices, children last."""
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
        for vertex in gone:
            for subsystem, above in vertex.parents.items():
                self._unlink(above, vertex, subsystem, inside)
        if self._extra_edges:
            cut = [edge for edge in self._extra_edges if edge[0] in inside or edge[1] in inside]
            for source, target, subsystem in cut:
                self._unlink(self.vertices[source], self.vertices[target], subsystem, inside)
            self._extra_edges.difference_update(cut)
        for vertex in gone:
            self._forget(vertex)
        if self.has_shared:
            self._reparent(inside)
        return gone

    def _unlink(self, parent: Vertex, child: Vertex, subsystem: str, gone: set[int]) -> None:
        """Removes an edge from a vertex that stays."""
        kids = parent.children.get(subsystem, {})
        if parent.index not in gone and child.index in kids:
            del kids[child.index]
            if not kids:
                del parent.children[subsystem]

    def _reparent(self, gone: set[int]) -> None:
        """Gives each remaining vertex whose first parent was removed its next parent."""
        for vertex in self.vertices.values():
            for child in vertex.below():
                first = child.parents.get(CONTAINMENT)
                if first is None or first.index in gone:
                    child.parents[CONTAINMENT] = vertex

    def subtree(self, top: Vertex) -> list[Vertex]:
        """A vertex and the vertices that removing it would remove."""
        return self._only_below(top) if self.has_shared else list(self.walk(top))

    def _only_below(self, top: Vertex) -> list[Vertex]:
        """A vertex and its descendants, without those that another parent also contains."""
        parents: dict[int, set[int]] = {}
        for vertex in self.vertices.values():
            for child in vertex.below():
                parents.setdefault(child.index, set()).add(vertex.index)
        gone = {top.index: top}
        order = [top]
        for vertex in order:  # grows during the iteration
            for child in vertex.below():
                if child.index not in gone and parents[child.index] <= gone.keys():
                    gone[child.index] = child
                    order.append(child)
        return order

    def walk(self, top: Vertex, subsystem: str = CONTAINMENT) -> Iterator[Vertex]:
        """A vertex and its descendants, each once, parents first, in edge order."""
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
        """Checks that every vertex is reachable from the root, at most `DEPTH_MAX` deep, without a cycle."""
        depth = {self.root.index: 1}
        pending = [self.root]
        while pending:
            vertex = pending.pop()
            if depth[vertex.index] > DEPTH_MAX:
                raise BadGraph(
                    "the graph has a cycle or is too deep",
                    where=vertex.path(),
                    found=f"{vertex.name} at depth {DEPTH_MAX + 1} or below itself",
                    expected=f"a depth of at most {DEPTH_MAX}",
                )
            for child in vertex.below():
                if depth.get(child.index, 0) <= depth[vertex.index]:
                    depth[child.index] = depth[vertex.index] + 1
                    pending.append(child)
        for vertex in self.vertices.values():
            if CONTAINMENT in vertex.paths and vertex.index not in depth:
                raise BadGraph(
                    f"{vertex.name} is not connected to the root",
                    where=vertex.path() or vertex.name,
                    found="no path from the root",
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
