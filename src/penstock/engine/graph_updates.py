"""Changes of the graph under running jobs: remove, resize, drain, set properties.

No function here ends a job. Removing a subtree releases what jobs hold on it; the result names these jobs,
and the caller decides what happens to them.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.engine.engine import Engine
from penstock.engine.graph import BadGraph, Vertex
from penstock.engine.vertex_state import refresh_excess

__all__ = ["Removal", "is_booked", "remove", "resize", "set_property", "set_status"]


@dataclass(frozen=True, slots=True)
class Removal:
    vertices: int
    shrunk: tuple[int, ...]  # jobs that lost some of their resources
    emptied: tuple[int, ...]  # jobs that lost all of their resources


def set_status(vertex: Vertex, up: bool) -> None:
    """Sets a vertex up or down. Allocations on it stay; no match uses a vertex that is down."""
    vertex.up = up


def set_property(vertex: Vertex, key: str, value: str) -> None:
    vertex.set_property(key, value)


def resize(engine: Engine, vertex: Vertex, size: int, *, recount: bool = True) -> None:
    """Changes the size of a pool. A size below what is booked makes its free units negative.

    A caller with many changes passes `recount=False` and calls `Engine.recompute_totals` after the last one.
    """
    if size < 0:
        raise BadGraph(
            "a pool cannot have a negative size", where=vertex.path(), found=str(size), expected=">= 0"
        )
    vertex.size = size
    refresh_excess(vertex)
    if recount:
        engine.recompute_totals()


def remove(engine: Engine, top: Vertex, *, recount: bool = True) -> Removal:
    """Removes a subtree, and releases what jobs and external usage have on it.

    `recount=False`: as in `resize`.
    """
    if top.parent() is None:
        raise BadGraph("the root cannot be removed", where=top.path(), expected="a vertex below the root")
    inside = engine.graph.subtree(top)
    # A job that holds an ancestor as a whole holds the subtree too, so it loses something as well.
    affected = (*inside, *top.ancestors())
    jobs = sorted({job for vertex in affected for job in _holders(vertex)})
    emptied = tuple(job for job in jobs if engine.release_vertices(job, inside))
    detached = engine.external_usage.detach(inside)
    gone = {vertex.index for vertex in engine.graph.remove_subtree(top)}
    for usage in detached:
        if usage.at.index not in gone:
            engine.external_usage.set(
                usage.name, usage.at, usage.units, standing=usage.standing, brings=usage.brings
            )
    if recount:
        engine.recompute_totals()
    return Removal(len(inside), tuple(job for job in jobs if job not in emptied), emptied)


def is_booked(engine: Engine, top: Vertex) -> bool:
    """Whether a job has a booking in a subtree."""
    return any(_holders(vertex) for vertex in engine.graph.subtree(top))


def _holders(vertex: Vertex) -> list[int]:
    """The jobs with units of the vertex itself."""
    if vertex.state is None or vertex.state.plan.is_empty():
        return []  # Usually an ancestor: jobs are present there (all of them, at the root) without units.
    return [job for (job, _), booking in vertex.state.bookings.items() if booking.units]
