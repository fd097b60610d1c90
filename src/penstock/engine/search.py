"""The search for vertices and a start time: walks over the graph, instant by instant.

`Search.select` tries one instant: it walks once per group, each walk sees what the groups before it took, and
the result has all selections or none. Where all slots must be inside one domain, the domains are tried in the
order of the policy.

Resources become free only when a booking ends, so the instants worth trying are the starts and ends of
bookings; `BookingTimes` keeps them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Set
from typing import Final

from penstock.engine.booking import Booker, Claims, Span, claims_of
from penstock.engine.candidates import Selection
from penstock.engine.graph import Graph, Vertex
from penstock.engine.indexed_search import GroupQuery, IndexedSearch, Pattern
from penstock.engine.planner import FOREVER
from penstock.engine.policies import Policy, SearchOrder, Usage
from penstock.engine.prepared_request import KEPT_MAX, PreparedRequest
from penstock.engine.ranking import ranking_of
from penstock.engine.request import SLOT, Demand
from penstock.engine.selected_slots import slots_of
from penstock.engine.vertex_state import TimeView, Window, expected_free_below, free_below
from penstock.engine.walker import Walk
from penstock.engine.wording import flatten

__all__ = ["BookingTimes", "Search"]

_TENTATIVE: Final = -1  # the job number of bookings during a search; no job has it
# No job is booked at a negative time. External usage counts at any time, and so do the tentative bookings of
# a search, which are made in its window.
_WITHOUT_JOBS: Final = Window(-2, -1, -3, TimeView.LATER)


class BookingTimes:
    """The instants at which bookings begin or end, with the number of bookings at each."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._counts: dict[int, int] = {}

    def copy(self) -> BookingTimes:
        other = BookingTimes()
        other._times = list(self._times)
        other._counts = dict(self._counts)
        return other

    def add(self, span: Span) -> None:
        for time in (span.start, span.end):
            if time < FOREVER:
                if time not in self._counts:
                    insort(self._times, time)
                self._counts[time] = self._counts.get(time, 0) + 1

    def remove(self, span: Span) -> None:
        for time in (span.start, span.end):
            if time < FOREVER:
                self._counts[time] -= 1
                if self._counts[time] == 0:
                    del self._counts[time]
                    del self._times[bisect_left(self._times, time)]

    def after(self, now: int) -> list[int]:
        """Instants later than `now`, in order."""
        return self._times[bisect_right(self._times, now) :]


class Search:
    def __init__(
        self,
        graph: Graph,
        policy: Policy,
        order: SearchOrder,
        booker: Booker,
        booking_times: BookingTimes,
        horizon_s: int,
        indexed: IndexedSearch | None,
    ) -> None:
        self._graph = graph
        self._policy = policy
        self._order = order
        self._booker = booker
        self._booking_times = booking_times
        self._horizon_s = horizon_s
        self._indexed = indexed
        # Cost of the last match: vertices entered, and vertices left with a result.
        self._preorder = 0
        self._postorder = 0
        # Answers of `could_ever` by the id of the prepared request, until `forget_ideal`
        self._ever: dict[int, tuple[PreparedRequest, bool]] = {}

    def reset_visits(self) -> None:
        self._preorder = self._postorder = 0
        if self._indexed is not None:
            self._indexed.preorder = self._indexed.postorder = 0

    def visits(self) -> tuple[int, int]:
        """Vertices entered, and vertices left with a result, since `reset_visits`."""
        indexed = self._indexed
        more = (indexed.preorder, indexed.postorder) if indexed is not None else (0, 0)
        return self._preorder + more[0], self._postorder + more[1]

    def window(self, prepared: PreparedRequest, start: int, now: int) -> Window:
        """The time span of a start at this instant, cut at the horizon."""
        duration_s = prepared.request.duration_s
        end = self._horizon_s if duration_s is None else min(start + duration_s, self._horizon_s)
        return Window(start, end, now, TimeView.NOW if start <= now else TimeView.LATER)

    def select(
        self, prepared: PreparedRequest, start: int, now: int, full_nodes: set[int] | None = None
    ) -> tuple[Selection, ...] | None:
        """The selections for a start at this instant; None if it does not fit.

        `full_nodes` has nodes that are known to fit no slot; nodes that are found to fit none are added.
        """
        if start >= self._horizon_s:
            return None
        return self._select(prepared, self.window(prepared, start, now), full_nodes)

    def could_ever(self, prepared: PreparedRequest) -> bool:
        """Whether the walker finds a match when everything is up and free."""
        known = self._ever.get(id(prepared))
        if known is not None:
            return known[1]
        answer = self._select(prepared, Window(0, 1, 0, TimeView.IDEAL)) is not None
        if self._indexed is not None and prepared.is_whole and self._is_order_irrelevant(prepared):
            if len(self._ever) >= KEPT_MAX:
                self._ever.clear()
            self._ever[id(prepared)] = (prepared, answer)
        return answer

    def forget_ideal(self) -> None:
        """Must be called after a change of what resources there are when everything is up and free."""
        self._ever.clear()

    def _is_order_irrelevant(self, prepared: PreparedRequest) -> bool:
        """Whether a walk finds a match in any order of the children, which `first` changes with bookings."""
        if not self._policy.stop_on_first:
            return True
        named = {demand.type for group in prepared.demands for demand in flatten(group)}
        return all(
            vertex.size == 1 and not vertex.divisible
            for name in named
            for vertex in self._graph.each_of_type(name)
        )

    def select_without_jobs(self, prepared: PreparedRequest) -> tuple[Selection, ...] | None:
        """The selections if nothing were booked; what is down or used by others counts as it is."""
        return self._select(prepared, _WITHOUT_JOBS)

    def instants(self, prepared: PreparedRequest, now: int) -> Iterator[int]:
        """Instants after `now` at which the totals at the root suffice."""
        root = self._graph.root
        totals = root.totals or {}
        needs: dict[str, int] = {}
        for group in prepared.demands:
            for demand in group:
                for resource_type, units in (*demand.needs.items(), (demand.type, 1)):
                    if resource_type in totals:
                        needs[resource_type] = needs.get(resource_type, 0) + units * demand.count.min
        times = self._booking_times.after(now)
        if root.state is not None and root.state.live_end_min <= now and (not times or times[0] > now + 1):
            times.insert(0, now + 1)  # An overdue job is expected to end at the next instant.
        duration_s = prepared.request.duration_s
        crowded = _crowded(root, needs, Window(now + 1, now + 2, now, TimeView.LATER))
        where = 0
        for start in self._order.instants(times, root, needs):
            if start >= self._horizon_s:
                return
            end = self._horizon_s if duration_s is None else min(start + duration_s, self._horizon_s)
            while where < len(crowded) and crowded[where][1] <= start:
                where += 1
            if where == len(crowded) or crowded[where][0] >= end:
                yield start

    def _select(
        self, prepared: PreparedRequest, window: Window, full_nodes: set[int] | None = None
    ) -> tuple[Selection, ...] | None:
        within = prepared.request.placement.within
        if prepared.top is not None or not within:
            return self._select_below(prepared, window, prepared.top or self._graph.root, full_nodes)
        for top in self._domains(within, window):
            found = self._select_below(prepared, window, top, full_nodes)
            if found is not None:
                return found
        return None

    def _domains(self, within: str, window: Window) -> list[Vertex]:
        """The vertices of the type `within`, in the order of the policy."""
        tops = self._graph.of_type(within)
        if self._policy.stop_on_first:
            return self._order.ordered(tops, window.now)
        if self._policy.usage is not Usage.IGNORED:
            sign = 1 if self._policy.usage is Usage.PACK else -1
            return sorted(tops, key=lambda top: sign * _free_share(top, window))
        return sorted(tops, key=lambda top: -top.id if self._policy.high_first else top.id)

    def _select_below(
        self, prepared: PreparedRequest, window: Window, top: Vertex, full_nodes: set[int] | None
    ) -> tuple[Selection, ...] | None:
        if len(prepared.demands) == 1:
            found = self._walk(prepared, 0, window, top, prepared.excluded_nodes, full_nodes)
            return (found,) if found is not None else None
        natural = list(range(len(prepared.demands)))
        if window.view is TimeView.IDEAL:
            # Bookings do not count in the ideal view, so each group is matched alone.
            alone = [self._walk(prepared, group, window, top, prepared.excluded_nodes) for group in natural]
            return tuple(s for s in alone if s is not None) if None not in alone else None
        hardest = sorted(
            natural, key=lambda group: -sum(sum(demand.needs.values()) for demand in prepared.demands[group])
        )
        for order in (natural, hardest) if hardest != natural else (natural,):
            selections = self._select_in_order(prepared, order, window, top)
            if selections is not None:
                return selections
        return None

    def _select_in_order(
        self, prepared: PreparedRequest, order: list[int], window: Window, top: Vertex
    ) -> tuple[Selection, ...] | None:
        """Matches the groups one by one, each after booking the ones before it; all or none."""
        selections: dict[int, Selection] = {}
        tried: list[tuple[int, Claims]] = []
        excluded_nodes = prepared.excluded_nodes
        span = Span(window.start, window.end, live=window.view is TimeView.NOW)
        try:
            for group in order:
                selection = self._walk(prepared, group, window, top, excluded_nodes)
                if selection is None:
                    return None
                selections[group] = selection
                slots = slots_of([selection], [prepared.request.groups[group]])
                if prepared.request.placement.distinct_nodes:
                    used = {slot.node.index for slot in slots if slot.node is not None}
                    excluded_nodes = excluded_nodes | used  # The set of the caller stays as it is.
                claims = claims_of([selection], self._policy.node_exclusive)
                self._booker.book((_TENTATIVE, group), claims, span, slots)
                tried.append((group, claims))
        finally:
            for group, claims in reversed(tried):
                self._booker.unbook((_TENTATIVE, group), claims)
        return tuple(selections[group] for group in sorted(selections))

    def _walk(
        self,
        prepared: PreparedRequest,
        group: int,
        window: Window,
        top: Vertex,
        excluded_nodes: Set[int],
        full_nodes: set[int] | None = None,
    ) -> Selection | None:
        query = self._query(prepared, group, window, top, excluded_nodes)
        pattern = self._pattern(query)
        if pattern is not None and self._indexed is not None:
            found = self._indexed.select(query, pattern)
            return found if found is None or not self._policy.node_exclusive else self._with_node(found)
        walk = Walk(
            self._graph,
            self._policy,
            self._order,
            window,
            query.demands,
            query.constraint,
            query.exclusion,
            excluded_nodes,
            full_nodes if _is_slots_alone(query.demands) else None,
            query.ranking,
        )
        found = walk.select(top)
        self._preorder += walk.preorder
        self._postorder += walk.postorder
        return found if found is None or not self._policy.node_exclusive else self._with_node(found)

    def _with_node(self, found: Selection) -> Selection | None:
        """With whole nodes a request needs no slot, but it must contain a node."""
        if found.blocks:
            return found
        held = any(claim.booked for claim in claims_of([found], True).values())
        return found if held else None

    def _query(
        self,
        prepared: PreparedRequest,
        group: int,
        window: Window,
        top: Vertex,
        excluded_nodes: Set[int],
    ) -> GroupQuery:
        request = prepared.request
        constraint, prefers = request.groups[group].constraint, request.groups[group].prefers
        return GroupQuery(
            prepared.demands[group],
            constraint,
            prepared.exclusions[group],
            window,
            top,
            excluded_nodes,
            prefers,
            request.order,
            prepared.own_slots,
            ranking_of(prefers, request.order, prepared.own_slots, self._policy),
            is_alone=len(request.groups) == 1 and not request.groups[0].brings,
        )

    def _pattern(self, query: GroupQuery) -> Pattern | None:
        """The form in which the index answers a query; None if the walker must."""
        if self._indexed is None:
            return None
        pattern = self._indexed.pattern(query.demands, self._booker.tracked, query.window)
        if pattern is None:
            self._indexed.passed_on += 1
        else:
            self._indexed.answered += 1
        return pattern


def _crowded(root: Vertex, needs: dict[str, int], window: Window) -> list[tuple[int, int]]:
    """The spans, in order and apart, during which too little of some type is free below the root."""
    spans: list[tuple[int, int]] = []
    for resource_type, units in needs.items():
        planner = root.state.below.get(resource_type) if root.state is not None else None
        most = free_below(root, resource_type, window) - units  # that may be booked
        if planner is not None:
            most += planner.booked_most(window.start, window.end)
        if most < 0:
            return [(-FOREVER, FOREVER)]
        if planner is not None:
            spans += planner.spans_above(most)
    spans.sort()
    merged: list[tuple[int, int]] = []
    for start, end in spans:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def _is_slots_alone(demands: tuple[Demand, ...]) -> bool:
    return len(demands) == 1 and demands[0].type == SLOT


def _free_share(top: Vertex, window: Window) -> int:
    """The free part of a domain, as a sum of fractions: bytes and cores cannot be added."""
    totals = {resource_type: total for resource_type, total in (top.totals or {}).items() if total > 0}
    return sum(
        expected_free_below(top, resource_type, window) * 1_000_000 // total
        for resource_type, total in totals.items()
    )
