"""A plot of the cost of a command against the size of the cluster, as SVG: one panel per case. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

__all__ = ["Line", "cost_svg"]

_WIDTH: Final = 330
_HEIGHT: Final = 230
_LEFT: Final = 56
_TOP: Final = 46
_PLOT_WIDTH: Final = 250
_PLOT_HEIGHT: Final = 130
_COLUMNS: Final = 3
_COLOURS: Final = ("#2563eb", "#059669", "#d97706", "#db2777", "#7c3aed", "#0891b2", "#65a30d", "#dc2626")
_STYLE: Final = ".grid{stroke:#e5e7eb}.ours{fill:none;stroke-width:2}.peer{fill:none;stroke-dasharray:4 3}"


@dataclass(frozen=True, slots=True)
class Line:
    """The cost of one kind of command under one policy: microseconds by number of nodes."""

    policy: str
    is_peer: bool
    cost_us: Mapping[int, float]


def cost_svg(panels: Mapping[str, Sequence[Line]]) -> str:
    """Panels by title. Both axes are logarithmic and the same in all panels, so that heights compare."""
    costs = [cost for lines in panels.values() for line in lines for cost in line.cost_us.values()]
    sizes = [nodes for lines in panels.values() for line in lines for nodes in line.cost_us]
    policies = sorted({line.policy for lines in panels.values() for line in lines})
    if not costs:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>\n'
    scale = _Scale.of(sizes, costs)
    colours = {policy: _COLOURS[number % len(_COLOURS)] for number, policy in enumerate(policies)}
    rows = -(-len(panels) // _COLUMNS)
    width, height = _COLUMNS * _WIDTH, rows * _HEIGHT + 40
    body: list[str] = []
    for number, (title, lines) in enumerate(panels.items()):
        x, y = number % _COLUMNS * _WIDTH, number // _COLUMNS * _HEIGHT
        body.append(f'<g transform="translate({x} {y})">')
        body += [*_frame(title, scale), *(_line(line, scale, colours[line.policy]) for line in lines), "</g>"]
    body += _legend(colours, height - 16)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="11">',
            f"<style>{_STYLE}</style>",
            f'<rect width="{width}" height="{height}" fill="#fff"/>',
            *body,
            "</svg>",
            "",
        ]
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Decades of both axes."""

    nodes_from: int
    nodes_to: int
    cost_from: int
    cost_to: int

    @classmethod
    def of(cls, sizes: Sequence[int], costs: Sequence[float]) -> _Scale:
        def decades(low: float, high: float) -> tuple[int, int]:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            return first, max(last, first + 1)

        return cls(*decades(min(sizes), max(sizes)), *decades(max(min(costs), 0.1), max(costs)))

    def x(self, nodes: float) -> float:
        part = (math.log10(nodes) - self.nodes_from) / (self.nodes_to - self.nodes_from)
        return _LEFT + part * _PLOT_WIDTH

    def y(self, cost_us: float) -> float:
        part = (math.log10(max(cost_us, 0.1)) - self.cost_from) / (self.cost_to - self.cost_from)
        return _TOP + (1 - part) * _PLOT_HEIGHT


def _frame(title: str, scale: _Scale) -> Iterator[str]:
    yield f'<text x="{_LEFT}" y="{_TOP - 16}" font-weight="bold">{escape(title)}</text>'
    for decade in range(scale.cost_from, scale.cost_to + 1):
        y = scale.y(10.0**decade)
        yield f'<path d="M{_LEFT} {y:.1f}h{_PLOT_WIDTH}" class="grid"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_duration(10.0**decade)}</text>'
    bottom = _TOP + _PLOT_HEIGHT
    for decade in range(scale.nodes_from, scale.nodes_to + 1):
        x = scale.x(10.0**decade)
        yield f'<path d="M{x:.1f} {_TOP}V{bottom}" class="grid"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{10**decade:,}</text>'
    yield f'<text x="{_LEFT + _PLOT_WIDTH / 2}" y="{bottom + 30}" text-anchor="middle">nodes</text>'


def _line(line: Line, scale: _Scale, colour: str) -> str:
    points = [(scale.x(nodes), scale.y(cost)) for nodes, cost in sorted(line.cost_us.items())]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)
    return f'<path d="M{path}" class="{"peer" if line.is_peer else "ours"}" stroke="{colour}"/>{dots}'


def _legend(colours: Mapping[str, str], y: int) -> Iterator[str]:
    x = _LEFT
    for policy, colour in colours.items():
        yield f'<path d="M{x} {y - 4}h24" stroke="{colour}" stroke-width="2"/>'
        yield f'<text x="{x + 30}" y="{y}">{escape(policy)}</text>'
        x += 90
    yield f'<text x="{x}" y="{y}">continuous: Penstock, dashed: Fluxion; median CPU time of a command</text>'


def _duration(cost_us: float) -> str:
    if cost_us >= 1e6:
        return f"{cost_us / 1e6:g} s"
    return f"{cost_us / 1e3:g} ms" if cost_us >= 1e3 else f"{cost_us:g} µs"
