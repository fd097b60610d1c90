"""Converts database rows to the scheduler's records. The column order is that of `sql/queries.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.model.job import JobEvent, JobState
from penstock.protocol.intents import IntentKind
from penstock.sched.records import (
    AllocationNew,
    ClaimSet,
    DrainSet,
    InadmissibleSet,
    IntentNew,
    JobLive,
    JobNew,
    JobOverview,
    JobRow,
    JobSizes,
    MemberRecord,
    NodeNew,
    NodeResources,
    QueueSet,
    SlotRecord,
)
from penstock.store.encoding import decode_member, decode_record
from penstock.store.port import JobFilter

__all__ = [
    "allocations",
    "claim",
    "drain",
    "event",
    "filter_values",
    "inadmissible",
    "intent",
    "job_overview",
    "job_rows",
    "member",
    "node",
    "queue",
]

Row = tuple[Any, ...]

_MEMBER_COLUMNS: Final = ("key", "number", "index", "phase", "node", "slot", "data")


def _new(row: Row) -> JobNew:
    return JobNew(*row[:7])


def _live(row: Row) -> JobLive:
    live = JobLive(row[0], JobState(row[7]), *row[8:15])
    return replace(live, record=decode_record(row[15]))


def job_overview(row: Row) -> JobOverview:
    count, nodes, resources = row[16:]
    return JobOverview(_new(row), _live(row), JobSizes(count, frozenset(nodes), resources))


def job_rows(
    jobs: Sequence[Row], events: Sequence[Row], members: Sequence[Row], nodes: Sequence[Row]
) -> tuple[JobRow, ...]:
    """Joins jobs with their eventlogs, members and nodes, which must be sorted."""
    logs: dict[int, list[JobEvent]] = {}
    for job, at, name, context in events:
        logs.setdefault(job, []).append(JobEvent(at, name, context))
    members_of: dict[int, list[MemberRecord]] = {}
    for job, *columns in members:
        members_of.setdefault(job, []).append(member(tuple(columns)))
    nodes_of: dict[int, dict[str, NodeResources]] = {}
    for job, name, resources in nodes:
        nodes_of.setdefault(job, {})[name] = resources
    return tuple(
        JobRow(
            _new(row),
            _live(row),
            tuple(logs.get(row[0], ())),
            tuple(members_of.get(row[0], ())),
            nodes_of.get(row[0], {}),
        )
        for row in jobs
    )


def member(row: Row) -> MemberRecord:
    return decode_member(dict(zip(_MEMBER_COLUMNS, row, strict=True)))


def event(row: Row) -> JobEvent:
    return JobEvent(*row)


def allocations(parts: Sequence[Row], slots: Sequence[Row]) -> tuple[AllocationNew, ...]:
    """Joins parts with their slots, which must be sorted by number."""
    slots_of: dict[tuple[int, int], list[SlotRecord]] = {}
    for job, part, number, data in slots:
        slots_of.setdefault((job, part), []).append(SlotRecord(number, data))
    return tuple(
        replace(AllocationNew(*row), slots=tuple(slots_of.get((row[0], row[1]), ()))) for row in parts
    )


def intent(row: Row) -> IntentNew:
    number, job, kind, payload = row
    return IntentNew(number, job, IntentKind(kind), payload)


def node(row: Row) -> NodeNew:
    return NodeNew(*row)


def drain(row: Row) -> DrainSet:
    return DrainSet(*row)


def queue(row: Row) -> QueueSet:
    return QueueSet(*row)


def inadmissible(row: Row) -> InadmissibleSet:
    workload, members, reason = row
    return InadmissibleSet(workload, tuple(members), reason)


def claim(row: Row) -> ClaimSet:
    job, nodes, made_at = row
    return ClaimSet(job, tuple(nodes), made_at)


def filter_values(job_filter: JobFilter) -> dict[str, object]:
    return {
        "ids": None if job_filter.ids is None else list(job_filter.ids),
        "states": None if job_filter.states is None else list(job_filter.states),
        "results": None if job_filter.results is None else list(job_filter.results),
        "queue": job_filter.queue,
        "name": job_filter.name,
        "owner": job_filter.owner,
        "since": job_filter.since,
        "limit": max(0, job_filter.limit),
    }
