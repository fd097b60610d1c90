"""The interface of the matcher: match, release, update, explain.

An `Engine` owns a graph and all bookings on it, and no other code chooses a vertex. Callers identify jobs by
number and pass the current time; the engine has no clock. Behind the interface is the exact walker.

Times are integer seconds. The allocation of a job has parts: its first match, and one for each extension.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Set
from dataclasses import replace
from functools import partial

from penstock.engine.allocation import (
    Allocation,
    AllocationKind,
    MatchResult,
    Never,
    NotNow,
    Reason,
    Satisfiable,
    Slot,
)
from penstock.engine.allocation_table import AllocationTable
from penstock.engine.booking import (
    Booker,
    Span,
    VertexClaim,
    claims_of,
    mark_whole_claims,
    merge_claims,
    picks_of,
)
from penstock.engine.candidates import Selection, nodes_of
from penstock.engine.external_usage import ExternalUsageTable
from penstock.engine.filters import DEFAULT_FILTERS, Filters
from penstock.engine.graph import Graph, Vertex, VertexTree
from penstock.engine.graph_updates import GraphUpdater, Removal
from penstock.engine.indexed_search import AnswerCounts, IndexedSearch
from penstock.engine.job_allocation import AllocationPart, JobAllocation, domain_of
from penstock.engine.match_op import BOOKS_NOTHING, MAY_WAIT, MatchOp
from penstock.engine.node_blocks import block_picks, block_slots
from penstock.engine.plain_slots import PlainRequest, plain_request
from penstock.engine.planner import FOREVER
from penstock.engine.policies import MostFreeOrder, Policy, SearchOrder, Usage, parse_policy
from penstock.engine.prepared_request import PreparedRequest, PreparedRequests
from penstock.engine.refusals import Refusals
from penstock.engine.request import NodeOrder, Placement, Request
from penstock.engine.search import BookingTimes, Search
from penstock.engine.selected_slots import slots_of
from penstock.engine.time_check import BadTime, check_time
from penstock.errors import BadRequest, Conflict
from penstock.model.exclusion_key import ExclusionKey

__all__ = ["AnswerCounts", "BadTime", "Engine", "MatchOp", "UnknownJob"]


class UnknownJob(Conflict):
    """No job with this number has an allocation or a reservation."""

    def __init__(self, job: int) -> None:
        super().__init__(f"job {job} has no allocation")
        self.job = job


class Engine:
    def __init__(
        self,
        graph: Graph,
        policy: Policy | str = "first",
        filters: str = DEFAULT_FILTERS,
        order: SearchOrder | None = None,
        horizon_s: int | None = None,
        *,
        index: bool = True,
    ) -> None:
        self._has_index = index  # False: the walker answers everything
        self.policy = parse_policy(policy) if isinstance(policy, str) else policy
        self._order = order if order is not None else MostFreeOrder()
        self._horizon_s = horizon_s if horizon_s is not None else FOREVER
        self._prepared = PreparedRequests(self.policy.node_exclusive)
        counted = Filters(filters, leaves_everywhere=self.policy.usage is not Usage.IGNORED)
        counted.compute_totals(graph)
        self._connect(graph, counted, ExternalUsageTable(graph), BookingTimes())
        if index and graph.is_tree:
            self._indexed.prepare()

    def _connect(
        self, graph: Graph, filters: Filters, external_usage: ExternalUsageTable, times: BookingTimes
    ) -> None:
        self.graph = graph
        self.filters = filters
        self.external_usage = external_usage
        self._booking_times = times
        self._booker = Booker(filters.tracked, set())
        self._indexed = indexed = IndexedSearch(graph, self.policy, self._order, self._booker)
        self._index = indexed.index
        external_usage.changed = self._index.changed
        self._table = AllocationTable(graph, self._booker, times, external_usage)
        self._updater = GraphUpdater(graph, filters, self._table, external_usage, self._index)
        self._search = Search(
            *(graph, self.policy, self._order, self._booker, times, self._horizon_s),
            indexed if self._has_index else None,
        )
        external_usage.standing_changed = self._search.forget_ideal
        self._refusals = Refusals(graph, self._search, self.policy.node_exclusive)

    def copy(self) -> Engine:
        """An independent engine that answers alike, for forecasts and what-if.

        Its vertices have the same indexes as these. Nothing that changes is shared.
        """
        other = Engine.__new__(Engine)
        other.policy, other._order, other._horizon_s = self.policy, self._order.copy(), self._horizon_s
        other._has_index = self._has_index
        other._prepared = PreparedRequests(self.policy.node_exclusive)
        graph = self.graph.copy()
        external_usage = self.external_usage.copy(graph)
        other._connect(graph, self.filters.copy(), external_usage, self._booking_times.copy())
        self._table.copy_jobs(other._table)
        return other

    @property
    def jobs(self) -> Mapping[int, JobAllocation]:
        """What is booked, by job number."""
        return self._table.jobs

    # Matching

    def match(
        self,
        job: int,
        request: Request,
        now: int,
        op: MatchOp = MatchOp.ALLOCATE,
        *,
        explain: bool = True,
        prove: bool = True,
        excluded_nodes: Set[int] = frozenset(),
        made: tuple[int, int] = (0, 0),
    ) -> MatchResult:
        """Tries to place a request. Only an `Allocation` that is not `MATCHED` changes the engine.

        `made` are the numbers of parts and slots that the job has had: theirs are not used again. With
        `explain=False` a refusal has no stages, no blockers and no earliest start, which is cheaper.
        With `prove=False` the engine also skips the proof that the request can never fit, which is cheapest.
        """
        stages = self.match_stepwise(
            job, request, now, op, explain=explain, prove=prove, excluded_nodes=excluded_nodes, made=made
        )
        while True:
            try:
                next(stages)
            except StopIteration as done:
                answer: MatchResult = done.value
                return answer

    def match_stepwise(
        self,
        job: int,
        request: Request,
        now: int,
        op: MatchOp = MatchOp.ALLOCATE,
        *,
        explain: bool = True,
        prove: bool = True,
        full_nodes: set[int] | None = None,
        excluded_nodes: Set[int] = frozenset(),
        made: tuple[int, int] = (0, 0),
    ) -> Generator[None, None, MatchResult]:
        """As `match`, but yields after every instant that does not fit.

        Nothing is booked until it returns, so the caller can abandon it; the engine must not change
        meanwhile. A caller that matches equal requests repeatedly at one instant, with bookings only added in
        between, can pass the same `full_nodes` each time: nodes that fit no slot are recorded there and
        skipped. `excluded_nodes` (indexes) are not used.
        """
        prepared = self._prepare(request).without(excluded_nodes)
        check_time(now, request.duration_s)
        if op not in BOOKS_NOTHING:
            self._check_number(job)
        self._search.reset_visits()
        if op is MatchOp.SATISFIABILITY:
            return (
                Satisfiable()
                if self._refusals.could_ever(prepared)
                else self._refusals.refusal(prepared, now, explain)
            )
        found_now = self._search.select(prepared, now, now, full_nodes)
        if found_now is not None:
            kind = AllocationKind.MATCHED if op in BOOKS_NOTHING else AllocationKind.ALLOCATED
            return self._accept(job, prepared, found_now, now, kind, made)
        if op in MAY_WAIT:
            for start in self._search.instants(prepared, now):
                yield
                found_later = self._search.select(prepared, start, now)
                if found_later is not None:
                    kind = AllocationKind.MATCHED if op in BOOKS_NOTHING else AllocationKind.RESERVED
                    return self._accept(job, prepared, found_later, start, kind, made)
        if not prove:
            return NotNow(None, Reason("not free now"))
        return self._refusals.refusal(prepared, now, explain, searched=op in MAY_WAIT)

    def reserve(
        self, job: int, request: Request, start: int, now: int, excluded_nodes: Set[int], *, book: bool = True
    ) -> Allocation | None:
        """Reserves a start at this instant after `now`; None if the request does not fit then."""
        prepared = self._prepare(request).without(excluded_nodes)
        found = self._search.select(prepared, start, now)
        kind = AllocationKind.RESERVED if book else AllocationKind.MATCHED
        return None if found is None else self._accept(job, prepared, found, start, kind)

    def extend(
        self,
        job: int,
        request: Request,
        now: int,
        *,
        explain: bool = True,
        excluded_nodes: Set[int] = frozenset(),
    ) -> MatchResult:
        """Adds members to a running allocation, under its placement rules.

        They end with the job, unless the request has its own duration. With `explain=False` a refusal has no
        proof, no stages and no earliest start, which is cheaper.
        """
        holder = self._job(job)
        check_time(now, request.duration_s)
        if holder.kind is not AllocationKind.ALLOCATED:
            raise Conflict(f"job {job} is reserved, not running: it cannot be extended")
        prepared = self._prepare_part(holder, request, now, excluded_nodes)
        found = self._search.select(prepared, now, now)
        if found is None and explain:
            return self._refusals.refusal(prepared, now, True)
        if found is None:
            return NotNow(None, Reason("not free now"))
        part = self._table.book(holder, self._part(prepared, found, now, live=True))
        return self._allocation(holder, part)

    def _prepare_part(
        self, holder: JobAllocation, request: Request, now: int, excluded_nodes: Set[int]
    ) -> PreparedRequest:
        duration_s = holder.left_s(now) if request.duration_s is None else request.duration_s
        own = holder.nodes() if holder.placement.distinct_nodes else frozenset()
        prepared = self._prepare(replace(request, duration_s=duration_s, placement=holder.placement))
        slots = holder.slots_by_node() if request.order is NodeOrder.SPREAD else {}
        return replace(prepared, top=holder.top, excluded_nodes=excluded_nodes | own, own_slots=slots)

    def could_ever(self, request: Request) -> bool:
        """Whether the walker finds a match when everything is up and free."""
        self._search.reset_visits()
        return self._refusals.could_ever(self._prepare(request))

    def nodes_without_jobs(
        self, request: Request, excluded_nodes: Set[int] = frozenset()
    ) -> tuple[Vertex, ...] | None:
        """The nodes of a match if all jobs had ended; None if there is none even then.

        External usage stays, and nodes that are down are not used.
        """
        prepared = self._prepare(request).without(excluded_nodes)
        self._search.reset_visits()
        found = self._search.select_without_jobs(prepared)
        return None if found is None else nodes_of(found)

    def never(self, request: Request) -> str:
        """The clause that no state of the resources could satisfy; "" if that is not proven.

        As `match` with `SATISFIABILITY`, at a fraction of its cost.
        """
        return self._refusals.never(self._prepare(request))

    def plain(self, request: Request) -> PlainRequest | None:
        """A valid request in the form that changes of nodes are compared with; None if it has none."""
        prepared = self._prepare(request)
        return plain_request(request, prepared.demands, prepared.exclusions)

    def explain(self, request: Request, now: int, extended: int = 0) -> Reason | None:
        """Why the request cannot start now, as a job or as a part of a running one; None if it can."""
        if extended not in self.jobs:
            answer = self.match(0, request, now, MatchOp.WITHOUT_ALLOCATING)
            return answer.reason if isinstance(answer, NotNow | Never) else None
        prepared = self._prepare_part(self.jobs[extended], request, now, frozenset())
        found = self._search.select(prepared, now, now)
        return self._refusals.refusal(prepared, now, True).reason if found is None else None

    def answers(self) -> AnswerCounts:
        """How many groups index and walker have answered so far."""
        return AnswerCounts(self._indexed.answered, self._indexed.passed_on)

    def visits(self) -> tuple[int, int]:
        """Cost of the last match: vertices entered, and vertices left with a result."""
        return self._search.visits()

    # Releasing

    def release(self, job: int) -> None:
        """Releases everything that a job holds, allocated or reserved."""
        self._table.release(self._job(job))

    def release_slots(self, job: int, slots: Iterable[int]) -> bool:
        """Releases some slots by number. True when the job holds nothing any more.

        Slot numbers are never reused, so releasing a slot twice has no further effect.
        """
        return self._table.release_slots(self._job(job), slots)

    def release_vertices(self, job: int, vertices: Iterable[Vertex]) -> bool:
        """Releases what a job holds on these vertices. True when the job holds nothing any more."""
        self._table.release_vertices(self._job(job), vertices)
        return job not in self.jobs

    def set_slot_keys(self, job: int, slot: int, brings: tuple[ExclusionKey, ...]) -> None:
        """Sets the exclusion keys that a booked slot brings, until it is released.

        The slot stays where it is, also beside others that forbid one of them.
        """
        if not self._table.set_slot_keys(self._job(job), slot, brings):
            raise Conflict(f"job {job} has no slot {slot}")

    def unbook_job(self, job: int) -> JobAllocation:
        """Unbooks everything that a job holds; `rebook_job` restores it."""
        holder = self._job(job)
        self._table.unbook(holder)
        return holder

    def rebook_job(self, holder: JobAllocation) -> None:
        """Restores what `unbook_job` removed. Together they are the identity."""
        self._check_number(holder.number)
        self._table.rebook(holder)

    def set_end(self, job: int, end: int | None) -> None:
        """Moves the planned end of everything that a running job holds. None: no known end.

        The job holds its units whether or not they are free until then, so nothing is checked.
        """
        holder = self._job(job)
        if holder.kind is not AllocationKind.ALLOCATED:
            raise Conflict(f"job {job} is reserved, not running: its end cannot be moved")
        start = max(part.span.start for part in holder.parts.values())
        if end is not None and end <= start:
            raise BadTime("invalid end of an allocation", found=str(end), expected=f"more than {start}")
        self._table.set_end(holder, FOREVER if end is None else end)

    # Restoring a known allocation

    def update(
        self,
        job: int,
        claims: Iterable[VertexClaim],
        start: int,
        end: int | None,
        kind: AllocationKind,
        now: int,
        *,
        slots: tuple[Slot, ...] = (),
        placement: Placement | None = None,
        top: Vertex | None = None,
        forbids: Iterable[ExclusionKey] = (),
        force: bool = False,
    ) -> Allocation:
        """Books a known set of vertices, as in recovery after a restart.

        `slots`, `placement` and `top` are those of the original match, for later extensions and releases.
        With `force` the set is booked even if it is not free, or one of the keys that it forbids is in use,
        because it exists; otherwise that is a `Conflict`, and nothing is booked.
        """
        self._check_number(job)
        if start < 0 or (end is not None and end <= start):
            raise BadTime(
                "invalid time span of an allocation", found=f"[{start}, {end})", expected="0 <= start < end"
            )
        span = Span(start, FOREVER if end is None else end, kind is AllocationKind.ALLOCATED)
        part = AllocationPart(mark_whole_claims(merge_claims(claims)), span, slots)
        if not any(claim.booked for claim in part.claims.values()):
            raise BadRequest("the set is empty", expected="at least one booked vertex")
        if not force:
            self._booker.check_free(part.claims, part.span, now, forbids)
        rules = placement or Placement()
        holder = JobAllocation(job, kind, rules, top or domain_of(part.claims, rules, self.graph.root), {})
        return self._allocation(holder, self._table.book(holder, part))

    # Queries

    def allocation(self, job: int) -> Allocation:
        """Everything that a job holds, including its extensions."""
        holder = self._job(job)
        if len(holder.parts) == 1:
            return self._allocation(holder, next(iter(holder.parts.values())))
        start = min(part.span.start for part in holder.parts.values())
        end = holder.end
        slots = tuple(slot for part in holder.parts.values() for slot in part.slots)
        picks = picks_of(holder.claims(), self.graph.root)
        return Allocation(job, holder.kind, start, None if end >= FOREVER else end, picks, slots)

    def instants(self, now: int) -> list[int]:
        """The instants after `now` at which a booking begins or ends."""
        return self._booking_times.after(now)

    # Changes of the graph (see `graph_updates`)

    def add(self, parent: Vertex, tree: VertexTree) -> Vertex:
        """Adds a subtree below a vertex. Returns its top."""
        self._search.forget_ideal()
        return self._updater.add(parent, tree)

    def attach(self, read: Callable[[Graph], list[Vertex]]) -> list[Vertex]:
        """Lets a reader add vertices and edges anywhere, and counts the whole graph again."""
        self._search.forget_ideal()
        return self._updater.attach(read)

    def remove(self, top: Vertex) -> Removal:
        """Removes a subtree, and releases what jobs and external usage have on it."""
        self._search.forget_ideal()
        return self._updater.remove(top)

    def resize(self, vertex: Vertex, size: int) -> None:
        """Changes the size of a pool. A size below what is booked makes its free units negative."""
        self._search.forget_ideal()
        self._updater.resize(vertex, size)

    def set_status(self, vertex: Vertex, up: bool) -> None:
        """Sets a vertex up or down. Allocations on it stay; no match uses a vertex that is down."""
        if vertex.up != up:
            vertex.up = up
            self._index.touch(vertex)

    def set_property(self, vertex: Vertex, key: str, value: str) -> None:
        vertex.set_property(key, value)
        self._index.touch_properties(vertex)
        self._search.forget_ideal()

    def remove_property(self, vertex: Vertex, key: str) -> None:
        """Removes a property. An unknown key is ignored."""
        vertex.remove_property(key)
        self._index.touch_properties(vertex)
        self._search.forget_ideal()

    def is_booked(self, top: Vertex) -> bool:
        """Whether a job has a booking in a subtree."""
        return self._updater.is_booked(top)

    # Internals

    def _prepare(self, request: Request) -> PreparedRequest:
        return self._prepared.prepared(request, self.filters.tracked)

    def _accept(
        self,
        job: int,
        prepared: PreparedRequest,
        found: tuple[Selection, ...],
        start: int,
        kind: AllocationKind,
        made: tuple[int, int] = (0, 0),
    ) -> Allocation:
        top = found[0].top if prepared.request.placement.within else self.graph.root
        part = self._part(prepared, found, start, live=kind is AllocationKind.ALLOCATED)
        holder = JobAllocation(job, kind, prepared.request.placement, top, {}, *made)
        if kind is not AllocationKind.MATCHED:
            part = self._table.book(holder, part)
        return self._allocation(holder, part)

    def _part(
        self, prepared: PreparedRequest, found: tuple[Selection, ...], start: int, live: bool
    ) -> AllocationPart:
        span = Span(start, self._search.window(prepared, start, start).end, live)
        if found[0].blocks:
            return AllocationPart.of_blocks(found[0].blocks, span)
        slots = slots_of(found, prepared.request.groups)
        return AllocationPart(claims_of(found, self.policy.node_exclusive), span, slots)

    def _allocation(self, holder: JobAllocation, part: AllocationPart) -> Allocation:
        end = None if part.span.end >= FOREVER else part.span.end
        number, kind, start, blocks = holder.number, holder.kind, part.span.start, part.blocks
        if blocks:
            root, first = self.graph.root, part.first_slot
            picks, slots = partial(block_picks, blocks, root), partial(block_slots, blocks, first)
            return Allocation(number, kind, start, end, picks, slots, blocks)
        return Allocation(number, kind, start, end, picks_of(part.claims, self.graph.root), tuple(part.slots))

    def _check_number(self, job: int) -> None:
        if job < 0:
            raise BadRequest("invalid job number", found=str(job), expected="0 or more")
        if job in self.jobs:
            raise Conflict(f"job {job} already has an allocation")

    def _job(self, job: int) -> JobAllocation:
        holder = self.jobs.get(job)
        if holder is None:
            raise UnknownJob(job)
        return holder
