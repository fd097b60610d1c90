"""What a backend reports. Facts are level-triggered: repeating one changes nothing.

Fact                      reports
`NodeSet`, `NodeGone`     a node with its capacity, labels and topology
`ExternalUsageSet`, ...   resources of a node that something other than our jobs uses
`WorkloadSet`, ...        a group of members that must run together; it becomes one job
`MemberSet`, `MemberGone` one member of a workload, such as a pod that waits to be scheduled
`MemberStatus`            the phase of a member that the scheduler has placed
`IntentResult`            the outcome of an intent for one member
`Snapshot`                everything at once: first, and after an interruption; what is absent is gone

Only backends with their own workloads report `WorkloadSet` and `MemberSet`. Members of submitted jobs are
created by the scheduler.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from penstock.model.constraint import Constraint
from penstock.model.exclusion_key import ExclusionKey

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
    """The capacity of a node for one resource: whole units such as cores, or one divisible pool."""

    resource: str
    units: int
    divisible: bool = False


@dataclass(frozen=True, slots=True)
class NodeSet:
    node: str
    capacity: tuple[Capacity, ...]
    # (level, name), outermost first: (("zone", "a"), ("rack", "7"))
    topology_levels: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    up: bool = True  # False: nothing is placed there; running members stay
    why: str = ""  # why it is not up, for users


@dataclass(frozen=True, slots=True)
class NodeGone:
    """The node has been removed, and its members with it."""

    node: str


@dataclass(frozen=True, slots=True)
class ExternalUsageSet:
    """Usage of a node by something other than our jobs, such as a pod of another scheduler.

    A standing usage (a DaemonSet pod) is permanent: it also reduces what could ever be satisfied.
    """

    key: str
    node: str
    usage: tuple[tuple[str, int], ...]
    standing: bool = False
    name: str = ""  # for users, if the key is not readable
    brings: tuple[ExclusionKey, ...] = ()
    owner: str = ""  # its namespace: users of others do not see the name


@dataclass(frozen=True, slots=True)
class ExternalUsageGone:
    key: str


class Requeue(enum.Enum):
    """After which failures a job is queued again without a user's action."""

    NEVER = "never"
    NODE_FAILURE = "node-failure"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class WorkloadSet:
    """A group of members of which `size` start together, as soon as they are ready and fit.

    Further members join one by one.
    """

    workload: str
    name: str
    size: int  # ready members that it needs to start
    assembly_timeout_s: float | None = None  # from the last new member; None: unlimited
    begin_at: float | None = None
    limit_s: int | None = None  # from the start of the group; None: no limit
    deadline_at: float | None = None  # end of the workload, waiting time included
    enforced_by_backend: bool = True  # False: the scheduler ends it at its limit
    is_limit_enforced: bool = True  # False: `limit_s` is only planned with, nobody ends it then
    class_value: int = 0  # of its PriorityClass
    urgency: int = 16
    queue: str = ""
    distinct_nodes: bool = False
    within: str = ""  # topology level whose domain must contain all members
    requeue: Requeue = Requeue.NEVER
    owner: str = ""
    desired: int | None = None  # members that its controllers keep, replacing those that fail; None: unknown
    # Sorted ranges (first, last) of indexes of members that have ended and are not replaced.
    final_indexes: tuple[tuple[int, int], ...] = ()
    is_gang: bool = True  # False: replicas that do not need each other, which are spread over the nodes
    keeps_limit: bool = False  # what a member declares cannot be read: a running job keeps its limit


@dataclass(frozen=True, slots=True)
class WorkloadGone:
    """Its owner is deleted or finished: no further member will be created."""

    workload: str


@dataclass(frozen=True, slots=True)
class MemberSet:
    workload: str
    member: str
    index: int
    requests: tuple[tuple[str, int], ...]
    constraint: Constraint | None = None
    ready: bool = True  # False: must not be placed yet
    recreated: bool = False  # its controller replaces it if it is evicted
    name: str = ""  # for users, if the key is not readable
    brings: tuple[ExclusionKey, ...] = ()  # sorted
    forbids: tuple[ExclusionKey, ...] = ()  # sorted
    prefers: tuple[tuple[Constraint, int], ...] = ()  # nodes to use first, with weights; sorted by weight


@dataclass(frozen=True, slots=True)
class MemberGone:
    member: str


class Phase(enum.Enum):
    WAITING = "waiting"  # not on a node
    PLACED = "placed"  # on its node, not yet running
    RUNNING = "running"
    ENDED = "ended"
    REFUSED = "refused"  # its node refused it; it will not run there
    LOST = "lost"  # its node does not respond; it may be running


class EndCause(enum.Enum):
    """Why a member ended, as far as the scheduler acts on it. Everything else is `OTHER` with a message."""

    EXITED = ""  # by itself; the wait status says how
    SIGNALED = "signal"  # by a signal that a user has sent
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
    status: int = 0  # wait(2) status of an ended member
    cause: EndCause = EndCause.EXITED
    message: str = ""  # the backend's own words, for `EndCause.OTHER` and `Phase.REFUSED`
    started: bool = True  # of an ended member: whether it had started
    usage: tuple[tuple[str, int], ...] = ()  # what it uses, if known
    has_owner: bool = False  # its owner ends it: the scheduler leaves it alone if its job is over
    brings: tuple[ExclusionKey, ...] = ()  # that are in use because of it, as far as is known


class Outcome(enum.Enum):
    APPLIED = "applied"
    CONFLICT = "conflict"  # cannot be done as requested; another node may work
    GONE = "gone"  # the member does not exist any more
    UNKNOWN = "unknown"  # it may have been done; the scheduler probes the member


@dataclass(frozen=True, slots=True)
class IntentResult:
    """The outcome of an intent for one member."""

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
