"""Runs beside each other, as Markdown for people and as plain values for programs."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.kube.cases import Load, Run
from bench.kube.contenders import Penstock
from penstock.devcluster.binaries import ETCD_VERSION, KUBERNETES_VERSION

__all__ = ["KubeReport"]

_SPENDERS: Final = ("scheduler", "database", "API server", "etcd", "kcm")
_MOST: Final = 8  # parts and functions that are named
_NOTES: Final = """\
Pods of 1 CPU and 1 GiB on nodes of 32 CPUs wait before the contender starts. Times are from the start of its
process; "up" is when it has loaded itself and begins to read the cluster. pods/s: from up until the last is
bound, as a watch tells; "with start" from the start of the process. CPU ms per pod: from up until the last
binding; "after" is what all parts use from then on (events are still written). Contender, control plane and
watch share the machine; "others" is the share of it that processes of somebody else took. kwok is off, nodes
are Ready without it, pods stay Pending. kube-scheduler has its stock configuration, and a client rate that
does not slow it (10,000/s). Penstock has its default settings and a PostgreSQL of its own with fsync."""


@dataclass(frozen=True, slots=True)
class KubeReport:
    runs: Sequence[Run]
    load: Load | None
    left_out: Sequence[str]  # what failed, and why
    cores: int
    is_native: bool

    def plain(self) -> dict[str, Any]:
        return {
            "python": platform.python_version(),
            "kubernetes": KUBERNETES_VERSION,
            "etcd": ETCD_VERSION,
            "cores": self.cores,
            "native_gangs": self.is_native,
            "runs": [
                {**dataclasses.asdict(run), "rate": run.rate, "cpu_ms_per_pod": run.cpu_ms_per_pod}
                for run in self.runs
            ],
            "ratios": [
                {
                    "case": ours.case,
                    "to": theirs.contender,
                    "ratio": ours.rate / theirs.rate,
                    "with_start": ours.rate_with_start / theirs.rate_with_start,
                }
                for ours, theirs in self._pairs()
            ],
            "memory": None if self.load is None else dataclasses.asdict(self.load),
            "left_out": list(self.left_out),
        }

    def markdown(self) -> str:
        gates = "on" if self.is_native else "off"
        head = (
            f"Kubernetes {KUBERNETES_VERSION}, etcd {ETCD_VERSION}, Python {platform.python_version()}, "
            f"{self.cores} cores; native gangs {gates}."
        )
        parts = [head]
        if self.runs:
            parts += [_table(_RUN_COLUMNS, map(_run_row, self.runs)), self._ratios(), self._ways()]
        if self.load is not None:
            parts.append(_memory(self.load))
        if self.left_out:
            parts.append("Left out:\n\n" + "\n".join(f"* {text}" for text in self.left_out))
        return "\n\n".join(part for part in [*parts, _NOTES] if part)

    def _pairs(self) -> Iterable[tuple[Run, Run]]:
        for ours in self.runs:
            if ours.contender == Penstock.name:
                for theirs in self.runs:
                    if theirs.case == ours.case and theirs is not ours:
                        yield ours, theirs

    def _ratios(self) -> str:
        rows = [
            (
                ours.title,
                theirs.contender,
                f"{ours.rate:,.0f}",
                f"{theirs.rate:,.0f}",
                f"{ours.rate / theirs.rate:.2f}",
                f"{ours.rate_with_start / theirs.rate_with_start:.2f}",
            )
            for ours, theirs in self._pairs()
        ]
        columns = ("case", "Penstock beside", "Penstock, pods/s", "theirs", "ratio", "with start")
        return _table(columns, rows) if rows else ""

    def _ways(self) -> str:
        """What Penstock did with its time."""
        lines = []
        for run in self.runs:
            if run.contender != Penstock.name or run.ready_s is None:
                continue
            cpu = run.cpu_ms_per_pod
            lines.append(
                f"* Penstock, {run.title}: up after {run.up_s:.1f} s, ready after {run.ready_s:.1f} s, "
                f"first binding after {run.first_s:.1f} s, last after {run.last_s:.1f} s, "
                f"quiet {run.after_s:.0f} s later; "
                f"CPU of the instance {cpu.get('scheduler', 0):.2f} ms a pod, "
                f"of its database {cpu.get('database', 0):.2f} ms; "
                f"{run.transactions:,} transactions, {run.rows:,} rows."
            )
            for what, counts in run.samples.items():
                lines.append(f"  Seen at work, by {what}: {_shares(counts)}.")
        return "\n".join(lines)


def _shares(counts: dict[str, int]) -> str:
    total = sum(counts.values()) or 1
    most = sorted(counts.items(), key=lambda one: -one[1])[:_MOST]
    return ", ".join(f"{name} {count / total:.0%}" for name, count in most)


_RUN_COLUMNS: Final = (
    "case",
    "who",
    "nodes",
    "pods",
    "up s",
    "first s",
    "first gang s",
    "last s",
    "pods/s",
    "with start",
    "CPU ms/pod: " + " / ".join(_SPENDERS),
    "sum",
    "after",
    "others",
)


def _run_row(run: Run) -> Sequence[str]:
    cpu = run.cpu_ms_per_pod
    after = sum(run.after_cpu_s.get(name, 0.0) for name in _SPENDERS) * 1000 / max(run.bound, 1)
    cut = "" if run.bound == run.pods else f" [{run.bound:,} bound]"
    return (
        run.title,
        run.contender,
        f"{run.nodes:,}",
        f"{run.pods:,}{cut}",
        f"{run.up_s:.1f}",
        f"{run.first_s:.1f}",
        "-" if run.first_group_s is None else f"{run.first_group_s:.1f}",
        f"{run.last_s:.1f}",
        f"{run.rate:,.0f}",
        f"{run.rate_with_start:,.0f}",
        " / ".join(f"{cpu[name]:.2f}" if name in cpu else "-" for name in _SPENDERS),
        f"{sum(cpu.values()):.1f}",
        f"{after:.1f}",
        f"{run.others:.0%}",
    )


def _memory(load: Load) -> str:
    columns = (
        "memory",
        "MB",
        "at most",
        "MB of its database's main process",
        "ready s",
        "a pod bound after s",
    )
    rows = [
        (
            one.contender,
            f"{one.rss_mb.get('scheduler', 0):,.0f}",
            f"{one.peak_mb:,.0f}",
            f"{one.rss_mb['database']:,.0f}" if "database" in one.rss_mb else "-",
            "-" if one.ready_s is None else f"{one.ready_s:.1f}",
            f"{one.bound_s:.1f}",
        )
        for one in load.memories
    ]
    text = (
        f"{load.nodes:,} nodes, {load.pods:,} pods that others have placed, made in {load.pods_made_s:.0f} s:"
    )
    return f"{text}\n\n{_table(columns, rows)}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
