"""Where an instance keeps its things: a state directory that lasts, a runtime directory for sockets.

The state directory names the instance: `--state DIR`, else `PENSTOCK_STATE`, else the user's default. The
runtime directory follows from it, so that every command finds the socket without asking anybody. It is
short, because a socket's path may have 107 bytes, and nobody but the owner gets in. Directories are only
ever made or changed below these two; nothing else is touched.
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
        """Which instance this is, and which version made it."""
        return self.state / "instance.json"

    @property
    def lock(self) -> Path:
        """Held while an instance runs."""
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
        """What jobs print, one directory a job."""
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
    """The places of the instance that is meant. Makes nothing."""
    text = state or environ.get("PENSTOCK_STATE") or _default_state(environ)
    path = Path(os.path.abspath(Path(text).expanduser()))
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:10]
    base = environ.get("PENSTOCK_RUNTIME")
    if not base and os.getuid() != 0:
        base = environ.get("XDG_RUNTIME_DIR")  # Root's is closed to the account that runs the database.
    above = Path(base) / "penstock" if base else Path(f"/tmp/penstock-{os.getuid()}")
    paths = InstancePaths(path, above / name)
    longest = os.fsencode(paths.database_socket / ".s.PGSQL.5432.lock")
    if len(longest) > SOCKET_PATH_MAX:
        raise BadRequest(
            "the runtime directory has too long a path for a socket",
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
    """Of our own directories: closed; for root passable, because the database runs as somebody else."""
    return 0o711 if os.getuid() == 0 else 0o700


def make_paths(paths: InstancePaths) -> None:
    """Makes the directories of an instance, each ours alone."""
    for path in (paths.state, paths.runtime.parent, paths.runtime):
        make_private(path, private_mode())


def make_private(path: Path, mode: int = 0o700) -> None:
    """Makes a directory of ours, and refuses one that belongs to somebody else or is a link."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=mode)
        found = path.lstat()
    except (FileExistsError, NotADirectoryError) as error:
        raise Conflict(
            f"{_first_file(path, error)} is not a directory; name another state directory"
        ) from None
    except OSError as error:
        raise Unavailable(f"cannot make {path}: {error.strerror}") from error
    if not stat.S_ISDIR(found.st_mode):
        raise Conflict(f"{path} is not a directory; remove it, or name another state directory")
    if found.st_uid != os.getuid():
        raise Conflict(f"{path} belongs to user {found.st_uid}, not to us; nothing is kept there")
    if stat.S_IMODE(found.st_mode) != mode:
        path.chmod(mode)


def _first_file(path: Path, error: OSError) -> Path:
    """What stands in the way of a directory."""
    above = (one for one in reversed(path.parents) if one.exists() and not one.is_dir())
    return next(above, Path(str(error.filename)))
