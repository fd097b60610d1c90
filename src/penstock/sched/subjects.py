"""What the scheduler works on at the moment, so that an unexpected exception can name its culprit.

`SchedulerState.subject` is set before each fact, command, job or entry of the queue is looked at, at the cost
of one assignment. An exception that leaves the scheduler is wrapped in a `Fault` with the subject. The caller
then drops this state, which may be half changed, and goes on without the subject.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.errors import Defect
from penstock.protocol.facts import (
    ExternalUsageGone,
    ExternalUsageSet,
    Fact,
    IntentResult,
    MemberGone,
    MemberSet,
    MemberStatus,
    NodeGone,
    NodeSet,
    WorkloadGone,
    WorkloadSet,
)
from penstock.sched.job import Job
from penstock.sched.queue import QueueEntry

if TYPE_CHECKING:
    from penstock.sched.state import SchedulerState

__all__ = ["CommandAt", "Culprit", "CulpritKind", "Fault", "Noted", "subject_of", "subject_of_job"]


class CulpritKind(enum.Enum):
    """The values are labels of a metric."""

    WORKLOAD = "workload"
    JOB = "job"  # a submitted one
    NODE = "node"
    EXTERNAL_USAGE = "external-usage"
    INTENT = "intent"  # a recorded one, of no active job
    COMMAND = "command"


@dataclass(frozen=True, slots=True)
class Culprit:
    kind: CulpritKind
    key: str  # of a job or an intent: its number; of a command: its position among the commands of the batch
    node: str = ""  # of external usage: where it is

    def __str__(self) -> str:
        return "a command" if self.kind is CulpritKind.COMMAND else f"{self.kind.value} {self.key}"


@dataclass(frozen=True, slots=True)
class CommandAt:
    """A command, by its position among the commands of a step."""

    index: int


Noted = Fact | CommandAt | Job | QueueEntry | None


class Fault(Defect):
    """An unexpected exception. `subject` is None if it cannot be attributed."""

    def __init__(self, subject: Culprit | None, error: Exception) -> None:
        self.subject = subject
        self.error = error
        what = f" while {subject} was handled" if subject is not None else ""
        super().__init__(f"internal error{what}: {type(error).__name__}: {error}")


def subject_of(state: SchedulerState, noted: Noted) -> Culprit | None:
    match noted:
        case CommandAt(index):
            return Culprit(CulpritKind.COMMAND, str(index))
        case Job():
            return subject_of_job(noted.id, noted.workload)
        case QueueEntry():
            return _of_number(state.jobs, noted.job)
        case WorkloadSet() | WorkloadGone() | MemberSet():
            return Culprit(CulpritKind.WORKLOAD, noted.workload)
        case MemberGone():
            return _of_number(state.jobs, state.members.job_of(noted.member))
        case MemberStatus():
            found = _of_number(state.jobs, state.members.job_of(noted.member))
            return found or Culprit(CulpritKind.EXTERNAL_USAGE, noted.member, noted.node)
        case IntentResult():
            known = state.intents.get(noted.intent)
            return _of_number(state.jobs, known.intent.job) if known is not None else None
        case ExternalUsageSet():
            return Culprit(CulpritKind.EXTERNAL_USAGE, noted.key, noted.node)
        case ExternalUsageGone():
            known_usage = state.cluster.external_usage(noted.key)
            node = known_usage.node if known_usage is not None else ""
            return Culprit(CulpritKind.EXTERNAL_USAGE, noted.key, node)
        case NodeSet() | NodeGone():
            return Culprit(CulpritKind.NODE, noted.node)
    return None


def subject_of_job(number: int, workload: str) -> Culprit:
    return Culprit(CulpritKind.WORKLOAD, workload) if workload else Culprit(CulpritKind.JOB, str(number))


def _of_number(jobs: Mapping[int, Job], number: int) -> Culprit | None:
    job = jobs.get(number)
    return subject_of_job(job.id, job.workload) if job is not None else None
