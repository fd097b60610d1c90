"""Rows of the database as values of the scheduler, in the order of the columns in `sql/queries.sql`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from penstock.model.job import JobEvent, JobState
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
    """Jobs with their logs; the events are in the order of their numbers."""
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
    return IntentNew(*row)


def node(row: Row) -> NodeNew:
    return NodeNew(*row)


def drain(row: Row) -> DrainSet:
    return DrainSet(*row)


def queue(row: Row) -> QueueSet:
    return QueueSet(*row)


def inadmissible(row: Row) -> InadmissibleSet:
    workload, members, reason = row
    return InadmissibleSet(workload, tuple(members), reason)


def filter_values(wanted: JobFilter) -> dict[str, object]:
    return {
        "ids": None if wanted.ids is None else list(wanted.ids),
        "states": None if wanted.states is None else list(wanted.states),
        "results": None if wanted.results is None else list(wanted.results),
        "queue": wanted.queue,
        "name": wanted.name,
        "owner": wanted.owner,
        "since": wanted.since,
        "limit": max(0, wanted.limit),
    }
