"""Which of the vertices that would do are taken, policy by policy."""

from __future__ import annotations

import pytest

from builders import at, held, on, placed, request_with, resource_of, short, sockets_of
from penstock.engine import Engine, Graph, VertexSpec, cluster_of, parse_policy, slot_request
from penstock.engine.engine import AnswerCounts
from penstock.engine.policies import NAMED_POLICIES, BadPolicy, Policy

ONE = slot_request({"core": 1})


def spots(engine: Engine, jobs: int, cores: int = 1) -> list[str]:
    """Where so many small jobs go, one after another."""
    return [held(engine.match(job, slot_request({"core": cores}), 0))[0] for job in range(jobs)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("low", ["node0/core0", "node1/core0", "node0/core1", "node1/core1"]),
        ("high", ["node0/core1", "node1/core1", "node0/core0", "node1/core0"]),
        ("lonode", ["node0/core0", "node0/core1", "node1/core0", "node1/core1"]),
        ("hinode", ["node1/core1", "node1/core0", "node0/core1", "node0/core0"]),
        ("first", ["node1/core1", "node0/core1", "node1/core0", "node0/core0"]),
        ("pack", ["node0/core0", "node0/core1", "node1/core0", "node1/core1"]),
        ("spread", ["node0/core0", "node1/core0", "node0/core1", "node1/core1"]),
    ],
)
def test_small_jobs_go_where_the_policy_wants_them(policy: str, expected: list[str]) -> None:
    assert spots(Engine(cluster_of(nodes=2, cores=2), policy), 4) == expected


@pytest.mark.parametrize(("policy", "node"), [("low", "node3"), ("high", "node7"), ("lonode", "node3")])
def test_ids_decide_and_not_the_order_of_the_graph(policy: str, node: str) -> None:
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    for number in (5, 3, 7):
        graph.add_child(root, VertexSpec("node", number))
    assert held(Engine(graph, policy).match(1, slot_request({"node": 1}), 0)) == [node]


def test_equal_scores_keep_the_order_in_which_they_were_found() -> None:
    for policy in ("low", "high"):
        engine = Engine(sockets_of(nodes=2, sockets=2, cores=1), policy)
        paths = [held(engine.match(job, ONE, 0))[0] for job in range(4)]
        assert paths == [
            "node0/socket0/core0",
            "node0/socket1/core0",
            "node1/socket0/core0",
            "node1/socket1/core0",
        ]


def test_a_slot_scores_the_sum_of_its_members() -> None:
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    for number, gpu in ((0, 9), (1, 1)):
        node = graph.add_child(root, VertexSpec("node", number))
        graph.add_child(node, VertexSpec("core", 0))
        graph.add_child(node, VertexSpec("gpu", gpu))
    answer = Engine(graph, "low").match(1, slot_request({"core": 1, "gpu": 1}), 0)
    assert held(answer) == ["node1/core0", "node1/gpu1"]


def test_first_spreads_small_jobs_over_untouched_nodes_from_the_youngest() -> None:
    assert spots(Engine(cluster_of(nodes=4, cores=2), "first"), 4) == [f"node{n}/core1" for n in (3, 2, 1, 0)]


def test_first_prefers_the_touched_node_with_most_free() -> None:
    engine = Engine(cluster_of(nodes=2, cores=4), "first")
    engine.match(1, slot_request({"core": 3}, constraint=on("node1")), 0)
    engine.match(2, slot_request({"core": 1}, constraint=on("node0")), 0)
    assert held(engine.match(3, ONE, 0)) == ["node0/core2"]


def test_first_has_no_memory_of_what_is_gone() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2), "first")
    before = held(engine.match(1, ONE, 0))
    engine.release(1)
    assert held(engine.match(2, ONE, 0)) == before


def test_first_stops_as_soon_as_it_has_enough() -> None:
    engine = Engine(cluster_of(nodes=50, cores=4), "first", index=False)
    engine.match(1, ONE, 0)
    assert engine.visits()[0] < 10
    hinode = Engine(cluster_of(nodes=50, cores=4), "hinode", index=False)
    hinode.match(1, ONE, 0)
    assert hinode.visits()[0] > 200


@pytest.mark.parametrize("policy", ["first", "hinode", "lonode", "hinodex", "lonodex"])
def test_with_an_index_only_the_node_of_the_slot_is_entered(policy: str) -> None:
    engine = Engine(cluster_of(nodes=50, cores=4), policy)
    engine.match(1, ONE, 0)
    assert engine.visits()[0] < 10
    assert engine.answers() == AnswerCounts(index=1, walker=0)


@pytest.mark.parametrize("policy", sorted(NAMED_POLICIES))
def test_with_an_index_nothing_is_entered_for_a_request_that_does_not_fit(policy: str) -> None:
    engine = Engine(cluster_of(nodes=50, cores=4), policy)
    for job in range(50):
        engine.match(job, slot_request({"core": 3}), 0)
    for wanted in (slot_request({"core": 2}), slot_request({"core": 1}, slots=51)):
        engine.match(99, wanted, 0, explain=False, prove=False)
        assert engine.visits() == (0, 0)


def test_a_policy_of_low_scores_looks_into_no_node_that_cannot_be_chosen() -> None:
    engine = Engine(cluster_of(nodes=50, cores=4), "lonode")
    assert held(engine.match(1, ONE, 0)) == ["node0/core0"]
    assert engine.visits()[0] < 60  # Each node is passed by; only the first is looked into.


def test_pack_fills_the_fullest_node_that_fits() -> None:
    engine = Engine(cluster_of(nodes=3, cores=4), "pack")
    engine.match(1, slot_request({"core": 3}, constraint=on("node1")), 0)
    engine.match(2, slot_request({"core": 2}, constraint=on("node2")), 0)
    assert held(engine.match(3, slot_request({"core": 2}), 0)) == ["node2/core2", "node2/core3"]
    assert held(engine.match(4, ONE, 0)) == ["node1/core3"]


def test_spread_goes_to_the_emptiest_node() -> None:
    engine = Engine(cluster_of(nodes=3, cores=4), "spread")
    engine.match(1, slot_request({"core": 1}, constraint=on("node0")), 0)
    engine.match(2, slot_request({"core": 2}, constraint=on("node1")), 0)
    assert held(engine.match(3, ONE, 0)) == ["node2/core0"]


def test_spread_deals_the_slots_of_one_job_round() -> None:
    answer = placed(
        Engine(cluster_of(nodes=3, cores=4), "spread").match(1, slot_request({"core": 1}, slots=3), 0)
    )
    assert {short(slot.node) for slot in answer.slots if slot.node} == {"node0", "node1", "node2"}
    packed = placed(
        Engine(cluster_of(nodes=3, cores=4), "pack").match(1, slot_request({"core": 1}, slots=3), 0)
    )
    assert {short(slot.node) for slot in packed.slots if slot.node} == {"node0"}


@pytest.mark.parametrize(("policy", "node"), [("first", "node0"), ("spread", "node0"), ("pack", "node1")])
def test_what_overruns_counts_as_use(policy: str, node: str) -> None:
    """node1 has two cores in use and should have none, node0 has one."""
    engine = Engine(cluster_of(nodes=2, cores=4), policy)
    engine.match(1, slot_request({"core": 2}, duration_s=5, constraint=on("node1")), 0)
    engine.match(2, slot_request({"core": 1}, constraint=on("node0")), 0)
    assert held(engine.match(3, ONE, 10))[0].split("/")[0] == node


def test_a_domain_is_tried_in_the_order_of_the_policy() -> None:
    request = request_with(resource_of("slot", 2, resource_of("core")), within="rack")
    for policy, rack in (("low", "rack0"), ("high", "rack1"), ("first", "rack1")):
        engine = Engine(cluster_of(nodes=4, cores=1, racks=2), policy)
        assert {place.split("/")[0] for place in held(engine.match(1, request, 0))} == {rack}


def test_a_full_domain_is_passed_over() -> None:
    engine = Engine(cluster_of(nodes=4, cores=1, racks=2), "low")
    engine.match(1, slot_request({"core": 1}, constraint=on("node0")), 0)
    answer = engine.match(2, request_with(resource_of("slot", 2, resource_of("core")), within="rack"), 0)
    assert held(answer) == ["rack1/node2/core0", "rack1/node3/core0"]
    assert at(engine, "rack0/node1/core0").state is None


@pytest.mark.parametrize("name", NAMED_POLICIES)
def test_a_named_policy_is_found_by_its_name(name: str) -> None:
    assert parse_policy(name) is NAMED_POLICIES[name]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("policy=high node_centric=true stop_on_1_matches=true", NAMED_POLICIES["first"]),
        ("policy=low", NAMED_POLICIES["low"]),
        ("node_exclusive=true policy=low node_centric=true", NAMED_POLICIES["lonodex"]),
        ("policy=low node_centric=false", Policy()),
    ],
)
def test_a_custom_policy_is_read(text: str, policy: Policy) -> None:
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    "text",
    [
        "",
        "best",
        "policy=middle",
        "policy=low node_centric=yes",
        "set_stop_on_1_matches=true policy=low",
        "node_centric=true",
        "policy=low,node_centric=true",
        "policy=low  node_centric=true",
    ],
)
def test_a_policy_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        parse_policy(text)
    assert caught.value.expected
