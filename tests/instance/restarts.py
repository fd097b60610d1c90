"""An instance that can crash at any failpoint and restarts: real steps and stores, a simulated backend.

`RestartingInstance` is the loop of an instance on a virtual clock. A failpoint can end the process within a
step. The next process starts with the recorded state and a snapshot of the backend, which has continued
meanwhile.
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

__all__ = ["RestartingInstance", "run_without_loop", "with_loop"]

T = TypeVar("T")


def run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never really waits, without an event loop."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("the coroutine waits for something")


class _BackendAdapter:
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
class RestartingInstance:
    backend: SimBackend
    settings: Settings
    open_store: Callable[[], Store]
    run: Callable[[Coroutine[Any, Any, Any]], Any] = run_without_loop
    crash_points: set[int] = field(default_factory=set)  # numbers of failpoints, counted over all starts
    failpoints_passed: int = 0
    starts: int = 0
    logs: dict[int, list[JobEvent]] = field(default_factory=dict)
    step_runner: StepRunner = field(init=False)
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def _record_events(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, JobLogged):
                self.logs.setdefault(change.id, []).append(change.event)

    def _pass_failpoint(self, _name: str) -> None:
        self.failpoints_passed += 1
        if self.failpoints_passed in self.crash_points:
            raise failpoints.Crash

    def _run_to_crash(self, action: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """The result of an action; None if the process crashed in it."""
        try:
            with failpoints.armed(self._pass_failpoint):
                result: T = self.run(action())
                return result
        except failpoints.Crash:
            return None

    def restart(self) -> None:
        """Starts the instance from its recorded state, again if it crashes while it starts."""
        while True:
            self.starts += 1
            self.store = self.open_store()
            self.step_runner = StepRunner(
                self.settings, self.store, _BackendAdapter(self.backend), self._record_events
            )
            if self._run_to_crash(lambda: self.step_runner.begin(self.backend.now)) is None:
                continue
            snapshot = self.backend.snapshot()
            if self._run_to_crash(lambda: self.step_runner.step([snapshot], self.backend.now)) is not None:  # noqa: B023
                return

    def feed(self, *inputs: Fact | Command) -> tuple[Reply, ...] | None:
        """Handles inputs; None if the instance crashed, and was restarted."""
        step = self._run_to_crash(lambda: self.step_runner.step(inputs, self.backend.now))
        if step is None:
            self.restart()
            return None
        return step.replies

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
        """Handles facts and runs cycles until nothing is left to do at the present time."""
        while True:
            facts = self.backend.advance(self.backend.now)
            scheduler = self.step_runner.scheduler
            assert scheduler is not None
            if facts:
                self.feed(*facts)
            elif scheduler.is_dirty:
                done = self._run_to_crash(self._decide)
                if done is None:
                    self.restart()
            else:
                return

    async def _decide(self) -> bool:
        async def advance(cycle: CycleSteps) -> Step | None:
            return advance_once(cycle)

        await self.step_runner.decide(self.backend.now, deep=False, advance=advance, hurry=lambda: True)
        return True

    def run_until(self, at: float) -> None:
        while True:
            self.settle()
            assert self.step_runner.scheduler is not None
            wakeups = (self.backend.next_at(), self.step_runner.scheduler.wake_at())
            soon = min((time for time in wakeups if time is not None), default=None)
            if soon is None or soon > at:
                break
            facts = self.backend.advance(max(soon, self.backend.now))
            self.feed(*facts)
        self.backend.advance(at)

    def rows(self) -> list[Any]:
        from penstock.store.port import JobFilter

        return list(self.run(self.store.jobs(JobFilter(limit=100_000))))

    def log(self, job: int) -> list[JobEvent]:
        return list(self.run(self.store.log(job)))

    def check_all_inactive(self, numbers: Sequence[int]) -> None:
        """No job is lost, none ran twice, all resources were freed once; the eventlogs lead to the states."""
        assert self.backend.violations == []
        assert self.step_runner.scheduler is not None
        state = self.step_runner.scheduler.state
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
