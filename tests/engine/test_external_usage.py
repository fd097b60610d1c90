"""Use by others: passing and standing, more than there is, and what it does to our own jobs."""

from __future__ import annotations

import pytest

from builders import at, held, pools_of, request_with, resource_of, sockets_of
from penstock.engine import Allocation, Engine, MatchOp, Never, NotNow, Satisfiable, cluster_of, slot_request
from penstock.errors import BadRequest

SATISFIABILITY = MatchOp.SATISFIABILITY
RESERVE = MatchOp.ALLOCATE_ORELSE_RESERVE


def cluster(nodes: int = 2, policy: str = "low") -> Engine:
    return Engine(cluster_of(nodes=nodes, cores=4), policy)


def test_what_others_use_is_not_given_away() -> None:
    engine = cluster(1)
    engine.external_usage.set("others", at(engine, "node0"), {"core": 3})
    assert "others" in engine.external_usage
    assert held(engine.match(1, slot_request({"core": 1}), 0)) == ["node0/core3"]
    assert isinstance(engine.match(2, slot_request({"core": 1}), 0), NotNow)


def test_a_hold_has_no_end_so_nothing_can_be_reserved_behind_it() -> None:
    engine = cluster(1)
    engine.external_usage.set("others", at(engine, "node0"), {"core": 4})
    answer = engine.match(1, slot_request({"core": 1}, duration_s=5), 0, RESERVE)
    assert isinstance(answer, NotNow)
    assert answer.earliest_s is None


def test_a_passing_hold_does_not_count_in_what_could_ever_be() -> None:
    engine = cluster(1)
    engine.external_usage.set("passing", at(engine, "node0"), {"core": 4})
    assert engine.match(1, slot_request({"core": 4}), 0, SATISFIABILITY) == Satisfiable()


def test_a_standing_hold_counts_in_what_could_ever_be() -> None:
    engine = cluster(1)
    engine.external_usage.set("daemon", at(engine, "node0"), {"core": 1}, standing=True)
    assert isinstance(engine.match(1, slot_request({"core": 4}), 0, SATISFIABILITY), Never)
    assert engine.match(1, slot_request({"core": 3}), 0, SATISFIABILITY) == Satisfiable()


def test_a_passing_hold_spoils_exclusive_use_and_a_standing_one_does_not() -> None:
    whole = request_with(resource_of("node", 1, exclusive=True))
    for standing in (False, True):
        engine = cluster(1)
        engine.external_usage.set("others", at(engine, "node0"), {"core": 1}, standing=standing)
        assert isinstance(engine.match(1, whole, 0), Allocation) is standing


def test_a_passing_hold_without_amounts_still_is_somebody_on_the_node() -> None:
    engine = cluster(1)
    engine.external_usage.set("others", at(engine, "node0"), {})
    assert isinstance(engine.match(1, request_with(resource_of("node", 1, exclusive=True)), 0), NotNow)
    assert isinstance(engine.match(1, slot_request({"core": 4}), 0), Allocation)


def test_a_node_taken_whole_does_not_get_what_daemons_use() -> None:
    engine = cluster(2, "lonodex")
    engine.external_usage.set("daemon", at(engine, "node0"), {"core": 1}, standing=True)
    answer = engine.match(1, slot_request({"core": 1}), 0)
    assert held(answer)[:2] == ["node0/core0:0", "node0/core1"]
    assert held(engine.match(2, slot_request({"core": 4}), 0))[-1] == "node1"


def test_a_hold_fills_one_vertex_before_the_next_and_burdens_the_first_with_the_rest() -> None:
    engine = Engine(pools_of(4, 4, 4, divisible=True), "low")
    engine.external_usage.set("others", at(engine, "node0"), {"memory": 6})
    assert held(engine.match(1, slot_request({"memory": 5}), 0)) == ["node0/memory1:2", "node0/memory2:3"]
    engine.release(1)
    engine.external_usage.set("others", at(engine, "node0"), {"memory": 15})
    state = at(engine, "node0/memory0").state
    assert state is not None
    assert state.external_units == [7, 0]


@pytest.mark.parametrize("policy", ["low", "first", "spread"])
def test_more_use_than_there_is_takes_nothing_from_other_nodes(policy: str) -> None:
    engine = cluster(2, policy)
    engine.external_usage.set("others", at(engine, "node0"), {"core": 9})
    assert len(held(engine.match(1, slot_request({"core": 1}, slots=4), 0))) == 4
    assert isinstance(engine.match(2, slot_request({"core": 1}), 0), NotNow)


def test_a_hold_is_replaced_when_it_is_set_again_and_forgotten_when_removed() -> None:
    engine = cluster(1)
    node = at(engine, "node0")
    engine.external_usage.set("others", node, {"core": 4})
    engine.external_usage.set("others", node, {"core": 1}, standing=True)
    assert isinstance(engine.match(1, slot_request({"core": 3}), 0), Allocation)
    engine.release(1)
    engine.external_usage.remove("others")
    engine.external_usage.remove("others")
    assert "others" not in engine.external_usage
    assert all(vertex.state is None for vertex in engine.graph.vertices.values())


def test_a_hold_that_gives_is_refused_and_changes_nothing() -> None:
    engine = cluster(1)
    engine.external_usage.set("others", at(engine, "node0"), {"core": 4})
    with pytest.raises(BadRequest):
        engine.external_usage.set("others", at(engine, "node0"), {"core": -1})
    assert isinstance(engine.match(1, slot_request({"core": 1}), 0), NotNow)


def test_a_hold_beside_a_running_job_may_over_commit_and_ends_without_a_trace() -> None:
    engine = cluster(1)
    engine.match(1, slot_request({"core": 4}), 0)
    engine.external_usage.set("others", at(engine, "node0"), {"core": 2})
    engine.external_usage.remove("others")
    engine.release(1)
    assert held(engine.match(2, slot_request({"core": 4}), 0))[0] == "node0/core0"


def test_a_hold_above_nodes_is_spread_over_them() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2, racks=1), "low")
    engine.external_usage.set("others", at(engine, "rack0"), {"core": 3})
    assert held(engine.match(1, slot_request({"core": 1}), 0)) == ["rack0/node1/core1"]


def test_a_hold_outlives_a_vertex_that_it_does_not_name() -> None:
    engine = cluster(1)
    engine.external_usage.set("others", at(engine, "node0"), {"core": 3})
    engine.remove(at(engine, "node0/core0"))
    assert "others" in engine.external_usage
    assert not isinstance(engine.match(1, slot_request({"core": 2}), 0), Allocation)


def test_a_hold_goes_with_the_vertex_that_it_names() -> None:
    engine = cluster(2)
    engine.external_usage.set("others", at(engine, "node0"), {"core": 3})
    engine.remove(at(engine, "node0"))
    assert "others" not in engine.external_usage
    assert all(vertex.state is None for vertex in engine.graph.vertices.values())


def test_a_pool_that_shrinks_below_a_hold_has_nothing_and_takes_nothing() -> None:
    engine = Engine(cluster_of(nodes=2, pools={"memory": 8}), "low")
    engine.external_usage.set("others", at(engine, "node0"), {"memory": 6})
    engine.resize(at(engine, "node0/memory0"), 4)
    assert held(engine.match(1, slot_request({"memory": 8}), 0)) == ["node1/memory0:8"]
    assert isinstance(engine.match(2, slot_request({"memory": 1}), 0), NotNow)


def test_a_hold_on_a_socket_keeps_its_node_from_being_had_alone() -> None:
    engine = Engine(sockets_of(nodes=2), "low")
    engine.external_usage.set("others", at(engine, "node0/socket1"), {"core": 1})
    assert held(engine.match(1, slot_request({"node": 1}), 0)) == ["node1"]
    assert held(engine.match(2, slot_request({"socket": 1}), 0)) == ["node0/socket0"]
