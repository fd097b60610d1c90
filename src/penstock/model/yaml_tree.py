"""Builds the tree of `document` from the events of the YAML parser.

Events are unresolved and have positions. The tree is built with an explicit stack, so that deep input does
not exhaust the interpreter stack, and within the limits of the caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

import yaml

from penstock.model.document import (
    BadDocument,
    DocumentLimits,
    Mapping,
    Node,
    Scalar,
    Sequence,
    fail_duplicate,
)

__all__ = ["yaml_tree"]

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_NULLS = frozenset(["", "~", "null", "Null", "NULL"])
# The YAML parser compares each directive with all those before it.
_DIRECTIVES_MAX = 64


@dataclass(slots=True)
class _Frame:
    """A sequence or mapping that is not complete."""

    is_mapping: bool
    anchor: str | None
    nodes_before: int
    line: int
    column: int
    height: int = 1  # The depth of this subtree, including itself.
    key: str | None = None
    seen: set[str] = field(default_factory=set)
    entries: list[Node] = field(default_factory=list)
    pairs: list[tuple[str, Node]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Anchored:
    node: Node
    nodes: int
    height: int


def yaml_tree(source: str, bounds: DocumentLimits) -> Node:
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
    """Builds the tree from events with an explicit stack."""

    def __init__(self, bounds: DocumentLimits) -> None:
        self.root: Node | None = None
        self._bounds = bounds
        self._open: list[_Frame] = []
        self._anchored: dict[str, _Anchored | None] = {}  # None: its node is not complete.
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
                fail_duplicate(node.text, f"line {node.line}, column {node.column}")
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
