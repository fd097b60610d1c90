"""Connections to PostgreSQL: made when needed, given up when broken, waited for with growing pauses.

There is one link for a store. It tells once when the database goes away and once when it is back, however
many calls notice. Before it waits it may `revive` a server that is ours. A connection commits on its own
unless a transaction is open, so an idle one never holds anything.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import make_conninfo
from psycopg.types.json import set_json_loads

from penstock.errors import Unavailable
from penstock.store.pg_errors import Away, explained, explained_connecting
from penstock.store.queries import query

__all__ = ["PAUSE_FIRST_S", "PAUSE_MAX_S", "PgConnection"]

PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0

# A peer that vanished without a word is noticed within about 25 s.
_NETWORK: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

T = TypeVar("T")


class PgConnection:
    def __init__(
        self,
        url: str,
        on_away: Callable[[str], None] | None = None,
        revive: Callable[[], object] | None = None,
    ) -> None:
        self._url = url
        self._on_away = on_away
        self._revive = revive
        self._away_since: float | None = None

    async def connect(self) -> AsyncConnection[Any]:
        """One try. `Away` if the database does not answer, `BadRequest` if it never will."""
        try:
            address = make_conninfo(self._url, **_NETWORK)
            connection = await AsyncConnection.connect(address, autocommit=True)
        except psycopg.Error as error:
            raise self.noticed(explained_connecting(error)) from error
        try:
            set_json_loads(msgspec.json.decode, connection)
            await connection.execute(query("prepare_session"))
        except psycopg.Error as error:
            await connection.close()
            raise self.noticed(explained(error)) from error
        self._tell_back()
        return connection

    async def until_there(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Tries until the database answers. Only `Away` is worth waiting for."""
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                return await attempt()
            except Away:
                await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)
            await self._try_to_revive()

    async def _try_to_revive(self) -> None:
        if self._revive is None:
            return
        try:
            await asyncio.to_thread(self._revive)
        except Unavailable as error:
            self.noticed(Away(str(error)))

    def noticed(self, fault: T) -> T:
        """Tells of an outage if `fault` is the first sign of it; gives the fault back."""
        if isinstance(fault, Away) and self._away_since is None:
            self._away_since = time.monotonic()
            if self._on_away is not None:
                self._on_away(f"{fault}; trying again until it does")
        return fault

    def _tell_back(self) -> None:
        if self._away_since is None:
            return
        away_s = time.monotonic() - self._away_since
        self._away_since = None
        if self._on_away is not None:
            self._on_away(f"the database is back after {away_s:.1f} s")
