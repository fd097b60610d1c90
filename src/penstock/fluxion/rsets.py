"""Sets that were written out before: booking them again, and giving back parts of them."""

from __future__ import annotations

from dataclasses import replace

from penstock.engine.allocation import Allocation, AllocationKind
from penstock.engine.booking import Mark
from penstock.engine.engine import Engine
from penstock.engine.graph import Graph, Vertex
from penstock.errors import BadRequest
from penstock.fluxion.checks import NOW
from penstock.fluxion.readers.jgf import marks_in_jgf, vertices_in_jgf
from penstock.fluxion.readers.rv1exec import marks_in_rset, ranks_in_rset

__all__ = ["reapply", "release_part", "vertices_named"]


def reapply(engine: Engine, job: int, reader: str, text: bytes, start: int, end: int) -> Allocation:
    """Books a set in JGF or R under a job's number."""
    graph = engine.graph
    if reader == "jgf":
        return engine.update(job, marks_in_jgf(graph, text), start, end, AllocationKind.ALLOCATED, NOW)
    answer = engine.update(job, marks_in_rset(graph, text), start, end, AllocationKind.ALLOCATED, NOW)
    # Fluxion writes every node that R names as exclusive, though it books only those named in full.
    picks = tuple(
        replace(pick, exclusive=pick.exclusive or pick.vertex.type == "node") for pick in answer.picks
    )
    return replace(answer, picks=picks)


def vertices_named(graph: Graph, reader: str, text: bytes) -> list[Vertex]:
    """The vertices that a partial cancel names: whole ranks by R, single ones by JGF."""
    if reader == "jgf":
        return vertices_in_jgf(graph, text)
    vertices: list[Vertex] = []
    for rank in ranks_in_rset(text):
        members = graph.of_rank(rank)
        if not members:
            raise BadRequest("no such rank", found=str(rank))
        vertices.extend(members)
    return vertices


def release_part(engine: Engine, job: int, vertices: list[Vertex]) -> bool:
    """True if the job is over. Fluxion sees that only by the totals at the root.

    A job none of whose types is counted there is never over by parts: it stays, as a guest on the
    vertices above, until it is cancelled.
    """
    root = engine.graph.root
    before = engine.allocation(job)
    bookings = root.state.bookings.items() if root.state is not None else ()
    is_counted = any(booking.below for (number, _), booking in bookings if number == job)
    if not engine.release_vertices(job, vertices):
        return False
    if is_counted:
        return True
    gone = {vertex.index for vertex in vertices}
    passed = [pick.vertex for pick in before.picks if pick.vertex.index not in gone]
    guests = [Mark(vertex, 0, True, False) for vertex in passed]
    engine.update(job, guests, before.start_s, before.end_s, AllocationKind.ALLOCATED, NOW, force=True)
    return False
