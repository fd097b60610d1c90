"""What is written where: plain text into pipes, colours and a moving line on terminals.

Text from outside (names, notes, reasons) is made visible before it reaches a terminal: control characters
of a job's name must not move anybody's cursor. Job ids carry `ƒ` where the locale can show it, else `f`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from textwrap import wrap
from typing import Final, TextIO

__all__ = [
    "SLOW_S",
    "ProgressLine",
    "command_name",
    "complain",
    "has_colours",
    "is_terminal",
    "paint",
    "say",
    "say_facts",
    "say_json",
    "shown",
    "shows_unicode",
    "width",
]

SLOW_S: Final = 2.0  # what takes longer than this shows its progress
_PROGRESS_STEP_S: Final = 0.1
_BAR_WIDTH: Final = 30
_CODES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}


def is_terminal(stream: TextIO | None = None) -> bool:
    stream = sys.stdout if stream is None else stream
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def has_colours(stream: TextIO | None = None) -> bool:
    return is_terminal(stream) and not os.environ.get("NO_COLOR")


def width() -> int:
    """Columns of the terminal; only asked where there is one."""
    return max(20, shutil.get_terminal_size((80, 24)).columns)


def shows_unicode() -> bool:
    if os.environ.get("FLUX_F58_FORCE_ASCII"):
        return False
    if "utf" not in (sys.stdout.encoding or "").lower():
        return False
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        if value := os.environ.get(name):
            return "utf" in value.lower()
    return False


_ASCII: Final = {
    "ƒ": "f",
    "✔": "y",
    "✗": "n",
    "…": "...",
    "│": "|",
    "█": "#",
    "▓": "!",
    "▒": "=",
    "░": "-",
    "·": ".",
}


def shown(text: str) -> str:
    """The text as this screen can show it, without control characters."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if not shows_unicode():
        text = "".join(_ASCII.get(letter, letter) for letter in text)
        text = text.encode("ascii", "replace").decode()
    return text


def paint(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """The text in a style, if the stream has colours."""
    if not text or not styles or not has_colours(stream):
        return text
    return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


def say(text: str = "") -> None:
    print(text)


def say_facts(facts: Iterable[tuple[str, str]], *styles: str, label: int = 12) -> None:
    """Pairs of a label and a text, a line each; on a terminal, long texts go on below themselves."""
    told = list(facts)
    label = max([label, *(len(name) for name, _ in told)])
    for name, text in told:
        parts = [shown(text)]
        if is_terminal():
            room = max(20, width() - label - 2)
            parts = wrap(parts[0], room, break_long_words=False, break_on_hyphens=False) or [""]
        for index, part in enumerate(parts):
            head = "" if index else name
            say(f"{paint(f'{head:>{label}}', 'dim')}  {paint(part, *styles)}")


def say_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=not shows_unicode()))


def command_name() -> str:
    """How to call us again: by name if that is found, else as we were called."""
    if shutil.which("penstock") is not None:
        return "penstock"
    return os.path.relpath(sys.argv[0]) if sys.argv[0].endswith("penstock") else "penstock"


def complain(text: str) -> None:
    """One line to standard error, as all of ours look."""
    sys.stdout.flush()
    print(f"{paint('penstock:', 'red', stream=sys.stderr)} {shown(text)}", file=sys.stderr)


class ProgressLine:
    """A bar on standard error that appears only if the work takes long and somebody can see it."""

    def __init__(self, label: str, total: int) -> None:
        self._label = label
        self._total = max(total, 1)
        self._began = self._drawn_at = time.monotonic()
        self._visible = False
        self._possible = is_terminal(sys.stderr)

    def show(self, done: int, note: str = "") -> None:
        now = time.monotonic()
        if not self._possible or now - self._began < SLOW_S or now - self._drawn_at < _PROGRESS_STEP_S:
            return
        filled = min(_BAR_WIDTH, _BAR_WIDTH * done // self._total)
        bar = shown("█") * filled + shown("·") * (_BAR_WIDTH - filled)
        line = f"{self._label} {bar} {done}/{self._total} {note}"
        print(f"\r\x1b[K{line[: width() - 1]}", end="", file=sys.stderr, flush=True)
        self._drawn_at, self._visible = now, True

    def close(self) -> None:
        if self._visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._visible = False
