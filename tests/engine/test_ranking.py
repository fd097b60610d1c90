"""The order of nodes ahead of the match policy: preference, then pack or spread, then the policy."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from builders import at, on, placed, request_with, resource_of
from penstock.engine import (
    Engine,
    Graph,
    MatchResult,
    NodeOrder,
    Preference,
    Vertex,
    VertexSpec,
    cluster_of,
    slot_request,
)
from penstock.engine.request import InvalidResources
from penstock.engine.vertex_state import usage_ppm
from penstock.model.constraint import matches

SPREAD, PACK = NodeOrder.SPREAD, NodeOrder.PACK
POLICIES = ["lonode", "hinode", "low", "high", "first"]


def pools(*sizes: tuple[int, int]) -> Graph:
    """Nodes with pools of cpu and memory, as those of Kubernetes."""
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    for number, (cpu, memory) in enumerate(sizes):
        node = graph.add_child(root, VertexSpec("node", number, name=f"node{number}", rank=number))
        graph.add_child(node, VertexSpec("cpu", 0, size=cpu, divisible=True))
        graph.add_child(node, VertexSpec("memory", 0, size=memory, divisible=True))
    return graph


def nodes(answer: MatchResult) -> list[str]:
    return [slot.node.name for slot in placed(answer).slots if slot.node is not None]


@pytest.mark.parametrize("policy", POLICIES)
def test_members_that_join_one_by_one_are_spread_over_the_nodes(policy: str) -> None:
    engine = Engine(pools((8, 8), (8, 8), (8, 8)), policy)
    one = slot_request({"cpu": 1}, order=SPREAD)
    first = nodes(engine.match(1, one, 0))
    later = [nodes(engine.extend(1, one, 0))[0] for _ in range(5)]
    assert sorted([*first, *later]) == ["node0", "node0", "node1", "node1", "node2", "node2"]
    assert len({*first, *later[:2]}) == 3


def test_own_members_count_before_usage() -> None:
    """The node that is almost full is taken, since it has no member of the job."""
    engine = Engine(pools((8, 8), (8, 8)), "lonode")
    one = slot_request({"cpu": 1}, order=SPREAD)
    engine.match(7, slot_request({"cpu": 6}, constraint=on("node1")), 0)
    assert nodes(engine.match(1, one, 0)) == ["node0"]
    assert nodes(engine.extend(1, one, 0)) == ["node1"]
    assert nodes(engine.extend(1, one, 0)) == ["node0"]


def test_the_slots_of_one_request_are_spread_too() -> None:
    for policy in POLICIES:
        engine = Engine(pools((8, 8), (8, 8), (8, 8)), policy)
        answer = engine.match(1, slot_request({"cpu": 1}, slots=6, order=SPREAD), 0)
        assert sorted(nodes(answer)) == ["node0", "node0", "node1", "node1", "node2", "node2"]


@pytest.mark.parametrize("policy", POLICIES)
def test_pack_takes_the_fullest_node_that_fits_whatever_the_policy(policy: str) -> None:
    engine = Engine(pools((8, 8), (8, 8), (8, 8)), policy)
    engine.match(7, slot_request({"cpu": 4}, constraint=on("node1")), 0)
    engine.match(8, slot_request({"cpu": 7}, constraint=on("node2")), 0)
    answer = engine.match(1, slot_request({"cpu": 2}, slots=2, order=PACK), 0)
    assert nodes(answer) == ["node1", "node1"]


def test_the_policy_decides_among_nodes_of_equal_rank() -> None:
    chosen = {}
    for policy in POLICIES:
        engine = Engine(pools((8, 8), (8, 8), (8, 8)), policy)
        chosen[policy] = nodes(engine.match(1, slot_request({"cpu": 2}, order=PACK), 0))[0]
    assert chosen == {"lonode": "node0", "hinode": "node2", "low": "node0", "high": "node0", "first": "node2"}


def test_a_policy_that_orders_by_usage_itself_is_obeyed() -> None:
    engine = Engine(pools((8, 8), (8, 8)), "pack")
    engine.match(1, slot_request({"cpu": 1}, order=SPREAD), 0)
    assert nodes(engine.extend(1, slot_request({"cpu": 1}, order=SPREAD), 0)) == ["node0"]


@pytest.mark.parametrize("policy", [*POLICIES, "pack", "spread"])
@pytest.mark.parametrize("order", list(NodeOrder))
def test_a_preference_comes_first(policy: str, order: NodeOrder) -> None:
    engine = Engine(pools((8, 8), (8, 8), (8, 8), (8, 8)), policy)
    engine.match(7, slot_request({"cpu": 3}, constraint=on("node0")), 0)
    prefers = (Preference(on("node1", "node2"), 10), Preference(on("node2"), 5), Preference(on("node3"), 12))
    one = slot_request({"cpu": 8}, prefers=prefers, order=order)
    assert nodes(engine.match(1, one, 0)) == ["node2"]
    assert nodes(engine.extend(1, one, 0)) == ["node3"]
    assert nodes(engine.extend(1, one, 0)) == ["node1"]
    assert nodes(engine.match(2, slot_request({"cpu": 5}, prefers=prefers, order=order), 0)) == ["node0"]


def test_usage_is_that_of_the_scarcest_resource_and_follows_every_change() -> None:
    engine = Engine(pools((8, 100), (8, 100)), "lonode")
    node = at(engine, "node0")
    assert usage_ppm(node) == 0
    engine.match(1, slot_request({"cpu": 2, "memory": 50}, constraint=on("node0")), 0)
    assert usage_ppm(node) == 500_000
    engine.external_usage.set("other", node, {"cpu": 4})
    assert usage_ppm(node) == 750_000
    engine.resize(at(engine, "node0/cpu0"), 6)
    assert usage_ppm(node) == 1_000_000
    engine.external_usage.remove("other")
    assert usage_ppm(node) == 500_000
    later = engine.reserve(2, slot_request({"cpu": 4}, constraint=on("node0")), 50, 0, frozenset())
    assert later is not None
    assert usage_ppm(node) == 500_000  # A reservation uses nothing yet.
    engine.release(1)
    assert usage_ppm(node) == 0


def test_an_order_without_slots_is_refused() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "lonode")
    request = replace(
        request_with(resource_of("node", 1, resource_of("slot", 1, resource_of("core")))), order=PACK
    )
    with pytest.raises(InvalidResources, match="an order of nodes without slots"):
        engine.match(1, request, 0)


def free(node: Vertex, name: str) -> int:
    pool = next(child for child in node.below() if child.type == name)
    booked = sum(one.units for one in pool.state.bookings.values()) if pool.state is not None else 0
    return pool.size - booked


def rule(
    node: Vertex,
    prefers: tuple[Preference, ...],
    order: NodeOrder,
    own_slots: dict[str, int],
    sizes: tuple[int, int],
    direction: int,
) -> tuple[int, int, int, int]:
    """The rule, computed from scratch; the least value is the best."""
    liked = sum(one.weight for one in prefers if matches(one.constraint, node))
    shares = [
        (size - free(node, name)) * 1_000_000 // size
        for name, size in zip(("cpu", "memory"), sizes, strict=True)
    ]
    used = max(shares) if order is SPREAD else -max(shares)
    return -liked, own_slots.get(node.name, 0), used, direction * node.id


@pytest.mark.parametrize("policy", ["lonode", "hinode"])
@pytest.mark.parametrize("seed", range(8))
def test_every_choice_is_the_best_one_by_the_rule(policy: str, seed: int) -> None:
    """Over a history of jobs that come, grow and go."""
    chance = random.Random(seed)
    sizes = [(chance.choice([4, 8, 16]), chance.choice([8, 16])) for _ in range(10)]
    engine = Engine(pools(*sizes), policy)
    own: dict[int, dict[str, int]] = {}
    for step in range(150):
        if own and chance.random() < 0.15:
            gone = chance.choice(list(own))
            engine.release(gone)
            del own[gone]
        prefers = tuple(
            Preference(on(*(f"node{chance.randrange(10)}" for _ in range(3))), chance.randrange(1, 4))
            for _ in range(chance.randrange(3))
        )
        order, cpu, memory = chance.choice([SPREAD, PACK]), chance.randrange(1, 4), chance.randrange(1, 4)
        job = chance.choice([*own, step])
        counts = own.get(job, {}) if order is SPREAD else {}
        fitting = [
            node
            for node in engine.graph.of_type("node")
            if free(node, "cpu") >= cpu and free(node, "memory") >= memory
        ]
        best = min(
            (
                rule(node, prefers, order, counts, sizes[node.id], 1 if policy == "lonode" else -1)
                for node in fitting
            ),
            default=None,
        )
        request = slot_request({"cpu": cpu, "memory": memory}, prefers=prefers, order=order)
        answer = engine.extend(job, request, 0) if job in own else engine.match(job, request, 0)
        if best is None:
            assert not hasattr(answer, "slots")
            continue
        chosen = f"node{abs(best[-1])}"
        assert nodes(answer) == [chosen]
        own.setdefault(job, {})[chosen] = own.get(job, {}).get(chosen, 0) + 1
