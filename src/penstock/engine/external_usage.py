"""External usage: resources used by workloads that this scheduler does not manage.

An external usage has a name, a vertex (mostly a node), units by resource type, and no end. The units of each
type are distributed over the vertices of that type below, in edge order, filling one before the next;
vertices with bookings of our jobs come last. External usage can exceed the capacity: the excess is put on the
first vertex, whose free units are negative for that time. The exclusion keys that it brings are in use at the
vertices of their levels above it. Setting an external usage again replaces it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.engine.graph import Graph, Vertex
from penstock.engine.planner import FOREVER
from penstock.engine.vertex_state import ExternalShare, VertexState, refresh_excess
from penstock.errors import BadRequest
from penstock.model.exclusion_key import ExclusionKey

__all__ = ["ExternalUsage", "ExternalUsageTable"]


@dataclass(frozen=True, slots=True)
class ExternalUsage:
    name: str
    at: Vertex
    units: Mapping[str, int]  # by resource type
    standing: bool
    brings: tuple[ExclusionKey, ...] = ()


class ExternalUsageTable:
    """The external usage of an engine, by name."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._vertices: dict[str, list[Vertex]] = {}
        self._usages: dict[str, ExternalUsage] = {}
        self._crowded: set[str] = set()  # names of usage that did not fit into free units
        self._unplaced: dict[str, dict[str, None]] = {}  # by type: names of usage that found no vertex of it
        self._newest: dict[str, int] = {}  # by such a type: its newest vertex at the last attempt

    def __contains__(self, name: str) -> bool:
        return name in self._vertices

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
            self._crowded.add(name)
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
        for vertex in touched.values():
            refresh_excess(vertex)
        self._vertices[name] = list(touched.values())
        self._usages[name] = ExternalUsage(name, at, dict(units), standing, brings)

    def remove(self, name: str) -> None:
        """Removes an external usage. An unknown name is ignored."""
        self._detach(name)
        self.redistribute()

    def _detach(self, name: str) -> None:
        usage = self._usages.pop(name, None)
        self._crowded.discard(name)
        for resource_type in usage.units if usage is not None and self._unplaced else ():
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
        """Removes every external usage that touches one of these vertices, so that it can be set again."""
        states = (vertex.state for vertex in vertices)
        names = dict.fromkeys(name for state in states if state is not None for name in state.external)
        detached = [self._usages[name] for name in names]
        for usage in detached:
            self._detach(usage.name)
        return detached

    def redistribute(self) -> None:
        """Distributes again the usage that did not fit. Must be called after bookings or the graph change."""
        again = set(self._crowded)
        for resource_type, unplaced in self._unplaced.items():
            if self._graph.newest(resource_type) != self._newest[resource_type]:
                self._newest[resource_type] = self._graph.newest(resource_type)
                again.update(unplaced)
        for name in [name for name in self._usages if name in again] if again else ():
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
                # Only an added vertex changes this, so it is not tried again at every release: there can be
                # thousands (pods with a resource that their node does not report any more).
                self._unplaced.setdefault(resource_type, {})[name] = None
                self._newest.setdefault(resource_type, self._graph.newest(resource_type))
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
