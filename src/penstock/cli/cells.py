"""Widths of text on a terminal, in cells: a Chinese character or an emoji takes two, a combining mark none.

Tables that count characters instead are misaligned, and lines that look short enough wrap or are cut.
"""

from __future__ import annotations

import re
import unicodedata

__all__ = ["aligned", "cell_width", "cut_cells", "wrap_cells"]


def cell_width(text: str) -> int:
    return len(text) if text.isascii() else sum(map(_width, text))


def cut_cells(text: str, width: int, mark: str = "") -> str:
    """The beginning of the text that fits into `width` cells, with `mark` at its end if something is cut."""
    if cell_width(text) <= width:
        return text
    left, kept = width - len(mark), ""
    for letter in text:
        left -= _width(letter)
        if left < 0:
            break
        kept += letter
    return kept + mark


def aligned(text: str, align: str, width: int) -> str:
    """`align` is one of `<`, `>` and `^`, as in Python's format specs."""
    return format(text, f"{align}{max(0, width - cell_width(text) + len(text))}")


def wrap_cells(text: str, width: int, *, cuts_words: bool = True) -> list[str]:
    """Lines of whole words; a word that is longer than a line is cut, or else kept in one piece."""
    lines: list[str] = []
    line = ""
    for word in re.findall(" *[^ ]+", text):  # Several spaces within a line are kept.
        if cell_width(line + word) <= width:
            line += word
            continue
        if line:
            lines.append(line)
        line = word.lstrip()
        while cuts_words and cell_width(line) > width:
            head = cut_cells(line, width) or line[0]
            lines.append(head)
            line = line[len(head) :]
    return [*lines, line] if line or not lines else lines


def _width(letter: str) -> int:
    if unicodedata.combining(letter) or unicodedata.category(letter) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
