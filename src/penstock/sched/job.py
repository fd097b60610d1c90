"""Jobs and their members, as the scheduler keeps them.

`live_of` and `member_record` return what must survive a restart; `job_from` restores it. Forecasts are not
stored. Only this package modifies a job. Every change of its state goes through `Journal.log`, so the
eventlog always leads to the state; every change of a member's phase goes through `Journal.change_phase`.

A job counts its members by phase, because its group can be large and most events concern one member.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field

from penstock.model.exclusion_key import ExclusionKey
from penstock.model.job import ExceptionType, JobEvent, JobState
from penstock.protocol.facts import EndCause, WorkloadSet, end_cause_of
from penstock.sched.assembly import Assembly
from penstock.sched.dependencies import JobProgress
from penstock.sched.former_pools import keys_of_pool
from penstock.sched.held_slots import HeldSlots
from penstock.sched.jobspec import MemberRequest, SchedulingSpec
from penstock.sched.member_states import MemberPhase
from penstock.sched.ownership import Ownership
from penstock.sched.records import (
    ExceptionRecord,
    JobLive,
    JobRecord,
    JobRow,
    MemberRecord,
    NodeResources,
    Promise,
)

__all__ = [
    "Forecast",
    "Job",
    "Member",
    "Vacancies",
    "job_from",
    "live_of",
    "member_record",
]

_MemberKind = tuple[int, frozenset[tuple[str, int]]]  # index and units


@dataclass(slots=True)
class Member:
    key: str
    index: int
    phase: MemberPhase = MemberPhase.WAITING
    node: str = ""
    slot: int = -1
    group: int = 0  # in the request that its job has started with
    grants: tuple[tuple[str, str, int], ...] = ()
    brings: tuple[ExclusionKey, ...] = ()  # of its slot
    late_brings: tuple[ExclusionKey, ...] = ()  # those that it has got since its placement
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
    number: int = -1  # position among the members of its job, in the order of their appearance
    # Of an ended member whose replacement is awaited, or waits: since when, and whether its slot is kept.
    vacant_since: float | None = None
    is_slot_kept: bool = False
    replaces: str = ""  # the member whose place it takes; itself if it had a place and has not run there

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


@dataclass(slots=True)
class Vacancies:
    """Members whose replacements are awaited, in the order in which they left, and by what they had."""

    _kinds: dict[str, _MemberKind] = field(default_factory=dict)
    _alike: dict[_MemberKind, dict[str, None]] = field(default_factory=dict)

    def copy(self) -> Vacancies:
        return Vacancies(dict(self._kinds), {kind: dict(keys) for kind, keys in self._alike.items()})

    def __len__(self) -> int:
        return len(self._kinds)

    def __iter__(self) -> Iterator[str]:
        return iter(self._kinds)

    def add(self, member: Member) -> None:
        self.remove(member.key)
        kind = (member.index, frozenset((resource, units) for resource, _, units in member.grants))
        self._kinds[member.key] = kind
        self._alike.setdefault(kind, {})[member.key] = None

    def remove(self, key: str) -> None:
        kind = self._kinds.pop(key, None)
        if kind is not None:
            del self._alike[kind][key]
            if not self._alike[kind]:
                del self._alike[kind]

    def take(self, index: int, requests: tuple[tuple[str, int], ...]) -> str | None:
        """Removes one for a replacement: of a member with the same index and requests, else the first."""
        kind = (index, frozenset((resource, units) for resource, units in requests if units > 0))
        key = next(iter(self._alike.get(kind) or self._kinds), None)
        if key is not None:
            self.remove(key)
        return key


@dataclass(slots=True)
class Job:
    id: int
    owner: str
    spec: SchedulingSpec
    recorded_spec: Mapping[str, object]  # as stored
    seen_at: float
    ownership: Ownership
    workload: str = ""  # its key; "" for a submitted job
    reported_workload: WorkloadSet | None = None  # as last reported; None for a submitted job
    state: JobState = JobState.NEW
    queue: str = ""
    urgency: int = 16
    class_value: int = 0
    priority: int = 0
    log: list[JobEvent] = field(default_factory=list)
    members: dict[str, Member] = field(default_factory=dict)  # changed by `add_member`, `remove_member`
    attempt: int = 1
    shape: int = -1
    open_dependencies: set[str] = field(default_factory=set)  # their descriptions, as in the eventlog
    is_assembled: bool = True
    is_workload_gone: bool = False
    waits_for_begin_time: bool = False
    awaits_queue: bool = False  # its queue was disabled when it appeared: it waits until that is enabled
    unsatisfiable_reason: str = ""  # why it can never run on the present nodes
    has_allocation: bool = False  # the engine has bookings for it
    parts_made: int = 0  # parts and slots of its allocation so far: their numbers are not reused
    slots_made: int = 0
    placed_at: float | None = None
    end_at: float | None = None  # start plus time limit
    resources_by_node: dict[str, NodeResources] = field(default_factory=dict)  # since the last start
    incomplete_since: float | None = None  # since when members of the started group wait for a node
    is_infrastructure_failure: bool = (
        False  # ended by a node failure or an unknown cause, not by itself, a user or its limit
    )
    incomplete_reason: str = ""  # why the started group cannot be completed
    past_members: int = 0  # ended members of a workload that were dropped
    past_status: int = 0  # the largest exit code among them
    promise: Promise | None = None
    times: dict[str, float] = field(default_factory=dict)  # by state: when the job last entered it
    exception: ExceptionRecord | None = None  # ends the present attempt
    result: str = ""
    status: int | None = None
    started_at: float | None = None
    ended_at: float | None = None
    # Not stored:
    outside_reason: str = ""  # why it waits outside the queue, because of a limit of its namespace
    settings_reason: str = ""  # why it is held: the settings have changed since it was accepted
    forecast: Forecast | None = None
    slots: HeldSlots = field(default_factory=HeldSlots)
    details_logged: int = 0  # events of single members in its eventlog
    members_seen: int = 0  # the number of the next member
    members_by_phase: Counter[MemberPhase] = field(default_factory=Counter)
    members_not_started: int = 0
    members_ready: int = 0
    assembly: Assembly = field(default_factory=Assembly)  # the ready members, until the start
    unowned_members: int = 0  # live ones that no controller replaces
    members_with_slots: dict[str, None] = field(default_factory=dict)  # ended, their slots to be released
    late_members: dict[str, None] = field(default_factory=dict)  # of controllers, waiting, replace nobody
    replacements: dict[str, None] = field(default_factory=dict)  # waiting
    vacancies: Vacancies = field(default_factory=Vacancies)  # without those that a replacement fills

    def copy(self) -> Job:
        made = copy(self)
        made.log = list(self.log)
        made.members = {key: copy(member) for key, member in self.members.items()}
        made.open_dependencies = set(self.open_dependencies)
        made.resources_by_node = dict(self.resources_by_node)
        made.times = dict(self.times)
        made.slots = self.slots.copy()
        made.assembly = self.assembly.copy()
        made.members_by_phase = self.members_by_phase.copy()
        made.members_with_slots = dict(self.members_with_slots)
        made.late_members, made.replacements = dict(self.late_members), dict(self.replacements)
        made.vacancies = self.vacancies.copy()
        return made

    @property
    def is_ending(self) -> bool:
        """An exception of severity 0 was raised in the present attempt."""
        return self.exception is not None

    @property
    def exception_type(self) -> ExceptionType | None:
        """The type of the exception that ends the present attempt."""
        return ExceptionType(self.exception.type) if self.exception is not None else None

    @property
    def is_admitted(self) -> bool:
        """Whether settings, limits and its queue let it enter the queue."""
        return not self.outside_reason and not self.settings_reason and not self.awaits_queue

    def has_logged(self, name: str) -> bool:
        """Whether the eventlog has this event in the present attempt."""
        for event in reversed(self.log):
            if event.name == name:
                return True
            if event.name == "requeue":
                return False
        return False

    def add_member(self, member: Member) -> None:
        """Adds a member, with the next number unless it has one."""
        if member.number < 0:
            member.number = self.members_seen
        self.members_seen = max(self.members_seen, member.number + 1)
        self.members[member.key] = member
        self.members_by_phase[member.phase] += 1
        self.members_not_started += member.started_at is None
        self.members_ready += member.is_ready
        if member.slot_release_pending:
            self.members_with_slots[member.key] = None
        self._note_waiting(member)
        self._count_unowned(member, 1)

    def remove_member(self, key: str) -> None:
        member = self.members.pop(key)
        self._count_unowned(member, -1)
        self.members_by_phase[member.phase] -= 1
        self.members_not_started -= member.started_at is None
        self.members_ready -= member.is_ready
        self.assembly.remove(key)
        self.members_with_slots.pop(key, None)
        self.late_members.pop(key, None)
        self.replacements.pop(key, None)

    def set_request(self, member: Member, request: MemberRequest, *, is_ready: bool) -> None:
        """Sets what a member of a workload requests, and whether it may be placed."""
        self.members_ready += is_ready - member.is_ready
        member.request, member.is_ready = request, is_ready
        if is_ready and self.state.is_pending:
            self.assembly.add(member.key, member.index, member.number, request)
        else:
            self.assembly.remove(member.key)

    def set_phase(self, member: Member, phase: MemberPhase) -> None:
        self.members_by_phase[member.phase] -= 1
        self.members_by_phase[phase] += 1
        self._count_unowned(member, -1)
        member.phase = phase
        self._count_unowned(member, 1)
        self._note_waiting(member)

    def set_recreated(self, member: Member, is_recreated: bool) -> None:
        self._count_unowned(member, -1)
        member.is_recreated = is_recreated
        self._count_unowned(member, 1)
        self._note_waiting(member)

    def _count_unowned(self, member: Member, change: int) -> None:
        if member.phase.is_live and not member.is_recreated:
            self.unowned_members += change

    def set_replaces(self, member: Member, left: str) -> None:
        """Makes a member the replacement of one that has left."""
        member.replaces = left
        self._note_waiting(member)

    def _note_waiting(self, member: Member) -> None:
        self.late_members.pop(member.key, None)
        self.replacements.pop(member.key, None)
        if member.phase is not MemberPhase.WAITING:
            return
        if member.replaces:
            self.replacements[member.key] = None
        elif member.is_recreated:
            self.late_members[member.key] = None

    def set_started(self, member: Member, at: float) -> None:
        """Notes the first start of a member."""
        if member.started_at is None:
            member.started_at = at
            self.members_not_started -= 1

    def set_release_pending(self, member: Member, is_pending: bool) -> None:
        member.slot_release_pending = is_pending
        if is_pending:
            self.members_with_slots[member.key] = None
        else:
            self.members_with_slots.pop(member.key, None)

    @property
    def live_count(self) -> int:
        counts = self.members_by_phase
        return len(self.members) - counts[MemberPhase.WAITING] - counts[MemberPhase.ENDED]

    @property
    def has_live_members(self) -> bool:
        return self.live_count > 0

    def live_members(self) -> list[Member]:
        return [member for member in self.members.values() if member.phase.is_live]

    def progress(self) -> JobProgress:
        is_over = self.state is JobState.INACTIVE
        return JobProgress(
            had_alloc=self.has_logged("alloc"),
            started=self.has_logged("start"),
            is_over=is_over,
            is_completed=is_over and self.result == "COMPLETED",
            had_exception=self.is_ending,
        )


def live_of(job: Job) -> JobLive:
    """The mutable part of a job as a record."""
    return JobLive(
        id=job.id,
        state=job.state,
        queue=job.queue,
        urgency=job.urgency,
        priority=job.priority,
        result=job.result,
        status=job.status,
        started_at=job.started_at,
        ended_at=job.ended_at,
        record=JobRecord(
            attempt=job.attempt,
            times=dict(job.times),
            exception=job.exception,
            placed_at=job.placed_at,
            end_at=job.end_at,
            incomplete_since=job.incomplete_since,
            incomplete_reason=job.incomplete_reason,
            unsatisfiable_reason=job.unsatisfiable_reason,
            past_members=job.past_members,
            past_status=job.past_status,
            is_assembled=job.is_assembled,
            is_workload_gone=job.is_workload_gone,
            is_infrastructure_failure=job.is_infrastructure_failure,
            class_value=job.class_value,
            promise=job.promise,
            parts_made=job.parts_made,
            slots_made=job.slots_made,
            workload=job.reported_workload,
            awaits_queue=job.awaits_queue,
        ),
    )


def member_record(member: Member) -> MemberRecord:
    return MemberRecord(
        key=member.key,
        number=member.number,
        index=member.index,
        phase=member.phase,
        node=member.node,
        slot=member.slot,
        group=member.group,
        grants=member.grants,
        brings=member.brings,
        late_brings=member.late_brings,
        status=member.status,
        cause=member.cause_text,
        started_at=member.started_at,
        ended_at=member.ended_at,
        lost_at=member.lost_at,
        seen_at=member.seen_at,
        is_recreated=member.is_recreated,
        slot_release_pending=member.slot_release_pending,
        refused_by=tuple(sorted(member.refused_by)),
        name=member.name,
        vacant_since=member.vacant_since,
        is_slot_kept=member.is_slot_kept,
        replaces=member.replaces,
    )


def job_from(row: JobRow, spec: SchedulingSpec, ownership: Ownership) -> Job:
    """Restores a job from its records."""
    new, live, record = row.new, row.live, row.live.record
    job = Job(new.id, new.owner, spec, new.spec, new.seen_at, ownership, new.workload)
    job.log = list(row.log)
    job.details_logged = sum(event.is_detail for event in row.log)
    job.state, job.queue, job.urgency, job.priority = live.state, live.queue, live.urgency, live.priority
    job.result, job.status = live.result, live.status
    job.started_at, job.ended_at = live.started_at, live.ended_at
    job.attempt, job.times, job.exception = record.attempt, dict(record.times), record.exception
    job.placed_at, job.end_at = record.placed_at, record.end_at
    job.incomplete_since, job.incomplete_reason = record.incomplete_since, record.incomplete_reason
    job.unsatisfiable_reason = record.unsatisfiable_reason
    job.past_members, job.past_status = record.past_members, record.past_status
    job.is_assembled, job.is_workload_gone = record.is_assembled, record.is_workload_gone
    job.is_infrastructure_failure = record.is_infrastructure_failure
    job.class_value, job.promise = record.class_value, record.promise
    job.parts_made, job.slots_made = record.parts_made, record.slots_made
    job.reported_workload, job.awaits_queue = record.workload, record.awaits_queue
    job.resources_by_node = dict(row.resources_by_node)
    for member in row.members:
        job.add_member(_member_from(member))
    filled = {job.members[key].replaces for key in job.replacements}
    left = [one for one in job.members.values() if one.vacant_since is not None and one.key not in filled]
    for one in sorted(left, key=lambda one: one.vacant_since or 0.0):
        job.vacancies.add(one)
    return job


def _member_from(record: MemberRecord) -> Member:
    cause, message = end_cause_of(record.cause)
    of_pools = {key for resource, _, units in record.grants for key in keys_of_pool(resource, units)}
    return Member(
        key=record.key,
        index=record.index,
        phase=record.phase,
        node=record.node,
        slot=record.slot,
        group=record.group,
        grants=tuple(grant for grant in record.grants if not keys_of_pool(grant[0], grant[2])),
        brings=(*record.brings, *sorted(of_pools)),
        late_brings=record.late_brings,
        status=record.status,
        cause=cause,
        message=message,
        started_at=record.started_at,
        ended_at=record.ended_at,
        lost_at=record.lost_at,
        seen_at=record.seen_at,
        is_recreated=record.is_recreated,
        slot_release_pending=record.slot_release_pending,
        refused_by=frozenset(record.refused_by),
        name=record.name,
        number=record.number,
        vacant_since=record.vacant_since,
        is_slot_kept=record.is_slot_kept,
        replaces=record.replaces,
    )
