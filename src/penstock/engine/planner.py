"""Booked units of one resource over integer time.

The bookings are kept as one step function: from `_times[i]` until the next time `_levels[i]` units are
booked, and 0 before the first time. Two neighbours never have the same level, so equal bookings give equal
planners independent of the order in which they were added and removed: adding and removing a span is the
identity, to the bit.

Spans are half-open: [start, end) is free again at `end`. `FOREVER` stands for no end.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from penstock.errors import Corrupt

__all__ = ["FOREVER", "Planner"]

FOREVER: Final = 1 << 62


class Planner:
    """A step function of booked units. It has no capacity of its own."""

    __slots__ = ("_levels", "_times")

    def __init__(self) -> None:
        self._times: list[int] = []
        self._levels: list[int] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Planner) and self._times == other._times and self._levels == other._levels

    def __hash__(self) -> int:
        raise TypeError("a planner is mutable and has no hash")

    def copy(self) -> Planner:
        other = Planner.__new__(Planner)
        other._times = self._times.copy()
        other._levels = self._levels.copy()
        return other

    def is_empty(self) -> bool:
        return not self._times

    def add(self, start: int, end: int, units: int) -> None:
        """Books `units` over [start, end)."""
        if units != 0 and start < end:
            self._shift(start, end, units)

    def remove(self, start: int, end: int, units: int) -> None:
        """Undoes an `add` with the same arguments."""
        if units != 0 and start < end:
            self._shift(start, end, -units)

    def booked_at(self, at: int) -> int:
        where = bisect_right(self._times, at) - 1
        return self._levels[where] if where >= 0 else 0

    def booked_most(self, start: int, end: int) -> int:
        """The most units booked at any instant of [start, end)."""
        times = self._times
        if not times:
            return 0
        first = bisect_right(times, start) - 1
        last = bisect_left(times, end)
        most = max(self._levels[max(first, 0) : last], default=0)
        return most if first >= 0 else max(most, 0)

    def next_change(self, after: int) -> int | None:
        """The first time later than `after` at which the number of booked units changes."""
        where = bisect_right(self._times, after)
        return self._times[where] if where < len(self._times) else None

    def changes(self) -> Iterator[tuple[int, int]]:
        """Every (time, units) at which the number of booked units changes, in order."""
        return zip(self._times, self._levels, strict=True)

    def spans_above(self, units: int) -> list[tuple[int, int]]:
        """The spans, in order, during which more than these units (0 or more) are booked."""
        spans: list[tuple[int, int]] = []
        times, begin = self._times, -1
        for where, level in enumerate(self._levels):
            if level > units:
                if begin < 0:
                    begin = times[where]
            elif begin >= 0:
                spans.append((begin, times[where]))
                begin = -1
        if begin >= 0:
            spans.append((begin, FOREVER))
        return spans

    def earliest(self, capacity: int, units: int, duration: int, not_before: int) -> int | None:
        """The first instant from which `units` more fit into `capacity` for `duration`, if any."""
        if units > capacity:
            return None
        times, levels = self._times, self._levels
        start = not_before
        for where in range(max(bisect_right(times, start) - 1, 0), len(times)):
            if times[where] >= start + duration:
                break
            if levels[where] + units > capacity:
                if where + 1 == len(times):
                    return None
                start = max(start, times[where + 1])
        return start

    def _shift(self, start: int, end: int, units: int) -> None:
        first = self._point(start)
        last = self._point(end) if end < FOREVER else len(self._times)
        levels = self._levels
        for where in range(first, last):
            levels[where] += units
        # Only the two borders can have become equal to the level before them.
        for where in (last, first):
            if where < len(levels) and levels[where] == (levels[where - 1] if where > 0 else 0):
                del levels[where]
                del self._times[where]

    def _point(self, at: int) -> int:
        """The position of the step at `at`; inserts one if there is none."""
        where = bisect_left(self._times, at)
        if where == len(self._times) or self._times[where] != at:
            self._times.insert(where, at)
            self._levels.insert(where, self._levels[where - 1] if where > 0 else 0)
        return where

    def check(self) -> None:
        """Raises if the step function is not canonical."""
        before = 0
        for where, level in enumerate(self._levels):
            if level == before or (where and self._times[where] <= self._times[where - 1]):
                raise Corrupt(f"planner is not canonical at {self._times[where]}")
            before = level
