"""Forecasts: expected starts of pending jobs, from simulated future cycles.

The forecast advances the time to the next end of a job, unbooks what has ended by then, runs the same cycle
as the scheduler, books what starts, and repeats. If all durations are exact and no job is submitted, every
job starts when its forecast says. A job that has overrun its limit ends when it is expected to (`overruns`).
At the end the engine is restored to its previous state.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Final

from penstock.engine import Allocation, AllocationKind
from penstock.engine.engine import Engine
from penstock.engine.job_allocation import JobAllocation
from penstock.engine.planner import FOREVER
from penstock.sched.cycle import Cycle, run_cycle
from penstock.sched.queue import QueueEntry

__all__ = ["PlannedStart", "forecast", "planned_of"]

_MILLI: Final = {"core": 1000, "cpu": 1}  # thousandths of a core in a unit


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """A planned start: when, until when, and how many cores of which nodes."""

    start_s: int
    end_s: int | None
    cores_milli: tuple[tuple[str, int], ...]  # by node
    is_reservation: bool


def planned_of(allocation: Allocation, is_reservation: bool, extra_s: int = 0) -> PlannedStart:
    """The planned start of an allocation; `extra_s` is booked beyond the limit of the job, see `Cycle`."""
    milli: dict[str, int] = {}
    for pick in allocation.picks:
        above = pick.above or pick.vertex.parent()
        if above is not None and above.type == "node":
            milli[above.name] = milli.get(above.name, 0) + pick.units * _MILLI.get(pick.vertex.type, 0)
    end_s = None if allocation.end_s is None else allocation.end_s - extra_s
    return PlannedStart(allocation.start_s, end_s, tuple(milli.items()), is_reservation)


def forecast(
    plan: Cycle, entries: list[QueueEntry], matches_max: int, hurry: Callable[[], bool]
) -> Generator[None, None, dict[int, PlannedStart]]:
    """Forecasts the start of these entries, as far as it can be computed, and restores the engine.

    When `hurry` returns true it stops early; the starts found so far are valid.
    """
    future = _Future(plan.engine, plan.now)
    starts: dict[int, PlannedStart] = {}
    waiting = set(entries)
    matches = 0
    try:
        while waiting and matches < matches_max and not hurry():
            at = future.next_end()
            if at is None:
                break
            future.advance_to(at)
            yield
            chosen = replace(plan, now=at, extra_s=0, chosen=frozenset(waiting))
            found = yield from run_cycle(chosen)
            matches += max(found.matches, 1)
            for entry, allocation in found.started:
                starts[entry.job] = planned_of(allocation, False)
                waiting.discard(entry)
                future.add(entry.job, allocation.end_s)
            for entry, _ in found.reserved:
                plan.engine.unbook_job(entry.job)
    finally:
        future.undo()
    return starts


class _Future:
    """An engine at a future time: ended jobs are unbooked, simulated starts are booked.

    Simulated jobs are unbooked too, not released: a release moves external usage that found no free unit
    before to the units that are free at that time, and here these belong to running jobs.
    """

    def __init__(self, engine: Engine, now: int) -> None:
        self._engine = engine
        self._unbooked: list[JobAllocation] = []
        self._booked: set[int] = set()
        self._ends: list[tuple[int, int]] = []
        for number, job in engine.jobs.items():
            if job.kind is AllocationKind.ALLOCATED and job.end < FOREVER:
                self._ends.append((max(job.end, now + 1), number))
        heapq.heapify(self._ends)

    def next_end(self) -> int | None:
        return self._ends[0][0] if self._ends else None

    def advance_to(self, at: int) -> None:
        while self._ends and self._ends[0][0] <= at:
            _, number = heapq.heappop(self._ends)
            if number in self._booked:
                self._booked.discard(number)
                self._engine.unbook_job(number)
            else:
                self._unbooked.append(self._engine.unbook_job(number))

    def add(self, number: int, end: int | None) -> None:
        self._booked.add(number)
        if end is not None:
            heapq.heappush(self._ends, (end, number))

    def undo(self) -> None:
        for number in self._booked:
            if number in self._engine.jobs:
                self._engine.unbook_job(number)
        for job in self._unbooked:
            self._engine.rebook_job(job)
