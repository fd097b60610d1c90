"""The start of a job: record the allocation, assign slots to members, order their placement."""

from __future__ import annotations

from penstock.engine.allocation import Allocation, Slot
from penstock.engine.graph import Vertex
from penstock.model.idset import encode_idset
from penstock.protocol.intents import Assignment, Place
from penstock.sched import vacancies
from penstock.sched.allocation_records import allocation_record
from penstock.sched.cluster import grants_of
from penstock.sched.job import Job, Member
from penstock.sched.lifecycle import update_dependents
from penstock.sched.member_states import MemberEvent, MemberPhase
from penstock.sched.records import JobNodeSet
from penstock.sched.state import SchedulerState

__all__ = ["assignment_of", "place_late_member", "start_job"]


def start_job(state: SchedulerState, job: Job, found: Allocation, now: float) -> None:
    """Starts a job with the allocation that a cycle has made."""
    state.queue.remove_started(job.id)
    state.admission.remove(job.id)
    state.satisfiability.forget(job.id)
    _record_allocation(state, job, found)
    job.placed_at = now
    job.end_at = None if job.spec.limit_s is None else now + job.spec.limit_s
    _record_resources(state, job, _resources_by_node(state, job))
    _assign_slots(state, job, found.slots)
    for member in job.members.values() if len(job.members) > len(found.slots) else ():
        if member.phase is MemberPhase.WAITING:
            state.worklist.enqueue_late(job.id, member.key)  # It joins the started group.
    context: dict[str, object] = {}
    if job.forecast is not None or job.promise is not None:
        promised = job.promise.last_at if job.promise is not None else now
        context["annotations"] = {"sched": {"t_estimate": promised}}
    state.journal.log(job, "alloc", now, **context)
    job.forecast = None
    state.plans.planned_starts.pop(job.id, None)
    _place(state, job, [member for member in job.members.values() if member.phase is MemberPhase.PLACING])
    if job.end_at is not None:
        state.wake(job.end_at, job.id)
    update_dependents(state, job, now)


def _record_allocation(state: SchedulerState, job: Job, found: Allocation) -> None:
    """Records the part of the job's allocation that this match has made."""
    holder = state.cluster.engine.jobs[job.id]
    made = found.slots[0].number
    latest_first = reversed(holder.parts.items())  # Several parts may have been made in this cycle.
    key = next(key for key, part in latest_first if any(slot.number == made for slot in part.slots))
    state.journal.add(allocation_record(job.id, key, holder.parts[key], holder.placement))
    for slot in found.slots:
        job.slots.add(slot.number, key, slot.node.name if slot.node is not None else "")
    job.parts_made, job.slots_made = holder.parts_made, holder.slots_made
    job.has_allocation = True


def _record_resources(state: SchedulerState, job: Job, by_node: dict[str, dict[str, str]]) -> None:
    """Records what a job holds on some nodes, beside what it has held there since its start."""
    for node, resources in by_node.items():
        all_resources = {**job.resources_by_node.get(node, {}), **resources}
        job.resources_by_node[node] = all_resources
        state.journal.add(JobNodeSet(job.id, node, all_resources))


def _resources_by_node(state: SchedulerState, job: Job) -> dict[str, dict[str, str]]:
    """The units of a job by node and resource: ids of whole units, a count for pools."""
    ids: dict[str, dict[str, list[int]]] = {}
    pools: dict[str, dict[str, int]] = {}
    for claim in state.cluster.engine.jobs[job.id].claims().values():
        node = claim.vertex.parent()
        if not claim.booked or claim.vertex.type == "node" or node is None:
            continue
        if claim.vertex.divisible:
            counts = pools.setdefault(node.name, {})
            counts[claim.vertex.type] = counts.get(claim.vertex.type, 0) + claim.units
        else:
            ids.setdefault(node.name, {}).setdefault(claim.vertex.type, []).append(claim.vertex.id)
    by_node: dict[str, dict[str, str]] = {}
    for node_name, resources in ids.items():
        by_node[node_name] = {resource: encode_idset(numbers) for resource, numbers in resources.items()}
    for node_name, counts in pools.items():
        by_node.setdefault(node_name, {}).update({resource: str(count) for resource, count in counts.items()})
    return by_node


def _resources_on_nodes(job: Job, slots: tuple[Slot, ...]) -> dict[str, dict[str, str]]:
    """As `_resources_by_node`, on the nodes of some slots only."""
    nodes: dict[int, Vertex] = {}
    for slot in slots:
        for vertex in (slot.node,) if slot.node is not None else (grant.vertex for grant in slot.grants):
            node = vertex if vertex.type == "node" else vertex.parent()
            if node is not None:
                nodes[node.index] = node
    by_node: dict[str, dict[str, str]] = {}
    for node in nodes.values():
        ids: dict[str, list[int]] = {}
        pools: dict[str, int] = {}
        for vertex in node.below():
            bookings = vertex.state.bookings.items() if vertex.state is not None else ()
            own = [booking.units for (number, _), booking in bookings if number == job.id]
            if own and vertex.divisible:
                pools[vertex.type] = pools.get(vertex.type, 0) + sum(own)
            elif own:
                ids.setdefault(vertex.type, []).append(vertex.id)
        by_node[node.name] = {resource: encode_idset(numbers) for resource, numbers in ids.items()}
        by_node[node.name].update((resource, str(count)) for resource, count in pools.items())
    return by_node


def _assign_slots(state: SchedulerState, job: Job, slots: tuple[Slot, ...]) -> None:
    ordered = sorted(slots, key=lambda slot: (_rank(slot.node), slot.number))
    for member, slot in job.ownership.slots_of_members(job, ordered):
        _assign(state, job, member, slot)


def _rank(node: Vertex | None) -> int:
    return node.rank if node is not None else -1


def _assign(state: SchedulerState, job: Job, member: Member, slot: Slot) -> None:
    state.journal.change_phase(job, member, MemberEvent.ASSIGN)
    member.slot = slot.number
    member.node = slot.node.name if slot.node is not None else ""
    member.grants, member.brings, member.late_brings = grants_of(slot), slot.brings, ()
    state.members.assign(member.key, job.id, member.node)


def place_late_member(state: SchedulerState, job: Job, member: Member, found: Allocation, now: float) -> None:
    """Places one more member of a started job with the allocation that a cycle has made."""
    state.queue.remove_started(job.id, member.key)
    state.workloads.member_left(job.workload, member.key)
    _record_allocation(state, job, found)
    _assign(state, job, member, found.slots[-1])
    _record_resources(state, job, _resources_on_nodes(job, found.slots))
    state.journal.touch(job)
    _place(state, job, [member])
    if job.end_at is not None and job.end_at <= now:
        state.wake(now, job.id)
    vacancies.filled(state, job, member, now)
    if not job.ownership.has_unplaced_members(job):
        job.incomplete_since = None
    if job.incomplete_reason and vacancies.is_complete(state, job):
        job.incomplete_reason = ""


def assignment_of(member: Member) -> Assignment:
    return Assignment(member.key, member.index, member.node, member.grants)


def _place(state: SchedulerState, job: Job, members: list[Member]) -> None:
    assignments = tuple(map(assignment_of, members))
    number = state.intents.next_number()
    spec = job.ownership.backend_spec(job)
    state.intents.open(Place(number, job.id, job.workload, assignments, job.end_at, len(job.members), spec))
