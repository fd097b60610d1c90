"""Prometheus metrics of the loop. Every label value exists from the start, so alerts can rely on it."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, generate_latest

from penstock.sched.subjects import CulpritKind

__all__ = ["InstanceMetrics"]


class InstanceMetrics:
    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=True)
        self._quarantined = Counter(
            "penstock_quarantined",
            "Objects that were set aside after an unexpected exception, by kind.",
            ["kind"],
            registry=self.registry,
        )
        for kind in CulpritKind:
            self._quarantined.labels(kind.value)

    def quarantined(self, kind: CulpritKind) -> None:
        self._quarantined.labels(kind.value).inc()

    def render(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
