"""Releases the units of a job: slot by slot as members end, and the rest at its end, exactly once."""

from __future__ import annotations

from penstock.model.idset import encode_idset
from penstock.sched.job import Job
from penstock.sched.records import AllocationGone, SlotsFreed
from penstock.sched.state import SchedulerState

__all__ = ["free_all", "free_ended_slots", "free_slots", "record_release"]


def free_ended_slots(state: SchedulerState, job: Job, now: float) -> None:
    """Releases the slots of ended members, and unused slots on nodes that no member uses any more."""
    ended = [member for member in job.members.values() if member.slot_release_pending]
    live = job.live_members()
    if not ended or (not live and not job.ownership.keeps_allocation(job)):
        return  # Without a live member, `free_all` releases everything at once.
    for member in ended:
        member.slot_release_pending = False
    engine = state.cluster.engine
    holder = engine.jobs.get(job.id)
    if holder is None:
        return
    used = {other.slot for other in live}
    used_nodes = {other.node for other in live}
    left_nodes = {member.node for member in ended} - used_nodes
    ended_slots = {member.slot for member in ended} - used
    gone = [
        slot.number
        for part in holder.parts.values()
        for slot in part.slots
        if slot.number in ended_slots
        or (slot.number not in used and slot.node is not None and slot.node.name in left_nodes)
    ]
    if not gone:
        return
    free_slots(state, job, gone, now)
    ranks = [state.cluster.nodes[node].rank for node in left_nodes if node in state.cluster.nodes]
    if ranks:
        state.journal.log(job, "release", now, ranks=encode_idset(ranks), final=False)


def free_slots(state: SchedulerState, job: Job, slots: list[int], now: float) -> None:
    """Releases slots. With the last of them the allocation ends, until a late member starts another one."""
    engine = state.cluster.engine
    holder = engine.jobs.get(job.id)
    if holder is None:
        return
    there = {slot.number for part in holder.parts.values() for slot in part.slots}
    gone = tuple(slot for slot in slots if slot in there)
    if not gone:
        return
    if engine.release_slots(job.id, gone):
        record_release(state, job, now)
    else:
        state.journal.add(SlotsFreed(job.id, gone, now))
    state.queue.mark_dirty()


def record_release(state: SchedulerState, job: Job, now: float) -> None:
    """Records, once, that a job holds nothing any more."""
    if job.has_allocation:
        job.has_allocation = False
        state.journal.add(AllocationGone(job.id, now))


def free_all(state: SchedulerState, job: Job, now: float) -> None:
    engine = state.cluster.engine
    if job.id in engine.jobs:
        engine.release(job.id)
    record_release(state, job, now)
    state.queue.mark_dirty()
