"""Claims in one cycle: who has one, who gets one, and which nodes it covers.

A job has a claim already, or it is starving and may get one at its place in the order. The cycle asks a
`ClaimDesk` (`decide`) for a job that can neither start nor get a reservation. All claims together cover at
most half of the nodes that are up; a job that needs more claims alone. There are never more than
`_CLAIMS_MAX`. A job that has to wait for room among the claims lets no later job claim nodes before it, or it
would starve behind small claims.

Choosing nodes costs several matches. A request for which there was nothing to choose, or that turned out to
have a start time, is looked at again a minute later, or when a claim has ended.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from typing import Final

from penstock.sched.claim_choice import can_hold, choose_nodes, nodes_up
from penstock.sched.cycle import Claimant, Cycle
from penstock.sched.starvation import StarvingJob
from penstock.sched.state import SchedulerState

__all__ = ["ClaimDesk"]

_CLAIMS_MAX: Final = 32  # each costs every cycle a few matches
_PROBES_MAX: Final = 16  # starving jobs that one cycle looks at
_RETRY_S: Final = 60.0


class ClaimDesk:
    """Decides about claims in one cycle. Nothing is recorded before `record`."""

    def __init__(self, state: SchedulerState, now: float) -> None:
        self._state = state
        self._now = now
        self._made: dict[int, tuple[str, ...]] = {}  # by job: claims that were made or moved
        self._lost: list[int] = []  # jobs that nothing can be claimed for any more
        self._confirmed: list[int] = []
        self._looked_at = 0
        self._waits_for_room = False
        self._half: int | None = None  # of the nodes that are up

    # Input of the cycle

    def open_for(self, plan: Cycle) -> Cycle:
        """A cycle that observes claims, and makes and moves them."""
        return replace(plan, holders=self.holders(), starving=self._starving(), claiming=self)

    def holders(self) -> list[Claimant]:
        """The jobs that have a claim, in order."""
        return sorted(self._holders(), key=lambda one: one.entry)

    def _holders(self) -> Iterator[Claimant]:
        state = self._state
        for claim in state.claims:
            job, entry = state.jobs[claim.job], state.queue.entry(claim.job)
            if entry is not None:
                yield Claimant(entry, job.queue, job.owner, job.shape, self._indexes(claim.nodes))

    def _starving(self) -> list[Claimant]:
        """The starving jobs that may get a claim, in order."""
        jobs = sorted(self._state.queue.starving.first_jobs(self._now), key=lambda job: job.entry)
        claims = self._state.claims
        return [_claimant(job) for job in jobs if not claims.has_claim(job.queue, job.owner)]

    # Decisions

    def may_claim(self, claimant: Claimant) -> bool:
        """Whether this cycle should find out if a starving job needs a claim."""
        claims = self._state.claims
        refusal = claims.refusal(claimant.shape, self._now)
        if refusal is not None:
            self._waits_for_room = self._waits_for_room or refusal.waits_for_room
            return False
        others = (self._state.jobs[job] for job in self._made)
        if self._waits_for_room or any((job.queue, job.owner) == _of(claimant) for job in others):
            return False
        if self._looked_at >= _PROBES_MAX:
            self._state.queue.starving.look_again(self._now + 1.0)
            return False
        self._looked_at += 1
        return True

    def refuse(self, claimant: Claimant, *, waits_for_room: bool = False) -> None:
        """A starving job gets no claim for now."""
        self._waits_for_room = self._waits_for_room or waits_for_room
        retry_at = self._now + _RETRY_S
        self._state.claims.refuse(claimant.shape, retry_at, waits_for_room)
        self._state.queue.starving.look_again(retry_at)

    def decide(self, claimant: Claimant) -> Generator[None, None, frozenset[int]]:
        """The nodes that a job claims, by index: the same as before if possible; none if it gets no claim."""
        state, job = self._state, claimant.entry.job
        request = state.queue.request_of(claimant.shape)
        claim = state.claims.get(job)
        if claim is not None:
            if not state.claims.is_in_doubt(job):
                return claimant.nodes
            if can_hold(state.cluster, request, claim.nodes):
                self._confirmed.append(job)
                return claimant.nodes
        others = self._nodes_of_others(job)
        chosen = yield from choose_nodes(state.cluster, request, self._indexes(others))
        if chosen is not None and (not others or self._has_room(len(others) + len(chosen), claim is None)):
            self._made[job] = chosen
            return self._indexes(chosen)
        if claim is not None:
            self._lost.append(job)
            return frozenset()
        # Without the nodes that others claim there may be none; then it waits for them as well.
        could_claim = chosen or (others and state.cluster.engine.nodes_without_jobs(request))
        self.refuse(claimant, waits_for_room=bool(could_claim))
        return frozenset()

    def record(self) -> None:
        """Changes the claims as decided. Jobs that have started do not claim anything any more."""
        state = self._state
        for job in self._lost:
            state.claims.end(job)
            state.queue.starving.look_again(self._now + _RETRY_S)
        for job in self._confirmed:
            state.claims.confirm(job)
        for job, nodes in self._made.items():
            state.claims.set(state.jobs[job], nodes, self._now)

    def _nodes_of_others(self, job: int) -> tuple[str, ...]:
        claims = self._state.claims
        kept = (node for node, holder in claims.nodes.items() if holder != job and holder not in self._made)
        made = (node for other, nodes in self._made.items() if other != job for node in nodes)
        return (*kept, *made)

    def _has_room(self, nodes: int, is_new: bool) -> bool:
        """Whether claims may cover so many nodes."""
        if is_new and len(self._state.claims) + len(self._made) >= _CLAIMS_MAX:
            return False
        if self._half is None:
            self._half = nodes_up(self._state.cluster) // 2
        return nodes <= self._half

    def _indexes(self, nodes: Iterable[str]) -> frozenset[int]:
        known = self._state.cluster.nodes
        return frozenset(known[node].vertex.index for node in nodes if node in known)


def _claimant(job: StarvingJob) -> Claimant:
    return Claimant(job.entry, job.queue, job.owner, job.shape)


def _of(claimant: Claimant) -> tuple[str, str]:
    return claimant.queue, claimant.owner
