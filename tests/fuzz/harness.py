"""Runs fuzzed inputs through an instance on a virtual clock, and checks that it goes on.

After every step the state of the scheduler is consistent. An exception, even about one object alone, a step
that never ends, or a valid job that does not finish beside the fuzzed ones fails the run, with the seed and
the number of inputs before it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.backends.sim.backend import MemberScript, SimBackend
from penstock.instance.virtual import VirtualInstance, run_without_loop
from penstock.model.constraint import Value, ValueOperator
from penstock.protocol.commands import Submit
from penstock.protocol.facts import Capacity, NodeSet
from penstock.sched.records import Change, JobLogged
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import QueueSettings, Settings, parse_backfill
from penstock.store.port import Store
from tests.fuzz.generator import Generator
from tests.sched.driving import submission
from tests.sched.internals import violations_of

__all__ = ["Fuzzer"]

_STEPS_MAX: Final = 20_000  # for one batch and its pause
_WITNESS_EVERY: Final = 40  # batches
_WITNESS_S: Final = 1000.0
_SAFE: Final = "penstock-safe"


def settings_of(policy: str) -> Settings:
    backfill = parse_backfill(policy)
    return Settings(
        queues=(
            QueueSettings("default", backfill, constraint=Value(_SAFE, ValueOperator.DOES_NOT_EXIST)),
            QueueSettings("safe", constraint=Value(_SAFE, ValueOperator.EXISTS)),
        ),
        pending_max=150,
        lost_timeout_s=60.0,
        forecast_depth=10,
    )


@dataclass
class Fuzzer:
    seed: int
    store: Store
    run: Callable[[Coroutine[Any, Any, Any]], Any] = run_without_loop
    batch_max: int = 30
    policy: str = "easy"
    checks: bool = True
    inputs: int = 0
    ended: set[int] = field(default_factory=set)
    _steps: int = 0

    def __post_init__(self) -> None:
        capacity = (Capacity("core", 4),)
        nodes = {name: NodeSet(name, capacity, labels=((_SAFE, ""),)) for name in ("safe0", "safe1")}
        self.backend = SimBackend(nodes)
        self.backend.script_for = lambda place, _assignment: MemberScript(runs_s=float(place.job % 97))
        self.instance = VirtualInstance(
            settings_of(self.policy),
            self.store,
            self.backend,
            listener=self._note_changes,
            after_step=self._check,
            run=self.run,
        )
        self.instance.begin()
        self._epoch = self.instance.epoch
        self._generator = Generator(self.seed, self.backend, lambda: self.instance.scheduler)

    def _note_changes(self, changes: Sequence[Change]) -> None:
        self.ended.update(
            one.id for one in changes if isinstance(one, JobLogged) and one.event.name == "clean"
        )

    def _check(self, scheduler: Scheduler, _step: Step) -> None:
        self._steps += 1
        assert self._steps < _STEPS_MAX, f"{self._where()}: stalled"
        if self.checks:
            found = violations_of(scheduler)
            assert found == [], f"{self._where()}: {found}"

    def _where(self) -> str:
        return f"seed {self.seed}, after {self.inputs} inputs"

    def feed(self, count: int) -> None:
        """Handles at least this many inputs."""
        until = self.inputs + count
        batches = 0
        while self.inputs < until:
            batches += 1
            batch = self._generator.batch(1 + self.inputs * 7 % self.batch_max)
            self._steps = 0
            try:
                self.instance.feed(*batch)
                self.instance.settle()
                self.instance.run_until(self.backend.now + self._generator.pause_s())
            except Exception as error:
                raise AssertionError(f"{self._where()}: {type(error).__name__}: {error}") from error
            self.inputs += len(batch)
            assert self.instance.epoch == self._epoch, f"{self._where()}: an input ended the term"
            if batches % _WITNESS_EVERY == 0:
                self._witness()

    def _witness(self) -> None:
        """A valid job beside the fuzzed ones runs to its end."""
        self._steps = 0
        (reply,) = self.instance.feed(Submit((submission(queue="safe", nodes=1, duration_s=200),))).replies
        if reply.error is not None and "the queue is full" in str(reply.error):
            return
        assert reply.error is None, f"{self._where()}: {reply.error}"
        assert isinstance(reply.value, tuple)
        self.instance.run_until(self.backend.now + _WITNESS_S)
        assert set(reply.value) <= self.ended, f"{self._where()}: a valid job did not run"
