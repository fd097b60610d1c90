"""What a walk passes over, because it cannot be among the best, changes no answer."""

from __future__ import annotations

import random

import pytest

from penstock.engine import Allocation, Engine, Graph, NodeOrder, Placement, Preference, VertexSpec
from penstock.engine.engine import MatchOp
from penstock.engine.policies import MostFreeOrder
from penstock.engine.request import SLOT, Group, Request
from penstock.model.constraint import HostIn
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobspec import Count, Resource

PORT = ExclusionKey("node", "port 80")
ZONE = ExclusionKey("zone", "one per zone")
RULE = ExclusionKey("node", "rule")


class LooksEverywhere(MostFreeOrder):
    """As if equal scores could come in any order: then nothing may be passed over."""

    is_stable = False


def cluster(chance: random.Random) -> Graph:
    """Nodes with pools and with whole cores, some in zones, in no order of their numbers."""
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0, basename="cluster"))
    zones = [root] + [graph.add_child(root, VertexSpec("zone", n, name=f"zone{n}")) for n in range(2)]
    numbers = list(range(12))
    chance.shuffle(numbers)
    for number in numbers:
        node = graph.add_child(
            chance.choice(zones), VertexSpec("node", number, name=f"node{number}", rank=number)
        )
        for core in range(chance.randrange(3)):
            graph.add_child(node, VertexSpec("core", core, rank=number))
        for kind in ("cpu", "memory"):
            if chance.random() < 0.9:
                size = chance.randrange(1, 9)
                graph.add_child(node, VertexSpec(kind, 0, rank=number, size=size, divisible=True))
    return graph


def request(chance: random.Random) -> Request:
    kinds = chance.choice([("cpu",), ("cpu", "memory"), ("core",), ("core", "memory")])
    inner = tuple(Resource(kind, Count(units, units)) for kind in kinds for units in [chance.randrange(1, 4)])
    count = chance.choice([1, 1, 2, 3, 5])
    slot = Resource(SLOT, Count(count, count), with_=inner, label="member")
    placement = Placement(chance.random() < 0.3, chance.choice(["", "", "zone"]))
    keys = chance.choice([(), (), (PORT,), (ZONE,), (PORT, ZONE), (RULE,)])
    forbids = () if keys == (RULE,) else keys
    liked = HostIn(frozenset(f"node{chance.randrange(12)}" for _ in range(3)))
    prefers = chance.choice([(), (), (Preference(liked, 5),)])
    order = chance.choice(list(NodeOrder))
    return Request(
        (Group((slot,), None, keys, forbids, prefers),), chance.choice([None, 60]), placement, order
    )


def paths(answer: object) -> object:
    if not isinstance(answer, Allocation):
        return type(answer).__name__
    return [
        (
            slot.node.name if slot.node is not None else "",
            [(grant.vertex.path(), grant.units) for grant in slot.grants],
        )
        for slot in answer.slots
    ]


@pytest.mark.parametrize("policy", ["lonode", "low", "pack", "spread", "lonodex"])
@pytest.mark.parametrize("seed", range(12))
def test_a_walk_that_stops_looking_finds_the_same(policy: str, seed: int) -> None:
    engines = [
        Engine(cluster(random.Random(seed)), policy=policy, filters="ALL:core,ALL:cpu,ALL:node", order=order)
        for order in (MostFreeOrder(), LooksEverywhere())
    ]
    chance = random.Random(seed + 1)
    live: list[int] = []
    for job in range(60):
        if live and chance.random() < 0.3:
            gone = live.pop(chance.randrange(len(live)))
            for engine in engines:
                engine.release(gone)
        wanted, op = request(chance), chance.choice([MatchOp.ALLOCATE, MatchOp.ALLOCATE_ORELSE_RESERVE])
        quick, thorough = (engine.match(job, wanted, job, op) for engine in engines)
        assert paths(quick) == paths(thorough)
        if isinstance(quick, Allocation):
            live.append(job)


@pytest.mark.parametrize("policy", ["lonode", "low", "pack", "spread", "lonodex"])
def test_who_may_have_more_slots_than_it_must_gets_as_many_as_there_are(policy: str) -> None:
    slot = Resource(SLOT, Count(2, 8), with_=(Resource("cpu", Count(1, 1)),), label="member")
    wanted = Request((Group((slot,)),), 60, Placement(distinct_nodes=True))
    quick, thorough = (
        Engine(cluster(random.Random(0)), policy=policy, filters="ALL:cpu,ALL:node", order=order).match(
            1, wanted, 0
        )
        for order in (MostFreeOrder(), LooksEverywhere())
    )
    assert isinstance(quick, Allocation)
    assert len(quick.slots) == 8
    assert paths(quick) == paths(thorough)


@pytest.mark.parametrize("policy", ["lonode", "low", "first", "hinode", "pack", "spread"])
@pytest.mark.parametrize("seed", range(6))
def test_nodes_that_are_known_to_be_full_need_not_be_looked_at_again(policy: str, seed: int) -> None:
    """As in a pass: one instant, bookings only added, each kind of request with its own memory."""
    engines = [
        Engine(cluster(random.Random(seed)), policy=policy, filters="ALL:core,ALL:cpu,ALL:node", index=False)
        for _ in range(2)
    ]
    chance = random.Random(seed + 1)
    wanted = [request(chance) for _ in range(4)]
    full: list[set[int]] = [set() for _ in wanted]
    noted = 0
    for job in range(60):
        kind = chance.randrange(len(wanted))
        op = chance.choice([MatchOp.ALLOCATE, MatchOp.ALLOCATE_ORELSE_RESERVE])
        steps = engines[0].match_stepwise(job, wanted[kind], 5, op, full_nodes=full[kind])
        try:
            while True:
                next(steps)
        except StopIteration as done:
            quick = done.value
        assert paths(quick) == paths(engines[1].match(job, wanted[kind], 5, op))
        noted += len(full[kind])
    assert noted
