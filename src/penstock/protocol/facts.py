"""What a world reports. Facts are levels, not edges: told twice, they change nothing the second time.

A *work* is what the world calls a job before we do; its *members* come one by one and are counted by the
scheduler. A *hold* is use by others. A `Snapshot` is everything at once: first, and again after a stream was
lost; what is absent from it is gone. `MemberStatus` and `IntentResult` are about members that we have placed.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from penstock.model.constraint import Constraint

__all__ = [
    "Capacity",
    "EndCause",
    "ExternalUsageGone",
    "ExternalUsageSet",
    "Fact",
    "IntentResult",
    "MemberGone",
    "MemberSet",
    "MemberStatus",
    "NodeGone",
    "NodeSet",
    "Outcome",
    "Phase",
    "Requeue",
    "Snapshot",
    "WorkloadGone",
    "WorkloadSet",
    "end_cause_of",
]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What a node has of one kind: whole units, each a vertex, or one divisible pool.

    `anti-affinity/<namespace>/<selector>` is a virtual resource, by which a backend keeps members on
    different nodes.
    """

    resource: str
    units: int
    divisible: bool = False


@dataclass(frozen=True, slots=True)
class NodeSet:
    node: str
    capacity: tuple[Capacity, ...]
    topology_levels: tuple[
        tuple[str, str], ...
    ] = ()  # what it lies in, outermost first: (("zone", "a"), ("rack", "7"))
    labels: tuple[tuple[str, str], ...] = ()
    up: bool = True  # False: nothing new goes there; what runs there stays
    why: str = ""  # why it is not up


@dataclass(frozen=True, slots=True)
class NodeGone:
    """The node is no more, and with it everything that ran there."""

    node: str


@dataclass(frozen=True, slots=True)
class ExternalUsageSet:
    """Use by others: never our capacity, never our job. A standing one is there on every day."""

    key: str
    node: str
    usage: tuple[tuple[str, int], ...]
    standing: bool = False
    name: str = ""  # what people call it, where the key says nothing to them


@dataclass(frozen=True, slots=True)
class ExternalUsageGone:
    key: str


class Requeue(enum.Enum):
    """When a job that has lost a node, or has failed, is queued again by itself."""

    NEVER = "never"
    NODE_FAILURE = "node-failure"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class WorkloadSet:
    """A group that the world wants to run; it assembles once, when `size` members are ready."""

    workload: str
    name: str
    size: int  # members that must be there before it can start
    assembly_timeout_s: float | None = None  # how long it may wait for others after its last member came
    begin_at: float | None = None
    limit_s: int | None = None  # from the start of the group; None: none, planned without an end
    deadline_at: float | None = None  # the end of the whole, waiting included
    enforced_by_backend: bool = True  # False: we end it at its limit
    class_value: int = 0
    urgency: int = 16
    queue: str = ""
    distinct_nodes: bool = False
    within: str = ""
    requeue: Requeue = Requeue.NEVER
    owner: str = ""


@dataclass(frozen=True, slots=True)
class WorkloadGone:
    """Its owner is gone or finished: no member will come any more."""

    workload: str


@dataclass(frozen=True, slots=True)
class MemberSet:
    workload: str
    member: str
    index: int
    requests: tuple[tuple[str, int], ...]
    constraint: Constraint | None = None
    ready: bool = True  # False: there, but must not be placed yet
    recreated: bool = False  # who made it would make it again if it were taken away
    name: str = ""  # what people call it, where the key says nothing to them


@dataclass(frozen=True, slots=True)
class MemberGone:
    member: str


class Phase(enum.Enum):
    WAITING = "waiting"  # known to the world, on no node
    PLACED = "placed"  # on its node, not yet running
    RUNNING = "running"
    ENDED = "ended"
    REFUSED = "refused"  # its node did not take it; it will not run there
    LOST = "lost"  # its node is silent: it may be running


class EndCause(enum.Enum):
    """Why a member ended, as far as the scheduler acts on it. Everything else is `OTHER` with a message."""

    EXITED = ""  # by itself; the wait status says how
    SIGNALED = "signal"  # by a signal that a user asked for
    TIMEOUT = "timeout"  # at its time limit
    NODE_FAILURE = "node-failure"
    GONE = "gone"  # it was deleted
    UNKNOWN = "unknown"  # how it ended cannot be known any more
    OTHER = "other"


def end_cause_of(text: str) -> tuple[EndCause, str]:
    """A cause and a message from one text, as agents send it and stores keep it."""
    known = _CAUSES.get(text)
    return (known, "") if known is not None else (EndCause.OTHER, text)


_CAUSES: Final = {cause.value: cause for cause in EndCause if cause is not EndCause.OTHER}


@dataclass(frozen=True, slots=True)
class MemberStatus:
    member: str
    phase: Phase
    at: float
    node: str = ""
    status: int = 0  # a wait(2) status, where it ended
    cause: EndCause = EndCause.EXITED
    message: str = ""  # the backend's own words, for `EndCause.OTHER` and `Phase.REFUSED`
    started: bool = True  # of one that has ended: whether it had begun
    usage: tuple[tuple[str, int], ...] = ()  # what it uses, where that is known
    has_owner: bool = False  # somebody else looks after it: left over, it is not asked to end


class Outcome(enum.Enum):
    APPLIED = "applied"
    CONFLICT = "conflict"  # cannot be done as asked; another node may do
    GONE = "gone"  # there is no such member any more
    UNKNOWN = "unknown"  # it may have been done: to be probed


@dataclass(frozen=True, slots=True)
class IntentResult:
    """What became of an intent, for one member."""

    intent: int
    member: str
    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Snapshot:
    nodes: tuple[NodeSet, ...] = ()
    external_usage: tuple[ExternalUsageSet, ...] = ()
    workloads: tuple[WorkloadSet, ...] = ()
    members: tuple[MemberSet, ...] = ()
    statuses: tuple[MemberStatus, ...] = ()


Fact = (
    Snapshot
    | NodeSet
    | NodeGone
    | ExternalUsageSet
    | ExternalUsageGone
    | WorkloadSet
    | WorkloadGone
    | MemberSet
    | MemberGone
    | MemberStatus
    | IntentResult
)
