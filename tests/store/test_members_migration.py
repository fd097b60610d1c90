"""Migration 6 moves members, slots and nodes of jobs to tables of their own.

`data/schema5.json` contains the rows that the version with schema 5 wrote for a mixed workload (gangs with
ended, lost, refused and replaced members, a whole node with a released slot, a promise, an exception, open
intents, inadmissible workloads), and the state that this version restored from them, before and after a
snapshot.
"""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Json
from servers import Server, fresh_database

from penstock.engine import ExclusionKey
from penstock.protocol.facts import (
    Capacity,
    MemberSet,
    MemberStatus,
    NodeSet,
    Phase,
    Snapshot,
    WorkloadSet,
)
from penstock.sched.job import Job, Member
from penstock.sched.records import InadmissibleSet, Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import Settings
from penstock.store.migrate import migrate
from penstock.store.port import JobFilter
from penstock.store.postgres import PostgresStore
from penstock.store.queries import MIGRATIONS

OLD_VERSION = 5
OLD: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "schema5.json").read_text())
EXPECTED: dict[str, Any] = OLD["expected"]


async def _write(url: str, tables: dict[str, Any]) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await migrate(connection, MIGRATIONS[:OLD_VERSION])
        for table, rows in tables.items():
            if table == "instance":
                columns = ", ".join(f"{column} = %({column})s" for column in rows)
                await connection.execute(f"UPDATE instance SET {columns}".encode(), rows)
                continue
            for row in rows:
                names = ", ".join(row)
                values = ", ".join(f"%({column})s" for column in row)
                await connection.execute(
                    f"INSERT INTO {table} ({names}) VALUES ({values})".encode(),
                    {
                        column: Json(value) if isinstance(value, dict) else value
                        for column, value in row.items()
                    },
                )


@pytest.fixture(scope="module")
def recorded(server: Server) -> Recorded:
    """What the present version reads from a database of the earlier version."""
    url = fresh_database(server)

    async def read() -> Recorded:
        await _write(url, OLD["rows"])
        store = PostgresStore(url)
        await store.open()
        try:
            _, found = await store.take_over(OLD["now"])
            by_id = {row.new.id: row for row in await store.jobs(JobFilter())}
            assert set(by_id) == {row["id"] for row in OLD["rows"]["jobs"]}
            for row in OLD["rows"]["jobs"]:  # Inactive jobs keep their members too.
                members = row["detail"].get("members", [])
                assert [one.key for one in await store.members(row["id"])] == [one["key"] for one in members]
                assert by_id[row["id"]].sizes.members == len(members)
            return found
        finally:
            await store.close()

    return asyncio.run(read())


def _scheduler(recorded: Recorded) -> Scheduler:
    return scheduler_from(Settings(), recorded, OLD["now"])


def _snapshot() -> Snapshot:
    facts = OLD["facts"]
    return Snapshot(
        nodes=tuple(
            NodeSet(
                name,
                (Capacity("core", 4), Capacity("cpu", 4000, divisible=True)),
                tuple((level, domain) for level, domain in levels),
            )
            for name, levels in facts["nodes"]
        ),
        workloads=tuple(
            WorkloadSet(key, name, size, limit_s=limit_s, distinct_nodes=distinct, owner="team")
            for key, name, size, limit_s, distinct in facts["workloads"]
        ),
        members=tuple(
            MemberSet(workload, key, index, (("cpu", cpu),), recreated=recreated, name=name)
            for workload, key, index, cpu, recreated, name in facts["members"]
        ),
        statuses=tuple(
            MemberStatus(member, Phase(phase), at, node) for member, phase, at, node in facts["statuses"]
        ),
    )


def _described_member(member: Member) -> dict[str, object]:
    plain = (
        *("key", "index", "node", "slot", "group", "status", "message", "started_at", "ended_at", "lost_at"),
        *("seen_at", "is_recreated", "slot_release_pending", "name"),
    )
    return {name: getattr(member, name) for name in plain} | {
        "phase": member.phase.value,
        "cause": member.cause.value,
        "grants": [list(grant) for grant in member.grants],
        "refused_by": sorted(member.refused_by),
    }


def _described_job(job: Job) -> dict[str, object]:
    plain = (
        *("owner", "seen_at", "workload", "queue", "urgency", "class_value", "priority", "attempt"),
        *(
            "is_assembled",
            "is_workload_gone",
            "unsatisfiable_reason",
            "has_allocation",
            "placed_at",
            "end_at",
        ),
        *("resources_by_node", "incomplete_since", "is_infrastructure_failure", "incomplete_reason", "times"),
        *("past_members", "past_status", "result", "status", "started_at", "ended_at", "end_at"),
    )
    promise, exception = job.promise, job.exception
    return {name: getattr(job, name) for name in plain} | {
        "name": job.spec.name,
        "state": job.state.value,
        "log": [[event.at, event.name, event.context] for event in job.log],
        "open_dependencies": sorted(job.open_dependencies),
        "promise": promise and [promise.first_at, promise.last_at, promise.made_at, promise.is_reservation],
        "exception": exception and [exception.type, exception.severity, exception.note],
        "members": [_described_member(member) for member in job.members.values()],
    }


def _described_jobs(scheduler: Scheduler) -> dict[str, object]:
    return {str(job.id): _described_job(job) for job in scheduler.jobs.values()}


def _described_engine(scheduler: Scheduler) -> dict[str, object]:
    vertices = {
        vertex.path(): sorted(
            [job, part, one.start, one.end, one.live, one.units, one.exclusive, one.below]
            for (job, part), one in vertex.state.bookings.items()
        )
        for vertex in scheduler.graph.vertices.values()
        if vertex.state is not None and vertex.state.bookings
    }
    holders = {
        str(job): {
            "placement": [holder.placement.distinct_nodes, holder.placement.within],
            "top": holder.top.path(),
            "parts_made": holder.parts_made,
            "slots_made": holder.slots_made,
            "parts": [
                [
                    key,
                    sorted(
                        [
                            slot.number,
                            slot.group,
                            slot.node.name if slot.node is not None else "",
                            sorted([grant.vertex.path(), grant.units] for grant in slot.grants),
                        ]
                        for slot in part.slots
                    ),
                ]
                for key, part in sorted(holder.parts.items())
            ],
        }
        for job in scheduler.allocated_jobs()
        if (holder := scheduler.allocation(job)) is not None
    }
    return {"vertices": vertices, "holders": holders}


def test_jobs_and_members_are_restored_field_by_field(recorded: Recorded) -> None:
    found = _described_jobs(_scheduler(recorded))
    assert list(found) == list(EXPECTED["jobs"])
    for number, job in EXPECTED["jobs"].items():
        assert found[number] == job


def test_open_intents_and_inadmissible_workloads_are_restored(recorded: Recorded) -> None:
    intents = [[row.id, row.kind.value.capitalize()] for row in recorded.intents]
    assert intents == [intent[:2] for intent in EXPECTED["intents"]]
    scheduler = _scheduler(recorded)
    for number, _, members in EXPECTED["intents"]:
        for member in members:
            assert member in scheduler.members_of_intent(number)
    assert recorded.inadmissible == tuple(
        InadmissibleSet(one["workload"], tuple(one["members"]), one["reason"])
        for one in OLD["rows"]["inadmissible"]
    )


def test_allocations_are_booked_as_before_without_the_released_slots(recorded: Recorded) -> None:
    freed = {(row["job"], row["slot"]) for row in OLD["rows"]["freed_slots"]}
    assert freed
    assert not freed & {(part.job, slot.number) for part in recorded.allocations for slot in part.slots}
    scheduler = _scheduler(recorded)
    step = scheduler.handle((_snapshot(),), OLD["now"])
    assert _described_engine(scheduler) == EXPECTED["engine"]
    assert _described_jobs(scheduler) == EXPECTED["jobs_after_snapshot"]
    assert not [
        change for change in step.changes if type(change).__name__ in ("SlotsFreed", "AllocationGone")
    ]


def test_a_part_whose_slots_are_all_released_has_no_row(recorded: Recorded) -> None:
    assert all(part.slots for part in recorded.allocations)
    kept = {(part.job, part.part) for part in recorded.allocations}
    assert kept < {(row["job"], row["part"]) for row in OLD["rows"]["allocations"]}


def test_pools_that_stood_for_keys_are_restored_as_keys(server: Server) -> None:
    """Each node had a pool for a host port, and members were granted a unit of it."""
    tables = copy.deepcopy(OLD["rows"])
    (row,) = [row for row in tables["jobs"] if row["workload"] == "gang"]
    (member,) = [one for one in row["detail"]["members"] if one["key"] == "gang-0"]
    member["grants"].append(["hostport/TCP/80", "", 1])
    for part in [one["data"] for one in tables["allocations"] if one["job"] == row["id"]]:
        for slot in part["slots"]:
            if slot[0] == member["slot"]:
                slot[3].append([f"{slot[2]}:hostport/TCP/80", 1])
                part["marks"].append([f"{slot[2]}:hostport/TCP/80", 1, True, False, "", False])
    url = fresh_database(server)

    async def read() -> Recorded:
        await _write(url, tables)
        store = PostgresStore(url)
        await store.open()
        try:
            return (await store.take_over(OLD["now"]))[1]
        finally:
            await store.close()

    scheduler = _scheduler(asyncio.run(read()))
    scheduler.handle((_snapshot(),), OLD["now"])
    port = ExclusionKey("node", "host port 80/TCP")
    restored = scheduler.jobs[row["id"]].members["gang-0"]
    assert (restored.brings, [name for name, _, _ in restored.grants]) == ((port,), ["cpu"])
    vertex = scheduler.nodes[restored.node].vertex
    assert vertex.state is not None
    assert set(vertex.state.keys or ()) == {port}
    assert not any("hostport" in resource for resource in scheduler.graph.types())
