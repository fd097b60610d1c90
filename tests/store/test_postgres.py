"""Behaviour that is specific to PostgreSQL: outages, migrations, and statements that a person types."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from changes import event, job_lifecycle, live, new, opened, slots
from psycopg.conninfo import make_conninfo
from servers import Server, fresh_database, kill_server

from penstock.errors import BadRequest, Conflict, Corrupt, Unavailable
from penstock.failpoints import Crash, armed
from penstock.model.job import JobState
from penstock.sched.records import AllocationGone, AllocationNew, SlotsFreed
from penstock.store.batch import build_batch
from penstock.store.factory import open_store
from penstock.store.migrate import migrate, schema_version
from penstock.store.pg_errors import DatabaseUnavailable, classify_error
from penstock.store.port import JobFilter, Retention
from penstock.store.postgres import PostgresStore
from penstock.store.queries import MIGRATIONS, QUERIES, Migration, parse_queries


@pytest.fixture
def url(server: Server) -> str:
    return fresh_database(server)


async def connected(url: str) -> psycopg.AsyncConnection[tuple[object, ...]]:
    return await psycopg.AsyncConnection.connect(url, autocommit=True)


def test_events_cannot_be_changed_or_deleted_by_hand(url: str) -> None:
    async def scenario() -> None:
        async with opened(lambda: PostgresStore(url)) as (store,):
            epoch, _ = await store.take_over(1.0)
            await store.record(epoch, [new(1), event(1, 0), live(1)])
            async with await connected(url) as connection:
                for statement in (
                    b"UPDATE job_events SET name = 'other'",
                    b"DELETE FROM job_events",
                    b"TRUNCATE job_events",
                    b"TRUNCATE jobs CASCADE",
                    b"DELETE FROM jobs",
                ):
                    with pytest.raises(psycopg.errors.IntegrityConstraintViolation):
                        await connection.execute(statement)
            assert len(await store.log(1)) == 1

    asyncio.run(scenario())


def test_instances_that_start_concurrently_migrate_once(url: str) -> None:
    async def scenario() -> None:
        connections = [await connected(url) for _ in range(4)]
        completed = await asyncio.gather(*(migrate(connection) for connection in connections))
        versions = [migration.version for migration in MIGRATIONS]
        assert sorted(version for by_instance in completed for version in by_instance) == versions
        assert await schema_version(connections[0]) == versions[-1]
        for connection in connections:
            await connection.close()

    asyncio.run(scenario())


def test_a_migration_that_fails_or_crashes_changes_nothing(url: str) -> None:
    def crash(point: str) -> None:
        if point == "store.migrate.before":
            raise Crash(point)

    async def scenario() -> None:
        async with await connected(url) as connection:
            with armed(crash), pytest.raises(Crash):
                await migrate(connection)
            assert await schema_version(connection) == 0
            last = len(MIGRATIONS)
            text = b"CREATE TABLE more (a int); SELECT 1/0"
            wrong = Migration(last + 1, "wrong", "-- Runs before the code", text)
            with pytest.raises(psycopg.errors.DivisionByZero):
                await migrate(connection, (*MIGRATIONS, wrong))
            assert await schema_version(connection) == last
            right = Migration(last + 1, "right", "-- Runs before the code", b"CREATE TABLE more (a int)")
            assert await migrate(connection, (*MIGRATIONS, right)) == (last + 1,)

    asyncio.run(scenario())


def test_a_newer_schema_is_refused(url: str) -> None:
    async def scenario() -> None:
        async with await connected(url) as connection:
            await migrate(connection)
            await connection.execute(b"UPDATE instance SET schema_version = 99")
        with pytest.raises(Conflict, match="schema 99"):
            await PostgresStore(url).open()

    asyncio.run(scenario())


def test_every_query_has_a_description_and_every_migration_states_when_it_may_run() -> None:
    assert all(query.about for query in QUERIES.values())
    assert all(
        "before the code" in migration.about or "after the code" in migration.about
        for migration in MIGRATIONS
    )
    for wrong in ("-- name\nSELECT 1", "SELECT 1", "-- name\n-- about", "-- a\n-- b\nX\n\n-- a\n-- b\nX"):
        with pytest.raises(Corrupt):
            parse_queries(wrong)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"password": "wrong"}, "rejects the login"),
        ({"dbname": "nowhere"}, "does not exist"),
        ({"user": "nobody"}, "rejects the login"),
    ],
)
def test_a_permanent_connection_error_is_raised_at_once(url: str, change: dict[str, str], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        asyncio.run(PostgresStore(make_conninfo(url, **change)).open())


def test_a_malformed_address_is_refused() -> None:
    with pytest.raises(BadRequest, match="not a PostgreSQL address"):
        asyncio.run(PostgresStore("mysql://here").open())


def test_a_full_disk_is_reported_as_such() -> None:
    failure = classify_error(psycopg.errors.DiskFull("could not extend file: No space left on device"))
    assert isinstance(failure, Unavailable)
    assert not isinstance(failure, DatabaseUnavailable)
    assert "disk of the database is full" in str(failure)


def test_an_outage_is_reported_once_and_ends_with_the_next_epoch(mortal: Server) -> None:
    async def scenario() -> None:
        messages: list[str] = []
        url = fresh_database(mortal)
        store = PostgresStore(url, on_outage=messages.append)
        await store.open()
        epoch, _ = await store.take_over(1.0)
        await store.record(epoch, [new(1)])
        assert await store.log(1) == []
        await asyncio.to_thread(kill_server, mortal)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await store.record(epoch, [new(2)])
            with pytest.raises(Unavailable):
                await store.jobs(JobFilter())
            with pytest.raises(Unavailable):
                await store.log(1)
            with pytest.raises(Unavailable):
                await store.prune(epoch, 1.0, Retention())
        assert len(messages) == 1
        assert "was lost" in messages[0] or "does not answer" in messages[0]
        assert str(mortal.paths.database_socket) in messages[0]
        assert "password" not in messages[0]
        waiting = asyncio.create_task(store.take_over(2.0))
        await asyncio.to_thread(mortal.embedded.start)
        later, found = await waiting
        assert [row.new.id for row in found.jobs] == [1]
        assert len(messages) == 2
        assert "is back" in messages[1]
        await store.record(later, [new(2)])
        assert len(await store.jobs(JobFilter())) == 2
        await store.close()

    asyncio.run(scenario())


def test_after_an_outage_only_take_over_makes_a_store_writable(mortal: Server) -> None:
    async def scenario() -> None:
        async with opened(lambda: PostgresStore(fresh_database(mortal))) as (store,):
            epoch, _ = await store.take_over(1.0)
            await asyncio.to_thread(mortal.embedded.stop)
            with pytest.raises(Unavailable):
                await store.record(epoch, [])
            await asyncio.to_thread(mortal.embedded.start)
            with pytest.raises(Unavailable, match="take over"):
                await store.record(epoch, [])
            assert await store.jobs(JobFilter()) == []
            later, _ = await store.take_over(2.0)
            await store.record(later, [new(1)])

    asyncio.run(scenario())


def test_open_waits_for_a_database_that_starts_later(mortal: Server) -> None:
    async def scenario() -> None:
        url = fresh_database(mortal)
        await asyncio.to_thread(mortal.embedded.stop)
        messages: list[str] = []
        reported = asyncio.Event()

        def report(text: str) -> None:
            messages.append(text)
            reported.set()

        store = PostgresStore(url, on_outage=report)
        opening = asyncio.create_task(store.open())
        await reported.wait()
        assert not opening.done()
        await asyncio.to_thread(mortal.embedded.start)
        await opening
        assert len(messages) == 2
        await store.close()

    asyncio.run(scenario())


def test_the_embedded_server_is_restarted_after_it_was_killed(mortal: Server) -> None:
    async def scenario() -> None:
        handle = await open_store(None, mortal.paths)
        assert handle.embedded is not None
        epoch, _ = await handle.store.take_over(1.0)
        await asyncio.to_thread(kill_server, mortal)
        with pytest.raises(Unavailable):
            await handle.store.record(epoch, [])
        assert (await handle.store.take_over(2.0))[0] == epoch + 1
        assert handle.embedded.is_running()
        await handle.store.close()

    asyncio.run(scenario())


def test_a_cancelled_record_is_rolled_back(url: str) -> None:
    async def scenario() -> None:
        async with opened(lambda: PostgresStore(url)) as (store,), await connected(url) as other:
            epoch, _ = await store.take_over(1.0)
            await other.execute(b"BEGIN")
            await other.execute(b"SELECT FROM instance FOR UPDATE")
            recording = asyncio.create_task(store.record(epoch, [new(1)]))
            while (await other.execute(b"SELECT FROM pg_locks WHERE NOT granted")).rowcount == 0:
                await asyncio.sleep(0.01)
            recording.cancel()
            with pytest.raises(asyncio.CancelledError):
                await recording
            await other.execute(b"ROLLBACK")
            later, found = await store.take_over(2.0)
            assert found.jobs == ()
            await store.record(later, [new(1)])

    asyncio.run(scenario())


def test_a_batch_needs_few_statements_independent_of_the_number_of_jobs() -> None:
    changes = [change for job in range(1, 101) for change in job_lifecycle(job)]
    queries = [statement.query for statement in build_batch(changes).statements]
    assert queries == [
        *(
            "insert_submissions",
            "insert_allocations",
            "insert_slots",
            "delete_allocations",
            "insert_intents",
            "delete_intents",
            "upsert_members",
            "upsert_job_nodes",
        ),
    ]
    held = AllocationNew(1, 0, 0, 1, {}, slots(0, 1))
    again = [held, SlotsFreed(1, (0,)), AllocationGone(1, 0.0)] * 2
    assert len(build_batch(again).statements) == 8


def test_only_the_latest_state_of_a_job_is_written() -> None:
    states = [live(1, JobState.SCHED), live(2), live(1, JobState.RUN)]
    (statement,) = build_batch(states).statements
    assert (statement.query, statement.expected) == ("update_jobs", 2)
    assert '"RUN"' in statement.rows
