"""The job state machine as a table: state x event -> state, with every pair decided (RFC 21, RFC 18).

States and events are those of Flux, plus `requeue`, `assemble` and `promise`. A pair that is not in the table
leaves the state unchanged if the event can occur at any time (`ANYTIME`). Every other pair is a defect of the
code that logs it, and raises an exception instead of writing a wrong eventlog.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import Corrupt

__all__ = [
    "ANYTIME",
    "EVENTS",
    "TABLE",
    "URGENCY_DEFAULT",
    "URGENCY_EXPEDITE",
    "URGENCY_HOLD",
    "JobEvent",
    "JobState",
    "Result",
    "next_state",
    "result_of",
    "state_after",
]

URGENCY_HOLD: Final = 0
URGENCY_DEFAULT: Final = 16
URGENCY_EXPEDITE: Final = 31


class JobState(enum.Enum):
    NEW = "NEW"
    DEPEND = "DEPEND"
    PRIORITY = "PRIORITY"
    SCHED = "SCHED"
    RUN = "RUN"
    CLEANUP = "CLEANUP"
    INACTIVE = "INACTIVE"

    @property
    def letter(self) -> str:
        return self.value[0]

    @property
    def is_pending(self) -> bool:
        return self in (JobState.DEPEND, JobState.PRIORITY, JobState.SCHED)

    @property
    def is_active(self) -> bool:
        return self not in (JobState.NEW, JobState.INACTIVE)


class ExceptionType(enum.Enum):
    """The type of an `exception` event that the scheduler raises, as Flux users know it from an eventlog."""

    CANCEL = "cancel"  # by a user, or because the workload is gone
    TIMEOUT = "timeout"  # the time limit has passed
    DEPENDENCY = "dependency"  # a dependency can never be satisfied
    ASSEMBLY = "assembly"  # too few members became ready within the assembly timeout
    ALLOC = "alloc"  # a node refused a member
    EXEC = "exec"  # a member could not be started, or was lost
    INCOMPLETE = "incomplete"  # a started group cannot be completed
    REQUEUE = "requeue"  # a group is evicted in order to start again as a whole


class Result(enum.Enum):
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    TIMEOUT = "TIMEOUT"

    @property
    def abbreviation(self) -> str:
        return {"COMPLETED": "CD", "FAILED": "F", "CANCELED": "CA", "TIMEOUT": "TO"}[self.value]


@dataclass(frozen=True, slots=True)
class JobEvent:
    """One line of a job's eventlog."""

    at: float  # seconds since 1970
    name: str
    context: dict[str, object] = field(default_factory=dict)

    @property
    def is_fatal(self) -> bool:
        return self.name == "exception" and self.context.get("severity") == 0

    @property
    def is_detail(self) -> bool:
        """It tells of one member, and leaves the state as it is: a workload may log these without end."""
        if self.name == "exception":
            return not self.is_fatal
        return self.name == "memo" or (self.name == "release" and not self.context.get("final"))


_S: Final = JobState

# Pairs that change the state. `exception` is an exception of severity 0.
TABLE: Final[dict[tuple[JobState, str], JobState]] = {
    (_S.NEW, "submit"): _S.NEW,
    (_S.NEW, "validate"): _S.DEPEND,
    (_S.DEPEND, "depend"): _S.PRIORITY,
    (_S.PRIORITY, "priority"): _S.SCHED,
    (_S.SCHED, "alloc"): _S.RUN,
    (_S.SCHED, "urgency"): _S.PRIORITY,
    (_S.SCHED, "jobspec-update"): _S.PRIORITY,
    (_S.SCHED, "flux-restart"): _S.PRIORITY,
    (_S.SCHED, "priority"): _S.SCHED,
    (_S.RUN, "start"): _S.RUN,
    (_S.RUN, "finish"): _S.CLEANUP,
    (_S.CLEANUP, "finish"): _S.CLEANUP,
    (_S.RUN, "release"): _S.RUN,
    (_S.CLEANUP, "release"): _S.CLEANUP,
    (_S.CLEANUP, "free"): _S.CLEANUP,
    (_S.CLEANUP, "requeue"): _S.PRIORITY,
    (_S.CLEANUP, "clean"): _S.INACTIVE,
    (_S.DEPEND, "exception"): _S.CLEANUP,
    (_S.PRIORITY, "exception"): _S.CLEANUP,
    (_S.SCHED, "exception"): _S.CLEANUP,
    (_S.RUN, "exception"): _S.CLEANUP,
    (_S.CLEANUP, "exception"): _S.CLEANUP,
    (_S.DEPEND, "urgency"): _S.DEPEND,
    (_S.PRIORITY, "urgency"): _S.PRIORITY,
    (_S.DEPEND, "dependency-add"): _S.DEPEND,
    (_S.NEW, "dependency-add"): _S.NEW,
    (_S.DEPEND, "dependency-remove"): _S.DEPEND,
    (_S.DEPEND, "assemble"): _S.DEPEND,
    (_S.DEPEND, "jobspec-update"): _S.DEPEND,
    (_S.PRIORITY, "jobspec-update"): _S.PRIORITY,
    (_S.RUN, "resource-update"): _S.RUN,
    (_S.SCHED, "promise"): _S.SCHED,
}

# Events that can occur at any time for an active job and do not change its state. `warning` is an exception
# of a severity above 0.
ANYTIME: Final = frozenset({"memo", "set-flags", "warning"})

EVENTS: Final = tuple(sorted({event for _, event in TABLE} | ANYTIME))


def next_state(state: JobState, event: JobEvent) -> JobState:
    """The state after an event. An impossible pair raises `Corrupt`."""
    name = "warning" if event.name == "exception" and not event.is_fatal else event.name
    found = TABLE.get((state, name))
    if found is not None:
        return found
    if name in ANYTIME and state.is_active:
        return state
    raise Corrupt(f"event {event.name} cannot come in state {state.value}")


def state_after(log: Iterable[JobEvent]) -> JobState:
    """The state that an eventlog leads to."""
    state = JobState.NEW
    for event in log:
        state = next_state(state, event)
    return state


# An exception of any other type means that the job failed.
_RESULTS: Final = {
    ExceptionType.CANCEL.value: Result.CANCELED,
    ExceptionType.TIMEOUT.value: Result.TIMEOUT,
}


def result_of(log: Iterable[JobEvent]) -> tuple[Result, int]:
    """Result and wait status of the last run in an eventlog, as `flux jobs` shows them."""
    status: int | None = None
    worst: JobEvent | None = None
    for event in log:
        if event.name == "requeue":
            status, worst = None, None
        elif event.is_fatal and worst is None:
            worst = event
        elif event.name == "finish":
            found = event.context.get("status", 0)
            status = found if isinstance(found, int) else 0
    if worst is not None:
        result = _RESULTS.get(str(worst.context.get("type")), Result.FAILED)
        return result, status or 256
    return (Result.COMPLETED, 0) if status == 0 else (Result.FAILED, 256 if status is None else status)
