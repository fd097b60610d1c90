"""The loop of an instance on the real clock: one task that owns the scheduler.

Facts, commands and queries arrive in one inbox. `cadence` decides what to do next, `actions` does it, and
this module waits: for inputs, for the time of the next action, for the store and for the backend.

A *term* lasts from taking over until the store or the backend becomes unavailable. At its end all waiting
callers get `Unavailable`; the loop then pauses (`backoff`), waits for the store, takes over again and
continues from the recorded state. An unexpected exception ends the term as well (`isolation`). `Fenced` ends
the instance, because another instance has taken over. An empty transaction every few seconds serves as a
heartbeat that detects a lost or fenced store while nothing else is written.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from typing import Final, TypeVar, cast

from penstock.errors import Conflict, Unavailable
from penstock.instance.actions import ActionRunner, SystemClock
from penstock.instance.backoff import Backoff
from penstock.instance.cadence import Cadence, Pause
from penstock.instance.feed import Feed
from penstock.instance.inbox import Inbox, PendingCommand, PendingQuery
from penstock.instance.isolation import FaultIsolation, TermAborted
from penstock.instance.progress import LoopProgress
from penstock.instance.readiness import ReadinessMonitor
from penstock.instance.steps import StepRunner
from penstock.protocol.backend import Backend
from penstock.protocol.commands import Command
from penstock.protocol.facts import Fact
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import Settings
from penstock.store.port import Retention, Store

__all__ = ["Instance"]

T = TypeVar("T")

_LOG: Final = logging.getLogger("penstock.instance")


class Instance:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        backend: Backend,
        *,
        retention: Retention = Retention(),  # noqa: B008
        clock: Callable[[], float] = time.time,
        on_pruned: Callable[[tuple[int, ...]], None] = lambda _jobs: None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.backend = backend
        self.feed = Feed()
        self.readiness = ReadinessMonitor()
        self.progress = LoopProgress()
        self._clock = SystemClock(clock)
        self._inbox = Inbox()
        self.isolation = FaultIsolation()
        self._steps = StepRunner(settings, store, backend, self.feed.publish, self.isolation)
        self._actions = ActionRunner(
            self._steps,
            store,
            self._inbox,
            self.readiness,
            Cadence(),
            self._clock,
            retention,
            self.isolation,
            self.progress,
            on_pruned,
        )
        self._wakeup = asyncio.Event()
        self._reload_reason = ""  # not empty: the state in memory must be dropped
        self._backoff = Backoff()
        self._term_began_at: float | None = None  # by the steady clock; None: it has not taken over yet

    @property
    def epoch(self) -> int:
        return self._steps.epoch

    def metrics(self) -> bytes:
        """Metrics in the Prometheus text format."""
        return self.isolation.metrics.render()

    # Interface

    async def execute(self, command: Command) -> object:
        """Executes a command. Returns after the commit, or raises the error that refused it."""
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._put(PendingCommand(command, answer))
        return await answer

    async def query(self, query: Callable[[Scheduler, float], T]) -> T:
        """Calls `query` with the scheduler and the time, between two steps."""
        answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self._put(PendingQuery(query, answer))
        return cast(T, await answer)

    def _put(self, item: PendingCommand | PendingQuery) -> None:
        readiness = self.readiness.current
        if not readiness.is_ready:
            raise Unavailable(f"the instance is not ready: {readiness}")
        self._inbox.put_pending(item)
        self._wakeup.set()

    def receive(self, fact: Fact) -> None:
        """Enqueues a fact. This is the sink of the backend."""
        self._inbox.put(fact)
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
                    await self._open_store()
                except Unavailable as error:
                    await self._pause_after_term(str(error))
                    continue
                try:
                    await self._run_term()
                except TermAborted as error:
                    self._inbox.hold(())
                    await self._pause_after_term(str(error))
                except Unavailable as error:
                    self._inbox.fail(str(error))
                    await self._pause_after_term(str(error))
                except Conflict:
                    raise  # Another instance has taken over.
                except Exception as error:
                    _LOG.exception("unexpected error")
                    reason = f"internal error: {type(error).__name__}: {error}"
                    self._inbox.fail(reason)
                    await self._pause_after_term(reason)
        finally:
            self.readiness.term_ended("the instance is stopping")
            self._inbox.fail("the instance is stopping")
            self.feed.close()

    async def _pause_after_term(self, reason: str) -> None:
        began_at, self._term_began_at = self._term_began_at, None
        lasted_s = 0.0 if began_at is None else self._clock.steady() - began_at
        self._backoff = self._backoff.after_term(lasted_s)
        pause_s = self._backoff.pause_s(random.random())
        _LOG.warning(
            "term of epoch %d ended after %.1f s: %s; the next one begins in %.1f s",
            self.epoch,
            lasted_s,
            reason,
            pause_s,
        )
        self.readiness.term_ended(f"{reason}; trying again in {pause_s:.1f} s" if pause_s >= 1.0 else reason)
        self.progress.mark()
        await asyncio.sleep(pause_s)

    async def _run_term(self) -> None:
        """One term: from taking over until the store or the backend becomes unavailable."""
        epoch = await self._steps.begin(self._clock.now())
        self._term_began_at = self._clock.steady()
        _LOG.info("term of epoch %d began", epoch)
        self.feed.begin(epoch)
        backend = asyncio.create_task(self.backend.run(epoch, self.receive))
        try:
            while True:
                self.progress.mark()
                self._check_term(backend)
                action = self._actions.next_action()
                if isinstance(action, Pause):
                    await self._pause(action.until, backend)
                else:
                    await self._actions.carry_out(action)
                    await asyncio.sleep(0)
        finally:
            backend.cancel()
            await asyncio.gather(backend, return_exceptions=True)

    async def _open_store(self) -> None:
        """Waits for the store. It is tried again and again, so a loop that waits for it is not stuck."""
        opening = asyncio.ensure_future(self.store.open())
        try:
            while not opening.done():
                self.progress.mark()
                await asyncio.wait({opening}, timeout=1.0)
            opening.result()
        finally:
            opening.cancel()

    def _check_term(self, backend: asyncio.Task[None]) -> None:
        """Raises `Unavailable` if this term cannot continue."""
        if backend.done():
            backend.result()
            raise Unavailable("the backend has ended")
        if self._reload_reason:
            reason, self._reload_reason = self._reload_reason, ""
            raise Unavailable(reason)

    async def _pause(self, until: float | None, backend: asyncio.Task[None]) -> None:
        """Waits for an input, for a time of the steady clock, or for the end of the backend."""
        self._wakeup.clear()
        wakeup = asyncio.ensure_future(self._wakeup.wait())
        timeout_s = None if until is None else max(until - self._clock.steady(), 0.0)
        try:
            await asyncio.wait({wakeup, backend}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            wakeup.cancel()
