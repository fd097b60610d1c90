"""YAML and JSON text as one neutral, immutable tree.

The tree keeps the text of each scalar, whether it was quoted, and its position; the parser of a format
decides what a scalar means. Nothing is resolved to numbers or booleans, so `no`, `1e3` and `010` keep their
text.

Size, depth and number of nodes are limited, and checked before the tree is built. An alias shares the node
that it names, but counts against the limits as if it were expanded, because a walk over the tree visits it
each time. Tags are ignored, and a merge key is an ordinary key.

JSON is parsed with the standard library, which is several times faster than the YAML parser; only text that
looks like JSON but is not (`{a: b}`) is then parsed as YAML.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from penstock.errors import BadRequest

__all__ = [
    "BadDocument",
    "DocumentLimits",
    "Mapping",
    "Node",
    "Scalar",
    "Sequence",
    "child",
    "fail_duplicate",
    "located",
    "parse_document",
    "parse_json",
    "shown",
]

_SIZE_MAX = 1 << 20
_DEPTH_MAX = 64
_NODES_MAX = 100_000

# The closing quote is optional: a pattern that fails at every quote would take quadratic time.
_JSON_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_SHOWN_MAX = 80


class BadDocument(BadRequest):
    """The text is not valid YAML or JSON, or exceeds a limit."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """The text of a scalar without its quotes. `line` and `column` count from 1; 0 means unknown."""

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
    """Entries in the order of the text. Keys are unique."""

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
    """The path of a mapping entry. Keys come from the input: they are truncated and quoted as needed."""
    return f"{path}.{_short(key)}"


def located(path: str, node: Node | None) -> str:
    """The path, with the line of the node if it is known."""
    if node is None or node.line == 0:
        return path
    return f"{path} (line {node.line})"


def shown(node: Node | None) -> str:
    """A short description of a node for an error message."""
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
    """Parses one YAML or JSON document. Empty text is the null scalar, as in YAML."""
    source = _decoded(text, size_max)
    bounds = DocumentLimits(depth_max=depth_max, nodes_max=nodes_max)
    if source.lstrip(" \t\r\n")[:1] in ("{", "["):
        try:
            return _json_tree(source, bounds)
        except json.JSONDecodeError:
            bounds = DocumentLimits(depth_max=depth_max, nodes_max=nodes_max)
    # Imported on demand: the YAML parser takes much of the start-up time of a short command.
    from penstock.model.yaml_tree import yaml_tree

    return yaml_tree(source, bounds)


def parse_json(
    text: str | bytes,
    *,
    size_max: int = _SIZE_MAX,
    depth_max: int = _DEPTH_MAX,
    nodes_max: int = _NODES_MAX,
) -> Node:
    """Parses JSON, for formats that are JSON only. Positions are unknown."""
    source = _decoded(text, size_max)
    try:
        return _json_tree(source, DocumentLimits(depth_max=depth_max, nodes_max=nodes_max))
    except json.JSONDecodeError as error:
        raise BadDocument(
            "not valid JSON",
            where=f"line {error.lineno}, column {error.colno}",
            found=error.msg,
            expected="one JSON value",
        ) from error


@dataclass(slots=True)
class DocumentLimits:
    """Counts nodes while a tree is built, so that the build stops at the limit."""

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
            found=f"a depth of more than {self.depth_max}",
            expected=f"a depth of at most {self.depth_max}",
        )


def _decoded(text: str | bytes, size_max: int) -> str:
    """Decodes at most `size_max` bytes of UTF-8 and removes a byte order mark."""
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


def _json_tree(source: str, bounds: DocumentLimits) -> Node:
    """Raises `json.JSONDecodeError` for invalid JSON, and `BadDocument` for JSON beyond the limits."""
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


def _check_json_nodes(source: str, bounds: DocumentLimits) -> None:
    """Counts nodes before building: each node is the first, or follows a comma or an opening bracket."""
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
                fail_duplicate(key, "document")
            seen.add(key)
    return _Pairs(pairs)


def _json_node(value: object, depth: int, bounds: DocumentLimits) -> Node:
    bounds.count(1, depth)
    match value:
        case str():
            _check_unicode(value)
            return Scalar(value, quoted=True, is_null=False)
        case Scalar():
            return value
        case _Pairs(items=pairs):
            bounds.count(len(pairs), depth)  # A key counts as a node, as in YAML.
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
    """Rejects a lone surrogate, which JSON can escape but UTF-8 cannot encode."""
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadDocument(
            "lone surrogate in a string", where="document", found=ascii(text), expected="valid Unicode text"
        ) from error


def fail_duplicate(key: str, where: str) -> NoReturn:
    raise BadDocument(
        "duplicate key in a mapping", where=where, found=repr(key), expected="every key at most once"
    )
