"""The timeline as a text chart: one row group per node, time from left to right. Pure.

A node gets as many lanes as jobs run on it at the same time, up to a limit; the jobs above the limit are
counted. If the chart has a maximum of lines, nodes get fewer lanes, then nodes without jobs are left out,
then other nodes; a last line says what is missing. A bar starts with the letter of its job; its fill shows
whether the job ran, runs, is reserved or is forecast, or claims the node. Terminals get block characters,
pipes get ASCII characters.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, Final

from penstock.cli.times import clock, span
from penstock.model.text import count_of

__all__ = ["ASCII_FILLS", "BLOCK_FILLS", "Bar", "Chart", "draw"]

BLOCK_FILLS: Final = {
    "ran": "·",
    "running": "█",
    "overrun": "▓",
    "reserved": "▒",
    "forecast": "░",
    "claimed": "~",
}
_NAMES: Final = {"ran": "ended"}  # in the legend
ASCII_FILLS: Final = {
    "ran": ".",
    "running": "#",
    "overrun": "!",
    "reserved": "=",
    "forecast": "-",
    "claimed": "~",
}
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
class Chart:
    """The lines of the chart; `bars[i]` are the bars in line i, for colouring."""

    lines: tuple[str, ...]
    bars: tuple[tuple[Bar, ...], ...]


def draw(
    document: dict[str, Any], columns: int, fills: dict[str, str], *, lines_max: int | None = None
) -> Chart:
    """`lines_max` limits the lines of nodes; None: all nodes, with all lanes."""
    nodes, lanes_max = _limited(document["nodes"], lines_max)
    hidden_jobs: set[str] = set()
    label = max([len(node["name"]) for node in document["nodes"]] + [4]) + 1
    chart_width = max(10, columns - label - 1)
    begin, end, now = document["from"], document["to"], document["now"]
    scale = chart_width / max(end - begin, 1e-9)
    letters = _letters(document)
    lines = [" " * label + text for text in _axis(begin, end, now, scale, chart_width)]
    bars: list[tuple[Bar, ...]] = [() for _ in lines]
    mark = int((now - begin) * scale)
    for node in nodes:
        lanes, hidden = _lanes(node["spans"], begin, end, scale, chart_width, lanes_max)
        for number, lane in enumerate(lanes or [[]]):
            cells = [" "] * chart_width
            if 0 <= mark < chart_width:
                cells[mark] = "│" if fills is BLOCK_FILLS else "|"
            for bar in lane:
                cells[bar.start : bar.end] = fills[bar.kind] * (bar.end - bar.start)
                cells[bar.start] = letters[bar.job]
            lines.append(f"{node['name'] if number == 0 else '':<{label}}{''.join(cells)}".rstrip())
            bars.append(tuple(Bar(bar.job, bar.kind, bar.start + label, bar.end + label) for bar in lane))
        if hidden and lanes_max == _LANES_MAX:
            lines.append(f"{'':<{label}}... and {len(hidden)} more")
            bars.append(())
        hidden_jobs |= hidden
    if rest := _rest(len(document["nodes"]) - len(nodes), len(hidden_jobs) if lanes_max < _LANES_MAX else 0):
        lines.append(rest if len(rest) <= columns else rest[: columns - 1] + "+")
        bars.append(())
    legend = _legend(document, letters, fills, now, columns)
    return Chart((*lines, *legend), (*bars, *(() for _ in legend)))


def _limited(nodes: list[dict[str, Any]], lines_max: int | None) -> tuple[list[dict[str, Any]], int]:
    """The nodes to draw, in their order, and the lanes of each."""
    if lines_max is None:
        return nodes, _LANES_MAX
    busy = [node for node in nodes if node["spans"]]
    needed = sum(min(_LANES_MAX + 1, max(1, len(node["spans"]))) for node in nodes)
    if needed <= lines_max:
        return nodes, _LANES_MAX
    idle = [node for node in nodes if not node["spans"]]
    chosen = {node["name"] for node in (busy + idle)[:lines_max]}
    lines_of_idle = max(0, len(chosen) - len(busy))
    lanes_max = max(1, (lines_max - lines_of_idle) // max(1, min(len(busy), lines_max)))
    return [node for node in nodes if node["name"] in chosen], min(_LANES_MAX - 1, lanes_max)


def _rest(nodes: int, jobs: int) -> str:
    """What the chart leaves out; empty if nothing."""
    counts = ((nodes, "node"), (jobs, "job"))
    parts = [count_of(count, f"more {word}") for count, word in counts if count]
    return f"... and {' and '.join(parts)}; --all draws everything" if parts else ""


def _letters(document: dict[str, Any]) -> dict[str, str]:
    jobs = _jobs(document)
    return {job: _LETTERS[index % len(_LETTERS)] for index, job in enumerate(jobs)}


def _jobs(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The first span of each job, in order of start."""
    spans = [part for node in document["nodes"] for part in node["spans"]]
    found: dict[str, dict[str, Any]] = {}
    for part in sorted(spans, key=lambda part: (part["from"], part["job"])):
        found.setdefault(part["job"], part)
    return found


def _lanes(
    spans: list[dict[str, Any]],
    begin: float,
    end: float,
    scale: float,
    chart_width: int,
    lanes_max: int,
) -> tuple[list[list[Bar]], set[str]]:
    """The bars by lane, and the jobs that no lane has room for."""
    lanes: list[list[Bar]] = []
    hidden: set[str] = set()
    for part in sorted(spans, key=lambda part: part["from"]):
        until = end if part["to"] is None else part["to"]
        if until <= begin or part["from"] >= end:
            continue
        first = min(chart_width - 1, max(0, int((part["from"] - begin) * scale)))
        last = max(first + 1, min(chart_width, int((until - begin) * scale)))
        for lane in lanes:
            # A job that starts when another ends may lose a column to rounding; it shares its lane.
            begins = max(first, lane[-1].end)
            if begins == first or (begins == first + 1 and begins < last):
                lane.append(Bar(part["job"], part["kind"], begins, last))
                break
        else:
            if len(lanes) < lanes_max:
                lanes.append([Bar(part["job"], part["kind"], first, last)])
            else:
                hidden.add(part["job"])
    return lanes, hidden


def _axis(begin: float, end: float, now: float, scale: float, chart_width: int) -> list[str]:
    step = next((step for step in _STEPS_S if step * scale >= _TICK_WIDTH), _STEPS_S[-1])
    text, ticks = [" "] * chart_width, [" "] * chart_width
    number = int((begin - now) // step)
    while now + number * step <= end:
        at = int((now + number * step - begin) * scale)
        label = "now" if number == 0 else ("+" if number > 0 else "-") + span(abs(number * step))
        if 0 <= at < chart_width:
            ticks[at] = "|"
            if at + len(label) <= chart_width:
                text[at : at + len(label)] = label
        number += 1
    return ["".join(text).rstrip(), "".join(ticks).rstrip()]


def _legend(
    document: dict[str, Any], letters: dict[str, str], fills: dict[str, str], now: float, columns: int
) -> list[str]:
    jobs = _jobs(document)
    if not jobs:
        return ["", "no jobs"]
    kinds = dict.fromkeys(part["kind"] for node in document["nodes"] for part in node["spans"])
    samples = [f"{fills[kind] * 3} {_NAMES.get(kind, kind)}" for kind in fills if kind in kinds]
    lines = ["", *wrap("  ".join(samples), columns, drop_whitespace=True), ""]
    # If there are too many jobs, ended ones are left out, the oldest first.
    ended = [job for job, part in jobs.items() if part["kind"] == "ran"]
    hidden = set(ended[: max(0, len(jobs) - _LEGEND_MAX)])
    for job, part in [item for item in jobs.items() if item[0] not in hidden][:_LEGEND_MAX]:
        until = "no end" if part["to"] is None else clock(part["to"], now)
        name = part["name"] if len(part["name"]) <= 16 else part["name"][:15] + "+"
        kind = _NAMES.get(part["kind"], part["kind"])
        text = f"{letters[job]}  {job:<12} {name:<16} {clock(part['from'], now)} - {until}  {kind}"
        lines.append(text if len(text) <= columns else text[: columns - 1] + "+")
    if len(jobs) > _LEGEND_MAX:
        lines.append(f"... and {count_of(len(jobs) - _LEGEND_MAX, 'more job')}")
    return lines
