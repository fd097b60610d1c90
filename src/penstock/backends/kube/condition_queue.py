"""Which pod condition is written next. No I/O, no clock: times are arguments.

Each pod has at most one condition to be written, the latest. It is due a moment after it was first set, so
that one which is replaced at once is never written; an urgent one is due at once. A change that gives its
reader nothing to act on waits until the condition of the pod has a certain age.

Conditions that are due are written by precedence: those at the head of the queue, alternating with urgent
ones; then one pod of each group; then the others. So every user soon finds a pod with the reason of a group,
even while thousands of pods wait. With equal precedence the first to become due is the first to be written.
"""

from __future__ import annotations

import enum
import heapq
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

__all__ = ["ConditionQueue", "PodCondition", "Precedence", "time_text"]

_START_DRIFT_S: Final = 30.0  # start times that differ by less are equal
_EVENT_DRIFT_S: Final = 60.0  # start times that differ by more are worth another event
_DRIFT_SHARE: Final = 0.1  # of the remaining wait, if that is more
_SETTLE_S: Final = 1.0  # a condition that is replaced within this time is not written
_RETRY_S: Final = 1.0  # after a failed write
_BUSY_S: Final = 0.05  # while another condition of the pod is being written
_WAITING_MAX: Final = 200_000


@dataclass(frozen=True, slots=True)
class PodCondition:
    """Reason and message of a `PodScheduled` condition with status False."""

    reason: str
    text: str
    start_at: float | None = None  # when the group is expected to start
    is_urgent: bool = False

    def message(self) -> str:
        if self.start_at is None:
            return self.text
        start = f"expected to start at {time_text(self.start_at)}"
        return f"{start}: {self.text}" if self.text else start


class Precedence(enum.IntEnum):
    """Which conditions are written before others."""

    URGENT = 0  # a group that needs an action of its owner
    HEAD = 1  # at the head of the queue
    FIRST = 2  # the first pod of a group
    REST = 3


@dataclass(slots=True)
class _Waiting:
    condition: PodCondition
    precedence: Precedence
    since: float
    due_at: float


@dataclass(frozen=True, slots=True)
class _Written:
    condition: PodCondition
    at: float
    announced_start_at: float | None  # the expected start in the last event


@dataclass(slots=True)
class ConditionQueue:
    interval_s: float  # between two conditions of a pod that differ little
    _waiting: dict[str, _Waiting] = field(default_factory=dict)  # by pod
    _due: dict[Precedence, dict[str, None]] = field(
        default_factory=lambda: {precedence: {} for precedence in Precedence}
    )
    _timers: list[tuple[float, str]] = field(default_factory=list)  # a heap; some are outdated
    _written: dict[str, _Written] = field(default_factory=dict)  # by pod
    _in_flight: set[str] = field(default_factory=set)  # pods whose condition is being written
    _taken: int = 0

    def __len__(self) -> int:
        """The pods that it knows: those with a condition, and those that wait for one."""
        return len(self._waiting.keys() | self._written.keys())

    def pods(self) -> list[str]:
        return list(self._waiting.keys() | self._written.keys())

    def put(self, uid: str, condition: PodCondition, precedence: Precedence, now: float) -> None:
        written = self._written.get(uid)
        if written is not None and _is_same(written.condition, condition, now):
            self._drop(uid)
            return
        before = self._waiting.get(uid)
        if before is None and len(self._waiting) >= _WAITING_MAX:
            return
        since = before.since if before is not None else now
        due_at = now if condition.is_urgent else since + _SETTLE_S
        if written is not None and _is_minor(written.condition, condition):
            due_at = max(due_at, written.at + self.interval_s)
        self._wait(uid, _Waiting(condition, precedence, since, due_at), now)

    def _wait(self, uid: str, waiting: _Waiting, now: float) -> None:
        before = self._waiting.get(uid)
        if before is not None and (before.due_at, before.precedence) == (waiting.due_at, waiting.precedence):
            self._waiting[uid] = waiting  # It keeps its place.
            return
        self._drop(uid)
        self._waiting[uid] = waiting
        if waiting.due_at <= now:
            self._due[waiting.precedence][uid] = None
        else:
            heapq.heappush(self._timers, (waiting.due_at, uid))
            if len(self._timers) > 2 * len(self._waiting) + 1000:
                self._timers = [(one.due_at, key) for key, one in self._waiting.items() if one.due_at > now]
                heapq.heapify(self._timers)

    def _drop(self, uid: str) -> None:
        before = self._waiting.pop(uid, None)
        if before is not None:
            self._due[before.precedence].pop(uid, None)

    def forget(self, uid: str) -> None:
        self._drop(uid)
        self._written.pop(uid, None)

    def next_at(self) -> float | None:
        """When a condition becomes due at the earliest; None: none waits."""
        if any(self._due.values()):
            return 0.0
        return self._timers[0][0] if self._timers else None

    def has_urgent(self) -> bool:
        return bool(self._due[Precedence.URGENT])

    def has_due(self, now: float) -> bool:
        while self._timers and self._timers[0][0] <= now:
            due_at, uid = heapq.heappop(self._timers)
            waiting = self._waiting.get(uid)
            if waiting is not None and waiting.due_at == due_at:
                self._due[waiting.precedence][uid] = None
        return any(self._due.values())

    def take(self, now: float) -> tuple[str, PodCondition, Precedence] | None:
        """The next condition to be written. It counts as being written until one of the calls below."""
        while self.has_due(now):
            self._taken += 1
            urgent, head = self._due[Precedence.URGENT], self._due[Precedence.HEAD]
            first = (head, urgent) if self._taken % 2 == 0 else (urgent, head)
            due = (*first, self._due[Precedence.FIRST], self._due[Precedence.REST])
            uid = next(iter(next(pods for pods in due if pods)))
            waiting = self._waiting[uid]
            if uid in self._in_flight:
                due_at = now + _BUSY_S
                self._wait(uid, _Waiting(waiting.condition, waiting.precedence, waiting.since, due_at), now)
                continue
            self._drop(uid)
            self._in_flight.add(uid)
            return uid, waiting.condition, waiting.precedence
        return None

    def dropped(self, uid: str) -> None:
        """The condition was not written and is not needed any more."""
        self._in_flight.discard(uid)

    def failed(self, uid: str, condition: PodCondition, precedence: Precedence, now: float) -> None:
        """The condition was not written, and is tried again unless there is a later one."""
        self._in_flight.discard(uid)
        if uid not in self._waiting:
            self._wait(uid, _Waiting(condition, precedence, now, now + _RETRY_S), now)

    def written(self, uid: str, condition: PodCondition, now: float) -> bool:
        """The condition was written. Returns whether its reader should get an event as well."""
        self._in_flight.discard(uid)
        before = self._written.get(uid)
        is_event = (
            before is None
            or before.condition.reason != condition.reason
            or condition.is_urgent
            or _is_outdated(before.announced_start_at, condition.start_at, now)
        )
        announced = condition.start_at if is_event or before is None else before.announced_start_at
        self._written[uid] = _Written(condition, now, announced)
        return is_event


def _is_same(before: PodCondition, after: PodCondition, now: float) -> bool:
    """Whether two conditions are equal, except for a small change of the start time."""
    if (before.reason, before.text) != (after.reason, after.text):
        return False
    if before.start_at is None or after.start_at is None:
        return before.start_at == after.start_at
    return abs(before.start_at - after.start_at) <= _drift_s(_START_DRIFT_S, after.start_at, now)


def _is_outdated(announced: float | None, start_at: float | None, now: float) -> bool:
    """Whether an event with an expected start misleads its reader."""
    if announced is None:
        return False
    if start_at is None:
        return announced <= now
    return abs(start_at - announced) > _drift_s(_EVENT_DRIFT_S, start_at, now)


def _drift_s(least_s: float, start_at: float, now: float) -> float:
    return max(least_s, _DRIFT_SHARE * max(start_at - now, 0.0))


def _is_minor(before: PodCondition, after: PodCondition) -> bool:
    """Whether the change of a condition gives its reader nothing to act on."""
    return before.reason == after.reason and not before.is_urgent


def time_text(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
