"""Prometheus metrics of the audit. Every label value exists from the start, so alerts can rely on it."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from penstock.audit.differences import Difference, DifferenceKind, Repair

__all__ = ["SNAPSHOTS", "AuditMetrics"]

SNAPSHOTS: Final = ("api", "store", "graph")


class AuditMetrics:
    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=True)
        self._differences = Gauge(
            "penstock_audit_differences",
            "Differences between cluster, store and graph that two comparisons have shown, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self._repairs = self._counter(
            "repairs", "Completed repairs; a release counts once per member.", "repair"
        )
        self._failed_repairs = self._counter("failed_repairs", "Failed repairs.", "repair")
        self._held_back = self._counter("held_back", "Repairs that a bound has deferred.", "repair")
        self._failed_snapshots = self._counter("failed_snapshots", "Failed snapshots.", "snapshot")
        self._rounds = Counter(
            "penstock_audit_rounds",
            "Rounds of the audit, with failed snapshots or without.",
            registry=self.registry,
        )
        self._last_at = Gauge(
            "penstock_audit_last_round_timestamp_seconds",
            "End of the last round without a failed snapshot.",
            registry=self.registry,
        )
        self._duration = Gauge(
            "penstock_audit_last_round_duration_seconds",
            "Duration of the last round.",
            registry=self.registry,
        )
        for kind in DifferenceKind:
            self._differences.labels(kind.value)
        for repair in Repair:
            if repair is not Repair.NONE:
                for counter in (self._repairs, self._failed_repairs, self._held_back):
                    counter.labels(repair.value)
        for snapshot in SNAPSHOTS:
            self._failed_snapshots.labels(snapshot)

    def _counter(self, name: str, about: str, label: str) -> Counter:
        return Counter(f"penstock_audit_{name}", about, [label], registry=self.registry)

    def round_ended(self, duration_s: float) -> None:
        self._rounds.inc()
        self._duration.set(duration_s)

    def compared(self, differences: Iterable[Difference], at: float) -> None:
        """Sets the differences of the last comparison; a round with a failed snapshot does not call this."""
        counts = Tally(difference.kind for difference in differences)
        for kind in DifferenceKind:
            self._differences.labels(kind.value).set(counts[kind])
        self._last_at.set(at)

    def snapshot_failed(self, snapshot: str) -> None:
        self._failed_snapshots.labels(snapshot).inc()

    def repaired(self, repair: Repair, count: int) -> None:
        self._repairs.labels(repair.value).inc(count)

    def repair_failed(self, repair: Repair) -> None:
        self._failed_repairs.labels(repair.value).inc()

    def held_back(self, repair: Repair) -> None:
        self._held_back.labels(repair.value).inc()

    def render(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
