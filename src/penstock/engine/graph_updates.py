"""Changes of the graph under running jobs: add, remove, resize.

The graph of an engine is changed only here. Totals are adjusted along the ancestors of a change, so it costs
what is added or removed. Three things need a count of the whole graph: a graph
that is no tree (shared vertices, edges of other subsystems), edges that a reader may add anywhere (`attach`),
and a leaf of a type of which there were only inner vertices so far: their bookings must count the type from
then on. The last happens once per type, as a type stays a filter type.

No method here ends a job. Removing a subtree releases what jobs hold on it; the result names these jobs, and
the caller decides what happens to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from penstock.engine.allocation_table import AllocationTable
from penstock.engine.external_usage import ExternalUsageTable
from penstock.engine.filters import Filters
from penstock.engine.graph import BadGraph, Graph, Vertex, VertexTree
from penstock.engine.node_index import NodeIndex
from penstock.engine.vertex_state import forget_usage, refresh_excess

__all__ = ["GraphUpdater", "Removal"]


@dataclass(frozen=True, slots=True)
class Removal:
    vertices: int
    shrunk: tuple[int, ...]  # jobs that lost some of their resources
    emptied: tuple[int, ...]  # jobs that lost all of their resources
    # By job: slots that lost some of their resources
    shortened: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class GraphUpdater:
    def __init__(
        self,
        graph: Graph,
        filters: Filters,
        table: AllocationTable,
        external_usage: ExternalUsageTable,
        index: NodeIndex,
    ) -> None:
        self._graph = graph
        self._index = index
        self._filters = filters
        self._table = table
        self._external_usage = external_usage

    def add(self, parent: Vertex, tree: VertexTree) -> Vertex:
        added = self._graph.add_tree(parent, tree)
        forget_usage((parent, *parent.ancestors()))
        kept = self._filters.keep_leaves(added)
        is_known = any(
            self._graph.number_of(resource_type) > sum(vertex.type == resource_type for vertex in added)
            for resource_type in kept
        )
        if is_known or not self._graph.is_tree:
            self._recount()
        else:
            self._filters.count_added(self._graph, added[0], kept)
            if kept:
                self._table.tracked = self._filters.tracked
        self._external_usage.redistribute(added, added)
        self._index.add(added)
        return added[0]

    def attach(self, read: Callable[[Graph], list[Vertex]]) -> list[Vertex]:
        added = read(self._graph)
        forget_usage(self._graph.vertices.values())
        self._recount()
        self._external_usage.redistribute(added, added)
        self._index.forget_all()
        return added

    def remove(self, top: Vertex) -> Removal:
        graph, external_usage = self._graph, self._external_usage
        parent = top.parent()
        if parent is None:
            raise BadGraph("the root cannot be removed", where=top.path(), expected="a vertex below the root")
        inside = graph.subtree(top)
        ancestors = list(top.ancestors())
        forget_usage(ancestors)
        # A job that holds an ancestor as a whole holds the subtree too, so it loses something as well.
        jobs = sorted({job for vertex in (*inside, *ancestors) for job in _holders(vertex)})
        shortened = {job: self._table.release_vertices(self._table.jobs[job], inside) for job in jobs}
        emptied = tuple(job for job in jobs if job not in self._table.jobs)
        detached = external_usage.detach(inside)
        gone = {vertex.index for vertex in graph.remove_subtree(top)}
        for usage in detached:
            if usage.at.index not in gone:
                external_usage.set(
                    usage.name, usage.at, usage.units, standing=usage.standing, brings=usage.brings
                )
        if self._filters.keep_leaves([parent]) or not graph.is_tree:
            self._recount()
        else:
            self._filters.count_removed(inside, ancestors)
        external_usage.redistribute(inside)
        self._index.remove(top, parent)
        shrunk = tuple(job for job in jobs if job in self._table.jobs)
        return Removal(
            len(inside), shrunk, emptied, {job: slots for job, slots in shortened.items() if slots}
        )

    def resize(self, vertex: Vertex, size: int) -> None:
        if size < 0:
            raise BadGraph(
                "a pool cannot have a negative size", where=vertex.path(), found=str(size), expected=">= 0"
            )
        added_units = size - vertex.size
        vertex.size = size
        refresh_excess(vertex)
        forget_usage(vertex.ancestors())
        if self._graph.is_tree:
            self._filters.count_resized(vertex, added_units)
        else:
            self._filters.compute_totals(self._graph)
        self._external_usage.redistribute([vertex])
        self._index.touch_capacity(vertex)

    def is_booked(self, top: Vertex) -> bool:
        return any(_holders(vertex) for vertex in self._graph.subtree(top))

    def _recount(self) -> None:
        """Counts the whole graph, and makes existing bookings count the types that became filter types."""
        self._filters.compute_totals(self._graph)
        if self._filters.tracked != self._table.tracked:
            self._table.count_again(self._filters.tracked)


def _holders(vertex: Vertex) -> list[int]:
    """The jobs with units of the vertex itself."""
    if vertex.state is None or vertex.state.plan.is_empty():
        return []  # Usually an ancestor: jobs are present there (all of them, at the root) without units.
    return [job for (job, _), booking in vertex.state.bookings.items() if booking.units]
