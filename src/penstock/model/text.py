"""Text from outside: which characters it may contain, and how others are shown.

No database and no operating system accepts NUL in a text, no encoding accepts a lone surrogate, and other
control characters garble every table and log they are printed in. What identifies or describes an object (a
name, a key, a note) is printable: `check_printable` refuses it otherwise. What is passed on to a program (an
argument, a path) may contain line breaks and tabs, but no program can receive NUL: `check_passable`. Text
that nobody can be asked to correct, such as the message of a kubelet, is escaped (`escape_controls`).
"""

from __future__ import annotations

import re
from typing import Final

from penstock.errors import BadRequest

__all__ = ["check_passable", "check_printable", "count_of", "escape_controls", "find_control"]

_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNPASSABLE: Final = re.compile("[\x00\ud800-\udfff]")


def count_of(count: int, noun: str) -> str:
    """A count with its noun: `1 job`, `2 jobs`. The noun is one that takes an `s`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def find_control(text: str) -> str:
    """The first control character or lone surrogate, escaped; empty if there is none."""
    found = None if text.isascii() and text.isprintable() else _CONTROL.search(text)
    return "" if found is None else _escaped(found)


def check_printable(text: str, where: str) -> None:
    """Refuses text that contains a control character or a lone surrogate."""
    control = find_control(text)
    if control:
        raise BadRequest(
            "a control character is not allowed",
            where=where,
            found=f"{control} in {escape_controls(text[:80])!r}",
            expected="printable text",
        )


def check_passable(text: str, where: str) -> None:
    """Refuses text that cannot be passed to a program: it contains NUL or a lone surrogate."""
    found = None if text.isprintable() else _UNPASSABLE.search(text)
    if found is not None:
        raise BadRequest(
            "a character that no program can receive",
            where=where,
            found=f"{_escaped(found)} in {escape_controls(text[:80])!r}",
            expected="text without NUL and lone surrogates",
        )


def escape_controls(text: str) -> str:
    r"""The text with control characters and lone surrogates written as `\x00` or `\ud800`."""
    if text.isascii() and text.isprintable():
        return text
    return _CONTROL.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
