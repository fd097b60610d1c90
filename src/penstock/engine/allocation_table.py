"""The allocations of all jobs, and the bookings that follow from them.

Every change of an allocation goes through this table, which keeps three things in step: what a job holds
(`JobAllocation`), the bookings at the vertices (`Booker`), and the instants at which bookings begin or end.
After a release it has external usage distributed again, because that may have waited for the units.

Releasing some slots costs these slots, whatever the size of the job; only in a graph with shared vertices,
or with the last slot of a part, the whole part is unbooked and the rest booked again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.engine.allocation import Slot
from penstock.engine.block_booking import book_blocks, unbook_blocks
from penstock.engine.booking import Booker, Claims, Release, Span, booked_claims, claims_without_slots
from penstock.engine.external_usage import ExternalUsageTable
from penstock.engine.graph import Graph, Vertex
from penstock.engine.job_allocation import AllocationPart, JobAllocation
from penstock.engine.node_blocks import Block
from penstock.engine.search import BookingTimes
from penstock.model.exclusion_key import ExclusionKey

__all__ = ["AllocationTable"]


class AllocationTable:
    def __init__(
        self, graph: Graph, booker: Booker, booking_times: BookingTimes, external_usage: ExternalUsageTable
    ) -> None:
        self.jobs: dict[int, JobAllocation] = {}
        self._graph = graph
        self._booker = booker
        self._booking_times = booking_times
        self._external_usage = external_usage

    def copy_jobs(self, other: AllocationTable) -> None:
        """Gives a table on a copy of the graph these allocations; the graph has their bookings already."""
        other.jobs = {number: job.copy(other._graph.vertices) for number, job in self.jobs.items()}

    def book(self, holder: JobAllocation, part: AllocationPart) -> AllocationPart:
        """Books a part of a job and assigns numbers to its slots."""
        self.jobs[holder.number] = holder
        if part.blocks:
            return self._book_blocks(holder, part.blocks, part.span)
        slots: list[Slot] = []
        for slot in part.slots:
            # A restored slot keeps its number.
            number = slot.number if slot.number >= 0 else holder.slots_made
            holder.slots_made = max(holder.slots_made, number + 1)
            slots.append(replace(slot, number=number))
        part = AllocationPart(part.claims, part.span, slots)
        key = holder.parts_made
        holder.parts_made += 1
        holder.add_part(key, part)
        self._book_part(holder, key)
        return part

    def _book_blocks(self, holder: JobAllocation, blocks: tuple[Block, ...], span: Span) -> AllocationPart:
        part = AllocationPart.of_blocks(blocks, span, holder.slots_made)
        holder.slots_made += sum(block.fit.slots for block in blocks)
        key = holder.parts_made
        holder.parts_made += 1
        holder.add_part(key, part)
        book_blocks(self._booker, (holder.number, key), blocks, span)
        self._booking_times.add(span)
        return part

    def release(self, holder: JobAllocation) -> None:
        """Releases everything that a job holds."""
        self.unbook(holder)
        self._external_usage.redistribute(
            claim.vertex for part in holder.parts.values() for claim in part.claims.values()
        )

    def release_slots(self, holder: JobAllocation, numbers: Iterable[int]) -> bool:
        """Releases some slots. True when the job holds nothing any more."""
        dropped: dict[int, list[Slot]] = {}
        for number in dict.fromkeys(numbers):
            key = holder.part_of_slot(number)
            slot = holder.parts[key].slot(number) if key is not None else None
            if key is not None and slot is not None:
                dropped.setdefault(key, []).append(slot)
        for key in sorted(dropped):
            part, slots = holder.parts[key], dropped[key]
            for slot in slots:
                holder.drop_slot(key, slot)
            if self._graph.is_tree and part.slots:
                release = part.counts(slots).drop_slots(part.claims, slots)
                self._reduce(holder, key, release, slots, [])
            else:
                self._book_rest(holder, key, claims_without_slots(part.claims, list(part.slots), slots))
        return self._drop_if_empty(holder)

    def release_vertices(self, holder: JobAllocation, vertices: Iterable[Vertex]) -> tuple[int, ...]:
        """Releases what a job holds on these vertices. Returns the slots that have something elsewhere."""
        shortened: list[int] = []
        gone = {vertex.index: vertex for vertex in vertices}
        states = [vertex.state for vertex in gone.values() if vertex.state is not None]
        keys = {key for state in states for job, key in state.bookings if job == holder.number}
        for key in sorted(keys):
            part = holder.parts[key]
            counts = part.counts()
            before = [slot for number in counts.slots_at(gone.values()) if (slot := part.slot(number))]
            after: list[Slot] = []
            for slot in before:
                counts.remove_grants(slot)
                kept = tuple(grant for grant in slot.grants if grant.vertex.index not in gone)
                if kept:
                    after.append(replace(slot, grants=kept))
                    counts.add_grants(after[-1])
                    part.set_slot(after[-1])
                    shortened.append(slot.number)
                else:
                    holder.drop_slot(key, slot)
            if self._graph.is_tree:
                release = counts.drop_vertices(part.claims, gone.values())
                self._reduce(holder, key, release, before, after)
            else:
                left = {index: claim for index, claim in part.claims.items() if index not in gone}
                self._book_rest(holder, key, left)
        return () if self._drop_if_empty(holder) else tuple(shortened)

    def set_end(self, holder: JobAllocation, end: int) -> None:
        """Moves the end of all parts of a job."""
        moved = [key for key, part in holder.parts.items() if part.span.end != end]
        for key in moved:
            self._unbook_part(holder, key)
        holder.set_end(end)
        for key in moved:
            self._book_part(holder, key)

    def set_slot_keys(self, holder: JobAllocation, number: int, brings: tuple[ExclusionKey, ...]) -> bool:
        """Books other keys for a slot. False if the job does not hold it."""
        key = holder.part_of_slot(number)
        before = holder.parts[key].slot(number) if key is not None else None
        if key is None or before is None:
            return False
        part, after = holder.parts[key], replace(before, brings=brings)
        part.set_slot(after)
        self._booker.set_keys((holder.number, key), part.claims, before, after)
        return True

    def unbook(self, holder: JobAllocation) -> None:
        """Unbooks everything that a job holds, and forgets the job."""
        for key in holder.parts:
            self._unbook_part(holder, key)
        del self.jobs[holder.number]

    def rebook(self, holder: JobAllocation) -> None:
        """Books everything that a job holds, as it was before `unbook`."""
        self.jobs[holder.number] = holder
        for key in holder.parts:
            self._book_part(holder, key)

    @property
    def tracked(self) -> frozenset[str]:
        """The filter types that bookings count at the ancestors of a claim."""
        return self._booker.tracked

    @tracked.setter
    def tracked(self, tracked: frozenset[str]) -> None:
        """For types without a booking; otherwise `count_again`."""
        self._booker.tracked = tracked

    def count_again(self, tracked: frozenset[str]) -> None:
        """Makes all bookings count these filter types, at the cost of booking everything again."""
        booked = [(holder, key, part) for holder in self.jobs.values() for key, part in holder.parts.items()]
        for holder, key, part in booked:
            self._booker.unbook((holder.number, key), part.claims)
        self._booker.tracked = tracked
        for holder, key, part in booked:
            self._booker.book((holder.number, key), part.claims, part.span, part.slots)

    def _book_part(self, holder: JobAllocation, key: int) -> None:
        part = holder.parts[key]
        self._booker.book((holder.number, key), part.claims, part.span, part.slots)
        self._booking_times.add(part.span)

    def _unbook_part(self, holder: JobAllocation, key: int) -> None:
        part = holder.parts[key]
        if not part.blocks or not unbook_blocks(self._booker, (holder.number, key), part.blocks):
            self._booker.unbook((holder.number, key), part.claims)
        self._booking_times.remove(part.span)

    def _reduce(
        self, holder: JobAllocation, key: int, release: Release, before: list[Slot], after: list[Slot]
    ) -> None:
        """Books what has left the claims of a part out, at the cost of that alone."""
        part = holder.parts[key]
        self._booker.release((holder.number, key), part.claims, release, before, after)
        if self._graph.root.index in release.left:
            self._booking_times.remove(part.span)
            holder.drop_part(key)
        self._external_usage.redistribute(vertex for vertex, _ in release.units.values())

    def _book_rest(self, holder: JobAllocation, key: int, claims: Claims) -> None:
        """Unbooks a part and books the claims that are left."""
        part = holder.parts[key]
        before = part.claims
        self._unbook_part(holder, key)
        claims = booked_claims(claims)
        if claims:
            part.set_claims(claims)
            self._book_part(holder, key)
        else:
            holder.drop_part(key)
        self._external_usage.redistribute(
            claim.vertex for index, claim in before.items() if claims.get(index) != claim
        )

    def _drop_if_empty(self, holder: JobAllocation) -> bool:
        if holder.parts:
            return False
        del self.jobs[holder.number]
        return True
