"""R version 1: what a Flux instance calls its resources.

Only the `execution` part is read: every rank becomes a node below one cluster, with the children
that its group names (core, gpu, or anything else). Properties belong to ranks, hence to nodes, also
those that speak of a child (`amd-mi60@gpu`). `marks_in_rset` finds a set again in a graph by ranks
and ids, to book it; `ranks_in_rset` finds whole ranks, to release them.
"""

from __future__ import annotations

import re
from typing import Final

from penstock.engine.booking import Mark
from penstock.engine.graph import BadGraph, Graph, Vertex, VertexSpec
from penstock.model.rset import ResourceSet, parse_rset, rank_hosts

__all__ = ["marks_in_rset", "ranks_in_rset", "read_rv1exec"]

_SUFFIX = re.compile(r"([0-9]{1,18})\Z")
_VERTICES_MAX: Final = 8_000_000


def read_rv1exec(text: str | bytes) -> Graph:
    """A cluster of the nodes that R names."""
    rset = parse_rset(text)
    hosts = rank_hosts(rset)
    tags = _tags(rset)
    graph = Graph()
    root = graph.add_root(VertexSpec("cluster", 0))
    for group in rset.groups:
        children = sum(len(ids) for _, ids in group.children)
        total = len(graph) + len(group.ranks) * (children + 1)
        if total > _VERTICES_MAX:
            raise BadGraph(
                "the graph gets too large",
                where="R_lite",
                found=f"{total} vertices",
                expected=f"at most {_VERTICES_MAX}",
            )
        for rank in group.ranks:
            host = hosts.get(rank)
            if host is None:
                raise BadGraph(
                    "a rank without a host",
                    where="nodelist",
                    found=f"rank {rank}",
                    expected="as many hosts as ranks",
                )
            basename, number = _split(host)
            spec = VertexSpec("node", number, basename, host, rank=rank, properties=tags.get(rank, {}))
            node = graph.add_child(root, spec)
            for kind, ids in group.children:
                for child in ids:
                    graph.add_child(node, VertexSpec(kind, child, rank=rank))
    return graph


def marks_in_rset(graph: Graph, text: str | bytes) -> list[Mark]:
    """The children that R names, held alone; a node all of whose children are named is held too."""
    rset = parse_rset(text)
    marks: list[Mark] = []
    for group in rset.groups:
        for rank in group.ranks:
            vertices = graph.of_rank(rank)
            if not vertices:
                raise BadGraph(
                    "no such rank", where="R_lite", found=f"rank {rank}", expected="a rank of the graph"
                )
            held: dict[int, Vertex] = {}
            for kind, ids in group.children:
                by_id = {vertex.id: vertex for vertex in vertices if vertex.type == kind}
                for child in ids:
                    vertex = by_id.get(child)
                    if vertex is None:
                        raise BadGraph(
                            "no such resource",
                            where=f"rank {rank}",
                            found=f"{kind} {child}",
                            expected=f"one of the {len(by_id)} of type {kind} with this rank",
                        )
                    held[vertex.index] = vertex
            nodes = [vertex for vertex in vertices if vertex.type == "node"]
            whole = [node for node in nodes if all(child.index in held for child in node.below())]
            marks.extend(Mark(vertex, vertex.size, True, True) for vertex in (*held.values(), *whole))
    return marks


def ranks_in_rset(text: str | bytes) -> list[int]:
    return sorted(rank for group in parse_rset(text).groups for rank in group.ranks)


def _tags(rset: ResourceSet) -> dict[int, dict[str, str]]:
    tags: dict[int, dict[str, str]] = {}
    for name, ranks in rset.properties:
        for rank in ranks:
            tags.setdefault(rank, {})[name] = ""
    return tags


def _split(host: str) -> tuple[str, int]:
    """A host name into what stands before its number, and the number (-1: none)."""
    found = _SUFFIX.search(host)
    if found is None:
        return host, -1
    return host[: found.start()], int(found.group(1))
