"""The SQL of the store, read from `sql/queries.sql` and `sql/migrations/`.

A query is a block: a line with its name, description lines, then the statement. The statements are bytes,
because psycopg accepts only bytes and literals as SQL; so no query can be built from strings by accident.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import Corrupt

__all__ = ["MIGRATIONS", "QUERIES", "Migration", "Query", "parse_queries", "query"]

_SQL: Final = Path(__file__).parent / "sql"
_NAME: Final = re.compile(r"-- ([a-z][a-z_]*)")


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    about: str
    text: bytes


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    about: str  # the first line: whether it may run before or after the code
    text: bytes


def parse_queries(text: str) -> dict[str, Query]:
    """Parses the blocks of a file. A block without a unique name, a description or a statement is
    `Corrupt`."""
    found: dict[str, Query] = {}
    for block in re.split(r"\n\n(?=-- )", text.strip()):
        lines = block.splitlines()
        named = _NAME.fullmatch(lines[0])
        about = [line[3:] for line in lines[1:] if line.startswith("-- ")]
        body = "\n".join(line for line in lines if not line.startswith("-- "))
        if named is None or not about or not body.strip() or named[1] in found:
            raise Corrupt(f"a query needs a unique name, a description and a statement: {lines[0]!r}")
        found[named[1]] = Query(named[1], " ".join(about), body.encode())
    return found


def _read_migrations(directory: Path) -> tuple[Migration, ...]:
    found = []
    for path in sorted(directory.glob("[0-9]*.sql")):
        number, _, name = path.stem.partition("_")
        text = path.read_text(encoding="utf-8")
        found.append(Migration(int(number), name, text.partition("\n")[0], text.encode()))
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise Corrupt(f"migrations in {directory} are not numbered from 1 without a gap")
    return tuple(found)


QUERIES: Final = parse_queries((_SQL / "queries.sql").read_text(encoding="utf-8"))
MIGRATIONS: Final = _read_migrations(_SQL / "migrations")


def query(name: str) -> bytes:
    """Returns the statement of a query."""
    return QUERIES[name].text
