"""Builders of small uniform graphs, for examples and tests."""

from __future__ import annotations

from penstock.engine.graph import Graph, VertexSpec

__all__ = ["cluster_of"]


def cluster_of(
    *,
    nodes: int,
    cores: int = 0,
    gpus: int = 0,
    racks: int = 0,
    pools: dict[str, int] | None = None,
    name: str = "cluster",
) -> Graph:
    """Equal nodes with cores, gpus and divisible pools (`{"memory": 64}`), optionally in racks."""
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0, basename=name))
    parents = [graph.add_child(root, VertexSpec("rack", number)) for number in range(racks)] or [root]
    for number in range(nodes):
        parent = parents[number * len(parents) // nodes]
        node = graph.add_child(parent, VertexSpec("node", number, rank=number))
        for resource_type, count in (("core", cores), ("gpu", gpus)):
            for child in range(count):
                graph.add_child(node, VertexSpec(resource_type, child, rank=number))
        for resource_type, size in (pools or {}).items():
            graph.add_child(node, VertexSpec(resource_type, 0, rank=number, size=size, divisible=True))
    return graph
