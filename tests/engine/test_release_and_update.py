"""Giving back all or a part, and booking again what is known."""

from __future__ import annotations

import pytest

from builders import at, held, placed, pools_of, request_with, request_with_groups, resource_of, sockets_of
from penstock.engine import (
    Allocation,
    AllocationKind,
    Engine,
    MatchOp,
    NotNow,
    Placement,
    VertexSpec,
    cluster_of,
    slot_request,
)
from penstock.engine.booking import VertexClaim
from penstock.engine.engine import BadTime, UnknownJob
from penstock.errors import BadRequest, Conflict
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobspec import Resource
from tests.costs import instructions

CORES = slot_request({"core": 1}, slots=3, duration_s=100)


def idle(engine: Engine) -> bool:
    return all(vertex.state is None for vertex in engine.graph.vertices.values())


def claims(engine: Engine, *paths: str) -> list[VertexClaim]:
    return [VertexClaim(at(engine, path), at(engine, path).size, True, True) for path in paths]


def next_slot(engine: Engine) -> int:
    """The number of the first slot that is left."""
    return engine.allocation(1).slots[0].number


def test_a_release_gives_everything_back() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2))
    engine.match(1, CORES, 0)
    engine.release(1)
    assert idle(engine)
    assert engine.instants(0) == []
    with pytest.raises(UnknownJob) as caught:
        engine.release(1)
    assert caught.value.job == 1


def test_a_reservation_is_released_like_an_allocation() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    engine.match(1, slot_request({"core": 1}, duration_s=9), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=9), 0, MatchOp.ALLOCATE_ORELSE_RESERVE)
    engine.release(2)
    assert engine.instants(0) == [9]
    engine.release(1)
    assert idle(engine)


def test_slots_are_given_back_by_number() -> None:
    engine = Engine(cluster_of(nodes=1, cores=3), "low")
    engine.match(1, CORES, 0)
    assert engine.release_slots(1, [1]) is False
    assert held(engine.allocation(1)) == ["node0/core0", "node0/core2"]
    assert held(engine.match(2, slot_request({"core": 1}), 0)) == ["node0/core1"]
    assert engine.release_slots(1, [next_slot(engine)]) is False
    assert held(engine.allocation(1)) == ["node0/core2"], "numbers are those of what is left"
    assert engine.release_slots(1, [next_slot(engine)]) is True
    with pytest.raises(UnknownJob):
        engine.allocation(1)


def test_parts_of_a_pool_are_given_back_slot_by_slot() -> None:
    engine = Engine(pools_of(10, divisible=True), "low")
    engine.match(1, slot_request({"memory": 3}, slots=3), 0)
    engine.release_slots(1, [0, 2])
    assert held(engine.allocation(1)) == ["node0/memory0:3"]
    assert engine.release_slots(1, [next_slot(engine)]) is True
    assert idle(engine)


@pytest.mark.parametrize(
    "tree",
    [
        resource_of("socket", 2, resource_of("slot", 1, resource_of("core")), exclusive=True),
        resource_of("slot", 2, resource_of("socket", 1, exclusive=True)),
        resource_of("slot", 2, resource_of("socket", 1, resource_of("core"))),
        resource_of("slot", 1, resource_of("node", 1, exclusive=True)),
        resource_of("slot", 1, resource_of("node")),
        resource_of(
            "node", 1, resource_of("socket", 2, resource_of("slot", 1, resource_of("core"))), exclusive=True
        ),
    ],
    ids=[
        "whole sockets",
        "slots of whole sockets",
        "trees",
        "slot of a whole node",
        "slot of a node",
        "whole node",
    ],
)
@pytest.mark.parametrize("policy", ["low", "hinodex"])
def test_the_last_slot_takes_everything_with_it(tree: Resource, policy: str) -> None:
    engine = Engine(sockets_of(nodes=2), policy)
    slots = len(placed(engine.match(1, request_with(tree), 0)).slots)
    for left in range(slots, 0, -1):
        assert engine.release_slots(1, [next_slot(engine)]) is (left == 1)
    assert idle(engine)


def test_a_whole_vertex_stays_while_a_slot_in_it_does() -> None:
    engine = Engine(sockets_of(nodes=1), "low")
    tree = resource_of("socket", 2, resource_of("slot", 2, resource_of("core")), exclusive=True)
    assert len(placed(engine.match(1, request_with(tree), 0)).slots) == 4
    engine.release_slots(1, [next_slot(engine)])
    assert len(held(engine.allocation(1))) == 6
    engine.release_slots(1, [next_slot(engine)])
    assert held(engine.allocation(1)) == ["node0/socket1/core0", "node0/socket1/core1", "node0/socket1"]
    assert isinstance(engine.match(2, slot_request({"socket": 1}), 0), Allocation)


def test_what_was_asked_for_alone_stays_while_the_node_around_it_does() -> None:
    engine = Engine(pools_of(2, 2), "lonodex")
    engine.match(1, request_with(resource_of("slot", 2, resource_of("memory", 1, exclusive=True))), 0)
    assert engine.release_slots(1, [next_slot(engine)]) is False
    assert held(engine.allocation(1)) == ["node0/memory0:2", "node0/memory1:2", "node0"]
    assert engine.release_slots(1, [next_slot(engine)]) is True
    assert idle(engine)


def test_a_group_without_slots_keeps_its_nodes_when_others_slots_go() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "low")
    engine.match(
        1,
        request_with_groups(
            resource_of("node", 1, exclusive=True), resource_of("slot", 1, resource_of("core"))
        ),
        0,
    )
    assert engine.release_slots(1, [next_slot(engine)]) is False
    assert held(engine.allocation(1)) == ["node0/core0", "node0"]


def test_vertices_are_given_back_by_themselves() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "lonode")
    engine.match(1, slot_request({"core": 1}, slots=4), 0)
    node = at(engine, "node0")
    assert engine.release_vertices(1, [node, *node.below()]) is False
    assert held(engine.allocation(1)) == ["node1/core0", "node1/core1"]
    assert len(engine.allocation(1).slots) == 2
    assert node.state is None
    assert engine.release_vertices(1, list(engine.graph.vertices.values())) is True


def test_a_set_is_booked_again_as_it_was() -> None:
    first = Engine(cluster_of(nodes=2, cores=2, pools={"memory": 8}), "low")
    request = slot_request({"core": 1, "memory": 3}, slots=2, duration_s=50)
    given = placed(first.match(1, request, 5))
    first.release(1)
    again = [
        VertexClaim(pick.vertex, pick.units, True, not pick.vertex.divisible)
        for pick in given.picks
        if pick.exclusive
    ]
    assert first.update(1, again, 5, 55, AllocationKind.ALLOCATED, 9, slots=given.slots) == given
    assert first.release_slots(1, [next_slot(first)]) is False
    assert first.release_slots(1, [next_slot(first)]) is True
    assert idle(first)


def test_an_extension_after_an_update_knows_how_the_job_was_placed() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "low")
    placement = Placement(distinct_nodes=True)
    given = placed(engine.match(1, slot_request({"core": 1}, placement=placement), 0))
    engine.release(1)
    engine.update(
        1,
        claims(engine, "node0/core0"),
        0,
        None,
        AllocationKind.ALLOCATED,
        0,
        slots=given.slots,
        placement=placement,
    )
    assert held(engine.extend(1, slot_request({"core": 1}), 0)) == ["node1/core0"]


@pytest.mark.parametrize(
    ("taken", "wanted"),
    [
        ({"core": 2}, "node0/core0"),
        ({"core": 2}, "node0"),
        ({"node": 1}, "node0/core0"),
        ({"node": 1}, "node0"),
    ],
    ids=["the same vertex", "a vertex above", "a vertex below", "the same node"],
)
def test_a_set_that_somebody_else_has_is_a_conflict(taken: dict[str, int], wanted: str) -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    engine.match(1, slot_request(taken, duration_s=10), 0)
    with pytest.raises(Conflict):
        engine.update(2, claims(engine, wanted), 5, 20, AllocationKind.ALLOCATED, 5)
    assert 2 not in engine.jobs
    assert held(engine.update(2, claims(engine, wanted), 10, 20, AllocationKind.RESERVED, 5)) == [wanted]


def test_a_live_set_whose_end_has_passed_needs_the_present_instant() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    engine.match(1, slot_request({"core": 1}, duration_s=15), 15)
    with pytest.raises(Conflict):
        engine.update(2, claims(engine, "node0/core0"), 0, 10, AllocationKind.ALLOCATED, 20)
    engine.release(1)
    assert engine.update(2, claims(engine, "node0/core0"), 0, 10, AllocationKind.ALLOCATED, 20).end_s == 10


def test_force_books_what_is_in_use_whatever_the_plan_says() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "low")
    engine.match(1, slot_request({"core": 1}), 0)
    engine.update(2, claims(engine, "node0/core0"), 0, 10, AllocationKind.ALLOCATED, 0, force=True)
    assert held(engine.match(3, slot_request({"core": 1}), 0)) == ["node1/core0"], "others lose nothing by it"
    engine.release(1)
    assert isinstance(engine.match(4, slot_request({"core": 1}), 0), NotNow)
    engine.release(2)
    engine.release(3)
    assert idle(engine)


@pytest.mark.parametrize("level", ["node", "cluster"])
def test_a_set_whose_forbidden_keys_are_in_use_is_booked_only_by_force(level: str) -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "low")
    port = ExclusionKey(level, "host port 80/TCP")
    first = engine.match(1, slot_request({"core": 1}, duration_s=10, brings=(port,)), 0)
    assert held(first) == ["node0/core0"]
    core, now = claims(engine, "node0/core1"), AllocationKind.ALLOCATED
    with pytest.raises(Conflict, match=f"host port 80/TCP is in use at .*{level}0"):
        engine.update(2, core, 0, 10, now, 0, forbids=(port,))
    assert 2 not in engine.jobs
    later = engine.update(2, core, 10, 20, AllocationKind.RESERVED, 0, forbids=(port,))
    assert held(later) == ["node0/core1"]
    engine.release(2)
    assert held(engine.update(2, core, 0, 10, now, 0, forbids=(port,), force=True)) == ["node0/core1"]


def test_an_update_must_name_a_free_number_a_time_and_something() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    core = claims(engine, "node0/core0")
    with pytest.raises(BadTime):
        engine.update(1, core, 5, 5, AllocationKind.ALLOCATED, 0)
    with pytest.raises(BadTime):
        engine.update(1, core, -1, 5, AllocationKind.ALLOCATED, 0)
    with pytest.raises(BadRequest):
        engine.update(1, [VertexClaim(core[0].vertex, 1, False, False)], 0, 5, AllocationKind.ALLOCATED, 0)
    engine.update(1, core, 0, None, AllocationKind.ALLOCATED, 0)
    with pytest.raises(Conflict):
        engine.update(1, core, 0, 5, AllocationKind.ALLOCATED, 0, force=True)
    assert isinstance(engine.match(2, slot_request({"core": 1}), 9), NotNow)


def test_a_reservation_has_nothing_to_extend() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    engine.update(1, claims(engine, "node0/core0"), 10, 20, AllocationKind.RESERVED, 0)
    with pytest.raises(Conflict):
        engine.extend(1, slot_request({"core": 1}), 0)
    with pytest.raises(UnknownJob):
        engine.extend(7, slot_request({"core": 1}), 0)


def test_a_slot_that_is_given_back_twice_is_given_back_once() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "low")
    engine.match(1, slot_request({"core": 1}, slots=3), now=0)
    assert engine.release_slots(1, [0]) is False
    before = engine.allocation(1)
    assert engine.release_slots(1, [0, 77]) is False
    assert engine.allocation(1) == before
    assert [slot.number for slot in before.slots] == [1, 2]


def bookings(engine: Engine) -> dict[str, object]:
    states = {vertex.path(): vertex.state for vertex in engine.graph.vertices.values()}
    return {path: (dict(s.bookings), list(s.plan.changes())) for path, s in states.items() if s is not None}


def rack_with_a_disk(*, is_tree: bool) -> Engine:
    """A rack with a disk and two nodes; without `is_tree` a partial release books everything again."""
    graph = cluster_of(nodes=2, cores=2, racks=1)
    graph.add_child(graph.one_at("/cluster0/rack0"), VertexSpec("disk", 0))
    graph.is_tree = is_tree
    return Engine(graph, "low")


@pytest.mark.parametrize("slots", [[0], [1], [0, 2], [0, 1], [1, 2]])
def test_what_is_left_is_booked_as_if_it_were_alone(slots: list[int]) -> None:
    left = []
    for is_tree in (True, False):
        engine = rack_with_a_disk(is_tree=is_tree)
        groups = [resource_of("slot", 2, resource_of("core")), resource_of("slot", 1, resource_of("disk"))]
        engine.match(1, request_with_groups(*groups, duration_s=9), 0)
        engine.release_slots(1, slots)
        left.append(bookings(engine))
    assert left[0] == left[1]


def test_a_node_given_back_without_its_cores_is_not_had_alone() -> None:
    left = []
    for is_tree in (True, False):
        engine = rack_with_a_disk(is_tree=is_tree)
        engine.match(1, request_with(resource_of("node", 1, exclusive=True)), 0)
        engine.release_vertices(1, [at(engine, "rack0/node0")])
        left.append(bookings(engine))
    assert left[0] == left[1]


@pytest.mark.parametrize("alone", [None, True])
def test_the_end_of_one_member_costs_the_same_in_a_large_gang(alone: bool | None) -> None:
    def cost(slots: int) -> int:
        engine = Engine(cluster_of(nodes=slots, cores=1, pools={"memory": 8}), "lonode")
        slot = resource_of("slot", 1, resource_of("core"), resource_of("memory", 2))
        engine.match(1, request_with(resource_of("node", slots, slot, exclusive=alone)), 0)
        engine.release_slots(1, [0])  # The first one counts the claims.
        return instructions(lambda: engine.release_slots(1, [slots // 2]))

    assert cost(200) <= 1.1 * cost(20)


def test_a_lost_node_costs_the_same_in_a_large_gang() -> None:
    def cost(slots: int) -> int:
        engine = Engine(cluster_of(nodes=slots, cores=1), "lonode")
        engine.match(1, slot_request({"core": 1}, slots=slots), 0)
        engine.remove(at(engine, "node0"))
        return instructions(lambda: engine.remove(at(engine, "node1")))

    assert cost(200) <= 1.1 * cost(20)


def test_the_nodes_of_a_job_are_known_without_looking_at_every_slot() -> None:
    def cost(slots: int) -> int:
        engine = Engine(cluster_of(nodes=slots + 1, cores=1), "lonode")
        request = slot_request({"core": 1}, slots=slots, placement=Placement(distinct_nodes=True))
        engine.match(1, request, 0)
        engine.jobs[1].nodes()
        return instructions(lambda: engine.jobs[1].nodes())

    assert cost(200) == cost(20)
