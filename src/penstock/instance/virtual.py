"""The loop of an instance on a virtual clock, for simulations and tests.

Cadence, actions, steps and store are those of a real instance; only the waiting differs. The backend owns the
clock: the time jumps to its next event or to the next action that is due, whichever is first, so hours pass
in milliseconds. Work takes no time on this clock. No thread and no task is involved, therefore equal inputs
give equal decisions. Heartbeats, pruning and the refresh of forecasts are off unless the settings say
otherwise: they would be most of what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from penstock.instance.actions import ActionRunner
from penstock.instance.cadence import Action, Cadence, CadenceSettings, HandleInputs, Pause, RunCycle
from penstock.instance.inbox import Inbox
from penstock.instance.isolation import FaultIsolation, TermAborted
from penstock.instance.readiness import ReadinessMonitor
from penstock.instance.steps import ChangeListener, StepRunner
from penstock.protocol.backend import Sink
from penstock.protocol.commands import Command
from penstock.protocol.facts import Fact, Snapshot
from penstock.protocol.intents import Intent, StatusUpdate
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import Settings
from penstock.store.port import Retention, Store

__all__ = ["VIRTUAL_CADENCE", "VirtualBackend", "VirtualInstance", "run_without_loop"]

T = TypeVar("T")

VIRTUAL_CADENCE: Final = CadenceSettings(
    deep_every_s=0.0,
    deep_late_s=None,
    refresh_after_s=None,
    prune_every_s=None,
    heartbeat_every_s=None,
    slow_match_s=None,
)


class VirtualBackend(Protocol):
    """A backend with a virtual clock. Its calls return at once; `advance` returns what follows from them."""

    @property
    def now(self) -> float: ...

    def next_at(self) -> float | None:
        """When something happens next; None: nothing will."""

    def advance(self, to: float) -> Sequence[Fact]:
        """Sets the clock; returns the facts that became true, in order."""

    def snapshot(self) -> Snapshot: ...

    def apply(self, epoch: int, intents: Sequence[Intent]) -> None: ...

    def probe(self, members: Sequence[str]) -> None: ...

    def forget(self, members: Sequence[str]) -> None: ...


def run_without_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine that never waits for anything, without an event loop."""
    try:
        while coroutine.send(None) is None:
            """It only lets other tasks run, and there are none."""
    except StopIteration as done:
        value: T = done.value
        return value
    raise AssertionError("the coroutine waits for something")


class VirtualInstance:
    """One process of an instance. After an exception, as after a crash, it must not be used further."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        backend: VirtualBackend,
        *,
        cadence: CadenceSettings = VIRTUAL_CADENCE,
        listener: ChangeListener = lambda _changes: None,
        after_step: Callable[[Scheduler, Step], None] = lambda _scheduler, _step: None,
        run: Callable[[Coroutine[Any, Any, Any]], Any] = run_without_loop,
    ) -> None:
        self._backend = backend
        self._after_step = after_step
        self._run = run
        self._inbox = Inbox()
        self.readiness: Final = ReadinessMonitor()
        self.isolation: Final = FaultIsolation()
        self._steps = StepRunner(settings, store, _BackendAdapter(backend), listener, self.isolation)
        self._actions = ActionRunner(
            self._steps,
            store,
            self._inbox,
            self.readiness,
            Cadence(cadence),
            _VirtualClock(backend),
            Retention(),
            self.isolation,
        )

    @property
    def now(self) -> float:
        return self._backend.now

    @property
    def epoch(self) -> int:
        return self._steps.epoch

    @property
    def scheduler(self) -> Scheduler:
        return self._actions.scheduler

    def begin(self) -> Step:
        """Takes over, and handles the snapshot of the backend."""
        self._run(self._steps.begin(self.now))
        self.feed()  # On a real clock, too, the first step precedes the snapshot.
        return self.feed(self._backend.snapshot())

    def feed(self, *inputs: Fact | Command) -> Step:
        """Handles these inputs, maybe none, and plans nothing. Returns the last step if they need several."""
        for one in inputs:
            self._inbox.put(one)
        step = self._make_step(HandleInputs())
        while len(self._inbox):
            step = self._make_step(HandleInputs())
        return step

    def plan(self, *, deep: bool) -> Step:
        """Runs one scheduling cycle, whether it is due or not."""
        return self._make_step(RunCycle(deep))

    def settle(self) -> float | None:
        """Does all that is due at the present time; returns when something is due next."""
        while True:
            for fact in self._backend.advance(self.now):
                self._inbox.put(fact)
            action = self._actions.next_action()
            if isinstance(action, Pause):
                times = (action.until, self._backend.next_at())
                return min((at for at in times if at is not None), default=None)
            self._carry_out(action)

    def run_until(self, at: float) -> None:
        """Lets the time pass until `at`."""
        while (soon := self.settle()) is not None and soon <= at:
            self._advance(soon)
        self._advance(at)
        self.settle()

    def run(self, limit: float = float("inf")) -> None:
        """Runs until nothing is left to happen, or nothing before the limit."""
        while (soon := self.settle()) is not None and soon <= limit:
            self._advance(soon)

    def _advance(self, to: float) -> None:
        for fact in self._backend.advance(max(to, self.now)):
            self._inbox.put(fact)

    def _make_step(self, action: HandleInputs | RunCycle) -> Step:
        step = self._carry_out(action)
        assert step is not None
        return step

    def _carry_out(self, action: Action) -> Step | None:
        try:
            step: Step | None = self._run(self._actions.carry_out(action))
        except TermAborted:
            self._run(self._steps.begin(self.now))
            self._inbox.put(self._backend.snapshot())
            return self._carry_out(HandleInputs())
        if step is not None:
            self._after_step(self.scheduler, step)
        return step


@dataclass(frozen=True, slots=True)
class _VirtualClock:
    backend: VirtualBackend

    def now(self) -> float:
        return self.backend.now

    def steady(self) -> float:
        return self.backend.now

    def steady_at(self, at: float) -> float:
        return at


@dataclass(frozen=True, slots=True)
class _BackendAdapter:
    """A virtual backend behind the `Backend` protocol."""

    backend: VirtualBackend

    async def run(self, epoch: int, sink: Sink) -> None:
        del epoch
        sink(self.backend.snapshot())

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        self.backend.apply(epoch, intents)

    async def probe(self, members: Sequence[str]) -> None:
        self.backend.probe(members)

    def forget(self, members: Sequence[str]) -> None:
        self.backend.forget(members)

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        """Does nothing: nobody looks."""
