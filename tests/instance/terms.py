"""An instance that can die at any failpoint and restarts: real steps and stores, a simulated backend.

`Lives` is the loop of an instance on a virtual clock. A failpoint can end the process within a step.
The next one starts with the recorded state and a snapshot of the backend, which has gone on meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from penstock import failpoints
from penstock.backends.sim.backend import SimBackend
from penstock.instance.steps import CycleSteps, StepRunner, advance_once
from penstock.model.job import JobEvent, state_after
from penstock.protocol.backend import Sink
from penstock.protocol.commands import Command, Submission, Submit
from penstock.protocol.facts import Fact
from penstock.protocol.intents import Intent, StatusUpdate
from penstock.sched.records import Change, JobLogged
from penstock.sched.scheduler import Step
from penstock.sched.settings import Settings
from penstock.sched.state import Reply
from penstock.store.port import Store

__all__ = ["Lives", "run_plain"]

T = TypeVar("T")


def run_plain(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never really waits, without an event loop."""
    try:
        work.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("it waits for something")


class _Port:
    """The simulated backend behind the `Backend` protocol."""

    def __init__(self, backend: SimBackend) -> None:
        self._backend = backend

    async def run(self, epoch: int, sink: Sink) -> None:
        del epoch
        sink(self._backend.snapshot())

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        self._backend.apply(epoch, intents)

    async def probe(self, members: Sequence[str]) -> None:
        self._backend.probe(members)

    def forget(self, members: Sequence[str]) -> None:
        self._backend.forget(members)

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        pass


@dataclass
class Lives:
    backend: SimBackend
    settings: Settings
    store: Callable[[], Store]
    run: Callable[[Coroutine[Any, Any, Any]], Any] = run_plain
    deaths: set[int] = field(default_factory=set)  # at which failpoints, counted over all lives
    passed: int = 0
    lives: int = 0
    logs: dict[int, list[JobEvent]] = field(default_factory=dict)
    turns: StepRunner = field(init=False)
    now_used: Store = field(init=False)

    def __post_init__(self) -> None:
        self.begin()

    def _see(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, JobLogged):
                self.logs.setdefault(change.id, []).append(change.event)

    def _die_here(self, _name: str) -> None:
        self.passed += 1
        if self.passed in self.deaths:
            raise failpoints.Crash

    def _guarded(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Does something; None if it was the last thing of this life."""
        try:
            with failpoints.armed(self._die_here):
                result: T = self.run(work())
                return result
        except failpoints.Crash:
            return None

    def begin(self) -> None:
        """Starts the instance, again if it dies at once."""
        while True:
            self.lives += 1
            self.now_used = self.store()
            self.turns = StepRunner(self.settings, self.now_used, _Port(self.backend), self._see)
            if self._guarded(lambda: self.turns.begin(self.backend.now)) is None:
                continue
            snapshot = self.backend.snapshot()
            if self._guarded(lambda: self.turns.step([snapshot], self.backend.now)) is not None:  # noqa: B023
                return

    def feed(self, *inputs: Fact | Command) -> tuple[Reply, ...] | None:
        """Handles inputs; None if the instance died."""
        replies = self._guarded(lambda: self.turns.step(inputs, self.backend.now))
        if replies is None:
            self.begin()
        return replies

    def submit(self, *submissions: Submission, key: str) -> tuple[int, ...]:
        """Repeats the same request until it is answered, as a client does."""
        while True:
            replies = self.feed(Submit(submissions, key))
            if replies is not None:
                if replies[0].error is not None:
                    raise replies[0].error
                numbers = replies[0].value
                assert isinstance(numbers, tuple)
                return numbers

    def settle(self) -> None:
        while True:
            facts = self.backend.advance(self.backend.now)
            scheduler = self.turns.scheduler
            assert scheduler is not None
            if facts:
                self.feed(*facts)
            elif scheduler.is_dirty:
                done = self._guarded(self._decide)
                if done is None:
                    self.begin()
            else:
                return

    async def _decide(self) -> bool:
        async def advance(cycle: CycleSteps) -> Step | None:
            return advance_once(cycle)

        await self.turns.decide(self.backend.now, deep=False, advance=advance, hurry=lambda: True)
        return True

    def run_until(self, at: float) -> None:
        while True:
            self.settle()
            assert self.turns.scheduler is not None
            times = [
                time for time in (self.backend.next_at(), self.turns.scheduler.wake_at()) if time is not None
            ]
            soon = min(times, default=None)
            if soon is None or soon > at:
                break
            facts = self.backend.advance(max(soon, self.backend.now))
            self.feed(*facts)
        self.backend.advance(at)

    def rows(self) -> list[Any]:
        from penstock.store.port import JobFilter

        return list(self.run(self.now_used.jobs(JobFilter(limit=100_000))))

    def log(self, job: int) -> list[JobEvent]:
        return list(self.run(self.now_used.log(job)))

    def check_over(self, numbers: Sequence[int]) -> None:
        """Nothing lost, nothing twice, everything freed once; the logs lead to the states."""
        assert self.backend.violations == []
        assert self.turns.scheduler is not None
        state = self.turns.scheduler.state
        assert not state.jobs, {job.id: (job.state, job.members) for job in state.jobs.values()}
        assert not state.cluster.engine.jobs
        assert not state.intents
        rows = {row.new.id: row for row in self.rows()}
        assert set(numbers) <= rows.keys()
        for number, row in rows.items():
            log = self.log(number)
            assert state_after(log) is row.live.state
            assert row.live.state.value == "INACTIVE"
            assert row.live.result
            names = [event.name for event in log]
            assert names.count("alloc") == names.count("free")
            assert names.count("clean") == 1


def with_loop() -> Callable[[Coroutine[Any, Any, Any]], Any]:
    """Runs coroutines on one event loop, for stores that really wait."""
    loop = asyncio.new_event_loop()
    return loop.run_until_complete
