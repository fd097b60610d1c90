"""What is told of the audit, for Prometheus. Every kind is there from the start: an alert can rely on it."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from penstock.audit.differences import Difference, DifferenceKind, Repair

__all__ = ["READINGS", "AuditMetrics"]

READINGS: Final = ("api", "store", "graph")


class AuditMetrics:
    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=True)
        self._differences = Gauge(
            "penstock_audit_differences",
            "Differences between cluster, store and graph that two readings have shown, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self._repairs = self._counter(
            "repairs", "Repairs that were made: one for each member released.", "repair"
        )
        self._failed_repairs = self._counter("failed_repairs", "Repairs that could not be made.", "repair")
        self._held_back = self._counter("held_back", "Repairs that were due but beyond a bound.", "repair")
        self._failed_readings = self._counter(
            "failed_readings", "Readings that could not be taken.", "reading"
        )
        self._rounds = Counter(
            "penstock_audit_rounds", "Rounds of the audit, with readings or without.", registry=self.registry
        )
        self._last_at = Gauge(
            "penstock_audit_last_round_timestamp_seconds",
            "When the last round ended that could read everything.",
            registry=self.registry,
        )
        self._duration = Gauge(
            "penstock_audit_last_round_duration_seconds",
            "How long the last round took.",
            registry=self.registry,
        )
        for kind in DifferenceKind:
            self._differences.labels(kind.value)
        for repair in Repair:
            if repair is not Repair.NONE:
                for counter in (self._repairs, self._failed_repairs, self._held_back):
                    counter.labels(repair.value)
        for reading in READINGS:
            self._failed_readings.labels(reading)

    def _counter(self, name: str, about: str, label: str) -> Counter:
        return Counter(f"penstock_audit_{name}", about, [label], registry=self.registry)

    def round_over(self, duration_s: float) -> None:
        self._rounds.inc()
        self._duration.set(duration_s)

    def compared(self, differences: Iterable[Difference], at: float) -> None:
        """What is left after the last comparison; a round without readings leaves the figures as they are."""
        counts = Tally(difference.kind for difference in differences)
        for kind in DifferenceKind:
            self._differences.labels(kind.value).set(counts[kind])
        self._last_at.set(at)

    def reading_failed(self, reading: str) -> None:
        self._failed_readings.labels(reading).inc()

    def repaired(self, repair: Repair, count: int) -> None:
        self._repairs.labels(repair.value).inc(count)

    def repair_failed(self, repair: Repair) -> None:
        self._failed_repairs.labels(repair.value).inc()

    def held_back(self, repair: Repair) -> None:
        self._held_back.labels(repair.value).inc()

    def render(self) -> bytes:
        """All figures in Prometheus' text format."""
        return generate_latest(self.registry)
