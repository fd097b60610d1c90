"""The kinds of difference, and for each the one thing that is done about it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["REPAIRS", "Difference", "DifferenceKind", "Repair"]


class DifferenceKind(enum.Enum):
    NODE_MISSING = "node_missing"  # the cluster has it, the graph does not
    NODE_SURPLUS = "node_surplus"  # the graph has it, the cluster does not
    NODE_CAPACITY = "node_capacity"  # both have it, with different amounts
    NODE_STATE = "node_state"  # it is ready and the graph does not use it, or the other way round
    EXTERNAL_USAGE_MISSING = "hold_missing"  # a pod uses something that the graph takes for free
    EXTERNAL_USAGE_SURPLUS = (
        "hold_surplus"  # the graph keeps something for a pod that is gone, terminal or a member
    )
    EXTERNAL_USAGE_DIFFERS = (
        "hold_differs"  # it is for the right pod, but on another node or of other amounts
    )
    ALLOCATION_DIFFERS = "held_differs"  # what is booked for others at a node is not the sum of its holds
    POD_UNKNOWN = "pod_unknown"  # a pod of ours is on a node, and neither store nor graph know of it
    MEMBER_DISAGREED = "member_disagreed"  # store and graph say different things of a member
    MEMBER_LEAKED = "member_leaked"  # a member has its place, and its pod is gone or terminal
    MEMBER_UNBOUND = "member_unbound"  # a member is said to have been placed, and its pod is on no node
    MEMBER_ELSEWHERE = "member_elsewhere"  # its pod is on another node than store and graph say
    SLOT_EMPTY = "seat_empty"  # units are booked for a job, and no member has them
    OVERCOMMITTED = "overcommitted"  # we and others use more of a node than there is
    HALF_GANG = "half_gang"  # some of a group have places, some do not, for too long, and nobody was told


class Repair(enum.Enum):
    NONE = "none"  # it is told, and nothing else
    SNAPSHOT = "snapshot"  # the driver reads the world afresh and tells all of it
    RELEASE = "release"  # the scheduler is told that the member is gone; the driver reads the world afresh
    RESTART = "restart"  # the state in memory is dropped, and made anew from the store


REPAIRS: Final[Mapping[DifferenceKind, Repair]] = MappingProxyType(
    {
        DifferenceKind.NODE_MISSING: Repair.SNAPSHOT,
        DifferenceKind.NODE_SURPLUS: Repair.SNAPSHOT,
        DifferenceKind.NODE_CAPACITY: Repair.SNAPSHOT,
        DifferenceKind.NODE_STATE: Repair.SNAPSHOT,
        DifferenceKind.EXTERNAL_USAGE_MISSING: Repair.SNAPSHOT,
        DifferenceKind.EXTERNAL_USAGE_SURPLUS: Repair.SNAPSHOT,
        DifferenceKind.EXTERNAL_USAGE_DIFFERS: Repair.SNAPSHOT,
        DifferenceKind.ALLOCATION_DIFFERS: Repair.RESTART,
        DifferenceKind.POD_UNKNOWN: Repair.SNAPSHOT,
        DifferenceKind.MEMBER_DISAGREED: Repair.RESTART,
        DifferenceKind.MEMBER_LEAKED: Repair.RELEASE,
        DifferenceKind.MEMBER_UNBOUND: Repair.SNAPSHOT,
        DifferenceKind.MEMBER_ELSEWHERE: Repair.SNAPSHOT,
        DifferenceKind.SLOT_EMPTY: Repair.RESTART,
        DifferenceKind.OVERCOMMITTED: Repair.NONE,
        DifferenceKind.HALF_GANG: Repair.NONE,
    }
)
"""One repair for each kind, and why it is the right one:

- *Nodes, holds, unknown pods, members that are not where they should be*: the graph has missed a fact of the
  world. Facts are levels, so the remedy for a missed one is to tell all of them again; the scheduler has one
  rule for each thing that is then new, other or absent, and the auditor does not invent a second.
- *A leaked member*: a uid does not come back, so this end is final and can be said without the driver. It is
  the one fact that costs capacity for ever if the driver is the one that is wrong; and since it may be, it
  reads everything afresh as well: what it believes to be on a node is its last look before every binding.
- *Store and graph disagree, sums that are not sums, seats without members*: the state in memory contradicts
  itself or what was recorded. Nothing in it can be trusted to mend itself; what was recorded is the truth.
- *Overcommitted*: the kubelet has taken in all of them, or will refuse the last one and say so. Which of them
  should go is no question of bookkeeping, and what others placed is not ours to take away.
- *A half gang*: to end what runs, or to wait on, is for the scheduler and for people to decide. What must not
  happen is that nobody hears of it.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """What is wrong with whom. It is the same difference as long as both stay the same.

    Where one kind has opposites, `way` tells them apart: two moments on both sides of a change are two
    differences, and neither lasts.
    """

    kind: DifferenceKind
    subject: str  # a node, a uid, the name of a hold, the number of a job
    detail: str = ""  # for people
    way: str = ""

    @property
    def identity(self) -> tuple[DifferenceKind, str, str]:
        return self.kind, self.subject, self.way

    @property
    def repair(self) -> Repair:
        return REPAIRS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind.value} {self.subject}: {self.detail}"
