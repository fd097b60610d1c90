"""Migration 4 renames tables, columns and JSON keys, migration 5 the kind of an intent. Rows that the earlier
version wrote keep their values."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from psycopg.types.json import Jsonb
from servers import Server, fresh_database

from penstock.engine import slot_request
from penstock.model.job import JobState
from penstock.protocol.intents import IntentKind
from penstock.sched.controlled_jobs import CONTROLLED
from penstock.sched.job import job_from
from penstock.sched.jobspec import SchedulingSpec
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import (
    ExceptionRecord,
    InadmissibleSet,
    IntentNew,
    JobNew,
    JobOverview,
    JobRecord,
    JobRow,
    MemberRecord,
)
from penstock.store.migrate import migrate
from penstock.store.port import JobFilter
from penstock.store.postgres import PostgresStore
from penstock.store.queries import MIGRATIONS

OLD_VERSION = 3


def _member(key: str, index: int, phase: str) -> dict[str, object]:
    return {"key": key, "index": index, "phase": phase, "node": f"n{index}", "slot": index, "grants": []}


# Member documents in the order in which the earlier version wrote them; only some were `owed`.
OLD_MEMBERS: list[dict[str, object]] = [
    {**_member("a", 0, "ended"), "grants": [["core", "0-1", 2]], "owed": True},
    {**_member("b", 1, "running"), "seen_at": 7.25},
    {**_member("c", 2, "ended"), "owed": True, "status": 256},
]
OLD_DETAIL: dict[str, object] = {
    "attempt": 2,
    "members": OLD_MEMBERS,
    "held": {"n0": {"core": "0-1"}},
    "times": {"RUN": 10.5},
    "placed_at": 11.0,
    "incomplete_since": 12.0,
    "broken": "node n2 is gone",
    "parked": "9 gpus per node, the largest node has 8",
    "work_gone": True,
    "failed_by_world": True,
    "unassembled": True,
}
PLAIN_DETAIL: dict[str, object] = {"attempt": 1, "times": {"INACTIVE": 3.5}, "exception": {"note": "parked"}}

INSERT_JOB = """
INSERT INTO jobs (id, owner, name, seen_at, spec, work, key, state, queue, urgency, priority, result, status,
                  started_at, ended_at, detail)
VALUES (%s, 'ada', 'sleep', 1.5, %s, %s, '', %s, 'batch', 16, 20, %s, NULL, NULL, %s, %s)
"""


@pytest.fixture
def old_url(server: Server) -> str:
    """A database that the version with migrations 1 to 3 wrote: an active and an ended job, a given-up
    work."""
    url = fresh_database(server)

    async def write() -> None:
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            assert await migrate(connection, MIGRATIONS[:OLD_VERSION]) == (1, 2, 3)
            active = (
                1,
                Jsonb({"work": "ns/job/a", "depends_on": [2]}),
                "ns/job/a",
                "RUN",
                "",
                None,
                Jsonb(OLD_DETAIL),
            )
            ended = (2, Jsonb({}), "ns/job/b", "INACTIVE", "FAILED", 4.5, Jsonb(PLAIN_DETAIL))
            for row in (active, ended):
                await connection.execute(INSERT_JOB, row)
            await connection.execute(
                "INSERT INTO given_up (work, members, reason)"
                " VALUES ('ns/job/b', '{m1,m2}', 'CANCELED: by ada')"
            )
            await connection.execute(
                "INSERT INTO intents (id, job, kind, payload)"
                """ VALUES (7, 1, 'retract', '{"members": ["b"], "how": "evict"}')"""
            )

    asyncio.run(write())
    return url


async def _migrated(url: str) -> tuple[tuple[JobRow, ...], tuple[InadmissibleSet, ...], list[JobOverview]]:
    """What the current version reads on start, and what it finds in the history."""
    store = PostgresStore(url)
    await store.open()
    try:
        _, recorded = await store.take_over(100.0)
        return recorded.jobs, recorded.inadmissible, await store.jobs(JobFilter())
    finally:
        await store.close()


def test_rows_of_the_earlier_version_keep_their_values_under_the_renamed_keys(old_url: str) -> None:
    jobs, inadmissible, history = asyncio.run(_migrated(old_url))
    # Job 2 is inactive and is read because job 1 depends on it: the view was renamed with its definition.
    assert [row.new for row in jobs] == [
        JobNew(1, "ada", "sleep", 1.5, {"workload": "ns/job/a", "depends_on": [2]}, "ns/job/a"),
        JobNew(2, "ada", "sleep", 1.5, {}, "ns/job/b"),
    ]
    assert [row.live.state for row in jobs] == [JobState.RUN, JobState.INACTIVE]
    assert inadmissible == (InadmissibleSet("ns/job/b", ("m1", "m2"), "CANCELED: by ada"),)
    assert jobs[1].live.record == JobRecord(
        times={"INACTIVE": 3.5}, exception=ExceptionRecord("", 0, "parked")
    )
    assert jobs[0].live.record == JobRecord(
        attempt=2,
        times={"RUN": 10.5},
        placed_at=11.0,
        incomplete_since=12.0,
        incomplete_reason="node n2 is gone",
        unsatisfiable_reason="9 gpus per node, the largest node has 8",
        is_assembled=False,
        is_workload_gone=True,
        is_infrastructure_failure=True,
    )
    assert jobs[0].members == (
        MemberRecord(
            *("a", 0, 0, MemberPhase.ENDED, "n0", 0),
            grants=(("core", "0-1", 2),),
            slot_release_pending=True,
        ),
        MemberRecord("b", 1, 1, MemberPhase.RUNNING, "n1", 1, seen_at=7.25),
        MemberRecord("c", 2, 2, MemberPhase.ENDED, "n2", 2, status=256, slot_release_pending=True),
    )
    assert jobs[0].resources_by_node == {"n0": {"core": "0-1"}}
    assert [row.live for row in history] == [row.live for row in reversed(jobs)]


def test_an_eviction_of_the_earlier_version_is_still_open(old_url: str) -> None:
    async def intents() -> tuple[IntentNew, ...]:
        store = PostgresStore(old_url)
        await store.open()
        try:
            _, recorded = await store.take_over(100.0)
            return recorded.intents
        finally:
            await store.close()

    (intent,) = asyncio.run(intents())
    assert (intent.id, intent.job, intent.kind) == (7, 1, IntentKind.EVICT)
    assert intent.payload["members"] == ["b"]


def test_the_scheduler_loads_a_job_that_the_earlier_version_wrote(old_url: str) -> None:
    rows, _, _ = asyncio.run(_migrated(old_url))
    spec = SchedulingSpec("sleep", "batch", slot_request({"core": 1}), 3)
    job = job_from(rows[0], spec, CONTROLLED)
    assert job.unsatisfiable_reason == "9 gpus per node, the largest node has 8"
    assert job.incomplete_reason == "node n2 is gone"
    assert job.resources_by_node == {"n0": {"core": "0-1"}}
    assert (job.is_workload_gone, job.is_infrastructure_failure, job.is_assembled) == (True, True, False)
    assert [member.key for member in job.members.values()] == ["a", "b", "c"]
    assert [member.slot_release_pending for member in job.members.values()] == [True, False, True]
    assert [member.phase for member in job.members.values()] == [
        MemberPhase.ENDED,
        MemberPhase.RUNNING,
        MemberPhase.ENDED,
    ]
