"""Carries out the actions of the cadence: one loop for every clock.

The driver of the loop (`loop` on the real clock, `virtual` on a virtual one) asks for the next action, waits
if it is a pause, and otherwise has it carried out. What happens in a step and in a cycle, in which order and
how often, is therefore the same everywhere. A query runs between two steps, so it sees committed state only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn, Protocol

from penstock.instance.cadence import (
    Action,
    Cadence,
    HandleInputs,
    Observation,
    Pause,
    ProveRequests,
    PruneHistory,
    RunCycle,
    SendHeartbeat,
)
from penstock.instance.inbox import Inbox, InputBatch
from penstock.instance.isolation import AtFault, FaultIsolation, TermAborted
from penstock.instance.progress import LoopProgress
from penstock.instance.readiness import ReadinessMonitor
from penstock.instance.steps import CycleSteps, HandleCall, StepRunner, advance_once, run_inline
from penstock.protocol.commands import Command
from penstock.protocol.facts import Fact
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.subjects import CulpritKind, Fault
from penstock.store.port import Retention, Store

__all__ = ["ActionRunner", "Clock", "SystemClock"]


class Clock(Protocol):
    """Two clocks: one that scheduling decisions use and users see, and a steady one for the cadence."""

    def now(self) -> float: ...

    def steady(self) -> float:
        """Seconds since any moment; never jumps."""

    def steady_at(self, at: float) -> float:
        """What the steady clock will show when `now` reaches a time, unless `now` jumps until then."""


@dataclass(frozen=True, slots=True)
class SystemClock:
    wall: Callable[[], float] = time.time

    def now(self) -> float:
        return self.wall()

    def steady(self) -> float:
        return time.monotonic()

    def steady_at(self, at: float) -> float:
        return time.monotonic() + at - self.wall()


@dataclass(frozen=True, slots=True)
class ActionRunner:
    steps: StepRunner
    store: Store
    inbox: Inbox
    readiness: ReadinessMonitor
    cadence: Cadence
    clock: Clock
    retention: Retention
    isolation: FaultIsolation
    progress: LoopProgress = field(default_factory=LoopProgress)
    on_pruned: Callable[[tuple[int, ...]], None] = lambda _jobs: None  # jobs deleted from the history

    @property
    def scheduler(self) -> Scheduler:
        assert self.steps.scheduler is not None, "`begin` has not been called"
        return self.steps.scheduler

    def next_action(self) -> Action:
        scheduler = self.scheduler
        wake_at = scheduler.wake_at()
        seen = Observation(
            has_inputs=len(self.inbox) > 0,
            may_plan=self.readiness.current.may_start_jobs,
            is_dirty=scheduler.is_dirty,
            has_pending=len(scheduler.state.queue) > 0,
            timer_at=None if wake_at is None else self.clock.steady_at(wake_at),
            has_unproven=scheduler.has_unproven_requests,
        )
        return self.cadence.next_action(seen, self.clock.steady())

    async def carry_out(self, action: Action) -> Step | None:
        """Returns the step that was made, if the action makes one. A pause is the driver's to make."""
        match action:
            case HandleInputs():
                return await self._handle_inputs()
            case RunCycle():
                return await self._run_cycle(action)
            case ProveRequests():
                return await self._prove_requests()
            case PruneHistory():
                self.cadence.pruning_begun(self.clock.steady())
                self.on_pruned(await self.store.prune(self.steps.epoch, self.clock.now(), self.retention))
            case SendHeartbeat():
                # Fails if the store is lost or another instance has taken over.
                await self.store.record(self.steps.epoch, ())
                self.cadence.heartbeat_sent(self.clock.steady())
            case Pause():
                raise AssertionError("a pause cannot be carried out")
        return None

    async def _handle_inputs(self) -> Step:
        batch = self.inbox.take_batch()
        in_thread = batch.has_snapshot and self.cadence.snapshot_in_thread()
        inputs: list[Fact | Command] = batch.inputs
        try:
            now = self.clock.now()
            inputs = self.isolation.admit(inputs, self.scheduler, now)
            step = await self.steps.step(inputs, now, handle=_run_in_thread if in_thread else run_inline)
        except TermAborted:
            self.inbox.hold(batch.waiting())
            raise
        except Fault as fault:
            self._abort_term(fault, inputs, batch)
        except BaseException as error:
            batch.fail(error)
            raise
        batch.reply(step.replies)
        quarantine = self.isolation.quarantine
        quarantine.committed(inputs)
        if len(quarantine):
            updates = (*step.status_updates, *quarantine.take_status_updates())
            step = replace(step, status_updates=updates)
        try:
            await self.steps.act(step)
        except BaseException as error:
            batch.fail(error)
            raise
        batch.answer_queries(self.scheduler, self.clock.now)
        if self.scheduler.state.cluster.is_synced and not self.readiness.current.is_ready:
            self.readiness.nodes_known()
        self.cadence.step_done(self.clock.steady())
        return step

    async def _run_cycle(self, cycle: RunCycle) -> Step:
        began = self.clock.steady()
        self.cadence.cycle_begun(began)
        # Starts and reservations do not depend on the inputs that wait, only the forecasts are cut short.
        try:
            step = await self.steps.decide(
                self.clock.now(), deep=cycle.deep, advance=self._advance, hurry=lambda: len(self.inbox) > 0
            )
        except Fault as fault:
            self._abort_term(fault, (), InputBatch())
        ended = self.clock.steady()
        self.isolation.metrics.cycle_done(ended - began, deep=cycle.deep)
        self.cadence.cycle_done(cycle, began, ended, was_cut=len(self.inbox) > 0)
        return step

    def _abort_term(self, fault: Fault, inputs: Sequence[Fact | Command], batch: InputBatch) -> NoReturn:
        """Goes on without the culprit, in another term: its other commands and queries are kept for that."""
        try:
            self.isolation.isolate(fault, inputs, self.clock.now())
        except AtFault as error:
            batch.fail(error)
            raise
        subject = fault.subject
        refused = int(subject.key) if subject is not None and subject.kind is CulpritKind.COMMAND else None
        if refused is not None:
            batch.refuse(refused, fault)
        self.inbox.hold(batch.waiting(refused))
        raise TermAborted(str(fault)) from fault

    async def _prove_requests(self) -> Step:
        is_over = self.cadence.proofs_begun(self.clock.steady())
        try:
            return await self.steps.prove(
                self.clock.now(),
                lambda: len(self.inbox) > 0 or is_over(self.clock.steady()),
                advance=self._advance,
            )
        except Fault as fault:
            self._abort_term(fault, (), InputBatch())

    async def _advance(self, cycle: CycleSteps) -> Step | None:
        """Runs a cycle up to its next match or proof and lets other tasks run now and then."""
        began = self.clock.steady()
        if self.cadence.match_in_thread():
            step = await asyncio.to_thread(advance_once, cycle)
        else:
            step = advance_once(cycle)
        self.progress.mark()
        now = self.clock.steady()
        self.cadence.match_done(began, now)
        if self.cadence.is_yield_due(now):
            await asyncio.sleep(0)
            self.cadence.yielded(self.clock.steady())
        return step


async def _run_in_thread(call: HandleCall) -> Step:
    return await asyncio.to_thread(call)
