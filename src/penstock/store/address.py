"""The address of a PostgreSQL database: checked before anything connects, and shown without its password.

The address is a secret if it contains a password. `mask_address` returns what may be shown, built from the
parts that are safe. An address that cannot be parsed may have its password anywhere, so neither it nor the
parser's message, which quotes it, is shown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from penstock.errors import BadRequest

__all__ = ["EMBEDDED", "MEMORY", "check_address", "mask_address"]

EMBEDDED: Final = "embedded"  # on the command line; an empty address means the same
MEMORY: Final = "memory"

_QUOTED: Final = re.compile(r'".*"', re.DOTALL)
_MAY_HAVE_PASSWORD: Final = re.compile(r"@|pass", re.IGNORECASE)
_PORTS: Final = re.compile(r"[0-9, ]*")


def check_address(address: str) -> None:
    """Raises `BadRequest` if the address is malformed. Does not connect."""
    if address in ("", MEMORY, EMBEDDED):
        return
    try:
        parts = conninfo_to_dict(address)
    except psycopg.Error as error:
        reason = _QUOTED.sub('"..."', str(error).strip())
        shown = reason if _MAY_HAVE_PASSWORD.search(address) else f"{address!r}: {reason}"
        raise _malformed(shown) from None
    if not _is_plausible(parts):
        raise _malformed(
            "a host or port that is not one; write @ as %40, / as %2F and : as %3A in a password"
        )


def _is_plausible(parts: Mapping[str, object]) -> bool:
    """Whether no part looks like the rest of a password: an unencoded character ends the password early."""
    host, port, name = (str(parts.get(part) or "") for part in ("host", "port", "dbname"))
    return "@" not in host + name and _PORTS.fullmatch(port) is not None


def _malformed(found: str) -> BadRequest:
    return BadRequest(
        "not a PostgreSQL address",
        where="--database",
        found=found,
        expected=f"postgresql://USER:PASSWORD@HOST/NAME, {EMBEDDED} or {MEMORY}",
    )


def mask_address(address: str) -> str:
    """The address with `***` in place of the password; `embedded` for the embedded database."""
    if address in ("", MEMORY, EMBEDDED):
        return address or EMBEDDED
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(address).items() if value}
    except psycopg.Error:
        parts = {"host": "@"}
    if not _is_plausible(parts):
        return "postgresql://..."
    user = parts.get("user", "")
    login = f"{user}{':***' if 'password' in parts else ''}@" if user or "password" in parts else ""
    host = parts.get("host") or parts.get("hostaddr", "")
    port = f":{parts['port']}" if "port" in parts else ""
    return f"postgresql://{login}{host}{port}/{parts.get('dbname', '')}"
