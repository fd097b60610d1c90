"""Connects to PostgreSQL and retries with exponential backoff during an outage.

A store has one connector. It reports an outage once when it starts and once when it ends, independent of how
many calls fail. While it waits, it may restart the embedded server. Connections are in autocommit mode, so an
idle connection holds no lock.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import msgspec
import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.json import set_json_loads

from penstock.errors import Unavailable
from penstock.store.pg_errors import DatabaseUnavailable, classify_connect_error, classify_error
from penstock.store.queries import query

__all__ = ["PAUSE_FIRST_S", "PAUSE_MAX_S", "PgConnector"]

PAUSE_FIRST_S: Final = 0.1
PAUSE_MAX_S: Final = 5.0

# Keepalives detect a silent peer within about 25 s.
_NETWORK: Final = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}

T = TypeVar("T")


class PgConnector:
    def __init__(
        self,
        url: str,
        on_outage: Callable[[str], None] | None = None,
        restart_server: Callable[[], object] | None = None,
    ) -> None:
        self._url = url
        self._on_outage = on_outage
        self._restart = restart_server
        self._outage_since: float | None = None
        self._outage_reason = ""

    @property
    def outage(self) -> str:
        """Why the database does not answer; empty while it does."""
        return self._outage_reason

    async def connect(self) -> AsyncConnection[Any]:
        """Connects once. Raises `DatabaseUnavailable` if a retry can succeed, `BadRequest` if it cannot."""
        try:
            address = make_conninfo(self._url, **_NETWORK)
            connection = await AsyncConnection.connect(address, autocommit=True)
        except psycopg.Error as error:
            raise self.note_outage(classify_connect_error(error)) from error
        try:
            set_json_loads(msgspec.json.decode, connection)
            await connection.execute(query("prepare_session"))
        except psycopg.Error as error:
            await connection.close()
            raise self.note_outage(classify_error(error)) from error
        self.note_success()
        return connection

    async def retry_until_available(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeats `attempt` while it raises `DatabaseUnavailable`."""
        pause_s = PAUSE_FIRST_S
        while True:
            try:
                return await attempt()
            except DatabaseUnavailable:
                await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_MAX_S)
            await self._restart_server()

    async def _restart_server(self) -> None:
        if self._restart is None:
            return
        try:
            await asyncio.to_thread(self._restart)
        except Unavailable as error:
            self.note_outage(DatabaseUnavailable(str(error)))

    def note_outage(self, failure: T) -> T:
        """Reports an outage if `failure` is its first sign; returns `failure`."""
        if not isinstance(failure, DatabaseUnavailable):
            return failure
        self._outage_reason = str(failure)
        if self._outage_since is None:
            self._outage_since = time.monotonic()
            if self._on_outage is not None:
                self._on_outage(
                    f"{failure}; retrying until {_target(self._url)} answers:"
                    " check that PostgreSQL runs there"
                )
        return failure

    def note_success(self) -> None:
        """Reports the end of an outage if there was one."""
        if self._outage_since is None:
            return
        outage_s = time.monotonic() - self._outage_since
        self._outage_since, self._outage_reason = None, ""
        if self._on_outage is not None:
            self._on_outage(f"the database is back after {outage_s:.1f} s")


def _target(url: str) -> str:
    """The host and database of an address, without credentials."""
    parameters = conninfo_to_dict(url)
    host = parameters.get("host") or parameters.get("hostaddr") or "the local socket"
    return f"{host} (database {parameters.get('dbname') or 'of the user'})"
