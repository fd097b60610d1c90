"""Histories for an engine, drawn as plain values: clusters, requests, and steps one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from builders import on, resource_of
from penstock.engine import Graph, Group, MatchOp, Placement, Request, VertexSpec
from penstock.model.constraint import Constraint, Properties
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobspec import Resource

__all__ = [
    "KEYS",
    "SHAPES",
    "SOCKET_SHAPES",
    "Shape",
    "Step",
    "histories",
    "requests",
    "socket_requests",
    "with_keys",
]


@dataclass(frozen=True, slots=True)
class Shape:
    """A cluster to draw: how many of everything, and which ids nodes have."""

    racks: int
    node_ids: tuple[int, ...]
    sockets: int  # 0: cores hang below nodes
    cores: int
    gpus: int
    memory: tuple[int, ...]  # sizes of ordinary pools on every node
    cpu: int  # the size of a divisible pool on every node; 0: none

    def graph(self) -> Graph:
        graph = Graph()
        root = graph.add_root(VertexSpec("cluster", 0))
        parents = [graph.add_child(root, VertexSpec("rack", number)) for number in range(self.racks)] or [
            root
        ]
        for rank, number in enumerate(self.node_ids):
            tags = {"odd": ""} if number % 2 else {}
            parent = parents[rank % len(parents)]
            node = graph.add_child(parent, VertexSpec("node", number, rank=rank, properties=tags))
            for kind, count in (("core", 0 if self.sockets else self.cores), ("gpu", self.gpus)):
                for child in range(count):
                    graph.add_child(node, VertexSpec(kind, child, rank=rank))
            for place in range(self.sockets):
                socket = graph.add_child(node, VertexSpec("socket", place, rank=rank))
                for child in range(self.cores):
                    graph.add_child(socket, VertexSpec("core", child, rank=rank))
            for child, size in enumerate(self.memory):
                graph.add_child(node, VertexSpec("memory", child, rank=rank, size=size))
            if self.cpu:
                graph.add_child(node, VertexSpec("cpu", 0, rank=rank, size=self.cpu, divisible=True))
        return graph


SHAPES = st.builds(
    Shape,
    racks=st.sampled_from([1, 2, 2, 0]),
    node_ids=st.lists(st.integers(0, 5), min_size=2, max_size=4, unique=True).map(tuple),
    sockets=st.just(0),
    cores=st.integers(2, 4),
    gpus=st.integers(1, 2),
    memory=st.sampled_from([(2, 2), (3,), (1, 4)]),
    cpu=st.sampled_from([5, 8]),
)
SOCKET_SHAPES = st.builds(
    Shape,
    racks=st.integers(0, 1),
    node_ids=st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True).map(tuple),
    sockets=st.just(2),
    cores=st.integers(1, 2),
    gpus=st.just(0),
    memory=st.just(()),
    cpu=st.just(0),
)


AMOUNTS = st.sampled_from(
    [
        {"core": 1},
        {"core": 2},
        {"cpu": 1},
        {"cpu": 3},
        {"memory": 2},
        {"core": 1, "cpu": 2},
        {"gpu": 1, "memory": 1},
    ]
)


@st.composite
def slots(draw: st.DrawFn, alone: bool | None) -> Resource:
    inner = [resource_of(kind, units, exclusive=alone) for kind, units in draw(AMOUNTS).items()]
    return resource_of("slot", draw(st.sampled_from([1, 1, 1, 2, 3])), *inner)


@st.composite
def trees(draw: st.DrawFn, leaves_alone: bool | None) -> Resource:
    """Slots anywhere, slots on named nodes or racks, whole nodes in slots or by themselves."""
    slot = draw(slots(leaves_alone))
    alone = draw(st.sampled_from([None, True]))
    few = draw(st.integers(1, 2))
    return draw(
        st.sampled_from(
            [
                slot,
                slot,
                slot,
                resource_of("node", few, slot, exclusive=alone),
                resource_of("slot", few, resource_of("node", 1, exclusive=alone)),
                resource_of("node", few, exclusive=True),
                resource_of("rack", 1, resource_of("node", few, slot, exclusive=alone)),
                resource_of("rack", 1, resource_of("slot", few, resource_of("node")), exclusive=alone),
            ]
        )
    )


CONSTRAINTS: st.SearchStrategy[Constraint | None] = st.sampled_from(
    [
        None,
        None,
        None,
        None,
        None,
        Properties(("odd",)),
        Properties(("^odd",)),
        on("node0", "node1", "node2", "node3"),
    ]
)


PORT = ExclusionKey("node", "port 80")
CARRIER, SELECTED = (ExclusionKey("node", "rule", scope) for scope in ("carrier", "selected"))
RACK = ExclusionKey("rack", "one per rack")
# What a slot brings and forbids, in both directions.
KEYS = [
    ((PORT,), (PORT,)),
    ((CARRIER,), (SELECTED,)),
    ((SELECTED,), (CARRIER,)),
    ((CARRIER, SELECTED), (CARRIER, SELECTED)),
    ((RACK,), (RACK,)),
    ((PORT, RACK), (PORT, RACK)),
]


def with_keys(group: Group, which: int) -> Group:
    """A group with one of the sets of keys, if it is one of slots; most numbers mean none."""
    if which >= len(KEYS) or group.resources[0].type != "slot":
        return group
    return replace(group, brings=KEYS[which][0], forbids=KEYS[which][1])


DURATIONS = st.sampled_from([3, 5, 9, None])


@st.composite
def requests(draw: st.DrawFn) -> Request:
    size = draw(st.sampled_from([1, 1, 1, 2, 3]))
    leaves_alone = draw(st.sampled_from([None, None, None, None, True]))
    plain = st.builds(Group, trees(leaves_alone).map(lambda tree: (tree,)), CONSTRAINTS)
    group = st.builds(with_keys, plain, st.integers(0, 2 * len(KEYS)))
    groups = draw(st.lists(group, min_size=size, max_size=size))
    distinct = draw(st.sampled_from([False, False, False, True]))
    within = draw(st.sampled_from(["", "", "", "", "rack", "node"]))
    return Request(tuple(groups), draw(DURATIONS), Placement(distinct, within))


@st.composite
def socket_requests(draw: st.DrawFn) -> Request:
    """Levels above and below a node, named and unnamed, shared and alone."""
    alone = draw(st.sampled_from([None, True]))
    core, slot = resource_of("core"), resource_of("slot", 1, resource_of("core", draw(st.integers(1, 2))))
    tree = st.sampled_from(
        [
            slot,
            resource_of("socket", 1, slot, exclusive=alone),
            resource_of("slot", 1, resource_of("socket", 1, exclusive=alone)),
            resource_of("slot", 1, resource_of("socket", 1, core)),
            resource_of("slot", 1, resource_of("node", 1, exclusive=alone)),
            resource_of("node", 1, resource_of("socket", draw(st.integers(1, 2)), slot), exclusive=alone),
        ]
    )
    groups = [Group((draw(tree),), draw(CONSTRAINTS)) for _ in range(draw(st.sampled_from([1, 1, 2])))]
    within = draw(st.sampled_from(["", "", "node", "socket", "core"]))
    return Request(tuple(groups), draw(DURATIONS), Placement(False, within))


@dataclass(frozen=True, slots=True)
class Step:
    """One operation. Numbers are taken modulo what there is to choose from."""

    name: str
    which: int
    amount: int
    flag: bool
    request: Request
    op: MatchOp


def steps(asked: st.SearchStrategy[Request], *names: str) -> st.SearchStrategy[Step]:
    ops = [*MatchOp, MatchOp.ALLOCATE, MatchOp.ALLOCATE, MatchOp.ALLOCATE_ORELSE_RESERVE]
    numbers, amounts = st.integers(0, 50), st.integers(0, 9)
    return st.builds(
        Step, st.sampled_from(names), numbers, amounts, st.booleans(), asked, st.sampled_from(ops)
    )


def histories(asked: st.SearchStrategy[Request]) -> st.SearchStrategy[list[Step]]:
    releases = ("release", "release_slots", "release_vertices")
    repeats = ("extend", "extend", "update", "update", "tick", "tick", "set_end", "set_keys")
    changes = ("hold", "hold", "unhold", "status", "resize", "attach", "add", "add", "remove", "remove_leaf")
    return st.builds(
        lambda begin, rest: [*begin, *rest],
        st.lists(steps(asked, "match"), min_size=3, max_size=5),
        st.lists(steps(asked, *["match"] * 10, *releases, *repeats, *changes), min_size=5, max_size=16),
    )
