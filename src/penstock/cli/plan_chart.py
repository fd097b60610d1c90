"""Draws the plan of `penstock demo --plan` as text: a chart of nodes over time, a legend, and the reasons.

`draw` returns lines of styled text, at most 100 columns wide. On a terminal rich prints them in colour; it is
imported only then. Elsewhere, and under NO_COLOR, every job is drawn with its letter.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Final

from penstock.cli.demo_plan import CORES, GPUS, HOUR_S, DemoJob, DemoPlan
from penstock.engine import Reason, Vertex
from penstock.model.hostlist import encode_hostlist

__all__ = ["draw", "show"]

_LANE_CORES: Final = 4  # a node is drawn as lanes of this many cores
_LABEL_WIDTH: Final = 13
_CHART_WIDTH: Final = 84
_STEPS_S: Final = (60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400)
_WHY_WIDTH: Final = 94
_BLOCKERS_MAX: Final = 3
_GREY: Final = 0


@dataclass(frozen=True, slots=True)
class StyledText:
    """Text with one style. `tint` is the number of the job whose colour is the background, 0 for grey."""

    plain: str
    rich: str
    tint: int | None = None
    strong: bool = False
    dim: bool = False


Line = list[StyledText]


def draw(planned: DemoPlan) -> list[Line]:
    """The chart, the legend and the reasons, line by line."""
    waiting = [job for job in planned.jobs if job.allocation is not None and job.allocation.start_s > 0]
    refused = [job for job in planned.jobs if job.allocation is None]
    step_s = next((step for step in _STEPS_S if step * _CHART_WIDTH >= planned.end_s()), _STEPS_S[-1])
    scale = f"each row is {_LANE_CORES} cores of a node, each column {step_s // 60} min"
    lines = [_title(planned), [_dim(scale)], [], *_chart(planned, step_s), [], *_legend(planned)]
    if waiting:
        lines += [
            [],
            [_strong("Why jobs wait")],
            *(line for job in waiting for line in _wait_lines(planned, job)),
        ]
    if refused:
        lines += [[], [_strong("Jobs that can never start")]]
        lines += [line for job in refused for line in _refusal_lines(job)]
    return lines


def _text(text: str) -> StyledText:
    return StyledText(text, text)


def _strong(text: str) -> StyledText:
    return StyledText(text, text, strong=True)


def _dim(plain: str, rich: str = "") -> StyledText:
    return StyledText(plain, rich or plain, dim=True)


def _badge(job: DemoJob) -> StyledText:
    tint = job.number if job.allocation is not None else _GREY
    return StyledText(f" {job.letter} ", f" {job.letter} ", tint)


def _title(planned: DemoPlan) -> Line:
    count = len(planned.nodes)
    racks = len({node.parent() for node in planned.nodes})
    summary = (
        f": {count} {_plural('node', count)} in {racks} {_plural('rack', racks)}, {count * CORES} cores, "
        f"{count * GPUS} gpus; policy {planned.policy}; {len(planned.jobs)} jobs submitted at 0:00"
    )
    return [_strong("Penstock demo"), _text(summary)]


def _chart(planned: DemoPlan, step_s: int) -> list[Line]:
    columns = min(_CHART_WIDTH, -(-planned.end_s() // step_s))
    by_lane: dict[tuple[int, int], list[DemoJob]] = {}
    for job in planned.jobs:
        for rank, ids in job.cores().items():
            for lane in {core // _LANE_CORES for core in ids}:
                by_lane.setdefault((rank, lane), []).append(job)
    lines = _axis(step_s, columns)
    labelled: set[int] = set()
    rack_before: Vertex | None = None
    for node in planned.nodes:
        rack = node.parent()
        head = rack.name if rack is not None and rack is not rack_before else ""
        rack_before = rack
        for lane in range(CORES // _LANE_CORES):
            label = f"{head if lane == 0 else '':6} {node.name if lane == 0 else '':{_LABEL_WIDTH - 8}} "
            jobs = sorted(by_lane.get((node.rank, lane), ()), key=DemoJob.span)
            lines.append([_text(label), *_bars(jobs, step_s, columns, labelled)])
    return lines


def _axis(step_s: int, columns: int) -> list[Line]:
    every_s = next(span for span in (HOUR_S, 2 * HOUR_S, 6 * HOUR_S, 24 * HOUR_S) if span >= 6 * step_s)
    numbers = " " * _LABEL_WIDTH
    ticks = ""
    for column in range(columns):
        is_tick = column * step_s % every_s == 0
        ticks += "|" if is_tick else "-"
        if is_tick:
            numbers = f"{numbers:{_LABEL_WIDTH + column}}{_clock(column * step_s)[:-3]}"
    drawn = ticks.replace("|", "┬").replace("-", "─")
    return [[_dim(numbers)], [_text(" " * _LABEL_WIDTH), _dim(ticks, drawn)]]


def _bars(jobs: Sequence[DemoJob], step_s: int, columns: int, labelled: set[int]) -> Line:
    """The bars of one lane. The first bar of a job carries its name."""
    line: Line = []
    at = 0
    for job in jobs:
        start, end = (min(columns, round(time / step_s)) for time in job.span())
        if start > at:
            line.append(_dim("." * (start - at), "·" * (start - at)))
        width = end - max(start, at)
        if width > 0:
            label = f" {job.letter}" if job.number in labelled else f" {job.letter} {job.request.name}"
            labelled.add(job.number)
            line.append(StyledText(job.letter * width, f"{label:{width}}"[:width], job.number))
        at = max(at, end)
    if at < columns:
        line.append(_dim("." * (columns - at), "·" * (columns - at)))
    return line


def _legend(planned: DemoPlan) -> list[Line]:
    names = {node.rank: node.name for node in planned.nodes}
    lines: list[Line] = [[_strong(f"    {'job':10} {'request':38} {'starts':>8} {'ends':>8}  on")]]
    for job in planned.jobs:
        text = f" {job.request.name:10} {job.request!s:38} "
        if job.allocation is None:
            lines.append([_badge(job), _text(text), _dim(f"{'never':>8} {'-':>8}  -")])
            continue
        start_s, end_s = job.span()
        start = "now" if start_s == 0 else _clock(start_s)
        on = encode_hostlist(names[rank] for rank in job.cores())
        lines.append([_badge(job), _text(f"{text}{start:>8} {_clock(end_s):>8}  {on}")])
    return lines


def _wait_lines(planned: DemoPlan, job: DemoJob) -> list[Line]:
    assert job.reason is not None
    start_s, _ = job.span()
    first, *further = wrap(f"starts at {_clock(start_s)}: {job.reason.clause}", _WHY_WIDTH)
    lines = [[_badge(job), _text(f" {first}")], *([_text(f"      {more}")] for more in further)]
    blockers = _blockers_text(planned, job.reason)
    return [*lines, [_dim(f"      {blockers}")]] if blockers else lines


def _blockers_text(planned: DemoPlan, reason: Reason) -> str:
    """The jobs that hold the missing resources, in order of their end."""
    letters: dict[int | None, str] = {job.number: job.letter for job in planned.jobs}
    texts = [
        f"{letters.get(blocker.job, str(blocker))} "
        + ("(no known end)" if blocker.until_s is None else f"(ends {_clock(blocker.until_s)})")
        for blocker in reason.blockers
    ]
    more = len(texts) - _BLOCKERS_MAX
    if not texts:
        return ""
    return "held by " + ", ".join(texts[:_BLOCKERS_MAX]) + (f" and {more} more" if more > 0 else "")


def _refusal_lines(job: DemoJob) -> list[Line]:
    assert job.reason is not None
    first, *further = wrap(f"{job.request.name}: {job.reason.clause}", _WHY_WIDTH)
    lines: list[Line] = [[_badge(job), _text(f" {first}")], *([_text(f"      {more}")] for more in further)]
    for stage in job.reason.stages:
        fails = stage.passed < stage.needed
        mark = "  <- fails here" if fails else ""
        lines.append([_dim(f"      {stage.passed:3} {stage.name:20} {stage.needed} needed{mark}")])
        if fails:
            break
    if not job.reason.blockers:
        lines.append([_dim("      no job holds these resources: waiting does not help")])
    return lines


def _clock(time_s: int) -> str:
    return f"{time_s // 3600}:{time_s % 3600 // 60:02}:{time_s % 60:02}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def show(lines: Iterable[Line]) -> None:
    """Prints the lines, in colour on a terminal."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb":
        _show_in_colours(lines)
        return
    for line in lines:
        print("".join(part.plain for part in line).rstrip())


# Light enough for black text; jobs that follow each other in the queue get unlike colours.
_TINTS: Final = (
    *("#8ecae6", "#ffb703", "#95d5b2", "#f4978e", "#cdb4db", "#e9c46a"),
    *("#76c893", "#f9a8d4", "#a3b8ff", "#d4a373", "#b5e48c", "#ff9f6b"),
)


def _tint(number: int) -> str:
    return "#a8a8a8" if number == _GREY else _TINTS[(number - 1) % len(_TINTS)]


def _show_in_colours(lines: Iterable[Line]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    for line in lines:
        text = Text()
        for part in line:
            style = "bold" if part.strong else "bright_black" if part.dim else ""
            if part.tint is not None:
                style = f"#101010 on {_tint(part.tint)}"
            text.append(part.rich, style)
        console.print(text)
