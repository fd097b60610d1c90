"""The timeline as rows of cells: nodes down, time across. Pure: the document in, lines out.

A node gets as many lanes as it has jobs at the same time, up to a bound; what does not fit is counted.
Every job has a letter, which stands at the beginning of its bar; the rest of the bar tells its kind. The
same picture is drawn with blocks on a terminal and with plain signs in a pipe.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Final

from penstock.cli.times import clock, span

__all__ = ["BLOCKS", "SIGNS", "Bar", "Picture", "draw"]

BLOCKS: Final = {"ran": "·", "running": "█", "overrun": "▓", "reserved": "▒", "forecast": "░"}
SIGNS: Final = {"ran": ".", "running": "#", "overrun": "!", "reserved": "=", "forecast": "-"}
_LANES_MAX: Final = 6
_LETTERS: Final = string.ascii_uppercase + string.ascii_lowercase
_LEGEND_MAX: Final = 26
_STEPS_S: Final = (1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 604_800)
_TICK_WIDTH: Final = 12


@dataclass(frozen=True, slots=True)
class Bar:
    job: str
    kind: str
    start: int  # columns
    end: int


@dataclass(frozen=True, slots=True)
class Picture:
    """`lines` are texts; `bars[i]` are the bars of line i, for colouring."""

    lines: tuple[str, ...]
    bars: tuple[tuple[Bar, ...], ...]


def draw(document: dict[str, Any], columns: int, glyphs: dict[str, str]) -> Picture:
    label = max([len(node["name"]) for node in document["nodes"]] + [4]) + 1
    room = max(10, columns - label - 1)
    begin, end, now = document["from"], document["to"], document["now"]
    scale = room / max(end - begin, 1e-9)
    letters = _letters(document)
    lines = [" " * label + text for text in _axis(begin, end, now, scale, room)]
    bars: list[tuple[Bar, ...]] = [() for _ in lines]
    mark = int((now - begin) * scale)
    for node in document["nodes"]:
        lanes, hidden = _lanes(node["spans"], begin, end, scale, room)
        for number, lane in enumerate(lanes or [[]]):
            cells = [" "] * room
            if 0 <= mark < room:
                cells[mark] = "│" if glyphs is BLOCKS else "|"
            for bar in lane:
                cells[bar.start : bar.end] = glyphs[bar.kind] * (bar.end - bar.start)
                cells[bar.start] = letters[bar.job]
            lines.append(f"{node['name'] if number == 0 else '':<{label}}{''.join(cells)}".rstrip())
            bars.append(tuple(Bar(bar.job, bar.kind, bar.start + label, bar.end + label) for bar in lane))
        if hidden:
            lines.append(f"{'':<{label}}... and {hidden} more")
            bars.append(())
    legend = _legend(document, letters, glyphs, now, columns)
    return Picture((*lines, *legend), (*bars, *(() for _ in legend)))


def _letters(document: dict[str, Any]) -> dict[str, str]:
    jobs = _jobs(document)
    return {job: _LETTERS[index % len(_LETTERS)] for index, job in enumerate(jobs)}


def _jobs(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The first span of each job, by when it begins."""
    spans = [part for node in document["nodes"] for part in node["spans"]]
    found: dict[str, dict[str, Any]] = {}
    for part in sorted(spans, key=lambda part: (part["from"], part["job"])):
        found.setdefault(part["job"], part)
    return found


def _lanes(
    spans: list[dict[str, Any]], begin: float, end: float, scale: float, room: int
) -> tuple[list[list[Bar]], int]:
    lanes: list[list[Bar]] = []
    hidden = 0
    for part in sorted(spans, key=lambda part: part["from"]):
        until = end if part["to"] is None else part["to"]
        if until <= begin or part["from"] >= end:
            continue
        first = min(room - 1, max(0, int((part["from"] - begin) * scale)))
        last = max(first + 1, min(room, int((until - begin) * scale)))
        for lane in lanes:
            # Who follows at once may lose a column to rounding; it stays in the same lane.
            begins = max(first, lane[-1].end)
            if begins == first or (begins == first + 1 and begins < last):
                lane.append(Bar(part["job"], part["kind"], begins, last))
                break
        else:
            if len(lanes) < _LANES_MAX:
                lanes.append([Bar(part["job"], part["kind"], first, last)])
            else:
                hidden += 1
    return lanes, hidden


def _axis(begin: float, end: float, now: float, scale: float, room: int) -> list[str]:
    step = next((step for step in _STEPS_S if step * scale >= _TICK_WIDTH), _STEPS_S[-1])
    text, ticks = [" "] * room, [" "] * room
    number = int((begin - now) // step)
    while now + number * step <= end:
        at = int((now + number * step - begin) * scale)
        label = "now" if number == 0 else ("+" if number > 0 else "-") + span(abs(number * step))
        if 0 <= at < room:
            ticks[at] = "|"
            if at + len(label) <= room:
                text[at : at + len(label)] = label
        number += 1
    return ["".join(text).rstrip(), "".join(ticks).rstrip()]


def _legend(
    document: dict[str, Any], letters: dict[str, str], glyphs: dict[str, str], now: float, columns: int
) -> list[str]:
    jobs = _jobs(document)
    if not jobs:
        return ["", "nothing runs, nothing waits"]
    kinds = dict.fromkeys(part["kind"] for node in document["nodes"] for part in node["spans"])
    signs = [f"{glyphs[kind] * 3} {kind}" for kind in glyphs if kind in kinds]
    lines = ["", *wrap("  ".join(signs), columns, drop_whitespace=True), ""]
    # If there are too many, those that are over go first, the oldest of them before all.
    over = [job for job, part in jobs.items() if part["kind"] == "ran"]
    hidden = set(over[: max(0, len(jobs) - _LEGEND_MAX)])
    for job, part in [item for item in jobs.items() if item[0] not in hidden][:_LEGEND_MAX]:
        until = "no end" if part["to"] is None else clock(part["to"], now)
        name = part["name"] if len(part["name"]) <= 16 else part["name"][:15] + "+"
        text = f"{letters[job]}  {job:<12} {name:<16} {clock(part['from'], now)} - {until}  {part['kind']}"
        lines.append(text if len(text) <= columns else text[: columns - 1] + "+")
    if len(jobs) > _LEGEND_MAX:
        lines.append(f"... and {len(jobs) - _LEGEND_MAX} more jobs")
    return lines
