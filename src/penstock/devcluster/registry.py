"""The running development clusters of a user: one entry file each, locked while the cluster exists.

The files are in a directory next to the user's state directory, not inside it, because an instance rejects a
state directory with foreign files. The cluster's reaper inherits the lock, so the lock is released after
everything else is removed. An entry without a lock is stale: the machine went down.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.errors import Conflict, Unavailable
from penstock.paths import make_private, passage_mode, paths_of

__all__ = [
    "CLUSTER",
    "PENSTOCK",
    "ClusterEntry",
    "claim",
    "registry_directory",
    "release",
    "running_clusters",
    "write_entry",
]

CLUSTER: Final = "cluster"  # in the registry directory: the directory of the default cluster
PENSTOCK: Final = "penstock"  # in a cluster's directory: the state directory of its Penstock instance
_REGISTRY_SUFFIX: Final = "-dev"
_SUFFIX: Final = ".cluster.json"
_TRIES: Final = 20
_SIZE_MAX: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """A running cluster, as other commands find it."""

    directory: Path
    kubeconfig: Path
    kubectl: Path
    pid: int


def registry_directory(environ: Mapping[str, str]) -> Path:
    """The directory of the entries and of the default cluster. Does not create it.

    `penstock dev cluster` prints a PENSTOCK_STATE inside the default cluster. In a shell that has set it,
    this is the registry that contains that cluster.
    """
    state = paths_of(None, environ).state
    registry = state.parent.parent
    if registry.name.endswith(_REGISTRY_SUFFIX) and state == registry / CLUSTER / PENSTOCK:
        return registry
    return state.with_name(state.name + _REGISTRY_SUFFIX)


def claim(registry: Path, directory: Path) -> tuple[Path, int]:
    """Creates and locks the entry of the cluster in `directory`. Returns its path and the locked file."""
    path = registry / (hashlib.sha256(os.fsencode(directory)).hexdigest()[:12] + _SUFFIX)
    for _ in range(_TRIES):
        make_private(registry, passage_mode())
        try:
            lock_fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # An ending cluster has just removed the registry directory.
        except OSError as error:
            raise Unavailable(f"cannot write {path}: {error.strerror}") from error
        try:
            fcntl.flock(lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock_fd)
            raise Conflict(
                f"a development cluster is already running in {directory}; stop it or use another --directory"
            ) from None
        if _is_same(lock_fd, path):
            return path, lock_fd
        os.close(lock_fd)
    raise Conflict(f"cannot lock {path}: other processes keep replacing it; try again")


def release(registry: Path, path: Path, lock_fd: int) -> None:
    """Removes the entry and its lock. An entry that another cluster has created in the meantime stays."""
    if _is_same(lock_fd, path):
        path.unlink(missing_ok=True)
    os.close(lock_fd)
    with contextlib.suppress(OSError):
        registry.rmdir()


def write_entry(lock_fd: int, entry: ClusterEntry) -> None:
    paths = {name: str(getattr(entry, name)) for name in ("directory", "kubeconfig", "kubectl")}
    os.pwrite(lock_fd, json.dumps({**paths, "pid": entry.pid}).encode() + b"\n", 0)


def running_clusters(registry: Path) -> list[ClusterEntry]:
    """The usable clusters: their entries are locked and, since their start has completed, written."""
    found = []
    for path in sorted(registry.glob(f"*{_SUFFIX}")):
        try:
            with path.open("rb") as file:
                if not _is_locked(file.fileno()):
                    continue
                fields = json.loads(file.read(_SIZE_MAX))
        except (OSError, ValueError):
            continue
        found.append(
            ClusterEntry(
                Path(fields["directory"]),
                Path(fields["kubeconfig"]),
                Path(fields["kubectl"]),
                int(fields["pid"]),
            )
        )
    return found


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_same(lock_fd: int, path: Path) -> bool:
    """Whether the path still names the locked file."""
    try:
        return os.path.samestat(os.fstat(lock_fd), path.stat())
    except OSError:
        return False
