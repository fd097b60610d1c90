"""The identity file and the lock of a state directory.

The identity file stores the instance id, the Penstock version that wrote it, and the options of the last
start. The address of the database is in a file of its own, because it may contain a password; format 1 had it
in the identity file. A directory with other content, one written by a newer version, or one that is in use is
refused unchanged.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from penstock.errors import Conflict, Unavailable
from penstock.log_files import FORMER_LOGS
from penstock.paths import InstancePaths

__all__ = ["FORMAT", "InstanceIdentity", "StartOptions", "lock", "read_identity", "write_identity"]

FORMAT: Final = 2
_SIZE_MAX: Final = 64 << 10
# Files that a first start creates before the identity file.
_BEFORE_IDENTITY: Final = (
    *("instance.lock", "instance.log", "instance.new"),
    *(f"instance.log.{number}" for number in range(1, FORMER_LOGS + 1)),
    *("database-url", "database-url.new"),
)


@dataclass(frozen=True, slots=True)
class StartOptions:
    """Options of a start that the next start without them uses again."""

    config: str = ""  # absolute path of the configuration file
    policy: str = ""
    match_policy: str = ""
    queue_depth: int | None = None


@dataclass(frozen=True, slots=True)
class InstanceIdentity:
    id: str
    nodes: int
    cores: int
    gpus: int
    database: str = ""  # "": the embedded database
    backend: str = "local"
    options: StartOptions = StartOptions()
    settings: Mapping[str, str] = field(default_factory=dict)  # of the last start, to report differences
    memory_mib: int = 0  # per node; 0: none, as in instances of earlier versions


def read_identity(paths: InstancePaths) -> InstanceIdentity | None:
    """The identity of the state directory; None if it is empty or missing. Changes nothing."""
    try:
        text = paths.identity.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        others = [path.name for path in _entries(paths.state) if path.name not in _BEFORE_IDENTITY]
        if others:
            raise Conflict(
                f"{paths.state} is not the state directory of an instance: it contains "
                f"{sorted(others)[0]!r}; use an empty directory with --state"
            ) from None
        return None
    except OSError as error:
        raise Unavailable(f"cannot read {paths.identity}: {error.strerror}") from error
    found = _read(paths.identity, text)
    try:
        return replace(found, database=paths.database_url.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return found
    except (OSError, ValueError) as error:
        raise Unavailable(f"cannot read {paths.database_url}: {error}") from error


def _entries(directory: Path) -> list[Path]:
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
                f"{path.parent} was written by a newer Penstock ({found.get('made_by', 'unknown')}); "
                "use that version, or another --state"
            )
        read = InstanceIdentity(
            str(found["id"]),
            int(found["nodes"]),
            int(found["cores"]),
            int(found["gpus"]),
            str(found["database"]) if version < 2 else "",
            str(found.get("backend", "local")),
            _options(found.get("options", {})),
            {str(key): str(value) for key, value in found.get("settings", {}).items()},
            int(found.get("memory_mib", 0)),
        )
        if not read.id or read.nodes < 1 or read.cores < 1 or read.gpus < 0 or read.memory_mib < 0:
            raise ValueError(f"{read.nodes} nodes, {read.cores} cores, {read.gpus} gpus")
        return read
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        cause = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise Conflict(
            f"{path} is corrupt ({cause}); restore it from a backup, or use another --state"
        ) from error


def _options(found: Mapping[str, Any]) -> StartOptions:
    depth = found.get("queue_depth")
    config, policy, match_policy = (str(found.get(name, "")) for name in ("config", "policy", "match_policy"))
    return StartOptions(config, policy, match_policy, None if depth is None else int(depth))


def write_identity(paths: InstancePaths, identity: InstanceIdentity) -> None:
    """Writes the address of the database first: its file has precedence over an identity of format 1."""
    from importlib.metadata import version

    document = {
        "format": FORMAT,
        "made_by": version("penstock"),
        "id": identity.id,
        "nodes": identity.nodes,
        "cores": identity.cores,
        "gpus": identity.gpus,
        "memory_mib": identity.memory_mib,
        "backend": identity.backend,
        "options": asdict(identity.options),
        "settings": dict(identity.settings),
    }
    _write(paths.database_url, f"{identity.database}\n")
    _write(paths.identity, json.dumps(document, indent=1) + "\n")


def _write(path: Path, text: str) -> None:
    """Replaces a file by one that only its owner can read."""
    fresh = path.with_suffix(".new")
    try:
        fresh.unlink(missing_ok=True)
        with open(fresh, "x", encoding="utf-8", opener=_open_private) as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.rename(path)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def lock(paths: InstancePaths) -> int:
    """Locks the state directory for this process; returns the descriptor, which must stay open."""
    try:
        descriptor = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot write {paths.lock}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        pid = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        raise Conflict(f"an instance already runs in {paths.state} (pid {pid or 'unknown'})") from None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
