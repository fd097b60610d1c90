"""Limits of ours as deadlines of Jobs, so that a Job ends in time even if we are away then. Pure.

A Job has one deadline, counted from its start, and a group can begin anew: each attempt has its whole limit,
so our deadline is set at each placement and taken back when the group waits again. What we have set is noted
at the Job, together with what its owner had asked for: a deadline that stands as noted is ours and says
nothing about what the owner wants; whatever else stands there is the owner's. The earlier of both counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.podspec.grouping import DEADLINE_ASKED_ANNOTATION, DEADLINE_SET_ANNOTATION, Controller

__all__ = ["Deadline", "stands_s", "wanted_s", "with_deadline"]

_LIFTS_MAX: Final = 10


@dataclass(slots=True)
class Deadline:
    """When a Job is to end for us."""

    job: Controller  # as it was known when this was wanted
    end_at: float | None  # None: when its owner wants that
    members: tuple[str, ...]  # for whose sake; it does not matter any more when they are gone
    tries: int = 0

    def is_over(self, now: float) -> bool:
        """Whether it was tried for long enough. A limit that has passed is kept by ending the members."""
        if self.end_at is None:
            return self.tries >= _LIFTS_MAX
        return self.tries > 0 and now >= self.end_at


def stands_s(job: Controller) -> int | None:
    return job.deadline_s if job.deadline_set_s is None else job.deadline_set_s


def wanted_s(job: Controller, end_at: float | None) -> int | None:
    """The deadline that a Job that has started should have; None: none."""
    if end_at is None or job.started_at is None:
        return job.deadline_s
    ours = max(1, ceil(end_at - job.started_at))
    return ours if job.deadline_s is None else min(ours, job.deadline_s)


def with_deadline(job: Controller, seconds: int | None) -> dict[str, object]:
    """A merge patch that sets the deadline, and notes whose it is."""
    is_ours = seconds != job.deadline_s
    notes = {
        DEADLINE_SET_ANNOTATION: str(seconds) if is_ours else None,
        DEADLINE_ASKED_ANNOTATION: str(job.deadline_s) if is_ours and job.deadline_s is not None else None,
    }
    return {
        "metadata": {"uid": job.uid, "annotations": notes},
        "spec": {"activeDeadlineSeconds": seconds},
    }
