"""An instance that can crash at any failpoint and restarts: real steps and stores, a simulated backend.

`RestartingInstance` runs the loop of an instance on a virtual clock. A failpoint can end the process within a
step. The next process starts with the recorded state and a snapshot of the backend, which has continued
meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from penstock import failpoints
from penstock.backends.sim.backend import SimBackend
from penstock.instance.virtual import VIRTUAL_CADENCE, VirtualInstance, run_without_loop
from penstock.model.job import JobEvent, state_after
from penstock.protocol.commands import Command, Submission, Submit
from penstock.protocol.facts import Fact
from penstock.sched.records import Change, JobLogged
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import Settings
from penstock.sched.state import Reply
from penstock.store.port import Store
from tests.sched.internals import check_invariants

__all__ = ["RestartingInstance", "with_loop"]

T = TypeVar("T")


class _Crashed:
    """The process crashed in an action."""


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
    instance: VirtualInstance = field(init=False)
    store: Store = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    @property
    def scheduler(self) -> Scheduler:
        return self.instance.scheduler

    def _record_events(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if isinstance(change, JobLogged):
                self.logs.setdefault(change.id, []).append(change.event)

    def _pass_failpoint(self, _name: str) -> None:
        self.failpoints_passed += 1
        if self.failpoints_passed in self.crash_points:
            raise failpoints.Crash

    def _run_to_crash(self, action: Callable[[], T]) -> T | _Crashed:
        try:
            with failpoints.armed(self._pass_failpoint):
                return action()
        except failpoints.Crash:
            return _Crashed()

    def restart(self) -> None:
        """Starts the instance from its recorded state, again if it crashes while it starts."""
        while True:
            self.starts += 1
            self.store = self.open_store()
            self.instance = VirtualInstance(
                self.settings,
                self.store,
                self.backend,
                cadence=replace(VIRTUAL_CADENCE, deep_every_s=None),
                listener=self._record_events,
                after_step=check_invariants,
                run=self.run,
            )
            if not isinstance(self._run_to_crash(self.instance.begin), _Crashed):
                return

    def feed(self, *inputs: Fact | Command) -> tuple[Reply, ...] | None:
        """Handles inputs; None if the instance crashed, and was restarted."""
        step = self._run_to_crash(lambda: self.instance.feed(*inputs))
        if isinstance(step, _Crashed):
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
        while isinstance(self._run_to_crash(self.instance.settle), _Crashed):
            self.restart()

    def run_until(self, at: float) -> None:
        while isinstance(self._run_to_crash(lambda: self.instance.run_until(at)), _Crashed):
            self.restart()

    def rows(self) -> list[Any]:
        from penstock.store.port import JobFilter

        return list(self.run(self.store.jobs(JobFilter(limit=100_000))))

    def log(self, job: int) -> list[JobEvent]:
        return list(self.run(self.store.log(job)))

    def check_all_inactive(self, numbers: Sequence[int]) -> None:
        """No job is lost, none ran twice, all resources were freed once; the eventlogs lead to the states."""
        assert self.backend.violations == []
        scheduler = self.scheduler
        assert not scheduler.jobs, {job.id: (job.state, job.members) for job in scheduler.jobs.values()}
        assert not scheduler.allocated_jobs()
        assert not scheduler.open_intents()
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
