"""Selects and opens the store that the `--database` option names.

No value selects the embedded PostgreSQL, which is restarted if it dies while the instance runs. `memory`
selects a store without durability, for trials. Any other value is the address of a PostgreSQL database.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import psycopg
import psycopg.conninfo

from penstock.errors import BadRequest, PenstockError
from penstock.paths import InstancePaths
from penstock.store.embedded import EmbeddedPostgres
from penstock.store.memory import MemoryStore
from penstock.store.port import Store
from penstock.store.postgres import PostgresStore

__all__ = ["StoreHandle", "check_database", "choose_store", "open_store"]


@dataclass(frozen=True, slots=True)
class StoreHandle:
    store: Store
    embedded: EmbeddedPostgres | None  # the server to stop when the instance stops


def check_database(database: str) -> None:
    """Raises `BadRequest` if the address is malformed. Does not connect."""
    if database == "memory":
        return
    try:
        psycopg.conninfo.conninfo_to_dict(database)
    except psycopg.Error as error:
        raise BadRequest(
            "not a PostgreSQL address",
            where="--database",
            found=str(error).strip(),
            expected="postgresql://USER:PASSWORD@HOST/NAME, or memory",
        ) from None


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
    embedded: EmbeddedPostgres | None = None
    store: Store
    if database == "memory":
        store = MemoryStore()
    elif database:
        store = PostgresStore(database, on_outage=on_outage)
    else:
        embedded = EmbeddedPostgres(paths)
        try:
            url = await asyncio.to_thread(embedded.start)
        except BaseException:
            with contextlib.suppress(PenstockError):
                await asyncio.to_thread(embedded.stop)
            raise
        store = PostgresStore(url, on_outage=on_outage, restart_server=embedded.start)
    return StoreHandle(store, embedded)
