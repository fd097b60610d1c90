"""Which requests match which graphs: prefixes, levels in between, slots, and shapes that are refused."""

from __future__ import annotations

import pytest

from builders import held, placed, pools_of, request_with, resource_of, short, sockets_of
from penstock.engine import Allocation, Engine, Never, Request, cluster_of, request_of, slot_request
from penstock.engine.request import InvalidResources, NothingAllocated
from penstock.errors import BadRequest
from penstock.model.jobspec import Count, Resource, parse_jobspec


def low(graph_of_cores: int = 2) -> Engine:
    return Engine(sockets_of(nodes=2, sockets=2, cores=graph_of_cores), "low")


@pytest.mark.parametrize(
    "prefix", [[], ["socket"], ["socket", "node"], ["node", "cluster"], ["socket", "node", "cluster"]]
)
def test_the_levels_above_the_first_one_that_is_named_may_be_left_out(prefix: list[str]) -> None:
    tree = resource_of("slot", 1, resource_of("core", 2))
    if prefix[:1] == ["node"]:
        tree = resource_of("socket", 1, tree)
    for kind in prefix:
        tree = resource_of(kind, 1, tree)
    assert held(low().match(1, request_with(tree), 0)) == ["node0/socket0/core0", "node0/socket0/core1"]


@pytest.mark.parametrize(
    "tree",
    [
        resource_of("node", 1, resource_of("slot", 1, resource_of("core"))),
        resource_of("cluster", 1, resource_of("slot", 1, resource_of("core"))),
        resource_of("cluster", 1, resource_of("socket", 1, resource_of("slot", 1, resource_of("core")))),
        resource_of("slot", 1, resource_of("node", 1, resource_of("core"))),
        resource_of("socket", 1, resource_of("node", 1, resource_of("slot", 1, resource_of("core")))),
    ],
    ids=["node->slot->core", "cluster->slot->core", "cluster->socket", "slot->node->core", "upside down"],
)
def test_a_level_in_between_that_is_not_named_ends_the_branch(tree: Resource) -> None:
    answer = low().match(1, request_with(tree), 0)
    assert isinstance(answer, Never)
    assert str(answer.reason).startswith("needs ")
    assert str(answer.reason).endswith(", the cluster does not nest them so")


def test_a_slot_is_bundled_from_the_direct_children_of_one_vertex() -> None:
    engine = low(2)
    assert isinstance(engine.match(1, slot_request({"core": 3}), 0), Never)
    assert len(placed(engine.match(1, slot_request({"core": 2}, slots=4), 0)).slots) == 4


def test_as_many_slots_as_bundles_fit_into_a_vertex() -> None:
    engine = Engine(cluster_of(nodes=1, cores=5), "low")
    answer = placed(
        engine.match(1, request_with(resource_of("slot", Count(1, 99), resource_of("core", 2))), 0)
    )
    assert [[short(grant.vertex) for grant in slot.grants] for slot in answer.slots] == [
        ["node0/core0", "node0/core1"],
        ["node0/core2", "node0/core3"],
    ]


def test_slots_need_every_type_they_name_in_one_place() -> None:
    engine = Engine(cluster_of(nodes=2, cores=4, gpus=1), "low")
    answer = placed(engine.match(1, slot_request({"core": 2, "gpu": 1}, slots=2), 0))
    assert [short(slot.node) for slot in answer.slots if slot.node] == ["node0", "node1"]
    assert isinstance(engine.match(2, slot_request({"core": 1, "gpu": 1}, slots=3), 0), Never)


def test_a_slot_may_hold_a_tree() -> None:
    answer = placed(
        low().match(
            1, request_with(resource_of("slot", 1, resource_of("socket", 2, resource_of("core", 1)))), 0
        )
    )
    assert held(answer) == ["node0/socket0/core0", "node0/socket0", "node0/socket1/core0", "node0/socket1"]
    assert len(answer.slots) == 1


def test_counts_below_a_named_vertex_hold_for_each_of_them() -> None:
    answer = placed(
        low().match(
            1,
            request_with(
                resource_of("node", 2, resource_of("socket", 1, resource_of("slot", 2, resource_of("core"))))
            ),
            0,
        )
    )
    assert held(answer) == [f"node{node}/socket0/core{core}" for node in (0, 1) for core in (0, 1)]
    assert len(answer.slots) == 4


def test_pools_are_given_whole() -> None:
    engine = Engine(pools_of(2, 2), "low")
    assert held(engine.match(1, slot_request({"memory": 1}), 0)) == ["node0/memory0:2"]


def test_a_slot_that_needs_more_than_a_pool_has_takes_two() -> None:
    engine = Engine(pools_of(4, 4, 4), "low")
    assert held(engine.match(1, slot_request({"memory": 6}), 0)) == ["node0/memory0:4", "node0/memory1:4"]
    assert held(engine.match(2, slot_request({"memory": 4}), 0)) == ["node0/memory2:4"]


def test_a_divisible_pool_gives_what_is_asked_for() -> None:
    engine = Engine(pools_of(10, divisible=True), "low")
    assert held(engine.match(1, slot_request({"memory": 3}, slots=2), 0)) == ["node0/memory0:6"]
    assert held(engine.match(2, slot_request({"memory": 4}), 0)) == ["node0/memory0:4"]
    assert not isinstance(engine.match(3, slot_request({"memory": 1}), 0), Allocation)


def test_a_slot_may_have_parts_of_two_divisible_pools() -> None:
    engine = Engine(pools_of(4, 4, divisible=True), "low")
    answer = placed(engine.match(1, slot_request({"memory": 3}, slots=2), 0))
    assert held(answer) == ["node0/memory0:4", "node0/memory1:2"]
    assert [[grant.units for grant in slot.grants] for slot in answer.slots] == [[3], [1, 2]]


@pytest.mark.parametrize(
    ("tree", "summary"),
    [
        (
            [resource_of("slot", 1, resource_of("core"), resource_of("core", 2))],
            "siblings in jobspec request same resource type : core",
        ),
        ([resource_of("slot", 1, resource_of("core")), resource_of("node")], "a slot has siblings"),
        ([resource_of("node"), resource_of("slot", 1, resource_of("core"))], "a slot has siblings"),
        ([resource_of("slot", 1)], "a slot is empty"),
        ([resource_of("slot", 1, resource_of("core", exclusive=False))], "exclusivity conflicts"),
        (
            [resource_of("node", 1, resource_of("core", exclusive=False), exclusive=True)],
            "exclusivity conflicts",
        ),
        ([], "the request is empty"),
        ([resource_of("node", 1, resource_of("core"))], "the request allocates nothing"),
    ],
)
def test_a_shape_that_contradicts_itself_is_refused(tree: list[Resource], summary: str) -> None:
    with pytest.raises(InvalidResources) as caught:
        low().match(1, request_with(*tree), 0)
    assert caught.value.summary == summary
    assert caught.value.where


def test_where_nodes_are_taken_whole_a_request_needs_no_slot() -> None:
    request = request_with(resource_of("node", 1, resource_of("core", 2)))
    with pytest.raises(NothingAllocated):
        Engine(cluster_of(nodes=2, cores=2), "low").match(1, request, 0)
    answer = Engine(cluster_of(nodes=2, cores=2), "lonodex").match(1, request, 0)
    assert held(answer) == ["node0/core0", "node0/core1", "node0"]


def test_a_count_of_nothing_is_no_crash() -> None:
    with pytest.raises(BadRequest):
        Engine(cluster_of(nodes=1, cores=2)).match(1, slot_request({"core": 0}), 0)


def test_a_request_without_groups_is_refused() -> None:
    with pytest.raises(BadRequest):
        low().match(1, Request(()), 0)


def test_a_type_that_is_not_there_is_named() -> None:
    answer = low().match(1, slot_request({"fpga": 1}), 0)
    assert isinstance(answer, Never)
    assert str(answer.reason) == "needs 1 fpga, the cluster has no fpga"


JOBSPEC = """
version: 9999
resources: [{type: slot, count: 1, label: a, with: [{type: core, count: 2}]}]
tasks: [{command: [app], slot: a, count: {per_slot: 1}}]
attributes: {system: {duration: %s}}
"""


@pytest.mark.parametrize(("told", "duration_s"), [("3600", 3600), ("0.2", 1), ("59.01", 60), ("0", None)])
def test_a_jobspec_becomes_a_request_of_whole_seconds(told: str, duration_s: int | None) -> None:
    request = request_of(parse_jobspec(JOBSPEC % told))
    assert request.duration_s == duration_s
    assert held(low().match(1, request, 0)) == ["node0/socket0/core0", "node0/socket0/core1"]
