"""What time brings about: begin times, failed assembly, lost members, limits, repairs that take too long."""

from __future__ import annotations

import signal
from math import inf
from typing import Final

from penstock.model.job import ExceptionType, JobState
from penstock.protocol.intents import EndReason
from penstock.sched import gangs, members
from penstock.sched.dependencies import begin_time_text
from penstock.sched.job import Job
from penstock.sched.lifecycle import end_members, leave_depend, node_failed, raise_exception
from penstock.sched.member_states import MemberPhase
from penstock.sched.overruns import extend_overrun, overrun_at
from penstock.sched.state import SchedulerState

__all__ = ["fire_timers"]

_KILL_AGAIN_S: Final = 60.0  # interval in which a job that must end and does not is killed again


def fire_timers(state: SchedulerState, now: float) -> None:
    """Looks at the jobs whose timers are due."""
    for number in state.timers.take_due(now):
        job = state.jobs.get(number)
        if job is not None:
            state.subject = job
            _check_deadlines(state, job, now)
    state.subject = None
    if state.queue.starving.take_due(now):
        state.queue.mark_dirty()


def _check_deadlines(state: SchedulerState, job: Job, now: float) -> None:
    settings = state.settings
    begin_at = job.spec.begin_at if job.state is JobState.DEPEND else None
    if job.waits_for_begin_time and begin_at is not None and begin_at <= now:
        job.waits_for_begin_time = False
        state.journal.log(job, "dependency-remove", now, description=begin_time_text(begin_at))
        leave_depend(state, job, now)
    # Members that have appeared since a restart are known from the first snapshot on.
    workload = state.workloads.get(job.workload) if state.cluster.is_synced else None
    until = gangs.assembly_deadline(job, workload) if workload is not None and not job.is_assembled else None
    if workload is not None and until is not None and until <= now:
        note = f"only {job.members_ready} of {workload.size} members became ready within the assembly timeout"
        raise_exception(state, job, now, ExceptionType.ASSEMBLY, note)
    for member in list(job.members.values()) if job.members_by_phase[MemberPhase.LOST] else ():
        if member.phase is MemberPhase.LOST and (member.lost_at or 0) + settings.lost_timeout_s <= now:
            node_failed(state, job, member, now)
    _check_limit(state, job, now)
    since = job.incomplete_since
    if (
        since is not None
        and since + settings.gang_repair_timeout_s <= now
        and job.state is JobState.RUN
        and not job.incomplete_reason
    ):
        members.end_repair(state, job, now)
    members.end_replacement_wait(state, job, now)


def _check_limit(state: SchedulerState, job: Job, now: float) -> None:
    """Ends a job at its limit if its backend does not, or has not done so."""
    if job.end_at is None or job.end_at > now or not job.has_live_members:
        return
    backstop_at = overrun_at(job.end_at, state.settings)
    if job.ownership.backend_enforces_limit(state, job) and now < backstop_at:
        state.wake(backstop_at, job.id)
        return
    if not job.is_ending and job.ownership.is_ended_at_limit(state, job):
        raise_exception(
            state, job, now, ExceptionType.TIMEOUT, "resource allocation expired", sent=signal.SIGALRM
        )
    elif job.is_ending:
        end_members(state, job, signal.SIGKILL, 0.0, EndReason.TIMEOUT)
    until = backstop_at if now < backstop_at else extend_overrun(state, job, now)
    if job.is_ending:
        state.wake(min(now + _KILL_AGAIN_S, until or inf), job.id)
    elif until is not None:
        state.wake(until, job.id)
