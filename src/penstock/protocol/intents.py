"""What the scheduler wants done. An intent is committed before a driver sees it.

Doing one twice is doing it once: members, not intents, are what a driver remembers. A driver answers every
member of an intent with `IntentResult`. `StatusUpdate` is no intent: it is lossy, coalesced and never
waited for.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "Assignment",
    "End",
    "EndReason",
    "Intent",
    "IntentKind",
    "Place",
    "Retract",
    "RetractMode",
    "StatusUpdate",
    "WorkloadStatus",
]


class IntentKind(enum.Enum):
    """What an intent is, as stores record it."""

    PLACE = "place"
    RETRACT = "retract"
    END = "end"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One member, where it goes, and which units it gets there: `("core", "0-1", 2)`."""

    member: str
    index: int
    node: str
    grants: tuple[tuple[str, str, int], ...] = ()  # kind, idset of the units ("" for a pool), how many
    already_placed: bool = False  # it has been placed before: not to be placed again, only to be counted


@dataclass(frozen=True, slots=True)
class Place:
    """Start these members at these places: all of them, as soon as possible, each exactly once."""

    intent: int
    job: int
    workload: str
    assignments: tuple[Assignment, ...]
    end_at: float | None = None  # the limit, where the world enforces it
    size: int = 0  # members of the whole job
    spec: Mapping[str, object] = field(default_factory=dict)  # what a driver needs to start a submitted job


class RetractMode(enum.Enum):
    FORGET = "forget"  # not started: never start it
    EVICT = "evict"  # take it away; who made it makes it again


@dataclass(frozen=True, slots=True)
class Retract:
    intent: int
    job: int
    members: tuple[str, ...]
    mode: RetractMode


class EndReason(enum.Enum):
    """Why members are ended. A backend passes the value on as the cause of their end."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    JOB_FAILED = "exec"
    SIGNAL = "signal"  # a signal that a user asked for, which need not end anything
    ORPHAN = "left over"  # their job is over


@dataclass(frozen=True, slots=True)
class End:
    """End these members: a signal, some grace, then by force. With grace None it is only the signal."""

    intent: int
    job: int
    members: tuple[str, ...]
    signal: int
    grace_s: float | None
    reason: EndReason


Intent = Place | Retract | End


class WorkloadStatus(enum.Enum):
    """Where the job of a workload stands, as its owner sees it."""

    ASSEMBLING = "assembling"  # fewer members are ready than the workload needs to start
    WAITING = "waiting"  # queued, or some of its members are
    UNSATISFIABLE = "unsatisfiable"  # no node or set of nodes could ever meet its request
    INCOMPLETE = "incomplete"  # started, and some members cannot be placed
    INADMISSIBLE = "inadmissible"  # its job is over, and the members that still wait make no further job
    FINISHED = "finished"  # its job is over


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """For the owner of a workload: its status, the expected start, and the reason why it waits."""

    workload: str
    job: int
    status: WorkloadStatus
    reason: str = ""
    start_at: float | None = None
