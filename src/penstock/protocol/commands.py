"""What people ask of the scheduler. A wish takes the same road as a fact, and is answered with a reply."""

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
    """One job. Its text is a jobspec; what the core does not read in it goes to the driver as it is."""

    jobspec: str
    owner: str
    urgency: int = 16
    requeue: Requeue = Requeue.NEVER


@dataclass(frozen=True, slots=True)
class FinishedJob:
    """What became of a job that is over, for those that depend on it."""

    job: int
    had_alloc: bool
    started: bool
    is_completed: bool
    had_exception: bool


@dataclass(frozen=True, slots=True)
class Submit:
    """All of these or none. The same key again is the same request again, and gets the same ids.

    `finished_jobs` has the jobs that are over and that some of these depend on, as far as there are such.
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


@dataclass(frozen=True, slots=True)
class Signal:
    """To every running member of a job."""

    job: int
    signal: int


@dataclass(frozen=True, slots=True)
class QueueChange:
    """None: as it is."""

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
