"""What the scheduler orders. An intent is committed before a backend receives it.

Intents are idempotent: a backend tracks members, not intents, and applying an intent twice has the effect of
applying it once. It confirms every member of an intent with an `IntentResult`. A `StatusUpdate` is no intent:
it may be lost, a newer one replaces it, and nothing waits for it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = [
    "Assignment",
    "End",
    "EndReason",
    "Evict",
    "Intent",
    "IntentKind",
    "Place",
    "StatusUpdate",
    "WorkloadStatus",
]


class IntentKind(enum.Enum):
    """What an intent is, as stores record it."""

    PLACE = "place"
    EVICT = "evict"
    END = "end"


@dataclass(frozen=True, slots=True)
class Assignment:
    """One member, its node, and the units it gets there: `("core", "0-1", 2)`."""

    member: str
    index: int
    node: str
    grants: tuple[tuple[str, str, int], ...] = ()  # resource, idset of the units ("" for a pool), count
    already_placed: bool = False  # confirmed earlier: part of the job, not to be placed again


@dataclass(frozen=True, slots=True)
class Place:
    """Start these members on their nodes: all of them, as soon as possible, each exactly once."""

    intent: int
    job: int
    workload: str
    assignments: tuple[Assignment, ...]
    end_at: float | None = None  # the time limit, where the backend enforces it
    size: int = 0  # members of the whole job
    spec: Mapping[str, object] = field(default_factory=dict)  # what a backend needs to start a submitted job


@dataclass(frozen=True, slots=True)
class Evict:
    """Remove these members; their controllers create replacements."""

    intent: int
    job: int
    members: tuple[str, ...]


class EndReason(enum.Enum):
    """Why members are ended. A backend passes the value on as the cause of their end."""

    CANCEL = "cancel"
    TIMEOUT = "timeout"
    JOB_FAILED = "exec"
    SIGNAL = "signal"  # a signal that a user has sent, which need not end anything
    ORPHAN = "left over"  # their job is over


@dataclass(frozen=True, slots=True)
class End:
    """End these members: send a signal, then SIGKILL after the grace period. Grace None: only the signal."""

    intent: int
    job: int
    members: tuple[str, ...]
    signal: int
    grace_s: float | None
    reason: EndReason
    note: str = ""  # what the user or the scheduler said about it


Intent = Place | Evict | End


class WorkloadStatus(enum.Enum):
    """Where the job of a workload stands, as its owner sees it."""

    ASSEMBLING = "assembling"  # fewer members are ready than the workload needs to start
    WAITING = "waiting"  # queued, or some of its members are
    HELD = "held"  # a user holds it
    DELAYED = "delayed"  # its begin time has not come, or other jobs have to end first
    QUEUE_DISABLED = "queue-disabled"  # its queue takes no new jobs
    QUEUE_STOPPED = "queue-stopped"
    UNSATISFIABLE = "unsatisfiable"  # no node or set of nodes could ever meet its request
    INCOMPLETE = "incomplete"  # started, and some members cannot be placed
    INADMISSIBLE = "inadmissible"  # its job is over, and the members that still wait make no further job
    FINISHED = "finished"  # its job is over


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """For the owner of a workload: its status, the expected start, and the reason why it waits.

    It concerns the members that wait: all of them, or one that is queued on its own.
    """

    workload: str
    job: int
    status: WorkloadStatus
    reason: str = ""
    start_at: float | None = None
    member: str = ""  # "": all
    is_head: bool = False  # among the first in the queue: its owner is told before others
