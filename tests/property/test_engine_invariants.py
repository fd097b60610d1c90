"""Whatever is asked of the engine in whatever order, its books stay right.

A history is drawn as plain values, and played on an engine and on a ledger that is kept beside it
(see `ledger`). After every step the ledger says whether the decision was allowed and whether the
engine remembers what it should. The clock only moves forward; allocations overrun their planned
ends, because nobody releases them.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
from histories import KEYS, SHAPES, SOCKET_SHAPES, Shape, Step, histories, requests, socket_requests
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger import Booker, ExternalUsage, HeldPart, dump, is_below, part_of

from builders import jgf, request_with, resource_of
from penstock.engine import (
    Allocation,
    AllocationKind,
    Engine,
    Group,
    MatchOp,
    MatchResult,
    NotNow,
    Placement,
    Request,
    Satisfiable,
    Vertex,
    VertexSpec,
    VertexTree,
)
from penstock.engine.booking import VertexClaim
from penstock.engine.filters import Filters
from penstock.engine.planner import FOREVER
from penstock.engine.policies import Usage
from penstock.engine.request import InvalidResources
from penstock.errors import Conflict
from penstock.fluxion.attach import attach
from penstock.model.constraint import matches

POLICIES = ["first", "low", "high", "lonode", "hinodex", "lonodex", "firstnodex", "pack", "spread"]


def claims_of(said: Allocation, part: HeldPart) -> list[VertexClaim]:
    """The set as a store would keep it: also which vertices were taken whole."""
    granted = {path for slot in part.slots for path in slot}
    claims: list[VertexClaim] = []
    for pick in said.picks:
        path = pick.vertex.path()
        above, _, _ = path.rpartition("/")
        below = {child.path() for child in pick.vertex.below()} & set(part.units)
        whole = path in part.alone and (bool(below - granted) if path in granted else above not in part.alone)
        if pick.exclusive:
            claims.append(
                VertexClaim(pick.vertex, pick.units, True, path in part.alone, pick.label, pick.above, whole)
            )
    return claims


@dataclass(slots=True)
class Backend:
    """An engine, the ledger beside it, and what was said so far."""

    engine: Engine
    ledger: Booker
    now: int = 0
    jobs_made: int = 0
    attached: int = 0
    requests: dict[int, Request] = field(default_factory=dict)
    past: list[tuple[HeldPart, Allocation, Request]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def play(self, step: Step) -> None:
        getattr(self, f"do_{step.name}")(step)
        assert self.ledger.differences(self.engine) == []

    def copy(self) -> Backend:
        """Forgets what could be booked again, which names vertices of one engine."""
        self.past.clear()
        engine = self.engine.copy()
        ledger = Booker(engine.graph, deepcopy(self.ledger.jobs), deepcopy(self.ledger.holds))
        return replace(
            self, engine=engine, ledger=ledger, requests=dict(self.requests), past=[], said=list(self.said)
        )

    def count_again(self, filters: Filters) -> None:
        """Counts the whole graph and books every job again, as if nothing had been kept up to date."""
        for vertex in self.engine.graph.vertices.values():
            vertex.totals = None
        filters.compute_totals(self.engine.graph)
        for holder in [self.engine.unbook_job(job) for job in list(self.engine.jobs)]:
            self.engine.rebook_job(holder)

    def do_tick(self, step: Step) -> None:
        self.now += step.amount

    def do_match(self, step: Step) -> None:
        if step.request.placement.within not in ("", *self.engine.graph.types()):
            return
        self.jobs_made += 1
        job = self.jobs_made
        before = dump(self.engine)
        try:
            answer = self.engine.match(job, step.request, self.now, step.op)
        except InvalidResources:  # Several slots in one node, and all on distinct ones.
            assert step.request.placement.distinct_nodes
            assert dump(self.engine) == before
            return
        self.say(answer)
        if isinstance(answer, Allocation) and answer.kind is not AllocationKind.MATCHED:
            self.requests[job] = step.request
            self.book(job, answer, step.request)
            self.engine.release(job)
            assert dump(self.engine) == before, "releasing what was just given is the identity"
            assert self.engine.match(job, step.request, self.now, step.op) == answer
            return
        assert dump(self.engine) == before, f"{step.op} that books nothing leaves no trace"
        if isinstance(answer, Allocation):
            self.check(job, answer, step.request)
        elif not isinstance(answer, Satisfiable):
            later = self.engine.match(job, step.request, self.now, MatchOp.WITHOUT_ALLOCATING_FUTURE)
            if isinstance(answer, NotNow) and answer.earliest_s is not None:
                assert answer.earliest_s > self.now
                assert isinstance(later, Allocation)
                assert later.start_s == answer.earliest_s
            elif step.op is not MatchOp.SATISFIABILITY:
                assert not isinstance(later, Allocation)

    def do_extend(self, step: Step) -> None:
        live = [job for job, parts in self.ledger.jobs.items() if parts[0].live]
        if not live:
            return
        job = live[step.which % len(live)]
        before = dump(self.engine)
        try:
            answer = self.engine.extend(job, replace(step.request, placement=Placement()), self.now)
        except InvalidResources:
            assert self.requests[job].placement.distinct_nodes
            assert dump(self.engine) == before
            return
        self.say(answer)
        if isinstance(answer, Allocation):
            placement = self.requests[job].placement
            self.book(job, answer, replace(step.request, placement=placement))
        else:
            assert dump(self.engine) == before

    def do_set_end(self, step: Step) -> None:
        live = [job for job, parts in self.ledger.jobs.items() if parts[0].live]
        if not live:
            return
        job = live[step.which % len(live)]
        end = None if step.amount == 0 else self.now + step.amount
        self.engine.set_end(job, end)
        for part in self.ledger.jobs[job]:
            part.end = FOREVER if end is None else end

    def do_update(self, step: Step) -> None:
        gone = [
            (part, said, request) for part, said, request in self.past if said.job not in self.ledger.jobs
        ]
        if not gone:
            return
        part, said, request = gone[step.which % len(gone)]
        if any(pick.vertex.index not in self.engine.graph.vertices for pick in said.picks):
            return
        if not part.live and part.end <= self.now:
            return  # Nobody applies a reservation that is over.
        claims = claims_of(said, part)
        conflict = self.ledger.conflict(part, self.now)
        before = dump(self.engine)
        force = step.flag and step.amount == 0
        if conflict is not None and not force:
            with pytest.raises(Conflict):
                self.engine.update(said.job, claims, said.start_s, said.end_s, said.kind, self.now)
            assert dump(self.engine) == before
            return
        again = self.engine.update(
            said.job,
            claims,
            said.start_s,
            said.end_s,
            said.kind,
            self.now,
            slots=said.slots,
            placement=request.placement,
            top=self.top_of(said, request),
            force=force,
        )
        self.say(again)
        assert again == said
        self.requests[said.job] = request
        self.ledger.jobs[said.job] = [part_of(again, request)]

    def top_of(self, said: Allocation, request: Request) -> Vertex | None:
        """The vertex that all had to lie within, found again."""
        for grant in said.slots[0].grants if said.slots else ():
            for above in (grant.vertex, *grant.vertex.ancestors()):
                if above.type == request.placement.within:
                    return above
        return None

    def do_release(self, step: Step) -> None:
        if self.ledger.jobs:
            job = sorted(self.ledger.jobs)[step.which % len(self.ledger.jobs)]
            self.engine.release(job)
            del self.ledger.jobs[job]

    def do_release_slots(self, step: Step) -> None:
        if not self.ledger.jobs:
            return
        job = sorted(self.ledger.jobs)[step.which % len(self.ledger.jobs)]
        count = sum(len(part.slots) for part in self.ledger.jobs[job])
        gone = {number for number in range(count) if step.flag or number % 2 == step.amount % 2}
        self.ledger.drop_slots(job, gone)
        slots = self.engine.allocation(job).slots
        numbers = {slots[place].number for place in gone}
        assert self.engine.release_slots(job, numbers) == (job not in self.ledger.jobs)
        if job in self.ledger.jobs:
            assert self.engine.release_slots(job, numbers) is False, "given back twice"

    def do_release_vertices(self, step: Step) -> None:
        if not self.ledger.jobs:
            return
        job = sorted(self.ledger.jobs)[step.which % len(self.ledger.jobs)]
        nodes = self.engine.graph.of_type("node")
        if not nodes:
            return
        below = list(self.engine.graph.walk(nodes[step.amount % len(nodes)]))
        self.ledger.drop_paths(job, {vertex.path() for vertex in below})
        assert self.engine.release_vertices(job, below) == (job not in self.ledger.jobs)

    def do_set_keys(self, step: Step) -> None:
        places = [
            (job, place, number)
            for job, parts in sorted(self.ledger.jobs.items())
            for place, part in enumerate(parts)
            for number in range(len(part.slots))
        ]
        if not places:
            return
        job, place, number = places[step.which % len(places)]
        parts = self.ledger.jobs[job]
        earlier = sum(len(part.slots) for part in parts[:place])
        keys = KEYS[step.amount % len(KEYS)][0] if step.flag else ()
        brings = [keys if at == number else other for at, other in enumerate(parts[place].brings)]
        parts[place] = replace(parts[place], brings=brings)
        self.engine.set_slot_keys(job, self.engine.allocation(job).slots[earlier + number].number, keys)

    def do_hold(self, step: Step) -> None:
        nodes = self.engine.graph.of_type("node")
        if not nodes:
            return
        node = nodes[step.which % len(nodes)]
        kind = ("core", "cpu", "memory", "gpu")[step.amount % 4]
        name = f"hold {step.which % 3}"
        amounts = {kind: step.amount, "core": step.amount % 3}
        self.ledger.holds.pop(name, None)
        brings = KEYS[step.amount % len(KEYS)][0] if step.which % 2 else ()
        self.ledger.holds[name] = ExternalUsage(node.path(), amounts, step.flag, brings)
        self.engine.external_usage.set(name, node, amounts, standing=step.flag, brings=brings)
        self.ledger.read_holds()

    def do_unhold(self, step: Step) -> None:
        name = f"hold {step.which % 3}"
        self.ledger.holds.pop(name, None)
        self.engine.external_usage.remove(name)
        assert name not in self.engine.external_usage

    def do_status(self, step: Step) -> None:
        vertices = list(self.engine.graph.vertices.values())
        self.engine.set_status(vertices[step.which % len(vertices)], step.flag)

    def do_resize(self, step: Step) -> None:
        pools = [v for v in self.engine.graph.vertices.values() if v.type in ("memory", "cpu")]
        if pools:
            self.engine.resize(pools[step.which % len(pools)], step.amount)

    def do_attach(self, step: Step) -> None:
        """A node with a core, and maybe something of a type that was not there before."""
        root = self.engine.graph.root
        self.attached += 1
        number = 100 + self.attached
        node, path = f"{number}0", f"{root.path()}/node{number}"
        kinds = ["core", "disk"] if step.flag else ["core"]
        children = [
            (f"{number}{place}", {"type": kind, "id": 0, "rank": number, "path": f"{path}/{kind}0"})
            for place, kind in enumerate(kinds, start=1)
        ]
        nodes = [
            ("0", {"type": "cluster", "id": 0, "path": root.path()}),
            (node, {"type": "node", "id": number, "rank": number, "path": path}),
            *children,
        ]
        fresh = attach(self.engine, jgf(nodes, [("0", node), *((node, key) for key, _ in children)]))
        assert [vertex.type for vertex in fresh] == ["node", *kinds]

    def do_add(self, step: Step) -> None:
        """A leaf of a known type or not, also of types that others have as inner vertices; or a subtree."""
        graph = self.engine.graph
        self.attached += 1
        number = 100 + self.attached
        inner = [vertex for vertex in graph.vertices.values() if vertex.type in ("cluster", "rack", "node")]
        parent = inner[step.which % len(inner)]
        core = VertexTree(VertexSpec("core", number, rank=number))
        pool = VertexTree(VertexSpec("cpu", number, rank=number, size=step.amount, divisible=True))
        trees = {
            "node": [core, pool, VertexTree(VertexSpec(f"kind{step.amount}", number, rank=number))],
            "rack": [
                VertexTree(VertexSpec("node", number, rank=number), (core, pool)),
                VertexTree(VertexSpec("box", number), (core,)),
                VertexTree(VertexSpec("box", number)),
            ],
            "cluster": [
                VertexTree(
                    VertexSpec("rack", number),
                    (VertexTree(VertexSpec("node", number, rank=number), (core,)),),
                ),
                VertexTree(VertexSpec("rack", number)),
                VertexTree(VertexSpec("socket", number, rank=number), (core,)),
            ],
        }[parent.type]
        top = self.engine.add(parent, trees[step.amount % 3])
        assert top.parent() is parent
        self.ledger.read_holds()

    def do_remove(self, step: Step) -> None:
        tops = [*self.engine.graph.of_type("rack"), *self.engine.graph.of_type("node")]
        if len(tops) >= 2:
            self.remove(tops[step.which % len(tops)])

    def do_remove_leaf(self, step: Step) -> None:
        leaves = [v for v in self.engine.graph.vertices.values() if not v.below() and v.parent() is not None]
        if len(leaves) >= 2:
            self.remove(leaves[step.which % len(leaves)])

    def remove(self, top: Vertex) -> None:
        inside = {vertex.path() for vertex in self.engine.graph.walk(top)}
        # Who has a vertex above has lost a piece of it.
        lost = inside | {above.path() for above in top.ancestors()}
        units = {job: [part.units for part in parts] for job, parts in self.ledger.jobs.items()}
        hit = [j for j, parts in units.items() if any(lost & {p for p, u in x.items() if u} for x in parts)]
        told = self.engine.remove(top)
        for job in hit:
            self.ledger.drop_paths(job, inside)
        assert set(told.emptied) == {job for job in hit if job not in self.ledger.jobs}
        assert set(told.shrunk) == {job for job in hit if job in self.ledger.jobs}
        self.ledger.holds = {name: h for name, h in self.ledger.holds.items() if h.at not in inside}

    def say(self, answer: MatchResult) -> None:
        self.said.append(str(answer))

    def book(self, job: int, answer: Allocation, request: Request) -> None:
        self.check(job, answer, request)
        self.ledger.jobs.setdefault(job, []).append(part_of(answer, request))
        self.past.append((part_of(answer, request), answer, request))

    def check(self, job: int, answer: Allocation, request: Request) -> None:
        """The decision was allowed, is whole, and lies where the request wants it."""
        part = part_of(answer, request)
        assert self.ledger.conflict(part, self.now) is None
        assert self.ledger.key_conflict(part, self.now) is None
        vertices = self.ledger.vertices()
        chosen = {path for slot in part.slots for path in slot}
        chosen |= {path for path in part.units if not any(is_below(path, top) for top in part.alone - {path})}
        for path in chosen:  # What comes along below a vertex that is taken whole may be down.
            assert all(vertex.up for above, vertex in vertices.items() if is_below(path, above))
        for number, group in enumerate(request.groups):
            self.check_group(number, group, answer)
        mine = [*self.ledger.jobs.get(job, []), part]
        if request.placement.distinct_nodes:
            used = [node for theirs in mine for node in theirs.nodes if node is not None]
            assert len(used) == len(set(used)), "distinct nodes"
        if request.placement.within:
            tops = [path for path, vertex in vertices.items() if vertex.type == request.placement.within]
            # What the slots have; a node that comes along because nodes are taken whole may reach beyond.
            paths = [path for theirs in mine for held in theirs.slots or [theirs.units] for path in held]
            assert any(all(is_below(path, top) for path in paths) for top in tops), "all below one vertex"

    def check_group(self, number: int, group: Group, answer: Allocation) -> None:
        outer = group.resources[0]
        given = [slot for slot in answer.slots if slot.group == number]
        needed, slot_want = 1, outer
        while slot_want.type != "slot" and slot_want.with_:
            needed *= slot_want.count.min
            slot_want = slot_want.with_[0]
        if slot_want.type == "slot":
            assert len(given) == needed * slot_want.count.min, "a group is whole"
        for slot in given:
            for inner in slot_want.with_:
                grants = [grant for grant in slot.grants if grant.vertex.type == inner.type]
                units = sum(grant.units for grant in grants)
                assert units >= inner.count.min
                if inner.exclusive is not True and all(grant.vertex.divisible for grant in grants):
                    assert units == inner.count.min
            nodes = [slot.node] if slot.node is not None else []
            assert all(matches(group.constraint, node) for node in nodes if group.constraint is not None)

    def empty(self) -> None:
        """All that is released leaves nothing behind."""
        for job in list(self.engine.jobs):
            self.engine.release(job)
        for name in list(self.ledger.holds):
            self.engine.external_usage.remove(name)
        assert all(vertex.state is None for vertex in self.engine.graph.vertices.values())


def world_of(shape: Shape, policy: str) -> Backend:
    engine = Engine(shape.graph(), policy)
    return Backend(engine, Booker(engine.graph))


@settings(max_examples=settings().max_examples * 2)
@given(shape=SHAPES, policy=st.sampled_from(POLICIES), history=histories(requests()))
def test_no_history_breaks_the_books(shape: Shape, policy: str, history: list[Step]) -> None:
    backend = world_of(shape, policy)
    for step in history:
        backend.play(step)
    backend.empty()


@given(shape=SOCKET_SHAPES, policy=st.sampled_from(POLICIES), history=histories(socket_requests()))
def test_levels_inside_a_node_keep_the_books(shape: Shape, policy: str, history: list[Step]) -> None:
    backend = world_of(shape, policy)
    for step in history:
        backend.play(step)
    backend.empty()


@given(shape=SHAPES, policy=st.sampled_from(POLICIES), history=histories(requests()))
def test_the_same_history_gives_the_same_answers(shape: Shape, policy: str, history: list[Step]) -> None:
    first, second = world_of(shape, policy), world_of(shape, policy)
    for step in history:
        first.play(step)
    for step in history:
        second.play(step)
    assert first.said == second.said
    assert dump(first.engine) == dump(second.engine)


@given(shape=SHAPES, policy=st.sampled_from(POLICIES), queue=st.lists(requests(), min_size=1, max_size=6))
def test_a_restart_that_applies_what_is_known_decides_alike(
    shape: Shape, policy: str, queue: list[Request]
) -> None:
    """Bookings are all there is: an engine that is told of them is the engine that made them."""
    before, after = Engine(shape.graph(), policy), Engine(shape.graph(), policy)
    for job, request in enumerate(queue):
        request = replace(request, placement=Placement())
        answer = before.match(job, request, 0, MatchOp.ALLOCATE_ORELSE_RESERVE)
        if isinstance(answer, Allocation):
            claims = [
                replace(claim, vertex=after.graph.vertices[claim.vertex.index], above=None)
                for part in before.jobs[job].parts.values()
                for claim in part.claims.values()
            ]
            there = after.graph.vertices
            slots = tuple(
                replace(
                    slot,
                    node=there[slot.node.index] if slot.node is not None else None,
                    grants=tuple(replace(grant, vertex=there[grant.vertex.index]) for grant in slot.grants),
                )
                for slot in answer.slots
            )
            after.update(job, claims, answer.start_s, answer.end_s, answer.kind, 0, slots=slots)
    assert dump(before) == dump(after)
    probe = request_with(resource_of("slot", 1, resource_of("core")), duration_s=5)
    told = [engine.match(-1, probe, 0, MatchOp.WITHOUT_ALLOCATING_FUTURE) for engine in (before, after)]
    assert str(told[0]) == str(told[1])


@given(
    shape=SHAPES,
    policy=st.sampled_from(POLICIES),
    queue=st.lists(st.tuples(requests(), st.sampled_from([1, 3, 9, None])), min_size=1, max_size=6),
)
def test_an_end_that_is_moved_is_booked_as_if_it_had_been_planned(
    shape: Shape, policy: str, queue: list[tuple[Request, int | None]]
) -> None:
    moved, planned = Engine(shape.graph(), policy), Engine(shape.graph(), policy)
    for job, (request, duration_s) in enumerate(queue):
        request = replace(request, placement=Placement())
        moved.match(job, request, 0)
        planned.match(job, replace(request, duration_s=duration_s), 0)
    for job in moved.jobs:
        moved.set_end(job, queue[job][1])
    assert dump(moved) == dump(planned)
    assert allocations_of(moved) == allocations_of(planned)
    assert moved.instants(0) == planned.instants(0)


@pytest.mark.parametrize("asked", [(SHAPES, requests()), (SOCKET_SHAPES, socket_requests())])
@given(data=st.data(), policy=st.sampled_from(POLICIES))
def test_what_is_kept_up_to_date_equals_what_is_computed_anew(
    asked: tuple[st.SearchStrategy[Shape], st.SearchStrategy[Request]], data: st.DataObject, policy: str
) -> None:
    shape, history = data.draw(asked[0]), data.draw(histories(asked[1]))
    kept, computed = world_of(shape, policy), world_of(shape, policy)
    filters = Filters(leaves_everywhere=computed.engine.policy.usage is not Usage.IGNORED)
    computed.count_again(filters)
    computed.engine.graph.is_tree = False  # Everything is then done the slow way, as with shared vertices.
    for step in history:
        kept.play(step)
        computed.play(step)
        computed.count_again(filters)
        assert totals_of(kept.engine) == totals_of(computed.engine)
        assert kept.engine.filters.tracked == filters.tracked
        assert dump(kept.engine) == dump(computed.engine)
        assert allocations_of(kept.engine) == allocations_of(computed.engine)
    assert kept.said == computed.said


def totals_of(engine: Engine) -> dict[str, object]:
    """The totals of every vertex; their order matters, because `first` goes by the last."""
    return {v.path(): v.totals and list(v.totals.items()) for v in engine.graph.vertices.values()}


def allocations_of(engine: Engine) -> dict[int, object]:
    """Everything that jobs hold, and what is looked up about it."""
    found: dict[int, object] = {}
    for job, holder in engine.jobs.items():
        slots = [slot for part in holder.parts.values() for slot in part.slots]
        assert holder.end == max(part.span.end for part in holder.parts.values())
        assert set(holder.nodes()) == {slot.node.index for slot in slots if slot.node is not None}
        assert all(slot in holder.parts[holder.part_of_slot(slot.number) or 0].slots for slot in slots)
        vertices = [claim.vertex for part in holder.parts.values() for claim in part.claims.values()]
        vertices += [grant.vertex for slot in slots for grant in slot.grants]
        assert all(engine.graph.vertices[vertex.index] is vertex for vertex in vertices)
        found[job] = str(engine.allocation(job)), list(holder.parts)
    return found


@given(
    shape=SHAPES,
    policy=st.sampled_from(POLICIES),
    history=histories(requests()),
    at=st.integers(1, 12),
    copy_first=st.booleans(),
)
def test_a_copy_goes_on_like_its_original_and_apart_from_it(
    shape: Shape, policy: str, history: list[Step], at: int, copy_first: bool
) -> None:
    first = world_of(shape, policy)
    for step in history[:at]:
        first.play(step)
    second = first.copy()
    if copy_first:
        first, second = second, first
    at_copy = dump(first.engine), totals_of(first.engine)
    assert at_copy == (dump(second.engine), totals_of(second.engine))
    for step in history[at:]:
        first.play(step)
    assert at_copy == (dump(second.engine), totals_of(second.engine))
    for step in history[at:]:
        second.play(step)
    assert first.said == second.said
    assert dump(first.engine) == dump(second.engine)
    assert allocations_of(first.engine) == allocations_of(second.engine)
    mine = {id(vertex) for vertex in first.engine.graph.vertices.values()}
    assert not any(id(vertex) in mine for vertex in second.engine.graph.vertices.values())
    first.empty()
    second.empty()
