"""R version 1 (Flux RFC 20), the format in which a Flux instance describes its resources.

Only the `execution` section is read: every rank becomes a node below one cluster, with the children that its
R_lite group names (core, gpu, or any other type). Properties belong to ranks, hence to nodes, including those
that name a child type (`amd-mi60@gpu`). `claims_in_rset` locates a resource set in a graph by ranks and ids,
to book it; `ranks_in_rset` returns whole ranks, to release them.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.engine.booking import VertexClaim
from penstock.engine.graph import BadGraph, Graph, Vertex, VertexSpec
from penstock.model.rset import ResourceSet, parse_rset, rank_hosts

__all__ = ["claims_in_rset", "ranks_in_rset", "read_rv1exec"]

_SUFFIX = re.compile(r"([0-9]{1,18})\Z")
_VERTICES_MAX: Final = 8_000_000


def read_rv1exec(text: str | bytes) -> Graph:
    """A graph with one cluster that contains the nodes named in R."""
    rset = parse_rset(text)
    hosts = rank_hosts(rset)
    properties = _properties(rset)
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    for group in rset.groups:
        children = sum(len(ids) for _, ids in group.children)
        total = len(graph) + len(group.ranks) * (children + 1)
        if total > _VERTICES_MAX:
            raise BadGraph(
                "graph too large",
                where="R_lite",
                found=f"{total} vertices",
                expected=f"at most {_VERTICES_MAX}",
            )
        for rank in group.ranks:
            host = hosts.get(rank)
            if host is None:
                raise BadGraph(
                    "rank without a host name",
                    where="nodelist",
                    found=f"rank {rank}",
                    expected="as many host names as ranks",
                )
            basename, number = _split(host)
            spec = VertexSpec("node", number, basename, host, rank=rank, properties=properties.get(rank, {}))
            node = graph.add_child(root, spec)
            for child_type, ids in group.children:
                for child in ids:
                    graph.add_child(node, VertexSpec(child_type, child, rank=rank))
    return graph


def claims_in_rset(graph: Graph, text: str | bytes) -> list[VertexClaim]:
    """Exclusive claims on the children named in R, and on a node all of whose children are named."""
    rset = parse_rset(text)
    claims: list[VertexClaim] = []
    for group in rset.groups:
        for rank in group.ranks:
            vertices = graph.of_rank(rank)
            if not vertices:
                raise BadGraph(
                    "no such rank", where="R_lite", found=f"rank {rank}", expected="a rank of the graph"
                )
            named: dict[int, Vertex] = {}
            for child_type, ids in group.children:
                by_id = {vertex.id: vertex for vertex in vertices if vertex.type == child_type}
                for child in ids:
                    vertex = by_id.get(child)
                    if vertex is None:
                        raise BadGraph(
                            "no such resource",
                            where=f"rank {rank}",
                            found=f"{child_type} {child}",
                            expected=f"one of the {len(by_id)} vertices of type {child_type} with this rank",
                        )
                    named[vertex.index] = vertex
            nodes = [vertex for vertex in vertices if vertex.type == "node"]
            complete = [node for node in nodes if all(child.index in named for child in node.below())]
            claims.extend(
                VertexClaim(vertex, vertex.size, True, True) for vertex in (*named.values(), *complete)
            )
    return claims


def ranks_in_rset(text: str | bytes) -> list[int]:
    return sorted(rank for group in parse_rset(text).groups for rank in group.ranks)


def _properties(rset: ResourceSet) -> dict[int, dict[str, str]]:
    properties: dict[int, dict[str, str]] = {}
    for name, ranks in rset.properties:
        for rank in ranks:
            properties.setdefault(rank, {})[name] = ""
    return properties


def _split(host: str) -> tuple[str, int]:
    """The host name without its trailing number, and that number (-1 without one)."""
    suffix = _SUFFIX.search(host)
    if suffix is None:
        return host, -1
    return host[: suffix.start()], int(suffix.group(1))
