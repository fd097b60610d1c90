"""Paths of an instance: a durable state directory, and a runtime directory for sockets.

The state directory identifies the instance: `--state DIR`, else `PENSTOCK_STATE`, else the user's default.
The runtime directory is derived from it, so every command finds the socket without a lookup. Its path is
short, because a socket path is limited to 107 bytes. Penstock creates and changes directories below these two
only.

Whoever can write below them can run commands as the user of the instance. So both are closed to other users
(under root, the group of the account that PostgreSQL runs as may search them), and root accepts no directory
that another user could replace.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import BadRequest, Conflict, Unavailable

__all__ = [
    "SOCKET_PATH_MAX",
    "InstancePaths",
    "make_instance_directory",
    "make_paths",
    "make_private",
    "passage_mode",
    "paths_of",
]

SOCKET_PATH_MAX: Final = 107
_GROUP_SEARCH: Final = 0o010


@dataclass(frozen=True, slots=True)
class InstancePaths:
    state: Path
    runtime: Path

    @property
    def identity(self) -> Path:
        """Identity of the instance, and the version that created it."""
        return self.state / "instance.json"

    @property
    def lock(self) -> Path:
        """Locked while an instance runs."""
        return self.state / "instance.lock"

    @property
    def log(self) -> Path:
        return self.state / "instance.log"

    @property
    def database_url(self) -> Path:
        """The address of the database, which may contain a password; absent for the embedded one."""
        return self.state / "database-url"

    @property
    def token(self) -> Path:
        """The bearer token for TCP."""
        return self.state / "token"

    @property
    def database(self) -> Path:
        return self.state / "db"

    @property
    def output(self) -> Path:
        """Output of jobs, one directory per job."""
        return self.state / "output"

    @property
    def socket(self) -> Path:
        return self.runtime / "api.sock"

    @property
    def database_socket(self) -> Path:
        """The directory of PostgreSQL's socket."""
        return self.runtime / "db"

    @property
    def agents(self) -> Path:
        """Records of the agents, one directory per node."""
        return self.state / "agents"

    def agent(self, node: str) -> Path:
        return self.agents / node

    def agent_socket(self, rank: int) -> Path:
        return self.runtime / f"agent{rank}.sock"


def paths_of(state: str | None, environ: Mapping[str, str]) -> InstancePaths:
    """Resolves the paths of an instance; creates nothing."""
    text = state or environ.get("PENSTOCK_STATE") or _default_state(environ)
    path = Path(os.path.abspath(Path(text).expanduser()))
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:10]
    base = environ.get("PENSTOCK_RUNTIME") or _default_runtime(environ)
    runtime_root = Path(base) / "penstock" if base else Path(f"/tmp/penstock-{os.getuid()}")
    paths = InstancePaths(path, runtime_root / name)
    longest = os.fsencode(paths.database_socket / ".s.PGSQL.5432.lock")
    if len(longest) > SOCKET_PATH_MAX:
        raise BadRequest(
            "the path of the runtime directory is too long for a socket",
            where="XDG_RUNTIME_DIR" if not environ.get("PENSTOCK_RUNTIME") else "PENSTOCK_RUNTIME",
            found=f"{len(longest)} bytes: {os.fsdecode(longest)}",
            expected=f"at most {SOCKET_PATH_MAX} bytes; set PENSTOCK_RUNTIME to a short directory",
        )
    return paths


def _default_state(environ: Mapping[str, str]) -> str:
    if os.getuid() == 0:
        return "/var/lib/penstock"
    base = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local/state")
    return f"{base}/penstock"


def _default_runtime(environ: Mapping[str, str]) -> str | None:
    if os.getuid() != 0:
        return environ.get("XDG_RUNTIME_DIR")
    # Root's XDG_RUNTIME_DIR is closed to the account that PostgreSQL runs as. In /run, unlike in /tmp, no
    # other user can take the name of the directory.
    return "/run" if os.access("/run", os.W_OK) else None


def passage_mode() -> int:
    """Mode of a directory above those of an instance. Root adds `x` for others, among them PostgreSQL."""
    return 0o711 if os.getuid() == 0 else 0o700


def make_paths(paths: InstancePaths) -> None:
    """Creates the directories of an instance, closed to other users."""
    if os.getuid() == 0:
        for path in (paths.state, paths.runtime):
            _require_protected(path)
    make_private(paths.runtime.parent, passage_mode())
    for path in (paths.state, paths.runtime):
        make_instance_directory(path)


def make_instance_directory(path: Path) -> None:
    """Creates a state or runtime directory. Under root, PostgreSQL keeps the permission to search it."""
    make_private(path, keeps=_GROUP_SEARCH if os.getuid() == 0 else 0)


def _require_protected(path: Path) -> None:
    """Raises `Conflict` if another user than root could replace the directory by another one."""
    for directory in dict.fromkeys((*reversed(path.parents), *reversed(path.resolve().parents))):
        try:
            found = directory.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        others_write = not stat.S_ISLNK(found.st_mode) and found.st_mode & 0o022
        if found.st_uid != 0 or (others_write and not found.st_mode & stat.S_ISVTX):
            raise Conflict(
                f"{directory} can be changed by other users (owner {found.st_uid}, mode"
                f" {stat.S_IMODE(found.st_mode):04o}), who could run commands as root with it: choose another"
                f" directory than {path}, or give {directory} to root and run `chmod go-w {directory}`"
            )


def make_private(path: Path, mode: int = 0o700, *, keeps: int = 0) -> None:
    """Creates a private directory; refuses a symbolic link and a directory of another user.

    An existing one keeps the permissions `keeps` if it has them.
    """
    try:
        for parent in reversed([parent for parent in path.parents if not parent.exists()]):
            with contextlib.suppress(FileExistsError):
                parent.mkdir(mode=0o755)  # Not `parents=True`: with an umask of 0 others could write there.
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=mode)
        found = path.lstat()
    except (FileExistsError, NotADirectoryError) as error:
        raise Conflict(
            f"{_first_file(path, error)} is not a directory; choose another state directory"
        ) from None
    except OSError as error:
        raise Unavailable(f"cannot create the directory {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise Conflict(f"{path} is not a directory; remove it, or choose another state directory")
    if found.st_uid != os.getuid():
        raise Conflict(
            f"{path} belongs to user {found.st_uid}, not to user {os.getuid()}; choose another directory"
        )
    mode |= found.st_mode & keeps
    if stat.S_IMODE(found.st_mode) != mode:
        path.chmod(mode)


def _first_file(path: Path, error: OSError) -> Path:
    """Returns the file that prevents the creation of a directory."""
    files = (parent for parent in reversed(path.parents) if parent.exists() and not parent.is_dir())
    return next(files, Path(str(error.filename)))
