"""The one interface of the matcher: match, release, change, explain.

An `Engine` owns a graph and everything that is booked on it. Callers name jobs by number and give
the time of every question; the engine knows no clock and chooses every vertex. The walker behind
it is the exact one; an index may be put before it later, and no caller would notice.

Times are integer seconds. A reservation may start at the end of any booking (and never between),
so the instants worth trying are the starts and ends of what is booked, kept in `_Events`.
"""

from __future__ import annotations

import enum
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from penstock.engine.allocation import Allocation, Answer, Kind, Never, NotNow, Reason, Satisfiable, Slot
from penstock.engine.booking import Ledger, Mark, Marks, Span, marks_of, picks_of, slots_of
from penstock.engine.explain import Explainer
from penstock.engine.filters import DEFAULT_FILTERS, Filters
from penstock.engine.graph import Graph, Vertex
from penstock.engine.holds import Holds
from penstock.engine.planner import FOREVER
from penstock.engine.policies import DerivedOrder, Policy, SearchOrder, Usage, parse_policy
from penstock.engine.relaxation import cannot_ever_fit
from penstock.engine.request import Placement, Request, Want, compile_wants
from penstock.engine.state import Sight, Window, free_below
from penstock.engine.walker import NODE, Selection, Walk
from penstock.errors import BadRequest, Conflict

__all__ = ["BadTime", "Engine", "MatchOp", "UnknownJob"]


class BadTime(BadRequest):
    """A time that does not fit: negative, or beyond the horizon."""


class UnknownJob(Conflict):
    """No job of this number holds anything."""

    def __init__(self, job: int) -> None:
        super().__init__(f"job {job} holds nothing here")
        self.job = job


class MatchOp(enum.Enum):
    ALLOCATE = "allocate"
    ALLOCATE_WITH_SATISFIABILITY = "allocate_with_satisfiability"
    ALLOCATE_ORELSE_RESERVE = "allocate_orelse_reserve"
    SATISFIABILITY = "satisfiability"
    WITHOUT_ALLOCATING = "without_allocating"
    WITHOUT_ALLOCATING_FUTURE = "without_allocating_future"


_MAY_WAIT = frozenset({MatchOp.ALLOCATE_ORELSE_RESERVE, MatchOp.WITHOUT_ALLOCATING_FUTURE})
_BOOKS_NOTHING = frozenset({MatchOp.WITHOUT_ALLOCATING, MatchOp.WITHOUT_ALLOCATING_FUTURE})


@dataclass(frozen=True, slots=True)
class Part:
    """What was booked at once for a job: with its first match, or with an extension."""

    marks: Marks
    span: Span
    slots: tuple[Slot, ...]


@dataclass(slots=True)
class Job:
    number: int
    kind: Kind
    placement: Placement
    top: Vertex  # everything lies below it: the root, or the domain that was chosen
    parts: dict[int, Part]
    parts_made: int = 1

    def marks(self) -> Marks:
        """All parts as one; pools that several parts share are added up."""
        union: Marks = {}
        for part in self.parts.values():
            for index, mark in part.marks.items():
                before = union.get(index)
                if before is not None and mark.booked and before.booked:
                    mark = replace(mark, units=mark.units + before.units)
                if before is None or mark.booked:
                    union[index] = mark
        return union

    def nodes(self) -> frozenset[int]:
        nodes: set[int] = set()
        for part in self.parts.values():
            for slot in part.slots:
                if slot.node is not None:
                    nodes.add(slot.node.index)
        return frozenset(nodes)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A request made ready: the wants of every group, and the types that are taken whole."""

    request: Request
    wants: tuple[tuple[Want, ...], ...]
    whole_types: frozenset[str]


class _Events:
    """The instants at which something begins or ends, each with how often."""

    def __init__(self) -> None:
        self._times: list[int] = []
        self._counts: dict[int, int] = {}

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


class Engine:
    def __init__(
        self,
        graph: Graph,
        policy: Policy | str = "first",
        filters: str = DEFAULT_FILTERS,
        order: SearchOrder | None = None,
        horizon_s: int | None = None,
    ) -> None:
        self.graph = graph
        self.policy = parse_policy(policy) if isinstance(policy, str) else policy
        self.filters = Filters(filters)
        self.filters.prime(graph)
        self.horizon_s = horizon_s if horizon_s is not None else FOREVER
        self.jobs: dict[int, Job] = {}
        self.holds = Holds(graph)
        # What the last question took: vertices entered, and left with a result.
        self.preorder = 0
        self.postorder = 0
        self._order: SearchOrder = order if order is not None else DerivedOrder()
        self._ledger = Ledger(self.filters.tracked)
        self._events = _Events()

    # Matching

    def match(
        self, job: int, request: Request, now: int, op: MatchOp = MatchOp.ALLOCATE, *, explain: bool = True
    ) -> Answer:
        """Tries to place a request. Only an `Allocation` that is not `MATCHED` changes anything.

        With `explain=False` a refusal names no steps, no blockers and no earliest time: cheaper.
        """
        plan = self._plan(request)
        if now < 0 or (request.duration_s is not None and request.duration_s <= 0):
            raise BadTime(
                "time runs forward", found=f"now {now}, duration {request.duration_s}", expected=">= 0, > 0"
            )
        if job in self.jobs and op not in _BOOKS_NOTHING and op is not MatchOp.SATISFIABILITY:
            raise Conflict(f"job {job} holds resources already")
        self.preorder = self.postorder = 0
        if op is MatchOp.SATISFIABILITY:
            return Satisfiable() if self._could_ever(plan) else self._refusal(plan, now, explain)
        found = self._select(plan, now, now)
        if found is not None:
            kind = Kind.MATCHED if op in _BOOKS_NOTHING else Kind.ALLOCATED
            return self._settle(job, plan, found, now, kind)
        if op in _MAY_WAIT:
            for start in self._instants(plan, now):
                found = self._select(plan, start, now)
                if found is not None:
                    kind = Kind.MATCHED if op in _BOOKS_NOTHING else Kind.RESERVED
                    return self._settle(job, plan, found, start, kind)
        return self._refusal(plan, now, explain, searched=op in _MAY_WAIT)

    def extend(self, job: int, request: Request, now: int) -> Answer:
        """Adds members to a live allocation, under the rules of placement that it was made with."""
        holder = self._job(job)
        if holder.kind is not Kind.ALLOCATED:
            raise Conflict(f"job {job} is only reserved: it has nothing to extend yet")
        duration_s = request.duration_s
        if duration_s is None:
            ends = max(part.span.end for part in holder.parts.values())
            duration_s = max(ends, now + 1) - now if ends < FOREVER else None
        plan = self._plan(replace(request, duration_s=duration_s, placement=holder.placement))
        avoid = holder.nodes() if holder.placement.distinct_nodes else frozenset()
        found = self._select_below(plan, self._window(plan, now, now), holder.top, avoid)
        if found is None:
            return self._refusal(plan, now, True)
        part = self._part(plan, found, now, live=True)
        self._book(holder, part)
        return self._allocation(holder, part)

    def could_ever(self, request: Request) -> bool:
        """Whether the walker finds a place when everything is up and free."""
        self.preorder = self.postorder = 0
        return self._could_ever(self._plan(request))

    def explain(self, request: Request, now: int) -> Reason | None:
        """Why the request cannot start now; nothing if it can."""
        answer = self.match(-1, request, now, MatchOp.WITHOUT_ALLOCATING)
        return answer.reason if isinstance(answer, NotNow | Never) else None

    # Releasing

    def release(self, job: int) -> None:
        """Gives back all that a job holds, allocated or reserved."""
        holder = self._job(job)
        for number in list(holder.parts):
            self._unbook(holder, number)
        del self.jobs[job]

    def release_slots(self, job: int, slots: Iterable[int]) -> bool:
        """Gives back some slots (by number, as in `slots_of`). True when nothing is left."""
        holder = self._job(job)
        gone = set(slots)
        number = 0
        for key in list(holder.parts):
            part = holder.parts[key]
            kept: list[Slot] = []
            dropped: list[Slot] = []
            for slot in part.slots:
                (dropped if number in gone else kept).append(slot)
                number += 1
            if dropped:
                self._shrink(holder, key, _without_slots(part, kept, dropped), tuple(kept))
        return self._drop_if_empty(holder)

    def release_vertices(self, job: int, vertices: Iterable[Vertex]) -> bool:
        """Gives back what a job holds on these vertices. True when nothing is left."""
        holder = self._job(job)
        gone = {vertex.index for vertex in vertices}
        for key in list(holder.parts):
            part = holder.parts[key]
            left = {index: mark for index, mark in part.marks.items() if index not in gone}
            if len(left) != len(part.marks):
                kept = [
                    replace(s, grants=tuple(g for g in s.grants if g.vertex.index not in gone))
                    for s in part.slots
                ]
                self._shrink(holder, key, left, tuple(slot for slot in kept if slot.grants))
        return self._drop_if_empty(holder)

    # Re-applying what is known

    def update(
        self,
        job: int,
        marks: Iterable[Mark],
        start: int,
        end: int | None,
        kind: Kind,
        now: int,
        *,
        force: bool = False,
    ) -> Allocation:
        """Books a set that was given before: this is how a restart recovers.

        `force` books it even where somebody else has it by now (the units are in use, whatever the
        plan says); otherwise that is a `Conflict`, and nothing is booked.
        """
        if job in self.jobs:
            raise Conflict(f"job {job} holds resources already")
        if start < 0 or (end is not None and end <= start):
            raise BadTime(
                "an allocation needs a time", found=f"[{start}, {end})", expected="0 <= start < end"
            )
        part = Part(
            {mark.vertex.index: mark for mark in marks},
            Span(start, FOREVER if end is None else end, kind is Kind.ALLOCATED),
            (),
        )
        if not any(mark.booked for mark in part.marks.values()):
            raise BadRequest("the set holds nothing", expected="at least one vertex that is held")
        if not force:
            self._ledger.check_free(part.marks, part.span, now)
        holder = Job(job, kind, Placement(), self.graph.root, {})
        self.jobs[job] = holder
        self._book(holder, part)
        return self._allocation(holder, part)

    # What is held

    def allocation(self, job: int) -> Allocation:
        """All that a job holds, its extensions included."""
        holder = self._job(job)
        start = min(part.span.start for part in holder.parts.values())
        end = max(part.span.end for part in holder.parts.values())
        slots = tuple(slot for part in holder.parts.values() for slot in part.slots)
        picks = picks_of(holder.marks(), self.graph.root)
        return Allocation(job, holder.kind, start, None if end >= FOREVER else end, picks, slots)

    def instants(self, now: int) -> list[int]:
        """The instants after `now` at which something begins or ends."""
        return self._events.after(now)

    # Changing the graph

    def reprime(self) -> None:
        """Counts again what is below every vertex, after vertices came, went or changed size."""
        before = self.filters.tracked
        self.filters.prime(self.graph)
        if self.filters.tracked != before:
            # A type that is counted from now on must be counted in what is booked already.
            booked = [
                (holder, key, part) for holder in self.jobs.values() for key, part in holder.parts.items()
            ]
            for holder, key, part in booked:
                self._ledger.unbook((holder.number, key), part.marks)
            self._ledger.tracked = self.filters.tracked
            for holder, key, part in booked:
                self._ledger.book((holder.number, key), part.marks, part.span)

    # Inside

    def _plan(self, request: Request) -> _Plan:
        tracked = self.filters.tracked
        nodes_whole = self.policy.node_exclusive
        wants = tuple(
            compile_wants(group.resources, tracked, nodes_whole=nodes_whole) for group in request.groups
        )
        if not wants:
            raise BadRequest("the request has no groups", expected="at least one group")
        within = request.placement.within
        if within and not self.graph.of_type(within):
            raise BadRequest(
                f"no level {within}", where="placement", expected=", ".join(sorted(self.graph.types()))
            )
        whole = {kind for group in wants for want in group for kind in _exclusive_types(want)}
        if self.policy.node_exclusive:
            whole.add(NODE)
        return _Plan(request, wants, frozenset(whole))

    def _window(self, plan: _Plan, start: int, now: int, sight: Sight | None = None) -> Window:
        duration_s = plan.request.duration_s
        # What would end beyond the horizon ends there.
        end = self.horizon_s if duration_s is None else min(start + duration_s, self.horizon_s)
        if sight is None:
            sight = Sight.NOW if start <= now else Sight.LATER
        return Window(start, end, now, sight)

    def _select(self, plan: _Plan, start: int, now: int) -> tuple[Selection, ...] | None:
        return self._select_within(plan, self._window(plan, start, now)) if start < self.horizon_s else None

    def _could_ever(self, plan: _Plan) -> bool:
        return self._select_within(plan, self._window(plan, 0, 0, Sight.IDEAL)) is not None

    def _select_within(self, plan: _Plan, window: Window) -> tuple[Selection, ...] | None:
        within = plan.request.placement.within
        if not within:
            return self._select_below(plan, window, self.graph.root, frozenset())
        for top in self._domains(within, window):
            found = self._select_below(plan, window, top, frozenset())
            if found is not None:
                return found
        return None

    def _domains(self, within: str, window: Window) -> list[Vertex]:
        """The vertices of a level in the order in which the policy would have them."""
        tops = [top for top in self.graph.of_type(within) if self._is_reachable(top, window)]
        if self.policy.stop_on_first:
            return self._order.ordered(tops, window.now)
        if self.policy.usage is not Usage.IGNORED:
            sign = 1 if self.policy.usage is Usage.PACK else -1
            return sorted(
                tops, key=lambda top: sign * sum(free_below(top, kind, window) for kind in top.totals or ())
            )
        return sorted(tops, key=lambda top: -top.id if self.policy.high_first else top.id)

    def _is_reachable(self, vertex: Vertex, window: Window) -> bool:
        return window.sight is Sight.IDEAL or all(above.up for above in self.graph.ancestors(vertex))

    def _select_below(
        self, plan: _Plan, window: Window, top: Vertex, avoid: frozenset[int]
    ) -> tuple[Selection, ...] | None:
        """Every group in turn, each seeing what the ones before it took; whole or nothing."""
        if len(plan.wants) == 1:
            found = self._walk(plan, 0, window, top, avoid)
            return (found,) if found is not None else None
        natural = list(range(len(plan.wants)))
        hardest = sorted(
            natural, key=lambda group: -sum(sum(want.needs.values()) for want in plan.wants[group])
        )
        for order in (natural, hardest) if hardest != natural else (natural,):
            selections = self._select_in_order(plan, order, window, top, avoid)
            if selections is not None:
                return selections
        return None

    def _select_in_order(
        self, plan: _Plan, order: list[int], window: Window, top: Vertex, avoid: frozenset[int]
    ) -> tuple[Selection, ...] | None:
        selections: dict[int, Selection] = {}
        tried: list[tuple[int, Marks]] = []
        if window.sight is Sight.IDEAL:
            # Bookings do not count in the ideal, so the groups are looked at one by one.
            found = [self._walk(plan, group, window, top, avoid) for group in order]
            return tuple(s for s in found if s is not None) if all(s is not None for s in found) else None
        span = Span(window.start, window.end, live=window.sight is Sight.NOW)
        try:
            for group in order:
                selection = self._walk(plan, group, window, top, avoid)
                if selection is None:
                    return None
                selections[group] = selection
                if plan.request.placement.distinct_nodes:
                    avoid |= {slot.node.index for slot in slots_of([selection]) if slot.node is not None}
                marks = marks_of([selection], plan.whole_types)
                self._ledger.book((-1, group), marks, span)
                tried.append((group, marks))
        finally:
            for group, marks in reversed(tried):
                self._ledger.unbook((-1, group), marks)
        return tuple(selections[group] for group in sorted(selections))

    def _walk(
        self, plan: _Plan, group: int, window: Window, top: Vertex, avoid: frozenset[int]
    ) -> Selection | None:
        request = plan.request
        walk = Walk(
            self.graph,
            self.policy,
            self._order,
            window,
            plan.wants[group],
            request.groups[group].constraint,
            request.placement,
            avoid,
        )
        found = walk.select(top)
        if found is not None and not any(
            mark.booked for mark in marks_of([found], plan.whole_types).values()
        ):
            found = None  # Possible only where nodes are taken whole and no node was touched.
        self.preorder += walk.preorder
        self.postorder += walk.postorder
        return found

    def _instants(self, plan: _Plan, now: int) -> Iterator[int]:
        """Instants after now at which the totals at the root would suffice."""
        root = self.graph.root
        totals = root.totals or {}
        needs: dict[str, int] = {}
        for group in plan.wants:
            for want in group:
                for kind, units in (*want.needs.items(), (want.type, 1)):
                    if kind in totals:
                        needs[kind] = needs.get(kind, 0) + units * want.count.min
        instants = self._events.after(now)
        if (
            root.state is not None
            and root.state.live_end_min <= now
            and (not instants or instants[0] > now + 1)
        ):
            instants.insert(0, now + 1)  # What should have ended by now may end at the next instant.
        for start in self._order.instants(instants, root, needs):
            if start >= self.horizon_s:
                return
            window = self._window(plan, start, now)
            if all(free_below(root, kind, window) >= units for kind, units in needs.items()):
                yield start

    def _settle(
        self, job: int, plan: _Plan, found: tuple[Selection, ...], start: int, kind: Kind
    ) -> Allocation:
        top = self.graph.root if not plan.request.placement.within else found[0].top
        part = self._part(plan, found, start, live=kind is Kind.ALLOCATED)
        holder = Job(job, kind, plan.request.placement, top, {})
        if kind is not Kind.MATCHED:
            self.jobs[job] = holder
            self._book(holder, part)
        return self._allocation(holder, part)

    def _part(self, plan: _Plan, found: tuple[Selection, ...], start: int, live: bool) -> Part:
        window = self._window(plan, start, start)
        return Part(marks_of(found, plan.whole_types), Span(start, window.end, live), slots_of(found))

    def _allocation(self, holder: Job, part: Part) -> Allocation:
        end = None if part.span.end >= FOREVER else part.span.end
        picks = picks_of(part.marks, self.graph.root)
        return Allocation(holder.number, holder.kind, part.span.start, end, picks, part.slots)

    def _refusal(self, plan: _Plan, now: int, explain: bool, searched: bool = False) -> NotNow | Never:
        explainer = Explainer(self.graph, self.policy, plan.request, plan.wants)
        proof = None if self._could_ever(plan) else cannot_ever_fit(self.graph, plan.request, plan.wants)
        if proof is not None:
            return Never(explainer.never(proof) if explain else Reason(proof))
        if not explain:
            return NotNow(None, Reason("not free now"))
        earliest = None
        if not searched:
            earliest = next(
                (t for t in self._instants(plan, now) if self._select(plan, t, now) is not None), None
            )
        return NotNow(earliest, explainer.not_now(self._window(plan, now, now)))

    def _job(self, job: int) -> Job:
        holder = self.jobs.get(job)
        if holder is None:
            raise UnknownJob(job)
        return holder

    def _book(self, holder: Job, part: Part) -> None:
        key = holder.parts_made
        holder.parts_made += 1
        holder.parts[key] = part
        self._ledger.book((holder.number, key), part.marks, part.span)
        self._events.add(part.span)

    def _unbook(self, holder: Job, key: int) -> Part:
        part = holder.parts.pop(key)
        self._ledger.unbook((holder.number, key), part.marks)
        self._events.remove(part.span)
        return part

    def _shrink(self, holder: Job, key: int, marks: Marks, slots: tuple[Slot, ...]) -> None:
        part = self._unbook(holder, key)
        if any(mark.booked for mark in marks.values()):
            smaller = Part(marks, part.span, slots)
            holder.parts[key] = smaller
            self._ledger.book((holder.number, key), marks, part.span)
            self._events.add(part.span)

    def _drop_if_empty(self, holder: Job) -> bool:
        if holder.parts:
            return False
        del self.jobs[holder.number]
        return True


def _exclusive_types(want: Want) -> Iterator[str]:
    if want.exclusive is True:
        yield want.type
    for inner in want.with_:
        yield from _exclusive_types(inner)


def _without_slots(part: Part, kept: list[Slot], dropped: list[Slot]) -> Marks:
    """The marks of a part less what the dropped slots had; a node taken whole goes with its last slot."""
    marks = dict(part.marks)
    for slot in dropped:
        for grant in slot.grants:
            mark = marks.get(grant.vertex.index)
            if mark is None:
                continue
            if mark.vertex.divisible and mark.units > grant.units:
                marks[grant.vertex.index] = replace(mark, units=mark.units - grant.units)
            elif not _lies_in_whole(marks, grant.vertex):
                del marks[grant.vertex.index]
    in_use = {slot.node.index for slot in kept if slot.node is not None}
    for slot in dropped:
        node = slot.node
        if node is not None and node.index not in in_use:
            mark = marks.get(node.index)
            if mark is not None and mark.booked:
                pending = [node]
                while pending:
                    vertex = pending.pop()
                    marks.pop(vertex.index, None)
                    pending.extend(vertex.below())
    return marks


def _lies_in_whole(marks: Marks, vertex: Vertex) -> bool:
    """Whether a vertex above is held as a whole: then this one stays with it."""
    above = vertex.parent()
    while above is not None:
        mark = marks.get(above.index)
        if mark is not None and mark.booked and mark.exclusive and vertex.index in marks:
            return True
        above = above.parent()
    return False
