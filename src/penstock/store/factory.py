"""Selects and opens the store that the address of a database names.

No address selects the embedded PostgreSQL, which is restarted if it dies while the instance runs. `memory`
selects a store without durability, for trials. Any other address is that of a PostgreSQL database.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import psycopg

from penstock.errors import PenstockError
from penstock.paths import InstancePaths
from penstock.store.address import MEMORY
from penstock.store.connection import PgConnector
from penstock.store.embedded import EmbeddedPostgres
from penstock.store.memory import MemoryStore
from penstock.store.migrate import migrate, schema_version
from penstock.store.pg_errors import classify_error
from penstock.store.port import Store
from penstock.store.postgres import PostgresStore
from penstock.store.queries import MIGRATIONS, query

__all__ = ["StoreHandle", "choose_store", "open_store", "recorded_epoch"]


@dataclass(frozen=True, slots=True)
class StoreHandle:
    store: Store
    embedded: EmbeddedPostgres | None  # the server to stop when the instance stops
    url: str  # of the database, with its password; empty for a store in memory

    def outage(self) -> str:
        """Why the database does not answer; empty while it does, and before the store was opened."""
        return self.store.outage if isinstance(self.store, PostgresStore) else ""


async def open_store(
    database: str | None, paths: InstancePaths, *, on_outage: Callable[[str], None] | None = None
) -> StoreHandle:
    """Returns a store that is connected and has the current schema."""
    handle = await choose_store(database, paths, on_outage=on_outage)
    await handle.store.open()
    return handle


async def choose_store(
    database: str | None, paths: InstancePaths, *, on_outage: Callable[[str], None] | None = None
) -> StoreHandle:
    """Returns the store without opening it, because a remote database may be unreachable for long.

    The embedded server is started.
    """
    if database == MEMORY:
        return StoreHandle(MemoryStore(), None, "")
    if database:
        return StoreHandle(PostgresStore(database, on_outage=on_outage), None, database)
    embedded = EmbeddedPostgres(paths)
    try:
        url = await asyncio.to_thread(embedded.start)
    except BaseException:
        with contextlib.suppress(PenstockError):
            await asyncio.to_thread(embedded.stop)
        raise
    return StoreHandle(PostgresStore(url, on_outage=on_outage, restart_server=embedded.start), embedded, url)


async def recorded_epoch(url: str, *, may_migrate: bool) -> int:
    """Connects once, without retries; returns the last epoch, 0 for a database without records.

    With `may_migrate` an outdated schema is migrated; else it is left to the leader, which may be an instance
    of the version that created it. A newer schema raises `Conflict`.
    """
    connection = await PgConnector(url).connect()
    try:
        version = await schema_version(connection)
        if may_migrate or version >= len(MIGRATIONS):
            await migrate(connection)
        if await schema_version(connection) == 0:
            return 0
        row = await (await connection.execute(query("read_epoch"))).fetchone()
        return int(row[0]) if row is not None else 0
    except psycopg.Error as error:
        raise classify_error(error) from error
    finally:
        await connection.close()
