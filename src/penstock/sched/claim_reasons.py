"""What claims have to do with a job that waits: its own claim, and claims of jobs before it.

The description of a claim names jobs of the same owner, and counts others.
"""

from __future__ import annotations

from penstock.engine import Allocation, MatchOp
from penstock.engine.planner import FOREVER
from penstock.model.duration import format_duration
from penstock.model.jobid import encode_jobid
from penstock.sched.job import Job
from penstock.sched.queue import QueueEntry
from penstock.sched.records import ClaimSet
from penstock.sched.state import SchedulerState

__all__ = ["claims_in_force", "claims_in_the_way", "describe_claim"]


def claims_in_force(state: SchedulerState) -> list[ClaimSet]:
    """The claims that keep others off their nodes: a job with a reservation needs no claim."""
    return [claim for claim in state.claims if claim.job not in state.plans.reservations]


def describe_claim(state: SchedulerState, job: Job, now: float) -> str:
    """The claim of a job in words; "" if it has none in force."""
    claim = state.claims.get(job.id)
    if claim is None or job.id in state.plans.reservations:
        return ""
    count = len(claim.nodes)
    nodes = f"{count} node" if count == 1 else f"{count} nodes"
    text = f"it has claimed {nodes} for {format_duration(max(0.0, round(now - claim.made_at)))}"
    left = _endless_jobs(state, claim)
    if not left:
        return text
    own = [number for number in left if (one := state.jobs.get(number)) is None or one.owner == job.owner]
    names = [encode_jobid(number) for number in own[:3]]
    others = len(left) - len(names)
    if others:
        names.append(f"{others} {'other ' if names else ''}{'job' if others == 1 else 'jobs'}")
    verb = "runs" if len(left) == 1 else "run"
    return f"{text}, where {' and '.join(names)} {verb} without a known end"


def _endless_jobs(state: SchedulerState, claim: ClaimSet) -> list[int]:
    """The jobs without a known end on the nodes of a claim."""
    found: dict[int, None] = {}
    for node in claim.nodes:
        known = state.cluster.nodes.get(node)
        bookings = known.vertex.state.bookings if known is not None and known.vertex.state else {}
        found.update((number, None) for (number, _), booking in bookings.items() if booking.end >= FOREVER)
    return sorted(found)


def claims_in_the_way(state: SchedulerState, entry: QueueEntry, shape: int, now: float) -> tuple[int, ...]:
    """The jobs whose claims keep an entry from starting."""
    before = [claim for claim in claims_in_force(state) if _is_before(state, claim.job, entry)]
    if not before or state.queue.is_short(shape):
        return ()
    known = state.cluster.nodes
    claimed = frozenset(known[node].vertex.index for one in before for node in one.nodes if node in known)
    request = state.queue.request_of(shape)
    answer = state.cluster.engine.match(
        0,
        request,
        int(now),
        MatchOp.WITHOUT_ALLOCATING,
        explain=False,
        prove=False,
        excluded_nodes=claimed,
    )
    return () if isinstance(answer, Allocation) else tuple(claim.job for claim in before)


def _is_before(state: SchedulerState, job: int, entry: QueueEntry) -> bool:
    other = state.queue.entry(job)
    return other is not None and other < entry
