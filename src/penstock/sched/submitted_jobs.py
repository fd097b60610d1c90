"""Jobs that users submit: their members are tasks, and the first failure ends the job."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Final

from penstock.engine.allocation import Slot
from penstock.model.job import ExceptionType
from penstock.model.jobid import encode_jobid
from penstock.protocol.facts import EndCause, MemberStatus, Requeue
from penstock.sched.job import Job, Member
from penstock.sched.jobspec import payload_of, tasks_on_slots
from penstock.sched.lifecycle import raise_exception
from penstock.sched.member_states import MemberPhase
from penstock.sched.ownership import Ownership
from penstock.sched.settings import Settings
from penstock.sched.state import SchedulerState

__all__ = ["SUBMITTED"]


class _SubmittedJobs:
    is_controlled = False

    def slots_of_members(self, job: Job, slots: Sequence[Slot]) -> list[tuple[Member, Slot]]:
        """Creates one member per task, in the order of the nodes."""
        nodes = [slot.node.name if slot.node is not None else "" for slot in slots]
        pairs: list[tuple[Member, Slot]] = []
        for index, position in enumerate(tasks_on_slots(job.spec, nodes)):
            member = Member(f"{job.id}/{job.attempt}/{index}", index, group=slots[position].group)
            job.add_member(member)
            pairs.append((member, slots[position]))
        return pairs

    def backend_spec(self, job: Job) -> dict[str, object]:
        own: dict[str, object] = {"id_f58": encode_jobid(job.id), "owner": job.owner}
        payload = payload_of(str(job.recorded_spec["jobspec"]))
        return {**payload, **own, "resources_by_node": dict(job.resources_by_node)}

    def is_elsewhere(self, member: Member, fact: MemberStatus) -> bool:
        del member, fact
        return False

    def member_ended(
        self, state: SchedulerState, job: Job, member: Member, fact: MemberStatus, now: float
    ) -> None:
        if fact.cause is EndCause.TIMEOUT and not job.is_ending:
            note = "resource allocation expired"
            raise_exception(state, job, now, ExceptionType.TIMEOUT, note, sent=signal.SIGALRM)
        elif fact.cause is EndCause.UNKNOWN:
            _fail(state, job, now, f"the end of task {member.index} is unknown")
        elif fact.cause not in (EndCause.EXITED, EndCause.SIGNALED) and fact.status != 0:
            _fail(state, job, now, member.cause_text)  # It could not be started.

    def member_vanished(self, state: SchedulerState, job: Job, member: Member, now: float) -> None:
        _fail(state, job, now, f"task {member.index} has vanished; its end is unknown")

    def node_failed(self, state: SchedulerState, job: Job, member: Member, now: float) -> None:
        rank = state.nodes.ranks.get(member.node, -1)
        _fail(state, job, now, f"node failure on {member.node} (rank {rank})")

    def is_replaced(self, state: SchedulerState, job: Job, member: Member) -> bool:
        del state, job, member
        return False

    def replacement_overdue(self, state: SchedulerState, job: Job, note: str, now: float) -> None:
        """Cannot be: nobody replaces tasks."""

    def repair_failed(self, state: SchedulerState, job: Job, note: str, now: float) -> None:
        raise_exception(state, job, now, ExceptionType.EXEC, note)

    def has_unplaced_members(self, job: Job) -> bool:
        return job.members_by_phase[MemberPhase.WAITING] > 0

    def may_grow(self, job: Job) -> bool:
        return self.has_unplaced_members(job)

    def keeps_allocation(self, job: Job) -> bool:
        return self.may_grow(job)

    def may_requeue(self, job: Job, settings: Settings) -> bool:
        """Only a job that the infrastructure has failed, not its user or its limit."""
        if not job.is_infrastructure_failure or job.attempt >= settings.attempts_max:
            return False
        if job.exception_type in (ExceptionType.CANCEL, ExceptionType.TIMEOUT):
            return False
        if job.spec.requeue is Requeue.ALWAYS:
            return True
        by_node = any(member.cause is EndCause.NODE_FAILURE for member in job.members.values())
        return job.spec.requeue is Requeue.NODE_FAILURE and by_node

    def is_ended_at_limit(self, state: SchedulerState, job: Job) -> bool:
        del state, job
        return True

    def backend_enforces_limit(self, state: SchedulerState, job: Job) -> bool:
        del state, job
        return True


def _fail(state: SchedulerState, job: Job, now: float, note: str) -> None:
    if not job.is_ending:
        raise_exception(state, job, now, ExceptionType.EXEC, note)


SUBMITTED: Final[Ownership] = _SubmittedJobs()
