"""Converts database rows to the scheduler's records. The column order is that of `sql/queries.sql`.

A value that cannot be decoded must not keep the other rows from being read: it gets a default value, and an
entry in `errors` says which it was. A job with such an entry is not restored, but its readable rows tell
which nodes and slots it uses.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from penstock.errors import Corrupt
from penstock.model.job import JobEvent, JobState, state_after
from penstock.protocol.intents import IntentKind
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import (
    AllocationNew,
    ClaimSet,
    DrainSet,
    InadmissibleSet,
    IntentNew,
    JobLive,
    JobNew,
    JobOverview,
    JobRecord,
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

_FOUND_MAX: Final = 50  # characters shown of a value that is not as expected
_MEMBER_COLUMNS: Final = ("key", "number", "index", "phase", "node", "slot", "data")


def _new(row: Row, errors: list[str]) -> JobNew:
    new = JobNew(*row[:7])
    return replace(new, spec=_object(new.spec, "jobs.spec", errors))


def _live(row: Row, errors: list[str], log: Sequence[JobEvent] = ()) -> JobLive:
    """The mutable part of a job. A state that cannot be read is the one that the eventlog leads to."""
    try:
        state = JobState(row[7])
    except ValueError:
        errors.append(f"jobs.state: {row[7]!r} is not a state of a job")
        state = _logged_state(log)
    try:
        record = decode_record(row[15])
    except Corrupt as error:
        errors.append(f"jobs.record: {error}")
        record = JobRecord()
    return replace(JobLive(row[0], state, *row[8:15]), record=record)


def _logged_state(log: Sequence[JobEvent]) -> JobState:
    try:
        return state_after(log) if log else JobState.SCHED
    except Corrupt:
        return JobState.SCHED


def _object(value: Any, where: str, errors: list[str]) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    errors.append(f"{where}: expected a JSON object, found {str(value)[:_FOUND_MAX]!r}")
    return {}


def job_overview(row: Row) -> JobOverview:
    count, nodes, resources = row[16:]
    errors: list[str] = []  # of no interest in a list of jobs
    by_node = {node: _object(units, "job_nodes.resources", errors) for node, units in resources.items()}
    return JobOverview(_new(row, errors), _live(row, errors), JobSizes(count, frozenset(nodes), by_node))


def job_rows(
    jobs: Sequence[Row], events: Sequence[Row], members: Sequence[Row], nodes: Sequence[Row]
) -> tuple[JobRow, ...]:
    """Joins jobs with their eventlogs, members and nodes, which must be sorted."""
    errors: defaultdict[int, list[str]] = defaultdict(list)
    logs: defaultdict[int, list[JobEvent]] = defaultdict(list)
    for job, at, name, context in events:
        logs[job].append(JobEvent(at, name, _object(context, "job_events.context", errors[job])))
    members_of: defaultdict[int, list[MemberRecord]] = defaultdict(list)
    for job, *columns in members:
        members_of[job].append(member(tuple(columns), errors[job]))
    nodes_of: defaultdict[int, dict[str, NodeResources]] = defaultdict(dict)
    for job, name, resources in nodes:
        nodes_of[job][name] = _object(resources, "job_nodes.resources", errors[job])
    found: list[JobRow] = []
    for row in jobs:
        job, log = row[0], tuple(logs[row[0]])
        new, live = _new(row, errors[job]), _live(row, errors[job], log)
        made = JobRow(new, live, log, tuple(members_of[job]), nodes_of[job])
        found.append(replace(made, error=_error(errors[job])) if errors[job] else made)
    return tuple(found)


def _error(errors: list[str]) -> str:
    more = f"; and {len(errors) - 1} more" if len(errors) > 1 else ""
    return f"a recorded value cannot be read: {errors[0]}{more}"


def member(row: Row, errors: list[str]) -> MemberRecord:
    columns: dict[str, Any] = dict(zip(_MEMBER_COLUMNS, row, strict=True))
    try:
        return decode_member(columns)
    except Corrupt as error:
        errors.append(f"members, key {columns['key']!r}: {error}")
    try:
        phase = MemberPhase(columns["phase"])
    except ValueError:  # It may use its node.
        phase = MemberPhase.RUNNING if columns["node"] else MemberPhase.WAITING
    return decode_member({**columns, "phase": phase.value, "data": {}})


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
    errors: list[str] = []
    document = _object(payload, "intents.payload", errors)
    try:
        found = IntentKind(kind)
    except ValueError:
        errors.append(f"intents.kind: {kind!r} is not a kind of intent")
        found = IntentKind.END
    return IntentNew(number, job, found, document, _error(errors) if errors else "")


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
