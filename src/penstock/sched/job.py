"""Jobs and their members, as the scheduler keeps them.

`dump` converts what must survive a restart to JSON values and `load` restores it. Forecasts are not stored.
Only this package modifies a job. Every change of its state goes through `Journal.log`, so the eventlog always
leads to the state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from penstock.model.exclusion_key import ExclusionKey
from penstock.model.job import ExceptionType, JobEvent, JobState
from penstock.protocol.facts import EndCause, end_cause_of
from penstock.sched.dependencies import JobProgress
from penstock.sched.former_pools import keys_of_pool
from penstock.sched.jobspec import MemberRequest, SchedulingSpec
from penstock.sched.ownership import Ownership

__all__ = ["Forecast", "Job", "Member", "MemberPhase", "Promise", "dump", "load"]


class MemberPhase(enum.Enum):
    WAITING = "waiting"  # without a node
    PLACING = "placing"  # ordered, not confirmed
    PLACED = "placed"
    RUNNING = "running"
    LOST = "lost"  # its node does not respond; it may be running
    ENDED = "ended"

    @property
    def is_live(self) -> bool:
        """It has a node and may use its units."""
        return self not in (MemberPhase.WAITING, MemberPhase.ENDED)


@dataclass(slots=True)
class Member:
    key: str
    index: int
    phase: MemberPhase = MemberPhase.WAITING
    node: str = ""
    slot: int = -1
    group: int = 0
    grants: tuple[tuple[str, str, int], ...] = ()
    brings: tuple[ExclusionKey, ...] = ()  # of its slot
    status: int = 0
    cause: EndCause = EndCause.EXITED
    message: str = ""  # the backend's words about its end, or about the refusal by its last node
    started_at: float | None = None
    ended_at: float | None = None
    lost_at: float | None = None
    seen_at: float = 0.0
    is_ready: bool = True
    is_recreated: bool = False
    slot_release_pending: bool = False  # it has ended, and its slot is not released yet
    request: MemberRequest | None = (
        None  # member of a workload; members of a submitted job have their group's request
    )
    refused_by: frozenset[str] = frozenset()  # nodes that refused it, until they change
    name: str = ""  # for users; empty if the key is readable

    @property
    def display_name(self) -> str:
        return self.name or self.key

    @property
    def cause_text(self) -> str:
        return self.message or ("" if self.cause is EndCause.OTHER else self.cause.value)


@dataclass(frozen=True, slots=True)
class Forecast:
    start_at: float
    made_at: float
    is_reservation: bool


@dataclass(frozen=True, slots=True)
class Promise:
    """The starts that a job was promised: the first, the last, and when the last was made."""

    first_at: float
    last_at: float
    made_at: float
    is_reservation: bool


@dataclass(slots=True)
class Job:
    id: int
    owner: str
    spec: SchedulingSpec
    recorded_spec: Mapping[str, object]  # as stored
    seen_at: float
    ownership: Ownership
    workload: str = ""  # its key; "" for a submitted job
    state: JobState = JobState.NEW
    queue: str = ""
    urgency: int = 16
    class_value: int = 0
    priority: int = 0
    log: list[JobEvent] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)
    attempt: int = 1
    shape: int = -1
    open_dependencies: set[str] = field(default_factory=set)  # their descriptions, as in the eventlog
    is_assembled: bool = True
    is_workload_gone: bool = False
    waits_for_begin_time: bool = False
    unsatisfiable_reason: str = ""  # why it can never run on the present nodes
    has_allocation: bool = False  # the engine has bookings for it
    placed_at: float | None = None
    end_at: float | None = None  # start plus time limit
    # node -> resource -> ids or count, since the last start
    resources_by_node: dict[str, dict[str, str]] = field(default_factory=dict)
    incomplete_since: float | None = None  # since when members of the started group wait for a node
    is_infrastructure_failure: bool = (
        False  # ended by a node failure or an unknown cause, not by itself, a user or its limit
    )
    incomplete_reason: str = ""  # why the started group cannot be completed
    past_members: int = 0  # ended members of a workload that were dropped
    past_status: int = 0  # the largest exit code among them
    promise: Promise | None = None
    times: dict[str, float] = field(default_factory=dict)  # by state: when the job last entered it
    exception: dict[str, object] = field(default_factory=dict)  # context of the exception that ends it
    result: str = ""
    status: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    # Not stored:
    forecast: Forecast | None = None

    @property
    def is_ending(self) -> bool:
        """An exception of severity 0 was raised in the present attempt."""
        return bool(self.exception)

    @property
    def exception_type(self) -> ExceptionType | None:
        """The type of the exception that ends the present attempt."""
        return ExceptionType(self.exception["type"]) if self.exception else None

    def has_logged(self, name: str) -> bool:
        """Whether the eventlog has this event in the present attempt."""
        for event in reversed(self.log):
            if event.name == name:
                return True
            if event.name == "requeue":
                return False
        return False

    def live_members(self) -> list[Member]:
        return [member for member in self.members.values() if member.phase.is_live]

    def progress(self) -> JobProgress:
        is_over = self.state is JobState.INACTIVE
        return JobProgress(
            had_alloc=self.has_logged("alloc"),
            started=self.has_logged("start"),
            is_over=is_over,
            is_completed=is_over and self.result == "COMPLETED",
            had_exception=bool(self.exception),
        )


def dump(job: Job) -> dict[str, object]:
    document: dict[str, object] = {"attempt": job.attempt}
    if job.members:
        document["members"] = [_dump_member(member) for member in job.members.values()]
    if job.resources_by_node:
        document["resources_by_node"] = job.resources_by_node
    if job.exception:
        document["exception"] = job.exception
    document["times"] = dict(job.times)
    for key, value in (
        ("placed_at", job.placed_at),
        ("end_at", job.end_at),
        ("incomplete_since", job.incomplete_since),
        ("incomplete_reason", job.incomplete_reason),
        ("past_members", job.past_members or None),
        ("past_status", job.past_status or None),
        ("unsatisfiable_reason", job.unsatisfiable_reason),
    ):
        if value not in (None, ""):
            document[key] = value
    for key, flag in (
        ("workload_gone", job.is_workload_gone),
        ("infrastructure_failure", job.is_infrastructure_failure),
        ("unassembled", not job.is_assembled),
    ):
        if flag:
            document[key] = True
    if job.class_value:
        document["class_value"] = job.class_value
    if job.promise is not None:
        promise = job.promise
        document["promise"] = [promise.first_at, promise.last_at, promise.made_at, promise.is_reservation]
    return document


def _dump_member(member: Member) -> dict[str, object]:
    document: dict[str, object] = {
        "key": member.key,
        "index": member.index,
        "phase": member.phase.value,
        "node": member.node,
        "slot": member.slot,
        "grants": [list(grant) for grant in member.grants],
    }
    for key, value in (
        ("brings", [[key.level, key.name, key.scope] for key in member.brings] or None),
        ("group", member.group),
        ("status", member.status),
        ("cause", member.cause_text),
        ("started_at", member.started_at),
        ("ended_at", member.ended_at),
        ("lost_at", member.lost_at),
        ("seen_at", member.seen_at),
        ("recreated", member.is_recreated),
        ("slot_release_pending", member.slot_release_pending),
        ("refused_by", sorted(member.refused_by) or None),
        ("name", member.name),
    ):
        if value not in (None, "", False):
            document[key] = value
    return document


def load(job: Job, detail: Mapping[str, object]) -> None:
    """Restores what `dump` has stored."""
    job.attempt = cast(int, detail.get("attempt", 1))
    for document in cast(list[dict[str, object]], detail.get("members", [])):
        member = _load_member(document)
        job.members[member.key] = member
    job.resources_by_node = cast(dict[str, dict[str, str]], detail.get("resources_by_node", {}))
    job.exception = cast(dict[str, object], detail.get("exception", {}))
    job.times = dict(cast(dict[str, float], detail.get("times", {})))
    job.placed_at = cast(float | None, detail.get("placed_at"))
    job.end_at = cast(float | None, detail.get("end_at"))
    job.incomplete_since = cast(float | None, detail.get("incomplete_since"))
    job.incomplete_reason = cast(str, detail.get("incomplete_reason", ""))
    job.past_members = cast(int, detail.get("past_members", 0))
    job.past_status = cast(int, detail.get("past_status", 0))
    job.unsatisfiable_reason = cast(str, detail.get("unsatisfiable_reason", ""))
    job.is_workload_gone = bool(detail.get("workload_gone"))
    job.is_infrastructure_failure = bool(detail.get("infrastructure_failure"))
    job.is_assembled = not detail.get("unassembled")
    job.class_value = cast(int, detail.get("class_value", 0))
    promise = cast(list[float] | None, detail.get("promise"))
    if promise:
        job.promise = Promise(promise[0], promise[1], promise[2], bool(promise[3]))


def _load_member(document: Mapping[str, object]) -> Member:
    grants = cast(list[tuple[str, str, int]], document.get("grants", []))
    of_pools = {key for resource, _, units in grants for key in keys_of_pool(resource, units)}
    keys = (ExclusionKey(*key) for key in cast(list[tuple[str, str, str]], document.get("brings", [])))
    cause, message = end_cause_of(cast(str, document.get("cause", "")))
    return Member(
        key=cast(str, document["key"]),
        index=cast(int, document["index"]),
        phase=MemberPhase(document["phase"]),
        node=cast(str, document.get("node", "")),
        slot=cast(int, document.get("slot", -1)),
        group=cast(int, document.get("group", 0)),
        grants=tuple((name, ids, units) for name, ids, units in grants if not keys_of_pool(name, units)),
        brings=(*keys, *sorted(of_pools)),
        status=cast(int, document.get("status", 0)),
        cause=cause,
        message=message,
        started_at=cast(float | None, document.get("started_at")),
        ended_at=cast(float | None, document.get("ended_at")),
        lost_at=cast(float | None, document.get("lost_at")),
        seen_at=cast(float, document.get("seen_at", 0.0)),
        is_recreated=bool(document.get("recreated")),
        slot_release_pending=bool(document.get("slot_release_pending")),
        refused_by=frozenset(cast(list[str], document.get("refused_by", []))),
        name=cast(str, document.get("name", "")),
    )
