"""Many changes as few statements, with the effect of applying them one by one.

Changes of different things do not touch each other, so only the order within one job's holdings, one intent,
one node, one drain or one queue counts. Kinds of a family have a rank: all of the first kind are written at
once, then all of the second. A change that comes after one of a later kind for the same thing opens another
round. So 500 jobs that all get, give back and free something cost three statements, not 1,500, and a job that
is requeued within the batch costs three more. New jobs are written with the last that is said of them.
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

__all__ = ["Batch", "Statement", "arrange", "first_live"]

_ENCODER: Final = msgspec.json.Encoder()
_ESCAPED: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement: its query, its rows as JSON, and how many rows it must touch (None: any number)."""

    query: str
    rows: str
    expected: int | None


@dataclass(slots=True)
class Batch:
    jobs: bytes = b""  # in the text format of COPY
    events: bytes = b""
    steps: list[Statement] = field(default_factory=list)
    highest: IdHighest | None = None


@dataclass(frozen=True, slots=True)
class _Kind:
    family: int
    rank: int
    key: str  # the attribute that names the thing
    query: str
    last_counts: bool = False  # several of one thing in a round: only the last is written
    is_counted: bool = True  # every row must hit


# Nodes: forgetting comes first, because a rank is unique among those that are there.
_KINDS: Final[dict[type, _Kind]] = {
    AllocationNew: _Kind(0, 0, "job", "insert_allocations"),
    SlotsFreed: _Kind(0, 1, "job", "insert_freed_slots"),
    AllocationGone: _Kind(0, 2, "job", "delete_allocations"),
    IntentNew: _Kind(1, 0, "id", "insert_intents"),
    IntentDone: _Kind(1, 1, "id", "delete_intents"),
    NodeForgotten: _Kind(2, 0, "node", "delete_nodes"),
    NodeNew: _Kind(2, 1, "node", "insert_nodes"),
    DrainSet: _Kind(3, 0, "node", "upsert_drains", last_counts=True, is_counted=False),
    DrainGone: _Kind(3, 1, "node", "delete_drains", is_counted=False),
    QueueSet: _Kind(4, 0, "queue", "upsert_queues", last_counts=True, is_counted=False),
    InadmissibleSet: _Kind(5, 0, "workload", "upsert_inadmissible", last_counts=True, is_counted=False),
    InadmissibleGone: _Kind(5, 1, "workload", "delete_inadmissible", is_counted=False),
}


def first_live(job: int) -> JobLive:
    """What holds of a job of which nothing else was said."""
    return JobLive(job, JobState.NEW, "", URGENCY_DEFAULT, 0, "", None, None, None, {})


def arrange(changes: Sequence[Change]) -> Batch:
    """The statements for all changes. Values that no database keeps are a `BadRequest`."""
    sorter = _Sorter()
    for change in changes:
        sorter.add(change)
    try:
        return sorter.batch()
    except (TypeError, UnicodeEncodeError, OverflowError, msgspec.MsgspecError) as error:
        raise BadRequest("a change holds a value that cannot be recorded", found=str(error)) from error


class _Sorter:
    def __init__(self) -> None:
        self._named: set[int] = set()  # jobs that a change has spoken of
        self._new: dict[int, JobNew] = {}
        self._logged: list[JobLogged] = []
        self._live: dict[int, JobLive] = {}
        self._highest: IdHighest | None = None
        self._rounds: dict[tuple[int, int, int], list[Change]] = {}  # round, family, rank
        self._last: dict[tuple[int, object], tuple[int, int]] = {}  # thing -> round, rank

    def add(self, change: Change) -> None:
        if isinstance(change, JobLogged):
            self._named.add(change.id)
            self._logged.append(change)
        elif isinstance(change, JobLive):
            self._named.add(change.id)
            self._live[change.id] = change
        elif isinstance(change, JobNew):
            if change.id in self._named:
                raise Corrupt(f"job {change.id} is new, but was spoken of before")
            self._named.add(change.id)
            self._new[change.id] = change
        elif isinstance(change, IdHighest):
            old = self._highest or change
            self._highest = IdHighest(
                max(old.job, change.job), max(old.intent, change.intent), max(old.rank, change.rank)
            )
        else:
            if isinstance(change, AllocationNew | SlotsFreed | AllocationGone | IntentNew):
                self._named.add(change.job)
            self._place(change)

    def _place(self, change: Change) -> None:
        kind = _KINDS[type(change)]
        thing = (kind.family, getattr(change, kind.key))
        number, rank = self._last.get(thing, (0, 0))
        if kind.rank < rank:
            number += 1
        self._last[thing] = (number, kind.rank)
        self._rounds.setdefault((number, kind.family, kind.rank), []).append(change)

    def batch(self) -> Batch:
        batch = Batch(_job_lines(self._new.values(), self._live), _event_lines(self._logged))
        keyed = [
            {"key": job.key, "id": job.id, "seen_at": job.seen_at} for job in self._new.values() if job.key
        ]
        if keyed:
            batch.steps.append(Statement("insert_submissions", _text(keyed), len(keyed)))
        live = [change for job, change in self._live.items() if job not in self._new]
        if live:
            batch.steps.append(Statement("update_jobs", _text(live), len(live)))
        for place in sorted(self._rounds):
            batch.steps.append(_step(self._rounds[place]))
        batch.highest = self._highest
        return batch


def _step(changes: Sequence[Change]) -> Statement:
    kind = _KINDS[type(changes[0])]
    rows = list(changes)
    if kind.last_counts:
        rows = list({getattr(change, kind.key): change for change in changes}.values())
    expected = sum(len(row.slots) if isinstance(row, SlotsFreed) else 1 for row in rows)
    return Statement(kind.query, _text(rows), expected if kind.is_counted else None)


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


def _job_lines(jobs: Iterable[JobNew], lives: dict[int, JobLive]) -> bytes:
    lines = []
    for job in jobs:
        live = lives.get(job.id) or first_live(job.id)
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
