"""Times at which jobs must be looked at even if nothing is reported: limits, timeouts, begin times."""

from __future__ import annotations

import heapq
from collections.abc import Collection
from typing import Final

__all__ = ["Timers"]

_SWEEP_AT: Final = 10_000


class Timers:
    """A job can have several timers. A timer that is not needed any more fires without an effect."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._sweep_at = _SWEEP_AT

    def copy(self) -> Timers:
        made = Timers()
        made._heap, made._sweep_at = list(self._heap), self._sweep_at
        return made

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, at: float, job: int) -> None:
        heapq.heappush(self._heap, (at, job))

    def next_at(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def earliest(self) -> dict[int, float]:
        """The first timer of each job."""
        first: dict[int, float] = {}
        for at, job in self._heap:
            first[job] = min(at, first.get(job, at))
        return first

    def take_due(self, now: float) -> list[int]:
        """Removes the timers that are due. Returns their jobs, each once."""
        due: dict[int, None] = {}
        while self._heap and self._heap[0][0] <= now:
            due[heapq.heappop(self._heap)[1]] = None
        return list(due)

    def sweep(self, active: Collection[int]) -> None:
        """Drops the timers of other jobs, once there are many: most jobs end long before their limits."""
        if len(self._heap) > self._sweep_at and len(self._heap) > 8 * len(active):
            self._heap = [timer for timer in self._heap if timer[1] in active]
            heapq.heapify(self._heap)
            # Timers of active jobs stay. The next sweep must find as many others as this one has kept.
            self._sweep_at = max(_SWEEP_AT, 2 * len(self._heap))
