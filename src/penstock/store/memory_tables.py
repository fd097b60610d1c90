"""The tables of the store in memory, and the changes that a transaction applies to them.

A value in a table is immutable or a table by itself, and a transaction keeps the values it replaced, so a
rollback is exact. Documents are copied through JSON, so a caller that later changes an argument does not
change the recorded state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from penstock.errors import BadRequest, Corrupt
from penstock.model.job import JobEvent
from penstock.sched.records import (
    AllocationGone,
    AllocationNew,
    Change,
    ClaimGone,
    ClaimSet,
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
    MemberDropped,
    MemberRecord,
    MemberRecorded,
    NodeForgotten,
    NodeNew,
    NodeResources,
    QueueSet,
    SlotChanged,
    SlotRecord,
    SlotsFreed,
)
from penstock.store.batch import initial_live
from penstock.store.encoding import decode_member, decode_record, encode_member, encode_record
from penstock.store.transactions import reach_after, reach_before

__all__ = ["Applier", "MemoryTables", "Transaction", "copy_event", "copy_live", "copy_new", "json_copy"]


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
    claims: dict[int, ClaimSet] = field(default_factory=dict)
    submissions: dict[str, tuple[tuple[int, float], ...]] = field(default_factory=dict)  # job, seen_at


_MISSING: Final = object()
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


class Transaction:
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


def json_copy(value: Mapping[str, object]) -> dict[str, object]:
    copied: dict[str, object] = msgspec.json.decode(_encoded(value))
    return copied


class Applier:
    """Applies changes one by one; refuses a change that contradicts the tables."""

    def __init__(self, tables: MemoryTables, transaction: Transaction) -> None:
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
            case SlotChanged():
                held = self._tables.slots.get(change.job, {})
                number = change.slot.number
                _refuse_if(number not in held, f"slot {number} of job {change.job} is not allocated")
                part, _ = held[number]
                self._put(held, number, (part, replace(change.slot, data=json_copy(change.slot.data))))
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
            case ClaimSet():
                self._require_job(change.job)
                self._put(self._tables.claims, change.job, change)
            case ClaimGone():
                self._remove(self._tables.claims, change.job)
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
            self._put(tables.new, change.id, replace(change, spec=json_copy(change.spec)))
            self._put(tables.live, change.id, initial_live(change.id))
            if change.key:
                known = tables.submissions.get(change.key, ())
                self._put(tables.submissions, change.key, (*known, (change.id, change.seen_at)))
            return
        self._require_job(change.id)
        if isinstance(change, JobLive):
            self._put(tables.live, change.id, copy_live(change))
            return
        log = tables.logs.get(change.id, ())
        _refuse_if(change.number != len(log), f"event {change.number} of job {change.id} is not the next")
        self._put(tables.logs, change.id, (*log, copy_event(change.event)))

    def _apply_to_allocation(self, change: AllocationNew | SlotsFreed | AllocationGone) -> None:
        tables = self._tables
        if isinstance(change, SlotsFreed) and not change.slots and not change.parts:
            return
        self._require_job(change.job)
        parts = tables.allocations.get(change.job, {})
        if isinstance(change, AllocationNew):
            _refuse_if(change.part in parts, f"part {change.part} of job {change.job} exists already")
            kept = replace(change, data=json_copy(change.data), slots=())
            self._put(tables.allocations, change.job, {**parts, change.part: kept})
            slots = tables.slots.setdefault(change.job, {})
            for slot in change.slots:
                _refuse_if(slot.number in slots, f"slot {slot.number} of job {change.job} exists already")
                copied = replace(slot, data=json_copy(slot.data))
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
            self._put(intents, change.id, replace(change, payload=json_copy(change.payload)))
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
        case IntentNew() | AllocationNew() | SlotChanged():
            return
    if _NUL.search(_encoded(checked)):
        raise BadRequest("a change contains a value that cannot be stored", found="a NUL character")


def copy_event(event: JobEvent) -> JobEvent:
    return JobEvent(event.at, event.name, json_copy(event.context))


def copy_new(new: JobNew) -> JobNew:
    return replace(new, spec=json_copy(new.spec))


def copy_live(live: JobLive) -> JobLive:
    return replace(live, record=decode_record(json_copy(encode_record(live.record))))
