"""Parses `--requires` in the syntax of Flux RFC 35 into a constraint object of RFC 31.

`a,b` requires both properties, `a|b` one of them; a space or `&` also means both, `-x` or `not x` negates,
and `host:n[1-3]` or `rank:0-2` select nodes. Parentheses group.
"""

from __future__ import annotations

import re
from typing import Any, Final, NoReturn

from penstock.errors import BadRequest

__all__ = ["parse_requires"]

_TOKEN: Final = re.compile(r"\s*(?:(\(|\)|&&?|\|\|?)|([^\s()&|]+))")
_OPERATORS: Final = {
    "host": "hostlist",
    "hosts": "hostlist",
    "hostlist": "hostlist",
    "rank": "ranks",
    "ranks": "ranks",
    "property": "properties",
    "properties": "properties",
}
_DEPTH_MAX: Final = 20
_LENGTH_MAX: Final = 4096


def parse_requires(text: str) -> dict[str, Any]:
    if len(text) > _LENGTH_MAX:
        _fail("the constraint is too long", f"{len(text)} characters")
    reader = _Reader(_tokens(text), text)
    found = reader.either(0)
    if reader.peek() is not None:
        _fail("unexpected token", repr(reader.peek()))
    return found


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    body = text.strip()
    while position < len(body):
        match = _TOKEN.match(body, position)
        assert match is not None  # Every character is a space, an operator or part of a word.
        word = match[1] or match[2]
        tokens.append({"&&": "&", "||": "|", "and": "&", "or": "|"}.get(word.lower(), word))
        position = match.end()
    return tokens


class _Reader:
    def __init__(self, tokens: list[str], text: str) -> None:
        self._tokens = tokens
        self._text = text
        self._next = 0

    def peek(self) -> str | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def either(self, depth: int) -> dict[str, Any]:
        parts = [self._both(depth)]
        while self.peek() == "|":
            self._next += 1
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else {"or": parts}

    def _both(self, depth: int) -> dict[str, Any]:
        parts = [self._one(depth)]
        while self.peek() not in (None, "|", ")"):
            if self.peek() == "&":
                self._next += 1
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else {"and": parts}

    def _one(self, depth: int) -> dict[str, Any]:
        token = self.peek()
        if depth > _DEPTH_MAX:
            _fail("nested too deeply", repr(self._text[:80]))
        if token is None or token in ("|", "&", ")"):
            _fail("a term is missing", "the end" if token is None else repr(token))
        self._next += 1
        if token.lower() == "not" or token == "-":
            return {"not": [self._one(depth + 1)]}
        if token.startswith("-"):
            return {"not": [_term(token[1:])]}
        if token != "(":
            return _term(token)
        inside = self.either(depth + 1)
        if self.peek() != ")":
            _fail("unclosed parenthesis", repr(self._text[:80]))
        self._next += 1
        return inside


def _term(word: str) -> dict[str, Any]:
    operator, colon, value = word.partition(":")
    if not colon:
        names = word.split(",")
        if not all(names):
            _fail("a property name is missing", repr(word))
        return {"properties": names}
    name = _OPERATORS.get(operator)
    if name is None or not value:
        _fail("unknown operator or missing value", repr(word))
    return {name: value.split(",") if name == "properties" else [value]}


def _fail(summary: str, found: str) -> NoReturn:
    raise BadRequest(
        summary,
        where="--requires",
        found=found,
        expected="for example 'a,b', 'a|b', '-host:n7' or 'rank:0-3'",
    )
