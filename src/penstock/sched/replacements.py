"""Places replacements on the slots that are kept for them, before a cycle starts anything else.

A kept slot is released and matched again in one step, on its node alone: the engine decides whether the
replacement fits there, with its own constraint and exclusion keys, and nothing else can take the units in
between. A replacement that does not fit there stays in the queue, where it comes before every other entry.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator
from dataclasses import replace
from itertools import takewhile
from math import ceil

from penstock.engine import Allocation
from penstock.engine.request import Request
from penstock.model.constraint import And, HostIn
from penstock.sched import vacancies
from penstock.sched.job import Job
from penstock.sched.overruns import expected_end
from penstock.sched.queue import QueueEntry
from penstock.sched.releasing import free_slots
from penstock.sched.starting import place_late_member
from penstock.sched.state import SchedulerState

__all__ = ["place_replacements"]


def place_replacements(state: SchedulerState, now: float, starts_max: int) -> Generator[None, None, int]:
    """Yields between matches. Returns how many members were placed, at most `starts_max`."""
    placed = 0
    for entry in _replacements(state) if state.members.has_kept() else ():
        if placed >= starts_max:
            break
        job = state.jobs[entry.job]
        member = job.members[entry.member]
        left = vacancies.replaced_member(job, member)
        if left is None or not left.is_slot_kept:
            continue
        yield
        state.subject = job
        vacancies.release_kept_slot(state, job, left, is_booked=False)
        free_slots(state, job, [left.slot], now)
        request = _on_node(state.queue.request_of(state.queue.shape_of(entry)), left.node)
        found = _match(state, job, request, int(now))
        if found is not None:
            place_late_member(state, job, member, found, now)
            placed += 1
    state.subject = None
    return placed


def _replacements(state: SchedulerState) -> list[QueueEntry]:
    """The entries of replacements in queues that are not stopped, in order."""
    entries = heapq.merge(*(bucket.entries() for bucket in state.queue.started_buckets() if bucket.is_late))
    return list(takewhile(lambda entry: entry.key.is_replacement, entries))


def _on_node(request: Request, node: str) -> Request:
    here = HostIn(frozenset({node}))
    groups = (
        replace(group, constraint=here if group.constraint is None else And((group.constraint, here)))
        for group in request.groups
    )
    return replace(request, groups=tuple(groups))


def _match(state: SchedulerState, job: Job, request: Request, now: int) -> Allocation | None:
    engine = state.cluster.engine
    if job.id in engine.jobs:
        answer = engine.extend(job.id, request, now, explain=False)
    else:  # It was the last slot of the job.
        end_at = None if job.end_at is None else expected_end(job.end_at, now)
        left_s = None if end_at is None else max(ceil(end_at) - now, 1)
        left = replace(request, duration_s=left_s)
        made = (job.parts_made, job.slots_made)
        answer = engine.match(job.id, left, now, explain=False, prove=False, made=made)
    return answer if isinstance(answer, Allocation) else None
