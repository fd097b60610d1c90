"""The allocations of all jobs, and the bookings that follow from them.

Every change of an allocation goes through this table, which keeps three things in step: what a job holds
(`JobAllocation`), the bookings at the vertices (`Booker`), and the instants at which bookings begin or end.
After a release it has external usage distributed again, because that may have waited for the units.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.engine.allocation import Slot
from penstock.engine.booking import Booker, Claims, claims_without_slots
from penstock.engine.external_usage import ExternalUsageTable
from penstock.engine.graph import Vertex
from penstock.engine.job_allocation import AllocationPart, JobAllocation
from penstock.engine.search import BookingTimes

__all__ = ["AllocationTable"]


class AllocationTable:
    def __init__(
        self, booker: Booker, booking_times: BookingTimes, external_usage: ExternalUsageTable
    ) -> None:
        self.jobs: dict[int, JobAllocation] = {}
        self._booker = booker
        self._booking_times = booking_times
        self._external_usage = external_usage

    def book(self, holder: JobAllocation, part: AllocationPart) -> AllocationPart:
        """Books a part of a job and assigns numbers to its slots."""
        self.jobs[holder.number] = holder
        slots: list[Slot] = []
        for slot in part.slots:
            # A restored slot keeps its number.
            number = slot.number if slot.number >= 0 else holder.slots_made
            holder.slots_made = max(holder.slots_made, number + 1)
            slots.append(replace(slot, number=number))
        part = replace(part, slots=tuple(slots))
        key = holder.parts_made
        holder.parts_made += 1
        holder.parts[key] = part
        self._book_part(holder, key)
        return part

    def release(self, holder: JobAllocation) -> None:
        """Releases everything that a job holds."""
        self.unbook(holder)
        self._external_usage.redistribute(
            claim.vertex for part in holder.parts.values() for claim in part.claims.values()
        )

    def release_slots(self, holder: JobAllocation, slots: Iterable[int]) -> bool:
        """Releases some slots. True when the job holds nothing any more."""
        gone = set(slots)
        for key in list(holder.parts):
            part = holder.parts[key]
            kept = [slot for slot in part.slots if slot.number not in gone]
            dropped = [slot for slot in part.slots if slot.number in gone]
            if dropped:
                self._shrink(holder, key, claims_without_slots(part.claims, kept, dropped), tuple(kept))
        return self._drop_if_empty(holder)

    def release_vertices(self, holder: JobAllocation, vertices: Iterable[Vertex]) -> bool:
        """Releases what a job holds on these vertices. True when the job holds nothing any more."""
        gone = {vertex.index for vertex in vertices}
        for key in list(holder.parts):
            part = holder.parts[key]
            left = {index: claim for index, claim in part.claims.items() if index not in gone}
            if len(left) != len(part.claims):
                kept = [
                    replace(
                        slot, grants=tuple(grant for grant in slot.grants if grant.vertex.index not in gone)
                    )
                    for slot in part.slots
                ]
                self._shrink(holder, key, left, tuple(slot for slot in kept if slot.grants))
        return self._drop_if_empty(holder)

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
        self._booker.unbook((holder.number, key), part.claims)
        self._booking_times.remove(part.span)

    def _shrink(self, holder: JobAllocation, key: int, claims: Claims, slots: tuple[Slot, ...]) -> None:
        part = holder.parts[key]
        self._unbook_part(holder, key)
        if any(claim.booked for claim in claims.values()):
            holder.parts[key] = AllocationPart(claims, part.span, slots)
            self._book_part(holder, key)
        else:
            del holder.parts[key]
        self._external_usage.redistribute(claim.vertex for claim in part.claims.values())

    def _drop_if_empty(self, holder: JobAllocation) -> bool:
        if holder.parts:
            return False
        del self.jobs[holder.number]
        return True
