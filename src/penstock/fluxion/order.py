"""What Fluxion remembers, and our engine does not.

Under `first` it keeps a weight at every edge: endless at the start, and after every match that went
through it the units of the child's last filter type that are free at this moment. A cancel does not
touch it, so the order in which children are looked at depends on what was placed before, even when
all of it is gone.

In its search for a start it keeps, for every instant at which something begins or ends, how much of
the root's first filter type is free then, and brings that up to date only where a booking is made
or cancelled. When resources are attached, an instant that nothing was booked across since is taken
for as poor as it was.

Scripts written for Fluxion see the results of both, so this face keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from penstock.engine.allocation import Allocation
from penstock.engine.graph import Vertex
from penstock.engine.vertex_state import TimeView, Window, free_below
from penstock.fluxion.sort import ranking

__all__ = ["RememberedOrder"]

_ENDLESS: Final = 1 << 62


class RememberedOrder:
    """The weights of all edges, by the child they lead to; and what is not known yet of instants."""

    is_stable = False

    def __init__(self) -> None:
        self._weights: dict[int, int] = {}
        self._unseen: dict[int, int] = {}  # units at the root that came after an instant was looked at
        self._tried: set[int] = set()  # instants of the last search; looked at afresh in the next

    def ordered(self, children: list[Vertex], now: int) -> list[Vertex]:  # noqa: ARG002 (a memory needs no clock)
        weights = self._weights
        return sorted(
            children, key=lambda child: (weights.get(child.index, _ENDLESS), child.uniq_id), reverse=True
        )

    def instants(self, times: list[int], root: Vertex, needs: dict[str, int]) -> Iterator[int]:
        for time in self._tried:
            self._unseen.pop(time, None)
        self._tried = set()
        first = next(iter(root.totals or ()), "")
        for time in times:
            free = free_below(root, first, Window(time, time + 1, time - 1, TimeView.LATER))
            if free - self._unseen.get(time, 0) >= needs.get(first, 0):
                self._tried.add(time)
                yield time

    def ranking(self, keys: list[int]) -> list[int]:
        return ranking(keys)

    def note_span(self, start: int, end: int) -> None:
        """A booking was made or cancelled: what lies within is known again."""
        self._tried = set()
        for time in [time for time in self._unseen if start <= time < end]:
            del self._unseen[time]

    def note_growth(self, units: int, times: list[int]) -> None:
        """The root has more of its first filter type (or less) than before."""
        for time in times:
            if time not in self._tried:
                self._unseen[time] = self._unseen.get(time, 0) + units

    def note_update(self, allocation: Allocation) -> None:
        """A set that was re-applied leaves no weight at all behind: Fluxion asks at no valid time."""
        for pick in allocation.picks:
            if pick.vertex.totals:
                self._weights[pick.vertex.index] = 0

    def note(self, allocation: Allocation, now: int) -> None:
        """Renews the weights of every edge that an allocation goes through."""
        window = Window(now, now + 1, now, TimeView.LATER)
        for pick in allocation.picks:
            vertex = pick.vertex
            if not vertex.totals:
                continue
            last = next(reversed(vertex.totals))
            free = free_below(vertex, last, window)
            has_spans = vertex.state is not None and any(b.below for b in vertex.state.bookings.values())
            if free != 0 or has_spans:
                self._weights[vertex.index] = free
