"""Chooses the store that was asked for, and opens it.

No name means our own PostgreSQL, which is also started again if it goes away while we run. `memory` is for
trying things out: nothing outlives the process. Everything else is an address of a PostgreSQL database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from penstock.places import Places
from penstock.store.embedded import EmbeddedPostgres
from penstock.store.memory import MemoryStore
from penstock.store.port import Store
from penstock.store.postgres import PostgresStore

__all__ = ["Opened", "open_store"]


@dataclass(frozen=True, slots=True)
class Opened:
    store: Store
    embedded: EmbeddedPostgres | None  # ours to stop


async def open_store(
    database: str | None, places: Places, *, on_away: Callable[[str], None] | None = None
) -> Opened:
    """The store, open: it answers, and its schema is ours."""
    embedded: EmbeddedPostgres | None = None
    store: Store
    if database == "memory":
        store = MemoryStore()
    elif database:
        store = PostgresStore(database, on_away=on_away)
    else:
        embedded = EmbeddedPostgres(places)
        url = await asyncio.to_thread(embedded.start)
        store = PostgresStore(url, on_away=on_away, revive=embedded.start)
    await store.open()
    return Opened(store, embedded)
