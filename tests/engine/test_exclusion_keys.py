"""Exclusion keys: which slots keep each other off a node or a rack, when, and how a refusal says it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import resource_of, sockets_of
from penstock.engine import (
    Allocation,
    Engine,
    Graph,
    MatchOp,
    MatchResult,
    Never,
    NotNow,
    Request,
    VertexSpec,
)
from penstock.engine.allocation import AllocationKind, Blocker, Reason
from penstock.engine.request import Group, InvalidResources, Placement, slot_request
from penstock.errors import Conflict
from penstock.model.exclusion_key import ExclusionKey

PORT = ExclusionKey("node", "host port 80/TCP")
OTHER_PORT = ExclusionKey("node", "host port 81/TCP")
CARRIER = ExclusionKey("node", "anti-affinity with app=db", "carrier")
SELECTED = ExclusionKey("node", "anti-affinity with app=db", "selected")
RACK = ExclusionKey("rack", "one per rack")


def racks(count: int, nodes: int, *, cpu: int = 10) -> Graph:
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    for number in range(count):
        rack = graph.add_child(root, VertexSpec("rack", number))
        for place in range(nodes):
            rank = number * nodes + place
            node = graph.add_child(rack, VertexSpec("node", rank, rank=rank))
            graph.add_child(node, VertexSpec("cpu", 0, rank=rank, size=cpu, divisible=True))
    return graph


def engine_of(count: int = 1, nodes: int = 2, policy: str = "lonode") -> Engine:
    return Engine(racks(count, nodes), policy)


def server(*keys: ExclusionKey, slots: int = 1, duration_s: int | None = None) -> Request:
    """Slots that bring and forbid the same keys."""
    return slot_request({"cpu": 1}, slots=slots, duration_s=duration_s, brings=keys, forbids=keys)


def rule(carries: bool, selected: bool, slots: int = 1) -> Request:
    brings = ((CARRIER,) if carries else ()) + ((SELECTED,) if selected else ())
    forbids = ((SELECTED,) if carries else ()) + ((CARRIER,) if selected else ())
    return slot_request({"cpu": 1}, slots=slots, brings=brings, forbids=forbids)


def nodes_of(answer: MatchResult) -> list[str]:
    assert isinstance(answer, Allocation), answer
    return sorted(slot.node.name for slot in answer.slots if slot.node is not None)


def reason_of(answer: MatchResult) -> Reason:
    assert isinstance(answer, NotNow | Never), answer
    return answer.reason


def states(engine: Engine) -> list[object]:
    return [vertex.state for vertex in engine.graph.vertices.values()]


# Between jobs


def test_a_key_that_is_in_use_excludes_its_node() -> None:
    engine = engine_of()
    assert nodes_of(engine.match(1, server(PORT), 0)) == ["node0"]
    assert nodes_of(engine.match(2, server(PORT), 0)) == ["node1"]
    assert nodes_of(engine.match(3, server(OTHER_PORT), 0)) == ["node0"]
    assert nodes_of(engine.match(4, slot_request({"cpu": 1}), 0)) == ["node0"]
    assert isinstance(engine.match(5, server(PORT), 0), NotNow)
    engine.release(1)
    assert nodes_of(engine.match(5, server(PORT), 0)) == ["node0"]


def test_carriers_of_a_rule_exclude_selected_slots_and_not_each_other() -> None:
    engine = engine_of(nodes=3)
    assert nodes_of(engine.match(1, rule(carries=True, selected=False, slots=2), 0)) == ["node0", "node0"]
    assert nodes_of(engine.match(2, rule(carries=False, selected=True, slots=2), 0)) == ["node1", "node1"]
    assert nodes_of(engine.match(3, rule(carries=True, selected=False), 0)) == ["node0"]
    assert nodes_of(engine.match(4, rule(carries=True, selected=True), 0)) == ["node2"]
    assert isinstance(engine.match(5, rule(carries=True, selected=True), 0), NotNow)


def test_a_key_of_a_rack_excludes_all_its_nodes() -> None:
    engine = engine_of(count=2)
    assert nodes_of(engine.match(1, server(RACK), 0)) == ["node0"]
    assert nodes_of(engine.match(2, server(RACK), 0)) == ["node2"]
    assert nodes_of(engine.match(3, server(PORT), 0)) == ["node0"]
    reason = reason_of(engine.match(4, server(RACK), 0))
    assert str(reason) == "needs 1 slot with 1m free cpu, 0 of 4 nodes qualify; one per rack excludes 4 nodes"
    assert [str(blocker) for blocker in reason.blockers] == ["job 1", "job 2"]


def test_a_key_of_a_level_that_a_node_is_not_in_does_not_apply() -> None:
    engine = engine_of()
    zone = ExclusionKey("zone", "one per zone")
    assert nodes_of(engine.match(1, server(zone, slots=3), 0)) == ["node0"] * 3
    assert nodes_of(engine.match(2, server(zone), 0)) == ["node0"]


# Over time


def test_a_reservation_starts_when_the_holder_of_the_key_ends() -> None:
    engine = engine_of(nodes=1)
    engine.match(1, server(PORT, duration_s=60), 0)
    later = engine.match(2, server(PORT, duration_s=30), 10, MatchOp.ALLOCATE_ORELSE_RESERVE)
    assert isinstance(later, Allocation)
    assert (later.kind, later.start_s, later.end_s) == (AllocationKind.RESERVED, 60, 90)
    third = engine.match(3, server(PORT, duration_s=5), 10, MatchOp.ALLOCATE_ORELSE_RESERVE)
    assert isinstance(third, Allocation)
    assert third.start_s == 90
    refused = engine.match(4, server(PORT, duration_s=5), 10)
    assert isinstance(refused, NotNow)
    assert refused.earliest_s == 95


def test_a_key_that_is_reserved_for_later_does_not_exclude_what_ends_before() -> None:
    engine = engine_of(nodes=1)
    engine.match(1, slot_request({"cpu": 10}, duration_s=60), 0)
    engine.match(2, server(PORT, duration_s=30), 0, MatchOp.ALLOCATE_ORELSE_RESERVE)
    engine.release(1)
    assert isinstance(engine.match(3, server(PORT, duration_s=61), 0), NotNow)
    assert nodes_of(engine.match(3, server(PORT, duration_s=60), 0)) == ["node0"]


def test_a_job_past_its_planned_end_keeps_its_keys_until_it_is_released() -> None:
    engine = engine_of(nodes=1)
    engine.match(1, server(PORT, duration_s=60), 0)
    refused = engine.match(2, server(PORT), 100)
    assert isinstance(refused, NotNow)
    assert refused.earliest_s == 101
    assert refused.reason.blockers == (Blocker(1, until_s=101),)
    engine.release(1)
    assert nodes_of(engine.match(2, server(PORT), 100)) == ["node0"]


# Within a job


@pytest.mark.parametrize("policy", ["lonode", "low", "high", "hinode", "first", "pack", "spread", "lonodex"])
@pytest.mark.parametrize(("key", "most"), [(PORT, 6), (RACK, 3)])
def test_a_group_that_excludes_itself_gets_one_slot_per_vertex(
    policy: str, key: ExclusionKey, most: int
) -> None:
    engine = engine_of(count=3, policy=policy)
    answer = engine.match(1, server(key, slots=most), 0)
    assert isinstance(answer, Allocation)
    nodes = [slot.node for slot in answer.slots if slot.node is not None]
    levels = [v.path() for node in nodes for v in (node, *node.ancestors()) if v.type == key.level]
    assert len(levels) == len(set(levels)) == most
    engine.release(1)
    assert states(engine) == [None] * len(states(engine))
    assert isinstance(engine.match(2, server(key, slots=most + 1), 0), Never)


@pytest.mark.parametrize("policy", ["lonode", "high", "first", "pack"])
def test_a_key_above_the_domain_of_a_job_applies(policy: str) -> None:
    engine = engine_of(policy=policy)
    within = Placement(within="node")
    answer = engine.match(1, replace(server(RACK, slots=2), placement=within), 0)
    assert isinstance(answer, Never)
    assert str(answer.reason) == (
        "needs 2 slots with 1m cpu each on distinct racks (one per rack) inside one node, "
        "a node fits at most 1"
    )
    assert len(nodes_of(engine.match(1, replace(server(RACK), placement=within), 0))) == 1
    assert isinstance(engine.match(2, replace(server(RACK), placement=within), 0), NotNow)
    rack = engine.graph.of_type("rack")[0]
    engine.release(1)
    engine.external_usage.set("daemon", rack, {}, standing=True, brings=(RACK,))
    assert isinstance(engine.match(2, replace(server(RACK), placement=within), 0), Never)


def test_slots_on_distinct_nodes_do_not_fit_inside_a_part_of_a_node() -> None:
    engine = Engine(sockets_of(nodes=2, sockets=2, cores=2))
    request = slot_request({"core": 1}, slots=2, placement=Placement(distinct_nodes=True, within="socket"))
    assert isinstance(engine.match(1, request, 0), Never)


def test_keys_of_several_levels_apply_together() -> None:
    engine = engine_of(count=3)
    assert nodes_of(engine.match(1, server(PORT, RACK, slots=3), 0)) == ["node0", "node2", "node4"]
    assert nodes_of(engine.match(2, server(PORT, slots=3), 0)) == ["node1", "node3", "node5"]


def test_groups_of_one_request_see_the_keys_of_each_other() -> None:
    engine = engine_of(nodes=3)
    both = (*server(PORT).groups, *server(PORT, OTHER_PORT).groups, *slot_request({"cpu": 1}).groups)
    answer = engine.match(1, Request(both), 0)
    assert isinstance(answer, Allocation)
    assert [slot.node.name for slot in answer.slots if slot.node] == ["node0", "node1", "node0"]
    assert isinstance(engine.match(2, Request(both), 0), NotNow)


def test_groups_that_need_more_nodes_together_than_there_are_can_never_run() -> None:
    engine = engine_of(nodes=3)
    groups = (*server(PORT, slots=2).groups, *server(PORT, OTHER_PORT, slots=2).groups)
    answer = engine.match(1, Request(groups), 0)
    assert isinstance(answer, Never)
    assert str(answer.reason) == "needs 4 nodes in 2 groups for host port 80/TCP, the cluster has 3"


def test_an_extension_sees_the_keys_of_its_own_job() -> None:
    engine = engine_of()
    engine.match(1, server(PORT), 0)
    assert nodes_of(engine.extend(1, server(PORT), 5)) == ["node1"]
    assert isinstance(engine.extend(1, server(PORT), 5), NotNow)
    engine.release_slots(1, [0])
    assert nodes_of(engine.extend(1, server(PORT), 5)) == ["node0"]


def test_a_released_slot_releases_its_keys_alone() -> None:
    engine = engine_of(nodes=3)
    engine.match(1, server(PORT, slots=3), 0)
    engine.release_slots(1, [1])
    assert nodes_of(engine.match(2, server(PORT), 0)) == ["node1"]
    selected = rule(carries=False, selected=True, slots=2)
    engine.match(3, selected, 0)
    engine.release_slots(3, [0])
    assert nodes_of(engine.match(4, rule(carries=True, selected=False), 0)) == ["node1"]
    engine.release_slots(3, [1])
    assert nodes_of(engine.match(5, rule(carries=True, selected=False), 0)) == ["node0"]


@pytest.mark.parametrize("policy", ["lonode", "lonodex"])
def test_a_key_is_counted_for_the_slots_that_are_left(policy: str) -> None:
    """Also if the node is held as a whole, and none of its units are free when one of its slots leaves."""
    engine = engine_of(policy=policy)
    answer = engine.match(1, slot_request({"cpu": 1}, slots=2, brings=(RACK,)), 0)
    assert nodes_of(answer) == ["node0", "node0"]
    engine.release_slots(1, [0])
    rack = engine.graph.of_type("rack")[0]
    assert rack.state is not None
    assert [booking.keys for booking in rack.state.bookings.values()] == [{RACK: 1}]
    engine.release_slots(1, [1])
    assert rack.state is None


def test_a_removed_node_takes_its_keys_along() -> None:
    engine = engine_of(count=1, nodes=2)
    engine.match(1, server(RACK, PORT), 0)
    node = engine.graph.of_type("node")[0]
    assert engine.remove(node).emptied == (1,)
    assert nodes_of(engine.match(2, server(RACK, PORT), 0)) == ["node1"]


def test_a_job_that_is_unbooked_and_booked_again_has_its_keys() -> None:
    engine = engine_of(nodes=1)
    engine.match(1, server(PORT), 0)
    holder = engine.unbook_job(1)
    assert states(engine) == [None] * len(states(engine))
    engine.rebook_job(holder)
    assert isinstance(engine.match(2, server(PORT), 0), NotNow)


def test_a_known_allocation_is_booked_with_its_keys() -> None:
    before, after = engine_of(nodes=1), engine_of(nodes=1)
    made = before.match(1, server(PORT), 0)
    assert isinstance(made, Allocation)
    claims = [replace(claim, vertex=after.graph.vertices[claim.vertex.index], above=None)
              for part in before.jobs[1].parts.values() for claim in part.claims.values()]  # fmt: skip
    vertices = after.graph.vertices
    slots = tuple(
        replace(slot, grants=tuple(replace(one, vertex=vertices[one.vertex.index]) for one in slot.grants))
        for slot in made.slots
    )
    after.update(1, claims, 0, None, made.kind, 0, slots=slots)
    assert isinstance(after.match(2, server(PORT), 0), NotNow)


def test_keys_need_slots() -> None:
    group = Group((resource_of("node", 1, exclusive=True),), brings=(PORT,))
    with pytest.raises(InvalidResources, match="exclusion keys without slots"):
        engine_of().match(1, Request((group,)), 0)


def test_distinct_nodes_and_keys_apply_together() -> None:
    engine = engine_of(count=2)
    request = replace(server(RACK, slots=2), placement=Placement(distinct_nodes=True))
    assert nodes_of(engine.match(1, request, 0)) == ["node0", "node2"]


# External usage


def test_keys_of_external_usage_exclude_until_it_is_removed() -> None:
    engine = engine_of(count=2, nodes=1)
    first, second = engine.graph.of_type("node")
    engine.external_usage.set("theirs", first, {"cpu": 1}, brings=(PORT, RACK))
    engine.external_usage.set("more", second, {}, brings=(PORT,))
    refused = engine.match(1, server(PORT), 0)
    assert isinstance(refused, NotNow)
    assert refused.earliest_s is None
    assert [str(blocker) for blocker in refused.reason.blockers] == ["more", "theirs"]
    assert nodes_of(engine.match(2, server(RACK), 0)) == ["node1"]
    engine.external_usage.set("theirs", first, {"cpu": 1})
    assert nodes_of(engine.match(1, server(PORT), 0)) == ["node0"]
    engine.external_usage.remove("more")
    assert nodes_of(engine.match(3, server(PORT), 0)) == ["node1"]


def test_standing_keys_prove_that_a_request_can_never_run() -> None:
    engine = engine_of(nodes=2)
    first, second = engine.graph.of_type("node")
    engine.external_usage.set("daemon-0", first, {}, standing=True, brings=(PORT,))
    engine.external_usage.set("theirs", second, {}, brings=(PORT,))
    assert isinstance(engine.match(1, server(PORT), 0), NotNow), "the other usage may end"
    engine.external_usage.set("theirs", second, {}, standing=True, brings=(PORT,))
    answer = engine.match(1, server(PORT), 0)
    assert isinstance(answer, Never)
    assert str(answer.reason) == (
        "needs 1 slot with 1m cpu; of 2 nodes, host port 80/TCP excludes 2 nodes permanently"
    )
    assert not engine.could_ever(server(PORT))
    assert engine.could_ever(server(OTHER_PORT))
    engine.external_usage.remove("daemon-0")
    assert nodes_of(engine.match(1, server(PORT), 0)) == ["node0"]


def test_standing_keys_leave_room_for_a_smaller_group() -> None:
    engine = engine_of(nodes=3)
    engine.external_usage.set("daemon", engine.graph.of_type("node")[0], {}, standing=True, brings=(PORT,))
    assert isinstance(engine.match(1, server(PORT, slots=3), 0), Never)
    assert nodes_of(engine.match(1, server(PORT, slots=2), 0)) == ["node1", "node2"]


# Explanations


def test_the_clause_names_the_key_and_counts_the_nodes_that_it_excludes() -> None:
    engine = engine_of(nodes=4)
    engine.match(1, server(PORT, slots=2, duration_s=60), 0)
    engine.match(2, slot_request({"cpu": 10}, slots=2, duration_s=90), 0)
    wanted = slot_request({"cpu": 8}, brings=(PORT,), forbids=(PORT,))
    reason = reason_of(engine.match(3, wanted, 0))
    assert str(reason) == (
        "needs 1 slot with 8m free cpu, 0 of 4 nodes qualify; host port 80/TCP excludes 2 nodes"
    )
    assert reason.blockers == (Blocker(1, until_s=60), Blocker(2, until_s=90))
    free = {stage.name: stage.passed for stage in reason.stages}["enough free"]
    assert free == 0, "a node with a forbidden key in use is not free"
    reason = reason_of(engine.match(3, server(PORT, slots=3), 0))
    assert str(reason) == (
        "needs 3 slots with 1m free cpu each on distinct nodes (host port 80/TCP), "
        "0 of 4 nodes qualify; host port 80/TCP excludes 2 nodes"
    )
    reason = reason_of(engine.match(3, server(PORT, slots=5), 0))
    assert str(reason) == (
        "needs 5 slots with 1m cpu each on distinct nodes (host port 80/TCP), the cluster fits at most 4"
    )


def test_only_the_holders_of_the_key_are_blockers_where_the_key_is_the_reason() -> None:
    engine = engine_of(nodes=1)
    engine.match(1, slot_request({"cpu": 2}, duration_s=30), 0)
    engine.match(2, server(PORT, duration_s=60), 0)
    engine.match(3, server(OTHER_PORT, duration_s=90), 0)
    assert reason_of(engine.match(4, server(PORT), 0)).blockers == (Blocker(2, until_s=60),)


def test_a_group_that_lacks_racks_is_told_so() -> None:
    engine = engine_of(count=3)
    engine.match(1, server(RACK), 0)
    reason = reason_of(engine.match(2, server(RACK, slots=3), 0))
    assert str(reason) == (
        "needs 3 slots with 1m cpu each on distinct racks (one per rack), 2 of 3 fit now; "
        "one per rack excludes 2 nodes"
    )
    assert [str(blocker) for blocker in reason.blockers] == ["job 1"]
    assert str(reason_of(engine.match(2, server(RACK, slots=4), 0))) == (
        "needs 4 slots with 1m cpu each on distinct racks (one per rack), the cluster fits at most 3"
    )


# Keys at a level below the nodes, or beside them

LICENSE = ExclusionKey("socket", "license")
LUN = ExclusionKey("storage", "lun")


def on_sockets(sockets: int = 1) -> Engine:
    """One node with sockets of two cores, and storage beside it."""
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    node = graph.add_child(root, VertexSpec("node", 0, rank=0))
    for number in range(sockets):
        socket = graph.add_child(node, VertexSpec("socket", number, rank=0))
        for core in range(2):
            graph.add_child(socket, VertexSpec("core", 2 * number + core, rank=0))
    graph.add_child(root, VertexSpec("storage", 0, size=8, divisible=True))
    return Engine(graph)


def licensed(slots: int = 1) -> Request:
    return slot_request({"core": 1}, slots=slots, duration_s=10, brings=(LICENSE,), forbids=(LICENSE,))


def test_a_key_of_sockets_keeps_slots_on_different_sockets() -> None:
    engine = on_sockets(2)
    assert isinstance(engine.match(1, licensed(), 0), Allocation)
    assert isinstance(engine.match(2, licensed(), 0), Allocation)
    refused = engine.match(3, licensed(), 0)
    assert isinstance(refused, NotNow)
    assert refused.earliest_s == 10
    assert "license excludes 1 node" in str(refused.reason)
    assert [blocker.job for blocker in refused.reason.blockers] == [1, 2]


@pytest.mark.parametrize("standing", [True, False])
def test_external_usage_brings_a_key_to_a_socket(standing: bool) -> None:
    engine = on_sockets()
    (socket,) = engine.graph.of_type("socket")
    engine.external_usage.set("other", socket, {}, standing=standing, brings=(LICENSE,))
    refused = engine.match(1, licensed(), 0)
    assert isinstance(refused, Never if standing else NotNow)
    assert "license excludes 1 node" + (" permanently" if standing else "") in str(refused.reason)


def test_external_usage_brings_a_key_to_a_vertex_outside_nodes() -> None:
    engine = on_sockets()
    (storage,) = engine.graph.of_type("storage")
    engine.external_usage.set("other", storage, {}, standing=True, brings=(LUN,))
    request = slot_request({"storage": 1}, duration_s=10, brings=(LUN,), forbids=(LUN,))
    refused = engine.match(1, request, 0)
    assert isinstance(refused, Never | NotNow)
    assert str(refused.reason)


# Keys that a booked slot gets later


@pytest.mark.parametrize("keys", [(PORT,), (PORT, RACK), (RACK, CARRIER)])
def test_keys_set_later_are_booked_like_keys_of_the_request(keys: tuple[ExclusionKey, ...]) -> None:
    given, late = engine_of(2, 2), engine_of(2, 2)
    given.match(1, slot_request({"cpu": 1}, duration_s=60, brings=keys), 0)
    (slot,) = matched(late.match(1, slot_request({"cpu": 1}, duration_s=60), 0)).slots
    late.set_slot_keys(1, slot.number, keys)
    assert booked(late) == booked(given)
    assert late.copy().allocation(1).slots[0].brings == keys
    query = MatchOp.WITHOUT_ALLOCATING
    answers = [engine.match(2, server(*keys, slots=3), 0, query) for engine in (given, late)]
    assert repr(answers[0]) == repr(answers[1])
    op = MatchOp.ALLOCATE_ORELSE_RESERVE
    later = [matched(engine.match(2, server(*keys, slots=2), 0, op)) for engine in (given, late)]
    assert repr(later[0]) == repr(later[1])
    for engine in (given, late):
        engine.release(1)
        engine.release(2)
    assert all(vertex.state is None for vertex in late.graph.vertices.values())


def test_a_refusal_knows_the_end_of_keys_set_later() -> None:
    engine = engine_of(1, 1)
    (slot,) = matched(engine.match(1, slot_request({"cpu": 1}, duration_s=60), 0)).slots
    engine.set_slot_keys(1, slot.number, (PORT,))
    refused = engine.match(2, server(PORT), 0)
    assert isinstance(refused, NotNow)
    assert refused.earliest_s == 60
    assert "host port 80/TCP excludes 1 node" in str(refused.reason)
    engine.set_slot_keys(1, slot.number, (OTHER_PORT,))
    assert isinstance(engine.match(2, server(PORT), 0), Allocation)
    assert isinstance(engine.match(3, server(OTHER_PORT), 100), NotNow), "an overdue job still has its keys"
    engine.release_slots(1, [slot.number])
    assert isinstance(engine.match(3, server(OTHER_PORT), 100), Allocation)


def test_each_slot_has_keys_of_its_own() -> None:
    engine = engine_of(1, 1)
    one, two = matched(engine.match(1, slot_request({"cpu": 1}, slots=2), 0)).slots
    engine.set_slot_keys(1, one.number, (PORT,))
    engine.set_slot_keys(1, two.number, (PORT, OTHER_PORT))
    engine.release_slots(1, [two.number])
    assert isinstance(engine.match(2, server(PORT), 0), NotNow)
    assert isinstance(engine.match(2, server(OTHER_PORT), 0), Allocation)
    engine.set_slot_keys(1, one.number, ())
    assert isinstance(engine.match(3, server(PORT), 0), Allocation)


def test_keys_of_a_slot_that_is_not_booked_cannot_be_set() -> None:
    engine = engine_of(1, 1)
    (slot,) = matched(engine.match(1, slot_request({"cpu": 1}), 0)).slots
    with pytest.raises(Conflict, match="job 1 has no slot 5"):
        engine.set_slot_keys(1, 5, (PORT,))
    with pytest.raises(Conflict, match="job 2 has no allocation"):
        engine.set_slot_keys(2, slot.number, (PORT,))


def booked(engine: Engine) -> dict[str, tuple[object, object]]:
    """Bookings, and the keys in use over time, by vertex."""
    states = {vertex.path(): vertex.state for vertex in engine.graph.vertices.values()}
    return {
        path: (state.bookings, {key: list(use.plan.changes()) for key, use in (state.keys or {}).items()})
        for path, state in states.items()
        if state is not None
    }


def matched(answer: MatchResult) -> Allocation:
    assert isinstance(answer, Allocation), answer
    return answer
