"""Vacancies: places in a started group that members have left and their controllers fill again.

A member that fails or is deleted leaves a vacancy while the controllers of its workload want more members
than there are (`WorkloadSet.desired`). If its node is usable and has not refused it, its slot stays booked:
it is *kept* for the replacement. The next member of the workload fills the vacancy, and is its replacement:
it is scheduled before every other entry of the queue, on the kept slot if it fits there (`replacements`).

A member that was placed and had to return to the queue, because its node refused it, fills its own place and
is scheduled like a replacement.

A vacancy ends when its replacement is placed, when the controllers want fewer members, with the job, or
after the replacement timeout, when the group is reported as incomplete. A kept slot is released with its
vacancy, or earlier if its node goes down, is drained or removed, or if others fill it. A vacancy is recorded
with the member that has left it, and the replacement names that member.
"""

from __future__ import annotations

from bisect import bisect_right

from penstock.model.duration import format_duration
from penstock.model.job import JobState
from penstock.sched.job import Job, Member
from penstock.sched.member_states import MemberPhase
from penstock.sched.state import SchedulerState

__all__ = [
    "check_kept_slots",
    "describe",
    "describe_repair",
    "expire",
    "fill",
    "filled",
    "is_complete",
    "is_evicted_after_repair",
    "is_usable",
    "leave",
    "missing_members",
    "node_lost",
    "release_kept_slot",
    "replaced_member",
    "replacement_gone",
    "settle",
    "withdraw",
]

_NAMES_SHOWN = 3


def leave(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """A member has ended that its controller may replace. `settle` decides, at the end of the step."""
    member.vacant_since = now
    job.vacancies.add(member)
    state.journal.touch_member(job, member.key)
    state.wake(now + state.settings.replacement_timeout_s, job.id)


def fill(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """Lets a waiting member fill a vacancy, if there is one. The time to repair the group begins."""
    request = member.request.requests if member.request is not None else ()
    key = job.vacancies.take(member.index, request)
    if key is None:
        return
    job.set_replaces(member, key)
    state.journal.touch_member(job, member.key)
    state.worklist.enqueue_late(job.id, member.key)
    if job.incomplete_since is None:
        job.incomplete_since = now
        state.journal.touch(job)
        state.wake(now + state.settings.gang_repair_timeout_s, job.id)


def replaced_member(job: Job, replacement: Member) -> Member | None:
    """The member whose vacancy a waiting replacement fills; None if the vacancy has ended."""
    left = job.members.get(replacement.replaces)
    return left if left is not None and left.vacant_since is not None else None


def replacement_gone(
    state: SchedulerState, job: Job, replacement: Member, now: float, *, is_replaced: bool
) -> None:
    """A replacement is gone before it was placed: another one is to come, or the vacancy ends."""
    left = job.members.get(replacement.replaces)
    if is_replaced:
        leave(state, job, left if left is not None else replacement, now)
    elif left is not None and left.vacant_since is not None:
        withdraw(state, job, left)


def withdraw(state: SchedulerState, job: Job, left: Member) -> None:
    """Ends a vacancy, and releases its slot if it is kept."""
    release_kept_slot(state, job, left)
    left.vacant_since = None
    job.vacancies.remove(left.key)
    state.journal.touch_member(job, left.key)


def release_kept_slot(state: SchedulerState, job: Job, left: Member, *, is_booked: bool = True) -> None:
    """Stops keeping a slot. It is released at the end of the step if it is still booked."""
    if left.is_slot_kept:
        left.is_slot_kept = False
        state.members.release_kept(left.key, left.node)
        job.set_release_pending(left, is_booked)
        state.journal.touch_member(job, left.key)
        state.worklist.advance(job.id)


def check_kept_slots(state: SchedulerState, node: str) -> None:
    """Releases the slots that are kept on a node if it is down, drained, or has been filled by others."""
    for key in state.members.kept_on(node):
        job = state.jobs[state.members.job_of(key)]
        if not is_usable(state, job.members[key]):
            release_kept_slot(state, job, job.members[key])


def node_lost(state: SchedulerState, node: str) -> None:
    """Drops the slots that were kept on a removed node; their units are gone with it."""
    for key in state.members.kept_on(node):
        job = state.jobs[state.members.job_of(key)]
        release_kept_slot(state, job, job.members[key], is_booked=False)


def is_usable(state: SchedulerState, member: Member) -> bool:
    """Whether a replacement may take the slot of an ended member, as far as the node is concerned."""
    node = state.cluster.nodes.get(member.node)
    if node is None or not node.vertex.up or member.node in member.refused_by:
        return False
    return not state.cluster.is_overcommitted(member.node)


def missing_members(state: SchedulerState, job: Job) -> int | None:
    """How many members the controllers of a workload want besides those that are placed or replace one.

    None if its controllers are not known.
    """
    workload = state.workloads.get(job.workload)
    if workload is None or workload.desired is None:
        return None
    return workload.desired - (job.live_count - job.unowned_members) - len(job.replacements)


def settle(state: SchedulerState, job: Job, now: float) -> None:
    """Ends surplus vacancies, lets waiting members fill the others, and keeps the slots of the rest."""
    if not job.vacancies and not job.members_with_slots and not job.replacements:
        return
    if job.is_ending or job.state is not JobState.RUN or job.is_workload_gone:
        _withdraw_all(state, job)
        return
    missing = missing_members(state, job) or 0
    surplus = len(job.vacancies) - max(missing, 0)
    if surplus > 0:
        _withdraw_surplus(state, job, surplus)
    while job.vacancies and job.late_members:
        fill(state, job, job.members[next(iter(job.late_members))], now)
    kept = [
        left
        for key in job.members_with_slots
        if (left := job.members[key]).vacant_since is not None
        and left.slot in job.slots
        and is_usable(state, left)
    ]
    for left in kept:
        job.set_release_pending(left, False)
        left.is_slot_kept = True
        state.members.keep(left.key, left.node)
        state.journal.touch_member(job, left.key)
    if kept:
        names = ", ".join(f"{left.display_name} on {left.node}" for left in kept[:_NAMES_SHOWN])
        more = f" and {len(kept) - _NAMES_SHOWN} more" if len(kept) > _NAMES_SHOWN else ""
        plural = "s are" if len(kept) > 1 else " is"
        note = f"the slot{plural} kept for replacements of {names}{more}"
        state.journal.log(job, "memo", now, note=note)


def _withdraw_surplus(state: SchedulerState, job: Job, surplus: int) -> None:
    """Ends vacancies that are not filled: those of indexes that are final, then the latest."""
    workload = state.workloads.get(job.workload)
    ranges = workload.final_indexes if workload is not None else ()
    latest = list(job.vacancies)[::-1]
    latest.sort(key=lambda key: not _is_final(job.members[key].index, ranges))
    for key in latest[:surplus]:
        withdraw(state, job, job.members[key])


def _is_final(index: int, ranges: tuple[tuple[int, int], ...]) -> bool:
    position = bisect_right(ranges, index, key=lambda one: one[0])
    return position > 0 and index <= ranges[position - 1][1]


def _withdraw_all(state: SchedulerState, job: Job) -> None:
    for key in list(job.vacancies):
        withdraw(state, job, job.members[key])
    for key in job.replacements:
        left = replaced_member(job, job.members[key])
        if left is not None:
            withdraw(state, job, left)


def expire(state: SchedulerState, job: Job, now: float) -> list[Member]:
    """Ends the vacancies for which no replacement has appeared in time. Returns who has left them."""
    expired: list[Member] = []
    for key in job.vacancies:
        left = job.members[key]
        if left.vacant_since is None or left.vacant_since + state.settings.replacement_timeout_s > now:
            break  # They are in the order of their times.
        expired.append(left)
    for left in expired:
        withdraw(state, job, left)
    return expired


def describe(state: SchedulerState, job: Job, now: float) -> str:
    """For which replacements a started group waits, and how long; "" for none."""
    waiting = [job.members[key] for key in job.vacancies]
    if not waiting:
        return ""
    first = waiting[0]
    since_s = int(now - first.vacant_since) if first.vacant_since is not None else 0
    kept = f", its slot on {first.node} is kept" if first.is_slot_kept else ""
    more = f"; and for {len(waiting) - 1} more" if len(waiting) > 1 else ""
    until = format_duration(state.settings.replacement_timeout_s)
    text = f"waits for a replacement of {first.display_name} for {format_duration(since_s)}{kept}{more}"
    return f"{text}; after {until} it is reported as incomplete"


def describe_repair(state: SchedulerState, job: Job) -> str:
    """How long members of a started group may wait for a node, and what happens then."""
    within = format_duration(state.settings.gang_repair_timeout_s)
    if is_evicted_after_repair(state, job):
        return f" (if that lasts {within}, the group is evicted and starts again)"
    return f" (if that lasts {within}, it is reported as incomplete)"


def is_evicted_after_repair(state: SchedulerState, job: Job) -> bool:
    """Whether a group that cannot be completed starts again: nothing runs, and all members are recreated.

    After a member has succeeded, controllers keep fewer members than a start needs: that group would never
    assemble.
    """
    workload = state.workloads.get(job.workload)
    if workload is not None and workload.desired is not None and workload.desired < workload.size:
        return False
    return all(member.is_recreated and member.started_at is None for member in job.live_members())


def filled(state: SchedulerState, job: Job, replacement: Member, now: float) -> None:
    """A replacement is placed: its vacancy ends. A slot that was kept for it elsewhere is released."""
    left = replaced_member(job, replacement)
    if left is None:
        return
    withdraw(state, job, left)
    note = f"{replacement.display_name} replaces {left.display_name} on {replacement.node}"
    state.journal.log(job, "memo", now, note=note)


def is_complete(state: SchedulerState, job: Job) -> bool:
    """Whether a started group has all members that its controllers want, and none waits."""
    missing = missing_members(state, job)
    return missing is not None and missing <= 0 and not job.members_by_phase[MemberPhase.WAITING]
