"""What processes use, from /proc: CPU seconds, memory, and what the rest of the machine did meanwhile."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["Meter", "Reading", "Spent", "memory_mb", "spent_between"]

_TICK_S: Final = 1.0 / os.sysconf("SC_CLK_TCK")
_CORES: Final = os.cpu_count() or 1
_PARENT, _CPU = 1, slice(11, 15)  # fields after the name: utime, stime, and those of children that have ended
_IDLE: Final = (3, 4)  # idle, iowait
_GUESTS_FROM: Final = 8  # what virtual machines use is in the user's time already


@dataclass(frozen=True, slots=True)
class Reading:
    at_s: float
    cpu_s: Mapping[str, float]  # by what was asked for
    ours_s: float  # of all processes that belong to this measurement
    busy_s: float  # of the whole machine


@dataclass(frozen=True, slots=True)
class Spent:
    """Between two readings."""

    wall_s: float
    cpu_s: dict[str, float]
    others: float  # the share of the machine that processes of others took


class Meter:
    """Reads named processes, each with its children. Other processes that are ours have no name."""

    def __init__(self, named: Mapping[str, int]) -> None:
        self._named = dict(named)

    def read(self) -> Reading:
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
        return Reading(time.monotonic(), cpu_s, ours_s, _busy_s())


def spent_between(before: Reading, after: Reading) -> Spent:
    wall_s = after.at_s - before.at_s
    cpu_s = {name: max(after.cpu_s[name] - before.cpu_s.get(name, 0.0), 0.0) for name in after.cpu_s}
    others_s = (after.busy_s - before.busy_s) - (after.ours_s - before.ours_s)
    return Spent(wall_s, cpu_s, min(max(others_s / (wall_s * _CORES), 0.0), 1.0) if wall_s > 0 else 0.0)


def memory_mb(pid: int, field: str = "VmRSS") -> float:
    """What a process has in memory now, or (`VmHWM`) had at most."""
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
        except OSError:  # It has just ended.
            continue
        fields = text.rpartition(")")[2].split()  # A name may have spaces and brackets.
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
    return sum(ticks for place, ticks in enumerate(fields[:_GUESTS_FROM]) if place not in _IDLE) * _TICK_S
