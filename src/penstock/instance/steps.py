"""The turns of the loop, without a clock: handle, commit, act; plan, commit, act.

Nothing is told or done before it is durable. If a commit fails, what is in memory is worth nothing: the
caller begins anew with `begin`, which takes over from the store and asks the world for a snapshot. Each
turn may be cut off at any point by the death of the process; what was committed is carried out again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Final, Protocol

from penstock import failpoints
from penstock.protocol.backend import Backend
from penstock.protocol.commands import Command
from penstock.protocol.facts import Fact
from penstock.sched.records import Change
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import Settings
from penstock.sched.state import Reply
from penstock.store.port import Store

__all__ = ["Advance", "Handling", "Passing", "StepRunner", "Watcher", "in_place", "next_of"]

_ACT_BEFORE: Final = failpoints.register("instance.act.before", "committed, not yet handed to the world")
_ACT_AFTER: Final = failpoints.register("instance.act.after", "handed to the world, nothing confirmed")


Passing = Generator[None, None, Step]
Advance = Callable[[Passing], Awaitable[Step | None]]
Handling = Callable[[], Step]
Handle = Callable[[Handling], Awaitable[Step]]


def next_of(passing: Passing) -> Step | None:
    """The pass up to its next match: nothing yet, or the step that it ends with."""
    try:
        next(passing)
    except StopIteration as done:
        step: Step = done.value
        return step
    return None


async def in_place(handling: Handling) -> Step:
    """Takes in what has come, here and now."""
    return handling()


class Watcher(Protocol):
    def __call__(self, changes: Sequence[Change]) -> None:
        """Sees changes once they are durable."""


class StepRunner:
    def __init__(self, settings: Settings, store: Store, backend: Backend, watcher: Watcher) -> None:
        self._settings = settings
        self._store = store
        self._backend = backend
        self._watcher = watcher
        self.epoch = 0
        self.scheduler: Scheduler | None = None

    async def begin(self, now: float) -> int:
        """Takes over: a new epoch, and a scheduler that knows what was recorded."""
        self.scheduler = None
        self.epoch, recorded = await self._store.take_over(now)
        self.scheduler = scheduler_from(self._settings, recorded, now)
        return self.epoch

    async def step(
        self, inputs: Sequence[Fact | Command], now: float, *, handle: Handle = in_place
    ) -> tuple[Reply, ...]:
        """Takes facts and wishes in; returns the answers to the wishes, which are durable by then."""
        scheduler = self._ready()
        step = await handle(lambda: scheduler.handle(inputs, now))
        await self._carry_out(step)
        return step.replies

    async def decide(self, now: float, *, deep: bool, advance: Advance, hurry: Callable[[], bool]) -> None:
        """One pass; `advance` takes it from one match to the next."""
        passing = self._ready().plan(now, deep=deep, hurry=hurry)
        while (step := await advance(passing)) is None:
            pass
        await self._carry_out(step)

    def _ready(self) -> Scheduler:
        assert self.scheduler is not None, "begin comes first"
        return self.scheduler

    async def _carry_out(self, step: Step) -> None:
        if step.changes:
            await self._store.record(self.epoch, step.changes)
            self._watcher(step.changes)
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
