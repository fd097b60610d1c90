"""Whose name the embedded PostgreSQL runs under, and whether that account gets to its files.

PostgreSQL refuses to run as root. An ordinary user runs it as they are; root lends it the account `nobody`,
which needs to pass through every directory above the data. We open only our own directories; one of
somebody else that is closed is a `Conflict` that names it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import Conflict

__all__ = ["Account", "account_for_postgres", "give", "require_passage"]

_LENT: Final = "nobody"


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int
    name: str
    is_lent: bool  # not our own: we are root


def account_for_postgres() -> Account:
    if os.getuid() != 0:
        return Account(os.getuid(), os.getgid(), str(os.getuid()), is_lent=False)
    try:
        found = pwd.getpwnam(_LENT)
    except KeyError:
        raise Conflict(
            f"PostgreSQL does not run as root, and there is no account {_LENT!r} for it:"
            " run Penstock as an ordinary user, or name a database with --database"
        ) from None
    return Account(found.pw_uid, found.pw_gid, _LENT, is_lent=True)


def require_passage(path: Path, account: Account) -> None:
    """`Conflict` names the first directory from the root to `path` that does not let the account pass."""
    for directory in (*reversed(path.parents), path):
        found = directory.stat()
        bits = _bits_for(account, found)
        if not bits & 1:
            raise Conflict(
                f"{directory} is closed for the account {account.name!r} that PostgreSQL runs as (mode"
                f" {stat.S_IMODE(found.st_mode):04o}): name a state directory elsewhere, such as"
                " /var/lib/penstock (and PENSTOCK_RUNTIME=/run), or allow passage with"
                f" `chmod o+x {directory}`"
            )


def _bits_for(account: Account, found: os.stat_result) -> int:
    if found.st_uid == account.uid:
        return found.st_mode >> 6
    if found.st_gid == account.gid:
        return found.st_mode >> 3
    return found.st_mode


def give(path: Path, account: Account) -> None:
    """Makes a directory that only the account gets into. One that is neither ours nor theirs is refused."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.getuid(), account.uid):
        raise Conflict(f"{path} is not a directory of ours; remove it, or name another state directory")
    if found.st_uid != account.uid:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)
