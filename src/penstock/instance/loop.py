"""The loop of an instance: one task that owns the scheduler.

Facts, commands and queries arrive in one inbox and are handled in batches. A query runs between two steps,
so it sees committed state only. After each step a shallow cycle runs if something may start; a deep cycle,
which also computes forecasts, runs when the inbox is empty and takes a bounded share of the time.

A *term* lasts from taking over until the store becomes unavailable. At its end all waiting callers get
`Unavailable`; the loop then waits for the store, takes over again and continues from the recorded state.
`Fenced` ends the instance, because another instance has taken over. An empty transaction every few seconds
serves as a heartbeat that detects a lost or fenced store while nothing else is written.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from penstock.errors import Unavailable
from penstock.instance.feed import Feed
from penstock.instance.steps import Advance, CycleSteps, HandleCall, StepRunner, advance_once, run_inline
from penstock.protocol.backend import Backend
from penstock.protocol.commands import Command
from penstock.protocol.facts import Fact, Snapshot
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import Settings
from penstock.store.port import Retention, Store

__all__ = ["Instance", "NotReady", "NotReadyCause"]

T = TypeVar("T")

_BATCH_MAX: Final = 5_000
_PAUSE_EVERY_S: Final = 0.02
_SLOW_S: Final = 0.01
_DEEP_SHARE: Final = 5  # deep cycles take at most one fifth of the time
_DEEP_EVERY_S: Final = 0.5
_REFRESH_S: Final = 30.0  # forecasts age even if nothing changes
_PRUNE_EVERY_S: Final = 600.0
_HEARTBEAT_EVERY_S: Final = 2.0
_INBOX_MAX: Final = 200_000


class NotReadyCause(enum.Enum):
    STARTING = "starting"
    STANDBY = "standing by"  # another instance is the leader
    TAKING_OVER = "taking over"  # leader, and the first snapshot of this term is not complete
    UNAVAILABLE = ""  # the message says what is unavailable


@dataclass(frozen=True, slots=True)
class NotReady:
    """Why an instance does not accept commands and queries."""

    cause: NotReadyCause
    message: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.cause.value, self.message)))


@dataclass(frozen=True, slots=True)
class _PendingCommand:
    command: Command
    answer: asyncio.Future[object]


@dataclass(frozen=True, slots=True)
class _PendingQuery:
    query: Callable[[Scheduler, float], object]
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
        self.is_ready = asyncio.Event()  # the first snapshot of this term has been handled
        self.not_ready = NotReady(NotReadyCause.STARTING)  # the reason, while `is_ready` is not set
        self.is_shutting_down = False  # running jobs are being ended, and no other job may start
        self._retention = retention
        self._clock = clock
        self._steps = StepRunner(settings, store, backend, self.feed.publish)
        self._inbox: deque[Fact | _PendingCommand | _PendingQuery] = deque()
        self._wakeup = asyncio.Event()
        self._deep_due = 0.0
        self._deep_wanted = True
        self._pruned_at = 0.0
        self._is_slow = True  # the last match took long; assumed until the first one is measured
        self._heartbeat_due = 0.0  # monotonic clock
        self._reload_reason = ""  # not empty: the state in memory must be dropped

    @property
    def epoch(self) -> int:
        return self._steps.epoch

    # Interface

    async def execute(self, command: Command) -> object:
        """Executes a command. Returns after the commit, or raises the error that refused it."""
        return await self._enqueue(_PendingCommand(command, asyncio.get_running_loop().create_future()))

    async def query(self, query: Callable[[Scheduler, float], T]) -> T:
        """Calls `query` with the scheduler and the time, between two steps."""
        return cast(T, await self._enqueue(_PendingQuery(query, asyncio.get_running_loop().create_future())))

    async def _enqueue(self, item: _PendingCommand | _PendingQuery) -> object:
        if not self.is_ready.is_set():
            raise Unavailable(f"the instance is not ready: {self.not_ready}")
        if len(self._inbox) > _INBOX_MAX:
            raise Unavailable(f"the instance is overloaded: {len(self._inbox)} inputs wait; try again later")
        self._inbox.append(item)
        self._wakeup.set()
        return await item.answer

    def receive(self, fact: Fact) -> None:
        """Enqueues a fact. This is the sink of the backend."""
        self._inbox.append(fact)
        self._wakeup.set()

    def reload(self, reason: str) -> None:
        """Drops the state in memory; the next term starts from the recorded state."""
        self._reload_reason = reason
        self._wakeup.set()

    # The loop

    async def run(self) -> None:
        """Runs until it is cancelled or fenced by a newer instance."""
        try:
            while True:
                try:
                    await self._run_term()
                except Unavailable as error:
                    self._fail_waiters(str(error))
        finally:
            self._fail_waiters("the instance is stopping")
            self.feed.close()

    def _fail_waiters(self, reason: str) -> None:
        """Ends a term: every caller in the inbox gets `Unavailable`."""
        self.is_ready.clear()
        self.not_ready = NotReady(NotReadyCause.UNAVAILABLE, reason)
        for item in self._inbox:
            if isinstance(item, _PendingCommand | _PendingQuery) and not item.answer.done():
                item.answer.set_exception(Unavailable(reason))
        self._inbox.clear()

    async def _run_term(self) -> None:
        """One term: from taking over until the store becomes unavailable."""
        await self.store.open()
        epoch = await self._steps.begin(self._clock())
        self.feed.begin(epoch)
        backend = asyncio.create_task(self.backend.run(epoch, self.receive))
        try:
            while True:
                await self._wait(backend)
                await self._run_step()
        finally:
            backend.cancel()
            await asyncio.gather(backend, return_exceptions=True)

    async def _wait(self, backend: asyncio.Task[None]) -> None:
        """Waits for an input, for the next timer, or for the end of the backend."""
        if backend.done():
            backend.result()
            raise Unavailable("the backend has ended")
        if self._reload_reason:
            reason, self._reload_reason = self._reload_reason, ""
            raise Unavailable(reason)
        scheduler = self._scheduler()
        is_due = scheduler.is_dirty and self.is_ready.is_set() and not self.is_shutting_down
        if self._inbox or is_due:
            await asyncio.sleep(0)
            return
        now = self._clock()
        times = [now + _REFRESH_S, now + self._heartbeat_due - time.monotonic()]
        wake_at = scheduler.wake_at()
        if wake_at is not None:
            times.append(wake_at)
        if self._deep_wanted and len(scheduler.state.queue):
            times.append(self._deep_due)
        self._wakeup.clear()
        wakeup = asyncio.ensure_future(self._wakeup.wait())
        try:
            await asyncio.wait(
                {wakeup, backend}, timeout=max(min(times) - now, 0.0), return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            wakeup.cancel()

    async def _run_step(self) -> None:
        inputs: list[Fact | Command] = []
        commands: list[_PendingCommand] = []
        queries: list[_PendingQuery] = []
        while self._inbox and len(inputs) < _BATCH_MAX:
            item = self._inbox.popleft()
            if isinstance(item, _PendingQuery):
                queries.append(item)
            elif isinstance(item, _PendingCommand):
                commands.append(item)
                inputs.append(item.command)
            else:
                inputs.append(item)
        try:
            has_snapshot = any(isinstance(fact, Snapshot) for fact in inputs)
            handle = _run_in_thread if has_snapshot else run_inline
            replies = await self._steps.step(inputs, self._clock(), handle=handle)
            for pending, reply in zip(commands, replies, strict=True):
                if pending.answer.done():
                    continue
                if reply.error is not None:
                    pending.answer.set_exception(reply.error)
                else:
                    pending.answer.set_result(reply.value)
        except BaseException as error:
            is_known = isinstance(error, Unavailable)
            failure = error if is_known else Unavailable(f"the outcome is unknown: {error}")
            for answer in (*(one.answer for one in commands), *(one.answer for one in queries)):
                if not answer.done():
                    answer.set_exception(failure)
            raise
        self._answer(queries)
        scheduler = self._scheduler()
        if scheduler.state.cluster.is_synced and not self.is_ready.is_set():
            self.is_ready.set()
        if scheduler.state.cluster.is_synced and not self.is_shutting_down:
            await self._run_cycle(scheduler)
        await self._prune()
        await self._heartbeat()

    def _answer(self, queries: list[_PendingQuery]) -> None:
        for pending in queries:
            if pending.answer.done():
                continue
            try:
                pending.answer.set_result(pending.query(self._scheduler(), self._clock()))
            except Exception as error:
                pending.answer.set_exception(error)

    async def _run_cycle(self, scheduler: Scheduler) -> None:
        if scheduler.is_dirty:
            self._deep_wanted = True
            await self._steps.decide(self._clock(), deep=False, advance=self._advance(), hurry=lambda: True)
            return
        now = self._clock()
        is_old = now >= self._deep_due + _REFRESH_S
        if self._inbox or not len(scheduler.state.queue) or not (self._deep_wanted or is_old):
            return
        if now < self._deep_due:
            return
        began = time.monotonic()
        await self._steps.decide(now, deep=True, advance=self._advance(), hurry=lambda: bool(self._inbox))
        self._deep_wanted = bool(self._inbox)
        took_s = time.monotonic() - began
        self._deep_due = self._clock() + max(_DEEP_EVERY_S, took_s * (_DEEP_SHARE - 1))

    def _advance(self) -> Advance:
        """Returns a function that runs a cycle up to its next match and lets other tasks run in between.

        After a slow match the next one runs in a thread. That does not make it faster, but other tasks of
        the event loop get time meanwhile. Fast matches run inline, which costs less, with
        a pause now and then.
        """
        last = time.monotonic()

        async def advance(cycle: CycleSteps) -> Step | None:
            nonlocal last
            began = time.monotonic()
            if self._is_slow:
                step = await asyncio.to_thread(advance_once, cycle)
            else:
                step = advance_once(cycle)
            now = time.monotonic()
            self._is_slow = now - began > _SLOW_S
            if now - last >= _PAUSE_EVERY_S:
                await asyncio.sleep(0)
                last = time.monotonic()
            return step

        return advance

    async def _prune(self) -> None:
        now = self._clock()
        if now - self._pruned_at >= _PRUNE_EVERY_S:
            self._pruned_at = now
            await self.store.prune(self.epoch, now, self._retention)

    async def _heartbeat(self) -> None:
        """Commits an empty transaction, which fails if the store is lost or another instance took over."""
        if time.monotonic() >= self._heartbeat_due:
            await self.store.record(self.epoch, ())
            self._heartbeat_due = time.monotonic() + _HEARTBEAT_EVERY_S

    def _scheduler(self) -> Scheduler:
        assert self._steps.scheduler is not None
        return self._steps.scheduler


async def _run_in_thread(call: HandleCall) -> Step:
    """The snapshot of a large cluster takes seconds to handle; the lease is renewed meanwhile."""
    return await asyncio.to_thread(call)
