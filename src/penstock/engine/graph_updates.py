"""Changes in place: vertices come, go, grow and shrink while jobs hold what they have.

Nothing here ends a job by itself. A subtree that leaves takes the shares that lay on it with it;
the jobs that lost something are named, so that the caller can decide what becomes of them.
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
    shrunk: tuple[int, ...]  # jobs that lost a part of what they had
    emptied: tuple[int, ...]  # jobs that hold nothing any more


def set_status(vertex: Vertex, up: bool) -> None:
    """Up or down. What is allocated there stays allocated; nothing new goes to what is down."""
    vertex.up = up


def set_property(vertex: Vertex, key: str, value: str) -> None:
    vertex.set_property(key, value)


def resize(engine: Engine, vertex: Vertex, size: int, *, recount: bool = True) -> None:
    """Gives a pool another size. Made smaller than what is booked, it has negative units free.

    Whoever makes many changes at once says `recount=False`, and calls `Engine.reprime` after the last one.
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
    """Takes a vertex and all below it away, with the shares that jobs and others have there.

    `recount=False`: as in `resize`.
    """
    if top.parent() is None:
        raise BadGraph("the root cannot be removed", where=top.path(), expected="a vertex below the root")
    inside = engine.graph.subtree(top)
    # What is held above is held with all below it, so whoever holds it loses something as well.
    losers = (*inside, *top.ancestors())
    jobs = sorted({job for vertex in losers for job in _holders(vertex)})
    emptied = tuple(job for job in jobs if engine.release_vertices(job, inside))
    detached = engine.external_usage.detach(inside)
    gone = {vertex.index for vertex in engine.graph.remove_subtree(top)}
    for hold in detached:
        if hold.at.index not in gone:
            engine.external_usage.set(hold.name, hold.at, hold.amounts, standing=hold.standing)
    if recount:
        engine.recompute_totals()
    return Removal(len(inside), tuple(job for job in jobs if job not in emptied), emptied)


def is_booked(engine: Engine, top: Vertex) -> bool:
    """Whether a job has anything of a vertex, or of what is below it."""
    return any(_holders(vertex) for vertex in engine.graph.subtree(top))


def _holders(vertex: Vertex) -> list[int]:
    """The jobs that have units of the vertex itself."""
    if vertex.state is None or vertex.state.plan.is_empty():
        return []  # Most of those who are above only pass through: that is every job, at the root.
    return [job for (job, _), booking in vertex.state.bookings.items() if booking.units]
