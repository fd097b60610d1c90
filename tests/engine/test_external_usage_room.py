"""Others do not say which core or gpu is theirs; what they use is counted all the same."""

from __future__ import annotations

import pytest

from builders import at, held, request_with, resource_of
from penstock.engine import (
    Allocation,
    AllocationKind,
    Engine,
    MatchOp,
    Never,
    NotNow,
    Placement,
    Satisfiable,
    VertexSpec,
    VertexTree,
    cluster_of,
    slot_request,
)
from penstock.engine.booking import VertexClaim
from penstock.engine.engine import BadTime
from penstock.engine.request import InvalidResources
from penstock.errors import BadRequest
from tests.costs import instructions


def test_what_others_use_is_not_laid_on_what_we_have() -> None:
    engine = Engine(cluster_of(nodes=1, gpus=4), "low")
    engine.match(1, slot_request({"gpu": 2}), 0)
    engine.external_usage.set("other", at(engine, "node0"), {"gpu": 2})
    assert isinstance(engine.match(2, slot_request({"gpu": 1}), 0), NotNow)


def test_a_hold_that_found_no_room_takes_what_becomes_free() -> None:
    engine = Engine(cluster_of(nodes=1, gpus=4), "low")
    engine.match(1, slot_request({"gpu": 1}, slots=4), 0)
    engine.external_usage.set("other", at(engine, "node0"), {"gpu": 2})
    engine.release_slots(1, [2, 3])
    assert isinstance(engine.match(2, slot_request({"gpu": 1}), 0), NotNow)
    engine.release_slots(1, [0])
    assert isinstance(engine.match(2, slot_request({"gpu": 1}), 0), Allocation)
    assert isinstance(engine.match(3, slot_request({"gpu": 1}), 0), NotNow)


def test_of_two_holds_that_are_too_much_the_one_left_is_counted_in_full() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    engine.external_usage.set("a", at(engine, "node0"), {"core": 2})
    engine.external_usage.set("b", at(engine, "node0"), {"core": 2})
    engine.external_usage.remove("a")
    assert isinstance(engine.match(1, slot_request({"core": 1}), 0), NotNow)


def test_a_hold_on_what_is_not_there_yet_counts_when_it_comes() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1), "low")
    node = at(engine, "node0")
    engine.external_usage.set("early", node, {"gpu": 1})
    engine.add(node, VertexTree(VertexSpec("gpu", 0, rank=0)))
    assert isinstance(engine.match(1, slot_request({"gpu": 1}), 0), NotNow)


def test_one_comes_as_another_goes_and_the_hold_on_it_counts() -> None:
    engine = Engine(cluster_of(nodes=2, gpus=1), "low")
    engine.remove(at(engine, "node0/gpu0"))
    engine.external_usage.set("early", at(engine, "node0"), {"gpu": 1})
    engine.remove(at(engine, "node1/gpu0"))
    engine.add(at(engine, "node0"), VertexTree(VertexSpec("gpu", 1, rank=0)))
    assert isinstance(engine.match(1, slot_request({"gpu": 1}), 0), NotNow)
    engine.external_usage.remove("early")
    assert isinstance(engine.match(1, slot_request({"gpu": 1}), 0), Allocation)


def test_an_end_costs_the_same_however_many_use_what_no_node_has() -> None:
    costs = []
    for nodes in (20, 200):
        engine = Engine(cluster_of(nodes=nodes, cores=2), "low")
        for number in range(nodes):
            engine.external_usage.set(f"other{number}", at(engine, f"node{number}"), {"core": 1, "port": 1})
        engine.match(1, slot_request({"core": 1}), 0)
        costs.append(instructions(lambda engine=engine: engine.release(1)))  # type: ignore[misc]
    assert costs[1] <= 1.5 * costs[0], costs


def test_a_standing_hold_beyond_its_pool_spoils_no_other_node() -> None:
    engine = Engine(cluster_of(nodes=2, pools={"memory": 64}), "low")
    engine.external_usage.set("daemon", at(engine, "node0"), {"memory": 128}, standing=True)
    asked = slot_request({"memory": 64})
    assert engine.match(1, asked, 0, MatchOp.SATISFIABILITY) == Satisfiable()
    assert isinstance(engine.match(1, asked, 0), Allocation)


def test_a_pool_had_alone_stays_so_when_it_grows() -> None:
    engine = Engine(cluster_of(nodes=1, pools={"memory": 8}), "low")
    engine.match(1, request_with(resource_of("slot", 1, resource_of("memory", 8, exclusive=True))), 0)
    engine.resize(at(engine, "node0/memory0"), 16)
    assert isinstance(engine.match(2, slot_request({"memory": 8}), 0), NotNow)


def test_an_extension_needs_a_time_too() -> None:
    engine = Engine(cluster_of(nodes=1, pools={"cpu": 4}))
    engine.match(1, slot_request({"cpu": 1}, duration_s=100), 10)
    with pytest.raises(BadTime):
        engine.extend(1, slot_request({"cpu": 1}, duration_s=-15), 10)
    with pytest.raises(BadTime):
        engine.extend(1, slot_request({"cpu": 1}), -1)


def test_parts_of_one_pool_are_added_up_when_booked_again() -> None:
    engine = Engine(cluster_of(nodes=1, pools={"cpu": 4}))
    cpu = at(engine, "node0/cpu0")
    engine.update(
        1,
        [VertexClaim(cpu, 2, True, False), VertexClaim(cpu, 2, True, False)],
        0,
        10,
        AllocationKind.ALLOCATED,
        0,
    )
    assert isinstance(engine.match(2, slot_request({"cpu": 1}, duration_s=5), 0), NotNow)


def test_a_job_booked_again_keeps_to_its_domain() -> None:
    engine = Engine(cluster_of(nodes=4, cores=1, racks=2), "low")
    core = at(engine, "rack0/node0/core0")
    within = Placement(within="rack")
    engine.update(
        1, [VertexClaim(core, 1, True, True)], 0, None, AllocationKind.ALLOCATED, 0, placement=within
    )
    more = engine.extend(1, slot_request({"core": 1}, slots=2), 0)
    assert isinstance(more, NotNow), "the other rack is no place for this job"
    anti_affinity = [VertexClaim(at(engine, f"rack{n}/node{2 * n + 1}/core0"), 1, True, True) for n in (0, 1)]
    with pytest.raises(BadRequest, match="not inside one domain"):
        engine.update(2, anti_affinity, 0, None, AllocationKind.ALLOCATED, 0, placement=within)


def test_a_distinct_job_on_every_node_waits_for_one_of_its_own_to_leave() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "low")
    engine.match(1, slot_request({"core": 1}, slots=2, placement=Placement(distinct_nodes=True)), 0)
    answer = engine.extend(1, slot_request({"core": 1}), 0)
    assert isinstance(answer, NotNow)
    assert answer.earliest_s is None
    engine.release_slots(1, [0])
    again = engine.extend(1, slot_request({"core": 1}), 0)
    assert isinstance(again, Allocation)
    assert held(again) == ["node0/core0"]


def test_spread_and_pack_go_by_pools_without_being_told_to_count_them() -> None:
    spread = Engine(cluster_of(nodes=3, pools={"cpu": 4, "memory": 8}), "spread")
    job = spread.match(1, slot_request({"cpu": 1, "memory": 1}, slots=3), 0)
    assert isinstance(job, Allocation)
    assert sorted(slot.node.name for slot in job.slots if slot.node is not None) == [
        "node0",
        "node1",
        "node2",
    ]


def test_numbers_below_zero_and_too_many_slots_are_refused() -> None:
    engine = Engine(cluster_of(nodes=1, pools={"cpu": 4}))
    with pytest.raises(BadRequest, match="invalid job number"):
        engine.match(-1, slot_request({"cpu": 1}), 0)
    with pytest.raises(InvalidResources, match="too many slots"):
        engine.match(1, slot_request({"cpu": 1}, slots=70_000), 0)


def shared_storage() -> Engine:
    """Two racks with a core each; both list one ssd, which rack0 lists first."""
    graph = cluster_of(nodes=0, racks=2)
    racks = graph.of_type("rack")
    for rack in racks:
        graph.add_child(rack, VertexSpec("core", 0))
    ssd = graph.add_child(racks[0], VertexSpec("ssd", 0))
    graph.link(racks[1], ssd, "containment")
    return Engine(graph, "low", "ALL:ssd,ALL:core")


def test_what_two_contain_is_had_by_one() -> None:
    engine = shared_storage()
    engine.match(1, slot_request({"ssd": 1}), 0)
    alone = request_with(resource_of("rack", 2, exclusive=True))
    assert isinstance(engine.match(2, alone, 0), NotNow)
    engine.release(1)
    assert isinstance(engine.match(2, alone, 0), Allocation)


def test_what_two_contain_counts_below_both() -> None:
    engine = shared_storage()
    engine.match(1, slot_request({"core": 1}, duration_s=9), 0)
    job = engine.match(2, slot_request({"ssd": 1, "core": 1}), 0)
    assert isinstance(job, Allocation)
    assert held(job) == ["rack1/core0", "rack0/ssd0"]


def test_what_another_contains_too_stays_when_one_goes() -> None:
    engine = shared_storage()
    engine.match(1, slot_request({"ssd": 1}), 0)
    removal = engine.remove(at(engine, "rack0"))
    assert (removal.shrunk, removal.emptied) == ((), ())
    assert [vertex.name for vertex in engine.graph.of_type("ssd")] == ["ssd0"]
    engine.release(1)
    assert isinstance(engine.match(2, slot_request({"ssd": 1}), 0), Allocation)


def test_what_is_reached_from_the_wrong_side_first_is_no_proof_of_never() -> None:
    graph = cluster_of(nodes=0, racks=2)
    racks = graph.of_type("rack")
    for cores, rack in enumerate(racks, start=1):
        for number in range(cores):
            graph.add_child(rack, VertexSpec("core", number))
    ssd = graph.add_child(racks[0], VertexSpec("ssd", 0))
    graph.link(racks[1], ssd, "containment")
    asked = slot_request({"ssd": 1, "core": 2})
    # The walk enters the ssd in rack0, which has too few cores; only counting there turns it back.
    assert isinstance(Engine(graph, "low", "ALL:gpu").match(1, asked, 0), NotNow)
    assert isinstance(Engine(graph, "low", "ALL:core").match(1, asked, 0), Allocation)


def test_a_refusal_looks_at_no_vertex_twice_however_many_ways_lead_to_it() -> None:
    graph = cluster_of(nodes=0)
    above = [graph.root]
    for level in range(20):
        pair = [graph.add_child(above[0], VertexSpec(f"level{level}", number)) for number in range(2)]
        for further in above[1:]:
            for vertex in pair:
                graph.link(further, vertex, "containment")
        above = pair
    graph.add_child(above[0], VertexSpec("core", 0))
    answer = Engine(graph, "low").match(1, slot_request({"core": 2}), 0)
    assert isinstance(answer, Never), "found by 2 ** 20 ways, and no answer within a day"
