"""The timeline as an SVG image: bars, a time axis and a line at the current time. Pure."""

from __future__ import annotations

from html import escape
from typing import Any, Final

from penstock.cli.times import clock

__all__ = ["timeline_svg"]

_WIDTH: Final = 1200
_LEFT: Final = 120
_RIGHT: Final = 20
_TOP: Final = 50
_LANE: Final = 22
_TICKS: Final = 8
_LANES_MAX: Final = 64
_COLOURS: Final = ("#2563eb", "#059669", "#d97706", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_OPACITY: Final = {
    "ran": 0.35,
    "running": 1.0,
    "overrun": 1.0,
    "reserved": 0.55,
    "forecast": 0.25,
    "claimed": 0.1,
}


def timeline_svg(document: dict[str, Any]) -> str:
    begin, end, now = document["from"], document["to"], document["now"]
    scale = (_WIDTH - _LEFT - _RIGHT) / max(end - begin, 1e-9)
    colours = _colours(document)
    body: list[str] = []
    top = _TOP
    for node in document["nodes"]:
        lanes = _lanes(node["spans"], begin, end)
        height = max(1, len(lanes)) * _LANE
        body.append(f'<text x="{_LEFT - 8}" y="{top + 16}" text-anchor="end">{escape(node["name"])}</text>')
        body.append(f'<path d="M{_LEFT} {top + height + 3}H{_WIDTH - _RIGHT}" class="line"/>')
        for number, lane in enumerate(lanes):
            body += [_bar(part, begin, end, scale, top + number * _LANE, colours, now) for part in lane]
        top += height + 6
    head = _axis(begin, end, now, scale, top)
    legend = _legend(top + 30)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{top + 50}" '
            f'viewBox="0 0 {_WIDTH} {top + 50}" font-family="system-ui, sans-serif" font-size="12">',
            "<style>.line{stroke:#e5e7eb;fill:none}.now{stroke:#dc2626;stroke-width:1.5}"
            ".in{fill:#fff;font-size:11px}.over{stroke:#dc2626;stroke-width:2}"
            ".plan{stroke-dasharray:4 2}</style>",
            f'<rect width="{_WIDTH}" height="{top + 50}" fill="#fff"/>',
            *head,
            *body,
            *legend,
            "</svg>",
            "",
        ]
    )


def _colours(document: dict[str, Any]) -> dict[str, str]:
    jobs = dict.fromkeys(part["job"] for node in document["nodes"] for part in node["spans"])
    return {job: _COLOURS[index % len(_COLOURS)] for index, job in enumerate(jobs)}


def _lanes(spans: list[dict[str, Any]], begin: float, end: float) -> list[list[dict[str, Any]]]:
    lanes: list[list[dict[str, Any]]] = []
    ends: list[float] = []
    for part in sorted(spans, key=lambda part: part["from"]):
        until = end if part["to"] is None else part["to"]
        if until <= begin or part["from"] >= end:
            continue
        free = next((number for number, last in enumerate(ends) if last <= part["from"]), None)
        if free is None:
            if len(lanes) == _LANES_MAX:
                continue
            lanes.append([part])
            ends.append(until)
        else:
            lanes[free].append(part)
            ends[free] = until
    return lanes


def _bar(
    part: dict[str, Any],
    begin: float,
    end: float,
    scale: float,
    top: int,
    colours: dict[str, str],
    now: float,
) -> str:
    until = end if part["to"] is None else min(part["to"], end)
    left = _LEFT + max(0.0, part["from"] - begin) * scale
    width = max(2.0, _LEFT + (until - begin) * scale - left)
    ends = "no end" if part["to"] is None else clock(part["to"], now)
    title = f"{part['job']} {part['name']}: {clock(part['from'], now)} - {ends}, {part['kind']}"
    title += f", {part['cores']} cores"
    colour = colours[part["job"]]
    extra = ' class="over"' if part["kind"] == "overrun" else ""
    if part["kind"] in ("reserved", "forecast", "claimed"):
        extra = f' class="plan" stroke="{colour}"'
    words = ""
    if width > 60:
        fits = int(width / 7)
        style = ' class="in"' if _OPACITY[part["kind"]] > 0.5 else ""
        name = escape(part["name"][:fits])
        words = f'<text x="{left + 4:.1f}" y="{top + 14}"{style}>{name}</text>'
    return (
        f"<g><title>{escape(title)}</title>"
        f'<rect x="{left:.1f}" y="{top}" width="{width:.1f}" height="{_LANE - 2}" rx="3" fill="{colour}" '
        f'fill-opacity="{_OPACITY[part["kind"]]}"{extra}/>{words}</g>'
    )


def _axis(begin: float, end: float, now: float, scale: float, bottom: int) -> list[str]:
    lines = []
    for number in range(_TICKS + 1):
        at = begin + (end - begin) * number / _TICKS
        x = _LEFT + (at - begin) * scale
        lines.append(f'<path d="M{x:.1f} {_TOP - 8}V{bottom}" class="line"/>')
        lines.append(f'<text x="{x:.1f}" y="{_TOP - 16}" text-anchor="middle">{clock(at, now)}</text>')
    if begin <= now <= end:
        x = _LEFT + (now - begin) * scale
        lines.append(f'<path d="M{x:.1f} {_TOP - 8}V{bottom}" class="now"/>')
    return lines


def _legend(top: int) -> list[str]:
    parts = []
    for number, (kind, opacity) in enumerate(_OPACITY.items()):
        x = _LEFT + number * 110
        extra = ' class="over"' if kind == "overrun" else ""
        parts.append(
            f'<rect x="{x}" y="{top - 11}" width="20" height="12" rx="2" fill="#2563eb" '
            f'fill-opacity="{opacity}"{extra}/>'
            f'<text x="{x + 26}" y="{top}">{kind}</text>'
        )
    return parts
