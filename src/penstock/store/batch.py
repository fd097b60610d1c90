"""Turns many changes into few SQL statements with the same effect as applying them one by one.

Changes of different entities are independent, so only the order within one job's allocation, one intent, one
node, one drain, one queue or one workload matters. The change types of a family have an order: all changes of
the first type are written in one statement, then all of the second. A change that follows one of a later type
for the same entity goes into the next round. So 500 jobs that each get an allocation, release slots and free
it cost three statements, not 1,500; a job that is requeued within the batch costs three more. A new job is
inserted with its latest state.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.errors import BadRequest, Corrupt
from penstock.model.job import URGENCY_DEFAULT, JobState
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
    NodeForgotten,
    NodeNew,
    QueueSet,
    SlotsFreed,
)

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
    key: str  # the attribute that identifies the entity
    query: str
    last_wins: bool = False  # several changes of an entity in a round: only the last is written
    must_match: bool = True  # every input row must affect a table row


# Nodes are removed before others are inserted, because a rank is unique among existing nodes.
_CHANGE_RULES: Final[dict[type, _ChangeRule]] = {
    AllocationNew: _ChangeRule(0, 0, "job", "insert_allocations"),
    SlotsFreed: _ChangeRule(0, 1, "job", "insert_freed_slots"),
    AllocationGone: _ChangeRule(0, 2, "job", "delete_allocations"),
    IntentNew: _ChangeRule(1, 0, "id", "insert_intents"),
    IntentDone: _ChangeRule(1, 1, "id", "delete_intents"),
    NodeForgotten: _ChangeRule(2, 0, "node", "delete_nodes"),
    NodeNew: _ChangeRule(2, 1, "node", "insert_nodes"),
    DrainSet: _ChangeRule(3, 0, "node", "upsert_drains", last_wins=True, must_match=False),
    DrainGone: _ChangeRule(3, 1, "node", "delete_drains", must_match=False),
    QueueSet: _ChangeRule(4, 0, "queue", "upsert_queues", last_wins=True, must_match=False),
    InadmissibleSet: _ChangeRule(5, 0, "workload", "upsert_inadmissible", last_wins=True, must_match=False),
    InadmissibleGone: _ChangeRule(5, 1, "workload", "delete_inadmissible", must_match=False),
}


def initial_live(job: int) -> JobLive:
    """The state of a job that has only been created."""
    return JobLive(job, JobState.NEW, "", URGENCY_DEFAULT, 0, "", None, None, None, {})


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
            if isinstance(change, AllocationNew | SlotsFreed | AllocationGone | IntentNew):
                self._referenced.add(change.job)
            self._add_to_round(change)

    def _add_to_round(self, change: Change) -> None:
        rule = _CHANGE_RULES[type(change)]
        entity = (rule.family, getattr(change, rule.key))
        number, order = self._last.get(entity, (0, 0))
        if rule.order < order:
            number += 1
        self._last[entity] = (number, rule.order)
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
            batch.statements.append(Statement("update_jobs", _text(live), len(live)))
        for position in sorted(self._rounds):
            batch.statements.append(_statement(self._rounds[position]))
        batch.highest = self._highest
        return batch


def _statement(changes: Sequence[Change]) -> Statement:
    rule = _CHANGE_RULES[type(changes[0])]
    rows = list(changes)
    if rule.last_wins:
        rows = list({getattr(change, rule.key): change for change in changes}.values())
    expected = sum(len(row.slots) if isinstance(row, SlotsFreed) else 1 for row in rows)
    return Statement(rule.query, _text(rows), expected if rule.must_match else None)


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
            _text(live.detail).replace("\\", "\\\\"),
        )
        lines.append("\t".join(map(str, values)) + "\n")
    return "".join(lines).encode()


def _escaped(text: str) -> str:
    return text if text.isalnum() else text.translate(_ESCAPED)


def _or_null(value: float | None) -> str:
    return "\\N" if value is None else str(value)
