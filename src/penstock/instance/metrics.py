"""Prometheus metrics of the loop. Every label value exists from the start, so alerts can rely on it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from penstock.model.job import Result
from penstock.sched.records import Change, JobLive, JobLogged
from penstock.sched.subjects import CulpritKind

__all__ = ["InstanceMetrics"]

_CYCLES: Final = {False: "shallow", True: "deep"}  # a deep cycle makes forecasts too
_BUCKETS_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


class InstanceMetrics:
    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry(auto_describe=True)
        self._quarantined = Counter(
            "penstock_quarantined",
            "Objects that were set aside after an unexpected exception, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self._submitted = Counter("penstock_jobs_submitted", "Jobs created.", registry=self.registry)
        self._started = Counter(
            "penstock_jobs_started", "Starts of jobs, further attempts included.", registry=self.registry
        )
        self._ended = Counter(
            "penstock_jobs_ended", "Jobs that became inactive, by result.", ["result"], registry=self.registry
        )
        self._cycles = Histogram(
            "penstock_cycle_seconds",
            "Duration of scheduling cycles with their transaction, by kind: a deep one makes forecasts too.",
            ["kind"],
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        self._transactions = Histogram(
            "penstock_store_transaction_seconds",
            "Duration of transactions of the loop.",
            buckets=_BUCKETS_S,
            registry=self.registry,
        )
        for kind in CulpritKind:
            self._quarantined.labels(kind.value)
        for result in Result:
            self._ended.labels(result.value)
        for name in _CYCLES.values():
            self._cycles.labels(name)

    def quarantined(self, kind: CulpritKind) -> None:
        self._quarantined.labels(kind.value).inc()

    def transaction(self) -> AbstractContextManager[object]:
        """Measures a transaction of the store, from entering to leaving the context."""
        return self._transactions.time()

    def cycle_done(self, duration_s: float, *, deep: bool) -> None:
        self._cycles.labels(_CYCLES[deep]).observe(duration_s)

    def committed(self, changes: Iterable[Change]) -> None:
        """Counts what a committed step has changed."""
        results: dict[int, str] = {}
        ended: list[int] = []
        for change in changes:
            if isinstance(change, JobLive):
                results[change.id] = change.result
            elif isinstance(change, JobLogged):
                match change.event.name:
                    case "submit":
                        self._submitted.inc()
                    case "alloc":
                        self._started.inc()
                    case "clean":
                        ended.append(change.id)
        for number in ended:
            self._ended.labels(results.get(number) or Result.FAILED.value).inc()

    def render(self) -> bytes:
        """Returns all metrics in the text format of Prometheus."""
        return generate_latest(self.registry)
