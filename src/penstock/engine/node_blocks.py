"""Whole nodes as blocks: what a request takes of an idle node is worked out once for all nodes of one shape.

A *shape* is everything below a node that a walk looks at. On two idle nodes of one shape a walk selects the
same positions, so a `NodeFit` describes its result by positions, and a `Block` is one node with such a fit. A
block is booked at its node and above. The bookings inside are *deferred*: they are made when somebody reads
the state of a vertex in the node (`Vertex.state`), and for most allocations nobody ever does. The same holds
for claims, grants and picks. None of this changes an answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.engine.allocation import Grant, Pick, Slot
from penstock.engine.booking import Booker, Claims, Span, VertexClaim, claims_of, picks_of
from penstock.engine.candidates import Choice, Selection
from penstock.engine.graph import Vertex
from penstock.engine.request import Group
from penstock.engine.selected_slots import slots_of
from penstock.engine.vertex_state import Booking, BookingKey, VertexState

__all__ = ["Block", "DeferredBookings", "NodeFit", "block_claims", "block_picks", "block_slots"]

_NOTHING: Final[dict[str, int]] = {}
_PARENT: Final = -1  # stands for the position of what is above the node


@dataclass(frozen=True, slots=True)
class InnerBooking:
    position: int
    units: int
    exclusive: bool
    below: dict[str, int]


class NodeFit:
    """What one request takes of an idle node of one shape, by positions in the subtree of the node."""

    __slots__ = (
        "_below_at",
        "_claims",
        "_picks",
        "_slots",
        "_weighed",
        "below",
        "exclusive",
        "inner",
        "text",
        "units",
        "upward",
    )

    def __init__(
        self, choice: Choice, members: tuple[Vertex, ...], whole_nodes: bool, booker: Booker
    ) -> None:
        node = members[0]
        parent = node.parent()
        assert parent is not None, "a node is below a root"
        selection = Selection(parent, (choice,))
        claims = claims_of([selection], whole_nodes)
        at = {vertex.index: position for position, vertex in enumerate(members)}
        at[parent.index] = _PARENT
        self._claims = [
            (at[index], claim, at[claim.above.index] if claim.above is not None else None)
            for index, claim in claims.items()
        ]
        self._slots = [
            [(at[grant.vertex.index], grant.units) for grant in slot.grants]
            for slot in slots_of([selection], [_GROUP])
        ]
        root = next((above for above in parent.ancestors() if above.parent() is None), parent)
        depth = len(list(node.ancestors()))
        self._picks = [
            (at[pick.vertex.index], pick, pick.depth - depth, at[pick.above.index])
            for pick in picks_of(claims, root)
            if at.get(pick.vertex.index, _PARENT) >= 0 and pick.above is not None
        ]
        # What a writer of text makes of it: the part before the name of the node, and the part after it
        self.text: tuple[str, str] | None = None
        self.inner: list[InnerBooking] = []
        self.upward: dict[str, int] = {}
        self.units, self.exclusive, self.below = 0, False, self.upward
        for index, (_, below) in booker.units_below(claims).items():
            own = claims.get(index)
            units = own.units if own is not None and own.booked else 0
            exclusive = own is not None and own.booked and own.exclusive
            if index == parent.index:
                self.upward = below
            elif index == node.index:
                self.units, self.exclusive, self.below = units, exclusive, below
            elif index in at:
                self.inner.append(InnerBooking(at[index], units, exclusive, below))
        self._below_at = {inner.position: inner.below for inner in self.inner}
        self._weighed = [
            position for position, _, _, _ in self._picks if position > 0 and members[position].totals
        ]

    def below_at(self, position: int) -> dict[str, int]:
        """Units of filter types that are booked below a position."""
        return self._below_at.get(position, _NOTHING)

    @property
    def slots(self) -> int:
        """Slots on each node."""
        return len(self._slots)

    def claims(self, members: tuple[Vertex, ...]) -> Iterable[VertexClaim]:
        for position, claim, above in self._claims:
            yield VertexClaim(
                members[position],
                claim.units,
                claim.booked,
                claim.exclusive,
                claim.label,
                _at(members, above) if above is not None else None,
                claim.whole,
            )

    def grants(self, members: tuple[Vertex, ...]) -> Iterable[tuple[Grant, ...]]:
        for grants in self._slots:
            yield tuple(Grant(members[position], units) for position, units in grants)

    def picks(self, members: tuple[Vertex, ...]) -> list[Pick]:
        """In the order of an allocation; the node is the last."""
        depth = len(list(members[0].ancestors()))
        return [
            Pick(
                members[position],
                pick.units,
                pick.exclusive,
                depth + offset,
                _at(members, above),
                pick.label,
            )
            for position, pick, offset, above in self._picks
        ]

    def weighed(self, members: tuple[Vertex, ...]) -> Iterable[tuple[int, Vertex]]:
        """Positions and vertices below the node that have totals and are passed or taken."""
        return [(position, members[position]) for position in self._weighed]


_GROUP: Final = Group(())


def _at(members: tuple[Vertex, ...], position: int) -> Vertex | None:
    return members[position] if position >= 0 else members[0].parent()


@dataclass(frozen=True, slots=True)
class Block:
    """A node that an allocation takes by a fit. `members` is the subtree of the node when it was taken."""

    members: tuple[Vertex, ...]
    fit: NodeFit

    @property
    def node(self) -> Vertex:
        return self.members[0]

    def on_copies(self, copies: Mapping[int, Vertex]) -> Block:
        """The same block on copies of the vertices, given by index."""
        return Block(tuple(copies.get(member.index, member) for member in self.members), self.fit)


class DeferredBookings:
    """Bookings of blocks on one node that the vertices inside lack yet, in the order of booking."""

    __slots__ = ("by_key",)

    def __init__(self) -> None:
        self.by_key: dict[BookingKey, tuple[Block, Span]] = {}

    def settle(self, node: Vertex) -> None:
        """Makes them."""
        node.deferred = None
        for key, (block, span) in self.by_key.items():
            for inner in block.fit.inner:
                vertex = block.members[inner.position]
                state = vertex.state
                if state is None:
                    state = vertex.state = VertexState()
                state.book(
                    key, Booking(span.start, span.end, span.live, inner.units, inner.exclusive, inner.below)
                )

    def on_copies(self, copies: Mapping[int, Vertex]) -> DeferredBookings:
        other = DeferredBookings()
        other.by_key = {key: (block.on_copies(copies), span) for key, (block, span) in self.by_key.items()}
        return other

    def booked_below(self, position: int, resource_type: str, now: int) -> int:
        """Units of a filter type that are booked below a vertex of the node at an instant."""
        return sum(
            block.fit.below_at(position).get(resource_type, 0)
            for block, span in self.by_key.values()
            if span.start <= now < span.end
        )

    def has_below(self, position: int) -> bool:
        """Whether something of a filter type is booked below a vertex of the node at any time."""
        return any(block.fit.below_at(position) for block, _ in self.by_key.values())


def block_claims(blocks: Iterable[Block]) -> Claims:
    return {claim.vertex.index: claim for block in blocks for claim in block.fit.claims(block.members)}


def block_slots(blocks: Iterable[Block], first: int) -> tuple[Slot, ...]:
    """Slots with numbers from `first` on; without numbers if that is negative."""
    slots: list[Slot] = []
    for block in blocks:
        for grants in block.fit.grants(block.members):
            number = first + len(slots) if first >= 0 else -1
            slots.append(Slot(0, block.node, grants, number))
    return tuple(slots)


def block_picks(blocks: Iterable[Block], root: Vertex) -> tuple[Pick, ...]:
    """As `picks_of` the claims."""
    by_node = {block.node.index: block for block in blocks}
    needed: dict[int, Vertex] = {}
    for block in by_node.values():
        at: Vertex | None = block.node
        while at is not None and at.index not in needed:
            needed[at.index] = at
            at = at.parent()
    children: dict[int, list[Vertex]] = {}
    for vertex in needed.values():
        above = vertex.parent()
        if above is not None:
            children.setdefault(above.index, []).append(vertex)
    picks: list[Pick] = []
    pending: list[tuple[Vertex, int, bool]] = [(root, 1, False)]
    while pending:
        vertex, depth, is_done = pending.pop()
        block_here = by_node.get(vertex.index)
        if block_here is not None:
            picks.extend(block_here.fit.picks(block_here.members))
        elif is_done:
            picks.append(Pick(vertex, vertex.size, False, depth, vertex.parent()))
        else:
            pending.append((vertex, depth, True))
            ordered = sorted(children.get(vertex.index, ()), key=lambda child: child.order, reverse=True)
            pending.extend((child, depth + 1, False) for child in ordered)
    return tuple(picks)
