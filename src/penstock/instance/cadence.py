"""When an instance handles inputs, plans, prunes and sends heartbeats: pure, with the time as an argument.

The loop asks `next_action` what to do next, carries it out and reports that it is done. The rules:

- Steps and cycles alternate: inputs that wait are handled after one cycle at the latest, and a cycle that
  could start something runs after one step at the latest.
- Requests that are not proven are proven before the next cycle, for a slice of time or until an input
  arrives; the rest follows after the next step.
- A deep cycle, which also computes forecasts and publishes reasons, runs when no input waits; if inputs
  arrive all the time, as while thousands of pods are created, it runs nevertheless when it is late. The
  longer it takes, the later the next one: all of them together take a bounded share of the time. Forecasts
  age, so they are computed again after a while even if nothing has changed.
- Whatever the loop wakes up for, it first handles inputs and timers that are due, maybe none.
- While no job may start, nothing is planned; inputs, timers, pruning and heartbeats go on.

The clock is one that never jumps, for example a monotonic or a virtual one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

__all__ = [
    "Action",
    "Cadence",
    "CadenceSettings",
    "HandleInputs",
    "Observation",
    "Pause",
    "ProveRequests",
    "PruneHistory",
    "RunCycle",
    "SendHeartbeat",
]


@dataclass(frozen=True, slots=True)
class CadenceSettings:
    """Intervals of the loop; None turns off what they belong to."""

    deep_every_s: float | None = 0.5  # shortest time between two deep cycles
    deep_late_s: float | None = (
        1.0  # a deep cycle that has waited so long for a moment without inputs is late
    )
    deep_share: int = 5  # deep cycles take at most this part (one fifth) of the time
    refresh_after_s: float | None = 30.0  # age at which forecasts are computed again
    prune_every_s: float | None = 600.0
    heartbeat_every_s: float | None = 2.0
    slow_match_s: float | None = 0.01  # after a match this long, the next one runs in a thread
    yield_every_s: float = 0.02  # a cycle lets other tasks run this often
    prove_slice_s: float = 0.05  # time for proofs after one step; one proof may take longer


@dataclass(frozen=True, slots=True)
class Observation:
    """What the cadence must know about the instance at the moment of a decision."""

    has_inputs: bool
    may_plan: bool  # the nodes are known, and jobs may start
    is_dirty: bool  # a cycle could start something
    has_pending: bool  # there are jobs to forecast
    timer_at: float | None = None  # the next timer of the scheduler
    has_unproven: bool = False  # requests that the nodes may never satisfy have to be proven


@dataclass(frozen=True, slots=True)
class HandleInputs:
    """Handle a batch of inputs, maybe an empty one, and the timers that are due."""


@dataclass(frozen=True, slots=True)
class RunCycle:
    deep: bool


@dataclass(frozen=True, slots=True)
class ProveRequests:
    """Find requests that the present nodes can never satisfy, for a slice of time."""


@dataclass(frozen=True, slots=True)
class PruneHistory:
    """Delete old jobs from the store."""


@dataclass(frozen=True, slots=True)
class SendHeartbeat:
    """Commit an empty transaction."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait for inputs, at most until this time; None: however long it takes."""

    until: float | None


Action = HandleInputs | RunCycle | ProveRequests | PruneHistory | SendHeartbeat | Pause

_LONG_AGO: Final = float("-inf")


class Cadence:
    def __init__(self, settings: CadenceSettings = CadenceSettings()) -> None:  # noqa: B008
        self._settings = settings
        self._stepped_at: float | None = None
        self._is_cycle_next = False  # a step has been made since the last cycle
        self._is_proof_next = False  # a step has been made since the last proofs
        self._deep_due = _LONG_AGO
        self._is_deep_wanted = True  # something has changed since the last complete deep cycle
        self._deep_possible_from: float | None = None  # None: no step has been made
        self._prune_due = _LONG_AGO
        self._heartbeat_due = _LONG_AGO
        self._is_slow = True  # the last match took long; assumed until the first one is measured
        self._yielded_at = _LONG_AGO

    def next_action(self, seen: Observation, now: float) -> Action:
        """Returns what to do next. Asking changes nothing."""
        if self._is_proof_next and seen.has_unproven:
            return ProveRequests()
        if self._is_cycle_next and seen.may_plan:
            if self._is_deep_late(seen):
                return RunCycle(deep=True)
            if seen.is_dirty:
                return RunCycle(deep=False)
            if not seen.has_inputs and self._is_due(self._deep_at(seen)):
                return RunCycle(deep=True)
        if self._is_due(self._prune_at()):
            return PruneHistory()
        if self._is_due(self._heartbeat_at()):
            return SendHeartbeat()
        wake_at = self._wake_at(seen)
        if seen.has_inputs or (wake_at is not None and wake_at <= now):
            return HandleInputs()
        return Pause(wake_at)

    def _is_deep_late(self, seen: Observation) -> bool:
        late_s = self._settings.deep_late_s
        if late_s is None or self._deep_possible_from is None or self._deep_at(seen) is None:
            return False
        return self._is_deep_wanted and self._is_due(self._deep_possible_from + late_s)

    def _is_due(self, at: float | None) -> bool:
        """Whether a time has come, and a step has been made since then."""
        return at is not None and self._stepped_at is not None and at <= self._stepped_at

    def _wake_at(self, seen: Observation) -> float | None:
        """When the next step must be made even if no input arrives."""
        if seen.has_unproven or (seen.is_dirty and seen.may_plan):
            return _LONG_AGO
        times = (seen.timer_at, self._deep_at(seen), self._prune_at(), self._heartbeat_at())
        return min((at for at in times if at is not None), default=None)

    def _deep_at(self, seen: Observation) -> float | None:
        settings = self._settings
        if settings.deep_every_s is None or not seen.may_plan or not seen.has_pending:
            return None
        if self._is_deep_wanted:
            return self._deep_due
        return None if settings.refresh_after_s is None else self._deep_due + settings.refresh_after_s

    def _prune_at(self) -> float | None:
        return None if self._settings.prune_every_s is None else self._prune_due

    def _heartbeat_at(self) -> float | None:
        return None if self._settings.heartbeat_every_s is None else self._heartbeat_due

    # What the loop reports

    def step_done(self, now: float) -> None:
        self._stepped_at = now
        if self._deep_possible_from is None:
            self._deep_possible_from = now
        self._is_cycle_next = self._is_proof_next = True

    def proofs_begun(self, now: float) -> Callable[[float], bool]:
        """Returns whether proofs have taken long enough at a time."""
        self._is_proof_next = False
        self._yielded_at = now
        return lambda at: at - now >= self._settings.prove_slice_s

    def cycle_begun(self, now: float) -> None:
        self._yielded_at = now

    def cycle_done(self, cycle: RunCycle, began: float, now: float, *, was_cut: bool = False) -> None:
        """A deep cycle that was cut short for the inputs that wait is repeated."""
        self._is_cycle_next = False
        settings = self._settings
        if not cycle.deep:
            if not self._is_deep_wanted:
                self._deep_possible_from = max(now, self._deep_due)
            self._is_deep_wanted = True
            return
        self._is_deep_wanted = was_cut
        self._deep_due = now + max(settings.deep_every_s or 0.0, (now - began) * (settings.deep_share - 1))
        self._deep_possible_from = self._deep_due

    def pruning_begun(self, now: float) -> None:
        self._prune_due = now + (self._settings.prune_every_s or 0.0)

    def heartbeat_sent(self, now: float) -> None:
        self._heartbeat_due = now + (self._settings.heartbeat_every_s or 0.0)

    # Other tasks of the event loop

    def snapshot_in_thread(self) -> bool:
        """The snapshot of a large cluster takes seconds to handle; the Lease is renewed meanwhile."""
        return self._settings.slow_match_s is not None

    def match_in_thread(self) -> bool:
        """Whether the next match runs in a thread.

        That does not make it faster, but other tasks get time meanwhile. Fast matches run inline, which
        costs less.
        """
        return self._is_slow and self._settings.slow_match_s is not None

    def match_done(self, began: float, now: float) -> None:
        slow_s = self._settings.slow_match_s
        self._is_slow = slow_s is not None and now - began > slow_s

    def is_yield_due(self, now: float) -> bool:
        """Whether a cycle must let other tasks run before its next match."""
        return now - self._yielded_at >= self._settings.yield_every_s

    def yielded(self, now: float) -> None:
        self._yielded_at = now
