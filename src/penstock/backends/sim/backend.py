"""A simulated backend: applies intents at virtual times and reports facts like a real backend.

The caller reads the next event time from `next_at`, sets the clock with `advance`, and gets the facts that
became true until then. A `MemberScript` decides how long a member runs, how long its placement takes and what
fails, so a test can make members late, refused, lost, found again or gone. The backend also checks the
intents: a member that is placed twice, or a node that is used beyond its capacity, is recorded in
`violations`.
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
from penstock.protocol.intents import Assignment, End, EndReason, Evict, Intent, Place

__all__ = ["MemberScript", "SimBackend", "SimulatedRun", "uniform_nodes"]


@dataclass(frozen=True, slots=True)
class MemberScript:
    """The simulated behaviour of one placed member."""

    runs_s: float = 1.0
    status: int = 0
    place_delay_s: float = 0.0  # from the intent until the member is placed
    outcome: Outcome = Outcome.APPLIED
    refused: str = ""  # why the node refuses the member after it was bound; "": it does not
    cause: str = ""
    end_delay_s: float = 0.0  # from an `End` intent to the end


@dataclass(slots=True)
class SimulatedRun:
    """A member that was placed."""

    assignment: Assignment
    job: int
    phase: Phase
    since: float
    script: MemberScript
    status: int = 0
    cause: str = ""
    starts: int = 0  # more than one start is a violation


def uniform_nodes(count: int, capacity: Iterable[Capacity]) -> tuple[NodeSet, ...]:
    capacities = tuple(capacity)
    return tuple(NodeSet(f"node{number}", capacities) for number in range(count))


ScriptFor = Callable[[Place, Assignment], MemberScript]


@dataclass
class SimBackend:
    nodes: dict[str, NodeSet]
    script_for: ScriptFor = lambda _place, _assignment: MemberScript()
    now: float = 0.0
    external_usage: dict[str, ExternalUsageSet] = field(default_factory=dict)
    workloads: dict[str, WorkloadSet] = field(default_factory=dict)
    members: dict[str, MemberSet] = field(default_factory=dict)
    runs: dict[str, SimulatedRun] = field(default_factory=dict)
    tombstones: set[str] = field(default_factory=set)
    epoch: int = 0
    ever_started: set[str] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    applies_immediately: bool = True  # intents arrive without delay, so the scheduler knew the external usage
    _events: list[tuple[float, int, Callable[[], list[Fact]]]] = field(default_factory=list)
    # Removals of each node name: tells nodes of the same name apart.
    _removals: dict[str, int] = field(default_factory=dict)
    # Number of the latest request for each member.
    _latest_request: dict[str, int] = field(default_factory=dict)
    _sequence: int = 0

    # Time

    def next_at(self) -> float | None:
        return self._events[0][0] if self._events else None

    def advance(self, to: float) -> list[Fact]:
        """Sets the clock; returns the facts that became true, in order."""
        facts: list[Fact] = []
        while self._events and self._events[0][0] <= to:
            at, _, event = heapq.heappop(self._events)
            self.now = max(self.now, at)
            facts.extend(event())
        self.now = max(self.now, to)
        return facts

    def schedule(self, after_s: float, event: Callable[[], list[Fact]]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now + after_s, self._sequence, event))

    def snapshot(self) -> Snapshot:
        statuses = tuple(self._member_status(key) for key in self.runs)
        return Snapshot(
            tuple(self.nodes.values()),
            tuple(self.external_usage.values()),
            tuple(self.workloads.values()),
            tuple(self.members.values()),
            statuses,
        )

    def _member_status(self, key: str) -> MemberStatus:
        run = self.runs[key]
        usage = tuple((resource, units) for resource, _, units in run.assignment.grants)
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
            usage,
        )

    # Intents

    def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        """Accepts intents; `advance` returns their results. Ignores an epoch older than the newest seen."""
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
                case Evict():
                    for member in intent.members:
                        self._evict(intent, member)

    def _place(self, intent: Place, assignment: Assignment) -> None:
        known = self.runs.get(assignment.member)
        if known is not None or assignment.member in self.tombstones:
            outcome = Outcome.APPLIED if known is not None else Outcome.GONE
            self.schedule(0.0, lambda: [IntentResult(intent.intent, assignment.member, outcome)])
            return
        if assignment.member in self.ever_started:
            self.violations.append(f"{assignment.member} has run and is placed again")
        script = self.script_for(intent, assignment)
        removals = self._removals.get(assignment.node, 0)
        # A later request for the same member supersedes a request in flight.
        request = self._latest_request[assignment.member] = self._latest_request.get(assignment.member, 0) + 1

        def arrive() -> list[Fact]:
            return (
                self._arrive(intent, assignment, script, removals)
                if request == self._latest_request[assignment.member]
                else []
            )

        self.schedule(script.place_delay_s, arrive)

    def _arrive(
        self, intent: Place, assignment: Assignment, script: MemberScript, removals: int
    ) -> list[Fact]:
        if assignment.member in self.runs:
            return [IntentResult(intent.intent, assignment.member, Outcome.APPLIED)]
        if assignment.member in self.tombstones or assignment.member in self.ever_started:
            # The same request was in flight twice, and the other one was applied.
            return [IntentResult(intent.intent, assignment.member, Outcome.GONE)]
        # A later node of the same name is a different node.
        if assignment.node not in self.nodes or removals != self._removals.get(assignment.node, 0):
            return [IntentResult(intent.intent, assignment.member, Outcome.CONFLICT, "no such node")]
        if script.outcome in (Outcome.CONFLICT, Outcome.GONE):
            return [IntentResult(intent.intent, assignment.member, script.outcome, script.cause)]
        run = self.runs[assignment.member] = SimulatedRun(
            assignment, intent.job, Phase.RUNNING, self.now, script, starts=1
        )
        if not script.refused:
            self.ever_started.add(assignment.member)
        # External usage that appeared while the placement was in flight is not a violation.
        self._check_capacity(
            assignment.node, with_external=self.applies_immediately and script.place_delay_s == 0
        )
        if script.refused:
            run.phase, run.cause, run.starts = Phase.REFUSED, script.refused, 0
            status = self._member_status(assignment.member)
            del self.runs[assignment.member]
            return [IntentResult(intent.intent, assignment.member, Outcome.APPLIED), status]
        self.schedule(script.runs_s, lambda: self._finish(assignment.member, script.status, script.cause))
        result = IntentResult(intent.intent, assignment.member, script.outcome)
        return [result, self._member_status(assignment.member)]

    def _finish(self, member: str, status: int, cause: str) -> list[Fact]:
        run = self.runs.get(member)
        if run is None or run.phase is not Phase.RUNNING:
            return []
        run.phase, run.status, run.cause, run.since = Phase.ENDED, status, cause, self.now
        return [self._member_status(member)]

    def _end(self, intent: End, member: str) -> None:
        run = self.runs.get(member)
        if run is None:
            self.tombstones.add(member)
            self.schedule(0.0, lambda: [IntentResult(intent.intent, member, Outcome.GONE)])
            return
        self.schedule(0.0, lambda: [IntentResult(intent.intent, member, Outcome.APPLIED)])
        if intent.grace_s is not None:
            delay_s = run.script.end_delay_s
            self.schedule(
                delay_s,
                lambda: self._finish(
                    member,
                    intent.signal,
                    EndReason.TIMEOUT.value if intent.reason is EndReason.TIMEOUT else "",
                ),
            )

    def _evict(self, intent: Evict, member: str) -> None:
        if member in self.runs:
            self.schedule(
                0.0,
                lambda: [
                    IntentResult(intent.intent, member, Outcome.APPLIED),
                    *self._finish(member, 9, "evicted"),
                ],
            )
        else:
            self.tombstones.add(member)
            self.schedule(0.0, lambda: [IntentResult(intent.intent, member, Outcome.APPLIED)])

    def probe(self, members: Sequence[str]) -> None:
        for member in members:
            self.schedule(0.0, partial(self._probe_result, member))

    def _probe_result(self, member: str) -> list[Fact]:
        if member in self.runs:
            return [self._member_status(member)]
        return [MemberStatus(member, Phase.WAITING, self.now)]

    def forget(self, members: Iterable[str]) -> None:
        """Removes members whose end the scheduler has recorded."""
        for member in members:
            run = self.runs.get(member)
            if run is not None and run.phase is not Phase.RUNNING:
                del self.runs[member]

    # Nodes

    def remove_node(self, node: str) -> NodeGone:
        """Removes a node with everything that runs there."""
        del self.nodes[node]
        self._removals[node] = self._removals.get(node, 0) + 1
        for key in [key for key, run in self.runs.items() if run.assignment.node == node]:
            del self.runs[key]
        return NodeGone(node)

    def _check_capacity(self, node: str, *, with_external: bool) -> None:
        used: dict[str, int] = {}
        for external in self.external_usage.values() if with_external else ():
            for resource, units in external.usage if external.node == node else ():
                used[resource] = used.get(resource, 0) + units
        for run in self.runs.values():
            if run.assignment.node == node and run.phase is Phase.RUNNING:
                for resource, _, units in run.assignment.grants:
                    used[resource] = used.get(resource, 0) + units
        capacities = {capacity.resource: capacity.units for capacity in self.nodes[node].capacity}
        for resource, units in used.items():
            capacity = capacities.get(resource, 0)
            if units > capacity:
                self.violations.append(
                    f"{node} at {self.now}: {units} {resource} in use, the capacity is {capacity}"
                )
