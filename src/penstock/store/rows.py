"""Converts database rows to the scheduler's records. The column order is that of `sql/queries.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.job import JobEvent, JobState
from penstock.protocol.intents import IntentKind
from penstock.sched.records import (
    AllocationNew,
    AllocationRow,
    DrainSet,
    InadmissibleSet,
    IntentNew,
    JobLive,
    JobNew,
    JobRow,
    NodeNew,
    QueueSet,
)
from penstock.store.port import JobFilter

__all__ = [
    "allocation_row",
    "drain",
    "event",
    "filter_values",
    "inadmissible",
    "intent",
    "job_row",
    "job_rows",
    "node",
    "queue",
]

Row = tuple[Any, ...]


def job_row(row: Row, log: tuple[JobEvent, ...] = ()) -> JobRow:
    number, state = row[0], JobState(row[7])
    return JobRow(JobNew(*row[:7]), JobLive(number, state, *row[8:]), log)


def job_rows(jobs: Sequence[Row], events: Sequence[Row]) -> tuple[JobRow, ...]:
    """Joins jobs with their eventlogs; `events` must be sorted by number."""
    logs: dict[int, list[JobEvent]] = {}
    for job, at, name, context in events:
        logs.setdefault(job, []).append(JobEvent(at, name, context))
    return tuple(job_row(row, tuple(logs.get(row[0], ()))) for row in jobs)


def event(row: Row) -> JobEvent:
    return JobEvent(*row)


def allocation_row(row: Row) -> AllocationRow:
    *part, freed = row
    return AllocationRow(AllocationNew(*part), tuple(freed))


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
