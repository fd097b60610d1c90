"""Maps errors of PostgreSQL to the four error families of Penstock.

An error that may be transient is `Unavailable`. Its subclass `DatabaseUnavailable` means that the connection
is lost or that the server accepts no writes, so a retry needs a pause. A constraint violation is `Corrupt`: a
change contradicts recorded state. Connection errors carry no SQLSTATE, only a text, so they are classified by
their text; an unknown one counts as transient.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

from penstock.errors import BadRequest, Conflict, Corrupt, PenstockError, Unavailable

__all__ = ["DatabaseUnavailable", "classify_connect_error", "classify_error"]

_LOGIN_REJECTED: Final = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry"
    r"|authentication failed|permission denied for database|is not permitted to log in"
    r"|role \".*\" does not exist"
)
_NO_DATABASE: Final = re.compile(r"database \".*\" does not exist")


class DatabaseUnavailable(Unavailable):
    """The database does not answer, or accepts no writes."""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def classify_error(error: psycopg.Error) -> PenstockError:
    """Maps an error that a statement raised."""
    text = _first_line(error)
    if isinstance(error, psycopg.errors.DiskFull):
        return Unavailable(
            f"the disk of the database is full, nothing was recorded; free space there: {text}"
        )
    if isinstance(error, psycopg.IntegrityError):
        return Corrupt(f"a change contradicts the recorded state: {text}")
    if isinstance(error, psycopg.DataError):
        return BadRequest("a change contains a value that the database cannot store", found=text)
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return DatabaseUnavailable(f"the database is read-only: {text}")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Conflict(
            f"the database user lacks a privilege; grant it, or use the owner of the database: {text}"
        )
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return Corrupt(f"the schema of the database is incomplete: {text}")
    return DatabaseUnavailable(f"the connection to the database was lost: {text}")


def classify_connect_error(error: psycopg.Error) -> PenstockError:
    """Maps an error of a connection attempt; `DatabaseUnavailable` if a retry can succeed."""
    text = _first_line(error)
    if isinstance(error, psycopg.ProgrammingError):
        return BadRequest(
            "not a PostgreSQL address", found=text, expected="postgresql://USER:PASSWORD@HOST/NAME"
        )
    message = str(error)
    if _NO_DATABASE.search(message):
        return BadRequest(
            "the database does not exist",
            found=text,
            expected="an existing database; create it with `createdb`",
        )
    if _LOGIN_REJECTED.search(message):
        return BadRequest(
            "the database rejects the login", found=text, expected="a user and password that may connect"
        )
    return DatabaseUnavailable(f"the database does not answer: {text}")
