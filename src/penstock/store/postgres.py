"""The store in PostgreSQL: one connection that writes, one that reads.

A transaction first locks the row with the epoch, so writers come one after the other and an old epoch finds
itself `Fenced` before it wrote anything. When the writing connection breaks, nobody knows whether the last
commit happened; so it is not opened again by `record`, which stays `Unavailable`, but only by `take_over`,
which reads what is true. Reads try once more on a fresh connection, and otherwise are `Unavailable`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection

from penstock.errors import Corrupt, Unavailable
from penstock.model.job import JobEvent
from penstock.sched.records import Change, IdHighest, JobRow, Recorded
from penstock.store import rows
from penstock.store.audit_rows import AuditJob, audit_job
from penstock.store.batch import Batch, arrange
from penstock.store.connection import PgConnection
from penstock.store.migrate import migrate
from penstock.store.pg_errors import Away, explained
from penstock.store.port import Fenced, JobFilter, Retention
from penstock.store.queries import query
from penstock.store.transactions import FORGOTTEN_AT_ONCE_MAX, KEYS_KEPT_S, reach_after, reach_before

__all__ = ["PostgresStore"]

Connection = AsyncConnection[Any]


class PostgresStore:
    """`on_away` is told in words when the database goes away and when it is back; `revive` is called in a
    thread while it is away, and may start a server that is ours."""

    def __init__(
        self,
        url: str,
        *,
        on_away: Callable[[str], None] | None = None,
        revive: Callable[[], object] | None = None,
    ) -> None:
        self._link = PgConnection(url, on_away, revive)
        self._writer: Connection | None = None
        self._reader: Connection | None = None
        self._writing = asyncio.Lock()
        self._reading = asyncio.Lock()

    async def open(self) -> None:
        """Waits until the database answers and its schema is ours."""

        async def attempt() -> None:
            connection = await self._connected()
            try:
                await migrate(connection)
            except psycopg.Error as error:
                raise await self._broken(error) from error

        async with self._writing:
            await self._link.until_there(attempt)

    async def close(self) -> None:
        for connection in (self._writer, self._reader):
            if connection is not None:
                await connection.close()
        self._writer = self._reader = None

    async def claim_cluster(self, cluster: str) -> str:
        """Waits until the database answers."""

        async def attempt() -> str:
            async with self._writing:
                await self._connected()
            async with self._transaction("claim_cluster") as connection:
                values = {"cluster": cluster}
                row = await (await connection.execute(query("claim_cluster"), values)).fetchone()
                if row is None:
                    raise Corrupt("the table `instance` has no row")
                return str(row[0])

        return await self._link.until_there(attempt)

    async def take_over(self, now: float) -> tuple[int, Recorded]:
        """Waits until the database answers, then begins a new epoch."""

        async def attempt() -> tuple[int, Recorded]:
            async with self._writing:
                await self._connected()
            async with self._transaction("take_over") as connection:
                return await _begin(connection, now)

        return await self._link.until_there(attempt)

    async def record(self, epoch: int, changes: Sequence[Change]) -> None:
        batch = arrange(changes)
        async with self._transaction("record") as connection:
            await _check_epoch(connection, epoch, "lock_epoch" if changes else "read_epoch")
            await _write(connection, batch)

    async def prune(self, epoch: int, now: float, keep: Retention) -> int:
        limits = {
            "count": keep.count,
            "before": None if keep.age_s is None else now - keep.age_s,
            "most": FORGOTTEN_AT_ONCE_MAX,
        }
        async with self._transaction("prune") as connection:
            await _check_epoch(connection, epoch)
            forgotten = (await connection.execute(query("forget_jobs"), limits)).rowcount
            await connection.execute(query("forget_submissions"), {"before": now - KEYS_KEPT_S})
        return forgotten

    async def jobs(self, wanted: JobFilter) -> list[JobRow]:
        found = await self._read("find_jobs", rows.filter_values(wanted))
        return [rows.job_row(row) for row in found]

    async def log(self, job: int) -> list[JobEvent]:
        return [rows.event(row) for row in await self._read("read_log", {"job": job})]

    async def placed(self) -> list[AuditJob]:
        return [audit_job(*row) for row in await self._read("placed_jobs", {})]

    async def _read(self, name: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
        """Rows of a query; a connection that broke unnoticed is replaced once."""
        async with self._reading:
            is_fresh = self._reader is None
            while True:
                if self._reader is None or self._reader.closed:
                    self._reader = await self._link.connect()
                try:
                    cursor = await self._reader.execute(query(name), values, prepare=False)
                    return await cursor.fetchall()
                except psycopg.Error as error:
                    fault = explained(error)
                    if not isinstance(fault, Away):
                        raise fault from error
                    await self._reader.close()
                    self._reader = None
                    if is_fresh:
                        raise self._link.noticed(fault) from error
                    is_fresh = True

    async def _connected(self) -> Connection:
        """The writing connection, opened if there is none."""
        if self._writer is None or self._writer.closed:
            self._writer = await self._link.connect()
        return self._writer

    @asynccontextmanager
    async def _transaction(self, name: str) -> AsyncIterator[Connection]:
        """All or nothing, between the two failpoints of `name`."""
        async with self._writing:
            connection = self._writer
            if connection is None:
                raise self._link.noticed(Away("the database went away; take over again"))
            try:
                async with connection.transaction():
                    yield connection
                    reach_before(name)
            except psycopg.Error as error:
                raise await self._broken(error) from error
            except Exception:
                raise  # Refused by us and rolled back: the connection is as good as before.
            except BaseException:
                # Cancelled, perhaps within the commit: whether it happened is not known.
                await self._give_up()
                raise
            reach_after(name)

    async def _broken(self, error: psycopg.Error) -> Exception:
        """The fault to raise. A connection that may have lost its commit is given up."""
        fault = explained(error)
        if isinstance(fault, Unavailable):
            await self._give_up()
        return self._link.noticed(fault)

    async def _give_up(self) -> None:
        connection, self._writer = self._writer, None
        if connection is not None:
            await connection.close()


async def _check_epoch(connection: Connection, epoch: int, look: str = "lock_epoch") -> None:
    row = await (await connection.execute(query(look))).fetchone()
    if row is None:
        raise Corrupt("the table `instance` has no row")
    if row[0] != epoch:
        raise Fenced(epoch, row[0])


async def _write(connection: Connection, batch: Batch) -> None:
    """All changes of a batch; jobs first, because everything else refers to them."""
    async with connection.cursor() as cursor:
        for name, lines in (("copy_jobs", batch.jobs), ("copy_events", batch.events)):
            if lines:
                async with cursor.copy(query(name)) as copy:
                    await copy.write(lines)
        for step in batch.steps:
            await cursor.execute(query(step.query), {"rows": step.rows})
            if step.expected is not None and cursor.rowcount != step.expected:
                raise Corrupt(
                    f"{step.query}: {step.expected} rows were meant, {cursor.rowcount} are there:"
                    " something is freed, done or changed that is not there"
                )
        if batch.highest is not None:
            highest = batch.highest
            values = {"job": highest.job, "intent": highest.intent, "rank": highest.rank}
            await cursor.execute(query("raise_highest"), values)


async def _begin(connection: Connection, now: float) -> tuple[int, Recorded]:
    """Raises the epoch, and reads behind the fence: nobody else can write until the commit."""

    async def read(name: str, **values: object) -> list[tuple[Any, ...]]:
        return await (await connection.execute(query(name), values)).fetchall()

    begun = await read("begin_epoch", now=now)
    if not begun:
        raise Corrupt("the table `instance` has no row")
    epoch, began_at, *highest = begun[0]
    recorded = Recorded(
        began_at=began_at,
        highest=IdHighest(*highest),
        jobs=rows.job_rows(await read("recorded_jobs"), await read("recorded_events")),
        allocations=tuple(rows.allocation_row(row) for row in await read("recorded_allocations")),
        intents=tuple(rows.intent(row) for row in await read("recorded_intents")),
        nodes=tuple(rows.node(row) for row in await read("recorded_nodes")),
        drains=tuple(rows.drain(row) for row in await read("recorded_drains")),
        queues=tuple(rows.queue(row) for row in await read("recorded_queues")),
        inadmissible=tuple(rows.inadmissible(row) for row in await read("recorded_inadmissible")),
        keys={key: tuple(ids) for key, ids in await read("recorded_submissions", after=now - KEYS_KEPT_S)},
    )
    return epoch, recorded
