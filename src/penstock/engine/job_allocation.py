"""What the engine has booked for one job.

An allocation has parts: the first match of the job, and one for each extension. Parts are released and
stored separately; together they are what the job holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.engine.allocation import AllocationKind, Slot
from penstock.engine.booking import Claims, Span
from penstock.engine.graph import Vertex
from penstock.engine.request import Placement

__all__ = ["AllocationPart", "JobAllocation"]


@dataclass(frozen=True, slots=True)
class AllocationPart:
    """What one match or extension booked for a job."""

    claims: Claims
    span: Span
    slots: tuple[Slot, ...]


@dataclass(slots=True)
class JobAllocation:
    number: int
    kind: AllocationKind
    placement: Placement
    top: Vertex  # contains all claims: the root, or the chosen domain
    parts: dict[int, AllocationPart]
    parts_made: int = 1
    slots_made: int = 0

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

    def nodes(self) -> frozenset[int]:
        """Indexes of the nodes of its slots."""
        slots = [slot for part in self.parts.values() for slot in part.slots]
        return frozenset(slot.node.index for slot in slots if slot.node is not None)
