"""Writes the `PodScheduled` condition of pods, and events of pods and their owners.

Lossy: only the latest condition of a pod counts (`condition_queue`). All writes together keep to a rate, so
that a long queue does not flood the API server; several are in flight at a time, since one takes longer than
the pause between two. While conditions are due, events get a share of the writes.

A condition is written with the resourceVersion of the pod: one that is written while the pod is being bound
would otherwise stay forever.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from penstock.backends.kube.condition_queue import ConditionQueue, PodCondition, Precedence, time_text
from penstock.backends.kube.settings import KubeSettings
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, ObjectReference, PatchType
from penstock.kube.errors import ApiConflict, ApiError, TooManyRequests, Unreachable, WriteFenced
from penstock.kube.resources import PODS
from penstock.kube.types import Condition, Pod
from penstock.podspec.controllers import Controller
from penstock.podspec.pod_status import full_name
from penstock.podspec.problems import GROUP_INADMISSIBLE, OWNER_NOT_SYNCED, PodProblem
from penstock.protocol.intents import StatusUpdate, WorkloadStatus

__all__ = [
    "ConditionWriter",
    "ObjectEvent",
    "condition_of_problem",
    "condition_of_update",
    "controller_reference",
    "pod_reference",
]

_LOG: Final = logging.getLogger("penstock.kube")
_EVENTS_MAX: Final = 50_000
_EVENT_TRIES_MAX: Final = 5
_EVENT_EVERY: Final = 8  # while conditions are due, every so many writes is an event
_IN_FLIGHT_MAX: Final = 32  # enough for 200 conditions a second if each takes 150 ms
_BURST_S: Final = 0.1  # writes that were not made in time are made up for, at most for so long
_REASONS: Final = {
    WorkloadStatus.ASSEMBLING: "GroupIncomplete",
    WorkloadStatus.HELD: "Held",
    WorkloadStatus.DELAYED: "Delayed",
    WorkloadStatus.QUEUE_DISABLED: "QueueDisabled",
    WorkloadStatus.QUEUE_STOPPED: "QueueStopped",
    WorkloadStatus.INCOMPLETE: "GroupIncomplete",
    WorkloadStatus.INADMISSIBLE: GROUP_INADMISSIBLE,
}
_URGENT: Final = (WorkloadStatus.UNSATISFIABLE, WorkloadStatus.INCOMPLETE, WorkloadStatus.INADMISSIBLE)


@dataclass(frozen=True, slots=True)
class ObjectEvent:
    regarding: ObjectReference
    controller: str  # who reports it: the name of the scheduler
    reason: str
    action: str
    note: str
    is_warning: bool = True
    tries: int = 0


def pod_reference(pod: Pod) -> ObjectReference:
    metadata = pod.metadata
    return ObjectReference(
        api_version="v1", kind="Pod", namespace=metadata.namespace, name=metadata.name, uid=metadata.uid
    )


def controller_reference(controller: Controller) -> ObjectReference:
    return ObjectReference(
        api_version=controller.kind.api_version,
        kind=controller.kind.name,
        namespace=controller.namespace,
        name=controller.name,
        uid=controller.uid,
    )


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
        self._conditions = ConditionQueue(settings.condition_interval_s)
        self._events: deque[ObjectEvent] = deque(maxlen=_EVENTS_MAX)
        self._wakeup = asyncio.Event()
        self._writes = 0

    def set(self, uid: str, condition: PodCondition, precedence: Precedence = Precedence.REST) -> None:
        self._conditions.put(uid, condition, precedence, self._clock())
        self._wakeup.set()

    def scheduled(self, pod: Pod, node: str) -> None:
        """Writes the event of a binding; the API server has set the condition."""
        self.forget(pod.metadata.uid)
        note = f"Successfully assigned {full_name(pod.metadata)} to {node}"
        scheduler = pod.spec.scheduler_name
        self.add_event(
            ObjectEvent(pod_reference(pod), scheduler, "Scheduled", "Binding", note, is_warning=False)
        )

    def add_event(self, event: ObjectEvent) -> None:
        self._events.append(event)
        self._wakeup.set()

    def forget(self, uid: str) -> None:
        self._conditions.forget(uid)

    def sweep(self) -> None:
        """Forgets pods that were deleted or bound while no watch delivered it."""
        for uid in self._conditions.pods():
            if self._unbound_pod(uid) is None:
                self.forget(uid)

    async def run(self) -> None:
        pause_s = 1.0 / self._settings.status_writes_per_s
        loop = asyncio.get_running_loop()
        free = asyncio.Semaphore(_IN_FLIGHT_MAX)
        next_at = loop.time()

        async def write() -> None:
            try:
                await self._write_next()
            except Exception:  # It concerns one pod, whose condition is dropped.
                _LOG.exception("cannot write a condition or an event")
            finally:
                free.release()

        async with asyncio.TaskGroup() as tasks:
            while True:
                await self._until_due()
                if not self._may_act():
                    await asyncio.sleep(1.0)
                    continue
                await free.acquire()
                tasks.create_task(write())
                next_at = max(next_at + pause_s, loop.time() - _BURST_S)
                await asyncio.sleep(max(0.0, next_at - loop.time()))

    async def _until_due(self) -> None:
        """Waits until there is something to write."""
        while not self._events and not self._conditions.has_due(self._clock()):
            self._wakeup.clear()
            next_at = self._conditions.next_at()
            pause_s = None if next_at is None else max(0.0, next_at - self._clock())
            try:
                await asyncio.wait_for(self._wakeup.wait(), pause_s)
            except TimeoutError:
                continue

    async def _write_next(self) -> None:
        """Writes a condition that is due; every few times, or if there is none, an event."""
        now = self._clock()
        self._writes += 1
        has_due = self._conditions.has_due(now)
        is_event = not has_due or (self._writes % _EVENT_EVERY == 0 and not self._conditions.has_urgent())
        if self._events and is_event:
            await self._write_event(self._events.popleft())
            return
        taken = self._conditions.take(now)
        if taken is not None:
            await self._write(*taken, now)

    def _unbound_pod(self, uid: str) -> Pod | None:
        """A pod that can have a condition: it exists, and is on no node."""
        pod = self._pod(uid)
        return pod if pod is not None and not pod.spec.node_name else None

    async def _write(self, uid: str, condition: PodCondition, precedence: Precedence, now: float) -> None:
        queue = self._conditions
        try:
            pod = self._unbound_pod(uid)
            if pod is None:
                self.forget(uid)
                return
            is_present = _has_condition(pod, condition)
            if not is_present:
                await self._write_condition(pod, condition, now)
        except (ApiConflict, Unavailable) as error:
            if self._unbound_pod(uid) is not None:
                queue.failed(uid, condition, precedence, self._clock())
            _LOG.debug("cannot write the condition of pod %s yet: %s", uid, error)
            return
        except ApiError as error:
            _LOG.debug("cannot write the condition of pod %s: %s", uid, error)
            return
        finally:
            queue.dropped(uid)
        if self._unbound_pod(uid) is None:
            self.forget(uid)
        elif queue.written(uid, condition, now) and not is_present:
            note = condition.message() or condition.reason
            scheduler = pod.spec.scheduler_name
            self.add_event(ObjectEvent(pod_reference(pod), scheduler, "FailedScheduling", "Scheduling", note))

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
                        "lastTransitionTime": since or time_text(now),
                    }
                ]
            },
        }
        path = PODS.path(metadata.namespace, metadata.name, "status")
        await self._client.patch(path, body, patch_type=PatchType.STRATEGIC)

    async def _write_event(self, event: ObjectEvent) -> None:
        try:
            await self._client.post_event(
                event.regarding,
                reason=event.reason,
                note=event.note,
                action=event.action,
                warning=event.is_warning,
                controller=event.controller,
                instance=self._identity,
            )
        except (ApiError, Unavailable) as error:
            was_sent = not isinstance(error, TooManyRequests | Unreachable | WriteFenced)
            if not was_sent and event.tries + 1 < _EVENT_TRIES_MAX:
                self._events.append(replace(event, tries=event.tries + 1))
            regarding = event.regarding
            _LOG.debug("cannot write an event of %s %s: %s", regarding.kind, regarding.name, error)


def _pod_scheduled(pod: Pod) -> Condition | None:
    return next((one for one in pod.status.conditions or () if one.type == "PodScheduled"), None)


def _has_condition(pod: Pod, condition: PodCondition) -> bool:
    """Whether the pod has this condition already, as after a restart."""
    found = _pod_scheduled(pod)
    expected = ("False", condition.reason, condition.message())
    return found is not None and (found.status, found.reason, found.message) == expected
