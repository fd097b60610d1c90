"""Output of the commands: plain text into pipes, colours and a progress line on terminals.

Control characters in text from outside (job names, notes, reasons) are replaced, so that a job's name cannot
move the user's cursor. Job ids start with `ƒ` where the locale can display it, else with `f`.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterable
from typing import Final, TextIO

from penstock.cli.cells import wrap_cells

__all__ = [
    "SLOW_S",
    "ProgressLine",
    "command_name",
    "has_colours",
    "is_terminal",
    "print_error",
    "print_fields",
    "print_json",
    "print_line",
    "printable",
    "shows_unicode",
    "styled",
    "width",
]

SLOW_S: Final = 2.0  # operations that take longer show their progress
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
    """Columns of the terminal; 80 if there is none."""
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


def printable(text: str) -> str:
    """The text as the terminal can display it: no control characters, and ASCII if it has no Unicode."""
    if not text.isprintable():
        text = "".join(letter if letter.isprintable() else "?" for letter in text)
    if not shows_unicode():
        text = "".join(_ASCII.get(letter, letter) for letter in text)
        text = text.encode("ascii", "replace").decode()
    return text


def styled(text: str, *styles: str, stream: TextIO | None = None) -> str:
    """The text in the given styles, if the stream has colours."""
    if not text or not styles or not has_colours(stream):
        return text
    return f"\x1b[{';'.join(_CODES[style] for style in styles)}m{text}\x1b[0m"


def print_line(text: str = "") -> None:
    print(text)


def print_fields(fields: Iterable[tuple[str, str]], *styles: str, label: int = 12) -> None:
    """Prints a label and a text per line; on a terminal, long texts continue in their own column."""
    rows = list(fields)
    label = max([label, *(len(name) for name, _ in rows)])
    for name, text in rows:
        lines = [printable(text)]
        if is_terminal():
            columns = max(20, width() - label - 2)
            lines = wrap_cells(lines[0], columns, cuts_words=False)
        for index, line in enumerate(lines):
            head = "" if index else name
            print_line(f"{styled(f'{head:>{label}}', 'dim')}  {styled(line, *styles)}")


def print_json(document: object) -> None:
    print(json.dumps(document, indent=2, ensure_ascii=not shows_unicode()))


def command_name() -> str:
    """How the user can run this program: by name if it is in PATH, else by the path that was used."""
    if shutil.which("penstock") is not None:
        return "penstock"
    return os.path.relpath(sys.argv[0]) if sys.argv[0].endswith("penstock") else "penstock"


def print_error(text: str) -> None:
    """Prints one line to standard error, prefixed with the program's name."""
    sys.stdout.flush()
    print(f"{styled('penstock:', 'red', stream=sys.stderr)} {printable(text)}", file=sys.stderr)


class ProgressLine:
    """A progress bar on standard error. It appears after `SLOW_S`, and only on a terminal."""

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
        bar = printable("█") * filled + printable("·") * (_BAR_WIDTH - filled)
        line = f"{self._label} {bar} {done}/{self._total} {note}"
        print(f"\r\x1b[K{line[: width() - 1]}", end="", file=sys.stderr, flush=True)
        self._drawn_at, self._visible = now, True

    def close(self) -> None:
        if self._visible:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._visible = False
