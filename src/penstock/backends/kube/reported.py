"""What has been reported to the scheduler, so that only differences are reported.

Each method compares the present state of one object with the last report about it and appends a fact to
`facts` if they differ: a heartbeat, a replay or a list without changes yields no fact.
"""

from __future__ import annotations

from dataclasses import replace

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

__all__ = ["ReportedFacts"]


class ReportedFacts:
    def __init__(self) -> None:
        self._nodes: dict[str, NodeSet] = {}
        self._external_usage: dict[str, ExternalUsageSet] = {}
        self._workloads: dict[str, WorkloadSet] = {}
        self._members: dict[str, MemberSet] = {}
        self._statuses: dict[str, MemberStatus] = {}
        self._removed_nodes: set[str] = set()

    def snapshot(self) -> Snapshot:
        return Snapshot(
            tuple(self._nodes.values()),
            tuple(self._external_usage.values()),
            tuple(self._workloads.values()),
            tuple(self._members.values()),
            tuple(self._statuses.values()),
        )

    # Nodes

    def node(self, name: str) -> NodeSet | None:
        return self._nodes.get(name)

    def report_node(self, fact: NodeSet, facts: list[Fact]) -> bool:
        """Whether the node is back after it was reported as gone."""
        if self._nodes.get(fact.node) == fact:
            return False
        self._nodes[fact.node] = fact
        facts.append(fact)
        return fact.node in self._removed_nodes

    def report_node_gone(self, name: str, facts: list[NodeGone]) -> None:
        if self._nodes.pop(name, None) is not None:
            facts.append(NodeGone(name))
            self._removed_nodes.add(name)

    def forget_statuses_on(self, returned_nodes: set[str]) -> list[str]:
        """Members whose status must be reported again: for the scheduler they ended with their node."""
        self._removed_nodes -= returned_nodes
        members = [uid for uid, status in self._statuses.items() if status.node in returned_nodes]
        for uid in members:
            del self._statuses[uid]
        return members

    # Workloads

    def report_workload(self, fact: WorkloadSet, facts: list[Fact]) -> None:
        if self._workloads.get(fact.workload) != fact:
            self._workloads[fact.workload] = fact
            facts.append(fact)

    def report_workload_gone(self, workload: str, facts: list[Fact]) -> None:
        if self._workloads.pop(workload, None) is not None:
            facts.append(WorkloadGone(workload))

    # Pods

    def report_external_usage(self, uid: str, usage: ExternalUsageSet | None, facts: list[Fact]) -> None:
        if usage is None:
            if self._external_usage.pop(uid, None) is not None:
                facts.append(ExternalUsageGone(uid))
        elif self._external_usage.get(uid) != usage:
            self._external_usage[uid] = usage
            facts.append(usage)

    def report_member(
        self, uid: str, member: MemberSet | None, status: MemberStatus | None, facts: list[Fact]
    ) -> None:
        """A pod that waits has a `member`, a pod that we have bound a `status`, any other pod neither.

        A waiting pod that moves to another workload is first reported as gone.
        """
        known, known_status = self._members.get(uid), self._statuses.get(uid)
        if status is not None:
            self._members.pop(uid, None)
            if known_status is None or replace(known_status, at=0.0) != replace(status, at=0.0):
                self._statuses[uid] = status
                facts.append(status)
            return
        self._statuses.pop(uid, None)
        has_left = member is None or (known is not None and known.workload != member.workload)
        if has_left and (known is not None or known_status is not None):
            self._members.pop(uid, None)
            facts.append(MemberGone(uid))
        if member is not None and known != member:
            self._members[uid] = member
            facts.append(member)
