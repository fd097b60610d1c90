"""Typed responses of the service.

Each struct is the JSON document that a client receives: field order, names and nulls are part of the API.
A field whose type includes `UnsetType` is left out of the document when it does not apply; every other field
is always present. `openapi.json` is generated from these types, and a test validates real answers
against it, so a field cannot be sent without being declared here.

Job ids are F58 text (`ƒ…`), times are seconds since 1970.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from penstock.model.job import JobState
from penstock.sched.reasons import WaitCause

__all__ = [
    "AgentInfo",
    "BlockerInfo",
    "CancelFailure",
    "CancelResult",
    "DatabaseInfo",
    "EmptyResponse",
    "ErrorInfo",
    "ErrorResponse",
    "EventLog",
    "EventLogEntry",
    "ExceptionInfo",
    "ForecastInfo",
    "FunnelStageInfo",
    "InputResult",
    "InstanceEvent",
    "InstanceInfo",
    "InstanceSettings",
    "InstanceStatus",
    "JobCounts",
    "JobDetail",
    "JobList",
    "JobStartInfo",
    "JobSummary",
    "MemberInfo",
    "NodeCounts",
    "NodeInfo",
    "NodeList",
    "OutputChunk",
    "OutputFiles",
    "OutputItem",
    "PromiseInfo",
    "QueueInfo",
    "QueueList",
    "RLiteEntry",
    "RSetDocument",
    "RSetExecution",
    "ResponseBody",
    "SubmitResult",
    "SubmittedJob",
    "Timeline",
    "TimelineNode",
    "TimelineSpan",
    "UrgencyResult",
    "WaitExplanation",
]

Number: TypeAlias = int | float  # an integer in JSON where the value is whole
SpanKind: TypeAlias = Literal["ran", "running", "overrun", "reserved", "forecast", "claimed"]
NodeState: TypeAlias = Literal["free", "allocated", "down", "drained"]

_JobspecText = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": ["object", "null"]})]


class ResponseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all responses."""


class EmptyResponse(ResponseBody, frozen=True):
    """The call succeeded and has nothing to return."""


class ErrorInfo(ResponseBody, frozen=True):
    """What is wrong, where, what was found there, and what would be valid; `message` has all of it."""

    kind: str
    summary: str
    where: str
    found: str
    expected: str
    message: str


class ErrorResponse(ResponseBody, frozen=True):
    error: ErrorInfo


# The instance


class InstanceInfo(ResponseBody, frozen=True):
    id: str
    version: str
    state: str  # the state directory
    started_at: float
    backend: str
    pid: int
    epoch: int
    ready: bool
    why_not_ready: str | UnsetType = UNSET  # set while the instance is not ready


class AgentInfo(ResponseBody, frozen=True):
    node: str
    rank: int
    pid: int | None
    state: Literal["up", "away"]
    why: str
    tasks: int


class DatabaseInfo(ResponseBody, frozen=True):
    pid: int | None
    embedded: bool
    state: Literal["up", "away"]
    server_version: str = ""
    why: str = ""  # why it is away
    address: str = ""  # of an external database, without its password


class JobCounts(ResponseBody, frozen=True):
    """Null: not known, because the instance is not ready or does not count them."""

    pending: int | None = None
    running: int | None = None
    inactive: int | None = None


class NodeCounts(ResponseBody, frozen=True):
    """Null: not known, because the instance is not ready."""

    up: int | None = None
    down: int | None = None


class InstanceSettings(ResponseBody, frozen=True, kw_only=True):
    policy: str
    match_policy: str
    queue_depth: int | None
    forecast_depth: int | None
    # With the local backend.
    oversubscribed: bool | UnsetType = UNSET
    nodes: int | UnsetType = UNSET
    cores: int | UnsetType = UNSET
    # With the Kubernetes backend.
    server: str | UnsetType = UNSET
    schedulers: list[str] | UnsetType = UNSET
    leader: str | UnsetType = UNSET
    is_leader: bool | UnsetType = UNSET
    problem: str | UnsetType = UNSET


class InstanceStatus(ResponseBody, frozen=True):
    instance: InstanceInfo
    agents: list[AgentInfo]
    database: DatabaseInfo
    jobs: JobCounts
    nodes: NodeCounts
    settings: InstanceSettings


# Jobs


class SubmittedJob(ResponseBody, frozen=True):
    id: str


class SubmitResult(ResponseBody, frozen=True):
    """The jobs in the order of the request."""

    jobs: list[SubmittedJob]


class ExceptionInfo(ResponseBody, frozen=True):
    """The first fatal exception of a job."""

    occurred: bool
    type: str
    severity: int | None
    note: str


class ForecastInfo(ResponseBody, frozen=True):
    start_at: float | None
    kind: Literal["none", "reservation", "forecast"]
    made_at: float | None


class PromiseInfo(ResponseBody, frozen=True):
    """The first and the last start time that were announced for a job."""

    first: float | None
    last: float | None


class JobSummary(ResponseBody, frozen=True):
    id: str
    id_dec: str
    name: str
    owner: str
    queue: str
    state: JobState
    state_single: str
    status: str
    result: str
    urgency: int
    priority: int
    ntasks: int
    ncores: Number
    nnodes: int | None
    ranks: str
    nodelist: str
    duration_s: float
    t_submit: float
    t_depend: float | None
    t_run: float | None
    t_start: float | None
    t_cleanup: float | None
    t_inactive: float | None
    expiration: float | None
    waitstatus: int | None
    returncode: int | None
    exception: ExceptionInfo
    dependencies: list[str]
    begin_at: float | None
    requeue: str
    attempt: int
    forecast: ForecastInfo
    promise: PromiseInfo
    reason: str
    reason_kind: WaitCause
    jobs_ahead: int | None
    incomplete_reason: str
    namespace: str  # of a workload; "" for a submitted job


class JobList(ResponseBody, frozen=True):
    jobs: list[JobSummary]


class RLiteEntry(ResponseBody, frozen=True):
    """Ranks with equal children; `children` maps a resource to an idset."""

    rank: str
    children: dict[str, str]


class RSetExecution(ResponseBody, frozen=True):
    R_lite: list[RLiteEntry]
    nodelist: list[str]
    nslots: int
    starttime: float
    expiration: float


class RSetDocument(ResponseBody, frozen=True):
    """R, version 1 (RFC 20)."""

    version: int
    execution: RSetExecution


class MemberInfo(ResponseBody, frozen=True):
    member: str
    name: str
    index: int
    node: str
    phase: str
    status: int | None
    cause: str
    started_at: float | None
    ended_at: float | None


class OutputFiles(ResponseBody, frozen=True):
    index: int
    stdout: str
    stderr: str


class JobDetail(JobSummary, frozen=True):
    """A job with its jobspec (null for a workload), its resource set, its members and its output files."""

    jobspec: _JobspecText
    R: RSetDocument | None
    members: list[MemberInfo]
    output: list[OutputFiles]


class EventLogEntry(ResponseBody, frozen=True):
    """One event of a job (RFC 18); the fields of `context` depend on `name`."""

    timestamp: float
    name: str
    context: dict[str, Any]


class EventLog(ResponseBody, frozen=True):
    events: list[EventLogEntry]


class FunnelStageInfo(ResponseBody, frozen=True):
    """How many nodes passed a stage of the match, and how many are needed."""

    name: str
    passed: int
    needed: int


class BlockerInfo(ResponseBody, frozen=True):
    """A holder of resources that the job waits for; `job` is null if it is not a job of this instance.

    If it has overrun its time limit, `until` is when it is expected to end, which is not certain.
    """

    who: str
    job: str | None
    until: float | None
    overrun: bool
    name: str  # of the job: NAMESPACE/NAME if it is a workload's


class WaitExplanation(ResponseBody, frozen=True):
    """Why a job waits; `kind` is empty if it does not wait."""

    id: str
    state: JobState
    kind: WaitCause
    sentence: str
    clause: str
    steps: list[FunnelStageInfo]
    blockers: list[BlockerInfo]
    jobs_ahead: int | None
    ahead: list[str]
    forecast: ForecastInfo
    suggestion: str
    begin_at: float | None = None


class CancelFailure(ResponseBody, frozen=True):
    id: str
    message: str


class CancelResult(ResponseBody, frozen=True):
    canceled: list[str]
    errors: list[CancelFailure]


class UrgencyResult(ResponseBody, frozen=True):
    old: int
    urgency: int


class InputResult(ResponseBody, frozen=True):
    size: int  # bytes of input that the job has; the next request begins here
    ended: bool


# Streams


class OutputChunk(ResponseBody, frozen=True):
    """A piece of a task's output: UTF-8 text in `data`, any other bytes in `base64`."""

    index: int
    stream: Literal["stdout", "stderr"]
    data: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET


class InstanceEvent(ResponseBody, frozen=True):
    """An event of any job, with its sequence number and the state of the job after it."""

    seq: int
    id: str
    timestamp: float
    name: str
    context: dict[str, Any]
    state: JobState


OutputItem: TypeAlias = OutputChunk | EventLogEntry | JobSummary


# Nodes and queues


class NodeInfo(ResponseBody, frozen=True):
    """A node. What is neither free nor used externally (`*_external`) is allocated to jobs."""

    name: str
    rank: int
    state: NodeState
    up: bool
    drained: bool
    drain_reason: str
    drained_at: float | None
    why: str
    closed: Literal["", "cordoned", "tainted"]
    closed_why: str
    cores: Number
    gpus: int
    memory_bytes: int | None
    cores_free: Number
    gpus_free: int
    memory_free_bytes: int | None
    cores_external: Number
    gpus_external: int
    memory_external_bytes: int | None
    properties: list[str]
    jobs: list[str]


class NodeList(ResponseBody, frozen=True):
    nodes: list[NodeInfo]


class QueueInfo(ResponseBody, frozen=True):
    name: str
    default: bool
    enabled: bool
    started: bool
    reason_disabled: str
    reason_stopped: str
    policy: str
    duration_default_s: float | None
    duration_max_s: float | None
    constraint: str
    namespaces: list[str]
    urgency_max: int
    pending_max: int
    pending: int
    running: int


class QueueList(ResponseBody, frozen=True):
    queues: list[QueueInfo]


# Time


class TimelineSpan(ResponseBody, frozen=True):
    """A job on a node from one time to another; `to` is null if the end is not known."""

    job: str
    name: str
    from_: float = msgspec.field(name="from")
    to: float | None
    kind: SpanKind
    cores: Number


class TimelineNode(ResponseBody, frozen=True):
    name: str
    cores: Number
    spans: list[TimelineSpan]


class JobStartInfo(ResponseBody, frozen=True):
    """The promised start of a job and the real one; `error_s` is real minus first promised."""

    job: str
    name: str
    promised_first: float
    promised_last: float
    started_at: float | None
    error_s: float | None


class Timeline(ResponseBody, frozen=True):
    now: float
    from_: float = msgspec.field(name="from")
    to: float
    nodes: list[TimelineNode]
    starts: list[JobStartInfo]
