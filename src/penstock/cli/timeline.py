"""`penstock timeline`: jobs by node and time, drawn on the terminal or written as an SVG image."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.client import ApiClient
from penstock.cli.exits import FAILED, CommandExit
from penstock.cli.gantt import ASCII_FILLS, BLOCK_FILLS, Chart, draw
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import (
    has_colours,
    is_terminal,
    print_json,
    print_line,
    printable,
    shows_unicode,
    styled,
    width,
)
from penstock.cli.times import parse_span

__all__ = ["styled_lines", "timeline"]

_PIPE_COLUMNS = 100
_LINES_MAX = 48
_STYLES = ("cyan", "green", "yellow", "magenta", "blue")


@click.command(context_settings=SETTINGS)
@with_client
@json_option
@click.option("--since", metavar="DURATION", help="How far back the chart starts, for example 30m.")
@click.option("--until", metavar="DURATION", help="How far ahead the chart ends, for example 2h.")
@click.option("--svg", "svg_file", metavar="FILE", help="Write an SVG image to FILE instead.")
@click.option(
    "-a", "--all", "everything", is_flag=True, help=f"Draw all nodes (default: at most {_LINES_MAX} lines)."
)
def timeline(
    client: ApiClient,
    since: str | None,
    until: str | None,
    svg_file: str | None,
    everything: bool,
    output_format: str,
) -> None:
    """Draw the jobs of each node over time: ended, running, reserved, forecast and claims.

    The chart of a large cluster is limited to what fits on a screen or two; --all draws everything.
    """
    since_s = None if since is None else parse_span(since.removeprefix("-"), "--since")
    until_s = None if until is None else parse_span(until.removeprefix("+"), "--until")
    document = client.get("/v1/timeline", since_s=since_s, until_s=until_s)
    if output_format == "json":
        print_json(document)
    elif svg_file:
        _write(svg_file, document)
    else:
        on_terminal = is_terminal() and shows_unicode()
        columns = width() if is_terminal() else _PIPE_COLUMNS
        fills = BLOCK_FILLS if on_terminal else ASCII_FILLS
        chart = draw(document, columns, fills, lines_max=None if everything else _LINES_MAX)
        for line in styled_lines(chart):
            print_line(line)


def _write(path: str, document: dict[str, Any]) -> None:
    from penstock.cli.svg import timeline_svg

    try:
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(timeline_svg(document))
    except OSError as error:
        raise CommandExit(FAILED, f"{path}: cannot write the image: {error.strerror}") from error


def styled_lines(chart: Chart) -> list[str]:
    """The lines of the chart; on a terminal every job has its own colour."""
    if not has_colours():
        return [printable(line) for line in chart.lines]
    styles: dict[str, str] = {}
    lines = []
    for line, bars in zip(chart.lines, chart.bars, strict=True):
        text, last = "", 0
        for bar in sorted(bars, key=lambda bar: bar.start):
            style = styles.setdefault(bar.job, _STYLES[len(styles) % len(_STYLES)])
            if bar.kind == "overrun":
                style = "red"
            text += printable(line[last : bar.start]) + styled(printable(line[bar.start : bar.end]), style)
            last = bar.end
        lines.append(text + printable(line[last:]))
    return lines
