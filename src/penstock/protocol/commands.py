"""What users ask of the scheduler.

A command is handled in the same order as facts and gets one reply: a value, or the error that refused it. A
refused command changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.protocol.facts import Requeue

__all__ = [
    "Cancel",
    "Command",
    "Drain",
    "FinishedJob",
    "QueueChange",
    "SetUrgency",
    "Signal",
    "Submission",
    "Submit",
    "Undrain",
]


@dataclass(frozen=True, slots=True)
class Submission:
    """One job as a jobspec (RFC 14). Fields that the scheduler does not read go to the backend unchanged."""

    jobspec: str
    owner: str
    urgency: int = 16
    requeue: Requeue = Requeue.NEVER
    by_operator: bool = True  # False: the rules of the queue about its users hold


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """The outcome of a finished job, for jobs that depend on it."""

    job: int
    had_alloc: bool
    started: bool
    is_completed: bool
    had_exception: bool


@dataclass(frozen=True, slots=True)
class Submit:
    """Submits all of these jobs or none. Repeating a submission with the same key returns the same ids.

    `finished_jobs` contains the finished jobs on which these jobs depend. The scheduler keeps active jobs
    only, so the caller reads them from the store.
    """

    jobs: tuple[Submission, ...]
    key: str = ""
    finished_jobs: tuple[FinishedJob, ...] = ()


@dataclass(frozen=True, slots=True)
class Cancel:
    jobs: tuple[int, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class SetUrgency:
    job: int
    urgency: int
    by_operator: bool = True


@dataclass(frozen=True, slots=True)
class Signal:
    """Sends a signal to every running member of a job."""

    job: int
    signal: int


@dataclass(frozen=True, slots=True)
class QueueChange:
    """Enables or disables submission, starts or stops scheduling. None leaves a property as it is."""

    queue: str
    enabled: bool | None = None
    started: bool | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Drain:
    nodes: tuple[str, ...]
    reason: str = ""
    by: str = ""
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class Undrain:
    nodes: tuple[str, ...]


Command = Submit | Cancel | SetUrgency | Signal | QueueChange | Drain | Undrain
