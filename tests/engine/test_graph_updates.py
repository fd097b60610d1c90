"""Vertices come, go, grow and shrink while jobs hold what they have."""

from __future__ import annotations

import pytest

from builders import at, held, jgf, on, pools_of, request_with, resource_of
from penstock.engine import Allocation, BadGraph, Engine, MatchOp, Never, NotNow, cluster_of, slot_request
from penstock.engine.graph_updates import Removal, remove, resize
from penstock.fluxion.attach import attach
from tests.costs import instructions

ONE = slot_request({"core": 1})


def a_node(number: int, *kinds: str) -> str:
    """JGF of a node with one child of each kind, to be attached to a cluster."""
    path = f"/cluster0/node{number}"
    children = [
        (str(100 * number + place), {"type": kind, "id": 0, "rank": number, "path": f"{path}/{kind}0"})
        for place, kind in enumerate(kinds, start=1)
    ]
    top = str(100 * number)
    return jgf(
        [
            ("0", {"type": "cluster", "id": 0, "path": "/cluster0"}),
            (top, {"type": "node", "id": number, "rank": number, "path": path}),
            *children,
        ],
        [("0", top), *((top, key) for key, _ in children)],
    )


def test_an_attached_node_is_used() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1), "low")
    engine.match(1, ONE, 0)
    assert isinstance(engine.match(2, slot_request({"core": 1}, slots=2), 0), Never)
    assert [vertex.name for vertex in attach(engine, a_node(1, "core"))] == ["node1", "core0"]
    assert held(engine.match(2, ONE, 0)) == ["node1/core0"]
    assert engine.could_ever(slot_request({"core": 1}, slots=2))


def test_what_is_there_already_is_left_as_it_is() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1), "low")
    attach(engine, a_node(1, "core"))
    size = len(engine.graph)
    assert attach(engine, a_node(1, "core")) == []
    assert [vertex.type for vertex in attach(engine, a_node(1, "core", "gpu"))] == ["gpu"]
    assert len(engine.graph) == size + 1


def test_a_type_that_comes_with_an_attachment_is_counted_from_then_on() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1), "low")
    engine.match(1, ONE, 0)
    attach(engine, a_node(1, "disk"))
    assert held(engine.match(2, slot_request({"disk": 1}), 0)) == ["node1/disk0"]
    assert isinstance(engine.match(3, slot_request({"disk": 1}), 0), NotNow)
    engine.release(1)
    engine.release(2)
    assert all(vertex.state is None for vertex in engine.graph.vertices.values())


def test_a_removed_node_takes_its_shares_with_it() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "lonode")
    engine.match(1, slot_request({"core": 1}, slots=3), 0)
    engine.match(2, slot_request({"core": 1}), 0)
    gone = remove(engine, at(engine, "node1"))
    assert gone == Removal(vertices=3, shrunk=(1,), emptied=(2,))
    assert held(engine.allocation(1)) == ["node0/core0", "node0/core1"]
    assert 2 not in engine.jobs
    assert not engine.graph.at_path("/cluster0/node1")
    assert isinstance(engine.match(3, slot_request({"core": 1}, slots=3), 0), Never)


def test_reservations_lose_their_shares_too() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1, racks=1), "low")
    engine.match(1, slot_request({"core": 1}, duration_s=5), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=5), 0, MatchOp.ALLOCATE_ORELSE_RESERVE)
    assert remove(engine, at(engine, "rack0/node0")).emptied == (1, 2)
    assert engine.instants(0) == []
    assert all(vertex.state is None for vertex in engine.graph.vertices.values())


def test_the_root_stays() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    engine.match(1, ONE, 0)
    with pytest.raises(BadGraph):
        remove(engine, engine.graph.root)
    assert held(engine.allocation(1)) == ["node0/core0"]


def test_a_node_may_come_back() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "low")
    remove(engine, at(engine, "node1"))
    attach(engine, a_node(1, "core"))
    assert held(engine.match(1, slot_request({"core": 1}, constraint=on("node1")), 0)) == ["node1/core0"]


def test_a_pool_that_grows_has_more_to_give() -> None:
    engine = Engine(pools_of(4, divisible=True), "low")
    engine.match(1, slot_request({"memory": 4}), 0)
    resize(engine, at(engine, "node0/memory0"), 10)
    assert held(engine.match(2, slot_request({"memory": 6}), 0)) == ["node0/memory0:6"]
    assert isinstance(engine.match(3, slot_request({"memory": 11}), 0), Never)


def test_a_pool_may_shrink_below_what_is_booked() -> None:
    engine = Engine(cluster_of(nodes=2, pools={"memory": 8}), "low")
    engine.match(1, slot_request({"memory": 8}), 0)
    resize(engine, at(engine, "node0/memory0"), 2)
    assert held(engine.match(2, slot_request({"memory": 8}), 0)) == ["node1/memory0:8"]
    assert isinstance(engine.match(3, slot_request({"memory": 1}), 0), NotNow)
    engine.release(1)
    assert held(engine.match(3, slot_request({"memory": 2}), 0)) == ["node0/memory0:2"]


def test_a_pool_of_nothing_can_never_be_given() -> None:
    engine = Engine(pools_of(4, divisible=True), "low")
    resize(engine, at(engine, "node0/memory0"), 0)
    assert isinstance(engine.match(1, slot_request({"memory": 1}), 0), Never)
    with pytest.raises(BadGraph):
        resize(engine, at(engine, "node0/memory0"), -1)


def test_what_is_added_below_a_vertex_that_is_had_alone_waits_for_it() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1), "low")
    attach(engine, a_node(1, "core"))
    engine.match(1, request_with(resource_of("node", 2, exclusive=True)), 0)
    attach(engine, a_node(1, "core", "gpu"))
    assert isinstance(engine.match(2, slot_request({"gpu": 1}), 0), NotNow)
    engine.release(1)
    assert isinstance(engine.match(2, slot_request({"gpu": 1}), 0), Allocation)


def test_what_leaves_costs_nothing_for_holds_and_jobs_that_are_elsewhere() -> None:
    def cost(nodes: int) -> int:
        engine = Engine(cluster_of(nodes=nodes, pools={"memory": 8, "port": 1}), "low")
        for number in range(nodes):
            engine.match(number + 1, slot_request({"memory": 1}, constraint=on(f"node{number}")), 0)
            for kind in ("memory", "port"):
                engine.external_usage.set(f"{kind} {number}", at(engine, f"node{number}"), {kind: 1})
        pool = at(engine, "node1/port0")
        return instructions(lambda: remove(engine, pool, recount=False))

    assert cost(200) <= 1.1 * cost(20)
