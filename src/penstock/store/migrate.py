"""Migrates the schema of a database, one migration after the other.

Each migration is one transaction under an advisory lock, and checks the version again after it got the lock,
so several instances that start at the same time migrate once. A schema that is newer than this code is
refused, because this code could damage it.
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
    """Runs the missing migrations; returns their versions."""
    completed = []
    while (version := await schema_version(connection)) < len(migrations):
        if await _run_next(connection, migrations, version):
            completed.append(version + 1)
    if version > len(migrations):
        raise Conflict(
            f"the database has schema {version}, this version of Penstock supports up to {len(migrations)}:"
            " run the newer version, or name another database with --database"
        )
    return tuple(completed)


async def schema_version(connection: AsyncConnection[Any]) -> int:
    """Returns the number of the last migration; 0 for an empty database."""
    row = await (await connection.execute(query("schema_exists"))).fetchone()
    if row is None or not row[0]:
        return 0
    found = await (await connection.execute(query("schema_version"))).fetchone()
    if found is None:
        raise Corrupt("the table `instance` has no row")
    return int(found[0])


async def _run_next(connection: AsyncConnection[Any], migrations: Sequence[Migration], version: int) -> bool:
    """Runs the migration that follows `version`, unless another instance has run it."""
    async with connection.transaction():
        await connection.execute(query("lock_schema"))
        if await schema_version(connection) != version:
            return False
        migration = migrations[version]
        await connection.execute(migration.text)
        await connection.execute(query("set_schema_version"), {"version": migration.version})
        reach_before("migrate")
    reach_after("migrate")
    return True
