"""The changes and outputs of one step, in order.

The caller of the scheduler commits the changes before any intent is applied and before any command is
answered.
"""

from __future__ import annotations

from penstock.model.job import JobEvent, next_state
from penstock.protocol.intents import Intent, StatusUpdate
from penstock.sched.job import Job, dump
from penstock.sched.records import Change, JobLive, JobLogged

__all__ = ["Journal", "live_of"]


class Journal:
    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._touched: dict[int, Job] = {}
        self.intents: list[Intent] = []
        self.probes: list[str] = []
        self.status_updates: dict[str, StatusUpdate] = {}
        self.forgotten: list[str] = []  # members whose end is recorded with this step

    def add(self, change: Change) -> None:
        self._changes.append(change)

    def touch(self, job: Job) -> None:
        self._touched[job.id] = job

    def log(self, job: Job, name: str, at: float, **context: object) -> None:
        event = JobEvent(at, name, context)
        before, job.state = job.state, next_state(job.state, event)
        job.log.append(event)
        if job.state is not before:
            job.times[job.state.value] = at
        if event.is_fatal and not job.exception:
            job.exception = dict(context)
        self._changes.append(JobLogged(job.id, len(job.log) - 1, event))
        self._touched[job.id] = job

    def take(self) -> tuple[Change, ...]:
        """Removes and returns the changes of the step. Intents and status updates stay."""
        live: list[Change] = [live_of(job) for job in self._touched.values()]
        changes = (*self._changes, *live)
        self._changes = []
        self._touched = {}
        return changes


def live_of(job: Job) -> JobLive:
    return JobLive(
        id=job.id,
        state=job.state,
        queue=job.queue,
        urgency=job.urgency,
        priority=job.priority,
        result=job.result,
        status=job.status,
        started_at=job.started_at,
        ended_at=job.ended_at,
        detail=dump(job),
    )
