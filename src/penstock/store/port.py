"""What a store must be able to do. Every method is one transaction, and has its failpoints.

The fence is the epoch: `take_over` raises it, and every later `record` of an older one is a `Fenced`, so
that of two instances only the newer can write. A store that is away raises `Unavailable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.errors import Conflict
from penstock.model.job import JobEvent
from penstock.sched.records import Change, JobRow, Recorded
from penstock.store.audit_rows import AuditJob

__all__ = ["Fenced", "JobFilter", "Retention", "Store"]


class Fenced(Conflict):
    """Somebody with a newer epoch has taken over: nothing that we want counts any more."""

    def __init__(self, ours: int, theirs: int) -> None:
        super().__init__(f"epoch {ours} is over: epoch {theirs} has taken over")
        self.ours = ours
        self.theirs = theirs


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs of the history; None: any. Newest first."""

    ids: tuple[int, ...] | None = None
    states: tuple[str, ...] | None = None  # names of JobState
    results: tuple[str, ...] | None = None
    queue: str | None = None
    name: str | None = None
    owner: str | None = None
    since: float | None = None  # ended after this
    limit: int = 1000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long inactive jobs are kept; None: for ever."""

    age_s: float | None = 30 * 86400.0
    count: int | None = 1_000_000


class Store(Protocol):
    async def open(self) -> None:
        """Waits until the store answers, brings its schema up to date."""

    async def close(self) -> None: ...

    async def claim_cluster(self, cluster: str) -> str:
        """Ties what is recorded to a cluster, unless it is tied already; returns to which."""

    async def take_over(self, now: float) -> tuple[int, Recorded]:
        """Begins a new epoch and reads what there is, in one transaction."""

    async def record(self, epoch: int, changes: Sequence[Change]) -> None:
        """Writes all changes or none; `Fenced` if the epoch is over.

        After `Unavailable` nobody knows which: only `take_over` leads on.
        """

    async def jobs(self, wanted: JobFilter) -> list[JobRow]:
        """Jobs of the history, without their logs."""

    async def log(self, job: int) -> list[JobEvent]:
        """The eventlog of one job, in order; empty if there is none."""

    async def placed(self) -> list[AuditJob]:
        """Active jobs of which somebody has a place, in the order of their ids."""

    async def prune(self, epoch: int, now: float, keep: Retention) -> int:
        """Forgets inactive jobs beyond what is kept; returns how many. At most 10,000 at a time."""
