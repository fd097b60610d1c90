"""Status and constraints: which vertices a match may enter at all."""

from __future__ import annotations

import pytest

from builders import at, held, on, request_with, resource_of, sockets_of
from penstock.engine import (
    Allocation,
    Engine,
    Graph,
    MatchOp,
    Never,
    NotNow,
    Satisfiable,
    VertexSpec,
    cluster_of,
    slot_request,
)
from penstock.model.constraint import (
    And,
    Constraint,
    HostIn,
    Not,
    Or,
    Properties,
    Ranks,
    Value,
    ValueOperator,
)

ONE = slot_request({"core": 1})


def four_nodes() -> Engine:
    """fast: 1 and 2; big: 2 and 3; gen has the number of the node."""
    engine = Engine(cluster_of(nodes=4, cores=1), "lonode")
    for number in range(4):
        node = at(engine, f"node{number}")
        engine.set_property(node, "gen", str(number))
        if number in (1, 2):
            engine.set_property(node, "fast", "")
        if number in (2, 3):
            engine.set_property(node, "big", "yes")
    return engine


@pytest.mark.parametrize(
    ("constraint", "nodes"),
    [
        (Properties(("fast",)), [1, 2]),
        (Properties(("fast", "big")), [2]),
        (Properties(("^fast", "^big")), [0]),
        (And((Properties(("fast",)), Not((Properties(("big",)),)))), [1]),
        (Or((on("node0", "node3"), Ranks(frozenset({2})))), [0, 2, 3]),
        (Not((Ranks(frozenset({0, 1})),)), [2, 3]),
        (HostIn(frozenset({"node3"})), [3]),
        (Properties(("nosuch",)), []),
        (Value("gen", ValueOperator.IN, ("1", "3")), [1, 3]),
        (Value("gen", ValueOperator.NOT_IN, ("1", "3")), [0, 2]),
        (Value("big", ValueOperator.EXISTS), [2, 3]),
        (Value("big", ValueOperator.DOES_NOT_EXIST), [0, 1]),
        (Value("gen", ValueOperator.GT, ("1",)), [2, 3]),
        (Value("gen", ValueOperator.LT, ("1",)), [0]),
    ],
)
def test_a_constraint_lets_only_some_nodes_in(constraint: Constraint, nodes: list[int]) -> None:
    engine = four_nodes()
    request = slot_request({"core": 1}, constraint=constraint)
    answers = [engine.match(job, request, 0) for job in range(5)]
    paths = [held(answer)[0] for answer in answers if isinstance(answer, Allocation)]
    assert paths == [f"node{number}/core0" for number in nodes]
    assert isinstance(answers[4], NotNow if nodes else Never)


def test_a_property_told_later_counts_from_then_on() -> None:
    engine = four_nodes()
    request = slot_request({"core": 1}, constraint=Properties(("quiet",)))
    assert isinstance(engine.match(1, request, 0), Never)
    engine.set_property(at(engine, "node3"), "quiet", "")
    assert held(engine.match(1, request, 0)) == ["node3/core0"]
    engine.release(1)
    engine.remove_property(at(engine, "node3"), "quiet")
    assert isinstance(engine.match(1, request, 0), Never)


def test_constraints_speak_of_nodes_alone() -> None:
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    rack = graph.add_child(root, VertexSpec("rack", 0))
    node = graph.add_child(rack, VertexSpec("node", 0, properties={"fast": ""}))
    graph.add_child(node, VertexSpec("core", 0))
    store = graph.add_child(rack, VertexSpec("storage_node", 0))
    graph.add_child(store, VertexSpec("ssd", 0))
    engine = Engine(graph, "low")
    fast = Properties(("fast",))
    assert isinstance(engine.match(1, slot_request({"core": 1}, constraint=fast), 0), Allocation)
    assert isinstance(engine.match(2, slot_request({"ssd": 1}, constraint=fast), 0), Never)
    assert isinstance(
        engine.match(
            3, request_with(resource_of("slot", 1, resource_of("ssd")), constraint=on("storage_node0")), 0
        ),
        Allocation,
    )


def test_a_constraint_holds_above_a_domain_too() -> None:
    engine = Engine(sockets_of(nodes=2), "low")
    request = request_with(
        resource_of("slot", 1, resource_of("core")), within="socket", constraint=on("node1")
    )
    assert held(engine.match(1, request, 0)) == ["node1/socket0/core0"]


@pytest.mark.parametrize("path", ["node0", "", "node0/core0"])
def test_nothing_new_goes_to_what_is_down_or_below_it(path: str) -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    engine.set_status(at(engine, path), up=False)
    assert isinstance(engine.match(1, ONE, 0), NotNow)
    assert engine.match(1, ONE, 0, MatchOp.SATISFIABILITY) == Satisfiable()
    engine.set_status(at(engine, path), up=True)
    assert isinstance(engine.match(1, ONE, 0), Allocation)


def test_what_is_down_is_not_planned_for_either() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    engine.match(1, slot_request({"core": 1}, duration_s=10), 0)
    engine.set_status(at(engine, "node0"), up=False)
    answer = engine.match(2, ONE, 0, MatchOp.ALLOCATE_ORELSE_RESERVE)
    assert isinstance(answer, NotNow)
    assert answer.earliest_s is None


def test_what_runs_on_a_node_that_goes_down_stays_allocated() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2))
    engine.match(1, ONE, 0)
    engine.set_status(at(engine, "node0"), up=False)
    assert held(engine.allocation(1)) == ["node0/core1"]
    engine.set_status(at(engine, "node0"), up=True)
    assert held(engine.match(2, ONE, 0)) == ["node0/core0"]


@pytest.mark.parametrize("within", ["rack", "node"])
def test_a_domain_below_something_down_is_not_entered(within: str) -> None:
    engine = Engine(cluster_of(nodes=2, cores=1, racks=2), "low")
    engine.set_status(at(engine, "rack0"), up=False)
    assert held(
        engine.match(1, request_with(resource_of("slot", 1, resource_of("core")), within=within), 0)
    ) == ["rack1/node1/core0"]
