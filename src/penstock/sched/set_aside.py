"""Jobs that are set aside: recorded, but not restored, because restoring or handling them has failed.

Nothing is scheduled, ended or recorded for such a job, unless its owner cancels it (`set_aside_cancel`). What
it has allocated stays booked, so that nobody else gets it, until its members end or are gone; that release is
not recorded, since the record is in doubt. If the allocation itself cannot be booked, its nodes get nothing
new until its members have left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from penstock.protocol.facts import MemberStatus, Phase, Snapshot
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import JobRow

if TYPE_CHECKING:
    from penstock.sched.state import SchedulerState

__all__ = [
    "SetAsideJob",
    "SetAsideJobs",
    "block_nodes_of",
    "member_left",
    "status_changed",
    "sweep_members",
    "unblock_nodes_of",
]


@dataclass(slots=True)
class SetAsideJob:
    row: JobRow
    reason: str
    slots: dict[str, int]  # of the members that may use their slot
    intents: tuple[int, ...] = ()  # recorded ones, not applied
    has_allocation: bool = False  # a recorded one
    blocked_nodes: tuple[str, ...] = ()  # they get nothing new, because its allocation is not booked


class SetAsideJobs:
    def __init__(self) -> None:
        self._jobs: dict[int, SetAsideJob] = {}
        self._job_of: dict[str, int] = {}  # by member

    def copy(self) -> SetAsideJobs:
        made = SetAsideJobs()
        for number, job in self._jobs.items():
            made._jobs[number] = replace(job, slots=dict(job.slots))
        made._job_of = dict(self._job_of)
        return made

    def add(self, row: JobRow, reason: str) -> None:
        slots = {member.key: member.slot for member in row.members if MemberPhase(member.phase).is_live}
        self._jobs[row.new.id] = SetAsideJob(row, reason, slots)
        self._job_of.update(dict.fromkeys(slots, row.new.id))

    def get(self, number: int) -> SetAsideJob | None:
        return self._jobs.get(number)

    def has_workload(self, workload: str) -> bool:
        return any(job.row.new.workload == workload for job in self._jobs.values())

    def job_of(self, member: str) -> SetAsideJob | None:
        number = self._job_of.get(member)
        return None if number is None else self._jobs[number]

    def remove_member(self, member: str) -> None:
        job = self._jobs[self._job_of.pop(member)]
        del job.slots[member]

    def remove(self, number: int) -> SetAsideJob:
        job = self._jobs.pop(number)
        for member in job.slots:
            del self._job_of[member]
        return job

    def note_intent(self, number: int, intent: int) -> None:
        job = self._jobs[number]
        job.intents = (*job.intents, intent)

    def is_node_blocked(self, node: str) -> bool:
        return any(node in job.blocked_nodes for job in self._jobs.values())

    def __contains__(self, number: object) -> bool:
        return number in self._jobs

    def __iter__(self) -> Iterator[int]:
        return iter(self._jobs)

    def __len__(self) -> int:
        return len(self._jobs)


def status_changed(state: SchedulerState, fact: MemberStatus) -> bool:
    """Handles a status of a member of a job that is set aside. Returns whether it was one."""
    if state.set_aside.job_of(fact.member) is None:
        return False
    if fact.phase is Phase.ENDED:
        member_left(state, fact.member)
    return True


def member_left(state: SchedulerState, member: str) -> bool:
    """Releases the slot of an ended or deleted member. Returns whether its job is set aside."""
    job = state.set_aside.job_of(member)
    if job is None:
        return False
    slot = job.slots[member]
    state.set_aside.remove_member(member)
    engine, number = state.cluster.engine, job.row.new.id
    if number in engine.jobs:
        if not job.slots:
            engine.release(number)
        elif slot >= 0 and slot not in job.slots.values():
            engine.release_slots(number, [slot])
        state.cluster.remove_retired(number)
        state.queue.mark_dirty()
    if not job.slots:
        unblock_nodes_of(state, job)
    return True


def sweep_members(state: SchedulerState, fact: Snapshot) -> None:
    """Releases the slots of members that were on a node and are absent from a snapshot.

    A member on a node that is not up may still run. One whose placement is not confirmed may be placed yet.
    """
    reported = {status.member for status in fact.statuses}
    for number in list(state.set_aside):
        job = state.set_aside.get(number)
        for member in job.row.members if job is not None else ():
            if member.key in reported or state.set_aside.job_of(member.key) is None:
                continue
            known = state.cluster.nodes.get(member.node)
            if member.phase is not MemberPhase.PLACING and (known is None or known.fact.up):
                member_left(state, member.key)


def block_nodes_of(state: SchedulerState, job: SetAsideJob) -> None:
    """Keeps everything off the nodes of a job whose allocation cannot be booked."""
    job.blocked_nodes = tuple(
        dict.fromkeys(member.node for member in job.row.members if member.key in job.slots)
    )
    for node in job.blocked_nodes:
        state.cluster.block(node, True)


def unblock_nodes_of(state: SchedulerState, job: SetAsideJob) -> None:
    """Lets others use the nodes of a job that has left them."""
    nodes, job.blocked_nodes = job.blocked_nodes, ()
    for node in nodes:
        if not state.set_aside.is_node_blocked(node):
            state.cluster.block(node, False)
            state.queue.mark_dirty()
