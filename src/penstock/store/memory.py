"""The store in memory, for tests and the simulator. It gives the same answers as PostgreSQL.

The state is in `MemoryTables`, which outlives a store: a second store on the same tables acts as a second
instance, and dropping a store acts as a crash. A value in a table is immutable or a table by itself, and a
transaction keeps the values it replaced, so a rollback is exact. Documents are copied through JSON, so a
caller that later changes an argument does not change the recorded state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from penstock.errors import BadRequest, Corrupt
from penstock.model.job import JobEvent, JobState
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import (
    AllocationGone,
    AllocationNew,
    Change,
    DrainGone,
    DrainSet,
    IdHighest,
    InadmissibleGone,
    InadmissibleSet,
    IntentDone,
    IntentNew,
    JobLive,
    JobLogged,
    JobNew,
    JobNodeGone,
    JobNodeSet,
    JobOverview,
    JobRow,
    JobSizes,
    MemberDropped,
    MemberRecord,
    MemberRecorded,
    NodeForgotten,
    NodeNew,
    NodeResources,
    QueueSet,
    Recorded,
    SlotRecord,
    SlotsFreed,
)
from penstock.store.audit_rows import AuditJob, AuditMember
from penstock.store.batch import initial_live
from penstock.store.encoding import decode_member, decode_record, encode_member, encode_record
from penstock.store.port import Fenced, JobFilter, Retention
from penstock.store.transactions import PRUNE_BATCH_MAX, SUBMISSION_KEY_TTL_S, reach_after, reach_before

__all__ = ["MemoryStore", "MemoryTables"]


@dataclass(slots=True)
class MemoryTables:
    """The durable state. `instance` has the keys epoch, began_at, highest and cluster."""

    instance: dict[str, Any] = field(
        default_factory=lambda: {
            "epoch": 0,
            "began_at": None,
            "highest": IdHighest(0, 0, -1),
            "cluster": "",
        }
    )
    new: dict[int, JobNew] = field(default_factory=dict)
    live: dict[int, JobLive] = field(default_factory=dict)
    logs: dict[int, tuple[JobEvent, ...]] = field(default_factory=dict)
    members: dict[int, dict[str, MemberRecord]] = field(default_factory=dict)  # by job and key
    job_nodes: dict[int, dict[str, NodeResources]] = field(default_factory=dict)  # by job and node
    allocations: dict[int, dict[int, AllocationNew]] = field(default_factory=dict)  # without slots
    slots: dict[int, dict[int, tuple[int, SlotRecord]]] = field(default_factory=dict)  # with their parts
    intents: dict[int, IntentNew] = field(default_factory=dict)
    nodes: dict[str, NodeNew] = field(default_factory=dict)
    ranks: dict[int, str] = field(default_factory=dict)  # rank -> node
    drains: dict[str, DrainSet] = field(default_factory=dict)
    queues: dict[str, QueueSet] = field(default_factory=dict)
    inadmissible: dict[str, InadmissibleSet] = field(default_factory=dict)
    submissions: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)  # job, seen_at


_MISSING: Final = object()
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class _Transaction:
    """Changes tables and can roll back every change."""

    def __init__(self) -> None:
        self._undo: list[tuple[dict[Any, Any], Any, Any]] = []

    def put(self, table: dict[Any, Any], key: object, value: object) -> None:
        self._undo.append((table, key, table.get(key, _MISSING)))
        table[key] = value

    def remove(self, table: dict[Any, Any], key: object) -> None:
        self._undo.append((table, key, table.pop(key, _MISSING)))

    def undo(self) -> None:
        for table, key, value in reversed(self._undo):
            if value is _MISSING:
                table.pop(key, None)
            else:
                table[key] = value

    def run(self, name: str, body: Callable[[], None]) -> None:
        """Runs `body` completely or rolls it back, between the two failpoints of `name`."""
        try:
            body()
            reach_before(name)
        except BaseException:
            self.undo()
            raise
        reach_after(name)


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError, OverflowError, msgspec.MsgspecError) as error:
        raise BadRequest("a change contains a value that cannot be stored", found=str(error)) from error


def _json_copy(value: Mapping[str, object]) -> dict[str, object]:
    copied: dict[str, object] = msgspec.json.decode(_encoded(value))
    return copied


class MemoryStore:
    def __init__(self, shared: MemoryTables | None = None) -> None:
        self.tables: Final = shared if shared is not None else MemoryTables()

    async def open(self) -> None:
        """Does nothing: memory is always available."""

    async def close(self) -> None:
        """Does nothing: the state stays in the tables."""

    async def claim_cluster(self, cluster: str) -> str:
        instance = self.tables.instance
        transaction = _Transaction()

        def claim() -> None:
            transaction.put(instance, "cluster", instance["cluster"] or cluster)

        transaction.run("claim_cluster", claim)
        return str(instance["cluster"])

    async def take_over(self, now: float) -> tuple[int, Recorded]:
        instance = self.tables.instance
        transaction = _Transaction()

        def begin() -> None:
            transaction.put(instance, "epoch", instance["epoch"] + 1)
            if instance["began_at"] is None:
                transaction.put(instance, "began_at", now)

        transaction.run("take_over", begin)
        return instance["epoch"], self._recorded(now)

    async def record(self, epoch: int, changes: Sequence[Change]) -> None:
        transaction = _Transaction()

        def write() -> None:
            self._check_epoch(epoch)
            applier = _Applier(self.tables, transaction)
            for change in changes:
                applier.apply(change)

        transaction.run("record", write)

    async def jobs(self, job_filter: JobFilter) -> list[JobOverview]:
        limit = max(0, job_filter.limit)
        found: list[JobOverview] = []
        for number in sorted(self.tables.new, reverse=True):
            if len(found) == limit:
                break
            new, live = self.tables.new[number], self.tables.live[number]
            if _matches(new, live, job_filter):
                found.append(JobOverview(_copy_new(new), _copy_live(live), self._sizes(number)))
        return found

    def _sizes(self, job: int) -> JobSizes:
        members = self.tables.members.get(job, {}).values()
        nodes = frozenset(member.node for member in members if member.node)
        return JobSizes(len(members), nodes, self._nodes_of(job))

    def _nodes_of(self, job: int) -> dict[str, NodeResources]:
        nodes = self.tables.job_nodes.get(job, {})
        return {node: dict(resources) for node, resources in sorted(nodes.items())}

    async def members(self, job: int) -> list[MemberRecord]:
        return list(self._members_of(job))

    def _members_of(self, job: int) -> tuple[MemberRecord, ...]:
        members = self.tables.members.get(job, {}).values()
        return tuple(sorted(members, key=lambda member: (member.number, member.key)))

    def _slots_of(self, job: int, part: int) -> tuple[SlotRecord, ...]:
        slots = self.tables.slots.get(job, {})
        return tuple(
            replace(slot, data=_json_copy(slot.data)) for _, (of, slot) in sorted(slots.items()) if of == part
        )

    async def log(self, job: int) -> list[JobEvent]:
        return [_copy_event(event) for event in self.tables.logs.get(job, ())]

    async def placed_jobs(self) -> list[AuditJob]:
        active = sorted(job for job, live in self.tables.live.items() if live.state is not JobState.INACTIVE)
        found: list[AuditJob] = []
        for job in active:
            members = tuple(
                AuditMember(member.key, member.node, member.phase.value, member.seen_at)
                for member in self._members_of(job)
                if member.phase is not MemberPhase.ENDED
            )
            if any(member.phase != MemberPhase.WAITING.value for member in members):
                record = self.tables.live[job].record
                found.append(
                    AuditJob(
                        job,
                        members,
                        record.placed_at,
                        record.incomplete_since,
                        record.incomplete_reason,
                        record.exception is not None,
                    )
                )
        return found

    async def prune(self, epoch: int, now: float, retention: Retention) -> int:
        transaction = _Transaction()
        pruned: list[int] = []

        def delete() -> None:
            self._check_epoch(epoch)
            pruned.extend(self._prunable(now, retention))
            tables = self.tables
            for job in pruned:
                for table in (tables.new, tables.live, tables.logs, tables.members, tables.job_nodes):
                    transaction.remove(table, job)
            for key, jobs in list(self.tables.submissions.items()):
                kept = tuple(job for job in jobs if job[1] >= now - SUBMISSION_KEY_TTL_S)
                if not kept:
                    transaction.remove(self.tables.submissions, key)
                elif kept != jobs:
                    transaction.put(self.tables.submissions, key, kept)

        transaction.run("prune", delete)
        return len(pruned)

    def _prunable(self, now: float, retention: Retention) -> list[int]:
        tables = self.tables
        ends = {
            job: live.ended_at if live.ended_at is not None else tables.new[job].seen_at
            for job, live in tables.live.items()
            if live.state is JobState.INACTIVE
        }
        oldest_first = sorted(ends, key=lambda job: (ends[job], job))
        excess = 0 if retention.count is None else max(0, len(oldest_first) - retention.count)
        before = None if retention.age_s is None else now - retention.age_s
        needed = self._dependency_targets() | set(tables.allocations)
        needed |= {intent.job for intent in tables.intents.values()}
        prunable = [
            job
            for position, job in enumerate(oldest_first)
            if (position < excess or (before is not None and ends[job] < before)) and job not in needed
        ]
        return prunable[:PRUNE_BATCH_MAX]

    def _check_epoch(self, epoch: int) -> None:
        current = self.tables.instance["epoch"]
        if epoch != current:
            raise Fenced(epoch, current)

    def _dependency_targets(self) -> set[int]:
        """Returns the jobs that an active job depends on."""
        found: set[int] = set()
        for job, live in self.tables.live.items():
            if live.state is not JobState.INACTIVE:
                depends_on = self.tables.new[job].spec.get("depends_on")
                if isinstance(depends_on, list):
                    found.update(item for item in depends_on if type(item) is int)
        return found

    def _row(self, job: int, is_active: bool) -> JobRow:
        new, live = _copy_new(self.tables.new[job]), _copy_live(self.tables.live[job])
        log = tuple(_copy_event(event) for event in self.tables.logs.get(job, ()))
        if not is_active:
            return JobRow(new, live, log)
        return JobRow(new, live, log, self._members_of(job), self._nodes_of(job))

    def _recorded(self, now: float) -> Recorded:
        tables = self.tables
        active = {job for job, live in tables.live.items() if live.state is not JobState.INACTIVE}
        jobs = sorted(active | (self._dependency_targets() & tables.new.keys()))
        keys = {
            key: tuple(sorted(job for job, seen_at in known if seen_at >= now - SUBMISSION_KEY_TTL_S))
            for key, known in sorted(tables.submissions.items())
        }
        return Recorded(
            began_at=tables.instance["began_at"],
            highest=tables.instance["highest"],
            jobs=tuple(self._row(job, job in active) for job in jobs),
            allocations=tuple(
                replace(part, data=_json_copy(part.data), slots=self._slots_of(job, number))
                for job in sorted(tables.allocations)
                for number, part in sorted(tables.allocations[job].items())
            ),
            intents=tuple(
                replace(intent, payload=_json_copy(intent.payload))
                for _, intent in sorted(tables.intents.items())
            ),
            nodes=tuple(sorted(tables.nodes.values(), key=lambda node: node.rank)),
            drains=tuple(drain for _, drain in sorted(tables.drains.items())),
            queues=tuple(queue for _, queue in sorted(tables.queues.items())),
            inadmissible=tuple(one for _, one in sorted(tables.inadmissible.items())),
            keys={key: ids for key, ids in keys.items() if ids},
        )


class _Applier:
    """Applies changes one by one; refuses a change that contradicts the tables."""

    def __init__(self, tables: MemoryTables, transaction: _Transaction) -> None:
        self._tables = tables
        self._put = transaction.put
        self._remove = transaction.remove

    def apply(self, change: Change) -> None:
        _refuse_nul(change)
        match change:
            case JobNew() | JobLogged() | JobLive():
                self._apply_to_job(change)
            case MemberRecorded():
                self._require_job(change.job)
                row = msgspec.json.decode(_encoded(encode_member(change.job, change.member)))
                members = self._tables.members.setdefault(change.job, {})
                self._put(members, change.member.key, decode_member(row))
            case MemberDropped():
                self._remove(self._tables.members.get(change.job, {}), change.key)
            case JobNodeSet():
                self._require_job(change.job)
                nodes = self._tables.job_nodes.setdefault(change.job, {})
                self._put(nodes, change.node, dict(change.resources))
            case JobNodeGone():
                self._remove(self._tables.job_nodes.get(change.job, {}), change.node)
            case AllocationNew() | SlotsFreed() | AllocationGone():
                self._apply_to_allocation(change)
            case IntentNew() | IntentDone():
                self._apply_to_intent(change)
            case NodeNew() | NodeForgotten():
                self._apply_to_node(change)
            case DrainSet():
                self._put(self._tables.drains, change.node, change)
            case DrainGone():
                self._remove(self._tables.drains, change.node)
            case QueueSet():
                self._put(self._tables.queues, change.queue, change)
            case InadmissibleSet():
                self._put(self._tables.inadmissible, change.workload, change)
            case InadmissibleGone():
                self._remove(self._tables.inadmissible, change.workload)
            case IdHighest():
                old: IdHighest = self._tables.instance["highest"]
                highest = IdHighest(
                    max(old.job, change.job), max(old.intent, change.intent), max(old.rank, change.rank)
                )
                self._put(self._tables.instance, "highest", highest)

    def _apply_to_job(self, change: JobNew | JobLogged | JobLive) -> None:
        tables = self._tables
        if isinstance(change, JobNew):
            _refuse_if(change.id in tables.new, f"job {change.id} exists already")
            self._put(tables.new, change.id, replace(change, spec=_json_copy(change.spec)))
            self._put(tables.live, change.id, initial_live(change.id))
            if change.key:
                known = tables.submissions.get(change.key, ())
                self._put(tables.submissions, change.key, (*known, (change.id, change.seen_at)))
            return
        self._require_job(change.id)
        if isinstance(change, JobLive):
            self._put(tables.live, change.id, _copy_live(change))
            return
        log = tables.logs.get(change.id, ())
        _refuse_if(change.number != len(log), f"event {change.number} of job {change.id} is not the next")
        self._put(tables.logs, change.id, (*log, _copy_event(change.event)))

    def _apply_to_allocation(self, change: AllocationNew | SlotsFreed | AllocationGone) -> None:
        tables = self._tables
        if isinstance(change, SlotsFreed) and not change.slots and not change.parts:
            return
        self._require_job(change.job)
        parts = tables.allocations.get(change.job, {})
        if isinstance(change, AllocationNew):
            _refuse_if(change.part in parts, f"part {change.part} of job {change.job} exists already")
            kept = replace(change, data=_json_copy(change.data), slots=())
            self._put(tables.allocations, change.job, {**parts, change.part: kept})
            slots = tables.slots.setdefault(change.job, {})
            for slot in change.slots:
                _refuse_if(slot.number in slots, f"slot {slot.number} of job {change.job} exists already")
                copied = replace(slot, data=_json_copy(slot.data))
                self._put(slots, slot.number, (change.part, copied))
            return
        if isinstance(change, SlotsFreed):
            self._free_slots(change)
            return
        _refuse_if(not parts, f"job {change.job} has no allocation")
        self._remove(tables.allocations, change.job)
        self._remove(tables.slots, change.job)

    def _free_slots(self, change: SlotsFreed) -> None:
        parts = self._tables.allocations.get(change.job, {})
        slots = self._tables.slots.get(change.job, {})
        for slot in change.slots:
            _refuse_if(slot not in slots, f"slot {slot} of job {change.job} is not allocated")
            self._remove(slots, slot)
        left = {part for part, _ in slots.values()} if change.parts else set()
        for part in change.parts:
            _refuse_if(part not in parts, f"part {part} of job {change.job} is not allocated")
            _refuse_if(part in left, f"part {part} of job {change.job} has slots")
            parts = {number: other for number, other in parts.items() if number != part}
        if parts:
            self._put(self._tables.allocations, change.job, parts)
        else:
            self._remove(self._tables.allocations, change.job)

    def _apply_to_intent(self, change: IntentNew | IntentDone) -> None:
        intents = self._tables.intents
        if isinstance(change, IntentNew):
            if change.job:
                self._require_job(change.job)
            _refuse_if(change.id in intents, f"intent {change.id} exists already")
            self._put(intents, change.id, replace(change, payload=_json_copy(change.payload)))
        else:
            _refuse_if(change.id not in intents, f"intent {change.id} is not open")
            self._remove(intents, change.id)

    def _apply_to_node(self, change: NodeNew | NodeForgotten) -> None:
        nodes, ranks = self._tables.nodes, self._tables.ranks
        if isinstance(change, NodeNew):
            _refuse_if(change.node in nodes, f"node {change.node} exists already")
            _refuse_if(change.rank in ranks, f"rank {change.rank} is in use")
            self._put(nodes, change.node, change)
            self._put(ranks, change.rank, change.node)
        else:
            _refuse_if(change.node not in nodes, f"node {change.node} does not exist")
            self._remove(ranks, nodes[change.node].rank)
            self._remove(nodes, change.node)

    def _require_job(self, job: int) -> None:
        _refuse_if(job not in self._tables.new, f"job {job} does not exist")


def _refuse_if(contradicts: bool, problem: str) -> None:
    if contradicts:
        raise Corrupt(f"a change contradicts the recorded state: {problem}")


def _refuse_nul(change: Change) -> None:
    """Refuses NUL in texts and `jsonb`, as PostgreSQL does. The type `json` accepts it."""
    checked: object = change
    match change:
        case JobLogged():
            checked = change.event.name
        case IntentNew() | AllocationNew():
            return
    if _NUL.search(_encoded(checked)):
        raise BadRequest("a change contains a value that cannot be stored", found="a NUL character")


def _copy_event(event: JobEvent) -> JobEvent:
    return JobEvent(event.at, event.name, _json_copy(event.context))


def _copy_new(new: JobNew) -> JobNew:
    return replace(new, spec=_json_copy(new.spec))


def _copy_live(live: JobLive) -> JobLive:
    return replace(live, record=decode_record(_json_copy(encode_record(live.record))))


def _matches(new: JobNew, live: JobLive, job_filter: JobFilter) -> bool:
    return (
        (job_filter.ids is None or new.id in job_filter.ids)
        and (job_filter.states is None or live.state.value in job_filter.states)
        and (job_filter.results is None or live.result in job_filter.results)
        and (job_filter.queue is None or live.queue == job_filter.queue)
        and (job_filter.name is None or new.name == job_filter.name)
        and (job_filter.owner is None or new.owner == job_filter.owner)
        and (job_filter.since is None or (live.ended_at is not None and live.ended_at > job_filter.since))
    )
