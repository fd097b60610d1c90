"""Processes as the kernel tells of them: who descends from whom, who carries a token, who is still the same.

A pid is never trusted alone: a process is held by a pidfd, and what made us choose it is checked again after
that. The kernel's `children` file is not built in everywhere, so parents are read from every `stat`.
"""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress
from typing import Final

__all__ = [
    "TOKEN_VARIABLE",
    "bearers",
    "children_of",
    "descendants_of",
    "die_with_parent",
    "hold",
    "kill_bearers",
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
    """Descendants whose parent dies become children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int) -> None:
    """This process is killed when its parent dies, also if that has happened just before."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _stat_fields(pid: int | str) -> list[bytes] | None:
    """The fields of a process after its name; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def start_ticks(pid: int) -> int | None:
    """When a process began, in the kernel's count; None if it is gone."""
    fields = _stat_fields(pid)
    return int(fields[19]) if fields else None


def hold(pid: int, ticks: int) -> int | None:
    """A pidfd of exactly that process; None if it is gone."""
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


def descendants_of(pid: int, but: int = 0) -> set[int]:
    """All below a process, without `but` and what is below that."""
    by_parent = _by_parent()
    found: set[int] = set()
    left = [pid]
    while left:
        for child in by_parent.get(left.pop(), ()):
            if child not in found and child != but:
                found.add(child)
                left.append(child)
    return found


def _bears(pid: int | str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read()
    except OSError:  # it is gone, or another user's and so not ours
        return False


def bearers(token: str) -> list[int]:
    """The processes that have the token in their environment."""
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    return [int(name) for name in _pids() if _bears(name, mark)]


def kill_bearers(token: str) -> int:
    """Kills every process with the token; returns how many there were. None: all of them are gone."""
    mark = f"{TOKEN_VARIABLE}={token}".encode()
    found = 0
    for pid in bearers(token):
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if _bears(pid, mark):
                found += 1
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, signal.SIGKILL)
        finally:
            os.close(fd)
    return found
