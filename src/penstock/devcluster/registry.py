"""Which development clusters run: one small file for each, locked as long as the cluster is there.

The files lie beside the user's state directory, not in it, because an instance takes no directory that holds
something else. The lock is inherited by the cluster's guardian, so it ends when everything else is removed,
and a file whose lock is free belongs to nobody: it was left by a machine that went down.
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
from penstock.paths import make_private, paths_of, private_mode

__all__ = ["CLUSTER", "PENSTOCK", "ClusterEntry", "claim", "home_of", "release", "running", "write"]

CLUSTER: Final = "cluster"  # in the home: the cluster that has no directory of its own
PENSTOCK: Final = "penstock"  # in a cluster's directory: the state of the Penstock in it
_HOME_SUFFIX: Final = "-dev"
_SUFFIX: Final = ".cluster.json"
_TRIES: Final = 20
_SIZE_MAX: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """What another command needs to know of a running cluster."""

    directory: Path
    kubeconfig: Path
    kubectl: Path
    pid: int


def home_of(environ: Mapping[str, str]) -> Path:
    """Where the files are, and the cluster that has no directory of its own. Makes nothing.

    Whoever has taken over the state directory of the Penstock in that cluster, as they are told to, means it.
    """
    state = paths_of(None, environ).state
    home = state.parent.parent
    if home.name.endswith(_HOME_SUFFIX) and state == home / CLUSTER / PENSTOCK:
        return home
    return state.with_name(state.name + _HOME_SUFFIX)


def claim(home: Path, directory: Path) -> tuple[Path, int]:
    """The file of the cluster in a directory, and the descriptor that holds its lock."""
    path = home / (hashlib.sha256(os.fsencode(directory)).hexdigest()[:12] + _SUFFIX)
    for _ in range(_TRIES):
        make_private(home, private_mode())
        try:
            held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            continue  # the cluster that was here before has just removed the directory
        except OSError as error:
            raise Unavailable(f"cannot write {path}: {error.strerror}") from error
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise Conflict(
                f"a development cluster runs in {directory} already; stop it, or name another --directory"
            ) from None
        if _is_same(held, path):
            return path, held
        os.close(held)
    raise Conflict(f"{path} changes all the time; try again")


def release(home: Path, path: Path, held: int) -> None:
    """Gives a claim back. What the guardian has removed already, and somebody else has made since, stays."""
    if _is_same(held, path):
        path.unlink(missing_ok=True)
    os.close(held)
    with contextlib.suppress(OSError):
        home.rmdir()


def write(held: int, pointer: ClusterEntry) -> None:
    told = {name: str(getattr(pointer, name)) for name in ("directory", "kubeconfig", "kubectl")}
    os.pwrite(held, json.dumps({**told, "pid": pointer.pid}).encode() + b"\n", 0)


def running(home: Path) -> list[ClusterEntry]:
    """The clusters that can be used: locked, and started so far that they have told where they are."""
    found = []
    for path in sorted(home.glob(f"*{_SUFFIX}")):
        try:
            with path.open("rb") as file:
                if not _is_locked(file.fileno()):
                    continue
                told = json.loads(file.read(_SIZE_MAX))
        except (OSError, ValueError):
            continue
        found.append(
            ClusterEntry(
                Path(told["directory"]), Path(told["kubeconfig"]), Path(told["kubectl"]), int(told["pid"])
            )
        )
    return found


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _is_same(held: int, path: Path) -> bool:
    """Whether the locked file is still the one with that name."""
    try:
        return os.path.samestat(os.fstat(held), path.stat())
    except OSError:
        return False
