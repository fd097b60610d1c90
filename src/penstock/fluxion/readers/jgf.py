"""JGF (JSON Graph Format): a resource graph, or a part of one, as JSON.

It has three uses: `read_jgf` loads a graph; `attach_jgf` adds a subgraph to an existing graph and leaves
existing vertices unchanged; `claims_in_jgf` and `vertices_in_jgf` locate the vertices of a resource set in an
existing graph, to book or to release them. A document's vertex is identified with a vertex of the graph if
they share a path and the rank. Where Fluxion has an error message for a mistake, its text is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from penstock.engine.booking import VertexClaim
from penstock.engine.graph import CONTAINMENT, DEPTH_MAX, BadGraph, Graph, Vertex, VertexSpec
from penstock.model.document import Mapping, Node, Scalar, Sequence, parse_document, shown

__all__ = ["SIZE_MAX", "attach_jgf", "claims_in_jgf", "read_jgf", "vertices_in_jgf"]

SIZE_MAX: Final = 512 << 20
_NODES_MAX: Final = 200_000_000
_DEPTH_MAX: Final = 64
_INT64_MAX: Final = 2**63 - 1
_SIZE_UNITS_MAX: Final = 2**62
_INTEGER = re.compile(r"-?[0-9]{1,19}\Z")
_TRAILING_DIGITS = re.compile(r"([0-9]{1,18})\Z")


@dataclass(frozen=True, slots=True)
class _Entry:
    key: str
    spec: VertexSpec
    paths: tuple[tuple[str, str], ...]
    exclusive: bool


@dataclass(frozen=True, slots=True)
class _Edge:
    source: str
    target: str
    subsystem: str


def read_jgf(text: str | bytes) -> Graph:
    """A graph with the vertices and edges of the document."""
    graph = Graph()
    attach_jgf(graph, text)
    if CONTAINMENT not in graph.roots:
        raise BadGraph(
            "no root of the containment hierarchy",
            where="graph.nodes",
            found=f"{len(graph)} vertices, none of them a root",
            expected='a vertex with a path of one component, such as "/cluster0"',
        )
    return graph


def attach_jgf(graph: Graph, text: str | bytes) -> list[Vertex]:
    """Adds the vertices and edges that the graph does not have. Returns the added vertices.

    The document is checked completely before the first change, so an invalid one changes nothing.
    """
    entries, edges = _parse(text)
    _check_tree(graph, entries, edges)
    by_key: dict[str, Vertex] = {}
    added: dict[str, _Entry] = {}
    for entry in entries:
        vertex = _find(graph, entry)
        if vertex is None:
            vertex = _add(graph, entry)
            added[entry.key] = entry
        by_key[entry.key] = vertex
    for edge in edges:
        if edge.target in added or (edge.source in added and edge.subsystem != CONTAINMENT):
            graph.link(by_key[edge.source], by_key[edge.target], edge.subsystem)
    return [by_key[key] for key in added]


def claims_in_jgf(graph: Graph, text: str | bytes) -> list[VertexClaim]:
    """Claims on the vertices of a resource set: those marked exclusive in the document are booked."""
    entries, edges = _parse(text)
    claims = _claims(graph, entries)
    by_key = {entry.key: claim.vertex for entry, claim in zip(entries, claims, strict=True)}
    above: dict[int, Vertex] = {}
    for edge in edges:
        source, target = by_key[edge.source], by_key[edge.target]
        if not any(child is target for child in source.below(edge.subsystem)):
            raise BadGraph(
                "JGF edge not found in resource graph",
                where=f"edge {edge.source}->{edge.target}",
                found=f"{source.path()} -> {target.path()}",
                expected=f"an edge of the graph in {edge.subsystem}",
            )
        if edge.subsystem == CONTAINMENT:
            above[target.index] = source
    return [replace(claim, above=above.get(claim.vertex.index)) for claim in claims]


def vertices_in_jgf(graph: Graph, text: str | bytes) -> list[Vertex]:
    """The vertices of a resource set, to release them. The edges of the document are not compared."""
    entries, _ = _parse(text)
    return [claim.vertex for claim in _claims(graph, entries)]


def _claims(graph: Graph, entries: list[_Entry]) -> list[VertexClaim]:
    claims: list[VertexClaim] = []
    for entry in entries:
        vertex = _find(graph, entry)
        if vertex is None:
            raise BadGraph(
                "inconsistent input vertex: nonexistent path",
                where=f"node {entry.key}",
                found=", ".join(path for _, path in entry.paths),
                expected="the path and rank of a vertex of the graph",
            )
        spec = entry.spec
        held = vertex.state.external_units[1] if vertex.state is not None else 0
        sizes = range(1, vertex.size + 1) if vertex.divisible else (vertex.size, vertex.size - held)
        if (vertex.type, vertex.id) != (spec.type, spec.id) or (entry.exclusive and spec.size not in sizes):
            raise BadGraph(
                "inconsistent input vertex",
                where=f"node {entry.key}",
                found=f"{spec.type} id {spec.id} size {spec.size}",
                expected=f"{vertex.type} id {vertex.id} size {vertex.size}",
            )
        alone = entry.exclusive and not vertex.divisible
        claims.append(VertexClaim(vertex, spec.size, entry.exclusive, alone))
    return claims


def _add(graph: Graph, entry: _Entry) -> Vertex:
    vertex = graph.add_unlinked(entry.spec)
    for subsystem, path in entry.paths:
        if path.count("/") == 1:
            graph.roots[subsystem] = vertex
        graph.set_path(vertex, subsystem, path)
    return vertex


def _find(graph: Graph, entry: _Entry) -> Vertex | None:
    for _, path in entry.paths:
        for vertex in graph.at_path(path):
            if vertex.rank == entry.spec.rank:
                return vertex
    return None


def _check_tree(graph: Graph, entries: list[_Entry], edges: list[_Edge]) -> None:
    """Rejects second roots, vertices that are unreachable from the root, cycles and too deep a hierarchy."""
    known = {entry.key: _find(graph, entry) for entry in entries}
    _check_unique(entries)
    _check_roots(graph, known, {entry.key: entry for entry in entries}, edges)
    roots = {subsystem: root.path(subsystem) for subsystem, root in graph.roots.items()}
    for entry in entries:
        for subsystem, path in entry.paths if known[entry.key] is None else ():
            if path.count("/") != 1:
                continue
            if subsystem in roots:
                raise BadGraph(
                    f"failed to add root metadata for {subsystem} subsystem. Possible duplicate root",
                    where=f"node {entry.key}",
                    found=path,
                    expected=f"one root per subsystem, here {roots[subsystem]}",
                )
            roots[subsystem] = path
    below: dict[str, list[str]] = {}
    missing: dict[str, int] = {entry.key: 0 for entry in entries if known[entry.key] is None}
    depth: dict[str, int] = {}
    for entry in entries:
        vertex = known[entry.key]
        if vertex is not None:
            depth[entry.key] = 1 + sum(1 for _ in vertex.ancestors())
        elif any(path.count("/") == 1 for subsystem, path in entry.paths if subsystem == CONTAINMENT):
            depth[entry.key] = 1
    for edge in edges:
        if edge.subsystem != CONTAINMENT or known[edge.target] is not None:
            continue
        below.setdefault(edge.source, []).append(edge.target)
        missing[edge.target] += 1
    ready = [key for key in depth if missing.get(key, 0) == 0]
    while ready:
        key = ready.pop()
        for child in below.get(key, ()):
            depth[child] = max(depth.get(child, 0), depth[key] + 1)
            missing[child] -= 1
            if missing[child] == 0:
                ready.append(child)
    for entry in entries:
        inside = any(subsystem == CONTAINMENT for subsystem, _ in entry.paths)
        if inside and known[entry.key] is None and (missing[entry.key] or entry.key not in depth):
            raise BadGraph(
                "vertex unreachable from the root, or in a cycle",
                where=f"node {entry.key}",
                found=", ".join(path for _, path in entry.paths),
                expected="a path of edges from the root to every vertex, without cycles",
            )
        if depth.get(entry.key, 0) > DEPTH_MAX:
            raise BadGraph(
                "too many levels",
                where=f"node {entry.key}",
                found=f"level {depth[entry.key]}",
                expected=f"at most {DEPTH_MAX}",
            )


def _check_unique(entries: list[_Entry]) -> None:
    keys: dict[tuple[str, int], str] = {}
    for entry in entries:
        for _, path in entry.paths:
            other = keys.setdefault((path, entry.spec.rank), entry.key)
            if other != entry.key:
                raise BadGraph(
                    "two vertices with the same path and rank",
                    where=f"node {entry.key}",
                    found=f"{path} with rank {entry.spec.rank}, also in node {other}",
                    expected="different paths or ranks",
                )


def _check_roots(
    graph: Graph, known: dict[str, Vertex | None], by_key: dict[str, _Entry], edges: list[_Edge]
) -> None:
    """Rejects edges that lead to the root of any subsystem."""
    for edge in edges:
        vertex = known[edge.target]
        if vertex is not None:
            is_root = known[edge.source] is None and graph.roots.get(edge.subsystem) is vertex
        else:
            paths = by_key[edge.target].paths
            is_root = any(path.count("/") == 1 for subsystem, path in paths if subsystem == edge.subsystem)
        if is_root:
            raise BadGraph(
                f"edge to the root of {edge.subsystem}",
                where=f"edge {edge.source}->{edge.target}",
                found=f"{edge.target}, which is the root",
                expected="a target that is not a root",
            )


def _parse(text: str | bytes) -> tuple[list[_Entry], list[_Edge]]:
    document = parse_document(text, size_max=SIZE_MAX, depth_max=_DEPTH_MAX, nodes_max=_NODES_MAX)
    graph = _member(document, "graph", "")
    nodes = _sequence(_member(graph, "nodes", "graph"), "graph.nodes")
    links = _sequence(_member(graph, "edges", "graph"), "graph.edges")
    entries: list[_Entry] = []
    keys: set[str] = set()
    for position, node in enumerate(nodes):
        entry = _entry(node, f"graph.nodes[{position}]")
        if entry.key in keys:
            raise BadGraph(
                "found duplicate JGF node id",
                where=f"graph.nodes[{position}].id",
                found=repr(entry.key),
                expected="a unique id for every node",
            )
        keys.add(entry.key)
        entries.append(entry)
    edges: list[_Edge] = []
    for position, link in enumerate(links):
        edge = _edge(link, f"graph.edges[{position}]")
        for end in (edge.source, edge.target):
            if end not in keys:
                raise BadGraph(
                    "source and/or target vertex not found",
                    where=f"graph.edges[{position}]",
                    found=f"{edge.source} -> {edge.target}",
                    expected="ids of nodes in the same document",
                )
        edges.append(edge)
    return entries, edges


def _entry(node: Node, where: str) -> _Entry:
    key = _text(_member(node, "id", where), f"{where}.id")
    data = _member(node, "metadata", where)
    where = f"{where}.metadata"
    vertex_type = _text(_member(data, "type", where), f"{where}.type")
    paths = _paths(_member(data, "paths", where), f"{where}.paths")
    uniq_id = _optional_integer(data, "uniq_id", where)
    if uniq_id is None:
        if not _INTEGER.match(key):
            raise BadGraph(
                "no uniq_id", where=where, found=f"id {key}", expected="a uniq_id, or an integer id"
            )
        uniq_id = int(key)
    name_node = _optional(data, "name")
    name = _text(name_node, f"{where}.name") if name_node is not None else ""
    number = _optional_integer(data, "id", where)
    if number is None:
        digits = _TRAILING_DIGITS.search(name) if vertex_type == "node" else None
        number = int(digits.group(1)) if digits else uniq_id
    size = _optional_integer(data, "size", where)
    if size is not None and not 0 <= size <= _SIZE_UNITS_MAX:
        raise BadGraph("bad size", where=f"{where}.size", found=str(size), expected=f"0 to {_SIZE_UNITS_MAX}")
    rank = _optional_integer(data, "rank", where)
    status = _optional_integer(data, "status", where)
    basename = _optional(data, "basename")
    unit = _optional(data, "unit")
    label = _text(basename, f"{where}.basename") if basename is not None else vertex_type
    spec = VertexSpec(
        vertex_type,
        number,
        label,
        name or f"{label}{number}",
        uniq_id,
        -1 if rank is None else rank,
        1 if size is None else size,
        _text(unit, f"{where}.unit") if unit is not None else "",
        _properties(_optional(data, "properties"), f"{where}.properties"),
        up=not status,
    )
    return _Entry(key, spec, paths, _flag(_optional(data, "exclusive"), f"{where}.exclusive"))


def _edge(link: Node, where: str) -> _Edge:
    source = _text(_member(link, "source", where), f"{where}.source")
    target = _text(_member(link, "target", where), f"{where}.target")
    subsystem = CONTAINMENT
    data = _optional(link, "metadata")
    if data is not None:
        named = _optional(data, "subsystem")
        subsystem = _text(named, f"{where}.metadata.subsystem") if named is not None else CONTAINMENT
    return _Edge(source, target, subsystem)


def _member(node: Node, key: str, where: str) -> Node:
    found = _optional(node, key) if isinstance(node, Mapping) else None
    if found is None:
        raise BadGraph(
            f"JGF does not contain a required key ({key})",
            where=where or "JGF",
            found=shown(node),
            expected=f"an object with {key}",
        )
    return found


def _optional(node: Node, key: str) -> Node | None:
    found = node.get(key) if isinstance(node, Mapping) else None
    return None if isinstance(found, Scalar) and found.is_null else found


def _sequence(node: Node, where: str) -> tuple[Node, ...]:
    if not isinstance(node, Sequence):
        raise BadGraph("not a list", where=where, found=shown(node), expected="a list")
    return node.items


def _text(node: Node, where: str) -> str:
    if not isinstance(node, Scalar) or not node.quoted:
        raise BadGraph("not a string", where=where, found=shown(node), expected="a string")
    return node.text


def _flag(node: Node | None, where: str) -> bool:
    if node is None:
        return False
    if not isinstance(node, Scalar) or node.quoted or node.text not in ("true", "false"):
        raise BadGraph("not a boolean", where=where, found=shown(node), expected="true or false")
    return node.text == "true"


def _optional_integer(node: Node, key: str, where: str) -> int | None:
    found = _optional(node, key)
    if found is None:
        return None
    if not isinstance(found, Scalar) or found.quoted or not _INTEGER.match(found.text):
        raise BadGraph("not an integer", where=f"{where}.{key}", found=shown(found), expected="an integer")
    value = int(found.text)
    if not -_INT64_MAX <= value <= _INT64_MAX:
        raise BadGraph("out of range", where=f"{where}.{key}", found=found.text, expected="a 64 bit integer")
    return value


def _paths(node: Node, where: str) -> tuple[tuple[str, str], ...]:
    if not isinstance(node, Mapping) or not node.items:
        raise BadGraph(
            "no paths",
            where=where,
            found=shown(node),
            expected='an object like {"containment": "/cluster0/node0"}',
        )
    paths = tuple((subsystem, _text(path, f"{where}.{subsystem}")) for subsystem, path in node.items)
    for subsystem, path in paths:
        if not path.startswith("/"):
            raise BadGraph(
                "not a path",
                where=f"{where}.{subsystem}",
                found=repr(path),
                expected="a path that begins with /",
            )
    return paths


def _properties(node: Node | None, where: str) -> dict[str, str]:
    if node is None:
        return {}
    if not isinstance(node, Mapping):
        raise BadGraph(
            "key (properties) must be an object or null",
            where=where,
            found=shown(node),
            expected="an object of strings, or null",
        )
    return {key: _text(value, f"{where}.{key}") for key, value in node.items}
