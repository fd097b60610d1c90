"""Paths of an instance: a durable state directory, and a runtime directory for sockets.

The state directory identifies the instance: `--state DIR`, else `PENSTOCK_STATE`, else the user's default.
The runtime directory is derived from it, so every command finds the socket without a lookup. Its path is
short, because a socket path is limited to 107 bytes, and only the owner can access it. Penstock creates and
changes directories below these two only.
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

__all__ = ["SOCKET_PATH_MAX", "InstancePaths", "make_paths", "make_private", "paths_of", "private_mode"]

SOCKET_PATH_MAX: Final = 107


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

    def agent(self, node: str) -> Path:
        return self.state / "agents" / node

    def agent_socket(self, rank: int) -> Path:
        return self.runtime / f"agent{rank}.sock"


def paths_of(state: str | None, environ: Mapping[str, str]) -> InstancePaths:
    """Resolves the paths of an instance; creates nothing."""
    text = state or environ.get("PENSTOCK_STATE") or _default_state(environ)
    path = Path(os.path.abspath(Path(text).expanduser()))
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:10]
    base = environ.get("PENSTOCK_RUNTIME")
    if not base and os.getuid() != 0:
        # Root's runtime directory is closed to the account that PostgreSQL runs as.
        base = environ.get("XDG_RUNTIME_DIR")
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


def private_mode() -> int:
    """Mode of the instance's directories. Root adds `x` for others: PostgreSQL runs as another user then."""
    return 0o711 if os.getuid() == 0 else 0o700


def make_paths(paths: InstancePaths) -> None:
    """Creates the directories of an instance, accessible to their owner only."""
    for path in (paths.state, paths.runtime.parent, paths.runtime):
        make_private(path, private_mode())


def make_private(path: Path, mode: int = 0o700) -> None:
    """Creates a private directory; refuses a symbolic link and a directory of another user."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
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
    if stat.S_IMODE(found.st_mode) != mode:
        path.chmod(mode)


def _first_file(path: Path, error: OSError) -> Path:
    """Returns the file that prevents the creation of a directory."""
    files = (parent for parent in reversed(path.parents) if parent.exists() and not parent.is_dir())
    return next(files, Path(str(error.filename)))
