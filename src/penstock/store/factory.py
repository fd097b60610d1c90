"""Chooses the store that was asked for, and opens it.

No name means our own PostgreSQL, which is also started again if it goes away while we run. `memory` is for
trying things out: nothing outlives the process. Everything else is an address of a PostgreSQL database.
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

__all__ = ["Opened", "check_database", "choose_store", "open_store"]


@dataclass(frozen=True, slots=True)
class Opened:
    store: Store
    embedded: EmbeddedPostgres | None  # ours to stop


def check_database(database: str) -> None:
    """`BadRequest` if no database can have this address; whether it answers is another question."""
    if database == "memory":
        return
    try:
        psycopg.conninfo.conninfo_to_dict(database)
    except psycopg.Error as error:
        raise BadRequest(
            "not the address of a database",
            where="--database",
            found=str(error).strip(),
            expected="postgresql://USER:PASSWORD@HOST/NAME, or memory",
        ) from None


async def open_store(
    database: str | None, paths: InstancePaths, *, on_away: Callable[[str], None] | None = None
) -> Opened:
    """The store, open: it answers, and its schema is ours."""
    opened = await choose_store(database, paths, on_away=on_away)
    await opened.store.open()
    return opened


async def choose_store(
    database: str | None, paths: InstancePaths, *, on_away: Callable[[str], None] | None = None
) -> Opened:
    """The store, not open yet: a database elsewhere may be away for long. Our own runs."""
    embedded: EmbeddedPostgres | None = None
    store: Store
    if database == "memory":
        store = MemoryStore()
    elif database:
        store = PostgresStore(database, on_away=on_away)
    else:
        embedded = EmbeddedPostgres(paths)
        try:
            url = await asyncio.to_thread(embedded.start)
        except BaseException:
            with contextlib.suppress(PenstockError):
                await asyncio.to_thread(embedded.stop)
            raise
        store = PostgresStore(url, on_away=on_away, revive=embedded.start)
    return Opened(store, embedded)
