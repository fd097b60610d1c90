"""The graph itself, and the totals that are kept in it."""

from __future__ import annotations

import pytest

from builders import at, held, sockets_of
from penstock.engine import BadGraph, Engine, Graph, VertexSpec, cluster_of, slot_request
from penstock.engine.filters import BadFilter, Filters
from penstock.engine.graph import DEPTH_MAX


def test_a_vertex_is_called_after_its_type_and_id_unless_told_otherwise() -> None:
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0, basename="tiny"))
    node = graph.add_child(root, VertexSpec("node", 7, name="host7"))
    core = graph.add_child(node, VertexSpec("core", 3))
    bare = graph.add_child(node, VertexSpec("nic", -1))
    assert [vertex.path() for vertex in (root, node, core, bare)] == [
        "/tiny0", "/tiny0/host7", "/tiny0/host7/core3", "/tiny0/host7/nic",
    ]  # fmt: skip
    assert (core.size, core.rank, core.unit, core.properties, core.up) == (1, -1, "", {}, True)
    assert [vertex.uniq_id for vertex in (root, node, core)] == [0, 1, 2]


def test_vertices_are_found_by_path_type_and_rank() -> None:
    graph = cluster_of(nodes=2, cores=2)
    assert graph.one_at("/cluster0/node1/core0").rank == 1
    assert [vertex.name for vertex in graph.of_type("node")] == ["node0", "node1"]
    assert {vertex.type for vertex in graph.of_rank(1)} == {"node", "core"}
    assert graph.ranks() == [0, 1]
    assert graph.types() == {"cluster", "node", "core"}
    assert (len(graph), graph.edges()) == (7, 6)
    with pytest.raises(BadGraph) as caught:
        graph.one_at("/cluster0/node9")
    assert caught.value.where == "/cluster0/node9"


def test_a_walk_goes_parents_first_in_edge_order() -> None:
    graph = sockets_of(nodes=1, sockets=2, cores=1)
    assert [v.name for v in graph.walk(graph.root)] == [
        "cluster0",
        "node0",
        "socket0",
        "core0",
        "socket1",
        "core0",
    ]
    core = graph.one_at("/cluster0/node0/socket1/core0")
    assert [v.name for v in core.ancestors()] == ["socket1", "node0", "cluster0"]


def test_a_graph_has_one_root() -> None:
    graph = Graph()
    with pytest.raises(BadGraph):
        _ = graph.root
    graph.add_root(VertexSpec("cluster", 0))
    with pytest.raises(BadGraph):
        graph.add_root(VertexSpec("cluster", 1))


def test_no_edge_leads_to_the_root_and_levels_are_bounded() -> None:
    graph = Graph()
    top = graph.add_root(VertexSpec("cluster", 0))
    vertex = top
    for number in range(DEPTH_MAX - 1):
        vertex = graph.add_child(vertex, VertexSpec("box", number))
    graph.check_complete()
    with pytest.raises(BadGraph):
        graph.link(vertex, top, "containment")
    graph.add_child(vertex, VertexSpec("box", 99))
    with pytest.raises(BadGraph):
        graph.check_complete()


def test_a_vertex_apart_from_the_root_is_found_out() -> None:
    graph = Graph()
    graph.add_root(VertexSpec("cluster", 0))
    loose = graph.add_unlinked(VertexSpec("node", 0))
    graph.set_path(loose, "containment", "/cluster0/node0")
    with pytest.raises(BadGraph):
        graph.check_complete()


def test_an_edge_told_twice_is_one_edge() -> None:
    graph = cluster_of(nodes=1, cores=1)
    node, core = graph.of_type("node")[0], graph.of_type("core")[0]
    graph.link(node, core, "containment")
    assert list(node.below()) == [core]


def test_a_vertex_below_two_others_is_given_once() -> None:
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    racks = [graph.add_child(root, VertexSpec("rack", number)) for number in range(2)]
    disk = graph.add_child(racks[0], VertexSpec("disk", 0))
    graph.link(racks[1], disk, "containment")
    assert graph.has_shared
    engine = Engine(graph, "low")
    assert not engine.could_ever(slot_request({"disk": 1}, slots=2))
    assert held(engine.match(1, slot_request({"disk": 1}), 0)) == ["rack0/disk0"]


def test_a_removed_subtree_is_found_no_more() -> None:
    graph = cluster_of(nodes=2, cores=1)
    gone = graph.remove_subtree(graph.one_at("/cluster0/node0"))
    assert [vertex.name for vertex in gone] == ["node0", "core0"]
    assert graph.at_path("/cluster0/node0/core0") == []
    assert [vertex.name for vertex in graph.of_type("node")] == ["node1"]
    assert graph.ranks() == [1]
    graph.check_complete()


@pytest.mark.parametrize(
    ("spec", "root", "node"),
    [
        ("ALL:core,ALL:node", {"core": 4, "node": 2, "gpu": 2}, {"core": 2}),
        ("ALL:core", {"core": 4, "gpu": 2}, {"core": 2}),
        ("", {"core": 4, "gpu": 2}, {}),
        ("node:core", {"gpu": 2}, {"core": 2}),
        ("node:gpu,ALL:core", {"core": 4}, {"core": 2, "gpu": 1}),
        (" ALL : core ", {"core": 4, "gpu": 2}, {"core": 2}),
    ],
)
def test_totals_are_kept_where_a_filter_says_and_of_leaves_at_the_cluster(
    spec: str, root: dict[str, int], node: dict[str, int]
) -> None:
    engine = Engine(cluster_of(nodes=2, cores=2, gpus=1), filters=spec)
    assert engine.graph.root.totals == root
    assert at(engine, "node0").totals == node
    assert at(engine, "node0/core0").totals is None


@pytest.mark.parametrize("spec", ["core", ":", "ALL:", ":core", "ALL:core,", "ALL:core,,ALL:node"])
def test_what_is_no_filter_is_refused(spec: str) -> None:
    with pytest.raises(BadFilter):
        Filters(spec)


def test_a_full_subtree_is_not_entered() -> None:
    engine = Engine(cluster_of(nodes=20, cores=4), "lonode", index=False)
    empty = Engine(cluster_of(nodes=20, cores=4), "lonode", filters="", index=False)
    for job in range(79):
        engine.match(job, slot_request({"core": 1}), 0)
        empty.match(job, slot_request({"core": 1}), 0)
    assert held(engine.match(99, slot_request({"core": 1}), 0)) == held(
        empty.match(99, slot_request({"core": 1}), 0)
    )
    assert engine.visits()[0] < empty.visits()[0]
