"""Compares measurements with the peer's figures, as Markdown or JSON."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench import peer
from bench.inputs import CASES, Variant, vertices
from bench.plot import Line, cost_svg
from bench.run import Measurement, PhaseResult

__all__ = ["MatcherReport"]

_NOTES = """\
Rates are commands per CPU second of one process, through all of `resource-query`. "scaled" is the rate
at the peer's calibration, by the calibration of the same process; the ratio is scaled / Fluxion, and
between 0.67 and 1.5 it is noise. Times of a command are CPU time, not scaled; tenths are means.
`[n of m]`: stopped after its budget of CPU time. Penstock parses equal jobspec texts once, Fluxion
parses each. Fluxion's figures: version 0.54, measured by us."""


@dataclass(frozen=True, slots=True)
class MatcherReport:
    measurements: Sequence[Measurement]
    left_out: Sequence[str]  # cases that failed or for which no time was left, with the reason
    wall_s: float
    budget_s: float

    @property
    def calibration(self) -> float:
        """The median over all processes: a single value depends too much on other load of the machine."""
        return median(one.calibration for one in self.measurements) if self.measurements else peer.CALIBRATION

    def markdown(self) -> str:
        all_ours = [one.calibration for one in self.measurements] or [self.calibration]
        low, high = peer.CALIBRATION_RANGE
        head = (
            f"Python {platform.python_version()}, {platform.machine()}. Calibration {self.calibration:,.0f} "
            f"steps per CPU second, the median of {min(all_ours):,.0f} to {max(all_ours):,.0f} "
            f"(Fluxion's machine: {peer.CALIBRATION:,.0f}, the middle of {low:,} to {high:,}). "
            f"{self.wall_s:.0f} s of wall time, {self.budget_s:g} CPU s per phase."
        )
        parts = [head, _table(_RATE_COLUMNS, self._rate_rows()), _table(_LOAD_COLUMNS, self._load_rows())]
        if self.left_out:
            parts.append("Left out:\n\n" + "\n".join(f"* {text}" for text in self.left_out))
        return "\n\n".join([*parts, _NOTES])

    def json(self) -> str:
        document = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "calibration": round(self.calibration),
            "peer_calibration": round(peer.CALIBRATION),
            "wall_s": round(self.wall_s, 1),
            "budget_s": self.budget_s,
            "left_out": list(self.left_out),
            "rates": [self._rate(one, phase) for one in self.measurements for phase in one.phases],
            "loads": [self._load(one) for one in self.measurements],
        }
        return json.dumps(document, indent=2)

    def _rate_rows(self) -> Iterable[Sequence[str]]:
        for one in self.measurements:
            for phase in one.phases:
                theirs = _peer_rate(one, phase)
                scaled = phase.rate / _speed(one)
                yield (
                    f"{one.case} {phase.name}",
                    f"{one.nodes:,}",
                    one.policy,
                    one.variant,
                    _number(scaled),
                    _number(phase.rate) + _cut(phase),
                    _number(theirs),
                    _number(scaled / theirs if theirs else None),
                    _number(_goal(one, phase)),
                    f"{_number(phase.median_us)} / {_number(phase.p99_us)}",
                    f"{_number(phase.first_tenth_us)} / {_number(phase.last_tenth_us)}",
                )

    def _load_rows(self) -> Iterable[Sequence[str]]:
        """One row per size: the fastest load and the memory, over all processes that loaded it."""
        plain = [one for one in self.measurements if _is_plain(one)]
        for nodes in sorted({one.nodes for one in plain}):
            same = [one for one in plain if one.nodes == nodes]
            fastest = min(same, key=lambda one: one.load_cpu_s * _speed(one))
            most = max(same, key=lambda one: one.peak_mb)
            yield (
                f"{nodes:,}",
                f"{vertices(nodes):,}",
                f"{fastest.load_cpu_s * _speed(fastest):.2f}",
                f"{fastest.load_cpu_s:.2f}",
                _number(peer.LOAD_CPU_S.get(nodes)),
                _number(peer.GOAL_LOAD_CPU_S.get(nodes)),
                _number(median(one.loaded_rss_mb for one in same)),
                _number(peer.LOAD_RSS_MB.get(nodes)),
                _number(peer.GOAL_LOAD_RSS_MB.get(nodes)),
                _number(median(one.loaded_peak_mb for one in same)),
                f"{_number(most.peak_mb)} ({most.case} {most.policy})",
            )

    def _rate(self, one: Measurement, phase: PhaseResult) -> dict[str, object]:
        return {
            "case": one.case,
            "title": CASES[one.case],
            "phase": phase.name,
            "nodes": one.nodes,
            "policy": one.policy,
            "variant": one.variant,
            "done": phase.done,
            "total": phase.total,
            "cpu_s": round(phase.cpu_s, 4),
            "per_cpu_s": round(phase.rate, 2),
            "per_cpu_s_scaled": round(phase.rate / _speed(one), 2),
            "peer_per_cpu_s": _peer_rate(one, phase),
            "goal_per_cpu_s": _goal(one, phase),
            "median_us": round(phase.median_us, 1),
            "p99_us": round(phase.p99_us, 1),
            "first_tenth_us": round(phase.first_tenth_us, 1),
            "last_tenth_us": round(phase.last_tenth_us, 1),
            "calibration": round(one.calibration),
        }

    def _load(self, one: Measurement) -> dict[str, object]:
        return {
            "case": one.case,
            "nodes": one.nodes,
            "policy": one.policy,
            "variant": one.variant,
            "cpu_s": round(one.load_cpu_s, 4),
            "cpu_s_scaled": round(one.load_cpu_s * _speed(one), 4),
            "peer_cpu_s": peer.LOAD_CPU_S.get(one.nodes),
            "loaded_rss_mb": round(one.loaded_rss_mb, 1),
            "peer_loaded_rss_mb": peer.LOAD_RSS_MB.get(one.nodes),
            "loaded_peak_mb": round(one.loaded_peak_mb, 1),
            "peak_mb": round(one.peak_mb, 1),
        }

    def cost_svg(self) -> str:
        """The median cost of a command against the number of nodes, beside the peer's mean cost."""
        panels: dict[str, list[Line]] = {}
        costs: dict[tuple[str, str, str], dict[int, float]] = {}
        for one in self.measurements:
            for phase in one.phases:
                if _is_plain(one) and phase.name != "fill":
                    key = (one.case, phase.name, one.policy)
                    costs.setdefault(key, {})[one.nodes] = phase.median_us * _speed(one)
        for (case, name, policy), ours in costs.items():
            if len(ours) < 2:
                continue
            lines = panels.setdefault(f"{case}: {name}", [])
            lines.append(Line(policy, False, ours))
            theirs = {nodes: peer.rate(case, name, nodes, policy) for nodes in ours}
            known = {nodes: 1e6 / rate for nodes, rate in theirs.items() if rate}
            if known:
                lines.append(Line(policy, True, known))
        return cost_svg(panels)


def _speed(one: Measurement) -> float:
    """The speed of this machine during a measurement relative to the peer's."""
    return one.calibration / peer.CALIBRATION


def _is_plain(one: Measurement) -> bool:
    return one.variant == Variant.PLAIN.value


def _peer_rate(one: Measurement, phase: PhaseResult) -> float | None:
    return peer.rate(one.case, phase.name, one.nodes, one.policy) if _is_plain(one) else None


def _goal(one: Measurement, phase: PhaseResult) -> float | None:
    return peer.goal(one.case, phase.name, one.nodes) if _is_plain(one) else None


_RATE_COLUMNS = (
    "case",
    "nodes",
    "policy",
    "cluster",
    "Penstock/s, scaled",
    "unscaled",
    "Fluxion/s",
    "ratio",
    "goal",
    "median / p99, µs",
    "first / last tenth, µs",
)
_LOAD_COLUMNS = (
    "g: load, nodes",
    "vertices",
    "CPU s, scaled",
    "unscaled",
    "Fluxion",
    "goal",
    "MB after load",
    "Fluxion",
    "goal",
    "peak of the load",
    "highest peak of a case",
)


def _cut(phase: PhaseResult) -> str:
    return f" [{phase.done:,} of {phase.total:,}]" if phase.done < phase.total else ""


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 30 else f"{value:.1f}" if value >= 3 else f"{value:.2f}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
