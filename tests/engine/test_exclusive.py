"""Who shares a vertex and who has it alone, and what comes along below it."""

from __future__ import annotations

import pytest

from builders import (
    at,
    held,
    on,
    placed,
    pools_of,
    request_with,
    request_with_groups,
    resource_of,
    short,
    sockets_of,
)
from penstock.engine import Engine, Graph, Never, NotNow, VertexSpec, cluster_of, slot_request


def shared(engine: Engine, job: int) -> list[str]:
    return [short(p.vertex) for p in engine.allocation(job).picks if not p.exclusive]


def test_what_lies_in_a_slot_is_had_alone_and_what_lies_above_is_shared() -> None:
    engine = Engine(sockets_of(), "low")
    answer = engine.match(
        1, request_with(resource_of("slot", 1, resource_of("socket", 1, resource_of("core")))), 0
    )
    assert held(answer) == ["node0/socket0/core0", "node0/socket0"]
    assert shared(engine, 1) == ["node0", ""]


def test_two_jobs_share_a_node_that_only_lies_above() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    request = request_with(resource_of("node", 1, resource_of("slot", 1, resource_of("core"))))
    assert held(engine.match(1, request, 0)) == ["node0/core0"]
    assert held(engine.match(2, request, 0)) == ["node0/core1"]


def test_a_vertex_on_which_somebody_is_cannot_be_had_alone() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    engine.match(1, slot_request({"core": 1}, duration_s=10), 0)
    for request in (slot_request({"node": 1}), request_with(resource_of("node", 1, exclusive=True))):
        answer = engine.match(2, request, 0)
        assert isinstance(answer, NotNow)
        assert answer.earliest_s == 10


def test_a_plain_slot_of_a_node_holds_the_node_and_keeps_others_from_what_is_below() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    assert held(engine.match(1, slot_request({"node": 1}), 0)) == ["node0"]
    assert at(engine, "node0/core0").state is None
    assert isinstance(engine.match(2, slot_request({"core": 1}), 0), NotNow)


def test_what_is_asked_for_exclusively_brings_all_that_is_below() -> None:
    engine = Engine(sockets_of(), "low")
    answer = engine.match(
        1,
        request_with(resource_of("socket", 1, resource_of("slot", 1, resource_of("core")), exclusive=True)),
        0,
    )
    assert held(answer) == ["node0/socket0/core0", "node0/socket0/core1", "node0/socket0"]
    assert [short(grant.vertex) for grant in placed(answer).slots[0].grants] == ["node0/socket0/core0"]


def test_the_shadow_has_full_sizes_and_comes_whatever_its_status() -> None:
    engine = Engine(pools_of(4, 2), "low")
    engine.set_status(at(engine, "node0/memory1"), up=False)
    answer = engine.match(1, request_with(resource_of("node", 1, exclusive=True)), 0)
    assert held(answer) == ["node0/memory0:4", "node0/memory1:2", "node0"]


@pytest.mark.parametrize(("policy", "node"), [("lonodex", 0), ("hinodex", 1), ("firstnodex", 1)])
def test_a_nodex_policy_takes_every_node_whole(policy: str, node: int) -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), policy)
    answer = engine.match(1, slot_request({"core": 1}), 0)
    assert held(answer) == [f"node{node}/core0", f"node{node}/core1", f"node{node}"]
    assert held(engine.match(2, slot_request({"core": 1}), 0))[-1] == f"node{1 - node}"
    assert isinstance(engine.match(3, slot_request({"core": 1}), 0), NotNow)


def test_one_group_that_wants_its_node_alone_does_not_widen_the_other_groups() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "low")
    engine.match(1, slot_request({"core": 1}, constraint=on("node1")), 0)
    slot = resource_of("slot", 1, resource_of("core"))
    answer = engine.match(2, request_with_groups(resource_of("node", 1, slot, exclusive=True), slot), 0)
    assert held(answer) == ["node0/core0", "node0/core1", "node0", "node1/core1"]


def test_a_type_asked_for_exclusively_at_one_level_is_shared_at_another() -> None:
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    rack = graph.add_child(root, VertexSpec("rack", 0))
    for parent, number in ((rack, 0), (root, 1)):
        node = graph.add_child(parent, VertexSpec("node", number))
        for core in range(2):
            graph.add_child(node, VertexSpec("core", core))
    engine = Engine(graph, "low")
    engine.match(1, slot_request({"core": 1}, constraint=on("node1")), 0)
    in_rack = resource_of("rack", 1, resource_of("node", 1, exclusive=True))
    answer = engine.match(
        2, request_with(in_rack, resource_of("node", 1, resource_of("slot", 1, resource_of("core")))), 0
    )
    assert held(answer) == ["rack0/node0/core0", "rack0/node0/core1", "rack0/node0", "node1/core1"]


def test_a_divisible_pool_of_which_somebody_has_a_part_cannot_be_had_alone() -> None:
    engine = Engine(pools_of(64, divisible=True), "low")
    engine.match(1, slot_request({"memory": 32}), 0)
    alone = request_with(resource_of("slot", 1, resource_of("memory", 8, exclusive=True)))
    assert isinstance(engine.match(2, alone, 0), NotNow)
    engine.release(1)
    assert held(engine.match(2, alone, 0)) == ["node0/memory0:64"]
    assert isinstance(engine.match(3, slot_request({"memory": 1}), 0), NotNow)


def test_parts_of_a_divisible_pool_are_shared_by_many() -> None:
    engine = Engine(pools_of(64, divisible=True), "low")
    for job in range(4):
        assert held(engine.match(job, slot_request({"memory": 16}), 0)) == ["node0/memory0:16"]
    assert isinstance(engine.match(4, slot_request({"memory": 1}), 0), NotNow)


def test_a_whole_rack_comes_with_its_nodes() -> None:
    engine = Engine(cluster_of(nodes=4, cores=1, racks=2), "low")
    answer = engine.match(1, request_with(resource_of("rack", 1, exclusive=True)), 0)
    inside = ["rack0/node0/core0", "rack0/node0", "rack0/node1/core0", "rack0/node1", "rack0"]
    assert held(answer) == inside
    assert isinstance(engine.match(2, request_with(resource_of("rack", 3, exclusive=True)), 0), Never)


def test_below_a_vertex_that_is_had_alone_no_domain_is_free_either() -> None:
    engine = Engine(sockets_of(), "low")
    engine.match(1, slot_request({"node": 1}), 0)
    for within in ("socket", "node", "core"):
        answer = engine.match(2, request_with(resource_of("slot", 1, resource_of("core")), within=within), 0)
        assert isinstance(answer, NotNow if within != "core" else Never)
