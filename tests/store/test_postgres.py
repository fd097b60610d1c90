"""What only PostgreSQL can get wrong: outages, migrations, statements that somebody else types."""

from __future__ import annotations

import asyncio

import psycopg
import pytest
from changes import line, live, new, opened, whole_life
from psycopg.conninfo import make_conninfo
from servers import Server, fresh_database, kill_server

from penstock.errors import BadRequest, Conflict, Corrupt, Unavailable
from penstock.failpoints import Crash, armed
from penstock.model.job import JobState
from penstock.sched.records import AllocationGone, AllocationNew, SlotsFreed
from penstock.store.batch import arrange
from penstock.store.factory import open_store
from penstock.store.migrate import migrate, schema_version
from penstock.store.pg_errors import Away, explained
from penstock.store.port import JobFilter, Retention
from penstock.store.postgres import PostgresStore
from penstock.store.queries import MIGRATIONS, QUERIES, Migration, parse_queries


@pytest.fixture
def url(server: Server) -> str:
    return fresh_database(server)


async def connected(url: str) -> psycopg.AsyncConnection[tuple[object, ...]]:
    return await psycopg.AsyncConnection.connect(url, autocommit=True)


def test_lines_of_a_log_cannot_be_changed_or_removed_by_hand(url: str) -> None:
    async def work() -> None:
        async with opened(lambda: PostgresStore(url)) as (store,):
            epoch, _ = await store.take_over(1.0)
            await store.record(epoch, [new(1), line(1, 0), live(1)])
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

    asyncio.run(work())


def test_instances_that_start_at_once_migrate_once(url: str) -> None:
    async def work() -> None:
        connections = [await connected(url) for _ in range(4)]
        brought = await asyncio.gather(*(migrate(connection) for connection in connections))
        versions = [one.version for one in MIGRATIONS]
        assert sorted(version for one in brought for version in one) == versions
        assert await schema_version(connections[0]) == versions[-1]
        for connection in connections:
            await connection.close()

    asyncio.run(work())


def test_a_migration_that_fails_or_dies_leaves_no_trace(url: str) -> None:
    def die(point: str) -> None:
        if point == "store.migrate.before":
            raise Crash(point)

    async def work() -> None:
        async with await connected(url) as connection:
            with armed(die), pytest.raises(Crash):
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

    asyncio.run(work())


def test_a_newer_schema_is_refused(url: str) -> None:
    async def work() -> None:
        async with await connected(url) as connection:
            await migrate(connection)
            await connection.execute(b"UPDATE instance SET schema_version = 99")
        with pytest.raises(Conflict, match="schema 99"):
            await PostgresStore(url).open()

    asyncio.run(work())


def test_every_query_is_described_and_every_migration_says_when_it_may_run() -> None:
    assert all(query.about for query in QUERIES.values())
    assert all("before the code" in one.about or "after the code" in one.about for one in MIGRATIONS)
    for wrong in ("-- name\nSELECT 1", "SELECT 1", "-- name\n-- about", "-- a\n-- b\nX\n\n-- a\n-- b\nX"):
        with pytest.raises(Corrupt):
            parse_queries(wrong)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"password": "wrong"}, "does not let us in"),
        ({"dbname": "nowhere"}, "does not exist"),
        ({"user": "nobody"}, "does not let us in"),
    ],
)
def test_what_waiting_cannot_mend_is_said_at_once(url: str, change: dict[str, str], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        asyncio.run(PostgresStore(make_conninfo(url, **change)).open())


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(BadRequest, match="no address"):
        asyncio.run(PostgresStore("mysql://here").open())


def test_a_full_disk_is_told_as_such() -> None:
    fault = explained(psycopg.errors.DiskFull("could not extend file: No space left on device"))
    assert isinstance(fault, Unavailable)
    assert not isinstance(fault, Away)
    assert "disk of the database is full" in str(fault)


def test_an_outage_is_told_once_and_ends_with_a_new_epoch(mortal: Server) -> None:
    async def work() -> None:
        heard: list[str] = []
        url = fresh_database(mortal)
        store = PostgresStore(url, on_away=heard.append)
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
        assert len(heard) == 1
        assert "away" in heard[0] or "does not answer" in heard[0]
        waiting = asyncio.create_task(store.take_over(2.0))
        await asyncio.to_thread(mortal.embedded.start)
        later, found = await waiting
        assert [row.new.id for row in found.jobs] == [1]
        assert len(heard) == 2
        assert "is back" in heard[1]
        await store.record(later, [new(2)])
        assert len(await store.jobs(JobFilter())) == 2
        await store.close()

    asyncio.run(work())


def test_after_an_outage_only_taking_over_makes_a_store_write_again(mortal: Server) -> None:
    async def work() -> None:
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

    asyncio.run(work())


def test_opening_waits_for_a_database_that_comes_later(mortal: Server) -> None:
    async def work() -> None:
        url = fresh_database(mortal)
        await asyncio.to_thread(mortal.embedded.stop)
        heard: list[str] = []
        told = asyncio.Event()

        def hear(text: str) -> None:
            heard.append(text)
            told.set()

        store = PostgresStore(url, on_away=hear)
        opening = asyncio.create_task(store.open())
        await told.wait()
        assert not opening.done()
        await asyncio.to_thread(mortal.embedded.start)
        await opening
        assert len(heard) == 2
        await store.close()

    asyncio.run(work())


def test_our_own_server_is_started_again_when_it_was_killed(mortal: Server) -> None:
    async def work() -> None:
        opened = await open_store(None, mortal.paths)
        assert opened.embedded is not None
        epoch, _ = await opened.store.take_over(1.0)
        await asyncio.to_thread(kill_server, mortal)
        with pytest.raises(Unavailable):
            await opened.store.record(epoch, [])
        assert (await opened.store.take_over(2.0))[0] == epoch + 1
        assert opened.embedded.is_running()
        await opened.store.close()

    asyncio.run(work())


def test_a_cancelled_record_is_not_half_done(url: str) -> None:
    async def work() -> None:
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

    asyncio.run(work())


def test_a_batch_costs_few_statements_however_many_jobs_there_are() -> None:
    changes = [change for job in range(1, 101) for change in whole_life(job)]
    queries = [step.query for step in arrange(changes).steps]
    assert queries == [
        *(
            "insert_submissions",
            "insert_allocations",
            "delete_allocations",
            "insert_intents",
            "delete_intents",
        ),
    ]
    again = [AllocationNew(1, 0, 0, 1, {}), SlotsFreed(1, (0,), 0.0), AllocationGone(1, 0.0)] * 2
    assert len(arrange(again).steps) == 6


def test_only_the_last_state_of_a_job_is_written() -> None:
    states = [live(1, JobState.SCHED), live(2), live(1, JobState.RUN)]
    (step,) = arrange(states).steps
    assert (step.query, step.expected) == ("update_jobs", 2)
    assert '"RUN"' in step.rows
