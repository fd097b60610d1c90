"""When which nodes are busy: a step function over time whose values are sets of nodes.

"Idle from `start` to `end`" is the complement of the union of some steps. The union of a hundred sets of a
thousand nodes takes a few microseconds, so that the search for a start in the future need not read the plan
of every node at every instant.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from penstock.engine.planner import FOREVER, Planner

__all__ = ["BusyTimes"]

_Spans = tuple[tuple[int, int], ...]


class BusyTimes:
    __slots__ = ("_pending", "_sets", "_spans", "_times")

    def __init__(self) -> None:
        self._times: list[int] = []  # of the steps; nothing is busy before the first
        self._sets: list[int] = []
        self._spans: dict[int, _Spans] = {}  # by node
        self._pending: dict[tuple[int, int], int] = {}  # nodes to flip in a span, until somebody asks

    def put(self, node: int, presence: Planner | None) -> None:
        """Sets when a node is busy: while its planner has bookings. None: never."""
        before = self._spans.get(node, ())
        spans = _spans_of(presence) if presence is not None else ()
        if spans == before:
            return
        for span in set(before).symmetric_difference(spans):
            self._pending[span] = self._pending.get(span, 0) ^ 1 << node
        if spans:
            self._spans[node] = spans
        else:
            del self._spans[node]

    def during(self, start: int, end: int) -> int:
        """The nodes that are busy at some instant of [start, end)."""
        if self._pending:
            for (first, last), nodes in self._pending.items():
                if nodes:
                    self._flip(first, last, nodes)
            self._pending.clear()
        nodes = 0
        first_step = max(bisect_right(self._times, start) - 1, 0)
        for members in self._sets[first_step : bisect_left(self._times, end)]:
            nodes |= members
        return nodes

    def _flip(self, start: int, end: int, nodes: int) -> None:
        first = self._step(start)
        last = self._step(end) if end < FOREVER else len(self._times)
        sets = self._sets
        for place in range(first, last):
            sets[place] ^= nodes
        for place in (last, first):
            if place < len(sets) and sets[place] == (sets[place - 1] if place > 0 else 0):
                del sets[place]
                del self._times[place]

    def _step(self, at: int) -> int:
        place = bisect_left(self._times, at)
        if place == len(self._times) or self._times[place] != at:
            self._times.insert(place, at)
            self._sets.insert(place, self._sets[place - 1] if place > 0 else 0)
        return place


def _spans_of(presence: Planner) -> _Spans:
    """The spans during which something is booked; neighbours are one span."""
    spans: list[tuple[int, int]] = []
    begin = -1
    for time, level in presence.changes():
        if level > 0 and begin < 0:
            begin = time
        elif level <= 0 and begin >= 0:
            spans.append((begin, time))
            begin = -1
    if begin >= 0:
        spans.append((begin, FOREVER))
    return tuple(spans)
