"""Vertices come, go, grow and shrink while jobs hold what they have."""

from __future__ import annotations

import pytest

from builders import at, held, jgf, on, pools_of, request_with, resource_of
from penstock.engine import (
    Allocation,
    BadGraph,
    Engine,
    Graph,
    MatchOp,
    Never,
    NotNow,
    VertexSpec,
    VertexTree,
    cluster_of,
    slot_request,
)
from penstock.engine.filters import Filters
from penstock.engine.graph_updates import Removal
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
    gone = engine.remove(at(engine, "node1"))
    assert gone == Removal(vertices=3, shrunk=(1,), emptied=(2,))
    assert held(engine.allocation(1)) == ["node0/core0", "node0/core1"]
    assert 2 not in engine.jobs
    assert not engine.graph.at_path("/cluster0/node1")
    assert isinstance(engine.match(3, slot_request({"core": 1}, slots=3), 0), Never)


def test_reservations_lose_their_shares_too() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1, racks=1), "low")
    engine.match(1, slot_request({"core": 1}, duration_s=5), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=5), 0, MatchOp.ALLOCATE_ORELSE_RESERVE)
    assert engine.remove(at(engine, "rack0/node0")).emptied == (1, 2)
    assert engine.instants(0) == []
    assert all(vertex.state is None for vertex in engine.graph.vertices.values())


def test_the_root_stays() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    engine.match(1, ONE, 0)
    with pytest.raises(BadGraph):
        engine.remove(engine.graph.root)
    assert held(engine.allocation(1)) == ["node0/core0"]


def test_a_node_may_come_back() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "low")
    engine.remove(at(engine, "node1"))
    attach(engine, a_node(1, "core"))
    assert held(engine.match(1, slot_request({"core": 1}, constraint=on("node1")), 0)) == ["node1/core0"]


def test_a_pool_that_grows_has_more_to_give() -> None:
    engine = Engine(pools_of(4, divisible=True), "low")
    engine.match(1, slot_request({"memory": 4}), 0)
    engine.resize(at(engine, "node0/memory0"), 10)
    assert held(engine.match(2, slot_request({"memory": 6}), 0)) == ["node0/memory0:6"]
    assert isinstance(engine.match(3, slot_request({"memory": 11}), 0), Never)


def test_a_pool_may_shrink_below_what_is_booked() -> None:
    engine = Engine(cluster_of(nodes=2, pools={"memory": 8}), "low")
    engine.match(1, slot_request({"memory": 8}), 0)
    engine.resize(at(engine, "node0/memory0"), 2)
    assert held(engine.match(2, slot_request({"memory": 8}), 0)) == ["node1/memory0:8"]
    assert isinstance(engine.match(3, slot_request({"memory": 1}), 0), NotNow)
    engine.release(1)
    assert held(engine.match(3, slot_request({"memory": 2}), 0)) == ["node0/memory0:2"]


def test_a_pool_of_nothing_can_never_be_given() -> None:
    engine = Engine(pools_of(4, divisible=True), "low")
    engine.resize(at(engine, "node0/memory0"), 0)
    assert isinstance(engine.match(1, slot_request({"memory": 1}), 0), Never)
    with pytest.raises(BadGraph):
        engine.resize(at(engine, "node0/memory0"), -1)


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
        return instructions(lambda: engine.remove(pool))

    assert cost(200) <= 1.1 * cost(20)


def a_tree(number: int, *kinds: str) -> VertexTree:
    """A node with one unit of each kind."""
    children = tuple(VertexTree(VertexSpec(kind, 0, rank=number)) for kind in kinds)
    return VertexTree(VertexSpec("node", number, rank=number), children)


def test_an_added_subtree_is_used_and_counted() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1), "low")
    rack = engine.add(engine.graph.root, VertexTree(VertexSpec("rack", 0), (a_tree(1, "core"),)))
    assert [vertex.path() for vertex in engine.graph.walk(rack)] == [
        "/cluster0/rack0",
        "/cluster0/rack0/node1",
        "/cluster0/rack0/node1/core0",
    ]
    assert rack.totals == {"core": 1, "node": 1}
    assert engine.graph.root.totals == {"core": 2, "node": 2}
    job = engine.match(1, slot_request({"core": 1}, slots=2), 0)
    assert held(job) == ["node0/core0", "rack0/node1/core0"]


def test_an_inner_vertex_that_comes_with_its_children_is_no_leaf() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1), "low")
    engine.add(engine.graph.root, VertexTree(VertexSpec("rack", 0), (a_tree(1, "core"),)))
    assert "rack" not in engine.filters.tracked
    engine.remove(at(engine, "rack0/node1"))
    assert "rack" in engine.filters.tracked, "it is one when its last child is gone"


def test_bookings_count_a_type_that_becomes_one_of_leaves() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1, racks=2), "low")
    engine.match(1, request_with(resource_of("rack", 1, exclusive=True)), 0)
    engine.add(engine.graph.root, VertexTree(VertexSpec("rack", 7)))
    assert (engine.graph.root.totals or {})["rack"] == 3
    state = engine.graph.root.state
    assert state is not None
    assert state.below["rack"].booked_at(0) == 1


def counted_from_scratch(engine: Engine) -> dict[str, object]:
    totals = {vertex.path(): vertex.totals for vertex in engine.graph.vertices.values()}
    Filters().compute_totals(engine.graph)
    assert totals == {vertex.path(): vertex.totals for vertex in engine.graph.vertices.values()}
    return {path: dict(here) for path, here in totals.items() if here}


def test_a_graph_that_is_no_tree_is_counted_as_a_whole() -> None:
    graph = cluster_of(nodes=0, racks=2)
    racks = graph.of_type("rack")
    disk = graph.add_child(racks[0], VertexSpec("disk", 0, size=4))
    graph.link(racks[1], disk, "containment")
    engine = Engine(graph, "low")
    node = engine.add(racks[1], a_tree(0, "core"))
    engine.resize(disk, 6)
    assert counted_from_scratch(engine)["/cluster0"] == {"core": 1, "node": 1, "disk": 6}
    engine.remove(node)
    assert counted_from_scratch(engine)["/cluster0"] == {"core": 0, "node": 0, "disk": 6}


def test_edges_of_another_subsystem_go_with_their_vertices() -> None:
    graph = cluster_of(nodes=2, cores=1)
    supply = graph.add_root(VertexSpec("supply", 0), "power", "/supply0")
    for node in graph.of_type("node"):
        graph.link(supply, node, "power")
    engine = Engine(graph, "low")
    engine.remove(at(engine, "node0"))
    assert [vertex.name for vertex in supply.below("power")] == ["node1"]
    engine.remove(at(engine, "node1"))
    assert not supply.children
    assert "supply" in engine.filters.tracked


def test_a_change_costs_the_same_on_a_large_cluster() -> None:
    def costs(nodes: int) -> list[int]:
        engine = Engine(cluster_of(nodes=nodes, pools={"memory": 8}), "low")
        added: list[VertexTree] = [a_tree(nodes, "core", "disk"), a_tree(nodes + 1, "core", "disk")]
        changes = [
            lambda: engine.add(engine.graph.root, added[0]),  # types that were not there before
            lambda: engine.add(engine.graph.root, added[1]),
            lambda: engine.resize(at(engine, "node1/memory0"), 4),
            lambda: engine.remove(at(engine, "node1")),
        ]
        return [instructions(change) for change in changes]

    assert all(large <= 1.1 * small for small, large in zip(costs(20), costs(400), strict=True))


def test_a_release_costs_the_same_however_much_is_crowded_elsewhere() -> None:
    def cost(nodes: int) -> int:
        engine = Engine(cluster_of(nodes=nodes, cores=1), "low")
        for number in range(1, nodes):
            engine.external_usage.set(f"other{number}", at(engine, f"node{number}"), {"core": 2})
        engine.match(1, ONE, 0)
        return instructions(lambda: engine.release(1))

    assert cost(400) <= 1.1 * cost(20)


def test_crowded_usage_above_the_nodes_takes_what_becomes_free_anywhere() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "low")
    engine.match(1, ONE, 0)
    engine.match(2, ONE, 0)
    engine.external_usage.set("other", engine.graph.root, {"core": 1})
    engine.release(2)
    assert isinstance(engine.match(3, ONE, 0), NotNow)


def test_removed_children_leave_the_order_of_the_others() -> None:
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    nodes = [graph.add_child(root, VertexSpec("node", number)) for number in range(4)]
    graph.remove_subtree(nodes[1])
    graph.add_child(root, VertexSpec("node", 1))
    assert [vertex.id for vertex in root.below()] == [0, 2, 3, 1]
