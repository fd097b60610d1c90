"""Snapshots: the complete state of a backend, after a start or after a watch was interrupted.

What is absent from a snapshot is gone. The first snapshot of a term also restores recorded allocations,
because only then are the nodes known. Each difference between record and snapshot has one repair; the table
is in docs/explanation/recovery.md.
"""

from __future__ import annotations

from penstock.protocol.facts import EndCause, ExternalUsageGone, NodeGone, Snapshot, WorkloadGone
from penstock.sched import gangs, members, nodes, set_aside, vacancies
from penstock.sched.cluster import Restored
from penstock.sched.job import Job
from penstock.sched.lifecycle import member_ended, node_failed, return_to_queue
from penstock.sched.limit_changes import restore_end
from penstock.sched.member_states import MemberPhase
from penstock.sched.overruns import extend_overrun
from penstock.sched.records import SlotsFreed
from penstock.sched.releasing import record_release
from penstock.sched.state import SchedulerState

__all__ = ["handle_snapshot"]


def handle_snapshot(state: SchedulerState, fact: Snapshot, now: float) -> None:
    node_names = {node.node for node in fact.nodes}
    for node in sorted(
        fact.nodes, key=lambda node: (state.nodes.ranks.get(node.node, 1 << 62), _natural_key(node.node))
    ):
        state.subject = node
        nodes.node_set(state, node)
    for name in [name for name in state.cluster.nodes if name not in node_names]:
        state.subject = NodeGone(name)
        nodes.node_gone(state, name, now)
    state.subject = None
    state.cluster.apply_updates()
    _restore_allocations(state, now)
    if not state.cluster.is_synced:
        _drop_unrestored_members(state, node_names, now)
    state.cluster.is_synced = True
    reported = {status.member for status in fact.statuses}
    _replace_external_usage(state, fact, reported)
    for workload in fact.workloads:
        state.subject = workload
        gangs.workload_set(state, workload, now)
    for member in fact.members:
        state.subject = member
        gangs.member_set(state, member, now)
    for status in fact.statuses:
        state.subject = status
        if not set_aside.status_changed(state, status):
            members.member_status_changed(state, status, now)
    _end_absent_workloads(state, fact, reported, now)
    _end_absent_members(state, node_names, reported, now)
    state.subject = None
    set_aside.sweep_members(state, fact)
    state.intents.resend_all()


def _restore_allocations(state: SchedulerState, now: float) -> None:
    for recorded in state.cluster.take_recorded():
        aside = state.set_aside.get(recorded.job)
        if aside is not None:
            try:
                state.cluster.restore(recorded)
            except Exception:  # It is set aside because of errors like this one.
                set_aside.block_nodes_of(state, aside)
        elif recorded.job in state.jobs:
            state.subject = state.jobs[recorded.job]
            _note_restored(state, state.cluster.restore(recorded), now)


def _note_restored(state: SchedulerState, restored: Restored, now: float) -> None:
    """Notes the slots of a restored allocation. Deletes the records of slots that are gone with nodes."""
    job = state.jobs[restored.job]
    holder = state.cluster.engine.jobs.get(job.id)
    if holder is None:
        record_release(state, job, now)
        return
    for key, part in holder.parts.items():
        for slot in part.slots:
            job.slots.add(slot.number, key, slot.node.name if slot.node is not None else "")
    restore_end(state, job)
    extend_overrun(state, job, now)  # Its recorded end is that of its limit.
    if restored.lost_slots or restored.lost_parts:
        state.journal.add(SlotsFreed(job.id, restored.lost_slots, restored.lost_parts))


def _replace_external_usage(state: SchedulerState, fact: Snapshot, reported: set[str]) -> None:
    present = {usage.key for usage in fact.external_usage}
    present |= {nodes.ORPHAN_KEY + member for member in reported}
    for key in state.cluster.external_usage_keys():
        if key not in present:
            state.subject = ExternalUsageGone(key)
            nodes.external_usage_gone(state, key)
    for usage in fact.external_usage:
        state.subject = usage
        nodes.external_usage_set(state, usage)


def _drop_unrestored_members(state: SchedulerState, node_names: set[str], now: float) -> None:
    """Drops members of workloads whose slot could not be booked again, because their node or record is gone.

    If such a member still runs, its usage counts as external usage. Slots without a member are released.
    """
    for job in [job for job in state.jobs.values() if job.ownership.is_controlled]:
        state.subject = job
        assignments = state.cluster.assignments(job.id)
        kept = _restore_kept_slots(state, job, assignments)
        empty = assignments.keys() - {member.slot for member in job.live_members()} - kept
        if empty:
            state.worklist.release_slots(job.id, sorted(empty))
        for member in [one for one in job.live_members() if assignments.get(one.slot) != one.node]:
            if member.phase is MemberPhase.PLACING:
                return_to_queue(state, job, member, now)
                state.worklist.advance(job.id)
            elif member.node not in node_names:
                node_failed(state, job, member, now)
            else:
                note = "its allocation was not recorded"
                member_ended(state, job, member, 9, EndCause.OTHER, now, note, may_be_replaced=False)


def _restore_kept_slots(state: SchedulerState, job: Job, assignments: dict[int, str]) -> set[int]:
    """The slots that are still kept for replacements. Others are gone, or their nodes are not usable."""
    kept: set[int] = set()
    for left in [member for member in job.members.values() if member.is_slot_kept]:
        if assignments.get(left.slot) != left.node:
            vacancies.release_kept_slot(state, job, left, is_booked=False)
        elif not vacancies.is_usable(state, left):
            vacancies.release_kept_slot(state, job, left)
        else:
            kept.add(left.slot)
    return kept


def _end_absent_workloads(state: SchedulerState, fact: Snapshot, reported: set[str], now: float) -> None:
    """Workloads that the snapshot does not contain are gone, and so are their members."""
    workloads = {workload.workload for workload in fact.workloads}
    for key in [key for key in state.workloads.known() if key not in workloads]:
        state.subject = WorkloadGone(key)
        gangs.workload_gone(state, key, now)
    present = {member.member for member in fact.members} | reported
    for job in [job for job in state.jobs.values() if job.ownership.is_controlled]:
        state.subject = job
        for key in [key for key in job.members if key not in present]:
            gangs.member_gone(state, key, now)
        if job.workload not in workloads:
            gangs.workload_gone(state, job.workload, now)


def _end_absent_members(state: SchedulerState, node_names: set[str], reported: set[str], now: float) -> None:
    """Members of submitted jobs without a status have failed with their node, or have vanished from it.

    A member on a node that is down may still run. A member with an open intent is decided by that intent.
    """
    for job in [job for job in state.jobs.values() if not job.ownership.is_controlled]:
        state.subject = job
        for member in list(job.members.values()):
            if not member.phase.is_live or member.key in reported:
                continue
            known = state.cluster.nodes.get(member.node)
            if known is None and member.node and member.node not in node_names:
                node_failed(state, job, member, now)
            elif known is not None and known.fact.up and not state.intents.of_member(member.key):
                members.member_vanished(state, job, member, now)


def _natural_key(name: str) -> tuple[str, int, str]:
    """Sorts node2 before node10."""
    head = name.rstrip("0123456789")
    digits = name[len(head) :]
    return head, int(digits) if digits else -1, name
