"""Steps of the loop, without a clock: decide, commit, then act.

A step handles a batch of facts and commands, runs one scheduling cycle, or proves some requests. Its changes
are committed before any intent reaches the backend and before any command is answered. If the commit fails,
the state in memory is invalid: the caller starts over with `begin`, which takes over from the store and
obtains a new snapshot from the backend. The process may die at any point of a step; committed intents are
then applied again.

An unexpected exception in a step that is not committed is raised as a `Fault` with its subject.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, Protocol

from penstock import failpoints
from penstock.errors import Conflict, Unavailable
from penstock.instance.culprits import culprit_of
from penstock.instance.isolation import FaultIsolation
from penstock.protocol.backend import Backend
from penstock.protocol.commands import Command
from penstock.protocol.facts import Fact
from penstock.sched.records import Change, Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import Settings
from penstock.sched.subjects import Fault
from penstock.store.port import Store

__all__ = [
    "Advance",
    "ChangeListener",
    "CycleSteps",
    "HandleCall",
    "StepRunner",
    "advance_once",
    "run_inline",
]

_ACT_BEFORE: Final = failpoints.register("instance.act.before", "committed, not yet passed to the backend")
_ACT_AFTER: Final = failpoints.register("instance.act.after", "passed to the backend, nothing confirmed")


CycleSteps = Generator[None, None, Step]  # yields between matches or proofs
Advance = Callable[[CycleSteps], Awaitable[Step | None]]
HandleCall = Callable[[], Step]
RunHandle = Callable[[HandleCall], Awaitable[Step]]


def advance_once(cycle: CycleSteps) -> Step | None:
    """Runs a cycle up to its next yield. Returns None, or the step that the cycle ended with."""
    try:
        next(cycle)
    except StopIteration as done:
        step: Step = done.value
        return step
    return None


async def run_inline(call: HandleCall) -> Step:
    return call()


class ChangeListener(Protocol):
    def __call__(self, changes: Sequence[Change]) -> None:
        """Receives changes after their commit."""


class StepRunner:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        backend: Backend,
        listener: ChangeListener,
        isolation: FaultIsolation,
    ) -> None:
        self._settings = settings
        self._store = store
        self._backend = backend
        self._listener = listener
        self._isolation = isolation
        self.epoch = 0
        self.scheduler: Scheduler | None = None

    async def begin(self, now: float) -> int:
        """Takes over: claims a new epoch and restores the scheduler from the store."""
        self.scheduler = None
        self.epoch, recorded = await self._store.take_over(now)
        self.scheduler = self._restored(recorded, now)
        return self.epoch

    def _restored(self, recorded: Recorded, now: float) -> Scheduler:
        """Restores the scheduler; a job or intent that cannot be restored is quarantined."""
        while True:
            reasons = {row.new.id: self._isolation.reason_of(row) for row in recorded.jobs}
            set_aside = {number: reason for number, reason in reasons.items() if reason}
            intents = {one.id for one in recorded.intents if self._isolation.is_set_aside(one)}
            try:
                return scheduler_from(self._settings, recorded, now, set_aside, intents)
            except Fault as fault:
                self._isolation.isolate(fault, (), now)

    async def step(
        self, inputs: Sequence[Fact | Command], now: float, *, handle: RunHandle = run_inline
    ) -> Step:
        """Handles facts and commands, and commits. The caller answers the commands, then calls `act`."""
        scheduler = self._active_scheduler()
        step = await handle(lambda: scheduler.handle(inputs, now))
        await self._commit(inputs, step)
        return step

    async def decide(self, now: float, *, deep: bool, advance: Advance, hurry: Callable[[], bool]) -> Step:
        """Runs one scheduling cycle; `advance` runs it from one match to the next."""
        cycle = self._active_scheduler().plan(now, deep=deep, hurry=hurry)
        while (step := await advance(cycle)) is None:
            pass
        await self._commit((), step)
        await self.act(step)
        return step

    async def prove(self, now: float, enough: Callable[[], bool], *, advance: Advance) -> Step:
        """Proves requests until nothing is left or `enough` says so."""
        proofs = self._active_scheduler().prove(now, enough)
        while (step := await advance(proofs)) is None:
            pass
        await self._commit((), step)
        await self.act(step)
        return step

    def _active_scheduler(self) -> Scheduler:
        assert self.scheduler is not None, "begin must be called first"
        return self.scheduler

    async def _commit(self, inputs: Sequence[Fact | Command], step: Step) -> None:
        if not step.changes:
            return
        try:
            with self._isolation.metrics.transaction():
                await self._store.record(self.epoch, step.changes)
        except (Unavailable, Conflict):
            raise
        except Exception as error:
            scheduler = self._active_scheduler()
            subject = await culprit_of(self._store, self.epoch, scheduler, inputs, step)
            raise Fault(subject, error) from error
        self._isolation.metrics.committed(step.changes)
        self._listener(step.changes)

    async def act(self, step: Step) -> None:
        """Carries out a committed step."""
        if step.intents:
            failpoints.reach(_ACT_BEFORE)
            await self._backend.apply(self.epoch, step.intents)
            failpoints.reach(_ACT_AFTER)
        if step.probes:
            await self._backend.probe(step.probes)
        if step.forgotten:
            self._backend.forget(step.forgotten)
        if step.status_updates:
            self._backend.publish_status(step.status_updates)
