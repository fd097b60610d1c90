"""Processes in /proc: descendants, processes with a token in their environment, and protection against pid
reuse.

A pid alone is never trusted: the code opens a pidfd and then checks again the property that selected the
process. The `children` file of the kernel is a build option, so parents are read from every `stat` file.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from typing import Final

__all__ = [
    "TOKEN_VARIABLE",
    "children_of",
    "descendants_of",
    "die_with_parent",
    "kill_processes_with_token",
    "open_pidfd",
    "processes_with_token",
    "set_subreaper",
    "start_ticks",
]

TOKEN_VARIABLE: Final = "PENSTOCK_TASK_TOKEN"

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def set_subreaper() -> None:
    """Makes this process the parent of descendants whose parent dies."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies; exits if the parent is already dead."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _stat_fields(pid: int | str) -> list[bytes] | None:
    """Returns the fields of `stat` that follow the command name; None if the process does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def start_ticks(pid: int) -> int | None:
    """Returns the start time of a process in kernel ticks; None if it does not exist."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def open_pidfd(pid: int, ticks: int) -> int | None:
    """Opens a pidfd for the process with this pid and start time; None if it does not exist."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    if start_ticks(pid) == ticks:
        return fd
    os.close(fd)
    return None


def _pids() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]


def _by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in _pids():
        fields = _stat_fields(name)
        if fields:
            found.setdefault(int(fields[1]), []).append(int(name))
    return found


def children_of(pid: int) -> list[int]:
    return _by_parent().get(pid, [])


def descendants_of(pid: int, exclude: int = 0) -> set[int]:
    """Returns all descendants of a process, without the process `exclude` and its descendants."""
    by_parent = _by_parent()
    found: set[int] = set()
    to_visit = [pid]
    while to_visit:
        for child in by_parent.get(to_visit.pop(), ()):
            if child not in found and child != exclude:
                found.add(child)
                to_visit.append(child)
    return found


def _has_token(pid: int | str, variable: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return variable in file.read()
    except OSError:  # the process is gone, or belongs to another user and so to no task
        return False


def processes_with_token(token: str) -> list[int]:
    """Returns the pids of the processes with the token in their environment."""
    variable = f"{TOKEN_VARIABLE}={token}".encode()
    return [int(name) for name in _pids() if _has_token(name, variable)]


def kill_processes_with_token(token: str) -> int:
    """Kills every process with the token; returns how many there were. 0: all are gone."""
    variable = f"{TOKEN_VARIABLE}={token}".encode()
    killed = 0
    for pid in processes_with_token(token):
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if _has_token(pid, variable):
                killed += 1
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
    return killed
