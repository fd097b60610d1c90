"""A job as the scheduler has it in mind, with its members.

What must survive is told as plain values by `dump` and taken in again by `load`; what is only
known until the next pass (a forecast, a reason) is not. Only the modules of this package change a job, and
every change of its state goes through `Journal.log`, so that the log always leads to the state.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from penstock.model.job import ExceptionType, JobEvent, JobState
from penstock.protocol.facts import EndCause, end_cause_of
from penstock.sched.dependencies import JobProgress
from penstock.sched.jobspec import MemberRequest, SchedulingSpec

__all__ = ["Forecast", "Job", "Member", "MemberPhase", "Promise", "dump", "load"]


class MemberPhase(enum.Enum):
    WAITING = "waiting"  # not placed, or to be placed again
    PLACING = "placing"  # the intent is out
    PLACED = "placed"
    RUNNING = "running"
    LOST = "lost"  # may be running
    ENDED = "ended"

    @property
    def is_live(self) -> bool:
        """It has a place, and may use it."""
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
    status: int = 0
    cause: EndCause = EndCause.EXITED
    message: str = ""  # the backend's words about its end, or about the refusal by its last node
    started_at: float | None = None
    ended_at: float | None = None
    lost_at: float | None = None
    seen_at: float = 0.0
    is_ready: bool = True
    is_recreated: bool = False
    slot_release_pending: bool = False  # it has ended, and its slot is not given back yet
    request: MemberRequest | None = (
        None  # of a work's member; a submitted job's members are as their group says
    )
    refused_by: frozenset[str] = frozenset()  # nodes that did not take it
    name: str = ""  # what the world calls it; empty where the key is as good

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
    """What the job was told: the first start, the last one, and when that was said."""

    first_at: float
    last_at: float
    made_at: float
    is_reservation: bool


@dataclass(slots=True)
class Job:
    id: int
    owner: str
    spec: SchedulingSpec
    recorded_spec: Mapping[str, object]  # the spec as it was recorded
    seen_at: float
    workload: str = ""
    state: JobState = JobState.NEW
    queue: str = ""
    urgency: int = 16
    class_value: int = 0
    priority: int = 0
    log: list[JobEvent] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)
    attempt: int = 1
    shape: int = -1
    open_dependencies: set[str] = field(default_factory=set)  # descriptions
    is_assembled: bool = True
    is_workload_gone: bool = False
    waits_for_begin_time: bool = False
    unsatisfiable_reason: str = ""  # why it can never run, as far as is known
    has_allocation: bool = False  # something is booked for it
    placed_at: float | None = None
    end_at: float | None = None  # the limit, counted from the start
    resources_by_node: dict[str, dict[str, str]] = field(
        default_factory=dict
    )  # node -> kind -> units, of the last start
    incomplete_since: float | None = None  # some member of a started group has no place
    is_infrastructure_failure: bool = False  # it was ended by neither itself, nor a person, nor its limit
    incomplete_reason: str = ""  # why a started group cannot be made whole
    past_members: int = 0  # of a work: so many have ended and are not kept any more
    past_status: int = 0  # the worst of their ends
    promise: Promise | None = None
    times: dict[str, float] = field(default_factory=dict)  # when it came into each state, last
    exception: dict[str, object] = field(default_factory=dict)  # the first fatal one
    result: str = ""
    status: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    # Until the next pass:
    forecast: Forecast | None = None

    @property
    def is_ending(self) -> bool:
        """A fatal exception has come in the present attempt."""
        return bool(self.exception)

    @property
    def exception_type(self) -> ExceptionType | None:
        """The type of the exception that ends the present attempt."""
        return ExceptionType(self.exception["type"]) if self.exception else None

    def has_logged(self, name: str) -> bool:
        """Whether an event came in the present attempt."""
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
    told: dict[str, object] = {"attempt": job.attempt}
    if job.members:
        told["members"] = [_dump_member(member) for member in job.members.values()]
    if job.resources_by_node:
        told["resources_by_node"] = job.resources_by_node
    if job.exception:
        told["exception"] = job.exception
    told["times"] = dict(job.times)
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
            told[key] = value
    for key, flag in (
        ("workload_gone", job.is_workload_gone),
        ("infrastructure_failure", job.is_infrastructure_failure),
        ("unassembled", not job.is_assembled),
    ):
        if flag:
            told[key] = True
    if job.class_value:
        told["class_value"] = job.class_value
    if job.promise is not None:
        promise = job.promise
        told["promise"] = [promise.first_at, promise.last_at, promise.made_at, promise.is_reservation]
    return told


def _dump_member(member: Member) -> dict[str, object]:
    told: dict[str, object] = {
        "key": member.key,
        "index": member.index,
        "phase": member.phase.value,
        "node": member.node,
        "slot": member.slot,
        "grants": [list(grant) for grant in member.grants],
    }
    for key, value in (
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
            told[key] = value
    return told


def load(job: Job, detail: Mapping[str, object]) -> None:
    """Sets a job to what `dump` told of it."""
    job.attempt = cast(int, detail.get("attempt", 1))
    for told in cast(list[dict[str, object]], detail.get("members", [])):
        member = _load_member(told)
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


def _load_member(told: Mapping[str, object]) -> Member:
    grants = cast(list[tuple[str, str, int]], told.get("grants", []))
    cause, message = end_cause_of(cast(str, told.get("cause", "")))
    return Member(
        key=cast(str, told["key"]),
        index=cast(int, told["index"]),
        phase=MemberPhase(told["phase"]),
        node=cast(str, told.get("node", "")),
        slot=cast(int, told.get("slot", -1)),
        group=cast(int, told.get("group", 0)),
        grants=tuple((kind, ids, units) for kind, ids, units in grants),
        status=cast(int, told.get("status", 0)),
        cause=cause,
        message=message,
        started_at=cast(float | None, told.get("started_at")),
        ended_at=cast(float | None, told.get("ended_at")),
        lost_at=cast(float | None, told.get("lost_at")),
        seen_at=cast(float, told.get("seen_at", 0.0)),
        is_recreated=bool(told.get("recreated")),
        slot_release_pending=bool(told.get("slot_release_pending")),
        refused_by=frozenset(cast(list[str], told.get("refused_by", []))),
        name=cast(str, told.get("name", "")),
    )
