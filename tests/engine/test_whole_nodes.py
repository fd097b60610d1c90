"""Allocations of whole nodes, which are booked at the node: inside, everything shows as if it were booked."""

from __future__ import annotations

import pytest

from builders import at, held, request_with, resource_of, sockets_of
from penstock.engine import Engine, MatchOp, NotNow, Request, Vertex, VertexSpec, VertexTree, slot_request
from penstock.engine.vertex_state import TimeView, Window, free_units

NOW = Window(0, 10, 0, TimeView.NOW)


def nodes_of(count: int, *, duration_s: int | None = 10) -> Request:
    """Whole nodes, with their sockets and cores listed."""
    node = resource_of("node", 1, resource_of("socket", 2, resource_of("core", 2)))
    return request_with(resource_of("slot", count, node), duration_s=duration_s)


def states(engine: Engine) -> dict[int, object]:
    """What is booked at every vertex."""

    def state_of(vertex: Vertex) -> object:
        state = vertex.state
        return None if state is None else (dict(state.bookings), state.plan, state.presence, state.below)

    return {vertex.index: state_of(vertex) for vertex in engine.graph.vertices.values()}


@pytest.mark.parametrize("policy", ["first", "low", "high", "lonodex"])
def test_every_vertex_of_a_whole_node_is_booked_as_the_walker_books_it(policy: str) -> None:
    engines = [Engine(sockets_of(nodes=4), policy, index=index) for index in (True, False)]
    answers = [
        [
            held(engine.match(1, nodes_of(2), 0)),
            held(engine.match(2, nodes_of(3), 0, MatchOp.ALLOCATE_ORELSE_RESERVE)),
        ]
        for engine in engines
    ]
    assert answers[0] == answers[1]
    assert states(engines[0]) == states(engines[1])
    for engine in engines:
        engine.release(1)
    assert states(engines[0]) == states(engines[1])
    for engine in engines:
        engine.release(2)
    assert set(states(engines[0]).values()) == {None}


def test_a_core_of_a_whole_node_is_not_free_while_the_job_has_it() -> None:
    engine = Engine(sockets_of(nodes=1), "low")
    engine.match(1, nodes_of(1), 0)
    assert free_units(at(engine, "node0/socket1/core0"), NOW) == 0
    engine.release(1)
    assert free_units(at(engine, "node0/socket1/core0"), NOW) == 1


def test_one_slot_of_a_job_on_whole_nodes_can_be_released() -> None:
    engine = Engine(sockets_of(nodes=2), "low")
    answer = engine.match(1, nodes_of(2), 0)
    assert [slot.node.name for slot in answer.slots if slot.node is not None] == ["node0", "node1"]
    assert not engine.release_slots(1, [0])
    assert held(engine.match(2, nodes_of(1), 0))[-1] == "node0"
    assert isinstance(engine.match(3, nodes_of(1), 0), NotNow)


def test_a_copy_of_the_engine_has_whole_nodes_of_its_own() -> None:
    engine = Engine(sockets_of(nodes=2), "low")
    engine.match(1, nodes_of(2), 0)
    copy = engine.copy()
    copy.release(1)
    assert free_units(at(copy, "node1/socket0/core1"), NOW) == 1
    assert free_units(at(engine, "node1/socket0/core1"), NOW) == 0
    assert states(engine.copy()) == states(engine)


def test_what_is_added_to_a_whole_node_later_does_not_belong_to_its_job() -> None:
    engine = Engine(sockets_of(nodes=1), "low")
    engine.match(1, nodes_of(1), 0)
    before = held(engine.allocation(1))
    engine.add(at(engine, "node0/socket0"), VertexTree(VertexSpec("core", 7)))
    assert held(engine.allocation(1)) == before
    engine.release(1)
    assert set(states(engine).values()) == {None}


def test_a_core_that_is_down_makes_its_node_differ_from_the_others() -> None:
    engine = Engine(sockets_of(nodes=2), "low")
    assert held(engine.match(1, nodes_of(1), 0))[-1] == "node0"
    engine.release(1)
    engine.set_status(at(engine, "node0/socket0/core0"), up=False)
    assert held(engine.match(2, nodes_of(1), 0))[-1] == "node1"


def test_whether_a_request_could_ever_fit_follows_the_resources() -> None:
    engine = Engine(sockets_of(nodes=1), "low")
    two = nodes_of(2)
    assert not engine.could_ever(two)
    engine.add(
        engine.graph.root,
        VertexTree(
            VertexSpec("node", 1),
            tuple(
                VertexTree(VertexSpec("socket", s), tuple(VertexTree(VertexSpec("core", c)) for c in (0, 1)))
                for s in (0, 1)
            ),
        ),
    )
    assert engine.could_ever(two)
    engine.external_usage.set("daemon", at(engine, "node1"), {"core": 1}, standing=True)
    assert not engine.could_ever(two)
    engine.external_usage.remove("daemon")
    assert engine.could_ever(two)
    engine.remove(at(engine, "node1"))
    assert not engine.could_ever(two)


def test_equal_scores_go_to_the_first_node_also_after_a_release() -> None:
    engine = Engine(sockets_of(nodes=3), "low")
    for job in range(4):
        engine.match(job, slot_request({"core": 1}), 0)
    assert held(engine.allocation(0)) == ["node0/socket0/core0"]
    engine.release(2)
    engine.release(0)
    assert held(engine.match(9, slot_request({"core": 1}), 0)) == ["node0/socket0/core0"]
