"""The loop of an instance: what comes in is taken at our own pace, in batches, and decided in passes.

One task owns the scheduler. Facts, wishes and questions come through one inbox; a question is answered
between turns, when all that it can see is durable. A shallow pass follows whatever may let something start;
a deep one (with forecasts) comes when nothing else is to be done, and takes a bounded share of the time.

A store that is away ends the present life: what waits is refused, the loop waits for the store, takes over
again, and goes on from what was recorded. `Fenced` ends the instance: somebody else has taken over. Both are
also noticed when there is nothing to write: every few seconds nothing at all is recorded.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from penstock.errors import Unavailable
from penstock.instance.feed import Feed
from penstock.instance.steps import Advance, Handling, Passing, StepRunner, in_place, next_of
from penstock.protocol.backend import Backend
from penstock.protocol.commands import Command
from penstock.protocol.facts import Fact, Snapshot
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import Settings
from penstock.store.port import Retention, Store

__all__ = ["Instance"]

T = TypeVar("T")

_BATCH_MAX: Final = 5_000
_PAUSE_EVERY_S: Final = 0.02
_SLOW_S: Final = 0.01
_DEEP_SHARE: Final = 5  # a deep pass may take one part in so many of the time
_DEEP_EVERY_S: Final = 0.5
_REFRESH_S: Final = 30.0  # forecasts grow old while nothing happens
_PRUNE_EVERY_S: Final = 600.0
_BEAT_EVERY_S: Final = 2.0
_INBOX_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class _Asked:
    """A wish with somebody who waits for the answer."""

    command: Command
    answer: asyncio.Future[object]


@dataclass(frozen=True, slots=True)
class _Question:
    about: Callable[[Scheduler, float], object]
    answer: asyncio.Future[object]


class Instance:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        backend: Backend,
        *,
        retention: Retention = Retention(),  # noqa: B008
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.store = store
        self.backend = backend
        self.feed = Feed()
        self.is_ready = asyncio.Event()  # the first snapshot of this life has been taken in
        self.why_not_ready = "starting"
        self.is_winding_down = False  # what runs is being ended: nobody may start in its place
        self._retention = retention
        self._clock = clock
        self._steps = StepRunner(settings, store, backend, self.feed.publish)
        self._inbox: deque[Fact | _Asked | _Question] = deque()
        self._wakeup = asyncio.Event()
        self._deep_due = 0.0
        self._deep_wanted = True
        self._pruned_at = 0.0
        self._is_slow = True  # as far as is known, a match takes long
        self._beat_due = 0.0  # by the monotonic clock
        self._doubt = ""  # why the state in memory is to be made anew

    @property
    def epoch(self) -> int:
        return self._steps.epoch

    # From outside

    async def command(self, command: Command) -> object:
        """Has a wish fulfilled; returns when that is durable, or raises why not."""
        return await self._put(_Asked(command, asyncio.get_running_loop().create_future()))

    async def query(self, about: Callable[[Scheduler, float], T]) -> T:
        """Asks something of the scheduler, between turns."""
        return cast(T, await self._put(_Question(about, asyncio.get_running_loop().create_future())))

    async def _put(self, item: _Asked | _Question) -> object:
        if not self.is_ready.is_set():
            raise Unavailable(f"the instance is not ready: {self.why_not_ready}")
        if len(self._inbox) > _INBOX_MAX:
            raise Unavailable("too much is waiting to be done; try again later")
        self._inbox.append(item)
        self._wakeup.set()
        return await item.answer

    def take(self, fact: Fact) -> None:
        """Takes a fact in, as from the world."""
        self._inbox.append(fact)
        self._wakeup.set()

    def reload(self, why: str) -> None:
        """Drops the state in memory; the next life begins with what was recorded."""
        self._doubt = why
        self._wakeup.set()

    # The loop

    async def run(self) -> None:
        """Runs until it is cancelled, or fenced off by a newer instance."""
        try:
            while True:
                try:
                    await self._run_term()
                except Unavailable as error:
                    self._fail_waiters(str(error))
        finally:
            self._fail_waiters("the instance is stopping")
            self.feed.close()

    def _fail_waiters(self, why: str) -> None:
        """Ends a life: nobody may wait for an answer that never comes."""
        self.is_ready.clear()
        self.why_not_ready = why
        for item in self._inbox:
            if isinstance(item, _Asked | _Question) and not item.answer.done():
                item.answer.set_exception(Unavailable(why))
        self._inbox.clear()

    async def _run_term(self) -> None:
        """One life: from taking over until the store goes away."""
        await self.store.open()
        epoch = await self._steps.begin(self._clock())
        self.feed.begin(epoch)
        backend = asyncio.create_task(self.backend.run(epoch, self.take))
        try:
            while True:
                await self._wait(backend)
                await self._run_step()
        finally:
            backend.cancel()
            await asyncio.gather(backend, return_exceptions=True)

    async def _wait(self, backend: asyncio.Task[None]) -> None:
        """Until something has come in, a time has come, or the world has failed."""
        if backend.done():
            backend.result()
            raise Unavailable("the world has ended")
        if self._doubt:
            why, self._doubt = self._doubt, ""
            raise Unavailable(why)
        scheduler = self._scheduler()
        is_due = scheduler.is_dirty and self.is_ready.is_set() and not self.is_winding_down
        if self._inbox or is_due:
            await asyncio.sleep(0)
            return
        now = self._clock()
        times = [now + _REFRESH_S, now + self._beat_due - time.monotonic()]
        wake_at = scheduler.wake_at()
        if wake_at is not None:
            times.append(wake_at)
        if self._deep_wanted and len(scheduler.state.pending):
            times.append(self._deep_due)
        self._wakeup.clear()
        ring = asyncio.ensure_future(self._wakeup.wait())
        try:
            await asyncio.wait(
                {ring, backend}, timeout=max(min(times) - now, 0.0), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            ring.cancel()

    async def _run_step(self) -> None:
        inputs: list[Fact | Command] = []
        asked: list[_Asked] = []
        questions: list[_Question] = []
        while self._inbox and len(inputs) < _BATCH_MAX:
            item = self._inbox.popleft()
            if isinstance(item, _Question):
                questions.append(item)
            elif isinstance(item, _Asked):
                asked.append(item)
                inputs.append(item.command)
            else:
                inputs.append(item)
        try:
            has_much = any(isinstance(one, Snapshot) for one in inputs)
            replies = await self._steps.step(
                inputs, self._clock(), handle=_in_thread if has_much else in_place
            )
            for one, reply in zip(asked, replies, strict=True):
                if one.answer.done():
                    continue
                if reply.error is not None:
                    one.answer.set_exception(reply.error)
                else:
                    one.answer.set_result(reply.value)
        except BaseException as error:
            why = error if isinstance(error, Unavailable) else Unavailable(f"the outcome is unknown: {error}")
            for answer in (*(one.answer for one in asked), *(one.answer for one in questions)):
                if not answer.done():
                    answer.set_exception(why)
            raise
        self._answer(questions)
        scheduler = self._scheduler()
        if scheduler.state.cluster.is_complete and not self.is_ready.is_set():
            self.is_ready.set()
        if scheduler.state.cluster.is_complete and not self.is_winding_down:
            await self._run_cycle(scheduler)
        await self._prune()
        await self._beat()

    def _answer(self, questions: list[_Question]) -> None:
        for question in questions:
            if question.answer.done():
                continue
            try:
                question.answer.set_result(question.about(self._scheduler(), self._clock()))
            except Exception as error:
                question.answer.set_exception(error)

    async def _run_cycle(self, scheduler: Scheduler) -> None:
        if scheduler.is_dirty:
            self._deep_wanted = True
            await self._steps.decide(self._clock(), deep=False, advance=self._advance(), hurry=lambda: True)
            return
        now = self._clock()
        is_old = now >= self._deep_due + _REFRESH_S
        if self._inbox or not len(scheduler.state.pending) or not (self._deep_wanted or is_old):
            return
        if now < self._deep_due:
            return
        began = time.monotonic()
        await self._steps.decide(now, deep=True, advance=self._advance(), hurry=lambda: bool(self._inbox))
        self._deep_wanted = bool(self._inbox)
        took_s = time.monotonic() - began
        self._deep_due = self._clock() + max(_DEEP_EVERY_S, took_s * (_DEEP_SHARE - 1))

    def _advance(self) -> Advance:
        """Takes a pass on, and lets others go on meanwhile.

        A match that takes long is made in a thread: it does not come back sooner, but what else runs here
        gets its turns. Quick ones are made in place, which costs less, with a pause now and then.
        """
        last = time.monotonic()

        async def advance(passing: Passing) -> Step | None:
            nonlocal last
            began = time.monotonic()
            if self._is_slow:
                found = await asyncio.to_thread(next_of, passing)
            else:
                found = next_of(passing)
            now = time.monotonic()
            self._is_slow = now - began > _SLOW_S
            if now - last >= _PAUSE_EVERY_S:
                await asyncio.sleep(0)
                last = time.monotonic()
            return found

        return advance

    async def _prune(self) -> None:
        now = self._clock()
        if now - self._pruned_at >= _PRUNE_EVERY_S:
            self._pruned_at = now
            await self.store.prune(self.epoch, now, self._retention)

    async def _beat(self) -> None:
        """Finds out that the store is away, or that somebody else has taken over, though nothing happens."""
        if time.monotonic() >= self._beat_due:
            await self.store.record(self.epoch, ())
            self._beat_due = time.monotonic() + _BEAT_EVERY_S

    def _scheduler(self) -> Scheduler:
        assert self._steps.scheduler is not None
        return self._steps.scheduler


async def _in_thread(handling: Handling) -> Step:
    """A snapshot of a large cluster takes seconds: what keeps us in office gets its turns meanwhile."""
    return await asyncio.to_thread(handling)
