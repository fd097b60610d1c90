"""Small graphs, requests and documents for the tests of the engine."""

from __future__ import annotations

import json
from collections.abc import Iterable

from penstock.engine import (
    Allocation,
    Engine,
    Graph,
    Group,
    MatchResult,
    Placement,
    Request,
    Vertex,
    VertexSpec,
)
from penstock.model.constraint import Constraint, Hostlist
from penstock.model.jobspec import Count, Resource

Amount = int | Count


def count_of(amount: Amount) -> Count:
    return amount if isinstance(amount, Count) else Count(amount, amount)


def resource_of(kind: str, amount: Amount = 1, *inner: Resource, exclusive: bool | None = None) -> Resource:
    """A level of a request; a slot gets the label that it must have."""
    label = "default" if kind == "slot" else ""
    return Resource(kind, count_of(amount), exclusive=exclusive, with_=inner, label=label)


def request_with(
    *outer: Resource,
    duration_s: int | None = None,
    constraint: Constraint | None = None,
    distinct_nodes: bool = False,
    within: str = "",
) -> Request:
    """A request of one group."""
    return Request((Group(outer, constraint),), duration_s, Placement(distinct_nodes, within))


def request_with_groups(
    *groups: Resource, duration_s: int | None = None, distinct_nodes: bool = False, within: str = ""
) -> Request:
    """A request of as many groups as resources are given."""
    placement = Placement(distinct_nodes, within)
    return Request(tuple(Group((outer,)) for outer in groups), duration_s, placement)


def on(*names: str) -> Hostlist:
    return Hostlist(frozenset(names))


def sockets_of(*, nodes: int = 1, sockets: int = 2, cores: int = 2, racks: int = 0) -> Graph:
    """Cores below sockets below nodes, maybe below racks; ids begin at 0 at every parent."""
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    parents = [graph.add_child(root, VertexSpec("rack", number)) for number in range(racks)] or [root]
    for number in range(nodes):
        node = graph.add_child(
            parents[number * len(parents) // nodes], VertexSpec("node", number, rank=number)
        )
        for place in range(sockets):
            socket = graph.add_child(node, VertexSpec("socket", place))
            for core in range(cores):
                graph.add_child(socket, VertexSpec("core", core))
    return graph


def pools_of(*sizes: int, kind: str = "memory", divisible: bool = False) -> Graph:
    """One node with a pool of each size."""
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    node = graph.add_child(root, VertexSpec("node", 0, rank=0))
    for number, size in enumerate(sizes):
        graph.add_child(node, VertexSpec(kind, number, size=size, divisible=divisible))
    return graph


def at(engine: Engine, path: str) -> Vertex:
    """The vertex at a path that is told from below the root."""
    return engine.graph.one_at(f"{engine.graph.root.path()}/{path}" if path else engine.graph.root.path())


def placed(answer: MatchResult) -> Allocation:
    assert isinstance(answer, Allocation), answer
    return answer


def short(vertex: Vertex) -> str:
    """A path without the root."""
    return vertex.path().partition("/")[2].partition("/")[2]


def held(answer: MatchResult) -> list[str]:
    """What an allocation holds: `node0/core1`, or `node0/memory0:3` where it is not one unit."""
    return [
        short(pick.vertex) + (f":{pick.units}" if pick.units != 1 else "")
        for pick in placed(answer).picks
        if pick.exclusive
    ]


def jgf(nodes: Iterable[tuple[str, dict[str, object]]], edges: Iterable[tuple[str, ...]]) -> str:
    """A JGF document: (id, metadata) and (source, target[, subsystem]). A path alone is in containment."""
    listed = []
    for key, metadata in nodes:
        whole = dict(metadata)
        if "path" in whole:
            whole["paths"] = {"containment": whole.pop("path")}
        listed.append({"id": key, "metadata": whole})
    links: list[dict[str, object]] = []
    for source, target, *subsystem in edges:
        link: dict[str, object] = {"source": source, "target": target}
        if subsystem:
            link["metadata"] = {"subsystem": subsystem[0]}
        links.append(link)
    return json.dumps({"graph": {"nodes": listed, "edges": links}})
