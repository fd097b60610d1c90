"""What the engine has booked for one job.

An allocation has parts: the first match of the job, and one for each extension. Parts are released and
stored separately; together they are what the job holds. A part loses slots as members end, at the cost of
these slots: its slots are kept by number, and which part and node a slot has is looked up in an index that a
job gets when it first needs one (most jobs end as a whole).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.engine.allocation import AllocationKind, Slot
from penstock.engine.booking import Claims, Span
from penstock.engine.claim_counts import ClaimCounts
from penstock.engine.graph import Vertex
from penstock.engine.node_blocks import Block, block_claims, block_slots
from penstock.engine.planner import FOREVER
from penstock.engine.request import Placement
from penstock.errors import BadRequest

if TYPE_CHECKING:
    from _collections_abc import dict_values

__all__ = ["AllocationPart", "JobAllocation", "domain_of"]


class AllocationPart:
    """What one match or extension booked for a job. Only the table of allocations changes it."""

    __slots__ = ("_blocks", "_claims", "_copies", "_counts", "_slots", "first_slot", "span")

    def __init__(self, claims: Claims, span: Span, slots: Iterable[Slot]) -> None:
        self._claims = claims
        self.span = span
        self._blocks: tuple[Block, ...] = ()  # whole nodes, until claims or slots are read
        self.first_slot = -1
        # By number; slots that have none yet by their position, which is negative.
        self._slots = {
            slot.number if slot.number >= 0 else ~position: slot for position, slot in enumerate(slots)
        }
        self._counts: ClaimCounts | None = None
        # In a copy until it is read: the vertices to put in the place of those that claims and slots name
        self._copies: Mapping[int, Vertex] | None = None

    @classmethod
    def of_blocks(cls, blocks: tuple[Block, ...], span: Span, first_slot: int = -1) -> AllocationPart:
        """A part of whole nodes. Its slots have numbers from `first_slot` on; none if that is negative."""
        part = cls({}, span, ())
        part._blocks, part.first_slot = blocks, first_slot
        return part

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The whole nodes that it consists of; () if it does not, or may have changed since."""
        return self._blocks if self._copies is None else ()

    def copy(self, vertices: Mapping[int, Vertex]) -> AllocationPart:
        """The same part on a copy of the graph. Most copies are never read, so they are translated late."""
        other = AllocationPart(dict(self._claims), self.span, ())
        other._slots = dict(self._slots)
        other._blocks, other.first_slot = self._blocks, self.first_slot
        other._copies = vertices
        return other

    def _translate(self) -> None:
        copies, self._copies = self._copies, None
        if self._blocks:
            blocks, self._blocks = self._blocks, ()
            if copies is not None:
                blocks = tuple(block.on_copies(copies) for block in blocks)
            self._claims = block_claims(reversed(blocks))
            slots = block_slots(blocks, self.first_slot)
            self._slots = {
                slot.number if slot.number >= 0 else ~position: slot for position, slot in enumerate(slots)
            }
        elif copies is not None:
            self._claims = {index: claim.on_copies(copies) for index, claim in self._claims.items()}
            self._slots = {number: slot.on_copies(copies) for number, slot in self._slots.items()}

    @property
    def claims(self) -> Claims:
        self._translate()
        return self._claims

    @property
    def slots(self) -> dict_values[int, Slot]:
        self._translate()
        return self._slots.values()

    def slot(self, number: int) -> Slot | None:
        self._translate()
        return self._slots.get(number)

    def set_slot(self, slot: Slot) -> None:
        self._translate()
        self._slots[slot.number] = slot

    def drop_slot(self, number: int) -> None:
        self._translate()
        del self._slots[number]

    def set_claims(self, claims: Claims) -> None:
        self._translate()
        self._claims = claims
        self._counts = None

    def counts(self, dropped: Iterable[Slot] = ()) -> ClaimCounts:
        """The claims counted by vertex, for partial releases. Counted once, then kept up to date.

        `dropped` are slots that the part has lost already, while it still has their claims.
        """
        if self._counts is None:
            self._counts = ClaimCounts(self.claims, (*self.slots, *dropped))
        return self._counts


class JobAllocation:
    """The parts of a job by key. Only the table of allocations adds and removes parts.

    Parts and slots are numbered from 0 in the order in which they are made. `parts_made` and `slots_made` are
    the next numbers: of a job that had an allocation before, they start where that one has ended.
    """

    __slots__ = (
        "_last_end",
        "_part_of_slot",
        "_parts_ending_last",
        "_slots_on_node",
        "kind",
        "number",
        "parts",
        "parts_made",
        "placement",
        "slots_made",
        "top",
    )

    def __init__(
        self,
        number: int,
        kind: AllocationKind,
        placement: Placement,
        top: Vertex,
        parts: dict[int, AllocationPart],
        parts_made: int = 0,
        slots_made: int = 0,
    ) -> None:
        self.number = number
        self.kind = kind
        self.placement = placement
        self.top = top  # contains all claims: the root, or the chosen domain
        self.parts = parts
        self.parts_made = parts_made
        self.slots_made = slots_made
        self._last_end = -1
        self._parts_ending_last = 0
        self._part_of_slot: dict[int, int] | None = None
        self._slots_on_node: dict[int, int] | None = None  # number of slots, by index of the node
        for part in parts.values():
            self._note_end(part)

    def copy(self, vertices: Mapping[int, Vertex]) -> JobAllocation:
        """The same allocation on a copy of the graph, given by the indexes of its vertices."""
        parts = {key: part.copy(vertices) for key, part in self.parts.items()}
        top = vertices.get(self.top.index, self.top)
        return JobAllocation(
            self.number, self.kind, self.placement, top, parts, self.parts_made, self.slots_made
        )

    @property
    def end(self) -> int:
        """The latest planned end of a part."""
        return self._last_end

    def set_end(self, end: int) -> None:
        """Moves the end of all parts. Only for the table of allocations, which books them again."""
        for part in self.parts.values():
            part.span = replace(part.span, end=end)
        self._last_end, self._parts_ending_last = end, len(self.parts)

    def claims(self) -> Claims:
        """The claims of all parts; units of a pool that several parts share are added up."""
        union: Claims = {}
        for part in self.parts.values():
            for index, claim in part.claims.items():
                before = union.get(index)
                if before is not None and claim.booked and before.booked:
                    union[index] = replace(claim, units=claim.units + before.units)
                elif before is None or claim.booked:
                    union[index] = claim
        return union

    def left_s(self, now: int) -> int | None:
        """The time until its end, at least a second; None: it has none."""
        return max(self.end, now + 1) - now if self.end < FOREVER else None

    def nodes(self) -> Set[int]:
        """Indexes of the nodes of its slots: a view."""
        return self.slots_by_node().keys()

    def slots_by_node(self) -> Mapping[int, int]:
        """The number of its slots by index of the node: a view."""
        if self._slots_on_node is None:
            self._slots_on_node = {}
            for part in self.parts.values():
                for slot in part.slots:
                    self._shift_node(slot, 1)
        return self._slots_on_node

    def part_of_slot(self, number: int) -> int | None:
        """The key of the part that has a slot."""
        if self._part_of_slot is None:
            self._part_of_slot = {slot.number: key for key, part in self.parts.items() for slot in part.slots}
        return self._part_of_slot.get(number)

    def add_part(self, key: int, part: AllocationPart) -> None:
        self.parts[key] = part
        self._note_end(part)
        if self._part_of_slot is None and self._slots_on_node is None:
            return
        for slot in part.slots:
            if self._part_of_slot is not None:
                self._part_of_slot[slot.number] = key
            self._shift_node(slot, 1)

    def drop_slot(self, key: int, slot: Slot) -> None:
        self.parts[key].drop_slot(slot.number)
        if self._part_of_slot is not None:
            del self._part_of_slot[slot.number]
        self._shift_node(slot, -1)

    def drop_part(self, key: int) -> None:
        part = self.parts[key]
        for slot in list(part.slots):
            self.drop_slot(key, slot)
        del self.parts[key]
        if part.span.end == self._last_end:
            self._parts_ending_last -= 1
            if self._parts_ending_last == 0:
                self._last_end = -1
                for other in self.parts.values():
                    self._note_end(other)

    def _note_end(self, part: AllocationPart) -> None:
        if part.span.end > self._last_end:
            self._last_end, self._parts_ending_last = part.span.end, 0
        self._parts_ending_last += part.span.end == self._last_end

    def _shift_node(self, slot: Slot, sign: int) -> None:
        counts = self._slots_on_node
        if counts is not None and slot.node is not None:
            left = counts.get(slot.node.index, 0) + sign
            if left:
                counts[slot.node.index] = left
            else:
                del counts[slot.node.index]


def domain_of(claims: Claims, placement: Placement, root: Vertex) -> Vertex:
    """The vertex of type `placement.within` that contains all claims; the root if any may."""
    if not placement.within:
        return root
    domains: dict[int, Vertex] = {}
    for claim in claims.values():
        for vertex in (claim.vertex, *claim.vertex.ancestors()):
            if claim.booked and vertex.type == placement.within:
                domains[vertex.index] = vertex
    if len(domains) != 1:
        found = ", ".join(vertex.path() for vertex in domains.values()) or "none"
        raise BadRequest("the set is not inside one domain", found=found, expected=f"one {placement.within}")
    return next(iter(domains.values()))
