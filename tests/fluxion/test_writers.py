"""The exact text of a small allocation in each output format."""

from __future__ import annotations

import json

import pytest

from builders import at, jgf, placed, request_with, resource_of
from penstock.engine import Allocation, AllocationKind, Engine, Graph, VertexSpec, cluster_of, slot_request
from penstock.fluxion.find import find, parse_expression
from penstock.fluxion.readers.jgf import claims_in_jgf, read_jgf
from penstock.fluxion.writers import FORMATS, writer_of
from penstock.fluxion.writers.formats import PickedSet


def tiny() -> Engine:
    """A cluster named tiny: one rack, one node, one socket with two cores and a memory pool."""
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0, basename="tiny"))
    rack = graph.add_child(root, VertexSpec("rack", 0))
    node = graph.add_child(rack, VertexSpec("node", 1, rank=1))
    socket = graph.add_child(node, VertexSpec("socket", 1))
    for core in (35, 36):
        graph.add_child(socket, VertexSpec("core", core))
    graph.add_child(socket, VertexSpec("memory", 0, size=4, unit="GB"))
    return Engine(graph, "low")


def text(name: str, allocation: Allocation, **fields: object) -> str | None:
    writer = writer_of(name)
    assert writer is not None
    picked = PickedSet(allocation.picks, allocation.start_s, allocation.end_s or 0, **fields)  # type: ignore[arg-type]
    return writer.write(picked)


def one_core() -> Allocation:
    request = request_with(
        resource_of("slot", 1, resource_of("socket", 1, resource_of("core"))), duration_s=3600
    )
    return placed(tiny().match(1, request, 0))


def test_simple_writes_children_before_parents() -> None:
    assert text("simple", one_core()) == (
        "      ---------------core35[1:x]\n"
        "      ------------socket1[1:x]\n"
        "      ---------node1[1:s]\n"
        "      ------rack0[1:s]\n"
        "      ---tiny0[1:s]\n"
    )


def test_pretty_simple_writes_parents_first_and_spells_the_mode_out() -> None:
    assert text("pretty_simple", one_core()) == (
        "      ---tiny0[1:shared]\n"
        "      ------rack0[1:shared]\n"
        "      ---------node1[1:shared]\n"
        "      ------------socket1[1:exclusive]\n"
        "      ---------------core35[1:exclusive]\n"
    )


JGF = (
    '{"graph": {"nodes": ['
    '{"id": "4", "metadata": {"type": "core", "id": 35, "rank": -1, "exclusive": true, '
    '"paths": {"containment": "/tiny0/rack0/node1/socket1/core35"}}}, '
    '{"id": "3", "metadata": {"type": "socket", "id": 1, "rank": -1, "exclusive": true, '
    '"paths": {"containment": "/tiny0/rack0/node1/socket1"}}}, '
    '{"id": "2", "metadata": {"type": "node", "id": 1, "rank": 1, '
    '"paths": {"containment": "/tiny0/rack0/node1"}}}, '
    '{"id": "1", "metadata": {"type": "rack", "id": 0, "rank": -1, '
    '"paths": {"containment": "/tiny0/rack0"}}}, '
    '{"id": "0", "metadata": {"type": "cluster", "basename": "tiny", "id": 0, "rank": -1, '
    '"paths": {"containment": "/tiny0"}}}], '
    '"edges": [{"source": "3", "target": "4"}, {"source": "2", "target": "3"}, '
    '{"source": "1", "target": "2"}, {"source": "0", "target": "1"}]}}'
)
R_LITE = '[{"rank": "1", "children": {"core": "35"}}]'
R_HEAD = '{"version": 1, "execution": {"R_lite": ' + R_LITE + ', "nodelist": ["node1"]'


def test_jgf_omits_default_values() -> None:
    assert text("jgf", one_core()) == JGF + "\n"


def test_rlite_writes_cores_and_gpus_by_rank() -> None:
    assert text("rlite", one_core()) == R_LITE + "\n"


def test_rv1_without_the_graph() -> None:
    assert text("rv1_nosched", one_core()) == R_HEAD + ', "starttime": 0, "expiration": 3600}}\n'


def test_rv1_with_the_graph() -> None:
    assert (
        text("rv1", one_core())
        == R_HEAD + ', "starttime": 0, "expiration": 3600}, "scheduling": ' + JGF + "}\n"
    )


def test_rv1_writes_the_queue() -> None:
    written = text("rv1", one_core(), queue="batch")
    assert written is not None
    assert json.loads(written)["attributes"] == {"system": {"scheduler": {"queue": "batch"}}}


def test_pools_are_written_with_size_and_unit() -> None:
    engine = tiny()
    answer = placed(engine.match(1, slot_request({"memory": 1, "core": 2}), 0))
    simple = text("simple", answer)
    assert simple is not None
    assert simple.splitlines()[:3] == [
        "      ---------------core35[1:x]",
        "      ---------------core36[1:x]",
        "      ---------------memory0[4:x]",
    ]
    graph = json.loads(text("jgf", answer) or "")["graph"]
    memory = next(node["metadata"] for node in graph["nodes"] if node["metadata"]["type"] == "memory")
    assert (memory["size"], memory["unit"]) == (4, "GB")


def test_part_of_a_divisible_pool_is_written_with_its_units() -> None:
    engine = Engine(cluster_of(nodes=1, pools={"memory": 64}), "low")
    simple = text("simple", placed(engine.match(1, slot_request({"memory": 16}), 0)))
    assert simple is not None
    assert simple.startswith("      ---------memory0[16:x]\n")


def test_rlite_groups_ranks_with_the_same_children() -> None:
    engine = Engine(cluster_of(nodes=4, cores=4, gpus=1), "lonode")
    for number in (1, 2):
        engine.set_property(at(engine, f"node{number}"), "fast", "")
    engine.set_property(at(engine, "node3"), "arch", "arm")
    engine.match(9, slot_request({"core": 2}), 0)
    answer = placed(
        engine.match(
            1, request_with(resource_of("node", 4, resource_of("slot", 1, resource_of("core", 2)))), 0
        )
    )
    assert text("rlite", answer) == (
        '[{"rank": "1-3", "children": {"core": "0-1"}}, {"rank": "0", "children": {"core": "2-3"}}]\n'
    )
    execution = json.loads(text("rv1_nosched", answer) or "")["execution"]
    assert execution["nodelist"] == ["node[0-3]"]
    assert execution["properties"] == {"arch=arm": "3", "fast": "1-2"}


def test_rlite_cannot_represent_a_set_without_cores_and_gpus() -> None:
    answer = placed(Engine(cluster_of(nodes=1, cores=1)).match(1, slot_request({"node": 1}), 0))
    assert text("rlite", answer) is None
    assert text("rv1_nosched", answer) == ""
    assert text("simple", answer) == "      ------node0[1:x]\n      ---cluster0[1:s]\n"


@pytest.mark.parametrize("name", ["simple", "pretty_simple", "jgf", "rv1", "rv1_nosched"])
def test_an_empty_search_result_is_written_as_no_text(name: str) -> None:
    engine = tiny()
    picks = find(engine.graph.root, parse_expression("status=down"))
    writer = writer_of(name)
    assert writer is not None
    assert writer.write(PickedSet(picks)) == ""


def test_an_unknown_format_has_no_writer() -> None:
    assert writer_of("xml") is None
    assert {"simple", "pretty_simple", "jgf", "rlite", "rv1", "rv1_nosched"} <= set(FORMATS)


def test_a_written_set_can_be_booked_again_in_the_graph() -> None:
    engine = tiny()
    answer = placed(
        engine.match(
            1,
            request_with(
                resource_of("socket", 1, resource_of("slot", 1, resource_of("core")), exclusive=True)
            ),
            0,
        )
    )
    engine.release(1)
    claims = claims_in_jgf(engine.graph, text("jgf", answer) or "")
    assert engine.update(1, claims, 0, None, answer.kind, 0).picks == answer.picks


def test_a_graph_written_as_jgf_reads_back_unchanged() -> None:
    engine = tiny()
    engine.set_property(at(engine, "rack0/node1"), "arch", "arm")
    everything = find(engine.graph.root, parse_expression("status=up"))
    graph = read_jgf(text("jgf", Allocation(0, AllocationKind.MATCHED, 0, None, everything, ())) or "")
    assert vertex_fields(graph) == vertex_fields(engine.graph)


def vertex_fields(graph: Graph) -> dict[str, tuple[object, ...]]:
    return {
        vertex.path(): (
            vertex.type,
            vertex.id,
            vertex.rank,
            vertex.size,
            vertex.unit,
            vertex.uniq_id,
            vertex.properties,
        )
        for vertex in graph.vertices.values()
    }


def test_non_ascii_names_are_written_unescaped() -> None:
    graph = read_jgf(jgf([("0", {"type": "cluster", "basename": "größe", "id": 0, "path": "/größe0"})], []))
    picks = find(graph.root, parse_expression("status=up"))
    writer = writer_of("jgf")
    assert writer is not None
    assert '"basename": "größe"' in (writer.write(PickedSet(picks)) or "")
