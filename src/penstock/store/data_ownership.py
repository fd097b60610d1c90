"""Gives a PostgreSQL data directory to another account, after PostgreSQL has stopped.

The processes of the former owner may still be there and may be hostile, so nothing is resolved by name twice:
the walk goes from descriptor to descriptor, follows no symbolic link, and changes only what it has opened. A
file with a second name could be a file of somebody else, and is refused.

The top directory belongs to root during the walk, which closes it to the former owner, and changes to the
account last. A walk that was interrupted is therefore visible at the owner of the top, and is repeated.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from penstock.errors import Conflict
from penstock.store.os_account import OsAccount

__all__ = ["take_ownership"]

_DEPTH_MAX: Final = 16  # PostgreSQL nests four levels
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def take_ownership(path: Path, account: OsAccount) -> None:
    """Makes everything below a directory belong to the account. Raises `Conflict` with a foreign entry."""
    top = os.open(path, _FLAGS | os.O_DIRECTORY)
    try:
        os.fchown(top, os.getuid(), os.getgid())
        os.fchmod(top, 0o700)
        _take_entries(top, path, account, _DEPTH_MAX)
        os.fchown(top, account.uid, account.gid)
    finally:
        os.close(top)


def _take_entries(directory: int, path: Path, account: OsAccount, depth: int) -> None:
    for name in os.listdir(directory):
        try:
            entry = os.open(name, _FLAGS, dir_fd=directory)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _foreign(path / name) from error
            raise
        try:
            found = os.fstat(entry)
            is_directory = stat.S_ISDIR(found.st_mode)
            is_own_file = stat.S_ISREG(found.st_mode) and found.st_nlink == 1
            if not (is_own_file or (is_directory and depth)):
                raise _foreign(path / name)
            os.fchown(entry, account.uid, account.gid)
            os.fchmod(entry, stat.S_IMODE(found.st_mode) & 0o700)
            if is_directory:
                _take_entries(entry, path / name, account, depth - 1)
        finally:
            os.close(entry)


def _foreign(path: Path) -> Conflict:
    return Conflict(
        f"{path} is a link or a special file, which Penstock has not created: inspect it and remove it"
    )
