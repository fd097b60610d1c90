"""Writes the `PodScheduled` condition and the events of pods. Lossy: only the latest condition counts.

Each pod has at most one condition to be written, and it is written only if it says something else than the
last one: a start time that has moved a little does not count, and a condition that holds for less than a
moment is never written. All writes together keep to a rate, so that a long queue does not flood the API
server; a backlog of events, which follow bindings, is written faster. Urgent conditions (the pod can never
run, its group is incomplete) come first.

A condition is written with the resourceVersion of the pod: one that is written while the pod is being bound
would otherwise stay forever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from penstock.backends.kube.settings import KubeSettings
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, ObjectReference, PatchType
from penstock.kube.errors import ApiConflict, ApiError, TooManyRequests, Unreachable, WriteFenced
from penstock.kube.resources import PODS
from penstock.kube.types import Condition, Pod
from penstock.podspec.pod_status import full_name
from penstock.podspec.problems import GROUP_INADMISSIBLE, OWNER_NOT_SYNCED, PodProblem
from penstock.protocol.intents import StatusUpdate, WorkloadStatus

__all__ = ["ConditionWriter", "PodCondition", "condition_of_problem", "condition_of_update"]

_LOG: Final = logging.getLogger("penstock.kube")
_START_DRIFT_S: Final = 30.0  # start times that differ by less are equal
_START_DRIFT_SHARE: Final = 0.1  # of the remaining wait, if that is more
_SETTLE_S: Final = 1.0  # a condition that is replaced within this time is not written
_EVENTS_MAX: Final = 50_000
_EVENT_TRIES_MAX: Final = 5
_WAITING_MAX: Final = 200_000
_EXAMINED_MAX: Final = 1_000  # conditions per write, to find one that is due
_BACKLOG_SPEEDUP: Final = 10  # while more events wait than one second's worth
_REASONS: Final = {
    WorkloadStatus.ASSEMBLING: "GroupIncomplete",
    WorkloadStatus.WAITING: "Unschedulable",
    WorkloadStatus.UNSATISFIABLE: "Unschedulable",
    WorkloadStatus.INCOMPLETE: "GroupIncomplete",
    WorkloadStatus.INADMISSIBLE: GROUP_INADMISSIBLE,
}
_URGENT: Final = (WorkloadStatus.UNSATISFIABLE, WorkloadStatus.INCOMPLETE, WorkloadStatus.INADMISSIBLE)


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
        start = f"expected to start at {_time_text(self.start_at)}"
        return f"{start}: {self.text}" if self.text else start


@dataclass(frozen=True, slots=True)
class _Event:
    pod: Pod
    reason: str
    action: str
    note: str
    is_warning: bool
    tries: int = 0


@dataclass(frozen=True, slots=True)
class _Written:
    condition: PodCondition
    at: float


def condition_of_update(update: StatusUpdate) -> PodCondition:
    """Urgent if it needs an action of the workload's owner."""
    is_never = update.status is WorkloadStatus.UNSATISFIABLE
    text = f"it can never run here: {update.reason}" if is_never else update.reason
    reason = _REASONS.get(update.status, "Unschedulable")
    return PodCondition(reason, text, update.start_at, update.status in _URGENT)


def condition_of_problem(problem: PodProblem) -> PodCondition:
    """Urgent, except that an owner which is not synced mostly arrives within a moment."""
    return PodCondition(problem.reason, problem.message, is_urgent=problem.reason != OWNER_NOT_SYNCED)


class ConditionWriter:
    def __init__(
        self,
        client: KubeClient,
        settings: KubeSettings,
        pod: Callable[[str], Pod | None],
        may_act: Callable[[], bool],
        clock: Callable[[], float],
        identity: str,
    ) -> None:
        self._client = client
        self._settings = settings
        self._pod = pod
        self._may_act = may_act
        self._clock = clock
        self._identity = identity
        self._waiting: dict[str, tuple[float, PodCondition]] = {}  # by pod: since when, and what
        self._urgent: dict[str, PodCondition] = {}  # by pod
        self._written: dict[str, _Written] = {}  # by pod
        self._events: deque[_Event] = deque(maxlen=_EVENTS_MAX)
        self._wakeup = asyncio.Event()
        self._writes = 0

    def set(self, uid: str, condition: PodCondition) -> None:
        written = self._written.get(uid)
        if written is not None and _is_same(written.condition, condition, self._clock()):
            self._waiting.pop(uid, None)
            self._urgent.pop(uid, None)
            return
        since, _ = self._waiting.pop(uid, (self._clock(), condition))
        if condition.is_urgent:
            self._urgent[uid] = condition
        elif len(self._waiting) < _WAITING_MAX:
            self._urgent.pop(uid, None)
            self._waiting[uid] = (since, condition)
        self._wakeup.set()

    def scheduled(self, pod: Pod, node: str) -> None:
        """Writes the event of a binding; the API server has set the condition."""
        self.forget(pod.metadata.uid)
        note = f"Successfully assigned {full_name(pod.metadata)} to {node}"
        self._events.append(_Event(pod, "Scheduled", "Binding", note, is_warning=False))
        self._wakeup.set()

    def forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._urgent.pop(uid, None)
        self._written.pop(uid, None)

    def sweep(self) -> None:
        """Forgets pods that were deleted or bound while no watch delivered it."""
        for uid in [*self._written, *self._waiting, *self._urgent]:
            if self._unbound_pod(uid) is None:
                self.forget(uid)

    async def run(self) -> None:
        pause_s = 1.0 / self._settings.status_writes_per_s
        while True:
            if not (self._urgent or self._waiting or self._events):
                self._wakeup.clear()
                await self._wakeup.wait()
            if not self._may_act():
                await asyncio.sleep(1.0)
                continue
            has_backlog = len(self._events) > self._settings.status_writes_per_s
            try:
                await self._write_next(_BACKLOG_SPEEDUP if has_backlog else 2)
            except Exception:  # It concerns one pod, whose condition is dropped.
                _LOG.exception("cannot write a condition or an event")
            await asyncio.sleep(pause_s / _BACKLOG_SPEEDUP if has_backlog else pause_s)

    async def _write_next(self, condition_every: int) -> None:
        """Writes an urgent condition, else an event; every `condition_every`-th time a waiting condition."""
        self._writes += 1
        now = self._clock()
        if self._urgent:
            uid = next(iter(self._urgent))
            await self._write(uid, self._urgent.pop(uid), now)
        elif self._events and (self._writes % condition_every or not self._waiting):
            await self._write_event(self._events.popleft())
        else:
            due = self._next_due(now)
            if due is not None:
                await self._write(*due, now)

    def _next_due(self, now: float) -> tuple[str, PodCondition] | None:
        """A waiting condition that is due; those that are not go to the end of the line."""
        for _ in range(min(len(self._waiting), _EXAMINED_MAX)):
            uid = next(iter(self._waiting))
            since, condition = self._waiting.pop(uid)
            written = self._written.get(uid)
            due_at = since + _SETTLE_S
            if written is not None and _is_minor(written.condition, condition):
                due_at = max(due_at, written.at + self._settings.condition_interval_s)
            if due_at <= now:
                return uid, condition
            self._waiting[uid] = (since, condition)
        return None

    def _unbound_pod(self, uid: str) -> Pod | None:
        """A pod that can have a condition: it exists, and is on no node."""
        pod = self._pod(uid)
        return pod if pod is not None and not pod.spec.node_name else None

    async def _write(self, uid: str, condition: PodCondition, now: float) -> None:
        pod = self._unbound_pod(uid)
        if pod is None:
            self.forget(uid)
            return
        written = self._written.get(uid)
        is_present = _has_condition(pod, condition)
        if not is_present:
            try:
                await self._write_condition(pod, condition, now)
            except (ApiConflict, Unavailable) as error:
                self._retry_later(uid, condition)
                _LOG.debug("cannot write the condition of pod %s yet: %s", full_name(pod.metadata), error)
                return
            except ApiError as error:
                _LOG.debug("cannot write the condition of pod %s: %s", full_name(pod.metadata), error)
                return
        if self._unbound_pod(uid) is None:
            self.forget(uid)
            return
        self._written[uid] = _Written(condition, now)
        is_new = written is None or written.condition.reason != condition.reason or condition.is_urgent
        if is_new and not is_present:
            note = condition.message() or condition.reason
            self._events.append(_Event(pod, "FailedScheduling", "Scheduling", note, is_warning=True))

    def _retry_later(self, uid: str, condition: PodCondition) -> None:
        """Puts a condition back, unless there is a later one."""
        if uid not in self._urgent and self._unbound_pod(uid) is not None:
            self._waiting.setdefault(uid, (self._clock(), condition))

    async def _write_condition(self, pod: Pod, condition: PodCondition, now: float) -> None:
        metadata = pod.metadata
        before = _pod_scheduled(pod)
        is_unchanged = before is not None and before.status == "False"
        since = before.last_transition_time if before is not None and is_unchanged else None
        body = {
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "status": {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": condition.reason,
                        "message": condition.message(),
                        "observedGeneration": metadata.generation,
                        "lastTransitionTime": since or _time_text(now),
                    }
                ]
            },
        }
        path = PODS.path(metadata.namespace, metadata.name, "status")
        await self._client.patch(path, body, patch_type=PatchType.STRATEGIC)

    async def _write_event(self, event: _Event) -> None:
        metadata = event.pod.metadata
        regarding = ObjectReference(
            api_version="v1", kind="Pod", namespace=metadata.namespace, name=metadata.name, uid=metadata.uid
        )
        try:
            await self._client.post_event(
                regarding,
                reason=event.reason,
                note=event.note,
                action=event.action,
                warning=event.is_warning,
                controller=event.pod.spec.scheduler_name,
                instance=self._identity,
            )
        except (ApiError, Unavailable) as error:
            was_sent = not isinstance(error, TooManyRequests | Unreachable | WriteFenced)
            if not was_sent and event.tries + 1 < _EVENT_TRIES_MAX:
                self._events.append(replace(event, tries=event.tries + 1))
            _LOG.debug("cannot write an event of pod %s: %s", full_name(metadata), error)


def _pod_scheduled(pod: Pod) -> Condition | None:
    return next((one for one in pod.status.conditions or () if one.type == "PodScheduled"), None)


def _has_condition(pod: Pod, condition: PodCondition) -> bool:
    """Whether the pod has this condition already, as after a restart."""
    found = _pod_scheduled(pod)
    expected = ("False", condition.reason, condition.message())
    return found is not None and (found.status, found.reason, found.message) == expected


def _is_same(before: PodCondition, after: PodCondition, now: float) -> bool:
    """Whether two conditions are equal, except for a small change of the start time."""
    if (before.reason, before.text) != (after.reason, after.text):
        return False
    if before.start_at is None or after.start_at is None:
        return before.start_at == after.start_at
    drift_s_max = max(_START_DRIFT_S, _START_DRIFT_SHARE * max(after.start_at - now, 0.0))
    return abs(before.start_at - after.start_at) <= drift_s_max


def _is_minor(before: PodCondition, after: PodCondition) -> bool:
    """Whether the change of a condition gives its reader nothing to act on."""
    return before.reason == after.reason and not before.is_urgent


def _time_text(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
