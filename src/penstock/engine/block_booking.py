"""Books blocks: whole nodes that were idle, at the nodes and above; inside the nodes bookings are deferred.

The result is that of booking the claims of the blocks, except that nobody has to visit the vertices inside.
"""

from __future__ import annotations

from penstock.engine.booking import Booker, Span
from penstock.engine.graph import Vertex
from penstock.engine.node_blocks import Block, DeferredBookings
from penstock.engine.vertex_state import Booking, BookingKey, VertexState

__all__ = ["book_blocks", "unbook_blocks"]


def book_blocks(booker: Booker, key: BookingKey, blocks: tuple[Block, ...], span: Span) -> None:
    """Books blocks on nodes that are idle during the span."""
    above: dict[int, tuple[Vertex, dict[str, int]]] = {}
    for block in blocks:
        node, fit = block.node, block.fit
        state = node.state
        if state is None:
            state = node.state = VertexState()
        state.book(key, Booking(span.start, span.end, span.live, fit.units, fit.exclusive, fit.below))
        if fit.inner:
            if node.deferred is None:
                node.deferred = DeferredBookings()
            node.deferred.by_key[key] = (block, span)
        booker.changed.add(node.index)
        _add_above(booker, above, block)
    for vertex, below in above.values():
        state = vertex.state
        if state is None:
            state = vertex.state = VertexState()
        state.book(key, Booking(span.start, span.end, span.live, 0, False, below))


def _add_above(booker: Booker, above: dict[int, tuple[Vertex, dict[str, int]]], block: Block) -> None:
    child: Vertex | None = None
    at = block.node.parent()
    while at is not None:
        known = above.get(at.index)
        if known is None:
            known = above[at.index] = (at, {})
        below = known[1]
        for resource_type, units in block.fit.upward.items():
            below[resource_type] = below.get(resource_type, 0) + units
        if child is not None and child.type in booker.tracked:
            below.setdefault(child.type, 0)  # It is used by nothing but what is below it.
        child, at = at, at.parent()


def unbook_blocks(booker: Booker, key: BookingKey, blocks: tuple[Block, ...]) -> bool:
    """Undoes `book_blocks`. False, and nothing is done, if somebody has read the states inside since."""
    for block in blocks:
        state, deferred = block.node.state, block.node.deferred
        if state is None or state.excess or state.external:
            return False
        if block.fit.inner and (deferred is None or key not in deferred.by_key):
            return False
    above: dict[int, Vertex] = {}
    for block in blocks:
        node = block.node
        state, deferred = node.state, node.deferred
        if deferred is not None and key in deferred.by_key:
            del deferred.by_key[key]
            if not deferred.by_key:
                node.deferred = None
        if state is not None:
            state.unbook(key)
            if state.is_empty():
                node.state = None
        booker.changed.add(node.index)
        at = node.parent()
        while at is not None and at.index not in above:
            above[at.index] = at
            at = at.parent()
    for vertex in above.values():
        state = vertex.state
        if state is not None:
            state.unbook(key)
            if state.is_empty():
                vertex.state = None
    return True
