"""`penstock timeline`: what runs where and when, drawn in the terminal or into a picture."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.client import ApiClient
from penstock.cli.exits import FAILED, Ended
from penstock.cli.gantt import BLOCKS, SIGNS, Picture, draw
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import has_colours, is_terminal, paint, say, say_json, shown, shows_unicode, width
from penstock.model.duration import parse_duration

__all__ = ["painted", "timeline"]

_PIPE_COLUMNS = 100
_STYLES = ("cyan", "green", "yellow", "magenta", "blue")


@click.command(context_settings=SETTINGS)
@with_client
@json_option
@click.option("--since", metavar="FSD", help="Begin so long before the present.")
@click.option("--until", metavar="FSD", help="End so long after the present.")
@click.option("--svg", "svg_file", metavar="FILE", help="Write a picture instead.")
def timeline(
    client: ApiClient, since: str | None, until: str | None, svg_file: str | None, output_format: str
) -> None:
    """Draw the nodes over time: what ran, runs, is reserved, and is forecast."""
    since_s = None if since is None else parse_duration(since.removeprefix("-"))
    until_s = None if until is None else parse_duration(until.removeprefix("+"))
    document = client.get("/v1/timeline", since_s=since_s, until_s=until_s)
    if output_format == "json":
        say_json(document)
    elif svg_file:
        _write(svg_file, document)
    else:
        on_terminal = is_terminal() and shows_unicode()
        columns = width() if is_terminal() else _PIPE_COLUMNS
        picture = draw(document, columns, BLOCKS if on_terminal else SIGNS)
        for line in painted(picture):
            say(line)


def _write(path: str, document: dict[str, Any]) -> None:
    from penstock.cli.svg import timeline_svg

    try:
        with open(path, "w", encoding="utf-8") as stream:
            stream.write(timeline_svg(document))
    except OSError as error:
        raise Ended(FAILED, f"the picture cannot be written: {error}") from error


def painted(picture: Picture) -> list[str]:
    """Lines for the screen; on a terminal every job has its colour."""
    if not has_colours():
        return [shown(line) for line in picture.lines]
    styles: dict[str, str] = {}
    made = []
    for line, bars in zip(picture.lines, picture.bars, strict=True):
        text, last = "", 0
        for bar in sorted(bars, key=lambda bar: bar.start):
            style = styles.setdefault(bar.job, _STYLES[len(styles) % len(_STYLES)])
            if bar.kind == "overrun":
                style = "red"
            text += shown(line[last : bar.start]) + paint(shown(line[bar.start : bar.end]), style)
            last = bar.end
        made.append(text + shown(line[last:]))
    return made
