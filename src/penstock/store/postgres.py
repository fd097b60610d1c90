"""The store in PostgreSQL, with one connection for writes and one for reads.

A write transaction first locks the row with the epoch. Writers are therefore serialized, and a writer with an
old epoch gets `Fenced` before it changes anything. When the write connection breaks, the outcome of the last
commit is unknown. So `record` does not reconnect and stays `Unavailable`; only `take_over` reconnects,
because it reads the committed state. A read retries once on a fresh connection, then raises `Unavailable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection

from penstock.errors import Corrupt, PenstockError, Unavailable
from penstock.model.job import JobEvent
from penstock.sched.records import Change, IdHighest, JobOverview, MemberRecord, Recorded
from penstock.store import rows
from penstock.store.audit_rows import AuditJob, audit_job
from penstock.store.batch import Batch, build_batch
from penstock.store.connection import PgConnector
from penstock.store.migrate import migrate
from penstock.store.pg_errors import DatabaseUnavailable, classify_error
from penstock.store.port import Fenced, JobFilter, Retention
from penstock.store.queries import query
from penstock.store.transactions import PRUNE_BATCH_MAX, SUBMISSION_KEY_TTL_S, reach_after, reach_before

__all__ = ["PostgresStore"]

Connection = AsyncConnection[Any]


class PostgresStore:
    """`on_outage` receives one message when the database becomes unavailable and one when it is back.
    `restart_server` is called in a thread during an outage, and may start the embedded server."""

    def __init__(
        self,
        url: str,
        *,
        on_outage: Callable[[str], None] | None = None,
        restart_server: Callable[[], object] | None = None,
    ) -> None:
        self._connector = PgConnector(url, on_outage, restart_server)
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()

    @property
    def outage(self) -> str:
        """Why the database does not answer; empty while it does, and before the first connection."""
        return self._connector.outage

    async def open(self) -> None:
        """Waits until the database answers, then migrates its schema."""

        async def attempt() -> None:
            connection = await self._open_writer()
            try:
                await migrate(connection)
            except psycopg.Error as error:
                raise await self._classify_write_error(error) from error

        async with self._writing:
            await self._connector.retry_until_available(attempt)

    async def close(self) -> None:
        for connection in (self._writer, self._reader):
            if connection is not None:
                await connection.close()
        self._writer = self._reader = None

    async def claim_cluster(self, cluster: str) -> str:
        """Ties the recorded state to a cluster; waits until the database answers."""

        async def attempt() -> str:
            async with self._writing:
                await self._open_writer()
            async with self._transaction("claim_cluster") as connection:
                values = {"cluster": cluster}
                row = await (await connection.execute(query("claim_cluster"), values)).fetchone()
                if row is None:
                    raise Corrupt("the table `instance` has no row")
                return str(row[0])

        return await self._connector.retry_until_available(attempt)

    async def take_over(self, now: float) -> tuple[int, Recorded]:
        """Waits until the database answers, then begins an epoch and returns the recorded state."""

        async def attempt() -> tuple[int, Recorded]:
            async with self._writing:
                await self._open_writer()
            async with self._transaction("take_over") as connection:
                return await _begin_epoch(connection, now)

        return await self._connector.retry_until_available(attempt)

    async def record(self, epoch: int, changes: Sequence[Change]) -> None:
        batch = build_batch(changes)
        async with self._transaction("record") as connection:
            await _check_epoch(connection, epoch, "lock_epoch" if changes else "read_epoch")
            await _write(connection, batch)

    async def accepts(self, epoch: int, changes: Sequence[Change]) -> bool:
        try:
            batch = build_batch(changes)
            async with self._transaction("") as connection:
                await _check_epoch(connection, epoch)
                async with connection.transaction(force_rollback=True):
                    await _write(connection, batch)
        except (Unavailable, Fenced):
            raise
        except PenstockError:
            return False
        return True

    async def prune(self, epoch: int, now: float, retention: Retention) -> tuple[int, ...]:
        limits = {
            "count": retention.count,
            "before": None if retention.age_s is None else now - retention.age_s,
            "jobs_max": PRUNE_BATCH_MAX,
        }
        async with self._transaction("prune") as connection:
            await _check_epoch(connection, epoch)
            pruned = await (await connection.execute(query("prune_jobs"), limits)).fetchall()
            await connection.execute(query("prune_submissions"), {"before": now - SUBMISSION_KEY_TTL_S})
        return tuple(sorted(row[0] for row in pruned))

    async def jobs(self, job_filter: JobFilter) -> list[JobOverview]:
        found = await self._read("find_jobs", rows.filter_values(job_filter))
        return [rows.job_overview(row) for row in found]

    async def members(self, job: int) -> list[MemberRecord]:
        return [rows.member(row, []) for row in await self._read("read_members", {"job": job})]

    async def log(self, job: int) -> list[JobEvent]:
        return [rows.event(row) for row in await self._read("read_log", {"job": job})]

    async def placed_jobs(self) -> list[AuditJob]:
        return [audit_job(*row) for row in await self._read("placed_jobs", {})]

    async def _read(self, name: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
        """Runs a query; replaces a connection that turns out to be broken once."""
        async with self._reading:
            is_fresh = self._reader is None
            while True:
                if self._reader is None or self._reader.closed:
                    self._reader = await self._connector.connect()
                try:
                    cursor = await self._reader.execute(query(name), values, prepare=False)
                    return await cursor.fetchall()
                except psycopg.Error as error:
                    failure = classify_error(error)
                    if not isinstance(failure, DatabaseUnavailable):
                        raise failure from error
                    await self._reader.close()
                    self._reader = None
                    if is_fresh:
                        raise self._connector.note_outage(failure) from error
                    is_fresh = True

    async def _open_writer(self) -> Connection:
        """Returns the write connection; opens it if there is none."""
        if self._writer is None or self._writer.closed:
            self._writer = await self._connector.connect()
        return self._writer

    @asynccontextmanager
    async def _transaction(self, name: str) -> AsyncIterator[Connection]:
        """A transaction of the write connection, between the two failpoints of `name` if it writes."""
        async with self._writing:
            connection = self._writer
            if connection is None:
                raise self._connector.note_outage(
                    DatabaseUnavailable("the connection to the database was lost; take over again to write")
                )
            try:
                async with connection.transaction():
                    yield connection
                    if name:
                        reach_before(name)
            except psycopg.Error as error:
                raise await self._classify_write_error(error) from error
            except Exception:
                raise  # Rejected by this code and rolled back: the connection is still usable.
            except BaseException:
                # Cancelled, perhaps during the commit, so the outcome is unknown.
                await self._discard_writer()
                raise
            self._connector.note_success()
            if name:
                reach_after(name)

    async def _classify_write_error(self, error: psycopg.Error) -> Exception:
        """Returns the error to raise. Discards a connection whose commit may be lost."""
        failure = classify_error(error)
        if isinstance(failure, Unavailable):
            await self._discard_writer()
        return self._connector.note_outage(failure)

    async def _discard_writer(self) -> None:
        connection, self._writer = self._writer, None
        if connection is not None:
            await connection.close()


async def _check_epoch(connection: Connection, epoch: int, epoch_query: str = "lock_epoch") -> None:
    row = await (await connection.execute(query(epoch_query))).fetchone()
    if row is None:
        raise Corrupt("the table `instance` has no row")
    if row[0] != epoch:
        raise Fenced(epoch, row[0])


async def _write(connection: Connection, batch: Batch) -> None:
    """Writes a batch; jobs first, because every other table references them."""
    async with connection.cursor() as cursor:
        for name, lines in (("copy_jobs", batch.jobs), ("copy_events", batch.events)):
            if lines:
                async with cursor.copy(query(name)) as copy:
                    await copy.write(lines)
        for statement in batch.statements:
            await cursor.execute(query(statement.query), {"rows": statement.rows})
            if statement.expected is not None and cursor.rowcount != statement.expected:
                raise Corrupt(
                    f"{statement.query}: expected {statement.expected} rows, affected {cursor.rowcount}:"
                    " a change refers to a row that does not exist"
                )
        if batch.highest is not None:
            highest = batch.highest
            values = {"job": highest.job, "intent": highest.intent, "rank": highest.rank}
            await cursor.execute(query("raise_highest"), values)


async def _begin_epoch(connection: Connection, now: float) -> tuple[int, Recorded]:
    """Raises the epoch and reads the state in the same transaction: the lock excludes other writers."""

    async def read(name: str, **values: object) -> list[tuple[Any, ...]]:
        return await (await connection.execute(query(name), values)).fetchall()

    instance = await read("begin_epoch", now=now)
    if not instance:
        raise Corrupt("the table `instance` has no row")
    epoch, began_at, *highest = instance[0]
    recorded = Recorded(
        began_at=began_at,
        highest=IdHighest(*highest),
        jobs=rows.job_rows(
            await read("recorded_jobs"),
            await read("recorded_events"),
            await read("recorded_members"),
            await read("recorded_job_nodes"),
        ),
        allocations=rows.allocations(await read("recorded_allocations"), await read("recorded_slots")),
        intents=tuple(rows.intent(row) for row in await read("recorded_intents")),
        nodes=tuple(rows.node(row) for row in await read("recorded_nodes")),
        drains=tuple(rows.drain(row) for row in await read("recorded_drains")),
        queues=tuple(rows.queue(row) for row in await read("recorded_queues")),
        inadmissible=tuple(rows.inadmissible(row) for row in await read("recorded_inadmissible")),
        claims=tuple(rows.claim(row) for row in await read("recorded_claims")),
        keys={
            key: tuple(ids)
            for key, ids in await read("recorded_submissions", after=now - SUBMISSION_KEY_TTL_S)
        },
    )
    return epoch, recorded
