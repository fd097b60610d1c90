"""The store in memory, for tests and the simulator: the same answers as PostgreSQL, nothing on disk.

What is recorded lives in `MemoryTables`, which outlives a store: a second store on the same tables is a
second instance, and a store that is dropped is a crash. Every value in a table is immutable, and a
transaction notes what it replaced, so undoing it is exact. Plain values are kept as JSON would keep them:
nobody can change what was recorded by changing what they handed in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from penstock.errors import BadRequest, Corrupt
from penstock.model.job import JobEvent, JobState
from penstock.sched.records import (
    AllocationGone,
    AllocationNew,
    AllocationRow,
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
    JobRow,
    NodeForgotten,
    NodeNew,
    QueueSet,
    Recorded,
    SlotsFreed,
)
from penstock.store.audit_rows import AuditJob, audit_job
from penstock.store.batch import first_live
from penstock.store.port import Fenced, JobFilter, Retention
from penstock.store.transactions import FORGOTTEN_AT_ONCE_MAX, KEYS_KEPT_S, reach_after, reach_before

__all__ = ["MemoryStore", "MemoryTables"]


@dataclass(slots=True)
class MemoryTables:
    """What lasts. `instance` holds epoch, began_at, highest and cluster."""

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
    allocations: dict[int, dict[int, AllocationNew]] = field(default_factory=dict)
    freed: dict[int, frozenset[int]] = field(default_factory=dict)
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
    """Changes tables, and can take every change back."""

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

    def run(self, name: str, workload: Callable[[], None]) -> None:
        """All of `workload` or nothing, between the two failpoints of `name`."""
        try:
            workload()
            reach_before(name)
        except BaseException:
            self.undo()
            raise
        reach_after(name)


def _encoded(value: object) -> bytes:
    try:
        return msgspec.json.encode(value)
    except (TypeError, UnicodeEncodeError, OverflowError, msgspec.MsgspecError) as error:
        raise BadRequest("a change holds a value that cannot be recorded", found=str(error)) from error


def _plain(value: Mapping[str, object]) -> dict[str, object]:
    copied: dict[str, object] = msgspec.json.decode(_encoded(value))
    return copied


class MemoryStore:
    def __init__(self, shared: MemoryTables | None = None) -> None:
        self.tables: Final = shared if shared is not None else MemoryTables()

    async def open(self) -> None:
        """There is nothing to wait for."""

    async def close(self) -> None:
        """What was recorded stays in the tables."""

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
            applying = _Applying(self.tables, transaction)
            for change in changes:
                applying.apply(change)

        transaction.run("record", write)

    async def jobs(self, wanted: JobFilter) -> list[JobRow]:
        limit = max(0, wanted.limit)
        found: list[JobRow] = []
        for number in sorted(self.tables.new, reverse=True):
            if len(found) == limit:
                break
            row = JobRow(self.tables.new[number], self.tables.live[number])
            if _fits(row, wanted):
                found.append(_copied(row))
        return found

    async def log(self, job: int) -> list[JobEvent]:
        return [_copied_event(event) for event in self.tables.logs.get(job, ())]

    async def placed(self) -> list[AuditJob]:
        active = sorted(job for job, live in self.tables.live.items() if live.state is not JobState.INACTIVE)
        jobs = [audit_job(job, self.tables.live[job].detail) for job in active]
        return [job for job in jobs if any(member.phase != "waiting" for member in job.members)]

    async def prune(self, epoch: int, now: float, keep: Retention) -> int:
        transaction = _Transaction()
        forgotten: list[int] = []

        def forget() -> None:
            self._check_epoch(epoch)
            forgotten.extend(self._too_old(now, keep))
            for job in forgotten:
                for table in (self.tables.new, self.tables.live, self.tables.logs):
                    transaction.remove(table, job)
            for key, jobs in list(self.tables.submissions.items()):
                kept = tuple(job for job in jobs if job[1] >= now - KEYS_KEPT_S)
                if not kept:
                    transaction.remove(self.tables.submissions, key)
                elif kept != jobs:
                    transaction.put(self.tables.submissions, key, kept)

        transaction.run("prune", forget)
        return len(forgotten)

    def _too_old(self, now: float, keep: Retention) -> list[int]:
        tables = self.tables
        ends = {
            job: live.ended_at if live.ended_at is not None else tables.new[job].seen_at
            for job, live in tables.live.items()
            if live.state is JobState.INACTIVE
        }
        oldest_first = sorted(ends, key=lambda job: (ends[job], job))
        over = 0 if keep.count is None else max(0, len(oldest_first) - keep.count)
        before = None if keep.age_s is None else now - keep.age_s
        needed = self._awaited() | set(tables.allocations)
        needed |= {intent.job for intent in tables.intents.values()}
        too_old = [
            job
            for place, job in enumerate(oldest_first)
            if (place < over or (before is not None and ends[job] < before)) and job not in needed
        ]
        return too_old[:FORGOTTEN_AT_ONCE_MAX]

    def _check_epoch(self, epoch: int) -> None:
        current = self.tables.instance["epoch"]
        if epoch != current:
            raise Fenced(epoch, current)

    def _awaited(self) -> set[int]:
        """Jobs that an active one depends on."""
        found: set[int] = set()
        for job, live in self.tables.live.items():
            if live.state is not JobState.INACTIVE:
                wanted = self.tables.new[job].spec.get("depends_on")
                if isinstance(wanted, list):
                    found.update(item for item in wanted if type(item) is int)
        return found

    def _recorded(self, now: float) -> Recorded:
        tables = self.tables
        active = {job for job, live in tables.live.items() if live.state is not JobState.INACTIVE}
        jobs = sorted(active | (self._awaited() & tables.new.keys()))
        keys = {
            key: tuple(sorted(job for job, seen_at in known if seen_at >= now - KEYS_KEPT_S))
            for key, known in sorted(tables.submissions.items())
        }
        return Recorded(
            began_at=tables.instance["began_at"],
            highest=tables.instance["highest"],
            jobs=tuple(
                _copied(JobRow(tables.new[job], tables.live[job], tables.logs.get(job, ()))) for job in jobs
            ),
            allocations=tuple(
                AllocationRow(replace(part, data=_plain(part.data)), tuple(sorted(tables.freed.get(job, ()))))
                for job in sorted(tables.allocations)
                for _, part in sorted(tables.allocations[job].items())
            ),
            intents=tuple(
                replace(intent, payload=_plain(intent.payload))
                for _, intent in sorted(tables.intents.items())
            ),
            nodes=tuple(sorted(tables.nodes.values(), key=lambda node: node.rank)),
            drains=tuple(drain for _, drain in sorted(tables.drains.items())),
            queues=tuple(queue for _, queue in sorted(tables.queues.items())),
            inadmissible=tuple(one for _, one in sorted(tables.inadmissible.items())),
            keys={key: ids for key, ids in keys.items() if ids},
        )


class _Applying:
    """Applies changes one by one, and refuses what contradicts the tables."""

    def __init__(self, tables: MemoryTables, transaction: _Transaction) -> None:
        self._tables = tables
        self._put = transaction.put
        self._remove = transaction.remove

    def apply(self, change: Change) -> None:
        _refuse_nul(change)
        match change:
            case JobNew() | JobLogged() | JobLive():
                self._apply_to_job(change)
            case AllocationNew() | SlotsFreed() | AllocationGone():
                self._apply_to_holding(change)
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
            _refuse_if(change.id in tables.new, f"job {change.id} is there already")
            self._put(tables.new, change.id, replace(change, spec=_plain(change.spec)))
            self._put(tables.live, change.id, first_live(change.id))
            if change.key:
                known = tables.submissions.get(change.key, ())
                self._put(tables.submissions, change.key, (*known, (change.id, change.seen_at)))
            return
        self._require_job(change.id)
        if isinstance(change, JobLive):
            self._put(tables.live, change.id, replace(change, detail=_plain(change.detail)))
            return
        log = tables.logs.get(change.id, ())
        _refuse_if(change.number != len(log), f"line {change.number} of job {change.id} is not the next")
        self._put(tables.logs, change.id, (*log, _copied_event(change.event)))

    def _apply_to_holding(self, change: AllocationNew | SlotsFreed | AllocationGone) -> None:
        tables = self._tables
        if isinstance(change, SlotsFreed) and not change.slots:
            return
        self._require_job(change.job)
        parts = tables.allocations.get(change.job, {})
        if isinstance(change, AllocationNew):
            _refuse_if(change.part in parts, f"part {change.part} of job {change.job} is there already")
            kept = replace(change, data=_plain(change.data))
            self._put(tables.allocations, change.job, {**parts, change.part: kept})
            return
        if isinstance(change, SlotsFreed):
            freed = tables.freed.get(change.job, frozenset())
            _refuse_if(not parts, f"job {change.job} holds nothing")
            _refuse_if(
                len(set(change.slots)) < len(change.slots) or not freed.isdisjoint(change.slots),
                f"a slot of job {change.job} is freed twice",
            )
            self._put(tables.freed, change.job, freed | set(change.slots))
            return
        _refuse_if(not parts, f"job {change.job} holds nothing")
        self._remove(tables.allocations, change.job)
        self._remove(tables.freed, change.job)

    def _apply_to_intent(self, change: IntentNew | IntentDone) -> None:
        intents = self._tables.intents
        if isinstance(change, IntentNew):
            if change.job:
                self._require_job(change.job)
            _refuse_if(change.id in intents, f"intent {change.id} is there already")
            self._put(intents, change.id, replace(change, payload=_plain(change.payload)))
        else:
            _refuse_if(change.id not in intents, f"intent {change.id} is not open")
            self._remove(intents, change.id)

    def _apply_to_node(self, change: NodeNew | NodeForgotten) -> None:
        nodes, ranks = self._tables.nodes, self._tables.ranks
        if isinstance(change, NodeNew):
            _refuse_if(change.node in nodes, f"node {change.node} is there already")
            _refuse_if(change.rank in ranks, f"rank {change.rank} is given already")
            self._put(nodes, change.node, change)
            self._put(ranks, change.rank, change.node)
        else:
            _refuse_if(change.node not in nodes, f"node {change.node} is not there")
            self._remove(ranks, nodes[change.node].rank)
            self._remove(nodes, change.node)

    def _require_job(self, job: int) -> None:
        _refuse_if(job not in self._tables.new, f"job {job} is not there")


def _refuse_if(wrong: bool, what: str) -> None:
    if wrong:
        raise Corrupt(f"a change contradicts what is recorded: {what}")


def _refuse_nul(change: Change) -> None:
    """A database keeps no NUL in its texts, except within documents that only pass through."""
    texts: object = change
    match change:
        case JobLogged():
            texts = change.event.name
        case IntentNew():
            texts = change.kind
        case AllocationNew():
            return
    if _NUL.search(_encoded(texts)):
        raise BadRequest("a change holds a value that cannot be recorded", found="a NUL character")


def _copied_event(event: JobEvent) -> JobEvent:
    return JobEvent(event.at, event.name, _plain(event.context))


def _copied(row: JobRow) -> JobRow:
    return JobRow(
        replace(row.new, spec=_plain(row.new.spec)),
        replace(row.live, detail=_plain(row.live.detail)),
        tuple(_copied_event(event) for event in row.log),
    )


def _fits(row: JobRow, wanted: JobFilter) -> bool:
    new, live = row.new, row.live
    return (
        (wanted.ids is None or new.id in wanted.ids)
        and (wanted.states is None or live.state.value in wanted.states)
        and (wanted.results is None or live.result in wanted.results)
        and (wanted.queue is None or live.queue == wanted.queue)
        and (wanted.name is None or new.name == wanted.name)
        and (wanted.owner is None or new.owner == wanted.owner)
        and (wanted.since is None or (live.ended_at is not None and live.ended_at > wanted.since))
    )
