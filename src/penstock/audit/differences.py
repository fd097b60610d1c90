"""The kinds of difference, and the one repair of each."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

__all__ = ["REPAIRS", "Difference", "DifferenceKind", "Repair"]


class DifferenceKind(enum.Enum):
    NODE_MISSING = "node_missing"  # in the cluster, not in the graph
    NODE_SURPLUS = "node_surplus"  # in the graph, not in the cluster
    NODE_CAPACITY = "node_capacity"  # the capacity differs
    NODE_STATE = "node_state"  # ready in the cluster and down in the graph, or the reverse
    # A pod uses resources that are free in the graph.
    EXTERNAL_USAGE_MISSING = "external_usage_missing"
    # The graph has external usage of a pod that is gone, terminal or a member.
    EXTERNAL_USAGE_SURPLUS = "external_usage_surplus"
    # The external usage of a pod has another node or other units in the graph.
    EXTERNAL_USAGE_DIFFERS = "external_usage_differs"
    # The units booked for external usage at a node are not the sum of its external usage.
    EXTERNAL_BOOKING_DIFFERS = "external_booking_differs"
    POD_UNKNOWN = "pod_unknown"  # a pod of this scheduler is on a node, unknown to store and graph
    MEMBER_DISAGREED = "member_disagreed"  # store and graph disagree about a member
    MEMBER_LEAKED = "member_leaked"  # a member has a slot, and its pod is gone or terminal
    MEMBER_UNBOUND = "member_unbound"  # a member is recorded as placed, and its pod is not bound
    MEMBER_ELSEWHERE = "member_elsewhere"  # the pod is on another node than store and graph record
    SLOT_EMPTY = "slot_empty"  # units are booked for a job, and no member has them
    OVERCOMMITTED = "overcommitted"  # jobs and external usage exceed the capacity of a node
    HALF_GANG = "half_gang"  # a group is partly placed for too long, and this was not reported


class Repair(enum.Enum):
    NONE = "none"  # report only
    SNAPSHOT = "snapshot"  # the backend reads the cluster again and reports a full snapshot
    RELEASE = "release"  # the scheduler gets the end of the member; the backend reads the cluster again
    RESTART = "restart"  # the state in memory is dropped and reloaded from the store


REPAIRS: Final[Mapping[DifferenceKind, Repair]] = MappingProxyType(
    {
        DifferenceKind.NODE_MISSING: Repair.SNAPSHOT,
        DifferenceKind.NODE_SURPLUS: Repair.SNAPSHOT,
        DifferenceKind.NODE_CAPACITY: Repair.SNAPSHOT,
        DifferenceKind.NODE_STATE: Repair.SNAPSHOT,
        DifferenceKind.EXTERNAL_USAGE_MISSING: Repair.SNAPSHOT,
        DifferenceKind.EXTERNAL_USAGE_SURPLUS: Repair.SNAPSHOT,
        DifferenceKind.EXTERNAL_USAGE_DIFFERS: Repair.SNAPSHOT,
        DifferenceKind.EXTERNAL_BOOKING_DIFFERS: Repair.RESTART,
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
"""Why each repair is the right one:

- *Nodes, external usage, unknown pods, members on the wrong node*: the graph missed a fact. Facts are
  level-triggered, so the remedy is to report all of them again. The scheduler has one rule for everything
  that is then new, changed or absent; the auditor does not add a second.
- *A leaked member*: a uid is never reused, so this end is final and can be reported without the backend. A
  missed end would occupy capacity for ever. The backend may be the cause, so it also reads the cluster
  again: its cache is the last check before every binding.
- *Store and graph disagree, wrong sums, slots without members*: the state in memory contradicts itself or
  the store. It cannot repair itself, and the store is authoritative.
- *Overcommitted*: the kubelet has admitted all pods, or will reject the last one and report that. Which pod
  should go is not a matter of bookkeeping, and pods of others are not the scheduler's to evict.
- *A half gang*: the scheduler or a person decides whether to end the running members or to wait. The
  auditor only makes sure that it is reported.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of a kind at a subject. Two differences with the same identity are the same.

    `variant` distinguishes opposite differences of one kind, so that two comparisons before and after a
    change do not confirm each other.
    """

    kind: DifferenceKind
    subject: str  # a node, a pod uid, the key of external usage, a job number
    detail: str = ""  # human-readable
    variant: str = ""

    @property
    def identity(self) -> tuple[DifferenceKind, str, str]:
        return self.kind, self.subject, self.variant

    @property
    def repair(self) -> Repair:
        return REPAIRS[self.kind]

    def __str__(self) -> str:
        return f"{self.kind.value} {self.subject}: {self.detail}"
