"""The engine chooses what the rules choose: every answer is compared with the oracle's.

Graphs are irregular and small, ids are random, some vertices are down. A queue of random requests
is matched one after another while the clock moves, so that most of them find others there: some
that run, some that should have ended, some that are reserved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from histories import CARRIER, KEYS, PORT, RACK, SELECTED, with_keys
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger import Booker, ExternalUsage, part_of
from oracle import Match, Oracle, allowed_count, fits_somehow

from builders import resource_of
from penstock.engine import (
    Allocation,
    Engine,
    Graph,
    Group,
    MatchOp,
    MatchResult,
    Never,
    NotNow,
    Placement,
    Request,
    Vertex,
    VertexSpec,
)
from penstock.engine.planner import FOREVER
from penstock.engine.request import InvalidResources
from penstock.model.constraint import And, Constraint, Hostlist, Not, Or, Properties, Ranks
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobspec import UINT_MAX, Count, Resource

POLICIES = ["low", "high", "lonode", "hinode", "lonodex", "hinodex", "first", "firstnodex"]
VERTICES_MAX = 30
IDS = st.integers(0, 7)


class Plot:
    """A graph while it is drawn."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.graph = Graph()
        self.root = self.graph.add_root(VertexSpec("cluster", 0))
        self.nodes = 0

    def child(self, parent: Vertex, kind: str, number: int, **facts: object) -> Vertex | None:
        if len(self.graph) >= VERTICES_MAX:
            return None
        up = self.draw(st.sampled_from([True] * 12 + [False]))
        return self.graph.add_child(parent, replace(VertexSpec(kind, number, up=up), **facts))  # type: ignore[arg-type]

    def several(self, parent: Vertex, kind: str, most: int, **facts: object) -> list[Vertex]:
        numbers = self.draw(st.lists(IDS, max_size=most, min_size=min(most, 1), unique=True))
        made = [self.child(parent, kind, number, **facts) for number in numbers]
        return [vertex for vertex in made if vertex is not None]

    def node(self, parent: Vertex) -> None:
        tags = dict.fromkeys(self.draw(st.sets(st.sampled_from(["fast", "big"]))), "")
        node = self.child(parent, "node", self.draw(IDS) * 10 + self.nodes, rank=self.nodes, properties=tags)
        self.nodes += 1
        if node is None:
            return
        paths = self.several(node, "socket", 2) if self.draw(st.integers(0, 3)) == 3 else [node]
        for place in paths:
            self.several(place, "core", 4)
            self.several(place, "gpu", self.draw(st.integers(0, 1)))
            for number, size in enumerate(self.draw(st.sampled_from([(2, 2), (1, 3), (4,), (2, 1, 2), ()]))):
                self.child(place, "memory", number, size=size)
            if self.draw(st.integers(0, 3)):
                self.child(place, "cpu", 0, size=self.draw(st.integers(3, 6)), divisible=True)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    plot = Plot(draw)
    racks = plot.several(plot.root, "rack", draw(st.integers(0, 2)))
    for _ in range(draw(st.sampled_from([2, 3, 4, 1]))):
        plot.node(draw(st.sampled_from([*racks, plot.root])) if racks else plot.root)
    return plot.graph


COUNTS = st.sampled_from(
    [
        *[Count(1, 1)] * 9,
        *[Count(2, 2)] * 4,
        Count(3, 3),
        Count(1, 3),
        Count(1, 4, "+", 2),
        Count(2, UINT_MAX),
        Count(1, 4, "*", 2),
        Count(2, 16, "^", 2),
    ]
)
FEW = st.sampled_from([Count(1, 1), Count(1, 1), Count(2, 2), Count(1, 2), Count(1, UINT_MAX)])


@st.composite
def leaves(draw: st.DrawFn, alone: bool | None = None) -> tuple[Resource, ...]:
    kinds = draw(
        st.sampled_from([["core"], ["core"], ["memory"], ["cpu"], ["gpu", "core"], ["core", "memory", "cpu"]])
    )
    return tuple(resource_of(kind, draw(COUNTS), exclusive=alone) for kind in kinds)


@st.composite
def slots(draw: st.DrawFn) -> Resource:
    alone = draw(st.sampled_from([None, None, True]))
    inner = draw(
        st.one_of(
            *[leaves()] * 5,
            leaves(alone),
            leaves().map(lambda inside: (resource_of("socket", 1, *inside, exclusive=alone),)),
            leaves().map(lambda inside: (resource_of("node", 1, *inside),)),
            st.just((resource_of("node", 1, exclusive=alone),)),
            st.just((resource_of("socket", 1, exclusive=alone),)),
        )
    )
    return resource_of("slot", draw(COUNTS), *inner)


@st.composite
def trees(draw: st.DrawFn) -> tuple[Resource, ...]:
    """Any prefix may be missing, and some levels that exist are left out: those match nothing."""
    alone = draw(st.sampled_from([None, None, None, True]))
    slot = draw(slots())
    if draw(st.integers(0, 4)) == 0:
        tree = (
            draw(leaves(True)) if draw(st.booleans()) else (resource_of("node", draw(FEW), exclusive=True),)
        )
    else:
        tree = (slot,)
    above = [*[[]] * 6, ["node"], ["node"], ["node"], ["socket"], ["rack"], ["node", "rack"]]
    for kind in draw(st.sampled_from(above)):
        tree = (resource_of(kind, draw(FEW), *tree, exclusive=alone if kind == "node" else None),)
    return tree


CONSTRAINTS: st.SearchStrategy[Constraint | None] = st.sampled_from(
    [
        *[None] * 6,
        Properties(("fast",)),
        Properties(("^fast", "big")),
        Ranks(frozenset({0, 2})),
        Or((Hostlist(frozenset({"node0"})), Properties(("big",)))),
        And((Properties(("fast",)), Not((Properties(("big",)),)))),
    ]
)


def books_something(resources: tuple[Resource, ...]) -> bool:
    return any(r.type == "slot" or r.exclusive is True or books_something(r.with_) for r in resources)


PLAIN_GROUPS = st.builds(Group, trees(), CONSTRAINTS).filter(lambda group: books_something(group.resources))
GROUPS = st.builds(with_keys, PLAIN_GROUPS, st.integers(0, 3 * len(KEYS)))
KEYED_GROUPS = st.builds(with_keys, PLAIN_GROUPS, st.integers(0, len(KEYS)))


@dataclass(frozen=True, slots=True)
class Use:
    """What others begin to use of a node, maybe more than there is."""

    node: int
    kind: str
    units: int
    standing: bool
    brings: tuple[ExclusionKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Turn:
    """A step of the clock, maybe the end of a job, and a request."""

    wait_s: int
    releases: bool
    group: Group
    duration_s: int | None
    may_wait: bool
    hold: Use | None = None


TURNS = st.builds(
    Turn,
    st.sampled_from([0, 0, 0, 1, 3]),
    st.sampled_from([False, False, False, True]),
    GROUPS,
    st.sampled_from([2, 4, 8, 8, None]),
    st.booleans(),
)
USES = st.builds(
    Use,
    st.integers(0, 3),
    st.sampled_from(["core", "memory", "cpu"]),
    st.integers(0, 7),
    st.booleans(),
    st.sampled_from([(), (), (PORT,), (CARRIER, RACK), (SELECTED,)]),
)
SHARED_TURNS = st.builds(lambda turn, use: replace(turn, hold=use), TURNS, st.none() | USES)


def expected(ledger: Booker, engine: Engine, turn: Turn, now: int) -> tuple[int, Match] | None:
    """The start and the set, by trying every instant at which anything begins or ends."""
    parts = [part for parts in ledger.jobs.values() for part in parts]
    events = {time for part in parts for time in (part.start, part.lasts_until(now)) if now < time < FOREVER}
    events |= {part.end for part in parts if now < part.end < FOREVER}
    for start in [now, *(sorted(events) if turn.may_wait else [])]:
        end = FOREVER if turn.duration_s is None else start + turn.duration_s
        found = Oracle(ledger, engine.policy, turn.group, now, start, end).match()
        if found is not None:
            return start, found
    return None


def units(answer: MatchResult) -> dict[str, int]:
    assert isinstance(answer, Allocation), answer
    return part_of(answer).units


def in_order(slots: list[dict[str, int]]) -> list[list[tuple[str, int]]]:
    return sorted(sorted(slot.items()) for slot in slots)


def play(graph: Graph, policy: str, turns: list[Turn]) -> None:
    """Matches turn by turn, and compares every answer with the oracle's."""
    engine, ledger, now = Engine(graph, policy), Booker(graph), 0
    for job, turn in enumerate(turns):
        now += turn.wait_s
        if turn.releases and ledger.jobs:
            oldest = min(ledger.jobs)
            engine.release(oldest)
            del ledger.jobs[oldest]
        nodes = graph.of_type("node")
        if turn.hold is not None and nodes:
            node, amounts = nodes[turn.hold.node % len(nodes)], {turn.hold.kind: turn.hold.units}
            ledger.holds.pop("others", None)
            standing, brings = turn.hold.standing, turn.hold.brings
            ledger.holds["others"] = ExternalUsage(node.path(), amounts, standing, brings)
            engine.external_usage.set("others", node, amounts, standing=standing, brings=brings)
        assert ledger.read_holds() == []
        op = MatchOp.ALLOCATE_ORELSE_RESERVE if turn.may_wait else MatchOp.ALLOCATE
        answer = engine.match(job, Request((turn.group,), turn.duration_s), now, op)
        best = expected(ledger, engine, turn, now)
        if best is None:
            assert isinstance(answer, NotNow | Never)
            continue
        start, match = best
        assert isinstance(answer, Allocation), f"{answer} instead of {match} at {start}"
        assert answer.start_s == start
        assert units(answer) == match.held
        assert in_order(part_of(answer).slots) == in_order(match.slots)
        ledger.jobs[job] = [part_of(answer, Request((turn.group,)))]


@settings(max_examples=settings().max_examples * 4)
@given(graph=graphs(), policy=st.sampled_from(POLICIES), turns=st.lists(TURNS, min_size=4, max_size=10))
def test_the_engine_chooses_what_the_rules_choose(graph: Graph, policy: str, turns: list[Turn]) -> None:
    play(graph, policy, turns)


@settings(max_examples=settings().max_examples * 2)
@given(
    graph=graphs(),
    policy=st.sampled_from([name for name in POLICIES if not name.startswith("first")]),
    turns=st.lists(SHARED_TURNS, min_size=4, max_size=10),
)
def test_use_by_others_changes_only_what_it_takes(graph: Graph, policy: str, turns: list[Turn]) -> None:
    play(graph, policy, turns)


KEYED_TURNS = st.builds(
    lambda turn, group, use: replace(turn, group=group, hold=use), TURNS, KEYED_GROUPS, st.none() | USES
)


@settings(max_examples=settings().max_examples * 2)
@given(
    graph=graphs(),
    policy=st.sampled_from([name for name in POLICIES if not name.startswith("first")]),
    turns=st.lists(KEYED_TURNS, min_size=4, max_size=10),
)
def test_keys_exclude_what_the_rules_exclude(graph: Graph, policy: str, turns: list[Turn]) -> None:
    play(graph, policy, turns)


PLAIN = st.sampled_from(["core", "core", "gpu", "cpu"])
PLAIN_TURNS = st.builds(
    lambda kind, amount, count, duration: Turn(
        0, False, Group((resource_of("slot", count, resource_of(kind, amount)),)), duration, False
    ),
    PLAIN,
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 6),
)


def held_units(resource: Resource, times: int, inside: bool, held: dict[str, int]) -> None:
    """Adds up what a resource holds at least: what lies in slots, and what is asked for alone."""
    inside = inside or resource.exclusive is True
    least = times * resource.count.min
    if inside and resource.type != "slot":
        held[resource.type] = held.get(resource.type, 0) + least
    for inner in resource.with_:
        held_units(inner, least, inside or resource.type == "slot", held)


def slots_asked(resource: Resource, times: int) -> int:
    least = times * resource.count.min
    return least if resource.type == "slot" else sum(slots_asked(inner, least) for inner in resource.with_)


def slots_alone(groups: list[Group]) -> dict[ExclusionKey, int]:
    """By key of nodes: the slots that each need a node without the key."""
    alone: dict[ExclusionKey, int] = {}
    for group in groups:
        for key in group.brings:
            if key in group.forbids and key.level == "node":
                alone[key] = alone.get(key, 0) + sum(slots_asked(one, 1) for one in group.resources)
    return alone


def fit_together(
    tops: list[Vertex], groups: list[Group], distinct: bool, standing: set[tuple[str, ExclusionKey]]
) -> bool:
    """Whether the groups, added up, are not more than there is below some top."""
    held: dict[str, int] = {}
    for group in groups:
        for resource in group.resources:
            held_units(resource, 1, False, held)
    slots = sum(slots_asked(resource, 1) for group in groups for resource in group.resources)
    alone = slots_alone(groups)
    for top in tops:
        below, pending = list[Vertex](), [top]
        while pending:
            below.append(pending.pop())
            pending.extend(below[-1].below())
        nodes = sum(1 for vertex in below if vertex.type == "node")
        free_of = {
            key: sum(1 for vertex in below if vertex.type == "node" and (vertex.path(), key) not in standing)
            for key in alone
        }
        sizes = {kind: sum(v.size for v in below if v.type == kind) for kind in held}
        is_apart = all(count <= free_of[key] for key, count in alone.items())
        is_enough = all(sizes[kind] >= units for kind, units in held.items())
        if is_enough and is_apart and not (distinct and slots > nodes):
            return True
    return False


@given(graph=graphs(), policy=st.sampled_from(POLICIES), turns=st.lists(PLAIN_TURNS, min_size=2, max_size=8))
def test_nothing_is_possible_before_the_earliest_time_that_is_told(
    graph: Graph, policy: str, turns: list[Turn]
) -> None:
    engine, ledger = Engine(graph, policy), Booker(graph)
    for job, turn in enumerate(turns):
        request = Request((turn.group,), turn.duration_s)
        answer = engine.match(job, request, 0)
        if isinstance(answer, Allocation):
            ledger.jobs[job] = [part_of(answer, Request((turn.group,)))]
            continue
        told = answer.earliest_s if isinstance(answer, NotNow) else None
        last = max((part.end for parts in ledger.jobs.values() for part in parts), default=0)
        assert turn.duration_s is not None
        possible = [
            start
            for start in range(last + 1)
            if Oracle(ledger, engine.policy, turn.group, 0, start, start + turn.duration_s).match()
            is not None
        ]
        assert told == (possible[0] if possible else None)
        reserved = engine.match(job, request, 0, MatchOp.ALLOCATE_ORELSE_RESERVE)
        if told is not None:
            assert isinstance(reserved, Allocation)
            assert reserved.start_s == told
            ledger.jobs[job] = [part_of(reserved)]


@settings(max_examples=settings().max_examples * 3)
@given(
    graph=graphs(),
    policy=st.sampled_from(POLICIES),
    groups=st.lists(KEYED_GROUPS, min_size=1, max_size=2),
    distinct=st.booleans(),
    within=st.sampled_from(["", "", "node", "rack"]),
    daemons=st.lists(st.tuples(st.integers(0, 3), st.sampled_from([PORT, RACK, CARRIER])), max_size=3),
)
def test_never_is_said_only_where_no_packing_exists(
    graph: Graph,
    policy: str,
    groups: list[Group],
    distinct: bool,
    within: str,
    daemons: list[tuple[int, ExclusionKey]],
) -> None:
    if within not in ("", *graph.types()):
        within = ""
    engine = Engine(graph, policy)
    nodes, standing = graph.of_type("node"), set[tuple[str, ExclusionKey]]()
    for number, (place, key) in enumerate(daemons if nodes else ()):
        node = nodes[place % len(nodes)]
        engine.external_usage.set(f"daemon {number}", node, {}, standing=True, brings=(key,))
        standing |= {(v.path(), key) for v in (node, *node.ancestors()) if v.type == key.level}
    request = Request(tuple(groups), None, Placement(distinct, within))
    try:
        answer = engine.match(1, request, 0)
    except InvalidResources:  # Several slots in one node, and all on distinct ones.
        assert distinct
        return
    tops = graph.of_type(within) if within else [graph.root]
    possible = [any(fits_somehow(top, group, distinct, standing) for top in tops) for group in groups]
    if isinstance(answer, Never):
        assert not all(possible) or not fit_together(tops, groups, distinct, standing)
    elif isinstance(answer, Allocation):
        assert all(possible)


@given(graph=graphs(), policy=st.sampled_from(POLICIES), group=GROUPS)
def test_what_the_rules_find_on_an_idle_graph_is_satisfiable(graph: Graph, policy: str, group: Group) -> None:
    engine = Engine(graph, policy)
    for vertex in graph.vertices.values():
        vertex.up = True
    found = Oracle(Booker(graph), engine.policy, group, 0, 0, 1).match()
    answer = engine.match(1, Request((group,)), 0, MatchOp.SATISFIABILITY)
    assert isinstance(answer, NotNow | Never) == (found is None)


FILTERS = [
    "",
    "ALL:core",
    "ALL:core,ALL:node",
    "ALL:gpu,ALL:memory",
    "node:core,rack:node",
    "cluster:cpu,socket:core",
]


@given(
    graph=graphs(),
    policy=st.sampled_from([name for name in POLICIES if not name.startswith("first")]),
    queue=st.lists(st.tuples(GROUPS, st.sampled_from([2, 5, None])), min_size=1, max_size=6),
)
def test_filters_change_no_answer(graph: Graph, policy: str, queue: list[tuple[Group, int | None]]) -> None:
    told: list[list[str]] = []
    for filters in FILTERS:
        engine = Engine(graph, policy, filters)
        answers = [
            engine.match(
                job, Request((group,), duration), job, MatchOp.ALLOCATE_ORELSE_RESERVE, explain=False
            )
            for job, (group, duration) in enumerate(queue)
        ]
        told.append([str(answer) for answer in answers])
        for job in list(engine.jobs):
            engine.release(job)
    assert all(answers == told[0] for answers in told)


@given(
    count=st.builds(
        Count, st.integers(1, 5), st.integers(1, 40), st.sampled_from(["+", "*", "^"]), st.integers(2, 4)
    ).filter(lambda count: count.operator != "^" or count.min > 1),
    available=st.integers(0, 50),
)
def test_a_count_is_the_largest_that_its_operator_reaches(count: Count, available: int) -> None:
    assert count.pick(available) == allowed_count(count, available)
