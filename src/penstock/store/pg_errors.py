"""What an error of PostgreSQL means in our four families.

Whatever may pass by itself is `Unavailable`; `Away` is the kind of it that ends the connection or says that
the server takes no work, so that trying again needs a pause. A constraint that refuses a change is `Corrupt`:
the scheduler said something that contradicts what it said before. Errors of connecting carry no code, only
a text, so those are told apart by their words; one that is not recognised is waited for.
"""

from __future__ import annotations

import re
from typing import Final

import psycopg

from penstock.errors import BadRequest, Conflict, Corrupt, PenstockError, Unavailable

__all__ = ["Away", "explained", "explained_connecting"]

_NOT_ALLOWED: Final = re.compile(
    r"password authentication failed|no password supplied|no pg_hba\.conf entry"
    r"|authentication failed|permission denied for database|is not permitted to log in"
    r"|role \".*\" does not exist"
)
_NO_DATABASE: Final = re.compile(r"database \".*\" does not exist")


class Away(Unavailable):
    """The database does not answer, or takes no work."""


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


def explained(error: psycopg.Error) -> PenstockError:
    """The family of an error that a statement met."""
    text = _first_line(error)
    if isinstance(error, psycopg.errors.DiskFull):
        return Unavailable(f"the disk of the database is full; nothing was recorded: {text}")
    if isinstance(error, psycopg.IntegrityError):
        return Corrupt(f"a change contradicts what is recorded: {text}")
    if isinstance(error, psycopg.DataError):
        return BadRequest("a change holds a value that the database cannot keep", found=text)
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return Away(f"the database is read-only: {text}")
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Conflict(f"the database does not let us: {text}")
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.UndefinedColumn):
        return Corrupt(f"the database lacks a part of our schema: {text}")
    return Away(f"the database went away: {text}")


def explained_connecting(error: psycopg.Error) -> PenstockError:
    """The family of an error of connecting; `Away` if it is worth another try."""
    text = _first_line(error)
    if isinstance(error, psycopg.ProgrammingError):
        return BadRequest("this is no address of a PostgreSQL database", found=text)
    whole = str(error)
    if _NO_DATABASE.search(whole):
        return BadRequest(
            "the database does not exist", found=text, expected="one that was made with `createdb`"
        )
    if _NOT_ALLOWED.search(whole):
        return BadRequest("the database does not let us in", found=text)
    return Away(f"the database does not answer: {text}")
