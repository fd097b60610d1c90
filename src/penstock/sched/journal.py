"""The changes and outputs of one step, in order.

The caller of the scheduler commits the changes before any intent is applied and before any command is
answered.
"""

from __future__ import annotations

from typing import Final

from penstock.model.job import JobEvent, next_state
from penstock.protocol.intents import Intent, StatusUpdate
from penstock.sched.job import Job, Member, live_of, member_record
from penstock.sched.member_states import MemberEvent, next_phase
from penstock.sched.records import Change, ExceptionRecord, JobLogged, MemberDropped, MemberRecorded

__all__ = ["Journal"]


_DETAILS_MAX: Final = 500  # A workload that replaces its members for months must not grow its eventlog.
_NO_MORE_DETAILS: Final = "further events of single members are not logged"


class Journal:
    def __init__(self) -> None:
        self._changes: list[Change] = []
        self._touched: dict[int, Job] = {}
        self._touched_members: dict[tuple[int, str], Job] = {}
        self.intents: list[Intent] = []
        self.probes: list[str] = []
        self.status_updates: dict[tuple[str, str], StatusUpdate] = {}  # by workload and member
        self._status_touched: dict[int, Job] = {}
        self.forgotten: list[str] = []  # members whose end is recorded with this step

    def is_empty(self) -> bool:
        return not any(vars(self).values())

    def add(self, change: Change) -> None:
        self._changes.append(change)

    def touch(self, job: Job) -> None:
        """Records the job itself with this step, without its members."""
        self._touched[job.id] = job

    def touch_status(self, job: Job) -> None:
        """Publishes the status of a job at the end of this step, as of every job that it records."""
        self._status_touched[job.id] = job

    def take_status_touched(self) -> list[Job]:
        """The jobs whose status may have changed in this step."""
        taken, self._status_touched = self._status_touched, {}
        return list({**self._touched, **taken}.values())

    def touch_member(self, job: Job, key: str) -> None:
        """Records a member with this step, or that the job has dropped it."""
        self._touched_members[(job.id, key)] = job

    def change_phase(self, job: Job, member: Member, event: MemberEvent) -> bool:
        """Lets an event happen to a member. Returns whether its phase has changed; if not, it is ignored."""
        phase = next_phase(member.phase, event)
        if phase is member.phase:
            return False
        job.set_phase(member, phase)
        self.touch_member(job, member.key)
        return True

    def log(self, job: Job, name: str, at: float, **context: object) -> None:
        event = JobEvent(at, name, context)
        if event.is_detail:
            job.details_logged += 1
            if job.details_logged > _DETAILS_MAX:
                return
            if job.details_logged == _DETAILS_MAX:
                event = JobEvent(at, "memo", {"note": _NO_MORE_DETAILS})
        before, job.state = job.state, next_state(job.state, event)
        job.log.append(event)
        if job.state is not before:
            job.times[job.state.value] = at
        if event.is_fatal and job.exception is None:
            job.exception = ExceptionRecord(str(context["type"]), 0, str(context.get("note", "")))
        self._changes.append(JobLogged(job.id, len(job.log) - 1, event))
        self._touched[job.id] = job

    def take(self) -> tuple[Change, ...]:
        """Removes and returns the changes of the step. Intents and status updates stay."""
        live: list[Change] = [live_of(job) for job in self._touched.values()]
        members: list[Change] = []
        for (number, key), job in self._touched_members.items():
            member = job.members.get(key)
            if member is not None:
                members.append(MemberRecorded(number, member_record(member)))
            else:
                members.append(MemberDropped(number, key))
        changes = (*self._changes, *live, *members)
        self._changes = []
        self._touched, self._touched_members = {}, {}
        return changes
