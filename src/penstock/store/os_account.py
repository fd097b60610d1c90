"""The operating-system account that the embedded PostgreSQL runs as, and its access to directories.

PostgreSQL refuses to run as root. Under an ordinary user it runs as that user; under root it runs as
`nobody`, which needs search permission (`x`) on every directory above the data. Penstock changes the mode of
its own directories only; a closed directory of another owner raises a `Conflict` that names it.
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

__all__ = ["OsAccount", "make_owned_directory", "postgres_account", "require_search_permission"]

_UNPRIVILEGED_ACCOUNT: Final = "nobody"


@dataclass(frozen=True, slots=True)
class OsAccount:
    uid: int
    gid: int
    name: str
    switches_user: bool  # Penstock runs as root, PostgreSQL does not


def postgres_account() -> OsAccount:
    if os.getuid() != 0:
        return OsAccount(os.getuid(), os.getgid(), str(os.getuid()), switches_user=False)
    try:
        found = pwd.getpwnam(_UNPRIVILEGED_ACCOUNT)
    except KeyError:
        raise Conflict(
            f"PostgreSQL cannot run as root, and the account {_UNPRIVILEGED_ACCOUNT!r} does not exist:"
            " run Penstock as an ordinary user, or name a database with --database"
        ) from None
    return OsAccount(found.pw_uid, found.pw_gid, _UNPRIVILEGED_ACCOUNT, switches_user=True)


def require_search_permission(path: Path, account: OsAccount) -> None:
    """Raises `Conflict` with the first directory above or at `path` that the account may not search."""
    for directory in (*reversed(path.parents), path):
        found = directory.stat()
        bits = _bits_for(account, found)
        if not bits & 1:
            raise Conflict(
                f"{directory} is not accessible to the account {account.name!r} that PostgreSQL runs as (mode"
                f" {stat.S_IMODE(found.st_mode):04o}): choose another state directory, such as"
                " /var/lib/penstock (and PENSTOCK_RUNTIME=/run), or run"
                f" `chmod o+x {directory}`"
            )


def _bits_for(account: OsAccount, found: os.stat_result) -> int:
    if found.st_uid == account.uid:
        return found.st_mode >> 6
    if found.st_gid == account.gid:
        return found.st_mode >> 3
    return found.st_mode


def make_owned_directory(path: Path, account: OsAccount) -> None:
    """Makes a directory that only the account can access. Refuses one that belongs to another user."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.getuid(), account.uid):
        raise Conflict(
            f"{path} is not a directory that Penstock owns: remove it, or choose another state directory"
        )
    if found.st_uid != account.uid:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)
