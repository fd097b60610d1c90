"""Resource sets in JGF or R: booking them again (`update`) and releasing parts of them (`partial-cancel`)."""

from __future__ import annotations

from dataclasses import replace

from penstock.engine.allocation import Allocation, AllocationKind
from penstock.engine.booking import VertexClaim
from penstock.engine.engine import Engine
from penstock.engine.graph import Graph, Vertex
from penstock.errors import BadRequest
from penstock.fluxion.checks import NOW
from penstock.fluxion.readers.jgf import claims_in_jgf, vertices_in_jgf
from penstock.fluxion.readers.rv1exec import claims_in_rset, ranks_in_rset

__all__ = ["reapply", "release_part", "vertices_named"]


def reapply(engine: Engine, job: int, reader: str, text: bytes, start: int, end: int) -> Allocation:
    """Books a resource set in JGF or R for a job number."""
    graph = engine.graph
    if reader == "jgf":
        return engine.update(job, claims_in_jgf(graph, text), start, end, AllocationKind.ALLOCATED, NOW)
    answer = engine.update(job, claims_in_rset(graph, text), start, end, AllocationKind.ALLOCATED, NOW)
    # Fluxion prints every node named in R as exclusive, but books only those with all children named.
    picks = tuple(
        replace(pick, exclusive=pick.exclusive or pick.vertex.type == "node") for pick in answer.picks
    )
    return answer.with_picks(picks)


def vertices_named(graph: Graph, reader: str, text: bytes) -> list[Vertex]:
    """The vertices that a partial cancel names: R names whole ranks, JGF single vertices."""
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
    """Releases some vertices of a job. True if Fluxion then considers the job finished.

    Fluxion detects that from the totals at the root. A job none of whose types is counted there never
    finishes by partial cancels: it keeps shared claims on the vertices above until it is cancelled.
    """
    root = engine.graph.root
    before = engine.allocation(job)
    bookings = root.state.bookings.items() if root.state is not None else ()
    is_counted = any(booking.below for (number, _), booking in bookings if number == job)
    if not engine.release_vertices(job, vertices):
        return False
    if is_counted:
        return True
    released = {vertex.index for vertex in vertices}
    remaining = [pick.vertex for pick in before.picks if pick.vertex.index not in released]
    shared = [VertexClaim(vertex, 0, True, False) for vertex in remaining]
    engine.update(job, shared, before.start_s, before.end_s, AllocationKind.ALLOCATED, NOW, force=True)
    return False
