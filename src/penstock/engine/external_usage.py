"""External usage: resources used by workloads that this scheduler does not manage.

An external usage has a name, a vertex (mostly a node), units by resource type, and no end. The units of each
type are distributed over the vertices of that type below, in edge order, filling one before the next;
vertices with bookings of our jobs come last. External usage can exceed the capacity: the excess is put on the
first vertex, whose free units are negative for that time. The exclusion keys that it brings are in use at the
vertices of their levels above it. Setting an external usage again replaces it.

Usage that found too few free units, or no vertex of a type, is distributed again when bookings or vertices
change on its node. The node is all that it can reach, so a change costs nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from penstock.engine.graph import Graph, Vertex
from penstock.engine.planner import FOREVER
from penstock.engine.vertex_state import ExternalShare, VertexState, refresh_excess
from penstock.engine.walker import NODE
from penstock.errors import BadRequest
from penstock.model.exclusion_key import ExclusionKey

__all__ = ["ExternalUsage", "ExternalUsageTable"]


_Key = TypeVar("_Key")
_NO_NODE: Final = -1  # stands for the node of a vertex that is in none


@dataclass(frozen=True, slots=True)
class ExternalUsage:
    name: str
    at: Vertex
    units: Mapping[str, int]  # by resource type
    standing: bool
    brings: tuple[ExclusionKey, ...] = ()


def _ignore() -> None:
    """Stands for a reader that there is not."""


class ExternalUsageTable:
    """The external usage of an engine, by name."""

    def __init__(self, graph: Graph) -> None:
        self.changed: set[int] = set()  # nodes (indexes) on which usage was set or removed
        self.standing_changed: Callable[[], None] = _ignore  # called when standing usage was set or removed
        self._graph = graph
        self._vertices: dict[str, list[Vertex]] = {}
        self._usages: dict[str, ExternalUsage] = {}
        self._places: dict[str, int] = {}  # the order in which usage was last distributed
        self._next_place = 0
        # By the outermost node (its index): names of usage that did not fit into free units
        self._crowded: dict[int, dict[str, None]] = {}
        # By type and node: names of usage that found no vertex of the type
        self._unplaced: dict[tuple[str, int], dict[str, None]] = {}

    def copy(self, graph: Graph) -> ExternalUsageTable:
        """The same usage on a copy of the graph."""
        other = ExternalUsageTable(graph)
        vertices = graph.vertices
        other._vertices = {
            name: [vertices[vertex.index] for vertex in touched] for name, touched in self._vertices.items()
        }
        other._usages = {
            name: ExternalUsage(name, vertices[usage.at.index], usage.units, usage.standing, usage.brings)
            for name, usage in self._usages.items()
        }
        other._places = dict(self._places)
        other._next_place = self._next_place
        other._crowded = {node: dict(names) for node, names in self._crowded.items()}
        other._unplaced = {key: dict(names) for key, names in self._unplaced.items()}
        return other

    def __contains__(self, name: str) -> bool:
        return name in self._vertices

    def standing_keys(self, node: Vertex) -> frozenset[ExclusionKey]:
        """The keys that standing usage on a vertex or below it brings, of any level."""
        if node.state is None:
            return frozenset()
        usages = (self._usages[name] for name, share in node.state.external.items() if share.standing)
        return frozenset(key for usage in usages for key in usage.brings)

    def set(
        self,
        name: str,
        at: Vertex,
        units: Mapping[str, int],
        *,
        standing: bool = False,
        brings: tuple[ExclusionKey, ...] = (),
    ) -> None:
        """Records external usage of `units` (by resource type) on a vertex or below it."""
        for resource_type, count in units.items():
            if count < 0:
                raise BadRequest(
                    "external usage cannot be negative",
                    where=f"{name}.{resource_type}",
                    found=str(count),
                    expected="0 or more",
                )
        self._detach(name)
        own, is_crowded = self._distribute(name, at, units)
        if is_crowded:
            self._crowded.setdefault(_node_index(at), {})[name] = None
        below: dict[int, dict[str, int]] = {}
        touched: dict[int, Vertex] = {at.index: at}
        for vertex, count in own:
            touched[vertex.index] = vertex
            for above in vertex.ancestors():
                used = below.setdefault(above.index, {})
                used[vertex.type] = used.get(vertex.type, 0) + count
        for vertex in list(touched.values()):
            for above in vertex.ancestors():
                touched[above.index] = above
        own_units = {vertex.index: count for vertex, count in own}
        holders = {at.index, *(above.index for above in at.ancestors())} if brings else ()
        for vertex in touched.values():
            if vertex.state is None:
                vertex.state = VertexState()
            keys = tuple(key for key in brings if key.level == vertex.type and vertex.index in holders)
            share = ExternalShare(own_units.get(vertex.index, 0), below.get(vertex.index, {}), standing, keys)
            vertex.state.add_external(name, share)
            if vertex.type == NODE:
                self.changed.add(vertex.index)
        for vertex in touched.values():
            refresh_excess(vertex)
        self._vertices[name] = list(touched.values())
        self._usages[name] = ExternalUsage(name, at, dict(units), standing, brings)
        self._places[name] = self._next_place
        self._next_place += 1
        if standing:
            self.standing_changed()

    def remove(self, name: str) -> None:
        """Removes an external usage. An unknown name is ignored."""
        self.redistribute(self._detach(name))

    def _detach(self, name: str) -> list[Vertex]:
        """Removes an external usage. Returns the vertices that it touched."""
        usage = self._usages.pop(name, None)
        if usage is None:
            return []
        if usage.standing:
            self.standing_changed()
        del self._places[name]
        node = _node_index(usage.at)
        _discard(self._crowded, node, name)
        for resource_type in usage.units if self._unplaced else ():
            _discard(self._unplaced, (resource_type, node), name)
        touched = self._vertices.pop(name)
        for vertex in touched:
            state = vertex.state
            if state is not None and name in state.external:
                state.remove_external(name)
                refresh_excess(vertex)
            if vertex.type == NODE:
                self.changed.add(vertex.index)
        for vertex in touched:
            if vertex.state is not None and vertex.state.is_empty():
                vertex.state = None
        return touched

    def detach(self, vertices: Iterable[Vertex]) -> list[ExternalUsage]:
        """Removes every external usage that touches one of these vertices, so that it can be set again."""
        states = (vertex.state for vertex in vertices)
        names = dict.fromkeys(name for state in states if state is not None for name in state.external)
        detached = [self._usages[name] for name in names]
        for usage in detached:
            self._detach(usage.name)
        return detached

    def redistribute(self, changed: Iterable[Vertex], added: Iterable[Vertex] = ()) -> None:
        """Distributes again the usage that did not fit, on the nodes of these vertices.

        Must be called after bookings were released or the graph has changed, with the vertices that have
        more or fewer free units. Usage above the nodes reaches several of them: while such usage does not
        fit, a change anywhere counts for all.
        """
        again: dict[str, None] = {}
        if _NO_NODE in self._crowded:
            again = {name: None for names in self._crowded.values() for name in names}
        elif self._crowded:
            for node in dict.fromkeys(map(_node_index, changed)):
                again.update(self._crowded.get(node, ()))
        for vertex in added if self._unplaced else ():
            for node in (_node_index(vertex), _NO_NODE):
                again.update(self._unplaced.get((vertex.type, node), ()))
        for name in sorted(again, key=lambda name: self._places[name]):
            usage = self._usages[name]
            self.set(usage.name, usage.at, usage.units, standing=usage.standing, brings=usage.brings)

    def _distribute(
        self, name: str, at: Vertex, units: Mapping[str, int]
    ) -> tuple[list[tuple[Vertex, int]], bool]:
        """The units per vertex, and whether they exceed what is free.

        Units without any booking are used first: which core or gpu an external workload uses is unknown, but
        it is not one that our jobs use.
        """
        own: list[tuple[Vertex, int]] = []
        is_crowded = False
        for resource_type, count in units.items():
            pools = [vertex for vertex in self._graph.walk(at) if vertex.type == resource_type]
            if not pools:
                # Only an added vertex changes this, so it is not tried again at every release.
                self._unplaced.setdefault((resource_type, _node_index(at)), {})[name] = None
                continue
            shares = [0] * len(pools)
            left = count
            for with_ours in (False, True):
                for position, vertex in enumerate(pools):
                    share = min(left, max(_free(vertex, with_ours) - shares[position], 0))
                    shares[position] += share
                    left -= share
                is_crowded = is_crowded or (left > 0 and not with_ours)
            shares[0] += left
            own.extend((vertex, share) for vertex, share in zip(pools, shares, strict=True) if share)
            is_crowded = is_crowded or left > 0
        return own, is_crowded


def _free(vertex: Vertex, with_ours: bool) -> int:
    """Units without external usage; unless `with_ours`, also without a booking at any time."""
    state = vertex.state
    if state is None:
        return vertex.size
    booked = 0 if with_ours else state.plan.booked_most(0, FOREVER)
    return vertex.size - state.external_units[0] - state.external_units[1] - booked


def _node_index(vertex: Vertex) -> int:
    """The index of the outermost node that contains the vertex."""
    found = _NO_NODE
    at: Vertex | None = vertex
    while at is not None:
        if at.type == NODE:
            found = at.index
        at = at.parent()
    return found


def _discard(names_by_key: dict[_Key, dict[str, None]], key: _Key, name: str) -> None:
    names = names_by_key.get(key, {})
    if name in names:
        del names[name]
        if not names:
            del names_by_key[key]
