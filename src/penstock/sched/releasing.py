"""Releases the units of a job: slot by slot as members end, and the rest at its end, exactly once."""

from __future__ import annotations

from penstock.model.idset import encode_idset
from penstock.sched.allocation_records import slot_record
from penstock.sched.job import Job
from penstock.sched.records import AllocationGone, SlotChanged, SlotsFreed
from penstock.sched.state import SchedulerState

__all__ = [
    "free_all",
    "free_ended_slots",
    "free_slots",
    "record_changed_slots",
    "record_freed_slots",
    "record_release",
    "used_slots",
]


def free_ended_slots(state: SchedulerState, job: Job, now: float) -> None:
    """Releases the slots of ended members, and unused slots on nodes that no member uses any more."""
    ended = [job.members[key] for key in job.members_with_slots]
    if not ended or (not job.has_live_members and not job.ownership.keeps_allocation(job)):
        return  # Without a live member, `free_all` releases everything at once.
    for member in ended:
        job.set_release_pending(member, False)
        state.journal.touch_member(job, member.key)
    if job.id not in state.cluster.engine.jobs:
        return
    gone: dict[int, None] = {}
    left_nodes: dict[str, None] = {}
    for node in dict.fromkeys(member.node for member in ended):
        used = used_slots(state, job, node)
        here = (member.slot for member in ended if member.node == node)
        gone.update((slot, None) for slot in here if slot not in used)
        if not used:
            left_nodes[node] = None
            gone.update((slot, None) for slot in job.slots.on_node(node) if node)
    if not free_slots(state, job, list(gone), now):
        return
    ranks = [state.cluster.nodes[node].rank for node in left_nodes if node in state.cluster.nodes]
    if ranks:
        state.journal.log(job, "release", now, ranks=encode_idset(ranks), final=False)


def used_slots(state: SchedulerState, job: Job, node: str) -> set[int]:
    """The slots of a job that its live members on a node use, or that are kept there for replacements."""
    keys = (*state.members.on_node(node), *state.members.kept_on(node))
    return {job.members[key].slot for key in keys if key in job.members}


def free_slots(state: SchedulerState, job: Job, slots: list[int], now: float) -> bool:
    """Releases slots. With the last of them the allocation ends, until a late member starts another one.

    Returns whether any of them was booked.
    """
    engine = state.cluster.engine
    gone = [slot for slot in sorted(set(slots)) if slot in job.slots]
    if not gone or job.id not in engine.jobs:
        return False
    if engine.release_slots(job.id, gone):
        record_release(state, job, now)
    else:
        record_freed_slots(state, job, gone)
    _note_released(state, job)
    return True


def record_freed_slots(state: SchedulerState, job: Job, slots: list[int]) -> None:
    """Records that the engine has released some slots of a job."""
    parts = dict.fromkeys(job.slots.remove(slot) for slot in slots)
    held = state.cluster.engine.jobs[job.id].parts
    ended = tuple(part for part in parts if part not in held)
    state.journal.add(SlotsFreed(job.id, tuple(slots), ended))


def record_changed_slots(state: SchedulerState, job: Job, slots: list[int]) -> None:
    """Records what some slots of a job hold."""
    holder = state.cluster.engine.jobs[job.id]
    for number in slots:
        part = holder.part_of_slot(number)
        slot = holder.parts[part].slot(number) if part is not None else None
        if slot is not None:
            state.journal.add(SlotChanged(job.id, slot_record(slot)))


def record_release(state: SchedulerState, job: Job, now: float) -> None:
    """Records, once, that a job holds nothing any more."""
    job.slots.clear()
    if job.has_allocation:
        job.has_allocation = False
        state.journal.add(AllocationGone(job.id, now))


def free_all(state: SchedulerState, job: Job, now: float) -> None:
    engine = state.cluster.engine
    if job.id in engine.jobs:
        engine.release(job.id)
    record_release(state, job, now)
    _note_released(state, job)


def _note_released(state: SchedulerState, job: Job) -> None:
    """Lets others use what a job has released, without units that its nodes do not report any more."""
    state.cluster.remove_retired(job.id)
    state.queue.mark_dirty()
