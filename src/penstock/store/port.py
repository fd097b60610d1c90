"""The interface of a store. Every method is one transaction; every write has two failpoints.

The epoch is the fence: `take_over` raises it, and a `record` with an older epoch raises `Fenced`. So of two
instances only the later can write. A store that cannot be reached raises `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import Conflict
from penstock.model.job import JobEvent
from penstock.sched.records import Change, JobOverview, MemberRecord, Recorded
from penstock.store.audit_rows import AuditJob

__all__ = ["Fenced", "JobFilter", "Retention", "Store"]


class Fenced(Conflict):
    """Another instance has begun a newer epoch; this one may not write any more."""

    def __init__(self, ours: int, theirs: int) -> None:
        super().__init__(f"epoch {ours} has ended: epoch {theirs} has taken over")
        self.ours = ours
        self.theirs = theirs


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Selects jobs of the history, newest first. None matches every job."""

    ids: tuple[int, ...] | None = None
    states: tuple[str, ...] | None = None  # names of JobState
    results: tuple[str, ...] | None = None
    queue: str | None = None
    name: str | None = None
    owner: str | None = None
    since: float | None = None  # ended after this time
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long, and how many, inactive jobs are kept, and how long their output. None: no limit."""

    age_s: float | None = 30 * 86400.0
    count: int | None = 1_000_000
    output_age_s: float | None = 30 * 86400.0


class Store(Protocol):
    async def open(self) -> None:
        """Waits until the store answers, then migrates its schema."""

    async def close(self) -> None: ...

    async def claim_cluster(self, cluster: str) -> str:
        """Ties the recorded state to a cluster unless it is tied to one; returns the cluster it is tied
        to."""

    async def take_over(self, now: float) -> tuple[int, Recorded]:
        """Begins an epoch and returns it with the recorded state, in one transaction."""

    async def record(self, epoch: int, changes: Sequence[Change]) -> None:
        """Writes all changes or none; raises `Fenced` if the epoch has ended.

        After `Unavailable` the outcome is unknown, and only `take_over` makes the store writable again.
        """

    async def accepts(self, epoch: int, changes: Sequence[Change]) -> bool:
        """Whether `record` would write these changes. Nothing is written; raises as `record` does if the
        store is lost or the epoch has ended."""

    async def jobs(self, job_filter: JobFilter) -> list[JobOverview]:
        """Returns jobs of the history, without their eventlogs and members."""

    async def members(self, job: int) -> list[MemberRecord]:
        """Returns the members of a job in the order of their appearance; empty if the job does not
        exist."""

    async def log(self, job: int) -> list[JobEvent]:
        """Returns the eventlog of a job, oldest event first; empty if the job does not exist."""

    async def placed_jobs(self) -> list[AuditJob]:
        """Returns active jobs with a member that is assigned to a node, by id."""

    async def prune(self, epoch: int, now: float, retention: Retention) -> tuple[int, ...]:
        """Deletes inactive jobs beyond the retention, at most 10,000 per call; returns them by id."""
