"""Hostlists (RFC 29): `rack1-node[00-15,20],login`.

A hostlist keeps order and duplicates, because the position of a host is its rank. A name has at most one
group of ids, `prefix[ids]suffix`; leading zeros of the first id set the width of all ids in the group.

Names are counted from the ends of the ranges before they are expanded, and the length of a name is limited,
so the memory for the result is limited in advance.

The encoder joins only neighbours, and only if parsing gives back exactly the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from penstock.errors import BadRequest

__all__ = ["BadHostlist", "encode_hostlist", "parse_hostlist"]

_HOSTS_MAX = 1 << 16
_NAME_LENGTH_MAX = 255
_DIGITS_MAX = 18

_ENTRY = re.compile(r"([^,\[\]\s\x00-\x1f\x7f]*)(?:\[([^\[\]]*)\]([^,\[\]\s\x00-\x1f\x7f]*))?")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")
_NUMBERED = re.compile(r"(.*?)([0-9]+)", re.DOTALL)


class BadHostlist(BadRequest):
    """The text is not a hostlist, or exceeds a limit."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One part of the list between commas. Without `ranges`, `prefix` is the whole name."""

    prefix: str
    ranges: tuple[tuple[int, int], ...] = ()
    width: int = 0  # 0: ids are written without padding.
    suffix: str = ""

    def names(self) -> Iterable[str]:
        if not self.ranges:
            yield self.prefix
        for low, high in self.ranges:
            for number in range(low, high + 1):
                yield f"{self.prefix}{number:0{self.width}d}{self.suffix}"


def parse_hostlist(text: str, *, hosts_max: int = _HOSTS_MAX) -> tuple[str, ...]:
    """Parses a hostlist; keeps order and duplicates. The empty text is the empty list."""
    if not text:
        return ()
    entries: list[_Entry] = []
    total = 0
    position = 0
    while True:
        match = _ENTRY.match(text, position)
        assert match is not None  # Every part of the pattern is optional.
        end = match.end()
        if end < len(text) and text[end] != ",":
            _fail_character(text, end, in_suffix=match[2] is not None)
        if end == position:
            _fail("empty host name", text, position)
        entry, hosts = _entry(match, text, hosts_max - total)
        total += hosts
        entries.append(entry)
        if end == len(text):
            return tuple(name for entry in entries for name in entry.names())
        position = end + 1


def encode_hostlist(hosts: Iterable[str]) -> str:
    """The inverse of `parse_hostlist`."""
    parts: list[str] = []
    prefix = ""
    width = 0
    ids: list[int] = []  # ids of the current group of names that begin with `prefix`
    for host in hosts:
        _check_name(host)
        match = _NUMBERED.fullmatch(host)
        if match is None or len(match[2]) > _DIGITS_MAX:
            _close_group(parts, prefix, width, ids)
            parts.append(host)
            continue
        digits = match[2]
        number = int(digits)
        if not (ids and match[1] == prefix and f"{number:0{width}d}" == digits):
            _close_group(parts, prefix, width, ids)
            prefix = match[1]
            width = len(digits) if digits[0] == "0" and len(digits) > 1 else 0
        ids.append(number)
    _close_group(parts, prefix, width, ids)
    return ",".join(parts)


def _entry(match: re.Match[str], text: str, hosts_left: int) -> tuple[_Entry, int]:
    """The entry and its number of hosts, at most `hosts_left`."""
    prefix, idlist, suffix = match[1], match[2], match[3]
    if idlist is None:
        entry, hosts = _Entry(prefix), 1
    else:
        ranges, width, hosts = _ranges(idlist, text, match.start(2), hosts_left)
        entry = _Entry(prefix, ranges, width, suffix)
    digits_max = max((len(str(high)) for _, high in entry.ranges), default=0)
    if len(entry.prefix) + max(entry.width, digits_max) + len(entry.suffix) > _NAME_LENGTH_MAX:
        _fail("host name too long", text, match.start(), f"names of at most {_NAME_LENGTH_MAX} characters")
    _check_left(hosts, hosts_left, match.start())
    return entry, hosts


def _ranges(
    idlist: str, text: str, offset: int, hosts_left: int
) -> tuple[tuple[tuple[int, int], ...], int, int]:
    ranges: list[tuple[int, int]] = []
    width = 0
    hosts = 0
    position = 0
    while True:
        match = _RANGE.match(idlist, position)
        if match is None:
            _fail("not an id", text, offset + position)
        low_digits, high_digits = match[1], match[2] or match[1]
        if max(len(low_digits), len(high_digits)) > _DIGITS_MAX:
            _fail("id too long", text, offset + position, f"ids of at most {_DIGITS_MAX} digits")
        low, high = int(low_digits), int(high_digits)
        if high < low:
            _fail("descending range", text, offset + position)
        if not ranges and len(low_digits) > 1 and low_digits[0] == "0":
            width = len(low_digits)
        ranges.append((low, high))
        hosts += high - low + 1
        _check_left(hosts, hosts_left, offset + position)
        position = match.end()
        if position == len(idlist):
            return tuple(ranges), width, hosts
        if idlist[position] != ",":
            _fail("not an id", text, offset + position)
        position += 1


def _check_left(hosts: int, hosts_left: int, position: int) -> None:
    if hosts > hosts_left:
        raise BadHostlist(
            "too many hosts",
            where=f"hostlist, character {position + 1}",
            found=f"{hosts} hosts in this part of the list",
            expected=f"at most {max(hosts_left, 0)} further hosts",
        )


def _close_group(parts: list[str], prefix: str, width: int, ids: list[int]) -> None:
    """Appends the text of the current group and clears it."""
    if not ids:
        return
    ranges: list[str] = []
    start = 0
    for end in range(1, len(ids) + 1):
        if end < len(ids) and ids[end] == ids[end - 1] + 1:
            continue
        low, high = f"{ids[start]:0{width}d}", f"{ids[end - 1]:0{width}d}"
        ranges.append(low if start == end - 1 else f"{low}-{high}")
        start = end
    body = ",".join(ranges)
    parts.append(f"{prefix}{body}" if len(ids) == 1 else f"{prefix}[{body}]")
    ids.clear()


def _check_name(host: str) -> None:
    match = _ENTRY.fullmatch(host)
    if not host or match is None or match[2] is not None or len(host) > _NAME_LENGTH_MAX:
        raise BadHostlist(
            "not a host name",
            where="hostlist",
            found=repr(host[:80]),
            expected=f"1 to {_NAME_LENGTH_MAX} characters without blanks, commas and brackets",
        )


def _fail_character(text: str, position: int, *, in_suffix: bool) -> NoReturn:
    character = text[position]
    if character == "[":
        rest = text.find("]", position)
        nested = text.find("[", position + 1)
        if in_suffix:
            _fail("more than one bracket group in a name", text, position)
        if rest < 0:
            _fail("unbalanced brackets", text, position)
        if 0 <= nested < rest:
            _fail("nested brackets", text, nested)
    if character == "]":
        _fail("unbalanced brackets", text, position)
    _fail("character not allowed in a host name", text, position)


def _fail(summary: str, text: str, position: int, expected: str = "") -> NoReturn:
    raise BadHostlist(
        summary,
        where=f"hostlist, character {position + 1}",
        found=repr(text[position : position + 80]) if position < len(text) else "the end of the text",
        expected=expected or "names and prefix[ids]suffix with commas between, such as login,node[0-3,7]",
    )
