"""Timers of jobs: when a job is looked at, and what keeping many of them costs."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from penstock.sched.timers import Timers


class Active(Collection[int]):
    """Active jobs; counts how often it is asked for one."""

    def __init__(self, jobs: int) -> None:
        self._jobs = range(jobs)
        self.asked = 0

    def __contains__(self, job: object) -> bool:
        self.asked += 1
        return job in self._jobs

    def __iter__(self) -> Iterator[int]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)


def test_many_timers_of_few_active_jobs_are_not_gone_through_at_every_one_more() -> None:
    timers, active = Timers(), Active(1)
    for number in range(30_000):
        timers.sweep(active)
        timers.add(float(number), 0)
    assert len(timers) == 30_000
    assert active.asked < 3 * 30_000


def test_timers_of_ended_jobs_are_dropped_once_there_are_many() -> None:
    timers, active = Timers(), Active(1)
    for number in range(50_000):
        timers.sweep(active)
        timers.add(1e9, number)
    assert len(timers) <= 10_001
