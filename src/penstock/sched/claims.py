"""Claims: nodes on which a job that would starve collects what becomes free.

A job that has waited long for resources without a known end claims nodes on which it could run if all jobs
there ended. A claim books nothing. In every cycle, from the place of its job on, only jobs with a short
enforced limit may use anything on these nodes, so they become free sooner or later. A claim is made once
(`claim_choice`, `cycle`), recorded, and kept until its job starts or is not eligible any more. It moves only
if its nodes could not hold the job any more; `is_in_doubt` says that this must be checked, because one of
them has changed.

A queue has at most one claim per owner. Claims do not share nodes.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from penstock.sched.job import Job
from penstock.sched.journal import Journal
from penstock.sched.records import ClaimGone, ClaimSet

__all__ = ["ClaimRefusal", "NodeClaims"]

_REFUSALS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class ClaimRefusal:
    """Why a request gets no claim until some time: other claims must end first, or it needs none."""

    until: float
    waits_for_room: bool


class NodeClaims:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._claims: dict[int, ClaimSet] = {}  # by job
        self._of: dict[int, tuple[str, str]] = {}  # by job: queue and owner
        self._job_of: dict[tuple[str, str], int] = {}
        self._job_on: dict[str, int] = {}  # by node
        self._in_doubt: dict[int, None] = {}
        self._in_force: dict[int, float] = {}  # by job: since when its nodes are kept for it
        self._refusals: dict[int, ClaimRefusal] = {}  # by shape

    def copy(self, journal: Journal) -> NodeClaims:
        made = NodeClaims(journal)
        made._claims, made._of, made._job_of = dict(self._claims), dict(self._of), dict(self._job_of)
        made._job_on, made._in_doubt = dict(self._job_on), dict(self._in_doubt)
        made._in_force, made._refusals = dict(self._in_force), dict(self._refusals)
        return made

    def __len__(self) -> int:
        return len(self._claims)

    def __iter__(self) -> Iterator[ClaimSet]:
        return iter(self._claims.values())

    def get(self, job: int) -> ClaimSet | None:
        return self._claims.get(job)

    @property
    def nodes(self) -> Mapping[str, int]:
        """The job that claims each claimed node."""
        return self._job_on

    def has_claim(self, queue: str, owner: str) -> bool:
        return (queue, owner) in self._job_of

    def restore(self, claims: Iterable[ClaimSet], jobs: Mapping[int, Job]) -> None:
        """Restores recorded claims of active jobs. Their nodes may have changed in the meantime."""
        for claim in claims:
            job = jobs.get(claim.job)
            if job is None:
                self._journal.add(ClaimGone(claim.job))
                continue
            self._put(claim, (job.queue, job.owner))
            self._in_doubt[claim.job] = None

    def set(self, job: Job, nodes: tuple[str, ...], now: float) -> None:
        """Makes a claim, or moves it."""
        before = self._claims.get(job.id)
        claim = ClaimSet(job.id, nodes, now if before is None else before.made_at)
        self._drop(job.id)
        self._put(claim, (job.queue, job.owner))
        self._journal.add(claim)

    def end(self, job: int) -> None:
        if job in self._claims:
            self._drop(job)
            self._journal.add(ClaimGone(job))

    def end_queue(self, queue: str) -> None:
        for job in [job for job, (of_queue, _) in self._of.items() if of_queue == queue]:
            self.end(job)

    def node_changed(self, node: str) -> bool:
        """A node has changed. Returns whether a claim must be checked."""
        job = self._job_on.get(node)
        if job is None:
            return False
        self._in_doubt[job] = None
        return True

    def request_changed(self, job: int) -> None:
        if job in self._claims:
            self._in_doubt[job] = None

    def is_in_doubt(self, job: int) -> bool:
        """Whether the nodes of a claim may be unable to hold its job."""
        return job in self._in_doubt

    def in_force_since(self, job: int) -> float | None:
        """Since when every cycle has kept the nodes of a claim; None: the last one has reserved a start."""
        return self._in_force.get(job)

    def cycle_ended(self, reserved: Container[int], now: float) -> None:
        """A cycle has put into force the claims of all jobs for which it has reserved no start."""
        for job in self._claims:
            if job in reserved:
                self._in_force.pop(job, None)
            else:
                self._in_force.setdefault(job, now)

    def confirm(self, job: int) -> None:
        """The nodes of a claim can hold its job."""
        self._in_doubt.pop(job, None)

    def refuse(self, shape: int, until: float, waits_for_room: bool) -> None:
        if len(self._refusals) >= _REFUSALS_MAX:
            self._refusals.clear()
        self._refusals[shape] = ClaimRefusal(until, waits_for_room)

    def refusal(self, shape: int, now: float) -> ClaimRefusal | None:
        """Why a request is not considered for a claim at present; None if it is."""
        found = self._refusals.get(shape)
        return found if found is not None and found.until > now else None

    def _put(self, claim: ClaimSet, of: tuple[str, str]) -> None:
        self._claims[claim.job], self._of[claim.job], self._job_of[of] = claim, of, claim.job
        self._job_on.update(dict.fromkeys(claim.nodes, claim.job))

    def _drop(self, job: int) -> None:
        claim = self._claims.pop(job, None)
        if claim is not None:
            self._refusals.clear()
            del self._job_of[self._of.pop(job)]
            self._in_doubt.pop(job, None)
            self._in_force.pop(job, None)
            for node in claim.nodes:
                del self._job_on[node]
