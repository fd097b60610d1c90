"""Warnings about what pods and their controllers declare and Penstock cannot follow, once per object.

Keys of Penstock that are unknown, and invalid values on a pod that runs already: a pod that waits has the
problem in its condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.backends.kube.pod_conditions import ObjectEvent, controller_reference, pod_reference
from penstock.kube.client import ObjectReference
from penstock.kube.types import Pod
from penstock.podspec.controllers import Controller
from penstock.podspec.keys import describe_unknown_key, unknown_keys
from penstock.podspec.problems import INVALID_SPEC

__all__ = ["DeclarationWarnings"]

_NOTED_MAX: Final = 100_000  # warnings that are remembered; beyond that the oldest may be repeated


class DeclarationWarnings:
    """Outlives the caches of a backend, so that nothing is repeated when all objects are listed again."""

    def __init__(self) -> None:
        self._noted: dict[tuple[str, str], None] = {}  # (uid, text), the oldest first
        self._events: list[ObjectEvent] = []

    def examine(self, pod: Pod, controllers: Sequence[Controller]) -> None:
        """Looks at a pod that Penstock schedules, and at its controllers."""
        scheduler = pod.spec.scheduler_name
        for key in unknown_keys(pod.metadata):
            self._note(pod_reference(pod), "UnknownKey", describe_unknown_key(key), scheduler)
        for controller in controllers:
            for key in controller.unknown_keys:
                reference = controller_reference(controller)
                self._note(reference, "UnknownKey", describe_unknown_key(key), scheduler)

    def note_problems(self, pod: Pod, problems: Sequence[str]) -> None:
        """A running pod declares something invalid, which does not change its job."""
        note = f"{'; '.join(problems)}; its job keeps its time limit"
        self._note(pod_reference(pod), INVALID_SPEC, note, pod.spec.scheduler_name)

    def _note(self, regarding: ObjectReference, reason: str, note: str, scheduler: str) -> None:
        key = (regarding.uid, note)
        if key in self._noted:
            return
        self._noted[key] = None
        if len(self._noted) > _NOTED_MAX:
            del self._noted[next(iter(self._noted))]
        self._events.append(ObjectEvent(regarding, scheduler, reason, "Scheduling", note))

    def take_events(self) -> list[ObjectEvent]:
        """The events that have not been written yet."""
        events, self._events = self._events, []
        return events
