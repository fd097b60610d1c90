"""What must be remembered, as rows: the words between the scheduler and a store.

The scheduler says what became true as `Change` values; a store writes all changes of one step in one
transaction, or none. `Recorded` is what a store gives back on start: enough to decide on as if nothing
had happened. Rows hold plain values (texts, numbers, lists, dicts), never an object of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.model.job import JobEvent, JobState
from penstock.protocol.intents import IntentKind

__all__ = [
    "AllocationGone",
    "AllocationNew",
    "AllocationRow",
    "Change",
    "DrainGone",
    "DrainSet",
    "IdHighest",
    "InadmissibleGone",
    "InadmissibleSet",
    "IntentDone",
    "IntentNew",
    "JobLive",
    "JobLogged",
    "JobNew",
    "JobRow",
    "JsonObject",
    "NodeForgotten",
    "NodeNew",
    "QueueSet",
    "Recorded",
    "SlotsFreed",
]

JsonObject = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobNew:
    """A job as it came; nothing of this changes later."""

    id: int
    owner: str
    name: str
    seen_at: float
    spec: JsonObject  # what it asks for, and what a driver needs
    workload: str = ""  # the world's name for it; "" if it was submitted to us
    key: str = ""  # of the submission; the same key again is the same job


@dataclass(frozen=True, slots=True)
class JobLogged:
    """One more line in the job's eventlog. `number` counts from 0 in each job."""

    id: int
    number: int
    event: JobEvent


@dataclass(frozen=True, slots=True)
class JobLive:
    """What changes about a job; the newest one counts."""

    id: int
    state: JobState
    queue: str
    urgency: int
    priority: int
    result: str  # "" until there is one
    status: int | None  # wait status
    started_at: float | None
    ended_at: float | None
    detail: JsonObject


@dataclass(frozen=True, slots=True)
class AllocationNew:
    """A part of what a job holds: its first match, or an extension."""

    job: int
    part: int
    start_s: int
    end_s: int | None
    data: JsonObject


@dataclass(frozen=True, slots=True)
class SlotsFreed:
    """Given back before the rest. Each slot of what a job holds is named once."""

    job: int
    slots: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class AllocationGone:
    """All that the job held is free."""

    job: int
    at: float


@dataclass(frozen=True, slots=True)
class IntentNew:
    id: int
    job: int  # 0: about something that is left over of a job that may be forgotten
    kind: IntentKind
    payload: JsonObject


@dataclass(frozen=True, slots=True)
class IntentDone:
    id: int


@dataclass(frozen=True, slots=True)
class NodeNew:
    """A node was given its rank: its place in the order of all nodes, never given again."""

    node: str
    rank: int


@dataclass(frozen=True, slots=True)
class NodeForgotten:
    node: str


@dataclass(frozen=True, slots=True)
class DrainSet:
    node: str
    reason: str
    by: str
    at: float


@dataclass(frozen=True, slots=True)
class DrainGone:
    node: str


@dataclass(frozen=True, slots=True)
class QueueSet:
    queue: str
    enabled: bool
    started: bool
    reason_disabled: str = ""
    reason_stopped: str = ""


@dataclass(frozen=True, slots=True)
class InadmissibleSet:
    """The job of a work is over for good: members that were there then wait until somebody else comes."""

    workload: str
    members: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class InadmissibleGone:
    workload: str


@dataclass(frozen=True, slots=True)
class IdHighest:
    """The highest job id, intent id and node rank ever given: none is given twice, whatever is forgotten."""

    job: int
    intent: int
    rank: int


Change = (
    JobNew
    | JobLogged
    | JobLive
    | AllocationNew
    | SlotsFreed
    | AllocationGone
    | IntentNew
    | IntentDone
    | NodeNew
    | NodeForgotten
    | DrainSet
    | DrainGone
    | QueueSet
    | InadmissibleSet
    | InadmissibleGone
    | IdHighest
)


@dataclass(frozen=True, slots=True)
class AllocationRow:
    part: AllocationNew
    freed: tuple[int, ...] = ()  # slots of the job, of whatever part


@dataclass(frozen=True, slots=True)
class JobRow:
    new: JobNew
    live: JobLive
    log: tuple[JobEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that a restart needs. Jobs are the active ones, and the inactive that they depend on."""

    began_at: float = 0.0  # when the instance was first started; ids count from here
    highest: IdHighest = IdHighest(0, 0, -1)
    jobs: tuple[JobRow, ...] = ()
    allocations: tuple[AllocationRow, ...] = ()
    intents: tuple[IntentNew, ...] = ()
    nodes: tuple[NodeNew, ...] = ()
    drains: tuple[DrainSet, ...] = ()
    queues: tuple[QueueSet, ...] = ()
    inadmissible: tuple[InadmissibleSet, ...] = ()
    keys: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of recent submissions
