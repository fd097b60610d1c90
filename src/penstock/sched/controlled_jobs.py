"""Jobs of workloads: a controller owns their members, replaces them, and decides what a failure means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from penstock.engine.allocation import Slot
from penstock.model.job import ExceptionType, JobState
from penstock.protocol.facts import EndCause, MemberStatus, Phase, Requeue
from penstock.protocol.intents import WorkloadStatus
from penstock.sched import vacancies
from penstock.sched.job import Job, Member
from penstock.sched.lifecycle import evict_group
from penstock.sched.ownership import Ownership
from penstock.sched.settings import Settings
from penstock.sched.state import SchedulerState

__all__ = ["CONTROLLED"]


class _ControlledJobs:
    is_controlled = True

    def slots_of_members(self, job: Job, slots: Sequence[Slot]) -> list[tuple[Member, Slot]]:
        """Gives each member that starts with its job a slot of its group. The others join the job later."""
        groups = job.assembly.group_numbers()
        job.assembly.clear()
        waiting = [job.members[key] for key in groups]
        for member in waiting:
            member.group = groups[member.key]
        left: dict[int, list[Slot]] = {}
        for slot in reversed(slots):
            left.setdefault(slot.group, []).append(slot)
        waiting.sort(key=lambda member: (member.group, member.index, member.key))
        return [(member, left[member.group].pop()) for member in waiting if left.get(member.group)]

    def backend_spec(self, job: Job) -> dict[str, object]:
        del job
        return {}

    def is_elsewhere(self, member: Member, fact: MemberStatus) -> bool:
        is_there = fact.phase in (Phase.PLACED, Phase.RUNNING) and bool(fact.node)
        return is_there and member.node != fact.node

    def member_ended(
        self, state: SchedulerState, job: Job, member: Member, fact: MemberStatus, now: float
    ) -> None:
        """Requeues the group, repairs it, or reports it as incomplete, if a member has failed."""
        if job.is_ending or job.state is not JobState.RUN:
            return
        if fact.status != 0 and _requeue(state, job, now, member):
            return
        if fact.started or fact.status == 0:
            return
        cause = member.cause_text or "no cause was given"
        note = f"{member.display_name} was not started on {member.node}: {cause}"
        state.journal.log(job, "exception", now, type=ExceptionType.ALLOC.value, severity=2, note=note)
        member.refused_by |= {member.node}
        if member.vacant_since is not None:
            return  # The time to repair the group begins with its replacement.
        if member.is_recreated:
            if job.incomplete_since is None:
                job.incomplete_since = now
                state.wake(now + state.settings.gang_repair_timeout_s, job.id)
        elif len(job.members) > 1:
            _mark_incomplete(state, job, note, now)

    def member_vanished(self, state: SchedulerState, job: Job, member: Member, now: float) -> None:
        """The owner notices it too."""

    def node_failed(self, state: SchedulerState, job: Job, member: Member, now: float) -> None:
        _requeue(state, job, now, member)

    def is_replaced(self, state: SchedulerState, job: Job, member: Member) -> bool:
        """A member that succeeded is not; in a job that ends, or whose controllers are unknown, nobody is."""
        workload = state.workloads.get(job.workload)
        if workload is None or workload.desired is None or not member.is_recreated:
            return False
        has_failed = member.status != 0 or member.cause is not EndCause.EXITED
        return has_failed and job.state is JobState.RUN and not job.is_ending

    def replacement_overdue(self, state: SchedulerState, job: Job, note: str, now: float) -> None:
        if not _has_minimum(state, job):
            _mark_incomplete(state, job, note, now)

    def repair_failed(self, state: SchedulerState, job: Job, note: str, now: float) -> None:
        """Evicts a group of which nothing has run, if controllers replace all of its members.

        What has run is not evicted because another member is late: the group is reported as incomplete. One
        that still has as many members as it needs is not.
        """
        if _has_minimum(state, job):
            job.incomplete_since = None
            state.journal.touch(job)
            return
        if vacancies.is_evicted_after_repair(state, job):
            evict_group(state, job, now, ExceptionType.INCOMPLETE, note)
            return
        _mark_incomplete(state, job, note, now)

    def has_unplaced_members(self, job: Job) -> bool:
        """Those that replace others do; further ones join the group when there is room."""
        return any(job.members[key].is_ready for key in job.replacements)

    def may_grow(self, job: Job) -> bool:
        return not job.is_workload_gone

    def keeps_allocation(self, job: Job) -> bool:
        return not job.is_workload_gone

    def may_requeue(self, job: Job, settings: Settings) -> bool:
        """Never: the members that are left, and replacements, form the next job of the workload."""
        del job, settings
        return False

    def is_ended_at_limit(self, state: SchedulerState, job: Job) -> bool:
        return not self.backend_enforces_limit(state, job)

    def backend_enforces_limit(self, state: SchedulerState, job: Job) -> bool:
        workload = state.workloads.get(job.workload)
        return workload.enforced_by_backend if workload is not None else True


def _requeue(state: SchedulerState, job: Job, now: float, failed: Member) -> bool:
    """Evicts a group for another start, if its policy says so and controllers replace all of its members."""
    workload = state.workloads.get(job.workload)
    policy = workload.requeue if workload is not None else Requeue.NEVER
    by_node = failed.cause is EndCause.NODE_FAILURE
    is_wanted = policy is Requeue.ALWAYS or (policy is Requeue.NODE_FAILURE and by_node)
    if not is_wanted or not all(member.is_recreated for member in job.members.values()):
        return False
    note = f"a member has failed ({failed.cause_text or 'by itself'}): the group starts again"
    evict_group(state, job, now, ExceptionType.REQUEUE, note)
    return True


def _has_minimum(state: SchedulerState, job: Job) -> bool:
    """Whether as many members have a node as the workload needs to start."""
    workload = state.workloads.get(job.workload)
    return workload is not None and job.live_count >= max(workload.size, 1)


def _mark_incomplete(state: SchedulerState, job: Job, note: str, now: float) -> None:
    """Reports a started group that cannot be completed and whose members cannot all be evicted."""
    job.incomplete_reason = job.incomplete_reason or note
    state.journal.log(job, "exception", now, type=ExceptionType.INCOMPLETE.value, severity=1, note=note)
    state.publish_status(job, WorkloadStatus.INCOMPLETE, note)


CONTROLLED: Final[Ownership] = _ControlledJobs()
