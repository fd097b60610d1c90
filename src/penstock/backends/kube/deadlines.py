"""Limits of Penstock as deadlines of Jobs, so that a Job ends in time even while no scheduler runs. Pure.

A Job has one deadline (`activeDeadlineSeconds`), counted from its start, and a group can be started several
times. Every attempt has the whole limit, so the deadline is set at each placement and restored when the
group waits again. Annotations of the Job record the deadline that Penstock has set and the one that it
replaced: a deadline equal to the recorded one is Penstock's and says nothing about what the Job's owner
wants; any other is the owner's. The earlier of both applies.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.podspec.controllers import Controller
from penstock.podspec.keys import DEADLINE_ORIGINAL_ANNOTATION, DEADLINE_SET_ANNOTATION

__all__ = ["DeadlineUpdate", "current_deadline_s", "deadline_patch", "required_deadline_s"]

_RESTORE_TRIES_MAX: Final = 10


@dataclass(slots=True)
class DeadlineUpdate:
    """The end that a Job's deadline is to bring about."""

    job: Controller  # as it was when the update was requested
    end_at: float | None  # None: restore the deadline of the Job's owner
    members: tuple[str, ...]  # once these are gone, the update is obsolete
    tries: int = 0

    def is_expired(self, now: float) -> bool:
        """Whether to stop trying. The scheduler enforces a limit that has passed by ending the members."""
        if self.end_at is None:
            return self.tries >= _RESTORE_TRIES_MAX
        return self.tries > 0 and now >= self.end_at


def current_deadline_s(job: Controller) -> int | None:
    """The present activeDeadlineSeconds of a Job."""
    return job.deadline_s if job.deadline_set_s is None else job.deadline_set_s


def required_deadline_s(job: Controller, end_at: float | None) -> int | None:
    """The activeDeadlineSeconds that a started Job should have; None: none."""
    if end_at is None or job.started_at is None:
        return job.deadline_s
    ours = max(1, ceil(end_at - job.started_at))
    return ours if job.deadline_s is None else min(ours, job.deadline_s)


def deadline_patch(job: Controller, seconds: int | None) -> dict[str, object]:
    """A merge patch that sets the deadline and the annotations that record it."""
    is_ours = seconds != job.deadline_s
    original = str(job.deadline_s) if is_ours and job.deadline_s is not None else None
    annotations = {
        DEADLINE_SET_ANNOTATION: str(seconds) if is_ours else None,
        DEADLINE_ORIGINAL_ANNOTATION: original,
    }
    return {
        "metadata": {"uid": job.uid, "annotations": annotations},
        "spec": {"activeDeadlineSeconds": seconds},
    }
