"""YAML and JSON text as one neutral, immutable tree.

A parser on top of this tree decides for itself what a scalar means: the tree keeps the text as it
was written, whether it was quoted, and where it stood. Nothing is resolved to numbers or booleans,
so `no`, `1e3` and `010` arrive as their authors wrote them.

The text is bounded in size, depth and number of nodes before anything is built from it. An alias
shares the node that it names, but counts against the bounds as if it were written out, because
whoever walks the tree pays for every visit. Tags are ignored, and a merge key is a key like others.

JSON is read by the standard library first, which is several times faster than the YAML parser;
only what is no JSON although it begins like it (`{a: b}`) goes through YAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

import yaml

from penstock.errors import BadRequest

__all__ = [
    "BadDocument",
    "Mapping",
    "Node",
    "Scalar",
    "Sequence",
    "child",
    "located",
    "parse_document",
    "parse_json",
    "shown",
]

_SIZE_MAX = 1 << 20
_DEPTH_MAX = 64
_NODES_MAX = 100_000

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_NULLS = frozenset(["", "~", "null", "Null", "NULL"])
# The closing quote is optional: a search that failed at every quote would take quadratic time.
_JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SHOWN_MAX = 80

# The YAML parser compares each directive with all those before it.
_DIRECTIVES_MAX = 64


class BadDocument(BadRequest):
    """The text is not well-formed, or larger than its reader allows."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text as written, without its quotes. `line` and `column` count from 1; 0 is unknown."""

    text: str
    quoted: bool
    is_null: bool
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class Sequence:
    items: tuple[Node, ...]
    line: int = 0
    column: int = 0


@dataclass(frozen=True, slots=True)
class Mapping:
    """Entries in the order of the text; no key occurs twice."""

    items: tuple[tuple[str, Node], ...]
    line: int = 0
    column: int = 0

    def get(self, key: str) -> Node | None:
        for name, node in self.items:
            if name == key:
                return node
        return None

    def keys(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.items)


Node: TypeAlias = Scalar | Sequence | Mapping


def child(path: str, key: str) -> str:
    """The path of an entry of a mapping. Keys are input: they are cut and quoted where needed."""
    return f"{path}.{_short(key)}"


def located(path: str, node: Node | None) -> str:
    """The path, with the line where the node begins when that is known."""
    if node is None or node.line == 0:
        return path
    return f"{path} (line {node.line})"


def shown(node: Node | None) -> str:
    """What stands there, short enough for an error message."""
    match node:
        case None:
            return "nothing"
        case Scalar(is_null=True):
            return "null"
        case Scalar(text=text, quoted=quoted):
            return repr(_cut(text)) if quoted else _short(text)
        case Sequence(items=entries):
            return f"a sequence of {len(entries)}"
        case Mapping():
            keys = ", ".join(_short(name) for name, _ in node.items[:8])
            more = ", ..." if len(node.items) > 8 else ""
            return f"a mapping with keys {keys}{more}" if node.items else "an empty mapping"


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."


def _short(text: str) -> str:
    text = _cut(text)
    return text if text.isprintable() else repr(text)


def parse_document(
    text: str | bytes,
    *,
    size_max: int = _SIZE_MAX,
    depth_max: int = _DEPTH_MAX,
    nodes_max: int = _NODES_MAX,
) -> Node:
    """The one document in `text`, YAML or JSON. Empty text is the null scalar, as in YAML."""
    source = _decoded(text, size_max)
    bounds = _Bounds(depth_max=depth_max, nodes_max=nodes_max)
    if source.lstrip(" \t\r\n")[:1] in ("{", "["):
        try:
            return _json_tree(source, bounds)
        except json.JSONDecodeError:
            bounds = _Bounds(depth_max=depth_max, nodes_max=nodes_max)
    return _yaml_tree(source, bounds)


def parse_json(
    text: str | bytes,
    *,
    size_max: int = _SIZE_MAX,
    depth_max: int = _DEPTH_MAX,
    nodes_max: int = _NODES_MAX,
) -> Node:
    """The JSON value in `text`, for formats that are JSON only. Positions are unknown."""
    source = _decoded(text, size_max)
    try:
        return _json_tree(source, _Bounds(depth_max=depth_max, nodes_max=nodes_max))
    except json.JSONDecodeError as error:
        raise BadDocument(
            "not valid JSON",
            where=f"line {error.lineno}, column {error.colno}",
            found=error.msg,
            expected="one JSON value",
        ) from error


@dataclass(slots=True)
class _Bounds:
    """Counts nodes while a tree is built, so that the build stops at the bound and not after it."""

    depth_max: int
    nodes_max: int
    nodes: int = 0

    def count(self, nodes: int, depth: int, line: int = 0) -> None:
        self.nodes += nodes
        if depth > self.depth_max:
            self.fail_depth(line)
        if self.nodes > self.nodes_max:
            raise BadDocument(
                "the document has too many nodes",
                where=f"line {line}" if line else "document",
                found=f"more than {self.nodes_max} nodes, aliases written out",
                expected=f"at most {self.nodes_max} nodes",
            )

    def fail_depth(self, line: int = 0) -> NoReturn:
        raise BadDocument(
            "the document is nested too deeply",
            where=f"line {line}" if line else "document",
            found=f"more than {self.depth_max} levels",
            expected=f"at most {self.depth_max} levels",
        )


def _decoded(text: str | bytes, size_max: int) -> str:
    """The text as str, at most `size_max` bytes of UTF-8, without a byte order mark."""
    size = len(text)
    try:
        if isinstance(text, bytes):
            source = text.decode("utf-8") if size <= size_max else ""
        else:
            source = text
            size = len(text.encode("utf-8")) if size <= size_max else size
    except UnicodeError as error:
        raise BadDocument(
            "the text is not UTF-8", where="document", found=str(error), expected="text in UTF-8"
        ) from error
    if size > size_max:
        raise BadDocument(
            "the document is too large",
            where="document",
            found=f"{size} bytes",
            expected=f"at most {size_max} bytes",
        )
    return source.removeprefix("\ufeff")


# JSON


@dataclass(frozen=True, slots=True)
class _Pairs:
    items: list[tuple[str, object]]


def _json_tree(source: str, bounds: _Bounds) -> Node:
    """Raises `json.JSONDecodeError` if it is no JSON, and `BadDocument` if it is JSON to refuse."""
    _check_json_nodes(source, bounds)
    try:
        value: object = json.loads(
            source,
            parse_int=_json_number,
            parse_float=_json_number,
            parse_constant=_json_constant,
            object_pairs_hook=_json_pairs,
        )
        return _json_node(value, 1, bounds)
    except RecursionError:
        bounds.fail_depth()


def _check_json_nodes(source: str, bounds: _Bounds) -> None:
    """A node is the first one, or follows a comma or an opening bracket: count before building."""
    if _openings(source) > bounds.nodes_max:
        bare = _JSON_STRING.sub("0", source)
        for blank in " \t\r\n":
            bare = bare.replace(blank, "")
        if _openings(bare) > bounds.nodes_max + bare.count("[]") + bare.count("{}"):
            bounds.count(bounds.nodes_max + 1, 1)


def _openings(source: str) -> int:
    return 1 + source.count(",") + source.count("[") + source.count("{")


def _json_number(text: str) -> Scalar:
    return Scalar(text, quoted=False, is_null=False)


def _json_constant(text: str) -> NoReturn:
    raise BadDocument("not a JSON number", where="document", found=text, expected="a finite number")


def _json_pairs(pairs: list[tuple[str, object]]) -> _Pairs:
    if len(pairs) > 1:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                _fail_duplicate(key, "document")
            seen.add(key)
    return _Pairs(pairs)


def _json_node(value: object, depth: int, bounds: _Bounds) -> Node:
    bounds.count(1, depth)
    match value:
        case str():
            _check_unicode(value)
            return Scalar(value, quoted=True, is_null=False)
        case Scalar():
            return value
        case _Pairs(items=pairs):
            bounds.count(len(pairs), depth)  # A key is a node too, as in YAML.
            for key, _ in pairs:
                _check_unicode(key)
            return Mapping(tuple((key, _json_node(entry, depth + 1, bounds)) for key, entry in pairs))
        case list():
            return Sequence(tuple(_json_node(entry, depth + 1, bounds) for entry in value))
        case True:
            return Scalar("true", quoted=False, is_null=False)
        case False:
            return Scalar("false", quoted=False, is_null=False)
        case _:
            return Scalar("null", quoted=False, is_null=True)


def _check_unicode(text: str) -> None:
    """JSON can escape half a surrogate pair, which no UTF-8 can carry on."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadDocument(
            "half a surrogate pair", where="document", found=ascii(text), expected="text in Unicode"
        ) from error


def _fail_duplicate(key: str, where: str) -> NoReturn:
    raise BadDocument(
        "duplicate key in a mapping", where=where, found=repr(key), expected="every key at most once"
    )


# YAML


@dataclass(slots=True)
class _Frame:
    """A sequence or mapping that is still open."""

    is_mapping: bool
    anchor: str | None
    nodes_before: int
    line: int
    column: int
    height: int = 1  # The deepest level of this subtree, itself counted.
    key: str | None = None
    seen: set[str] = field(default_factory=set)
    entries: list[Node] = field(default_factory=list)
    pairs: list[tuple[str, Node]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Anchored:
    node: Node
    nodes: int
    height: int


def _yaml_tree(source: str, bounds: _Bounds) -> Node:
    directives = source.count("\n%") + source.count("\r%")
    if directives > _DIRECTIVES_MAX:
        raise BadDocument(
            "too many directives",
            where="document",
            found=f"{directives} lines that begin with %",
            expected=f"at most {_DIRECTIVES_MAX} directives",
        )
    builder = _YamlBuilder(bounds)
    for event in _events(source):
        builder.take(event)
    return builder.root if builder.root is not None else Scalar("", False, True, 1, 1)


def _events(source: str) -> Iterator[yaml.Event]:
    try:
        yield from yaml.parse(source, Loader=_LOADER)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise BadDocument(
            "not valid YAML",
            where=f"line {mark.line + 1}, column {mark.column + 1}" if mark is not None else "document",
            found=error.problem or error.context or "a syntax error",
            expected="one YAML or JSON document",
        ) from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise BadDocument(
            "not valid YAML", where="document", found=str(error), expected="one YAML or JSON document"
        ) from error


class _YamlBuilder:
    """Builds the tree from events with a stack of its own: depth costs no interpreter frames."""

    def __init__(self, bounds: _Bounds) -> None:
        self.root: Node | None = None
        self._bounds = bounds
        self._open: list[_Frame] = []
        self._anchored: dict[str, _Anchored | None] = {}  # None: its node is still open.
        self._documents = 0

    def take(self, event: yaml.Event) -> None:
        mark = event.start_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (0, 0)
        match event:
            case yaml.ScalarEvent():
                self._scalar(event, line, column)
            case yaml.MappingStartEvent() | yaml.SequenceStartEvent():
                self._start(isinstance(event, yaml.MappingStartEvent), event.anchor, line, column)
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self._end()
            case yaml.AliasEvent():
                self._alias(event.anchor or "", line, column)
            case yaml.DocumentStartEvent():
                self._documents += 1
                if self._documents > 1:
                    raise BadDocument(
                        "more than one document",
                        where=f"line {line}, column {column}",
                        found="a second document",
                        expected="one document",
                    )
            case _:
                pass  # Stream start and end, document end.

    def _scalar(self, event: yaml.ScalarEvent, line: int, column: int) -> None:
        quoted = bool(event.style)
        node = Scalar(event.value, quoted, not quoted and event.value in _NULLS, line, column)
        self._bounds.count(1, len(self._open) + 1, line)
        if event.anchor is not None:
            self._anchored[event.anchor] = _Anchored(node, 1, 1)
        self._add(node, 1)

    def _start(self, is_mapping: bool, anchor: str | None, line: int, column: int) -> None:
        if self._wants_key():
            self._fail_key("a mapping" if is_mapping else "a sequence", line, column)
        frame = _Frame(is_mapping, anchor, self._bounds.nodes, line, column)
        self._open.append(frame)
        self._bounds.count(1, len(self._open), line)
        if anchor is not None:
            self._anchored[anchor] = None

    def _end(self) -> None:
        frame = self._open.pop()
        node: Node
        if frame.is_mapping:
            node = Mapping(tuple(frame.pairs), frame.line, frame.column)
        else:
            node = Sequence(tuple(frame.entries), frame.line, frame.column)
        if frame.anchor is not None:
            nodes = self._bounds.nodes - frame.nodes_before
            self._anchored[frame.anchor] = _Anchored(node, nodes, frame.height)
        self._add(node, frame.height)

    def _alias(self, anchor: str, line: int, column: int) -> None:
        target = self._anchored.get(anchor)
        if target is None:
            raise BadDocument(
                "alias within its own node" if anchor in self._anchored else "alias without an anchor",
                where=f"line {line}, column {column}",
                found=f"*{anchor}",
                expected="an alias of a node that is complete",
            )
        self._bounds.count(target.nodes, len(self._open) + target.height, line)
        if self._wants_key() and not isinstance(target.node, Scalar):
            self._fail_key(f"*{anchor}", line, column)
        self._add(target.node, target.height)

    def _add(self, node: Node, height: int) -> None:
        if not self._open:
            self.root = node
            return
        frame = self._open[-1]
        frame.height = max(frame.height, height + 1)
        if not frame.is_mapping:
            frame.entries.append(node)
        elif frame.key is not None:
            frame.pairs.append((frame.key, node))
            frame.key = None
        elif isinstance(node, Scalar):
            if node.text in frame.seen:
                _fail_duplicate(node.text, f"line {node.line}, column {node.column}")
            frame.seen.add(node.text)
            frame.key = node.text

    def _wants_key(self) -> bool:
        return bool(self._open) and self._open[-1].is_mapping and self._open[-1].key is None

    def _fail_key(self, found: str, line: int, column: int) -> NoReturn:
        raise BadDocument(
            "a mapping key is not a scalar",
            where=f"line {line}, column {column}",
            found=found,
            expected="a scalar as key",
        )
