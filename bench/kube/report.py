"""Compares runs, as Markdown for people and as plain values for programs."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.kube.cases import MemoryComparison, Run
from bench.kube.contenders import Penstock
from penstock.devcluster.binaries import ETCD_VERSION, KUBERNETES_VERSION

__all__ = ["KubeReport"]

_PROCESSES: Final = ("scheduler", "database", "API server", "etcd", "kcm")
_MOST: Final = 8  # packages and functions that are listed
_NOTES: Final = """\
Pods of 1 CPU and 1 GiB on nodes of 32 CPUs wait before the contender starts. Times are from the start of its
process; "up" is when it is loaded and begins to read the cluster. pods/s: from up until a watch shows the
last pod bound; "with start" counts from the start of the process. CPU ms/pod: from up until the last binding;
"after" is the CPU ms/pod of all processes after that (events are still written). Contender, control plane and
watch share the machine; "unrelated" is the share of CPU time that other processes used. kwok does not run,
nodes are Ready without it, pods stay Pending. kube-scheduler has its default configuration with a client rate
limit that does not slow it down (10,000/s). Penstock has its default settings and its own PostgreSQL with
fsync."""


@dataclass(frozen=True, slots=True)
class KubeReport:
    runs: Sequence[Run]
    load: MemoryComparison | None
    left_out: Sequence[str]  # measurements that failed, with the reason
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
            parts += [_table(_RUN_COLUMNS, map(_run_row, self.runs)), self._ratios(), self._details()]
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
        columns = ("case", "compared with", "Penstock, pods/s", "pods/s", "ratio", "with start")
        return _table(columns, rows) if rows else ""

    def _details(self) -> str:
        """Times, CPU and database writes of Penstock, and its profile if it was sampled."""
        lines = []
        for run in self.runs:
            if run.contender != Penstock.name or run.ready_s is None:
                continue
            cpu = run.cpu_ms_per_pod
            lines.append(
                f"* Penstock, {run.title}: up after {run.up_s:.1f} s, ready after {run.ready_s:.1f} s, "
                f"first binding after {run.first_s:.1f} s, last after {run.last_s:.1f} s, "
                f"idle {run.after_s:.0f} s later; "
                f"CPU of the instance {cpu.get('scheduler', 0):.2f} ms per pod, "
                f"of its database {cpu.get('database', 0):.2f} ms per pod; "
                f"{run.transactions:,} transactions, {run.rows:,} rows."
            )
            for key, counts in run.samples.items():
                lines.append(f"  Samples by {key}: {_shares(counts)}.")
        return "\n".join(lines)


def _shares(counts: dict[str, int]) -> str:
    total = sum(counts.values()) or 1
    most = sorted(counts.items(), key=lambda one: -one[1])[:_MOST]
    return ", ".join(f"{name} {count / total:.0%}" for name, count in most)


_RUN_COLUMNS: Final = (
    "case",
    "contender",
    "nodes",
    "pods",
    "up s",
    "first s",
    "first gang s",
    "last s",
    "pods/s",
    "with start",
    "CPU ms/pod: " + " / ".join(_PROCESSES),
    "sum",
    "after",
    "unrelated",
)


def _run_row(run: Run) -> Sequence[str]:
    cpu = run.cpu_ms_per_pod
    after = sum(run.after_cpu_s.get(name, 0.0) for name in _PROCESSES) * 1000 / max(run.bound, 1)
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
        " / ".join(f"{cpu[name]:.2f}" if name in cpu else "-" for name in _PROCESSES),
        f"{sum(cpu.values()):.1f}",
        f"{after:.1f}",
        f"{run.foreign_share:.0%}",
    )


def _memory(load: MemoryComparison) -> str:
    columns = (
        "memory",
        "MB",
        "peak MB",
        "MB of the database's main process",
        "ready s",
        "first pod bound after s",
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
        for one in load.usages
    ]
    text = (
        f"{load.nodes:,} nodes with {load.pods:,} pods of another scheduler, "
        f"created in {load.pods_create_s:.0f} s:"
    )
    return f"{text}\n\n{_table(columns, rows)}"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
