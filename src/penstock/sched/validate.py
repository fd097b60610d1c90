"""The invariants of the scheduler's state between two steps.

`violations` compares every part with the jobs, which are the truth, and returns what does not hold. It looks
at the whole state, so production code does not call it; tests do after every step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from penstock.engine.planner import FOREVER
from penstock.model.job import URGENCY_HOLD, JobState, state_after
from penstock.protocol.facts import Capacity
from penstock.sched import vacancies
from penstock.sched.cluster import ClusterNode
from penstock.sched.job import Job, Member
from penstock.sched.jobspec import MemberRequest
from penstock.sched.member_states import MemberPhase
from penstock.sched.nodes import ORPHAN_KEY
from penstock.sched.overruns import overrun_at
from penstock.sched.state import SchedulerState

__all__ = ["violations"]


def violations(state: SchedulerState) -> list[str]:
    """Every invariant that the state violates, in words; empty if it is consistent."""
    return [
        *_jobs(state),
        *_verdicts(state),
        *_members(state),
        *_vacancies(state),
        *_workloads(state),
        *_queue(state),
        *_claims(state),
        *_admission(state),
        *_allocations(state),
        *_intents(state),
        *_dependencies(state),
        *_timers(state),
        *_plans(state),
        *_nodes(state),
        *_step(state),
    ]


def _jobs(state: SchedulerState) -> Iterator[str]:
    for number, job in state.jobs.items():
        if job.id != number:
            yield f"job {job.id} is stored as {number}"
        if job.state is JobState.INACTIVE:
            yield f"job {number} is inactive and still in the state"
        if job.log and state_after(job.log) is not job.state:
            yield f"job {number} is in {job.state.value}, its log leads to {state_after(job.log).value}"
        if bool(job.workload) is not job.ownership.is_controlled:
            yield f"job {number} has the wrong ownership"
        is_started = job.state is JobState.RUN and not job.is_ending and not job.ownership.is_controlled
        if is_started and job.incomplete_since is None and job.members_by_phase[MemberPhase.WAITING]:
            yield f"members of job {number} wait for a node without an end"


def _verdicts(state: SchedulerState) -> Iterator[str]:
    tracked = state.satisfiability.tracked()
    for number, verdict in tracked.items():
        job = state.jobs.get(number)
        if job is None or not job.state.is_pending:
            yield f"the request of job {number} is kept proven, but the job does not wait"
        elif verdict not in (None, job.unsatisfiable_reason) and not state.satisfiability.is_pending:
            yield f"job {number} has the verdict {job.unsatisfiable_reason!r}, proven is {verdict!r}"
    for job in state.jobs.values():
        is_queued = job.state is JobState.SCHED and job.is_admitted
        if is_queued and job.spec.request.groups and job.id not in tracked:
            yield f"job {job.id} waits, and its request is not kept proven"


def _members(state: SchedulerState) -> Iterator[str]:
    on_nodes: dict[str, list[str]] = {}
    count = 0
    for job in state.jobs.values():
        yield from _member_counts(job)
        for key, member in job.members.items():
            count += 1
            if key != member.key or state.members.job_of(key) != job.id:
                yield f"member {key} of job {job.id} belongs to job {state.members.job_of(key)} in the index"
            if member.phase.is_live:
                on_nodes.setdefault(member.node, []).append(key)
            if member.phase is MemberPhase.WAITING and (member.node or member.slot >= 0):
                yield f"member {key} waits, but has node {member.node!r} and slot {member.slot}"
            if member.phase is MemberPhase.LOST and member.lost_at is None:
                yield f"member {key} is lost since an unknown time"
            if not job.state.is_pending or not member.phase.is_live:
                continue
            yield f"member {key} is {member.phase.value}, but job {job.id} has not started"
    if count != len(state.members):
        yield f"the index has {len(state.members)} members, the jobs have {count}"
    indexed = state.members.nodes()
    for node in {**on_nodes, **indexed}:
        if sorted(on_nodes.get(node, [])) != sorted(indexed.get(node, [])):
            yield f"{node} has members {on_nodes.get(node, [])}, the index has {indexed.get(node, [])}"


def _member_counts(job: Job) -> Iterator[str]:
    members = job.members.values()
    by_phase = {phase: sum(member.phase is phase for member in members) for phase in MemberPhase}
    if any(by_phase[phase] != job.members_by_phase[phase] for phase in MemberPhase):
        yield f"job {job.id} counts its members as {job.members_by_phase}"
    if sum(member.started_at is None for member in members) != job.members_not_started:
        yield f"job {job.id} counts {job.members_not_started} members that have not started"
    if sum(one.phase.is_live and not one.is_recreated for one in members) != job.unowned_members:
        yield f"job {job.id} counts {job.unowned_members} members that nobody replaces"
    if sum(member.is_ready for member in members) != job.members_ready:
        yield f"job {job.id} counts {job.members_ready} members that are ready"
    yield from _assembly(job)
    pending = {member.key for member in members if member.slot_release_pending}
    if pending != job.members_with_slots.keys():
        yield f"job {job.id} has to release the slots of {sorted(pending)}, noted are others"
    numbers = [member.number for member in members]
    if numbers != sorted(set(numbers)) or any(number >= job.members_seen for number in numbers):
        yield f"the members of job {job.id} are not in the order of their numbers"


def _assembly(job: Job) -> Iterator[str]:
    if not job.state.is_pending:
        return
    ready = [one for one in job.members.values() if one.is_ready and one.request is not None]
    first = sorted(ready, key=lambda one: (one.index, one.number))[: job.assembly.size]
    groups: dict[MemberRequest, int] = {}
    numbers = {
        one.key: groups.setdefault(one.request, len(groups)) for one in first if one.request is not None
    }
    if len(job.assembly) != len(ready) or job.assembly.group_numbers() != numbers:
        yield f"job {job.id} starts with other members than the first ready ones"


def _vacancies(state: SchedulerState) -> Iterator[str]:
    kept: dict[str, list[str]] = {}
    for job in state.jobs.values():
        waiting = [one for one in job.members.values() if one.phase is MemberPhase.WAITING]
        if [one.key for one in waiting if one.replaces] != sorted(job.replacements, key=_position(job)):
            yield f"job {job.id} has other replacements than it notes"
        unpaired = [one.key for one in waiting if one.is_recreated and not one.replaces]
        if unpaired != sorted(job.late_members, key=_position(job)):
            yield f"job {job.id} has other late members than it notes"
        filled = {one.replaces for one in waiting}
        vacant = {one.key for one in job.members.values() if one.vacant_since is not None}
        if vacant - filled != set(job.vacancies):
            yield f"job {job.id} awaits replacements of {sorted(vacant - filled)}, noted are others"
        missing = vacancies.missing_members(state, job) or 0
        if state.cluster.is_synced and len(job.vacancies) > max(missing, 0):
            yield f"job {job.id} awaits {len(job.vacancies)} replacements, its controllers want {missing}"
        for member in job.members.values():
            if member.vacant_since is not None and (
                member.phase is not MemberPhase.ENDED or job.is_ending or job.state is not JobState.RUN
            ):
                yield f"the replacement of {member.key} is awaited, but it or job {job.id} says otherwise"
            if member.is_slot_kept:
                kept.setdefault(member.node, []).append(member.key)
                yield from _kept_slot(state, job, member)
    indexed = state.members.kept()
    for node in {**kept, **indexed}:
        if sorted(kept.get(node, [])) != sorted(indexed.get(node, [])):
            yield f"{node} has kept slots of {kept.get(node, [])}, the index has {indexed.get(node, [])}"


def _position(job: Job) -> Callable[[str], int]:
    return lambda key: job.members[key].number if key in job.members else -1


def _kept_slot(state: SchedulerState, job: Job, member: Member) -> Iterator[str]:
    if member.vacant_since is None or member.slot_release_pending:
        yield f"the slot of {member.key} is kept and has no vacancy, or is to be released"
    if not state.cluster.is_synced:
        return
    if member.slot not in job.slots:
        yield f"the kept slot {member.slot} of {member.key} is not booked"
    if not vacancies.is_usable(state, member):
        yield f"a slot is kept on {member.node}, which is not usable"


def _workloads(state: SchedulerState) -> Iterator[str]:
    of_jobs = {job.workload: job.id for job in state.jobs.values() if job.workload}
    if of_jobs != state.workloads.jobs():
        yield f"the workloads have jobs {of_jobs}, the index has {state.workloads.jobs()}"
    for member, workload in state.workloads.next_members().items():
        job = state.jobs.get(of_jobs.get(workload, 0))
        if job is None or not job.is_ending:
            yield f"member {member} waits for the end of a job, but workload {workload} has none that ends"
    for workload, known in state.workloads.all_inadmissible().items():
        if workload in of_jobs:
            yield f"workload {workload} is inadmissible and has job {of_jobs[workload]}"
        for member in known.waiting:
            if member in state.members:
                yield f"member {member} of inadmissible workload {workload} belongs to a job"


def _queue(state: SchedulerState) -> Iterator[str]:
    entries = {(entry.job, entry.member) for entry in state.queue.in_order()}
    for number, key in sorted(entries):
        job = state.jobs.get(number)
        if job is None:
            yield f"job {number} is queued and not active"
        elif not key:
            if not _may_start(job):
                yield f"job {number} is queued, but is {job.state.value} and not eligible to start"
        elif key not in job.members or job.members[key].phase is not MemberPhase.WAITING:
            yield f"late member {key} of job {number} is queued and does not wait"
        elif job.state is not JobState.RUN:
            yield f"late member {key} is queued, but job {number} is in {job.state.value}"
    for job in state.jobs.values():
        if _may_start(job) and (job.id, "") not in entries:
            yield f"job {job.id} is eligible to start and not queued"


def _may_start(job: Job) -> bool:
    is_ready = job.is_assembled and job.urgency != URGENCY_HOLD and not job.unsatisfiable_reason
    return job.state is JobState.SCHED and is_ready and job.is_admitted


def _admission(state: SchedulerState) -> Iterator[str]:
    counted = {job.id for job in state.jobs.values() if job.state.is_pending and job.ownership.is_controlled}
    if counted != set(state.admission.jobs()):
        yield f"jobs {counted} are pending, the limits count {set(state.admission.jobs())}"
    for job in state.jobs.values():
        reason = state.admission.outside_reason(job.id)
        if job.outside_reason != reason:
            yield f"job {job.id} is outside the queue because of {job.outside_reason!r}, not {reason!r}"
    yield from state.admission.violations()


def _claims(state: SchedulerState) -> Iterator[str]:
    claimed: dict[str, int] = {}
    holders: dict[tuple[str, str], int] = {}
    for claim in state.claims:
        job = state.jobs.get(claim.job)
        if job is None or state.queue.entry(claim.job) is None:
            yield f"job {claim.job} claims nodes and is not queued"
            continue
        if not state.queue.state_of(job.queue).started:
            yield f"job {claim.job} claims nodes and its queue is stopped"
        other = holders.setdefault((job.queue, job.owner), claim.job)
        if other != claim.job:
            yield f"jobs {other} and {claim.job} of {job.owner} in queue {job.queue} both claim nodes"
        for node in claim.nodes:
            if claimed.setdefault(node, claim.job) != claim.job:
                yield f"jobs {claimed[node]} and {claim.job} both claim {node}"
    if claimed != dict(state.claims.nodes):
        yield f"the index has {dict(state.claims.nodes)} as claimed, the claims have {claimed}"


def _allocations(state: SchedulerState) -> Iterator[str]:
    if not state.cluster.is_synced:
        return  # Recorded allocations are booked with the first snapshot.
    engine = state.cluster.engine
    for number in engine.jobs:
        if number not in state.jobs and number not in state.set_aside:
            yield f"job {number} has an allocation and is not active"
    for job in state.jobs.values():
        if (job.id in engine.jobs) is not job.has_allocation:
            is_recorded = "recorded" if job.has_allocation else "not recorded"
            yield f"the allocation of job {job.id} is {is_recorded}, unlike in the engine"
        if job.slots.by_part() != _slots_by_part(state, job.id):
            yield f"job {job.id} notes other slots than the engine has booked"
        nodes = state.cluster.assignments(job.id)
        for member in job.live_members():
            if member.slot < 0 or (nodes and nodes.get(member.slot, member.node) != member.node):
                yield f"member {member.key} is on {member.node}, its slot {member.slot} is elsewhere"
        holder = engine.jobs.get(job.id)
        slots = () if holder is None else (slot for part in holder.parts.values() for slot in part.slots)
        keys = {slot.number: slot.brings for slot in slots}
        for member in job.live_members():
            if set(keys.get(member.slot, member.brings)) != set(member.brings):
                yield f"member {member.key} has the keys {member.brings}, its slot {keys[member.slot]}"
        yield from _numbers_made(job, _slots_by_part(state, job.id))
        if job.ownership.is_controlled:
            members = job.members.values()
            held = {member.slot for member in members if member.phase.is_live or member.is_slot_kept}
            unused = sorted(nodes.keys() - held)
            if unused:
                yield f"job {job.id} holds slots {unused} without a member"


def _numbers_made(job: Job, slots: dict[int, set[int]]) -> Iterator[str]:
    """Parts and slots have numbers that the job counts as used, and no two members have had one slot."""
    numbers = [member.slot for member in job.members.values() if member.slot >= 0]
    if any(part >= job.parts_made for part in slots):
        yield f"job {job.id} has made {job.parts_made} parts, booked are {sorted(slots)}"
    if any(number >= job.slots_made for number in (*numbers, *(n for some in slots.values() for n in some))):
        yield f"job {job.id} has made {job.slots_made} slots, and uses higher numbers"
    if job.ownership.is_controlled and len(numbers) != len(set(numbers)):
        yield f"members of job {job.id} have the same slot: {sorted(numbers)}"


def _slots_by_part(state: SchedulerState, job: int) -> dict[int, set[int]]:
    holder = state.cluster.engine.jobs.get(job)
    parts = {} if holder is None else holder.parts
    return {key: {slot.number for slot in part.slots} for key, part in parts.items() if part.slots}


def _intents(state: SchedulerState) -> Iterator[str]:
    for number in state.intents:
        found = state.intents.get(number)
        if found is None or not found.waits_for:
            yield f"intent {number} is open and waits for nothing"
            continue
        if number > state.intents.highest:
            yield f"intent {number} is above the highest number {state.intents.highest}"
        for key in sorted(found.waits_for):
            if number not in state.intents.of_member(key):
                yield f"intent {number} waits for {key}, which the index does not know"
    for job in state.jobs.values():
        for member in job.members.values():
            if member.phase is MemberPhase.PLACING and not state.intents.placements_of(member.key):
                yield f"member {member.key} is being placed without an intent"


def _dependencies(state: SchedulerState) -> Iterator[str]:
    for job in state.jobs.values():
        if job.open_dependencies and job.state is not JobState.DEPEND and not job.is_ending:
            yield f"job {job.id} is in {job.state.value} with open dependencies"
        if job.id not in state.dependencies.jobs_named(job.owner, job.spec.name):
            yield f"job {job.id} is missing in the index of names"


def _timers(state: SchedulerState) -> Iterator[str]:
    earliest = state.timers.earliest()
    settings = state.settings
    for job in state.jobs.values():
        due: list[float] = []
        if job.waits_for_begin_time and job.spec.begin_at is not None:
            due.append(job.spec.begin_at)
        if job.incomplete_since is not None and job.state is JobState.RUN and not job.incomplete_reason:
            due.append(job.incomplete_since + settings.gang_repair_timeout_s)
        holder = state.cluster.engine.jobs.get(job.id)
        has_limit = job.end_at is not None and job.has_live_members and not job.is_ending
        if has_limit and job.end_at is not None and holder is not None and holder.end < FOREVER:
            due.append(max(holder.end, overrun_at(job.end_at, settings)))
        due.extend(
            since + settings.replacement_timeout_s
            for key in job.vacancies
            if (since := job.members[key].vacant_since) is not None
        )
        due.extend(
            member.lost_at + settings.lost_timeout_s
            for member in job.members.values()
            if member.phase is MemberPhase.LOST and member.lost_at is not None
        )
        if due and (job.id not in earliest or earliest[job.id] > min(due)):
            yield f"job {job.id} must be looked at by {min(due)}, its first timer is {earliest.get(job.id)}"


def _plans(state: SchedulerState) -> Iterator[str]:
    for number in {**state.plans.reservations, **state.plans.planned_starts}:
        if number not in state.jobs:
            yield f"job {number} is planned and not active"


def _nodes(state: SchedulerState) -> Iterator[str]:
    ranks = list(state.nodes.ranks.values())
    if len(set(ranks)) != len(ranks) or max(ranks, default=-1) > state.nodes.rank_highest:
        yield "ranks of nodes are not unique, or above the highest one"
    for name, node in state.cluster.nodes.items():
        if state.nodes.ranks.get(name) != node.rank:
            yield f"{name} has rank {node.rank}, recorded is {state.nodes.ranks.get(name)}"
        if node.is_drained is not (name in state.nodes.drains):
            yield f"{name} is {'' if node.is_drained else 'not '}drained, unlike its record"
        if node.vertex.up is not (node.fact.up and not node.is_drained and not node.is_blocked):
            yield f"{name} is {'up' if node.vertex.up else 'down'} in the graph"
        yield from _units(name, node)
    for key in state.cluster.external_usage_keys():
        if key.startswith(ORPHAN_KEY) and key.removeprefix(ORPHAN_KEY) in _live_keys(state):
            yield f"{key} is counted twice: as a member and as external usage"


def _units(name: str, node: ClusterNode) -> Iterator[str]:
    """A node has the units that it reports; further ones are down and held by a job."""
    reported = {(one.resource, number) for one in node.fact.capacity for number in _numbers(one)}
    units = {(unit.type, unit.id): unit for unit in node.vertex.below() if not unit.divisible}
    if reported != {key for key, unit in units.items() if unit.up}:
        yield f"{name} reports the units {sorted(reported)}, the graph has others"
    for (resource, number), unit in units.items():
        if not unit.up and (unit.state is None or not unit.state.bookings):
            yield f"{resource} {number} of {name} is retired, and no job holds it"


def _numbers(capacity: Capacity) -> range:
    return range(0 if capacity.divisible else capacity.units)


def _live_keys(state: SchedulerState) -> set[str]:
    return {key for members in state.members.nodes().values() for key in members}


def _step(state: SchedulerState) -> Iterator[str]:
    if state.cluster.is_synced and not state.worklist.is_empty():
        yield "work of the step is left undone"
