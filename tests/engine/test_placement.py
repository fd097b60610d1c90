"""Groups of unlike members, and where the parts of one job may be in relation to each other."""

from __future__ import annotations

import contextlib

import pytest

from builders import at, held, on, placed, request_with, request_with_groups, resource_of, short, sockets_of
from penstock.engine import (
    Allocation,
    Engine,
    Group,
    Never,
    NotNow,
    Placement,
    Request,
    cluster_of,
    slot_request,
)
from penstock.engine.request import InvalidResources
from penstock.model.jobspec import Resource

CORE = resource_of("slot", 1, resource_of("core"))


def nodes_of(answer: object) -> list[str]:
    assert isinstance(answer, Allocation), answer
    return [short(slot.node) for slot in answer.slots if slot.node is not None]


def test_groups_get_what_each_asks_for_together() -> None:
    engine = Engine(cluster_of(nodes=2, cores=4, gpus=1), "low")
    answer = engine.match(
        1,
        request_with_groups(
            resource_of("slot", 1, resource_of("gpu")), resource_of("slot", 2, resource_of("core", 2))
        ),
        0,
    )
    assert [slot.group for slot in placed(answer).slots] == [0, 1, 1]
    assert held(answer) == [
        "node0/core0", "node0/core1", "node0/gpu0", "node1/core0", "node1/core1",
    ]  # fmt: skip


def test_a_later_group_sees_what_an_earlier_one_took() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    assert held(engine.match(1, request_with_groups(CORE, CORE), 0)) == ["node0/core0", "node0/core1"]
    assert isinstance(engine.match(2, request_with_groups(CORE), 0), NotNow)


def test_groups_are_placed_whole_or_not_at_all() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    answer = engine.match(1, request_with_groups(CORE, resource_of("slot", 1, resource_of("core", 2))), 0)
    assert isinstance(answer, Never)
    assert str(answer.reason) == "needs 3 cores in 2 groups, the cluster has 2"
    assert all(vertex.state is None for vertex in engine.graph.vertices.values())


def test_a_large_group_is_placed_first_where_the_given_order_fails() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "low")
    engine.match(9, slot_request({"core": 1}, constraint=on("node1")), 0)
    answer = engine.match(1, request_with_groups(CORE, resource_of("slot", 1, resource_of("core", 2))), 0)
    assert nodes_of(answer) == ["node1", "node0"]


def test_every_group_has_its_own_constraint() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "low")
    groups = (Group((CORE,), on("node1")), Group((CORE,), on("node0")))
    assert nodes_of(engine.match(1, Request(groups), 0)) == ["node1", "node0"]


def test_one_impossible_group_makes_it_never() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "low")
    assert isinstance(
        engine.match(1, request_with_groups(CORE, resource_of("slot", 1, resource_of("core", 2))), 0), Never
    )


def test_distinct_slots_go_to_distinct_nodes() -> None:
    engine = Engine(cluster_of(nodes=3, cores=4), "lonode")
    answer = engine.match(
        1, request_with(resource_of("slot", 3, resource_of("core")), distinct_nodes=True), 0
    )
    assert nodes_of(answer) == ["node0", "node1", "node2"]
    assert isinstance(
        engine.match(2, request_with(resource_of("slot", 4, resource_of("core")), distinct_nodes=True), 0),
        Never,
    )


def test_distinct_holds_across_groups() -> None:
    engine = Engine(cluster_of(nodes=2, cores=4), "lonode")
    assert nodes_of(engine.match(1, request_with_groups(CORE, CORE, distinct_nodes=True), 0)) == [
        "node0",
        "node1",
    ]
    assert not isinstance(
        engine.match(2, request_with_groups(CORE, CORE, CORE, distinct_nodes=True), 0), Allocation
    )


@pytest.mark.parametrize(
    "tree",
    [
        resource_of("node", 1, resource_of("slot", 2, resource_of("core"))),
        resource_of("node", 1, resource_of("socket", 2, resource_of("slot", 1, resource_of("core")))),
        resource_of("socket", 2, resource_of("slot", 1, resource_of("core"))),
    ],
    ids=["two on a named node", "one on each socket of a node", "sockets of one node"],
)
def test_two_slots_on_one_node_are_never_distinct(tree: Resource) -> None:
    graph = sockets_of(nodes=1) if "socket" in repr(tree) else cluster_of(nodes=1, cores=4)
    engine = Engine(graph, "low")
    with contextlib.suppress(InvalidResources):
        engine.match(1, request_with(tree, distinct_nodes=True), 0)
    assert not engine.jobs


def test_all_lies_within_one_vertex_of_a_level() -> None:
    engine = Engine(cluster_of(nodes=4, cores=1, racks=2), "low")
    engine.match(9, slot_request({"core": 1}, constraint=on("node1")), 0)
    answer = engine.match(1, request_with_groups(CORE, CORE, within="rack"), 0)
    assert nodes_of(answer) == ["rack1/node2", "rack1/node3"]
    waits = engine.match(2, request_with(resource_of("slot", 2, resource_of("core")), within="rack"), 0)
    assert isinstance(waits, NotNow)
    never = engine.match(3, request_with(resource_of("slot", 3, resource_of("core")), within="rack"), 0)
    assert isinstance(never, Never)
    assert str(never.reason) == ("needs 3 slots with 1 core each inside one rack, a rack fits at most 2")


def test_inside_a_level_that_does_not_exist_is_never_until_it_does() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    answer = engine.match(1, request_with(CORE, within="zone"), 0)
    assert isinstance(answer, Never)
    assert answer.reason.clause == "needs one zone for all slots, the cluster has no zone"


def test_an_extension_adds_members() -> None:
    engine = Engine(cluster_of(nodes=1, cores=4), "low")
    engine.match(1, slot_request({"core": 1}, duration_s=100), 0)
    more = placed(engine.extend(1, slot_request({"core": 2}), 10))
    assert (more.start_s, more.end_s) == (10, 100)
    assert held(more) == ["node0/core1", "node0/core2"]
    whole = engine.allocation(1)
    assert held(whole) == ["node0/core0", "node0/core1", "node0/core2"]
    assert (whole.start_s, whole.end_s) == (0, 100)
    assert len(whole.slots) == 2
    engine.release(1)
    assert all(vertex.state is None for vertex in engine.graph.vertices.values())


def test_an_extension_of_a_pool_adds_up() -> None:
    engine = Engine(cluster_of(nodes=1, pools={"memory": 10}), "low")
    engine.match(1, slot_request({"memory": 4}), 0)
    engine.extend(1, slot_request({"memory": 5}), 0)
    assert held(engine.allocation(1)) == ["node0/memory0:9"]


def test_an_extension_stays_within_the_domain_and_on_distinct_nodes() -> None:
    engine = Engine(cluster_of(nodes=4, cores=2, racks=2), "low")
    placement = Placement(distinct_nodes=True, within="rack")
    engine.match(1, slot_request({"core": 1}, placement=placement), 0)
    assert nodes_of(engine.extend(1, slot_request({"core": 1}), 0)) == ["rack0/node1"]
    refused = engine.extend(1, slot_request({"core": 1}), 0)
    assert isinstance(refused, NotNow | Never)


def test_an_extension_that_no_free_node_could_meet_names_no_time() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "low")
    engine.match(1, slot_request({"core": 1}, slots=2, placement=Placement(distinct_nodes=True)), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=50), 0)
    refused = engine.extend(1, slot_request({"core": 1}), 0)
    assert isinstance(refused, Never) or (isinstance(refused, NotNow) and refused.earliest_s is None)


def test_an_extension_does_not_go_below_what_is_down() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2, racks=1), "low")
    engine.match(1, slot_request({"core": 1}, placement=Placement(within="rack")), 0)
    engine.set_status(engine.graph.root, up=False)
    assert isinstance(engine.extend(1, slot_request({"core": 1}), 0), NotNow)


def test_an_extension_of_a_late_job_lasts_an_instant_at_least() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    engine.match(1, slot_request({"core": 1}, duration_s=10), 0)
    more = placed(engine.extend(1, slot_request({"core": 1}), 30))
    assert (more.start_s, more.end_s) == (30, 31)


def test_an_extension_needs_no_room_on_its_own_vertices() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1), "low")
    engine.match(1, slot_request({"core": 1}), 0)
    assert isinstance(engine.extend(1, slot_request({"core": 1}), 0), NotNow)
    assert at(engine, "node0/core0").state is not None
