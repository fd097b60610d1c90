"""Idsets (RFC 22): `1,7-9,16`, with or without enclosing `[...]`.

As in the RFC, ids ascend, none occurs twice, and none has leading zeros. The ids are counted from the ends of
the ranges before a range is expanded, so `0-4294967294` is rejected without using memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NoReturn

from penstock.errors import BadRequest

__all__ = ["ID_MAX", "BadIdset", "encode_idset", "parse_idset", "parse_ranges"]

ID_MAX = 2**32 - 2  # The largest 32-bit number means "no id".

_IDS_MAX = 1 << 20
_DIGITS_MAX = 10
_RANGE = re.compile(r"(0|[1-9][0-9]*)(?:-(0|[1-9][0-9]*))?")


class BadIdset(BadRequest):
    """The text is not an idset, or exceeds a limit."""


def parse_idset(text: str, *, ids_max: int = _IDS_MAX) -> tuple[int, ...]:
    """The ids in ascending order. Both the empty text and `[]` are the empty set."""
    return tuple(i for low, high in parse_ranges(text, ids_max=ids_max) for i in range(low, high + 1))


def parse_ranges(text: str, *, ids_max: int = _IDS_MAX) -> tuple[tuple[int, int], ...]:
    """The first and last id of each range, in ascending order."""
    body = text
    if text.startswith("[") or text.endswith("]"):
        if len(text) < 2 or text[0] != "[" or text[-1] != "]":
            _fail("unbalanced brackets", text, 0 if text[0] == "[" else len(text) - 1)
        body = text[1:-1]
    if not body:
        return ()
    return tuple(_ranges(body, ids_max, offset=1 if body is not text else 0))


def encode_idset(ids: Iterable[int], *, brackets: bool = False) -> str:
    """The shortest text of the set, with `[...]` only if requested and for more than one id."""
    ordered = sorted(set(ids))
    if ordered and not 0 <= ordered[0] <= ordered[-1] <= ID_MAX:
        raise BadIdset(
            "id out of range",
            where="idset",
            found=f"{ordered[0]} to {ordered[-1]}",
            expected=f"ids from 0 to {ID_MAX}",
        )
    parts: list[str] = []
    start = 0
    for end in range(1, len(ordered) + 1):
        if end < len(ordered) and ordered[end] == ordered[end - 1] + 1:
            continue
        low, high = ordered[start], ordered[end - 1]
        parts.append(str(low) if low == high else f"{low}-{high}")
        start = end
    text = ",".join(parts)
    return f"[{text}]" if brackets and len(ordered) > 1 else text


def _ranges(body: str, ids_max: int, offset: int) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    total = 0
    last = -1
    position = 0
    while True:
        match = _RANGE.match(body, position)
        if match is None:
            _fail("not an id", body, position, offset)
        if match.end() < len(body) and body[match.end()] != ",":
            _fail("not an id", body, match.end(), offset)
        low = _id(match[1], body, position, offset)
        high = low if match[2] is None else _id(match[2], body, match.start(2), offset)
        if high < low:
            _fail("descending range", body, position, offset)
        if low <= last:
            _fail("ids are not strictly ascending", body, position, offset)
        last = high
        total += high - low + 1
        if total > ids_max:
            raise BadIdset(
                "too many ids",
                where=f"idset, character {position + offset + 1}",
                found=f"more than {ids_max} ids",
                expected=f"at most {ids_max} ids",
            )
        ranges.append((low, high))
        if match.end() == len(body):
            return ranges
        position = match.end() + 1


def _id(digits: str, body: str, position: int, offset: int) -> int:
    value = int(digits) if len(digits) <= _DIGITS_MAX else ID_MAX + 1
    if value > ID_MAX:
        _fail("id out of range", body, position, offset)
    return value


def _fail(summary: str, text: str, position: int, offset: int = 0) -> NoReturn:
    raise BadIdset(
        summary,
        where=f"idset, character {position + offset + 1}",
        found=repr(text[position : position + 80]) if position < len(text) else "the end of the text",
        expected=f"ascending ids from 0 to {ID_MAX}, such as 1,7-9,16 or [2-5]",
    )
