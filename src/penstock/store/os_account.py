"""The operating-system account that the embedded PostgreSQL runs as, and its access to directories.

PostgreSQL refuses to run as root. Under an ordinary user it runs as that user. Under root it runs as a system
account that nothing else uses: whoever can write the data of an instance can run commands as the user of that
instance, so an account with other processes, such as `nobody`, would give them the rights of root. The
account is created if it does not exist. An account of that name that could belong to somebody is refused.

Directories of the instance are closed to everybody but their owner and the group of this account, which may
search them (`x`). Penstock changes the mode of its own directories only; a closed directory of another owner
above them raises a `Conflict` that names it.
"""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import Conflict

__all__ = [
    "POSTGRES_ACCOUNT",
    "OsAccount",
    "grant_search",
    "make_owned_directory",
    "postgres_account",
    "require_search_permission",
    "system_account",
]

POSTGRES_ACCOUNT: Final = "penstock-postgres"

_COMMENT: Final = "PostgreSQL of Penstock"
_HOME: Final = "/nonexistent"
_SYSTEM_ID_MAX: Final = 999
_SHELLS_WITHOUT_LOGIN: Final = ("/usr/sbin/nologin", "/sbin/nologin", "/bin/false", "/usr/bin/false")
_TOOLS_PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_TOOLS_MAX_S: Final = 60
_CREATION_LOCK: Final = "/run/penstock-account.lock"


@dataclass(frozen=True, slots=True)
class OsAccount:
    uid: int
    gid: int
    name: str
    switches_user: bool  # Penstock runs as root, PostgreSQL does not


def postgres_account() -> OsAccount:
    if os.getuid() != 0:
        return OsAccount(os.getuid(), os.getgid(), str(os.getuid()), switches_user=False)
    return system_account(POSTGRES_ACCOUNT)


def system_account(name: str) -> OsAccount:
    """Returns a system account without a login shell and with a group of its own; creates it if needed."""
    found = _find(name)
    if found is None:
        with _creating():
            found = _find(name) or _create(name)
    return found


def _find(name: str) -> OsAccount | None:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    problem = ""
    if not 0 < found.pw_uid <= _SYSTEM_ID_MAX:
        problem = f"uid {found.pw_uid} is not that of a system account"
    elif found.pw_shell not in _SHELLS_WITHOUT_LOGIN:
        problem = f"it has the login shell {found.pw_shell or '/bin/sh'}"
    elif _group_name(found.pw_gid) != name:
        problem = f"its group is {_group_name(found.pw_gid)}, not one of its own"
    if problem:
        raise Conflict(
            f"PostgreSQL cannot run as root, and the account {name!r} is not suitable for it: {problem};"
            f" remove that account, and the next start creates it{_ALTERNATIVES}"
        )
    return OsAccount(found.pw_uid, found.pw_gid, name, switches_user=True)


_ALTERNATIVES: Final = "; or run Penstock as an ordinary user, or name a database with --database"


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


@contextlib.contextmanager
def _creating() -> Iterator[None]:
    """Serializes creations: `useradd` may replace an account that another process has just created."""
    try:
        descriptor = os.open(_CREATION_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Conflict(f"cannot create an account: {_CREATION_LOCK}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _create(name: str) -> OsAccount:
    why = "neither useradd nor adduser is installed"
    for command in _creation_commands(name):
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            env={"PATH": _TOOLS_PATH, "LC_ALL": "C"},
            timeout=_TOOLS_MAX_S,
            check=False,
        )
        lines = done.stdout.strip().splitlines()
        why = lines[-1] if lines else f"{command[0]}: exit code {done.returncode}"
    found = _find(name)
    if found is None:
        raise Conflict(
            f"PostgreSQL cannot run as root, and its account {name!r} could not be created ({why}): create it"
            f" with `{shlex.join(_useradd('useradd', name))}`{_ALTERNATIVES}"
        )
    return found


def _creation_commands(name: str) -> list[list[str]]:
    """The commands of shadow-utils, else those of BusyBox; empty if neither is installed."""
    useradd, adduser, addgroup = (
        shutil.which(tool, path=_TOOLS_PATH) for tool in ("useradd", "adduser", "addgroup")
    )
    if useradd is not None:
        return [_useradd(useradd, name)]
    if adduser is None or addgroup is None:
        return []
    options = ["-S", "-D", "-H", "-h", _HOME, "-s", _shell(), "-G", name, "-g", _COMMENT]
    return [[addgroup, "-S", name], [adduser, *options, name]]


def _useradd(program: str, name: str) -> list[str]:
    group = ["--user-group"]
    with contextlib.suppress(KeyError):
        grp.getgrnam(name)
        group = ["--gid", name]  # A removed account may leave its group behind.
    options = ["--no-create-home", "--home-dir", _HOME, "--shell", _shell(), "--comment", _COMMENT]
    return [program, "--system", *group, *options, name]


def _shell() -> str:
    return next((shell for shell in _SHELLS_WITHOUT_LOGIN if os.path.exists(shell)), "/bin/false")


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


def grant_search(path: Path, account: OsAccount) -> None:
    """Lets the group of the account, and nobody else but the owner, search a directory of Penstock."""
    found = path.lstat()
    if found.st_gid != account.gid:
        path.chmod(0o700)  # The former group loses its permission before the group changes.
        os.chown(path, -1, account.gid, follow_symlinks=False)
        found = path.lstat()
    if stat.S_IMODE(found.st_mode) != 0o710:
        path.chmod(0o710)


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
