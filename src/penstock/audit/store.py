"""Takes the snapshot of the store: active jobs with members that are assigned to nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from penstock.audit.snapshots import PLACING, JobAssignments, StoreMember, StoreSnapshot
from penstock.store.audit_rows import AuditJob

__all__ = ["AuditRowStore", "assignments_of", "read_store"]

_WAITING: Final = "waiting"


class AuditRowStore(Protocol):
    """The part of a store that the auditor reads."""

    async def placed_jobs(self) -> list[AuditJob]: ...


async def read_store(store: AuditRowStore) -> StoreSnapshot:
    jobs = await store.placed_jobs()
    members = {
        member.key: StoreMember(job.id, member.node, member.phase)
        for job in jobs
        for member in job.members
        if member.phase != _WAITING
    }
    return StoreSnapshot(members, {job.id: _job_assignments(job) for job in jobs})


def _job_assignments(job: AuditJob) -> JobAssignments:
    members = [(member.phase, member.seen_at) for member in job.members]
    return assignments_of(
        members, job.placed_at, job.incomplete_since, bool(job.incomplete_reason), job.ending
    )


def assignments_of(
    members: Sequence[tuple[str, float]],
    placed_at: float | None,
    incomplete_since: float | None,
    is_marked_incomplete: bool,
    ending: bool,
) -> JobAssignments:
    """Computes how many members of a job are placed, from their phases and the times they were first seen.

    A job is incomplete while a member has lost its node (`incomplete_since`), and while a binding is in
    flight, counted from the start of the job or from the appearance of that member.
    """
    placing = [seen_at for phase, seen_at in members if phase == PLACING]
    since = incomplete_since
    if since is None and placing and placed_at is not None:
        since = max(placed_at, *placing)
    placed = sum(1 for phase, _ in members if phase not in (_WAITING, PLACING))
    return JobAssignments(len(members), placed, is_marked_incomplete, None if ending else since)
