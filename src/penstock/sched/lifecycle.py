"""The way of a job: dependencies met, queued, started, ended, freed, over; or queued again.

Each function takes a job one step further if it can go, and may be called at any time: what has been done
already is not done twice. Units are given back here and nowhere else: slot by slot as members end, and what
is left at the end, exactly once.
"""

from __future__ import annotations

import signal
from typing import Final

from penstock.engine.allocation import Allocation, Slot
from penstock.engine.graph import Vertex
from penstock.model.idset import encode_idset
from penstock.model.job import ExceptionType, JobState, result_of
from penstock.protocol.facts import EndCause, MemberSet, Requeue
from penstock.protocol.intents import (
    Assignment,
    End,
    EndReason,
    Intent,
    IntentKind,
    Place,
    Retract,
    RetractMode,
    WorkloadStatus,
)
from penstock.sched.cluster import booking_of, grants_of
from penstock.sched.dependencies import DependencyState, JobProgress, Scheme, dependency_state
from penstock.sched.job import Job, Member, MemberPhase
from penstock.sched.jobspec import tasks_on_slots
from penstock.sched.queue import priority_of
from penstock.sched.records import AllocationGone, AllocationNew, IntentDone, IntentNew, SlotsFreed
from penstock.sched.state import OpenIntent, SchedulerState

__all__ = [
    "EXCESS_KEY",
    "advance_jobs",
    "end_members",
    "evict_group",
    "forget_job",
    "free_slots",
    "leave_depend",
    "member_ended",
    "node_failed",
    "open_intent",
    "place_late_member",
    "prioritise",
    "raise_exception",
    "record_release",
    "release_singleton",
    "requeue_workload",
    "resolve_intent",
    "return_to_queue",
    "start_job",
    "track_intent",
]

EXCESS_KEY: Final = "more: "  # holds of what members use beyond what they were given
_PAST_KEPT: Final = 64  # members that have ended and are kept for people to look at
_INFRASTRUCTURE_CAUSES: Final = frozenset({EndCause.UNKNOWN, EndCause.NODE_FAILURE})
_END_REASONS: Final = {
    ExceptionType.CANCEL: EndReason.CANCEL,
    ExceptionType.TIMEOUT: EndReason.TIMEOUT,
}


# Before the start


def leave_depend(state: SchedulerState, job: Job, now: float) -> None:
    """Lets a job go on to the queue when nothing is left that it depends on."""
    if (
        job.state is not JobState.DEPEND
        or job.open_dependencies
        or job.waits_for_begin_time
        or not job.is_assembled
    ):
        return
    state.journal.log(job, "depend", now)
    prioritise(state, job, now)


def prioritise(state: SchedulerState, job: Job, now: float) -> None:
    job.priority = priority_of(job.urgency, job.class_value)
    state.journal.log(job, "priority", now, priority=job.priority)
    state.enqueue(job)


def update_dependents(state: SchedulerState, job: Job, now: float) -> None:
    """Tells the jobs that wait for this one how far it has come."""
    waiting = state.dependents.get(job.id)
    if not waiting:
        return
    progress = job.progress()
    for number in sorted(waiting):
        other = state.jobs.get(number)
        if other is not None:
            _update_dependencies(state, other, job.id, progress, now)
    if progress.is_over:
        del state.dependents[job.id]


def _update_dependencies(
    state: SchedulerState, job: Job, target: int, progress: JobProgress, now: float
) -> None:
    for dependency in job.spec.depends:
        if dependency.job != target or dependency.description not in job.open_dependencies:
            continue
        verdict = dependency_state(dependency.scheme, progress)
        if verdict is DependencyState.SATISFIED:
            job.open_dependencies.discard(dependency.description)
            state.journal.log(job, "dependency-remove", now, description=dependency.description)
        elif verdict is DependencyState.UNSATISFIABLE:
            never_started = not progress.had_alloc and dependency.scheme is not Scheme.AFTER_ANY
            why = "job never started" if never_started else "can never be satisfied"
            note = f"dependency {dependency.description} {why}"
            raise_exception(state, job, now, ExceptionType.DEPENDENCY, note)
            return
    leave_depend(state, job, now)


def release_singleton(state: SchedulerState, owner: str, name: str, now: float) -> None:
    """Lets the first of those go on that wait until no namesake is active."""
    if (owner, name) not in state.singletons:
        return
    held: Job | None = None
    for number in state.jobs_by_name.get((owner, name), {}):
        other = state.jobs[number]
        if "singleton" not in other.open_dependencies:
            return
        held = held or other
    if held is None:
        state.singletons.discard((owner, name))
        return
    held.open_dependencies.discard("singleton")
    state.journal.log(held, "dependency-remove", now, description="singleton")
    leave_depend(state, held, now)


# The start


def start_job(state: SchedulerState, job: Job, found: Allocation, now: float) -> None:
    """Records an allocation that a pass has made, and the intent to place every member."""
    state.pending.remove(job.id)
    _record_allocation(state, job, found)
    job.placed_at = now
    job.end_at = None if job.spec.limit_s is None else now + job.spec.limit_s
    job.resources_by_node = _resources_by_node(state, job)
    _assignment(state, job, found.slots)
    context: dict[str, object] = {}
    if job.forecast is not None or job.promise is not None:
        promised = job.promise.last_at if job.promise is not None else now
        context["annotations"] = {"sched": {"t_estimate": promised}}
    state.journal.log(job, "alloc", now, **context)
    job.forecast = None
    state.planned_starts.pop(job.id, None)
    _place(state, job, [member for member in job.members.values() if member.phase is MemberPhase.PLACING])
    if job.end_at is not None:
        state.wake(job.end_at, job.id)
    update_dependents(state, job, now)


def _record_allocation(state: SchedulerState, job: Job, found: Allocation) -> None:
    """Writes down the part of the job's bookings that an answer of the engine has made."""
    holder = state.cluster.engine.jobs[job.id]
    made = found.slots[0].number
    key = next(key for key, part in holder.parts.items() if any(slot.number == made for slot in part.slots))
    part = holder.parts[key]
    from_engine = state.cluster.engine.allocation(job.id)
    state.journal.add(
        AllocationNew(job.id, key, part.span.start, from_engine.end_s, booking_of(part, holder.placement))
    )
    job.has_allocation = True


def _resources_by_node(state: SchedulerState, job: Job) -> dict[str, dict[str, str]]:
    """What the job holds, by node and kind: ids of whole units, a number for pools."""
    ids: dict[str, dict[str, list[int]]] = {}
    pools: dict[str, dict[str, int]] = {}
    for mark in state.cluster.engine.jobs[job.id].claims().values():
        node = mark.vertex.parent()
        if not mark.booked or mark.vertex.type == "node" or node is None:
            continue
        if mark.vertex.divisible:
            amounts = pools.setdefault(node.name, {})
            amounts[mark.vertex.type] = amounts.get(mark.vertex.type, 0) + mark.units
        else:
            ids.setdefault(node.name, {}).setdefault(mark.vertex.type, []).append(mark.vertex.id)
    held: dict[str, dict[str, str]] = {}
    for node_name, kinds in ids.items():
        held[node_name] = {kind: encode_idset(numbers) for kind, numbers in kinds.items()}
    for node_name, amounts in pools.items():
        held.setdefault(node_name, {}).update({kind: str(units) for kind, units in amounts.items()})
    return held


def _assignment(state: SchedulerState, job: Job, slots: tuple[Slot, ...]) -> None:
    """Gives every member its slot: those of a work by what they ask for, those of a submission by count."""
    ordered = sorted(slots, key=lambda slot: (_rank(slot.node), slot.number))
    if job.workload:
        waiting = sorted(_unplaced(job), key=lambda member: (member.group, member.index, member.key))
        by_group: dict[int, list[Slot]] = {}
        for slot in ordered:
            by_group.setdefault(slot.group, []).append(slot)
        for member in waiting:
            left = by_group.get(member.group)
            if left:
                _assign(state, job, member, left.pop(0))
        return
    nodes = [slot.node.name if slot.node is not None else "" for slot in ordered]
    job.members = {}
    for index, place in enumerate(tasks_on_slots(job.spec, nodes)):
        member = Member(f"{job.id}/{job.attempt}/{index}", index, group=ordered[place].group)
        job.members[member.key] = member
        _assign(state, job, member, ordered[place])


def _unplaced(job: Job) -> list[Member]:
    return [
        member for member in job.members.values() if member.phase is MemberPhase.WAITING and member.is_ready
    ]


def _rank(node: Vertex | None) -> int:
    return node.rank if node is not None else -1


def _assign(state: SchedulerState, job: Job, member: Member, slot: Slot) -> None:
    member.phase = MemberPhase.PLACING
    member.slot = slot.number
    member.node = slot.node.name if slot.node is not None else ""
    member.grants = grants_of(slot)
    state.assign(job, member.key, member.node)


def place_late_member(state: SchedulerState, job: Job, member: Member, found: Allocation) -> None:
    """Records what a pass has found for one more member of a job that has started."""
    state.pending.remove(job.id, member.key)
    _record_allocation(state, job, found)
    _assign(state, job, member, found.slots[-1])
    for node, kinds in _resources_by_node(state, job).items():
        job.resources_by_node.setdefault(node, {}).update(kinds)
    state.journal.touch(job)
    _place(state, job, [member])
    if job.incomplete_since is not None and not _unplaced(job):
        job.incomplete_since = None


def _place(state: SchedulerState, job: Job, members: list[Member]) -> None:
    assignments = tuple(
        Assignment(member.key, member.index, member.node, member.grants) for member in members
    )
    number = state.next_intent()
    spec = state.backend_spec(job)
    open_intent(state, Place(number, job.id, job.workload, assignments, job.end_at, len(job.members), spec))


def open_intent(state: SchedulerState, intent: Intent) -> None:
    if isinstance(intent, Place):
        members = {assignment.member for assignment in intent.assignments}
        # A driver gets the whole; what can be made again from the job itself is not written down twice.
        payload: dict[str, object] = {
            "members": [assignment.member for assignment in intent.assignments],
            "end_at": intent.end_at,
        }
        kind = IntentKind.PLACE
    elif isinstance(intent, Retract):
        members = set(intent.members)
        payload = {"members": list(intent.members), "how": intent.mode.value}
        kind = IntentKind.RETRACT
    else:
        members = set(intent.members)
        payload = {
            "members": list(intent.members),
            "signal": intent.signal,
            "grace_s": intent.grace_s,
            "why": intent.reason.value,
        }
        kind = IntentKind.END
    track_intent(state, intent, members)
    state.journal.add(IntentNew(intent.intent, intent.job, kind, payload))
    state.journal.intents.append(intent)


def track_intent(state: SchedulerState, intent: Intent, members: set[str]) -> None:
    state.intents[intent.intent] = OpenIntent(intent, members)
    for member in members:
        state.intents_of_member.setdefault(member, set()).add(intent.intent)


def resolve_intent(state: SchedulerState, number: int, member: str) -> None:
    """An intent is done with one member; with the last one it is over."""
    found = state.intents.get(number)
    if found is None:
        return
    found.waits_for.discard(member)
    numbers = state.intents_of_member.get(member)
    if numbers is not None:
        numbers.discard(number)
        if not numbers:
            del state.intents_of_member[member]
    if not found.waits_for:
        del state.intents[number]
        state.journal.add(IntentDone(number))


# The end


def raise_exception(
    state: SchedulerState,
    job: Job,
    now: float,
    kind: ExceptionType,
    note: str,
    severity: int = 0,
    *,
    sent: int = signal.SIGTERM,
) -> None:
    """Something went wrong with a job. Severity 0 ends it."""
    state.journal.log(job, "exception", now, type=kind.value, severity=severity, note=note)
    if severity != 0:
        return
    state.dequeue(job.id)
    for member in job.members.values():
        state.dequeue(job.id, member.key)
    end_members(state, job, sent, state.settings.grace_s, _END_REASONS.get(kind, EndReason.JOB_FAILED))
    state.jobs_to_advance[job.id] = None


def evict_group(state: SchedulerState, job: Job, now: float, kind: ExceptionType, note: str) -> None:
    """Ends a group so that it can begin anew: members are taken away, and who made them makes them again."""
    state.journal.log(job, "exception", now, type=kind.value, severity=0, note=note)
    for member in job.members.values():
        state.dequeue(job.id, member.key)
    live = tuple(member.key for member in job.live_members())
    if live:
        open_intent(state, Retract(state.next_intent(), job.id, live, RetractMode.EVICT))
    state.jobs_to_advance[job.id] = None


def end_members(state: SchedulerState, job: Job, sent: int, grace_s: float | None, reason: EndReason) -> None:
    members = tuple(member.key for member in job.live_members())
    if members:
        open_intent(state, End(state.next_intent(), job.id, members, sent, grace_s, reason))
        state.journal.touch(job)


def member_ended(
    state: SchedulerState,
    job: Job,
    member: Member,
    status: int,
    cause: EndCause,
    now: float,
    message: str = "",
) -> None:
    """A member is over, for whatever reason. What it had is given back when the step is intent_resolved."""
    if member.phase is MemberPhase.ENDED:
        return
    member.slot_release_pending = member.phase.is_live
    member.phase = MemberPhase.ENDED
    member.status, member.cause, member.message, member.ended_at = status, cause, message, now
    state.dequeue(job.id, member.key)
    state.unassign(member.key, member.node)
    state.cluster.remove_external_usage(EXCESS_KEY + member.key)
    state.journal.touch(job)
    state.journal.forgotten.append(member.key)
    state.jobs_to_advance[job.id] = None
    if cause in _INFRASTRUCTURE_CAUSES:
        job.is_infrastructure_failure = True
    for number in list(state.intents_of_member.get(member.key, ())):
        resolve_intent(state, number, member.key)


def return_to_queue(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """A member that has not come to its node queues by itself for another one."""
    for number in list(state.intents_of_member.get(member.key, ())):
        resolve_intent(state, number, member.key)
    shared = any(other.slot == member.slot and other is not member for other in job.live_members())
    state.unassign(member.key, member.node)
    state.cluster.remove_external_usage(EXCESS_KEY + member.key)
    member.phase = MemberPhase.WAITING
    if not shared:
        state.slots_to_release.setdefault(job.id, []).append(member.slot)
    member.node, member.slot, member.grants = "", -1, ()
    state.journal.touch(job)
    if job.incomplete_since is None:
        job.incomplete_since = now
        state.wake(now + state.settings.gang_repair_timeout_s, job.id)
    state.late_members[(job.id, member.key)] = None


def node_failed(state: SchedulerState, job: Job, member: Member, now: float) -> None:
    """The node of a member is no more, or has been silent for too long: the member is over.

    A submitted job fails with it. A work's owner decides for itself, unless the group wants to begin anew.
    """
    node, rank = member.node, state.ranks.get(member.node, -1)
    member_ended(state, job, member, signal.SIGKILL, EndCause.NODE_FAILURE, now)
    if job.is_ending:
        return
    if job.workload:
        requeue_workload(state, job, now, member)
    else:
        raise_exception(state, job, now, ExceptionType.EXEC, f"node failure on {node} (rank {rank})")


def requeue_workload(state: SchedulerState, job: Job, now: float, failed: Member) -> bool:
    """Lets a group begin anew as a whole, if it wants that and all of its members would be made again."""
    workload = state.workloads.get(job.workload)
    policy = workload.requeue if workload is not None else Requeue.NEVER
    by_node = failed.cause is EndCause.NODE_FAILURE
    is_wanted = policy is Requeue.ALWAYS or (policy is Requeue.NODE_FAILURE and by_node)
    if not is_wanted or not all(member.is_recreated for member in job.members.values()):
        return False
    note = f"a member has failed ({failed.cause_text or 'by itself'}): the group begins anew"
    evict_group(state, job, now, ExceptionType.REQUEUE, note)
    return True


def advance_jobs(state: SchedulerState, now: float) -> None:
    """At the end of a step: gives back what ended members had, and takes their jobs further."""
    while state.jobs_to_advance:
        jobs, state.jobs_to_advance = state.jobs_to_advance, {}
        for number in jobs:
            job = state.jobs.get(number)
            if job is not None:
                _note_running(state, job, now)
                _free_ended_slots(state, job, now)
                _drop_ended_members(state, job)
                _settle_job(state, job, now)


def _free_ended_slots(state: SchedulerState, job: Job, now: float) -> None:
    """Gives back the slots of members that have ended, and on their nodes what no member uses any more."""
    owed = [member for member in job.members.values() if member.slot_release_pending]
    live = job.live_members()
    if not owed or (not live and not (job.workload and not job.is_workload_gone)):
        return  # With nobody left, all goes back at once.
    for member in owed:
        member.slot_release_pending = False
    engine = state.cluster.engine
    holder = engine.jobs.get(job.id)
    if holder is None:
        return
    used = {other.slot for other in live}
    used_nodes = {other.node for other in live}
    left_nodes = {member.node for member in owed} - used_nodes
    ended = {member.slot for member in owed} - used
    gone = [
        slot.number
        for part in holder.parts.values()
        for slot in part.slots
        if slot.number in ended
        or (slot.number not in used and slot.node is not None and slot.node.name in left_nodes)
    ]
    if not gone:
        return
    free_slots(state, job, gone, now)
    ranks = [state.cluster.nodes[node].rank for node in left_nodes if node in state.cluster.nodes]
    if ranks:
        state.journal.log(job, "release", now, ranks=encode_idset(ranks), final=False)


def _drop_ended_members(state: SchedulerState, job: Job) -> None:
    """A work can have any number of members, one after the other: those long past are only counted."""
    if not job.workload or len(job.members) <= _PAST_KEPT or job.state is not JobState.RUN:
        return
    ended = [
        one for one in job.members.values() if one.phase is MemberPhase.ENDED and not one.slot_release_pending
    ]
    if len(ended) <= _PAST_KEPT + 2 * (len(job.members) - len(ended)):
        return
    for member in ended[:-_PAST_KEPT]:
        job.past_members += 1
        job.past_status = max(job.past_status, _exit_of(member))
        del job.members[member.key]
        state.job_of_member.pop(member.key, None)
    state.journal.touch(job)


def _note_running(state: SchedulerState, job: Job, now: float) -> None:
    """`start` is when every member of the group has begun."""
    if job.state is not JobState.RUN or job.has_logged("start") or not job.members:
        return
    if all(member.started_at is not None for member in job.members.values()):
        job.started_at = max(member.started_at or now for member in job.members.values())
        state.journal.log(job, "start", now)
        update_dependents(state, job, now)


def _settle_job(state: SchedulerState, job: Job, now: float) -> None:
    """Takes a job to its end, as far as it can go."""
    if job.state not in (JobState.RUN, JobState.CLEANUP) or job.live_members():
        return
    is_fatal = job.is_ending
    if job.state is JobState.RUN:
        is_waiting = any(member.phase is MemberPhase.WAITING for member in job.members.values())
        if (job.workload and not job.is_workload_gone) or (is_waiting and not job.is_workload_gone):
            return  # More may come.
    _finish(state, job, now, is_fatal)


def _finish(state: SchedulerState, job: Job, now: float, is_fatal: bool) -> None:
    has_run = any(member.started_at is not None for member in job.members.values())
    if has_run or not is_fatal:
        state.journal.log(job, "finish", now, status=_status(job, is_fatal))
    if job.has_logged("alloc"):
        state.journal.log(job, "release", now, ranks="all", final=True)
        free_all(state, job, now)
        state.journal.log(job, "free", now)
    if _may_requeue(state, job):
        _requeue(state, job, now)
        return
    result, status = result_of(job.log)
    job.result, job.status, job.ended_at = result.value, status, now
    state.journal.log(job, "clean", now)
    forget_job(state, job, now)


def _status(job: Job, is_fatal: bool) -> int:
    """As a shell would exit: with the largest code of its tasks, a signal counting 128 more."""
    worst = max((_exit_of(member) for member in job.members.values()), default=0)
    worst = max(worst, job.past_status)
    return 256 if worst == 0 and is_fatal else worst << 8


def _exit_of(member: Member) -> int:
    low = member.status & 0x7F
    return 128 + low if low else member.status >> 8


def free_slots(state: SchedulerState, job: Job, slots: list[int], now: float) -> None:
    """Gives back some slots. With the last of them the job holds nothing, until a member comes again."""
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
    state.mark_dirty()


def record_release(state: SchedulerState, job: Job, now: float) -> None:
    """The engine has nothing booked for a job any more: what was recorded of it is over, once."""
    if job.has_allocation:
        job.has_allocation = False
        state.journal.add(AllocationGone(job.id, now))


def free_all(state: SchedulerState, job: Job, now: float) -> None:
    engine = state.cluster.engine
    if job.id in engine.jobs:
        engine.release(job.id)
    record_release(state, job, now)
    state.mark_dirty()


def _may_requeue(state: SchedulerState, job: Job) -> bool:
    if not job.is_infrastructure_failure or job.attempt >= state.settings.attempts_max or job.workload:
        return False
    if job.exception_type in (ExceptionType.CANCEL, ExceptionType.TIMEOUT):
        return False
    if job.spec.requeue is Requeue.ALWAYS:
        return True
    by_node = any(member.cause is EndCause.NODE_FAILURE for member in job.members.values())
    return job.spec.requeue is Requeue.NODE_FAILURE and by_node


def _requeue(state: SchedulerState, job: Job, now: float) -> None:
    for member in job.members:
        state.job_of_member.pop(member, None)
    job.members = {}
    job.attempt += 1
    job.is_infrastructure_failure = False
    job.placed_at = job.end_at = job.started_at = job.incomplete_since = None
    job.resources_by_node = {}
    job.exception = {}
    job.promise = None
    state.journal.log(job, "requeue", now, attempt=job.attempt)
    prioritise(state, job, now)


def forget_job(state: SchedulerState, job: Job, now: float) -> None:
    """An inactive job lives on in the store only."""
    state.jobs.pop(job.id, None)
    state.reservations.pop(job.id, None)
    state.planned_starts.pop(job.id, None)
    if job.workload:
        state.job_of_workload.pop(job.workload, None)
    for member in job.members:
        state.job_of_member.pop(member, None)
    _carry_over_members(state, job)
    names = state.jobs_by_name.get((job.owner, job.spec.name))
    if names is not None:
        names.pop(job.id, None)
        if not names:
            del state.jobs_by_name[(job.owner, job.spec.name)]
    for dependency in job.spec.depends:
        waiting = state.dependents.get(dependency.job)
        if waiting is not None:
            waiting.discard(job.id)
            if not waiting:
                del state.dependents[dependency.job]
                state.finished_jobs.pop(dependency.job, None)
    update_dependents(state, job, now)
    release_singleton(state, job.owner, job.spec.name, now)
    status = WorkloadStatus.INADMISSIBLE if _is_inadmissible(job) else WorkloadStatus.FINISHED
    state.publish_status(job, status, _final_reason(job))
    state.last_status.pop(job.workload, None)


def _carry_over_members(state: SchedulerState, job: Job) -> None:
    """Members of a work that are still there when its job is over make its next job.

    Not if a person has cancelled it, or if it never became whole: then they wait for somebody to act.
    """
    members_of_next_job = state.members_of_next_job.pop(job.workload, {})
    if job.workload not in state.workloads:
        return
    if _is_inadmissible(job):
        left = [one.key for one in job.members.values() if one.phase is MemberPhase.WAITING]
        if left or members_of_next_job:
            state.mark_inadmissible(job.workload, (*left, *members_of_next_job), _final_reason(job))
        return
    waiting = {
        member.key: MemberSet(
            job.workload,
            member.key,
            member.index,
            member.request.requests,
            member.request.constraint,
            member.is_ready,
            member.is_recreated,
            member.name,
        )
        for member in job.members.values()
        if member.phase is MemberPhase.WAITING and member.request is not None
    }
    state.members_to_readmit.extend({**waiting, **members_of_next_job}.values())


def _is_inadmissible(job: Job) -> bool:
    return job.exception_type in (ExceptionType.CANCEL, ExceptionType.ASSEMBLY)


def _final_reason(job: Job) -> str:
    note = job.exception.get("note")
    return f"{job.result}: {note}" if note else job.result
