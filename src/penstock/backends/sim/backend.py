"""The simulated world: carries out intents at virtual times and reports facts as a real world would.

Whoever drives it asks `next_at`, turns the clock with `advance`, and gets the facts that became true by
then. How long a member runs, how long things take and what goes wrong is decided by a `Fate`, so that a
test can make members late, refused, lost, found again or gone. It checks what it is asked: a member that is
placed twice, or a node that is used beyond what it has, is counted in `wrongs`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from penstock.protocol.facts import (
    Capacity,
    ExternalUsageSet,
    Fact,
    IntentResult,
    MemberSet,
    MemberStatus,
    NodeGone,
    NodeSet,
    Outcome,
    Phase,
    Snapshot,
    WorkloadSet,
    end_cause_of,
)
from penstock.protocol.intents import Assignment, End, EndReason, Intent, Place, Retract

__all__ = ["Fate", "Run", "SimBackend", "plain_nodes"]


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of one member that is placed."""

    runs_s: float = 1.0
    status: int = 0
    place_s: float = 0.0  # from the intent to the member being there
    outcome: Outcome = Outcome.APPLIED
    refused: str = ""  # the node takes it, and then does not
    cause: str = ""
    ends_on_request_s: float = 0.0  # from an `End` to the end


@dataclass(slots=True)
class Run:
    """A member that the world knows."""

    assignment: Assignment
    job: int
    phase: Phase
    since: float
    fate: Fate
    status: int = 0
    cause: str = ""
    starts: int = 0  # how often it began: more than once is a wrong


def plain_nodes(count: int, capacity: Iterable[Capacity]) -> tuple[NodeSet, ...]:
    told = tuple(capacity)
    return tuple(NodeSet(f"node{number}", told) for number in range(count))


FateOf = Callable[[Place, Assignment], Fate]


@dataclass
class SimBackend:
    nodes: dict[str, NodeSet]
    fate_of: FateOf = lambda _place, _assignment: Fate()
    now: float = 0.0
    holds: dict[str, ExternalUsageSet] = field(default_factory=dict)
    workloads: dict[str, WorkloadSet] = field(default_factory=dict)
    members: dict[str, MemberSet] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    tombstones: set[str] = field(default_factory=set)
    epoch: int = 0
    begun: set[str] = field(default_factory=set)  # every member that has ever begun
    wrongs: list[str] = field(default_factory=list)
    is_prompt: bool = True  # intents come at once: what others use by then was known when they were made
    _agenda: list[tuple[float, int, Callable[[], list[Fact]]]] = field(default_factory=list)
    _losses: dict[str, int] = field(default_factory=dict)  # how often each node was lost
    _steps: dict[str, int] = field(default_factory=dict)  # requests for each member
    _made: int = 0

    # Time

    def next_at(self) -> float | None:
        return self._agenda[0][0] if self._agenda else None

    def advance(self, to: float) -> list[Fact]:
        """Turns the clock; returns what became true, in order."""
        facts: list[Fact] = []
        while self._agenda and self._agenda[0][0] <= to:
            at, _, act = heapq.heappop(self._agenda)
            self.now = max(self.now, at)
            facts.extend(act())
        self.now = max(self.now, to)
        return facts

    def later(self, after_s: float, act: Callable[[], list[Fact]]) -> None:
        self._made += 1
        heapq.heappush(self._agenda, (self.now + after_s, self._made, act))

    def snapshot(self) -> Snapshot:
        observations = tuple(self._observed(key) for key in self.runs)
        return Snapshot(
            tuple(self.nodes.values()),
            tuple(self.holds.values()),
            tuple(self.workloads.values()),
            tuple(self.members.values()),
            observations,
        )

    def _observed(self, key: str) -> MemberStatus:
        run = self.runs[key]
        amounts = tuple((kind, units) for kind, _, units in run.assignment.grants)
        cause, message = end_cause_of(run.cause)
        return MemberStatus(
            key,
            run.phase,
            run.since,
            run.assignment.node,
            run.status,
            cause,
            message,
            run.starts > 0,
            amounts,
        )

    # Intents

    def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        """Takes intents; their outcome comes with `advance`. An older epoch than one seen is not heard."""
        if epoch < self.epoch:
            return
        self.epoch = epoch
        for intent in intents:
            match intent:
                case Place():
                    for assignment in intent.assignments:
                        if not assignment.already_placed:
                            self._place(intent, assignment)
                case End():
                    for member in intent.members:
                        self._end(intent, member)
                case Retract():
                    for member in intent.members:
                        self._retract(intent, member)

    def _place(self, intent: Place, assignment: Assignment) -> None:
        known = self.runs.get(assignment.member)
        if known is not None or assignment.member in self.tombstones:
            outcome = Outcome.APPLIED if known is not None else Outcome.GONE
            self.later(0.0, lambda: [IntentResult(intent.intent, assignment.member, outcome)])
            return
        if assignment.member in self.begun:
            self.wrongs.append(f"{assignment.member} has run, and is to run again")
        fate = self.fate_of(intent, assignment)
        losses = self._losses.get(assignment.node, 0)
        # Requests for one member are ordered: a newer one takes the place of one that is under way.
        turn = self._steps[assignment.member] = self._steps.get(assignment.member, 0) + 1

        def arrive() -> list[Fact]:
            return (
                self._arrive(intent, assignment, fate, losses)
                if turn == self._steps[assignment.member]
                else []
            )

        self.later(fate.place_s, arrive)

    def _arrive(self, intent: Place, assignment: Assignment, fate: Fate, losses: int) -> list[Fact]:
        if assignment.member in self.runs:
            return [IntentResult(intent.intent, assignment.member, Outcome.APPLIED)]
        if assignment.member in self.tombstones or assignment.member in self.begun:
            # The same request was under way twice; the other one was served.
            return [IntentResult(intent.intent, assignment.member, Outcome.GONE)]
        # A node of the same name that came later is another one.
        if assignment.node not in self.nodes or losses != self._losses.get(assignment.node, 0):
            return [IntentResult(intent.intent, assignment.member, Outcome.CONFLICT, "no such node")]
        if fate.outcome in (Outcome.CONFLICT, Outcome.GONE):
            return [IntentResult(intent.intent, assignment.member, fate.outcome, fate.cause)]
        run = self.runs[assignment.member] = Run(
            assignment, intent.job, Phase.RUNNING, self.now, fate, starts=1
        )
        if not fate.refused:
            self.begun.add(assignment.member)
        # What others took while it was on its way is not our wrong.
        self._check_room(assignment.node, with_others=self.is_prompt and fate.place_s == 0)
        if fate.refused:
            run.phase, run.cause, run.starts = Phase.REFUSED, fate.refused, 0
            told = self._observed(assignment.member)
            del self.runs[assignment.member]
            return [IntentResult(intent.intent, assignment.member, Outcome.APPLIED), told]
        self.later(fate.runs_s, lambda: self._finish(assignment.member, fate.status, fate.cause))
        answer = IntentResult(intent.intent, assignment.member, fate.outcome)
        return [answer, self._observed(assignment.member)]

    def _finish(self, member: str, status: int, cause: str) -> list[Fact]:
        run = self.runs.get(member)
        if run is None or run.phase is not Phase.RUNNING:
            return []
        run.phase, run.status, run.cause, run.since = Phase.ENDED, status, cause, self.now
        return [self._observed(member)]

    def _end(self, intent: End, member: str) -> None:
        run = self.runs.get(member)
        if run is None:
            self.tombstones.add(member)
            self.later(0.0, lambda: [IntentResult(intent.intent, member, Outcome.GONE)])
            return
        self.later(0.0, lambda: [IntentResult(intent.intent, member, Outcome.APPLIED)])
        if intent.grace_s is not None:
            wait_s = run.fate.ends_on_request_s
            self.later(
                wait_s,
                lambda: self._finish(
                    member,
                    intent.signal,
                    EndReason.TIMEOUT.value if intent.reason is EndReason.TIMEOUT else "",
                ),
            )

    def _retract(self, intent: Retract, member: str) -> None:
        if member in self.runs:
            self.later(
                0.0,
                lambda: [
                    IntentResult(intent.intent, member, Outcome.APPLIED),
                    *self._finish(member, 9, "evicted"),
                ],
            )
        else:
            self.tombstones.add(member)
            self.later(0.0, lambda: [IntentResult(intent.intent, member, Outcome.APPLIED)])

    def probe(self, members: Sequence[str]) -> None:
        for member in members:
            self.later(0.0, partial(self._probed, member))

    def _probed(self, member: str) -> list[Fact]:
        if member in self.runs:
            return [self._observed(member)]
        return [MemberStatus(member, Phase.WAITING, self.now)]

    def forget(self, members: Iterable[str]) -> None:
        """The scheduler has recorded their end: nobody needs to remember them."""
        for member in members:
            run = self.runs.get(member)
            if run is not None and run.phase is not Phase.RUNNING:
                del self.runs[member]

    # What happens to nodes

    def lose_node(self, node: str) -> NodeGone:
        """The node is gone, with all that ran there."""
        del self.nodes[node]
        self._losses[node] = self._losses.get(node, 0) + 1
        for key in [key for key, run in self.runs.items() if run.assignment.node == node]:
            del self.runs[key]
        return NodeGone(node)

    def _check_room(self, node: str, *, with_others: bool) -> None:
        used: dict[str, int] = {}
        for hold in self.holds.values() if with_others else ():
            for kind, units in hold.usage if hold.node == node else ():
                used[kind] = used.get(kind, 0) + units
        for run in self.runs.values():
            if run.assignment.node == node and run.phase is Phase.RUNNING:
                for kind, _, units in run.assignment.grants:
                    used[kind] = used.get(kind, 0) + units
        has = {capacity.resource: capacity.units for capacity in self.nodes[node].capacity}
        for kind, units in used.items():
            if units > has.get(kind, 0):
                self.wrongs.append(f"{node} at {self.now}: {units} {kind} in use, it has {has.get(kind, 0)}")
