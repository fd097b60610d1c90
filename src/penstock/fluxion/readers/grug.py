"""GRUG (Generating Resources Using GraphML): a recipe from which a resource graph is generated.

A node of the recipe is a vertex template. An edge states how many vertices of the target template each vertex
of the source template contains (`MULTIPLY`), or which existing vertices become its children in another
subsystem (`ASSOCIATE_IN`, `ASSOCIATE_BY_PATH_IN`). The recipe is traversed depth first, edges in file order,
and each edge creates all its vertices at once, so the creation order is breadth first within an edge.

`id_scope` k makes ids unique within the (k+1)-th ancestor: 0 restarts at each parent, 1 continues across the
grandparent. Document types and entities are rejected: a recipe needs none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from xml.parsers import expat

from penstock.engine.graph import CONTAINMENT, BadGraph, Graph, Vertex, VertexSpec

__all__ = ["VERTICES_MAX", "read_grug"]

SIZE_MAX: Final = 4 << 20
VERTICES_MAX: Final = 8_000_000
_RECIPE_MAX: Final = 10_000
_PAIRS_MAX: Final = 1_000_000  # pairs of vertices that all association edges together may compare
_INT_MAX: Final = 2**31 - 1


@dataclass(slots=True)
class _Template:
    key: str
    data: dict[str, str] = field(default_factory=dict)
    out: list[_EdgeRule] = field(default_factory=list)

    def get(self, name: str, default: str = "") -> str:
        return self.data.get(name, default)


@dataclass(slots=True)
class _EdgeRule:
    source: str
    target: str
    data: dict[str, str] = field(default_factory=dict)

    def get(self, name: str, default: str = "") -> str:
        return self.data.get(name, default)


def read_grug(text: str | bytes) -> Graph:
    """The resource graph that a recipe generates."""
    return _Generator(_parse(text)).run()


class _Parser:
    """Collects the nodes and edges of a GraphML document."""

    def __init__(self) -> None:
        self.templates: dict[str, _Template] = {}
        self.rules: list[_EdgeRule] = []
        self.template_defaults: dict[str, str] = {}
        self.rule_defaults: dict[str, str] = {}
        self._names: dict[str, str] = {}  # attribute names by key id
        self._key = ("", "")  # the <key> element being read: its `for` attribute and its attribute name
        self._open: _Template | _EdgeRule | None = None
        self._data: str | None = None
        self._text: list[str] = []
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.EntityDeclHandler = self._refuse

    def _refuse(self, *_: object) -> None:
        raise BadGraph(
            "document type or entity declaration in a recipe",
            where=self._line(),
            found="<!DOCTYPE or <!ENTITY",
            expected="GraphML without declarations",
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(":")[2]
        if tag == "key":
            self._names[self._required(attributes, "id")] = self._required(attributes, "attr.name")
            self._key = (attributes.get("for", ""), attributes["attr.name"])
        elif tag == "node":
            key = self._required(attributes, "id")
            if key in self.templates:
                raise BadGraph("duplicate node id", where=self._line(), found=key, expected="unique ids")
            self._open = self.templates[key] = _Template(key, dict(self.template_defaults))
        elif tag == "edge":
            source, target = self._required(attributes, "source"), self._required(attributes, "target")
            self._open = _EdgeRule(source, target, dict(self.rule_defaults))
            self.rules.append(self._open)
        elif tag == "data":
            self._data = self._required(attributes, "key")
            self._text = []
        elif tag == "default":
            self._data = ""
            self._text = []
        if len(self.templates) + len(self.rules) > _RECIPE_MAX:
            raise BadGraph(
                "recipe too large",
                where=self._line(),
                found=f"more than {_RECIPE_MAX} nodes and edges",
                expected=f"at most {_RECIPE_MAX}",
            )

    def _end(self, name: str) -> None:
        tag = name.rpartition(":")[2]
        if tag == "data" and self._data is not None:
            if self._open is not None:
                self._open.data[self._names.get(self._data, self._data)] = "".join(self._text).strip()
            self._data = None
        elif tag == "default":
            defaults = self.template_defaults if self._key[0] == "node" else self.rule_defaults
            defaults[self._key[1]] = "".join(self._text).strip()
            self._data = None
        elif tag in ("node", "edge"):
            self._open = None

    def _characters(self, text: str) -> None:
        if self._data is not None:
            self._text.append(text)

    def _line(self) -> str:
        return f"line {self.parser.CurrentLineNumber}"

    def _required(self, attributes: dict[str, str], name: str) -> str:
        if name not in attributes:
            raise BadGraph(
                f"element without {name}",
                where=self._line(),
                found=", ".join(attributes) or "no attributes",
                expected=f'{name}="..."',
            )
        return attributes[name]


def _parse(text: str | bytes) -> list[_Template]:
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    if len(data) > SIZE_MAX:
        raise BadGraph(
            "recipe too large",
            where="recipe",
            found=f"{len(data)} bytes",
            expected=f"at most {SIZE_MAX} bytes",
        )
    parser = _Parser()
    try:
        parser.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise BadGraph(
            "not well-formed XML", where=f"line {error.lineno}", found=str(error), expected="GraphML"
        ) from error
    for rule in parser.rules:
        for end in (rule.source, rule.target):
            if end not in parser.templates:
                raise BadGraph(
                    "edge with an unknown node",
                    where=f"edge {rule.source}->{rule.target}",
                    found=repr(end),
                    expected="the id of a node of the recipe",
                )
        parser.templates[rule.source].out.append(rule)
    return list(parser.templates.values())


class _Generator:
    """Traverses the recipe and creates the vertices."""

    def __init__(self, templates: list[_Template]) -> None:
        self._templates = {template.key: template for template in templates}
        self._graph = Graph()
        self._created: dict[str, list[Vertex]] = {}
        self._scales: list[int] = []  # multi_scale of the edges above, the nearest last
        self._visited: set[str] = set()
        self._ranks = 0
        self._pairs = 0

    def run(self) -> Graph:
        for template in self._templates.values():
            if template.key not in self._visited:
                self._traverse(template)
        if CONTAINMENT not in self._graph.roots:
            raise BadGraph(
                "the recipe creates no containment hierarchy",
                where="recipe",
                found=f"roots in {', '.join(self._graph.roots)}" if self._graph.roots else "no root",
                expected="a node with root=1 and an edge below it",
            )
        self._graph.check_complete()
        return self._graph

    def _traverse(self, start: _Template) -> None:
        self._visited.add(start.key)
        pending: list[tuple[_Template, int]] = [(start, 0)]
        while pending:
            template, position = pending.pop()
            if position == len(template.out):
                if self._scales:
                    self._scales.pop()
                continue
            pending.append((template, position + 1))
            rule = template.out[position]
            target = self._templates[rule.target]
            if target.key not in self._visited:
                self._visited.add(target.key)
                self._apply(template, target, rule)
                pending.append((target, 0))

    def _apply(self, source: _Template, target: _Template, rule: _EdgeRule) -> None:
        where = f"edge {source.key}->{target.key}"
        if _integer(source.get("root", "0"), where, "root") and not self._created.get(source.key):
            subsystem = source.get("subsystem", CONTAINMENT)
            root = self._graph.roots.get(subsystem)
            if root is None:
                root = self._graph.add_root(self._spec(source, 0, f"node {source.key}"), subsystem)
            self._created[source.key] = [root]
        method = rule.get("gen_method")
        if method == "MULTIPLY":
            self._multiply(source, target, rule, where)
        elif method in ("ASSOCIATE_IN", "ASSOCIATE_BY_PATH_IN"):
            self._associate(source, target, rule, where, by_path=method != "ASSOCIATE_IN")
        else:
            raise BadGraph(
                "unknown generation method",
                where=where,
                found=repr(method),
                expected="MULTIPLY, ASSOCIATE_IN or ASSOCIATE_BY_PATH_IN",
            )

    def _multiply(self, source: _Template, target: _Template, rule: _EdgeRule, where: str) -> None:
        scale = _integer(rule.get("multi_scale", "1"), where, "multi_scale")
        subsystem = rule.get("e_subsystem", CONTAINMENT)
        parents = self._created.get(source.key, [])
        total = len(self._graph) + scale * len(parents)
        if total > VERTICES_MAX:
            raise BadGraph(
                "graph too large",
                where=where,
                found=f"{total} vertices",
                expected=f"at most {VERTICES_MAX}",
            )
        created: list[Vertex] = []
        specs: dict[int, VertexSpec] = {}  # by id; equal vertices share their strings
        path_in = target.get("subsystem", CONTAINMENT)
        add_child = self._graph.add_child
        for position, parent in enumerate(parents):
            above = parent.path(path_in)
            for number in self._ids(rule, where, scale, position):
                spec = specs.get(number)
                if spec is None:
                    spec = self._spec(target, number, f"node {target.key}")
                    if spec.rank < 0:  # Each node has a rank of its own.
                        specs[number] = spec
                created.append(add_child(parent, spec, subsystem, f"{above}/{spec.name}"))
        self._created[target.key] = created
        self._scales.append(scale)

    def _associate(
        self, source: _Template, target: _Template, rule: _EdgeRule, where: str, by_path: bool
    ) -> None:
        subsystem = rule.get("e_subsystem", CONTAINMENT)
        within = rule.get("as_tgt_subsystem", CONTAINMENT)
        up_target = _integer(rule.get("as_tgt_uplvl", "0"), where, "as_tgt_uplvl")
        up_source = _integer(rule.get("as_src_uplvl", "0"), where, "as_src_uplvl")
        created: list[Vertex] = []
        parents = self._created.get(source.key, [])
        targets = self._graph.of_type(target.get("type"))
        self._pairs += len(parents) * len(targets)
        if self._pairs > _PAIRS_MAX:
            raise BadGraph(
                "too many vertices to associate",
                where=where,
                found=f"{self._pairs} pairs",
                expected=f"at most {_PAIRS_MAX}",
            )
        for parent in parents:
            for vertex in targets:
                if by_path and _prefix(vertex.path(within), up_target) != _prefix(
                    parent.path(within), up_source
                ):
                    continue
                self._graph.link(parent, vertex, subsystem)
                self._graph.set_path(vertex, subsystem, f"{parent.path(subsystem)}/{vertex.name}")
                created.append(vertex)
        self._created[target.key] = created

    def _ids(self, rule: _EdgeRule, where: str, scale: int, position: int) -> Sequence[int]:
        """The ids of the children of one parent."""
        if scale == 0:
            return ()
        scope = _integer(rule.get("id_scope", "0"), where, "id_scope", low=-1)
        start = _integer(rule.get("id_start", "0"), where, "id_start")
        stride = _integer(rule.get("id_stride", "1"), where, "id_stride")
        if scope < 0:
            return (-1,) * scale
        if scope == 0:
            return range(start, start + scale)
        wrap = 1
        for level in self._scales[-scope:]:
            wrap *= level
        first = start + (position % (wrap or 1)) * scale * stride
        return [first + i * stride for i in range(scale)]

    def _spec(self, template: _Template, number: int, where: str) -> VertexSpec:
        name = template.get("type")
        if not name:
            raise BadGraph(
                "node without a type",
                where=where,
                found=", ".join(template.data) or "no data elements",
                expected="a data element for type",
            )
        rank = -1
        if name == "node":
            rank = self._ranks
            self._ranks += 1
        basename = template.get("basename") or name
        size = _integer(template.get("size", "1"), where, "size")
        label = f"{basename}{number}" if number != -1 else basename
        return VertexSpec(name, number, basename, label, rank=rank, size=size, unit=template.get("unit"))


def _integer(text: str, where: str, name: str, low: int = 0) -> int:
    digits = text[1:] if text.startswith("-") else text
    if not digits.isascii() or not digits.isdigit() or len(digits) > 10 or not low <= int(text) <= _INT_MAX:
        raise BadGraph(
            f"bad {name}", where=where, found=repr(text), expected=f"an integer from {low} to {_INT_MAX}"
        )
    return int(text)


def _prefix(path: str, up: int) -> str:
    """A path without its last `up` components."""
    parts = path.split("/")
    return "/".join(parts[: len(parts) - up]) if up else path
