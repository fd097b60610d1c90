"""Records: what the scheduler asks a store to keep.

The scheduler describes each change of its state as a `Change`. A store writes all changes of one step in one
transaction. `Recorded` is what a store returns at start-up, and suffices to restore the scheduler. Records
contain JSON values only, never objects of the engine.
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
    """A job as submitted or created; never changed later."""

    id: int
    owner: str
    name: str
    seen_at: float
    spec: JsonObject  # jobspec or workload, with counts for display
    workload: str = ""  # key of the workload; "" for a submitted job
    key: str = ""  # idempotency key of the submission


@dataclass(frozen=True, slots=True)
class JobLogged:
    """One more event in the eventlog. `number` counts from 0 in each job."""

    id: int
    number: int
    event: JobEvent


@dataclass(frozen=True, slots=True)
class JobLive:
    """The mutable part of a job; the latest one counts."""

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
    """A part of a job's allocation: its first match, or an extension."""

    job: int
    part: int
    start_s: int
    end_s: int | None
    data: JsonObject


@dataclass(frozen=True, slots=True)
class SlotsFreed:
    """Slots that are released before the rest of the allocation. Each slot is named once."""

    job: int
    slots: tuple[int, ...]
    at: float


@dataclass(frozen=True, slots=True)
class AllocationGone:
    """The whole allocation of a job is released."""

    job: int
    at: float


@dataclass(frozen=True, slots=True)
class IntentNew:
    id: int
    job: int  # 0: an orphan, whose job may be pruned
    kind: IntentKind
    payload: JsonObject


@dataclass(frozen=True, slots=True)
class IntentDone:
    id: int


@dataclass(frozen=True, slots=True)
class NodeNew:
    """A node got its rank: its position in the order of all nodes, never reused."""

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
    """A workload that gets no further job until a member appears that is not listed here."""

    workload: str
    members: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class InadmissibleGone:
    workload: str


@dataclass(frozen=True, slots=True)
class IdHighest:
    """The highest job id, intent id and node rank ever assigned; none is reused."""

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
    freed: tuple[int, ...] = ()  # slots of the job, in any of its parts


@dataclass(frozen=True, slots=True)
class JobRow:
    new: JobNew
    live: JobLive
    log: tuple[JobEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that a restart needs: active jobs, and the inactive ones that they depend on."""

    began_at: float = 0.0  # first start of the instance; job ids count from here
    highest: IdHighest = IdHighest(0, 0, -1)
    jobs: tuple[JobRow, ...] = ()
    allocations: tuple[AllocationRow, ...] = ()
    intents: tuple[IntentNew, ...] = ()
    nodes: tuple[NodeNew, ...] = ()
    drains: tuple[DrainSet, ...] = ()
    queues: tuple[QueueSet, ...] = ()
    inadmissible: tuple[InadmissibleSet, ...] = ()
    # idempotency keys of recent submissions
    keys: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
