"""What the store says: who has a place, and of which jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.audit.readings import PLACING, JobAssignments, StoreMember, StoreReading
from penstock.store.audit_rows import AuditJob

__all__ = ["AuditRowStore", "assignments_of", "read_store"]

_WAITING: Final = "waiting"


class AuditRowStore(Protocol):
    """As much of a store as an auditor needs: it writes nothing."""

    async def placed_jobs(self) -> list[AuditJob]: ...


async def read_store(store: AuditRowStore) -> StoreReading:
    jobs = await store.placed_jobs()
    members = {
        member.key: StoreMember(job.id, member.node, member.phase)
        for job in jobs
        for member in job.members
        if member.phase != _WAITING
    }
    return StoreReading(members, {job.id: _places(job) for job in jobs})


def _places(job: AuditJob) -> JobAssignments:
    members = [(member.phase, member.seen_at) for member in job.members]
    return assignments_of(
        members, job.placed_at, job.incomplete_since, bool(job.incomplete_reason), job.ending
    )


def assignments_of(
    members: Sequence[tuple[str, float]],
    placed_at: float | None,
    incomplete_since: float | None,
    broken: bool,
    ending: bool,
) -> JobAssignments:
    """How much of a job has its place, by the phases of its members and when each was first seen.

    It is not whole while one that had a place is without; and while a binding is under way, counted from the
    start of the job or from when that member came.
    """
    placing = [seen_at for phase, seen_at in members if phase == PLACING]
    since = incomplete_since
    if since is None and placing and placed_at is not None:
        since = max(placed_at, *placing)
    placed = sum(1 for phase, _ in members if phase not in (_WAITING, PLACING))
    return JobAssignments(len(members), placed, broken, None if ending else since)
