"""A simulated backend with controllers: they create members, and replace those that fail after a back-off."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from penstock.backends.sim.backend import MemberScript, SimBackend
from penstock.protocol.facts import Fact, MemberGone, MemberSet, MemberStatus, NodeGone, Phase, WorkloadSet
from penstock.protocol.intents import Assignment, Place

__all__ = ["ControllerBackend"]


@dataclass
class ControllerBackend(SimBackend):
    """Members that do not end by themselves, `backoff_s` before each replacement, no other node behaviour."""

    backoff_s: float = 10.0
    created: dict[str, int] = field(default_factory=dict)  # members so far, by workload
    runs_s: dict[str, float] = field(default_factory=dict)  # by workload; others run until they are ended
    ended: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.script_for = self._script

    def _script(self, place: Place, _assignment: Assignment) -> MemberScript:
        return MemberScript(runs_s=self.runs_s.get(place.workload, 1e9))

    # Workloads

    def create(self, workload: WorkloadSet, cpu: int = 1000) -> list[Fact]:
        """A workload with as many members as its controller wants."""
        self.workloads[workload.workload] = workload
        facts: list[Fact] = [workload]
        for _ in range(workload.desired or 1):
            facts += self._new_member(workload.workload, cpu, 0)
        return facts

    def scale(self, workload: str, desired: int) -> list[Fact]:
        """Sets the number of members; surplus ones are deleted, the newest first."""
        self.workloads[workload] = replace(self.workloads[workload], desired=desired)
        facts: list[Fact] = [self.workloads[workload]]
        present = self.present(workload)
        for key in reversed(present[desired:]):
            facts += self._remove(key)
        for _ in range(desired - len(present)):
            facts += self._new_member(workload, 1000, 0)
        return facts

    def present(self, workload: str) -> list[str]:
        return [key for key, member in self.members.items() if member.workload == workload]

    def running(self, workload: str) -> list[str]:
        return [key for key in self.present(workload) if key in self.runs]

    # Ends

    def fail(self, key: str, status: int = 256) -> list[Fact]:
        """A running member exits; unless it succeeded, another one is created after the back-off."""
        return self._finish(key, status, "")

    def delete(self, key: str) -> list[Fact]:
        """A user deletes a member; its controller creates another one."""
        member = self.members[key]
        facts = self._remove(key)
        self._replace_later(member)
        return facts

    def _finish(self, member: str, status: int, cause: str) -> list[Fact]:
        facts = super()._finish(member, status, cause)
        known = self.members.get(member)
        if facts and known is not None:
            del self.members[member]
            if status == 0:
                workload = self.workloads[known.workload]
                self.workloads[known.workload] = replace(workload, desired=(workload.desired or 1) - 1)
                facts = [*facts, self.workloads[known.workload]]
            else:
                self._replace_later(known)
        return facts

    def remove_node(self, node: str) -> NodeGone:
        lost = [key for key, run in self.runs.items() if run.assignment.node == node]
        gone = super().remove_node(node)
        for member in [self.members.pop(key) for key in lost if key in self.members]:
            self._replace_later(member)
        return gone

    def _remove(self, key: str) -> list[Fact]:
        del self.members[key]
        self.runs.pop(key, None)
        self.tombstones.add(key)
        return [MemberGone(key)]

    def _replace_later(self, member: MemberSet) -> None:
        def create() -> list[Fact]:
            workload = self.workloads.get(member.workload)
            if workload is None or len(self.present(member.workload)) >= (workload.desired or 0):
                return []
            return self._new_member(member.workload, dict(member.requests)["cpu"], member.index)

        self.schedule(self.backoff_s, create)

    def _new_member(self, workload: str, cpu: int, index: int) -> list[Fact]:
        number = self.created[workload] = self.created.get(workload, 0) + 1
        key = f"{workload}-{number}"
        self.members[key] = MemberSet(workload, key, index, (("cpu", cpu),), recreated=True)
        return [self.members[key]]

    def statuses(self, keys: Iterable[str]) -> dict[str, MemberStatus]:
        return {key: self._member_status(key) for key in keys if self.runs[key].phase is Phase.RUNNING}
