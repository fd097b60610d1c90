"""The order in which Fluxion searches, which depends on earlier matches; the engine's own order does not.

Under `first`, Fluxion stores a weight at every edge: unlimited at first, and after every match through that
edge the free units of the child's last filter type. A cancel does not update the weight. The order in which
children are visited therefore depends on earlier matches even after all of them are cancelled.

While it looks for a start time, Fluxion stores for every instant at which a booking begins or ends how much
of the root's first filter type is free at that instant, and updates the number only where a booking is made
or cancelled. After resources are attached, an instant keeps its old number until a booking covers it.

Scripts written for Fluxion depend on the results of both, so `resource-query` reproduces them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from penstock.engine.allocation import Allocation
from penstock.engine.graph import Vertex
from penstock.engine.vertex_state import TimeView, Window, free_below
from penstock.fluxion.sort import keeps_ties, lowest, ranking

__all__ = ["FluxionOrder"]

_UNLIMITED: Final = 1 << 62


class FluxionOrder:
    """A `SearchOrder` with Fluxion's edge weights (keyed by the child) and its stale free counts."""

    is_stable = False

    def __init__(self, *, is_weighed: bool = True) -> None:
        self._is_weighed = is_weighed  # False: the policy does not visit children by weight
        self.reweighted: set[int] = set()
        self._weights: dict[int, int] = {}
        self._uncounted: dict[int, int] = {}  # by instant: units added to the root that Fluxion ignores there
        self._tried: set[int] = set()  # instants of the last search; the next search counts them again

    def copy(self) -> FluxionOrder:
        other = FluxionOrder(is_weighed=self._is_weighed)
        other._weights = dict(self._weights)
        other._uncounted = dict(self._uncounted)
        other._tried = set(self._tried)
        return other  # An index of the copy counts all weights when it is first used.

    def ordered(self, children: Iterable[Vertex], now: int) -> list[Vertex]:  # noqa: ARG002 (weights are stored)
        weights = self._weights
        return sorted(
            children, key=lambda child: (weights.get(child.index, _UNLIMITED), child.uniq_id), reverse=True
        )

    def weight(self, child: Vertex, now: int) -> int:  # noqa: ARG002 (weights are stored)
        return self._weights.get(child.index, _UNLIMITED)

    def _set_weight(self, vertex: Vertex, weight: int) -> None:
        self._weights[vertex.index] = weight
        self.reweighted.add(vertex.index)

    def instants(self, times: list[int], root: Vertex, needs: dict[str, int]) -> Iterator[int]:
        for time in self._tried:
            self._uncounted.pop(time, None)
        self._tried = set()
        first = next(iter(root.totals or ()), "")
        planner = root.state.below.get(first) if root.state is not None else None
        idle = free_below(root, first, Window(0, 1, -1, TimeView.LATER))
        idle += planner.booked_at(0) if planner is not None else 0
        changes = list(planner.changes()) if planner is not None else []
        booked, where, needed = 0, 0, needs.get(first, 0)
        for time in times:
            while where < len(changes) and changes[where][0] <= time:
                booked = changes[where][1]
                where += 1
            if idle - booked - self._uncounted.get(time, 0) >= needed:
                self._tried.add(time)
                yield time

    def ranking(self, keys: list[int]) -> list[int]:
        return ranking(keys)

    def keeps_ties(self, count: int) -> bool:
        return keeps_ties(count)

    def lowest(self, keys: list[int], count: int) -> list[int]:
        return lowest(keys, count)

    def note_span(self, start: int, end: int) -> None:
        """Marks the instants within a booking that was made or cancelled as counted again."""
        self._tried = set()
        for time in [time for time in self._uncounted if start <= time < end]:
            del self._uncounted[time]

    def note_growth(self, units: int, times: list[int]) -> None:
        """Records that the root's first filter type grew by `units` (negative: shrank)."""
        for time in times:
            if time not in self._tried:
                self._uncounted[time] = self._uncounted.get(time, 0) + units

    def note_update(self, allocation: Allocation) -> None:
        """Sets the weights along a re-applied set to 0: Fluxion queries them at an invalid time."""
        for pick in allocation.picks:
            if pick.vertex.totals:
                self._set_weight(pick.vertex, 0)

    def note(self, allocation: Allocation, now: int) -> None:
        """Updates the weight of every edge that an allocation passes through."""
        if not self._is_weighed:
            return
        if not allocation.blocks:
            for pick in allocation.picks:
                self._note_vertex(pick.vertex, now)
            return
        above: dict[int, Vertex] = {}
        for block in allocation.blocks:
            node = block.node
            self._note_vertex(node, now)
            for position, vertex in block.fit.weighed(block.members):
                self._note_inner(node, position, vertex, now)
            parent = node.parent()
            if parent is not None and parent.index not in above:
                above.update((vertex.index, vertex) for vertex in node.ancestors())
        for vertex in above.values():
            self._note_vertex(vertex, now)

    def _note_vertex(self, vertex: Vertex, now: int) -> None:
        if not vertex.totals:
            return
        last = next(reversed(vertex.totals))
        free = free_below(vertex, last, Window(now, now + 1, now, TimeView.LATER))
        state = vertex.state
        if free != 0 or (state is not None and any(b.below for b in state.bookings.values())):
            self._set_weight(vertex, free)

    def _note_inner(self, node: Vertex, position: int, vertex: Vertex, now: int) -> None:
        """As `_note_vertex` for a vertex in a node, without making its deferred bookings if that is all."""
        deferred = node.deferred
        if deferred is None or vertex.has_own_state or not vertex.totals:
            self._note_vertex(vertex, now)
            return
        last = next(reversed(vertex.totals))
        free = vertex.totals[last] - deferred.booked_below(position, last, now)
        if free != 0 or deferred.has_below(position):
            self._set_weight(vertex, free)
