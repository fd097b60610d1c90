"""Turns many changes into few SQL statements with the same effect as applying them one by one.

Changes of different entities are independent, so only the order within one member, one job's allocation, one
intent, one node, one drain, one queue or one workload matters. The change types of a family have an order:
all changes of the first type are written in one statement, then all of the second. A change that follows one
of a later type for the same entity goes into the next round. So 500 jobs that each get an allocation, release
slots and free it cost four statements, not 2,000; a job that is requeued within the batch costs four more. A
new job is inserted with its latest state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

import msgspec

from penstock.errors import BadRequest, Corrupt
from penstock.model.job import URGENCY_DEFAULT, JobState
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
    MemberRecorded,
    NodeForgotten,
    NodeNew,
    QueueSet,
    SlotChanged,
    SlotsFreed,
)
from penstock.store.encoding import encode_member, encode_record

__all__ = ["Batch", "Statement", "build_batch", "initial_live"]

_ENCODER: Final = msgspec.json.Encoder()
_ESCAPED: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class Statement:
    """A named query with its rows as JSON. `expected`: how many rows it must affect; None: any number."""

    query: str
    rows: str
    expected: int | None


@dataclass(slots=True)
class Batch:
    jobs: bytes = b""  # in the text format of COPY
    events: bytes = b""
    statements: list[Statement] = field(default_factory=list)
    highest: IdHighest | None = None


@dataclass(frozen=True, slots=True)
class _ChangeRule:
    family: int
    order: int  # within the family
    entity: Callable[[Any], object]  # identifies what is changed
    query: str
    row: Callable[[Any], object] | None = None  # the input row of the query; None: the change itself
    last_wins: bool = False  # several changes of an entity in a round: only the last is written
    must_match: bool = True  # every input row must affect a table row


_JOB: Final = attrgetter("job")
_NODE: Final = attrgetter("node")
_MEMBER_SET: Final = attrgetter("job", "member.key")
_MEMBER: Final = attrgetter("job", "key")
_JOB_NODE: Final = attrgetter("job", "node")


def _member_row(change: MemberRecorded) -> object:
    return encode_member(change.job, change.member)


def _part_row(change: AllocationNew) -> object:
    return {
        "job": change.job,
        "part": change.part,
        "start_s": change.start_s,
        "end_s": change.end_s,
        "data": change.data,
    }


def _slot_row(change: SlotChanged) -> object:
    return {"job": change.job, "slot": change.slot.number, "data": change.slot.data}


# Nodes are removed before others are inserted, because a rank is unique among existing nodes. A change of an
# allocation also inserts or deletes rows for its slots: see `_statements`.
_CHANGE_RULES: Final[dict[type, _ChangeRule]] = {
    AllocationNew: _ChangeRule(0, 0, _JOB, "insert_allocations", _part_row),
    SlotChanged: _ChangeRule(0, 1, _JOB, "update_slots", _slot_row),
    SlotsFreed: _ChangeRule(0, 2, _JOB, "delete_parts"),
    AllocationGone: _ChangeRule(0, 3, _JOB, "delete_allocations"),
    IntentNew: _ChangeRule(1, 0, attrgetter("id"), "insert_intents"),
    IntentDone: _ChangeRule(1, 1, attrgetter("id"), "delete_intents"),
    NodeForgotten: _ChangeRule(2, 0, _NODE, "delete_nodes"),
    NodeNew: _ChangeRule(2, 1, _NODE, "insert_nodes"),
    DrainSet: _ChangeRule(3, 0, _NODE, "upsert_drains", last_wins=True, must_match=False),
    DrainGone: _ChangeRule(3, 1, _NODE, "delete_drains", must_match=False),
    QueueSet: _ChangeRule(4, 0, attrgetter("queue"), "upsert_queues", last_wins=True, must_match=False),
    InadmissibleSet: _ChangeRule(
        5, 0, attrgetter("workload"), "upsert_inadmissible", last_wins=True, must_match=False
    ),
    InadmissibleGone: _ChangeRule(5, 1, attrgetter("workload"), "delete_inadmissible", must_match=False),
    ClaimSet: _ChangeRule(8, 0, _JOB, "upsert_claims", last_wins=True, must_match=False),
    ClaimGone: _ChangeRule(8, 1, _JOB, "delete_claims", must_match=False),
    MemberRecorded: _ChangeRule(
        6, 0, _MEMBER_SET, "upsert_members", _member_row, last_wins=True, must_match=False
    ),
    MemberDropped: _ChangeRule(6, 1, _MEMBER, "delete_members", must_match=False),
    JobNodeSet: _ChangeRule(7, 0, _JOB_NODE, "upsert_job_nodes", last_wins=True, must_match=False),
    JobNodeGone: _ChangeRule(7, 1, _JOB_NODE, "delete_job_nodes", must_match=False),
}
_REFERRING: Final = (
    AllocationNew,
    SlotChanged,
    SlotsFreed,
    AllocationGone,
    IntentNew,
    MemberRecorded,
    JobNodeSet,
    ClaimSet,
)


def initial_live(job: int) -> JobLive:
    """The state of a job that has only been created."""
    return JobLive(job, JobState.NEW, "", URGENCY_DEFAULT, 0, "", None, None, None)


def build_batch(changes: Sequence[Change]) -> Batch:
    """Returns the statements for all changes. Raises `BadRequest` for a value that cannot be stored."""
    builder = _BatchBuilder()
    for change in changes:
        builder.add(change)
    try:
        return builder.batch()
    except (TypeError, UnicodeEncodeError, OverflowError, msgspec.MsgspecError) as error:
        raise BadRequest("a change contains a value that cannot be stored", found=str(error)) from error


class _BatchBuilder:
    def __init__(self) -> None:
        self._referenced: set[int] = set()  # jobs that a change of this batch refers to
        self._new: dict[int, JobNew] = {}
        self._logged: list[JobLogged] = []
        self._live: dict[int, JobLive] = {}
        self._highest: IdHighest | None = None
        self._rounds: dict[tuple[int, int, int], list[Change]] = {}  # (round, family, order) -> changes
        self._last: dict[tuple[int, object], tuple[int, int]] = {}  # entity -> (round, order)

    def add(self, change: Change) -> None:
        if isinstance(change, JobLogged):
            self._referenced.add(change.id)
            self._logged.append(change)
        elif isinstance(change, JobLive):
            self._referenced.add(change.id)
            self._live[change.id] = change
        elif isinstance(change, JobNew):
            if change.id in self._referenced:
                raise Corrupt(f"job {change.id} is created after a change that refers to it")
            self._referenced.add(change.id)
            self._new[change.id] = change
        elif isinstance(change, IdHighest):
            old = self._highest or change
            self._highest = IdHighest(
                max(old.job, change.job), max(old.intent, change.intent), max(old.rank, change.rank)
            )
        else:
            if isinstance(change, _REFERRING):
                self._referenced.add(change.job)
            self._add_to_round(change)

    def _add_to_round(self, change: Change) -> None:
        rule = _CHANGE_RULES[type(change)]
        entity = (rule.family, rule.entity(change))
        number, order = self._last.get(entity, (0, 0))
        if rule.order < order:
            number += 1
        # What follows the end of a part goes into the next round: a part can only end without slots.
        ends_part = isinstance(change, SlotsFreed) and change.parts
        self._last[entity] = (number, rule.order + 1 if ends_part else rule.order)
        self._rounds.setdefault((number, rule.family, rule.order), []).append(change)

    def batch(self) -> Batch:
        batch = Batch(_job_lines(self._new.values(), self._live), _event_lines(self._logged))
        submissions = [
            {"key": job.key, "id": job.id, "seen_at": job.seen_at} for job in self._new.values() if job.key
        ]
        if submissions:
            batch.statements.append(Statement("insert_submissions", _text(submissions), len(submissions)))
        live = [change for job, change in self._live.items() if job not in self._new]
        if live:
            rows = [_live_row(change) for change in live]
            batch.statements.append(Statement("update_jobs", _text(rows), len(rows)))
        for position in sorted(self._rounds):
            batch.statements.extend(_statements(self._rounds[position]))
        batch.highest = self._highest
        return batch


def _live_row(live: JobLive) -> dict[str, object]:
    return {
        "id": live.id,
        "state": live.state,
        "queue": live.queue,
        "urgency": live.urgency,
        "priority": live.priority,
        "result": live.result,
        "status": live.status,
        "started_at": live.started_at,
        "ended_at": live.ended_at,
        "record": encode_record(live.record),
    }


def _statements(changes: Sequence[Change]) -> list[Statement]:
    """The statements for changes of one type: one, or two if they concern parts and slots."""
    rule = _CHANGE_RULES[type(changes[0])]
    chosen: Iterable[Change] = changes
    if rule.last_wins:
        chosen = {rule.entity(change): change for change in changes}.values()
    if isinstance(changes[0], SlotChanged):  # The rounds keep the order within a job, which has many slots.
        slots_changed = (change for change in changes if isinstance(change, SlotChanged))
        chosen = {(change.job, change.slot.number): change for change in slots_changed}.values()
    if isinstance(changes[0], SlotsFreed):
        freed = [change for change in chosen if isinstance(change, SlotsFreed)]
        slots = [{"job": change.job, "slot": slot} for change in freed for slot in change.slots]
        parts = [{"job": change.job, "part": part} for change in freed for part in change.parts]
        found = (("delete_slots", slots), (rule.query, parts))
        return [Statement(query, _text(rows), len(rows)) for query, rows in found if rows]
    rows = list(chosen) if rule.row is None else [rule.row(change) for change in chosen]
    statements = [Statement(rule.query, _text(rows), len(rows) if rule.must_match else None)]
    if isinstance(changes[0], AllocationNew):
        held = [
            {"job": change.job, "slot": slot.number, "part": change.part, "data": slot.data}
            for change in chosen
            if isinstance(change, AllocationNew)
            for slot in change.slots
        ]
        if held:
            statements.append(Statement("insert_slots", _text(held), len(held)))
    return statements


def _text(rows: object) -> str:
    return _ENCODER.encode(rows).decode()


def _event_lines(events: Iterable[JobLogged]) -> bytes:
    encode = _ENCODER.encode
    lines = []
    for logged in events:
        event = logged.event
        context = encode(event.context).decode().replace("\\", "\\\\") if event.context else "{}"
        lines.append(f"{logged.id}\t{logged.number}\t{event.at}\t{_escaped(event.name)}\t{context}\n")
    return "".join(lines).encode()


def _job_lines(jobs: Iterable[JobNew], live_states: dict[int, JobLive]) -> bytes:
    lines = []
    for job in jobs:
        live = live_states.get(job.id) or initial_live(job.id)
        values = (
            job.id,
            _escaped(job.owner),
            _escaped(job.name),
            job.seen_at,
            _text(job.spec).replace("\\", "\\\\"),
            _escaped(job.workload),
            _escaped(job.key),
            live.state.value,
            _escaped(live.queue),
            live.urgency,
            live.priority,
            _escaped(live.result),
            _or_null(live.status),
            _or_null(live.started_at),
            _or_null(live.ended_at),
            _text(encode_record(live.record)).replace("\\", "\\\\"),
        )
        lines.append("\t".join(map(str, values)) + "\n")
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    return text if text.isalnum() else text.translate(_ESCAPED)


def _or_null(value: float | None) -> str:
    return "\\N" if value is None else str(value)
