"""CPU time and memory of processes, from /proc, and the CPU share that unrelated processes used meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Meter", "UsageDelta", "UsageReading", "memory_mb", "usage_between"]

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_CORES: Final = os.cpu_count() or 1
_PARENT, _CPU = 1, slice(11, 15)  # fields after the name; CPU: utime, stime and those of exited children
_IDLE: Final = (3, 4)  # idle, iowait
_GUESTS_FROM: Final = 8  # guest time is already included in user time


@dataclass(frozen=True, slots=True)
class UsageReading:
    at_s: float
    cpu_s: Mapping[str, float]  # by process name
    ours_s: float  # CPU time of all processes that belong to this measurement
    busy_s: float  # CPU time of the whole machine


@dataclass(frozen=True, slots=True)
class UsageDelta:
    """The usage between two readings."""

    wall_s: float
    cpu_s: dict[str, float]
    foreign_share: float  # the share of the machine's CPU time that unrelated processes used


class Meter:
    """Reads the CPU time of named processes with their descendants, and of the whole benchmark."""

    def __init__(self, named: Mapping[str, int]) -> None:
        self._named = dict(named)

    def read(self) -> UsageReading:
        table = _table()
        children: dict[int, list[int]] = {}
        for pid, (parent, _) in table.items():
            children.setdefault(parent, []).append(pid)
        cpu_s = {
            name: sum(table[pid][1] for pid in _tree(children, (root,)) if pid in table)
            for name, root in self._named.items()
        }
        ours = _tree(children, (os.getpid(), *self._named.values()))
        ours_s = sum(table[pid][1] for pid in ours if pid in table)
        return UsageReading(time.monotonic(), cpu_s, ours_s, _busy_s())


def usage_between(before: UsageReading, after: UsageReading) -> UsageDelta:
    wall_s = after.at_s - before.at_s
    cpu_s = {name: max(after.cpu_s[name] - before.cpu_s.get(name, 0.0), 0.0) for name in after.cpu_s}
    foreign_s = (after.busy_s - before.busy_s) - (after.ours_s - before.ours_s)
    return UsageDelta(wall_s, cpu_s, min(max(foreign_s / (wall_s * _CORES), 0.0), 1.0) if wall_s > 0 else 0.0)


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """The resident memory of a process, or with `VmHWM` its peak."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) / 1024
    return 0.0


def _table() -> dict[int, tuple[int, float]]:
    """Parent and CPU seconds of every process."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            text = Path(f"/proc/{entry}/stat").read_text("utf-8", "replace")
        except OSError:  # The process has just exited.
            continue
        fields = text.rpartition(")")[2].split()  # The name may contain spaces and parentheses.
        found[int(entry)] = (int(fields[_PARENT]), sum(map(int, fields[_CPU])) * _TICK_S)
    return found


def _tree(children: Mapping[int, list[int]], roots: Iterable[int]) -> set[int]:
    found: set[int] = set()
    left = list(roots)
    while left:
        pid = left.pop()
        if pid not in found:
            found.add(pid)
            left.extend(children.get(pid, ()))
    return found


def _busy_s() -> float:
    with open("/proc/stat", encoding="ascii") as file:
        fields = [int(field) for field in file.readline().split()[1:]]
    return sum(ticks for index, ticks in enumerate(fields[:_GUESTS_FROM]) if index not in _IDLE) * _TICK_S
