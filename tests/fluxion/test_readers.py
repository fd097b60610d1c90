"""Readers of JGF, R and GRUG: defaults, ids, ranks, locating resource sets, and rejected documents."""

from __future__ import annotations

import pytest

from builders import held, jgf
from penstock.engine import AllocationKind, BadGraph, Engine, Never, cluster_of, slot_request
from penstock.errors import BadRequest
from penstock.fluxion.readers.grug import read_grug
from penstock.fluxion.readers.jgf import attach_jgf, claims_in_jgf, read_jgf
from penstock.fluxion.readers.rv1exec import claims_in_rset, ranks_in_rset, read_rv1exec

Entry = tuple[str, dict[str, object]]

CLUSTER: Entry = ("0", {"type": "cluster", "id": 0, "path": "/cluster0"})


def node(key: str, path: str, **fields: object) -> tuple[str, dict[str, object]]:
    return key, {"type": "node", "path": path, **fields}


# JGF


def test_jgf_fills_in_omitted_fields() -> None:
    graph = read_jgf(jgf([CLUSTER, ("7", {"type": "core", "path": "/cluster0/core7"})], [("0", "7")]))
    core = graph.one_at("/cluster0/core7")
    assert (core.basename, core.name, core.id, core.uniq_id) == ("core", "core7", 7, 7)
    assert (core.size, core.rank, core.unit, core.properties, core.up) == (1, -1, "", {}, True)


def test_the_id_of_a_node_is_taken_from_the_end_of_its_name() -> None:
    graph = read_jgf(jgf([CLUSTER, node("5", "/cluster0/host12", name="host12")], [("0", "5")]))
    assert graph.one_at("/cluster0/host12").id == 12


def test_jgf_reads_every_field() -> None:
    fields: dict[str, object] = {
        "type": "memory", "basename": "mem", "name": "mem3", "id": 3, "uniq_id": 99, "rank": 4, "size": 8,
        "unit": "GB", "status": 1, "exclusive": True, "properties": {"fast": "yes"}, "path": "/cluster0/mem3",
    }  # fmt: skip
    vertex = read_jgf(jgf([CLUSTER, ("x", fields)], [("0", "x")])).one_at("/cluster0/mem3")
    assert (vertex.type, vertex.basename, vertex.name, vertex.id) == ("memory", "mem", "mem3", 3)
    assert (vertex.uniq_id, vertex.rank, vertex.size, vertex.unit) == (99, 4, 8, "GB")
    assert vertex.properties == {"fast": "yes"}
    assert not vertex.up


def test_edges_are_in_containment_by_default() -> None:
    switch = (
        "9",
        {"type": "switch", "id": 0, "paths": {"containment": "/cluster0/switch0", "net": "/switch0"}},
    )
    host = (
        "1",
        {"type": "node", "id": 0, "paths": {"containment": "/cluster0/node0", "net": "/switch0/node0"}},
    )
    graph = read_jgf(jgf([CLUSTER, switch, host], [("0", "9"), ("0", "1"), ("9", "1", "net")]))
    assert [vertex.name for vertex in graph.root.below()] == ["switch0", "node0"]
    assert graph.roots["net"].name == "switch0"
    assert [vertex.name for vertex in graph.roots["net"].below("net")] == ["node0"]


def rejected(*nodes: tuple[str, dict[str, object]], edges: list[tuple[str, ...]]) -> str:
    with pytest.raises(BadGraph) as caught:
        read_jgf(jgf(nodes, edges))
    return caught.value.summary


def test_a_graph_that_is_not_a_tree_is_rejected() -> None:
    first, second = node("1", "/cluster0/node1"), node("2", "/cluster0/node1/node2")
    assert "duplicate" in rejected(CLUSTER, CLUSTER, edges=[])
    assert "root" in rejected(CLUSTER, ("1", {"type": "cluster", "path": "/cluster1"}), edges=[])
    assert "not found" in rejected(CLUSTER, edges=[("0", "9")])
    assert "unreachable from the root" in rejected(CLUSTER, first, edges=[])
    assert "cycle" in rejected(CLUSTER, first, second, edges=[("1", "2"), ("2", "1")])
    assert "cycle" in rejected(CLUSTER, first, second, edges=[("0", "1"), ("1", "2"), ("2", "1")])
    assert rejected(CLUSTER, first, edges=[("0", "1"), ("1", "0")])
    assert rejected(CLUSTER, first, edges=[("0", "1"), ("1", "1")])
    assert "no root" in rejected(("1", {"type": "x", "paths": {"power": "/x"}}), edges=[])


def test_two_vertices_with_the_same_path_are_rejected_unless_their_ranks_differ() -> None:
    same = [node("1", "/cluster0/n", rank=0), node("2", "/cluster0/n", rank=0)]
    assert rejected(
        CLUSTER,
        *same,
        ("3", {"type": "rack", "path": "/cluster0/r"}),
        edges=[("0", "2"), ("2", "3"), ("3", "1")],
    )
    other = [node("1", "/cluster0/n", rank=0), node("2", "/cluster0/n", rank=1)]
    assert len(read_jgf(jgf([CLUSTER, *other], [("0", "1"), ("0", "2")])).at_path("/cluster0/n")) == 2


def test_a_duplicate_edge_does_not_duplicate_resources() -> None:
    core = ("2", {"type": "core", "id": 0, "path": "/cluster0/node1/core0"})
    document = jgf([CLUSTER, node("1", "/cluster0/node1"), core], [("0", "1"), ("1", "2"), ("1", "2")])
    try:
        graph = read_jgf(document)
    except BadGraph:
        return
    assert isinstance(Engine(graph).match(1, slot_request({"core": 2}), 0), Never)


def test_a_failed_attach_leaves_the_graph_unchanged() -> None:
    graph = cluster_of(nodes=1, cores=1)
    before = [
        (vertex.path(), [child.path() for child in vertex.below()]) for vertex in graph.vertices.values()
    ]
    good = node("9", "/cluster0/node9", id=9, rank=9)
    pdu: Entry = ("10", {"type": "pdu", "id": 0, "paths": {"power": "/p0", "containment": "/cluster0/p0"}})
    other: Entry = ("1", {"type": "cluster", "path": "/other"})
    cases: list[tuple[Entry, list[tuple[str, ...]]]] = [
        (node("8", "/cluster0/node8"), [("0", "9")]),
        (pdu, [("0", "9"), ("0", "10"), ("9", "10", "power")]),
        (other, [("0", "9")]),
    ]
    for bad, edges in cases:
        with pytest.raises(BadGraph):
            attach_jgf(graph, jgf([CLUSTER, good, bad], edges))
        assert before == [(v.path(), [child.path() for child in v.below()]) for v in graph.vertices.values()]
        assert set(graph.roots) == {"containment"}
        assert not graph.at_path("/cluster0/node9")


def test_a_set_in_jgf_must_match_the_graph() -> None:
    graph = cluster_of(nodes=1, cores=2)
    core = ("2", {"type": "core", "id": 0, "rank": 0, "path": "/cluster0/node0/core0", "exclusive": True})
    above = ("1", {"type": "node", "id": 0, "rank": 0, "path": "/cluster0/node0"})
    claims = claims_in_jgf(graph, jgf([core, above], [("1", "2")]))
    assert [(claim.vertex.name, claim.booked, claim.exclusive) for claim in claims] == [
        ("core0", True, True),
        ("node0", False, False),
    ]
    for wrong in ({"id": 1}, {"type": "gpu"}, {"size": 7}, {"rank": 3}, {"path": "/cluster0/node0/core9"}):
        with pytest.raises(BadGraph):
            claims_in_jgf(graph, jgf([("2", {**core[1], **wrong}), above], [("1", "2")]))
    with pytest.raises(BadGraph):
        claims_in_jgf(graph, jgf([core, above], [("2", "1")]))


# R


R = (
    '{"version": 1, "execution": {"R_lite": [{"rank": "0-1", "children": {"core": "0-3", "gpu": "0"}}, '
    '{"rank": "4", "children": {"core": "2"}}], "nodelist": ["host[7-8],login"], '
    '"properties": {"fast": "0,4", "mi60@gpu": "1"}, "starttime": 0, "expiration": 0}, "scheduling": {}}'
)


def test_r_is_read_as_a_cluster_of_nodes() -> None:
    graph = read_rv1exec(R)
    assert graph.root.path() == "/cluster0"
    assert [(v.name, v.id, v.rank, sorted(v.properties)) for v in graph.of_type("node")] == [
        ("host7", 7, 0, ["fast"]),
        ("host8", 8, 1, ["mi60@gpu"]),
        ("login", -1, 4, ["fast"]),
    ]
    assert [v.path() for v in graph.of_rank(4)] == ["/cluster0/login", "/cluster0/login/core2"]
    assert held(Engine(graph, "low").match(1, slot_request({"gpu": 1, "core": 4}), 0))[0] == "host7/core0"


def test_a_set_in_r_is_located_by_ranks_and_ids() -> None:
    graph = read_rv1exec(R)
    part = R.replace('"0-1", "children": {"core": "0-3", "gpu": "0"}', '"1", "children": {"core": "1-2"}')
    claims = claims_in_rset(graph, part.replace("host[7-8],login", "host8,login").replace('"0,4"', '"4"'))
    assert [claim.vertex.path() for claim in claims] == [
        "/cluster0/host8/core1", "/cluster0/host8/core2", "/cluster0/login/core2", "/cluster0/login",
    ]  # fmt: skip
    engine = Engine(graph)
    engine.update(1, claims, 0, None, AllocationKind.ALLOCATED, 0)
    assert ranks_in_rset(R) == [0, 1, 4]


@pytest.mark.parametrize(
    ("old", "new"),
    [('"rank": "4"', '"rank": "9"'), ('"core": "2"', '"core": "7"'), ('"core": "2"', '"fpga": "0"')],
)
def test_a_set_in_r_with_unknown_resources_is_rejected(old: str, new: str) -> None:
    graph = read_rv1exec(R)
    with pytest.raises(BadRequest):
        claims_in_rset(graph, R.replace(old, new).replace('"fast": "0,4"', '"fast": "0"'))


def test_ranks_without_hosts_are_rejected() -> None:
    with pytest.raises(BadGraph):
        read_rv1exec(R.replace('"nodelist": ["host[7-8],login"], ', ""))


# GRUG


def grug(*edges: tuple[str, str, dict[str, str]], templates: dict[str, dict[str, str]]) -> str:
    """A recipe with one node per template and the given edges."""
    nodes = "".join(
        f'<node id="{name}">'
        + "".join(f'<data key="{key}">{value}</data>' for key, value in data.items())
        + "</node>"
        for name, data in templates.items()
    )
    links = "".join(
        f'<edge source="{source}" target="{target}">'
        + "".join(f'<data key="{key}">{value}</data>' for key, value in data.items())
        + "</edge>"
        for source, target, data in edges
    )
    keys = "".join(
        f'<key id="{name}" for="node" attr.name="{name}" attr.type="string"/>'
        for name in ("root", "type", "basename", "size", "unit", "subsystem")
    )
    return f'<graphml xmlns="http://graphml.graphdrawing.org/xmlns">{keys}<graph>{nodes}{links}</graph></graphml>'


def times(count: int, scope: int = 0, **more: str) -> dict[str, str]:
    return {"gen_method": "MULTIPLY", "multi_scale": str(count), "id_scope": str(scope), **more}


TEMPLATES = {
    "c": {"root": "1", "type": "cluster", "basename": "tiny"},
    "n": {"type": "node"},
    "s": {"type": "socket"},
    "k": {"type": "core"},
    "m": {"type": "memory", "size": "4", "unit": "GB"},
}


def test_multiply_edges_create_vertices_level_by_level() -> None:
    recipe = grug(
        ("c", "n", times(2)),
        ("n", "s", times(2)),
        ("s", "k", times(2, 1)),
        ("s", "m", times(1)),
        templates=TEMPLATES,
    )
    graph = read_grug(recipe)
    assert len(graph) == 1 + 2 + 4 + 8 + 4
    assert [vertex.rank for vertex in graph.of_type("node")] == [0, 1]
    assert [vertex.path() for vertex in graph.of_type("core")][:5] == [
        "/tiny0/node0/socket0/core0",
        "/tiny0/node0/socket0/core1",
        "/tiny0/node0/socket1/core2",
        "/tiny0/node0/socket1/core3",
        "/tiny0/node1/socket0/core0",
    ]
    memory = graph.of_type("memory")[0]
    assert (memory.size, memory.unit, memory.rank) == (4, "GB", -1)
    types = [vertex.type for vertex in sorted(graph.vertices.values(), key=lambda vertex: vertex.uniq_id)]
    assert types == ["cluster"] + ["node"] * 2 + ["socket"] * 4 + ["core"] * 8 + ["memory"] * 4


def test_ids_follow_id_start_and_id_stride() -> None:
    graph = read_grug(
        grug(
            ("c", "n", times(3, 0, id_start="5")), ("n", "k", times(2, 1, id_stride="2")), templates=TEMPLATES
        )
    )
    assert [vertex.id for vertex in graph.of_type("node")] == [5, 6, 7]
    assert [vertex.id for vertex in graph.of_type("core")] == [0, 2, 4, 6, 8, 10]


def test_associate_edges_add_vertices_to_another_subsystem() -> None:
    templates = {**TEMPLATES, "p": {"root": "1", "type": "pdu", "subsystem": "power"}}
    edges = [
        ("c", "n", times(2)),
        (
            "p",
            "n2",
            {"gen_method": "ASSOCIATE_IN", "e_subsystem": "power", "as_tgt_subsystem": "containment"},
        ),
    ]
    graph = read_grug(grug(*edges, templates={**templates, "n2": {"type": "node"}}))
    assert [vertex.name for vertex in graph.roots["power"].below("power")] == ["node0", "node1"]
    assert [vertex.name for vertex in graph.root.below()] == ["node0", "node1"]


@pytest.mark.parametrize(
    "recipe",
    [
        grug(("c", "n", times(2)), templates={"c": {"type": "cluster"}, "n": {"type": "node"}}),
        grug(("c", "n", times(2)), templates={"c": {"root": "1"}, "n": {"type": "node"}}),
        grug(("c", "x", times(2)), templates=TEMPLATES),
        grug(("c", "n", {"gen_method": "DIVIDE"}), templates=TEMPLATES),
        grug(("c", "n", times(-1)), templates=TEMPLATES),
        grug(("c", "n", times(10**9)), templates=TEMPLATES),
        grug(("c", "n", times(5000)), ("n", "k", times(5000)), templates=TEMPLATES),
        grug(("c", "m", times(1)), templates={**TEMPLATES, "m": {"type": "memory", "size": "much"}}),
        "<graphml><graph>",
        "<graphml/>",
        "",
    ],
    ids=[
        "no root",
        "no type",
        "nowhere",
        "method",
        "negative",
        "huge",
        "product",
        "size",
        "open",
        "empty",
        "nothing",
    ],
)
def test_an_invalid_recipe_is_rejected(recipe: str) -> None:
    with pytest.raises(BadGraph):
        read_grug(recipe)
