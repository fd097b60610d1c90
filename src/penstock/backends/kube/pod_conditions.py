"""What people read at their pods: the condition `PodScheduled`, and events. Lossy and coalesced.

Of each pod only the newest message waits to be written, and it is written only if it says something new: a
start that has merely drifted a little is none, and what holds for less than a moment is never told. All
writes together keep to a rate, so that a long queue never floods the API server; a backlog of events, which
follow bindings, is written some times as fast. What is urgent (it can never run, it is broken) goes first.

A pod is told only while it is as we know it: a condition that crosses its binding would stay for ever.
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
from penstock.podspec.pod_status import GROUP_INADMISSIBLE, UNRESOLVED, Problem
from penstock.protocol.intents import StatusUpdate, WorkloadStatus

__all__ = ["ConditionWriter", "Message", "message_of"]

_LOG: Final = logging.getLogger("penstock.kube")
_DRIFT_S: Final = 30.0
_DRIFT_SHARE: Final = 0.1
_MOMENT_S: Final = 1.0
_EVENTS_MAX: Final = 50_000
_EVENT_TRIES_MAX: Final = 5
_WAITING_MAX: Final = 200_000
_LOOKED_AT_MAX: Final = 1_000  # messages in one turn, to find one whose time has come
_HURRY: Final = 10  # times as fast, while more events wait than can be written in a second
_REASONS: Final = {
    WorkloadStatus.ASSEMBLING: "GroupIncomplete",
    WorkloadStatus.WAITING: "Unschedulable",
    WorkloadStatus.UNSATISFIABLE: "Unschedulable",
    WorkloadStatus.INCOMPLETE: "GroupIncomplete",
    WorkloadStatus.INADMISSIBLE: GROUP_INADMISSIBLE,
}
_URGENT: Final = (WorkloadStatus.UNSATISFIABLE, WorkloadStatus.INCOMPLETE, WorkloadStatus.INADMISSIBLE)


@dataclass(frozen=True, slots=True)
class Message:
    reason: str
    text: str
    start_at: float | None = None
    is_urgent: bool = False

    def shown(self) -> str:
        if self.start_at is None:
            return self.text
        when = f"expected to start at {_time_text(self.start_at)}"
        return f"{when}: {self.text}" if self.text else when


@dataclass(frozen=True, slots=True)
class _Event:
    pod: Pod
    reason: str
    action: str
    note: str
    is_warning: bool
    tries: int = 0  # that a server has not taken


@dataclass(frozen=True, slots=True)
class _Told:
    message: Message
    at: float


def message_of(update: StatusUpdate) -> Message:
    """The text of a condition. A status that needs action by the owner is written without delay."""
    is_never = update.status is WorkloadStatus.UNSATISFIABLE
    text = f"it can never run here: {update.reason}" if is_never else update.reason
    reason = _REASONS.get(update.status, "Unschedulable")
    return Message(reason, text, update.start_at, update.status in _URGENT)


def problem_message(problem: Problem) -> Message:
    """A maker that has not been heard of yet is mostly heard of in a moment."""
    return Message(problem.reason, problem.text, is_urgent=problem.reason != UNRESOLVED)


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
        self._waiting: dict[str, tuple[float, Message]] = {}  # by pod: since when, and what
        self._urgent: dict[str, Message] = {}
        self._told: dict[str, _Told] = {}
        self._events: deque[_Event] = deque(maxlen=_EVENTS_MAX)
        self._wakeup = asyncio.Event()
        self._turn = 0

    def set(self, uid: str, message: Message) -> None:
        told = self._told.get(uid)
        if told is not None and _is_same(told.message, message, self._clock()):
            self._waiting.pop(uid, None)
            self._urgent.pop(uid, None)
            return
        since, _ = self._waiting.pop(uid, (self._clock(), message))
        if message.is_urgent:
            self._urgent[uid] = message
        elif len(self._waiting) < _WAITING_MAX:
            self._urgent.pop(uid, None)
            self._waiting[uid] = (since, message)
        self._wakeup.set()

    def scheduled(self, pod: Pod, node: str) -> None:
        metadata = pod.metadata
        self.forget(metadata.uid)
        note = f"Successfully assigned {metadata.namespace}/{metadata.name} to {node}"
        self._events.append(_Event(pod, "Scheduled", "Binding", note, is_warning=False))
        self._wakeup.set()

    def forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._urgent.pop(uid, None)
        self._told.pop(uid, None)

    def sweep(self) -> None:
        """Forgets all that are gone or on a node, after nobody has told of them one by one."""
        for uid in [*self._told, *self._waiting, *self._urgent]:
            if self._listener(uid) is None:
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
            hurries = len(self._events) > self._settings.status_writes_per_s
            await self._write_next(_HURRY if hurries else 2)
            await asyncio.sleep(pause_s / _HURRY if hurries else pause_s)

    async def _write_next(self, every: int) -> None:
        """What is urgent, else an event; but each so many turns it is one of the messages that wait."""
        self._turn += 1
        now = self._clock()
        if self._urgent:
            uid = next(iter(self._urgent))
            await self._write_message(uid, self._urgent.pop(uid), now)
        elif self._events and (self._turn % every or not self._waiting):
            await self._write_event(self._events.popleft())
        else:
            found = self._next_due(now)
            if found is not None:
                await self._write_message(*found, now)

    def _next_due(self, now: float) -> tuple[str, Message] | None:
        """A message whose time has come; those whose has not go to the end of the line."""
        for _ in range(min(len(self._waiting), _LOOKED_AT_MAX)):
            uid = next(iter(self._waiting))
            since, message = self._waiting.pop(uid)
            told = self._told.get(uid)
            due = since + _MOMENT_S
            if told is not None and _is_drift(told.message, message):
                due = max(due, told.at + self._settings.condition_interval_s)
            if due <= now:
                return uid, message
            self._waiting[uid] = (since, message)
        return None

    def _listener(self, uid: str) -> Pod | None:
        """A pod that is to be told something: it is there, and on no node."""
        pod = self._pod(uid)
        return pod if pod is not None and not pod.spec.node_name else None

    async def _write_message(self, uid: str, message: Message, now: float) -> None:
        pod = self._listener(uid)
        if pod is None:
            self.forget(uid)
            return
        told = self._told.get(uid)
        is_known = _is_written(pod, message)
        if not is_known:
            try:
                await self._write_condition(pod, message, now)
            except (ApiConflict, Unavailable) as error:
                self._put_back(uid, message)
                _LOG.debug("%s/%s was not told yet: %s", pod.metadata.namespace, pod.metadata.name, error)
                return
            except ApiError as error:
                _LOG.debug("%s/%s was not told: %s", pod.metadata.namespace, pod.metadata.name, error)
                return
        if self._listener(uid) is None:
            self.forget(uid)
            return
        self._told[uid] = _Told(message, now)
        if not is_known and (told is None or told.message.reason != message.reason or message.is_urgent):
            note = message.shown() or message.reason
            self._events.append(_Event(pod, "FailedScheduling", "Scheduling", note, is_warning=True))

    def _put_back(self, uid: str, message: Message) -> None:
        """To be told a moment later, unless there is something newer by then."""
        if uid not in self._urgent and self._listener(uid) is not None:
            self._waiting.setdefault(uid, (self._clock(), message))

    async def _write_condition(self, pod: Pod, message: Message, now: float) -> None:
        metadata = pod.metadata
        before = _condition(pod)
        kept = before.last_transition_time if before is not None and before.status == "False" else None
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": message.reason,
            "message": message.shown(),
            "observedGeneration": metadata.generation,
            "lastTransitionTime": kept or _time_text(now),
        }
        body = {
            "metadata": {"uid": metadata.uid, "resourceVersion": metadata.resource_version},
            "status": {"conditions": [condition]},
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
            _LOG.debug("an event of %s/%s was not written: %s", metadata.namespace, metadata.name, error)


def _condition(pod: Pod) -> Condition | None:
    return next((one for one in pod.status.conditions or () if one.type == "PodScheduled"), None)


def _is_written(pod: Pod, message: Message) -> bool:
    """Whether a pod says it already, as after a restart of ours."""
    found = _condition(pod)
    said = ("False", message.reason, message.shown())
    return found is not None and (found.status, found.reason, found.message) == said


def _is_same(before: Message, after: Message, now: float) -> bool:
    if (before.reason, before.text) != (after.reason, after.text):
        return False
    if before.start_at is None or after.start_at is None:
        return before.start_at == after.start_at
    room = max(_DRIFT_S, _DRIFT_SHARE * max(after.start_at - now, 0.0))
    return abs(before.start_at - after.start_at) <= room


def _is_drift(before: Message, after: Message) -> bool:
    """Whether somebody who has read the one would do nothing else after the other."""
    return before.reason == after.reason and not before.is_urgent


def _time_text(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
