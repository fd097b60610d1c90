"""Brings the schema of a database up to date, one migration after the other.

Each migration is one transaction under an advisory lock, and looks again at the version once it has the
lock: several instances that start at once migrate once. A schema that is newer than this code is refused,
because nobody knows what this code would do to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psycopg import AsyncConnection

from penstock.errors import Conflict, Corrupt
from penstock.store.queries import MIGRATIONS, Migration, query
from penstock.store.transactions import reach_after, reach_before

__all__ = ["migrate", "schema_version"]


async def migrate(
    connection: AsyncConnection[Any], migrations: Sequence[Migration] = MIGRATIONS
) -> tuple[int, ...]:
    """Runs what has not run; returns the versions that it brought."""
    brought = []
    while (version := await schema_version(connection)) < len(migrations):
        if await _run_next(connection, migrations, version):
            brought.append(version + 1)
    if version > len(migrations):
        raise Conflict(
            f"the database has schema {version}, this Penstock knows only up to {len(migrations)}:"
            " run the newer Penstock that made it, or give this one another database"
        )
    return tuple(brought)


async def schema_version(connection: AsyncConnection[Any]) -> int:
    """Which migration ran last; 0 in an empty database."""
    row = await (await connection.execute(query("schema_is_there"))).fetchone()
    if row is None or not row[0]:
        return 0
    found = await (await connection.execute(query("schema_version"))).fetchone()
    if found is None:
        raise Corrupt("the table `instance` has no row")
    return int(found[0])


async def _run_next(connection: AsyncConnection[Any], migrations: Sequence[Migration], seen: int) -> bool:
    """Runs the migration after `seen`, unless another instance was first."""
    async with connection.transaction():
        await connection.execute(query("lock_schema"))
        if await schema_version(connection) != seen:
            return False
        migration = migrations[seen]
        await connection.execute(migration.text)
        await connection.execute(query("set_schema_version"), {"version": migration.version})
        reach_before("migrate")
    reach_after("migrate")
    return True
