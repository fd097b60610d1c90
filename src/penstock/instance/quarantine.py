"""Objects that are left out because handling them has failed with an unexpected exception: pure.

A quarantined object is left out of every batch and every snapshot, so that the others go on:

- of a workload all facts are withheld; it is inadmissible, and its owner is told the error;
- a job keeps what it has allocated, see `penstock.sched.set_aside`;
- a recorded intent of no active job stays recorded, and is not carried out;
- a node is reported as not up, with its last capacity that worked, so that its members stay;
- external usage is withheld, and its node is reported as not up, since what is free there is not known.

An object is tried again when what is reported of it differs from what has failed: at once for the first time,
later after a growing pause, because each attempt that fails costs a term. The quarantine is kept in memory
only: after a restart an object fails again, and is quarantined again. Many failures within a minute mean that
the fault is ours, and not of the objects: `add` then returns False.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from penstock.protocol.commands import Command
from penstock.protocol.facts import (
    ExternalUsageGone,
    ExternalUsageSet,
    Fact,
    MemberGone,
    MemberSet,
    MemberStatus,
    NodeGone,
    NodeSet,
    Snapshot,
    WorkloadGone,
    WorkloadSet,
)
from penstock.protocol.intents import StatusUpdate, WorkloadStatus
from penstock.sched.subjects import Culprit, CulpritKind

__all__ = ["Quarantine", "QuarantinedObject"]

_ADDED_MAX: Final = 10  # within `_WINDOW_S`
_WINDOW_S: Final = 60.0
_RETRY_FIRST_S: Final = 60.0  # before the second attempt
_RETRY_MAX_S: Final = 3600.0
_ATTEMPTS_KEPT_MAX: Final = 10_000
_ERROR_MAX: Final = 500
_WITHOUT_FACTS: Final = (CulpritKind.JOB, CulpritKind.INTENT)  # no snapshot tells that they are gone

_FactKey = tuple[str, str]  # kind of the fact, and what it is about


@dataclass(slots=True)
class QuarantinedObject:
    subject: Culprit
    error: str
    retry_at: float
    facts: dict[_FactKey, Fact] = field(default_factory=dict)  # withheld ones, the latest of each
    is_complete: bool = False  # a snapshot has completed the facts, so a further one is a change
    has_changed: bool = False
    is_reported: bool = False  # to the owner, since the last fact

    @property
    def reason(self) -> str:
        return f"set aside after an internal error, and tried again when it changes: {self.error}"

    def note(self, key: _FactKey, fact: Fact) -> None:
        before = self.facts.get(key)
        self.facts[key] = fact
        self.is_reported = False
        if before is None:
            self.has_changed = self.has_changed or self.is_complete
        elif _comparable(before) != _comparable(fact):
            self.has_changed = True


@dataclass(slots=True)
class _Attempts:
    count: int
    last_at: float


class Quarantine:
    def __init__(self) -> None:
        self._objects: dict[Culprit, QuarantinedObject] = {}
        self._workloads: dict[str, QuarantinedObject] = {}
        self._jobs: dict[str, QuarantinedObject] = {}
        self._intents: dict[str, QuarantinedObject] = {}
        self._nodes: dict[str, QuarantinedObject] = {}
        self._usage: dict[str, QuarantinedObject] = {}  # by key, or by member
        self._usage_on: dict[str, dict[str, None]] = {}  # by node
        self._workload_of: dict[str, str] = {}  # by withheld member
        self._attempts: dict[Culprit, _Attempts] = {}
        self._added_at: deque[float] = deque()
        self._working_nodes: dict[str, NodeSet] = {}  # as last committed

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, subject: Culprit) -> bool:
        return subject in self._objects

    def objects(self) -> list[QuarantinedObject]:
        return list(self._objects.values())

    def reason_of(self, job: int, workload: str) -> str:
        """Why a recorded job is not to be restored; empty if it is to be."""
        found = self._jobs.get(str(job))
        if found is not None and workload:
            # The job had ended in the step that failed, so that nothing told of its workload.
            self._remove(found)
            self._put(replace(found, subject=Culprit(CulpritKind.WORKLOAD, workload)))
        found = self._workloads.get(workload) if workload else found
        return found.reason if found is not None else ""

    # Adding

    def add(self, subject: Culprit, error: str, inputs: Iterable[Fact | Command], now: float) -> bool:
        """Quarantines an object with the facts that failed. Returns False if there are too many of them."""
        if not self.count_failure(now):
            return False
        attempts = self._attempts.pop(subject, _Attempts(0, now))
        if now - attempts.last_at > _RETRY_MAX_S:
            attempts.count = 0
        pause_s = 0.0
        if attempts.count:
            pause_s = min(_RETRY_FIRST_S * (1 << min(attempts.count - 1, 16)), _RETRY_MAX_S)
        self._attempts[subject] = _Attempts(attempts.count + 1, now)
        if len(self._attempts) > _ATTEMPTS_KEPT_MAX:
            del self._attempts[next(iter(self._attempts))]
        made = QuarantinedObject(subject, error[:_ERROR_MAX], now + pause_s)
        self._put(made)
        for fact in _flattened(inputs):
            self._withheld(fact)
        made.has_changed = False  # Whatever changed within the batch, this is what failed.
        return True

    def _put(self, made: QuarantinedObject) -> None:
        subject = made.subject
        self._objects[subject] = made
        self._index_of(subject.kind)[subject.key] = made
        if subject.kind is CulpritKind.EXTERNAL_USAGE:
            self._usage_on.setdefault(subject.node, {})[subject.key] = None

    def count_failure(self, now: float) -> bool:
        """Counts an object that failed. Returns False if there are so many that the fault is ours."""
        self._added_at.append(now)
        while self._added_at[0] <= now - _WINDOW_S:
            self._added_at.popleft()
        return len(self._added_at) <= _ADDED_MAX

    def forget_all(self) -> None:
        """Tries everything again; how often each object has failed is kept."""
        for index in (self._workloads, self._jobs, self._intents, self._nodes, self._usage):
            index.clear()
        self._objects.clear()
        self._usage_on.clear()
        self._workload_of.clear()
        self._added_at.clear()

    def _index_of(self, kind: CulpritKind) -> dict[str, QuarantinedObject]:
        match kind:
            case CulpritKind.WORKLOAD:
                return self._workloads
            case CulpritKind.NODE:
                return self._nodes
            case CulpritKind.EXTERNAL_USAGE:
                return self._usage
            case CulpritKind.INTENT:
                return self._intents
        return self._jobs

    def _remove(self, found: QuarantinedObject) -> None:
        subject = found.subject
        del self._objects[subject], self._index_of(subject.kind)[subject.key]
        if subject.kind is CulpritKind.EXTERNAL_USAGE:
            self._usage_on[subject.node].pop(subject.key)
            if not self._usage_on[subject.node]:
                del self._usage_on[subject.node]
        for fact in found.facts.values():
            if isinstance(fact, MemberSet):
                self._workload_of.pop(fact.member, None)

    # Filtering

    def admit(self, inputs: Sequence[Fact | Command]) -> list[Fact | Command]:
        """The inputs without the facts about quarantined objects."""
        if not self._objects:
            return list(inputs)
        admitted: list[Fact | Command] = []
        for one in inputs:
            if isinstance(one, Snapshot):
                admitted.append(self._admit_snapshot(one))
            elif isinstance(one, Command):
                admitted.append(one)
            else:
                admitted.extend(self._admitted(one))
        return admitted

    def _admitted(self, fact: Fact) -> list[Fact]:
        match fact:
            case NodeGone() if fact.node in self._nodes:
                self._remove(self._nodes[fact.node])
            case WorkloadGone() if fact.workload in self._workloads:
                found = self._workloads[fact.workload]
                for _, member in found.facts:
                    self._workload_of.pop(member, None)
                found.facts.clear()
                found.has_changed = True
            case MemberGone() if fact.member in self._workload_of:
                found = self._workloads[self._workload_of.pop(fact.member)]
                del found.facts["member", fact.member]
                found.has_changed = True
            case ExternalUsageGone() if fact.key in self._usage:
                found = self._usage[fact.key]
                self._remove(found)
                return [fact, *(one for one in found.facts.values() if isinstance(one, NodeSet))]
        if self._withheld(fact):
            return []
        return [self._replaced_node(fact) if isinstance(fact, NodeSet) else fact]

    def _withheld(self, fact: Fact) -> bool:
        """Notes a fact about a quarantined object. Returns whether the scheduler must not get it."""
        match fact:
            case WorkloadSet() if fact.workload in self._workloads:
                self._workloads[fact.workload].note(("workload", fact.workload), fact)
                return True
            case MemberSet() if fact.workload in self._workloads:
                self._workloads[fact.workload].note(("member", fact.member), fact)
                self._workload_of[fact.member] = fact.workload
                return True
            case ExternalUsageSet() if fact.key in self._usage:
                self._usage[fact.key].note(("usage", fact.key), fact)
                return True
            case MemberStatus() if fact.member in self._usage:
                self._usage[fact.member].note(("usage", fact.member), fact)
                return True
            case NodeSet() if fact.node in self._nodes:
                self._nodes[fact.node].note(("node", fact.node), fact)
            case NodeSet() if fact.node in self._usage_on:
                for key in self._usage_on[fact.node]:
                    self._usage[key].facts["node", fact.node] = fact
        return False

    def _replaced_node(self, fact: NodeSet) -> NodeSet:
        """The node without what has failed, and not up."""
        found = self._nodes.get(fact.node)
        if found is not None:
            last = self._working_nodes.get(fact.node, NodeSet(fact.node, ()))
            return replace(last, up=False, why=found.reason)
        if fact.node in self._usage_on:
            key = next(iter(self._usage_on[fact.node]))
            return replace(fact, up=False, why=f"external usage {key} is {self._usage[key].reason}")
        return fact

    def _admit_snapshot(self, fact: Snapshot) -> Snapshot:
        """A snapshot without quarantined objects. What it does not contain of them is gone."""
        before = {subject: dict(found.facts) for subject, found in self._objects.items()}
        seen: set[_FactKey] = set()

        def withheld(one: Fact, key: _FactKey) -> bool:
            seen.add(key)
            return self._withheld(one)

        for node in fact.nodes:
            withheld(node, ("node", node.node))
        admitted = Snapshot(
            tuple(self._replaced_node(one) for one in fact.nodes),
            tuple(one for one in fact.external_usage if not withheld(one, ("usage", one.key))),
            tuple(one for one in fact.workloads if not withheld(one, ("workload", one.workload))),
            tuple(one for one in fact.members if not withheld(one, ("member", one.member))),
            tuple(one for one in fact.statuses if not withheld(one, ("usage", one.member))),
        )
        for subject, found in list(self._objects.items()):
            gone = [key for key in before[subject] if key not in seen]
            for key in gone:
                del found.facts[key]
                self._workload_of.pop(key[1], None)
            found.has_changed = found.has_changed or bool(gone)
            found.is_complete = True
            if not found.facts and subject.kind not in _WITHOUT_FACTS:
                self._remove(found)
        return admitted

    # Trying again

    def take_changed(self, now: float) -> list[QuarantinedObject]:
        """Removes and returns the objects that have changed and may be tried again."""
        changed = [one for one in self._objects.values() if one.has_changed and one.retry_at <= now]
        for found in changed:
            self._remove(found)
        return changed

    def committed(self, inputs: Iterable[Fact | Command]) -> None:
        """Notes the nodes of a batch that was handled and recorded."""
        for fact in inputs:
            for node in fact.nodes if isinstance(fact, Snapshot) else (fact,):
                if isinstance(node, NodeSet) and node.node not in self._nodes:
                    self._working_nodes[node.node] = node
                elif isinstance(node, NodeGone):
                    self._working_nodes.pop(node.node, None)

    # Reporting

    def take_status_updates(self) -> list[StatusUpdate]:
        """For the owners of quarantined workloads, again after each fact: a further pod needs a condition."""
        due = [found for found in self._workloads.values() if not found.is_reported]
        for found in due:
            found.is_reported = True
        return [
            StatusUpdate(found.subject.key, 0, WorkloadStatus.INADMISSIBLE, found.reason) for found in due
        ]


def _comparable(fact: Fact) -> Fact:
    return replace(fact, at=0.0) if isinstance(fact, MemberStatus) else fact


def _flattened(inputs: Iterable[Fact | Command]) -> Iterable[Fact]:
    for one in inputs:
        if isinstance(one, Snapshot):
            for part in (one.nodes, one.external_usage, one.workloads, one.members, one.statuses):
                yield from part
        elif not isinstance(one, Command):
            yield one
