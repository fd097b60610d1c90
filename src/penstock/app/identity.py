"""Which instance a state directory belongs to, and what it was started with.

The file is written once the directory is ours, and says who made it. A directory that holds something else,
was made by a newer version, or is in use is refused with nothing touched.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from penstock.errors import Conflict, Unavailable
from penstock.paths import InstancePaths

__all__ = ["FORMAT", "InstanceIdentity", "claim", "lock", "look", "write_identity"]

FORMAT: Final = 1
_SIZE_MAX: Final = 64 << 10
_BEFORE_IDENTITY: Final = (
    "instance.lock",
    "instance.log",
    "instance.new",
)  # what a first start makes earlier


@dataclass(frozen=True, slots=True)
class InstanceIdentity:
    id: str
    nodes: int
    cores: int
    gpus: int
    database: str = ""  # "": our own
    backend: str = "local"


def claim(paths: InstancePaths, wanted: InstanceIdentity | None) -> InstanceIdentity:
    """The identity of the state directory; a new one gets what is wanted."""
    found = look(paths)
    if found is None:
        fresh = wanted or InstanceIdentity("", 1, 1, 0)
        found = replace(fresh, id=fresh.id or uuid.uuid4().hex)
        write_identity(paths, found)
    return found


def look(paths: InstancePaths) -> InstanceIdentity | None:
    """The identity of the state directory, None if it is new. Nothing is made or changed."""
    try:
        text = paths.identity.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        others = [path.name for path in _inside(paths.state) if path.name not in _BEFORE_IDENTITY]
        if others:
            raise Conflict(
                f"{paths.state} is not an instance's state directory: it holds {sorted(others)[0]!r}; "
                "name an empty one with --state"
            ) from None
        return None
    except OSError as error:
        raise Unavailable(f"cannot read {paths.identity}: {error.strerror}") from error
    return _read(paths.identity, text)


def _inside(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise Unavailable(f"cannot read {directory}: {error.strerror}") from error


def _read(path: Path, text: bytes) -> InstanceIdentity:
    try:
        found = json.loads(text[:_SIZE_MAX])
        version = int(found["format"])
        if version > FORMAT:
            raise Conflict(
                f"{path.parent} was made by a newer Penstock ({found.get('made_by', 'unknown')}): "
                "use that one, or another --state"
            )
        read = InstanceIdentity(
            str(found["id"]),
            int(found["nodes"]),
            int(found["cores"]),
            int(found["gpus"]),
            str(found["database"]),
            str(found.get("backend", "local")),
        )
        if not read.id or read.nodes < 1 or read.cores < 1 or read.gpus < 0:
            raise ValueError(f"{read.nodes} nodes, {read.cores} cores, {read.gpus} gpus")
        return read
    except (ValueError, KeyError, TypeError) as error:
        cause = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise Conflict(f"{path} is damaged ({cause}); restore it, or name another --state") from error


def write_identity(paths: InstancePaths, identity: InstanceIdentity) -> None:
    from importlib.metadata import version

    told = {
        "format": FORMAT,
        "made_by": version("penstock"),
        "id": identity.id,
        "nodes": identity.nodes,
        "cores": identity.cores,
        "gpus": identity.gpus,
        "database": identity.database,
        "backend": identity.backend,
    }
    fresh = paths.identity.with_suffix(".new")
    try:
        with fresh.open("w", encoding="utf-8") as stream:
            stream.write(json.dumps(told, indent=1) + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        fresh.rename(paths.identity)
    except OSError as error:
        raise Unavailable(f"cannot write {paths.identity}: {error.strerror}") from error


def lock(paths: InstancePaths) -> int:
    """Holds the state directory for this process; returns the descriptor that must stay open."""
    try:
        held = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot write {paths.lock}: {error.strerror}") from error
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pid = os.pread(held, 20, 0).decode("ascii", "replace").strip()
        os.close(held)
        raise Conflict(f"an instance runs in {paths.state} already (pid {pid or 'unknown'})") from None
    os.ftruncate(held, 0)
    os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
    return held
