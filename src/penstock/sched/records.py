"""Records: what the scheduler asks a store to keep.

The scheduler describes each change of its state as a `Change`. A store writes all changes of one step in one
transaction. `Recorded` is what a store returns at start-up, and suffices to restore the scheduler. Records
contain plain values only, never objects of the engine.

Members, slots and the nodes of a job are separate records, because a group can have thousands of them and
most events concern one: an event writes what it changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from penstock.model.exclusion_key import ExclusionKey
from penstock.model.job import JobEvent, JobState
from penstock.protocol.facts import EndCause, WorkloadSet
from penstock.protocol.intents import IntentKind
from penstock.sched.member_states import MemberPhase

__all__ = [
    "AllocationGone",
    "AllocationNew",
    "Change",
    "ClaimGone",
    "ClaimSet",
    "DrainGone",
    "DrainSet",
    "ExceptionRecord",
    "IdHighest",
    "InadmissibleGone",
    "InadmissibleSet",
    "IntentDone",
    "IntentNew",
    "JobLive",
    "JobLogged",
    "JobNew",
    "JobNodeGone",
    "JobNodeSet",
    "JobOverview",
    "JobRecord",
    "JobRow",
    "JobSizes",
    "JsonObject",
    "MemberDropped",
    "MemberRecord",
    "MemberRecorded",
    "NodeForgotten",
    "NodeNew",
    "NodeResources",
    "Promise",
    "QueueSet",
    "Recorded",
    "SlotChanged",
    "SlotRecord",
    "SlotsFreed",
    "member_count",
]

JsonObject = Mapping[str, object]
NodeResources = Mapping[str, str]  # by resource: ids of whole units, or the count of a pool


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
class ExceptionRecord:
    """The exception that ends the present attempt of a job."""

    type: str  # a value of `ExceptionType`
    severity: int
    note: str


@dataclass(frozen=True, slots=True)
class Promise:
    """The starts that a job was promised: the first, the last, and when the last was made."""

    first_at: float
    last_at: float
    made_at: float
    is_reservation: bool


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The part of a job's state that no query of a store selects by."""

    attempt: int = 1
    times: Mapping[str, float] = field(default_factory=dict)  # by state: when the job last entered it
    exception: ExceptionRecord | None = None
    placed_at: float | None = None
    end_at: float | None = None  # start plus time limit
    incomplete_since: float | None = None  # since when members of the started group wait for a node
    incomplete_reason: str = ""  # why the started group cannot be completed
    unsatisfiable_reason: str = ""  # why it can never run on the present nodes
    past_members: int = 0  # ended members of a workload that were dropped
    past_status: int = 0  # the largest exit code among them
    is_assembled: bool = True
    is_workload_gone: bool = False
    is_infrastructure_failure: bool = False
    class_value: int = 0
    promise: Promise | None = None
    parts_made: int = 0  # parts and slots of its allocation so far: their numbers are not reused
    slots_made: int = 0
    workload: WorkloadSet | None = None  # as last reported; None for a submitted job
    awaits_queue: bool = False  # its queue was disabled when it appeared


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
    record: JobRecord = JobRecord()


@dataclass(frozen=True, slots=True)
class MemberRecord:
    key: str
    number: int  # position among the members of its job, in the order of their appearance
    index: int
    phase: MemberPhase = MemberPhase.WAITING
    node: str = ""
    slot: int = -1
    group: int = 0
    grants: tuple[tuple[str, str, int], ...] = ()
    brings: tuple[ExclusionKey, ...] = ()
    late_brings: tuple[ExclusionKey, ...] = ()
    status: int = 0
    cause: str = ""  # why it ended, or why its last node refused it
    started_at: float | None = None
    ended_at: float | None = None
    lost_at: float | None = None
    seen_at: float = 0.0
    is_recreated: bool = False
    slot_release_pending: bool = False
    refused_by: tuple[str, ...] = ()
    name: str = ""
    vacant_since: float | None = None  # since when its replacement is awaited
    is_slot_kept: bool = False  # its slot stays booked for its replacement
    replaces: str = ""  # the member whose place it takes; itself if it had a place and has not run there


@dataclass(frozen=True, slots=True)
class MemberRecorded:
    """A member that is new or has changed; the latest one counts."""

    job: int
    member: MemberRecord


@dataclass(frozen=True, slots=True)
class MemberDropped:
    """A member that its job does not count any more."""

    job: int
    key: str


@dataclass(frozen=True, slots=True)
class JobNodeSet:
    """What a job holds on a node, or held there since its last start; the latest one counts."""

    job: int
    node: str
    resources: NodeResources


@dataclass(frozen=True, slots=True)
class JobNodeGone:
    job: int
    node: str


@dataclass(frozen=True, slots=True)
class SlotRecord:
    number: int
    data: JsonObject


@dataclass(frozen=True, slots=True)
class AllocationNew:
    """A part of a job's allocation: its first match, or an extension. `data`: what its slots do not imply."""

    job: int
    part: int
    start_s: int
    end_s: int | None
    data: JsonObject
    slots: tuple[SlotRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class SlotChanged:
    """A slot that has lost some of its grants, or brings other keys; the latest one counts."""

    job: int
    slot: SlotRecord


@dataclass(frozen=True, slots=True)
class SlotsFreed:
    """Slots that are released before the rest of the allocation, and the parts that end with them."""

    job: int
    slots: tuple[int, ...]
    parts: tuple[int, ...] = ()


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
    error: str = ""  # why it cannot be read; the other fields are what can be


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
class ClaimSet:
    """The nodes that a pending job claims; the latest set counts."""

    job: int
    nodes: tuple[str, ...]  # by rank
    made_at: float  # since when it claims nodes; a claim that moves keeps it


@dataclass(frozen=True, slots=True)
class ClaimGone:
    job: int


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
    | MemberRecorded
    | MemberDropped
    | JobNodeSet
    | JobNodeGone
    | AllocationNew
    | SlotChanged
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
    | ClaimSet
    | ClaimGone
    | IdHighest
)


def member_count(members: Iterable[MemberRecord]) -> int:
    """How many members a job has at a time, whatever its controllers have replaced or deleted so far."""
    kept = {one.key: one.replaces for one in members if one.cause != EndCause.GONE.value}
    replaced = {left for key, left in kept.items() if left != key}
    return sum(1 for key in kept if key not in replaced)


@dataclass(frozen=True, slots=True)
class JobSizes:
    """How many members a job has, on which nodes they are or were, and the units of the job by node.

    Members that were replaced or deleted are not counted (`member_count`).
    """

    members: int = 0
    member_nodes: frozenset[str] = frozenset()
    resources_by_node: Mapping[str, NodeResources] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobOverview:
    """A job without its members and its eventlog."""

    new: JobNew
    live: JobLive
    sizes: JobSizes = JobSizes()


@dataclass(frozen=True, slots=True)
class JobRow:
    """An active job, or an inactive one without members and nodes.

    If a row of it cannot be decoded, `error` says which, and the fields are what can be read.
    """

    new: JobNew
    live: JobLive
    log: tuple[JobEvent, ...] = ()
    members: tuple[MemberRecord, ...] = ()  # by number
    resources_by_node: Mapping[str, NodeResources] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Everything that a restart needs: active jobs, and the inactive ones that they depend on."""

    began_at: float = 0.0  # first start of the instance; job ids count from here
    highest: IdHighest = IdHighest(0, 0, -1)
    jobs: tuple[JobRow, ...] = ()
    allocations: tuple[AllocationNew, ...] = ()  # with the slots that are not released
    intents: tuple[IntentNew, ...] = ()
    nodes: tuple[NodeNew, ...] = ()
    drains: tuple[DrainSet, ...] = ()
    queues: tuple[QueueSet, ...] = ()
    inadmissible: tuple[InadmissibleSet, ...] = ()
    claims: tuple[ClaimSet, ...] = ()
    # idempotency keys of recent submissions
    keys: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
