"""What the API server has told, and the facts that follow from it. No I/O, no clock.

Objects come in one by one, or as complete lists; each only marks what may have changed. `facts` then
compares what is derived from the objects with what was told before, and tells the difference: a heartbeat, a
replay or a list that says nothing new is no fact. `snapshot` tells everything.

A pod is one of four things. *Foreign*: on a node, and not placed by us: a hold. *Ours and placed*: on a node,
bound by us (the binding has left an annotation): observations, until it ends or is gone. *Ours and waiting*:
on no node, understood, its makers known: a member of a work. *Ours and set aside*: it asks for something that
is not honoured, its work was given up, or it cannot be understood: told to its owner, not to the scheduler.

Who made whom is in `controllers`, which work a pod belongs to in `workloads`, what a pod claims in
`volumes`, whom it keeps off its node in `anti_affinity`, and what a single pod shows in `seeing`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.backends.kube.anti_affinity import FOREIGN, AntiAffinity
from penstock.backends.kube.controllers import Controllers
from penstock.backends.kube.host_ports import HostPorts
from penstock.backends.kube.inadmissible import InadmissibleWorkloads
from penstock.backends.kube.node_usage import NodeUsage
from penstock.backends.kube.settings import KubeSettings
from penstock.backends.kube.volumes import Volumes
from penstock.backends.kube.workloads import Workloads
from penstock.errors import BadRequest
from penstock.kube.types import (
    NativePodGroup,
    Node,
    ObjectMeta,
    OwnerReference,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
)
from penstock.podspec.constraints import requirements_of
from penstock.podspec.grouping import Controller, GroupMembership, controller_ref_of, membership_of
from penstock.podspec.nodes import node_fact
from penstock.podspec.pod_resources import ResourceList, pod_requests
from penstock.podspec.pod_status import (
    GROUP_INADMISSIBLE,
    UNRESOLVED,
    Problem,
    external_usage_of,
    is_over,
    is_placed_by_us,
    seen_of,
)
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

__all__ = ["GROUP_INADMISSIBLE", "ClusterCache", "Problem"]


class ClusterCache:
    def __init__(self, settings: KubeSettings) -> None:
        self._settings = settings
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._controllers = Controllers(settings)
        self._workloads = Workloads(settings, self._controllers)
        self._volumes = Volumes()
        self._ports = HostPorts()
        self._anti_affinity = AntiAffinity()
        self._node_usage = NodeUsage()
        self._inadmissible = InadmissibleWorkloads(self.waiting_pods, self._touch)
        self._unresolved: dict[str, None] = {}  # pods whose makers are not known
        self.problems: dict[str, Problem] = {}  # of pods that are set aside
        # What was told:
        self._reported_nodes: dict[str, NodeSet] = {}
        self._reported_resources: dict[str, int] = {}  # what every node has because pods ask for it
        self._reported_external_usage: dict[str, ExternalUsageSet] = {}
        self._reported_workloads: dict[str, WorkloadSet] = {}
        self._reported_members: dict[str, MemberSet] = {}
        self._reported_status: dict[str, MemberStatus] = {}
        self._reported_gone: set[str] = set()  # nodes that were there once
        # What may have changed since:
        self._dirty_nodes: dict[str, None] = {}
        self._dirty_pods: dict[str, None] = {}
        self._news: dict[str, None] = {}  # pods whose problem is another

    # What others ask

    def pod(self, uid: str) -> Pod | None:
        return self._pods.get(uid)

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def has_node(self, name: str) -> bool:
        return name in self._nodes

    def waiting_pods(self, workload: str) -> list[Pod]:
        """Those of a work that are on no node."""
        return [pod for pod in self.pods_of(workload) if not pod.spec.node_name]

    def pods_of(self, workload: str) -> list[Pod]:
        return [self._pods[uid] for uid in self._workloads.pods(workload)]

    def native_group(self, workload: str) -> str:
        """The name of the work's own PodGroup of Kubernetes, if it has one."""
        return self._workloads.native_group(workload)

    def job_of(self, pod: Pod) -> Controller | None:
        """The Job that has made a pod."""
        return self._controllers.job_of(pod)

    def own_limit_s(self, uid: str) -> int | None:
        membership = self._workloads.membership(uid)
        return membership.limit_s if membership is not None else None

    def has_room(self, node: str, pod: Pod) -> bool:
        """Whether a node still has what a pod asks for, counting every pod that is known to be there."""
        found = self._reported_nodes.get(node)
        return found is not None and self._node_usage.has(found, pod)

    def missing_controllers(self) -> dict[str, tuple[str, OwnerReference]]:
        """Makers of waiting pods that have not been heard of, by uid, with their namespaces."""
        missing: dict[str, tuple[str, OwnerReference]] = {}
        for uid in self._unresolved:
            pod = self._pods.get(uid)
            ancestry = self._controllers.ancestry(pod.metadata) if pod is not None else None
            if pod is not None and ancestry is not None and ancestry.missing is not None:
                missing[ancestry.missing.uid] = (pod.metadata.namespace, ancestry.missing)
        return missing

    def take_news(self) -> dict[str, Problem | None]:
        """Pods that were set aside since the last call, and why; None: not any more."""
        news, self._news = self._news, {}
        return {uid: self.problems.get(uid) for uid in news if uid in self._pods}

    # Nodes

    def nodes_listed(self, nodes: Iterable[Node]) -> None:
        listed = {node.metadata.name: node for node in nodes}
        self._dirty_nodes.update(dict.fromkeys([*self._nodes, *listed]))
        self._nodes = listed

    def node_set(self, node: Node) -> None:
        self._nodes[node.metadata.name] = node
        self._dirty_nodes[node.metadata.name] = None

    def node_gone(self, node: Node) -> None:
        self._nodes.pop(node.metadata.name, None)
        self._dirty_nodes[node.metadata.name] = None

    # Pods

    def pods_listed(self, pods: Iterable[Pod]) -> None:
        listed = {pod.metadata.uid: pod for pod in pods}
        for uid in [uid for uid in self._pods if uid not in listed]:
            self._drop_pod(uid)
        for pod in listed.values():
            self.pod_set(pod)

    def pod_read(self, pod: Pod) -> None:
        """A pod as it was read by itself: no news if it is gone by now, or was seen later than that."""
        before = self._pods.get(pod.metadata.uid)
        if before is not None and _version(before.metadata) <= _version(pod.metadata):
            self.pod_set(pod)

    def pod_set(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        before = self._pods.get(uid)
        self._node_usage.count(before, pod)
        self._pods[uid] = pod
        self._dirty_pods[uid] = None
        if before is None or is_over(pod) or not _says_the_same(before, pod):
            self._relate(uid, pod)

    def pod_gone(self, pod: Pod) -> None:
        self._drop_pod(pod.metadata.uid)

    def _drop_pod(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._dirty_pods[uid] = None
            self._node_usage.count(pod, None)
            self._unrelate(uid)
            self._anti_affinity.note(uid, None, FOREIGN)

    def is_ours(self, pod: Pod) -> bool:
        return pod.spec.scheduler_name in self._settings.scheduler_names

    def _relate(self, uid: str, pod: Pod) -> None:
        """Notes the work of a pod of ours that can still run, who made it, and what it claims."""
        is_foreign = bool(pod.spec.node_name) and not is_placed_by_us(pod)
        if is_over(pod) or is_foreign or not self.is_ours(pod):
            self._unrelate(uid)
            self._anti_affinity.note(uid, pod if pod.spec.node_name and not is_over(pod) else None, FOREIGN)
            return
        ancestry = self._controllers.ancestry(pod.metadata)
        controllers = ancestry.controllers
        membership = membership_of(pod, controllers, self._settings)
        if pod.spec.affinity is not None and requirements_of(pod, self._volumes).distinct_nodes:
            membership = replace(membership, distinct_nodes=True)
        self._workloads.place(uid, membership)
        self._controllers.note(uid, pod, controllers)
        self._volumes.note(uid, pod)
        self._ports.note(uid, pod)
        # Those of a maker that is not heard of stay together, whatever works they will belong to.
        missing = ancestry.missing if not membership.pod_group else None
        self._anti_affinity.note(uid, pod, membership.workload if missing is None else f"owner/{missing.uid}")

    def _unrelate(self, uid: str) -> None:
        self._workloads.leave(uid)
        self._controllers.note(uid, None)
        self._volumes.note(uid, None)
        self._ports.note(uid, None)

    # Makers, PodGroups, volumes

    def controllers_listed(self, kind: str, controllers: Iterable[Controller]) -> None:
        self._controllers.listed(kind, controllers)

    def controller_set(self, controller: Controller) -> None:
        self._controllers.set(controller)

    def controller_read(self, controller: Controller) -> None:
        """A maker as it was read by itself: no news if it was heard of meanwhile, or is gone by now."""
        self._controllers.read(controller)

    def controller_gone(self, uid: str) -> None:
        self._controllers.gone(uid)

    def controller_absent(self, uid: str) -> None:
        """It was asked for, and there is none."""
        self._controllers.absent(uid)

    def pod_groups_listed(self, groups: Iterable[PodGroup]) -> None:
        self._touch(self._workloads.pod_groups_listed(groups))

    def pod_group_set(self, group: PodGroup, *, gone: bool = False) -> None:
        self._touch(self._workloads.pod_group_set(group, gone=gone))

    def native_groups_listed(self, groups: Iterable[NativePodGroup]) -> None:
        self._touch(self._workloads.native_groups_listed(groups))

    def native_group_set(self, group: NativePodGroup, *, gone: bool = False) -> None:
        self._touch(self._workloads.native_group_set(group, gone=gone))

    def claims_listed(self, claims: Iterable[PersistentVolumeClaim]) -> None:
        self._touch(self._volumes.claims_listed(claims))

    def claim_set(self, claim: PersistentVolumeClaim, *, gone: bool = False) -> None:
        self._touch(self._volumes.claim_set(claim, gone=gone))

    def volumes_listed(self, volumes: Iterable[PersistentVolume]) -> None:
        self._touch(self._volumes.volumes_listed(volumes))

    def volume_set(self, volume: PersistentVolume, *, gone: bool = False) -> None:
        self._touch(self._volumes.volume_set(volume, gone=gone))

    def claim(self, namespace: str, name: str) -> PersistentVolumeClaim | None:
        return self._volumes.claim(namespace, name)

    def volume(self, name: str) -> PersistentVolume | None:
        return self._volumes.volume(name)

    def _touch(self, pods: Iterable[str]) -> None:
        self._dirty_pods.update(dict.fromkeys(pods))

    # Works that were given up

    def mark_inadmissible(self, workload: str, problem: Problem) -> None:
        """The job of a work has ended while pods of it still wait: they wait for somebody to act."""
        self._inadmissible.add(workload, problem)

    def inherit(self, before: ClusterCache) -> None:
        """Takes over what no object tells, from the mirror that was in use until now."""
        self._inadmissible.inherit(before._inadmissible)

    # Facts

    def snapshot(self, now: float) -> Snapshot:
        """Everything, as if nothing had been told."""
        self._reported_nodes, self._reported_external_usage, self._reported_workloads = {}, {}, {}
        self._reported_members, self._reported_status = {}, {}
        self._reported_gone = set()
        self._settle_controllers()
        self._reported_resources = self._kinds()
        self._dirty_nodes = dict.fromkeys(self._nodes)
        self._dirty_pods = dict.fromkeys(self._pods)
        self._workloads.dirty = dict.fromkeys([*self._workloads.all(), *self._inadmissible.workloads()])
        self.facts(now)
        return Snapshot(
            tuple(self._reported_nodes.values()),
            tuple(self._reported_external_usage.values()),
            tuple(self._reported_workloads.values()),
            tuple(self._reported_members.values()),
            tuple(self._reported_status.values()),
        )

    def facts(self, now: float) -> list[Fact]:
        """What has changed since the last call, in an order that can be taken in one by one."""
        facts: list[Fact] = []
        self._settle_controllers()
        kinds = self._kinds()
        self._report_resources({**self._reported_resources, **kinds})
        self._touch(self._anti_affinity.take_dirty())
        gone_nodes = self._node_facts(facts)
        while self._dirty_pods or self._workloads.dirty:
            pods, self._dirty_pods = self._dirty_pods, {}
            workloads, self._workloads.dirty = self._workloads.dirty, {}
            self._workload_facts(workloads, facts)
            for uid in pods:
                self._pod_facts(uid, facts, now)
            self._ended_workloads(workloads, facts)
        self._report_resources(kinds)  # What nobody asks for any more goes after those who have asked for it.
        self._node_facts(facts)
        facts.extend(gone_nodes)
        return facts

    def _settle_controllers(self) -> None:
        """Pods of makers that have changed may belong elsewhere now, and those of what these have made."""
        pods, workloads = self._controllers.settle()
        self._workloads.dirty.update(dict.fromkeys(workloads))
        self._touch(pods)
        for uid in pods:
            self._relate(uid, self._pods[uid])

    def _kinds(self) -> dict[str, int]:
        """What every node has because pods ask for it."""
        return {**self._ports.kinds(), **self._anti_affinity.kinds()}

    def _report_resources(self, kinds: dict[str, int]) -> None:
        if self._reported_resources != kinds:
            self._reported_resources = kinds
            self._dirty_nodes.update(dict.fromkeys(self._nodes))

    def _node_facts(self, facts: list[Fact]) -> list[NodeGone]:
        gone: list[NodeGone] = []
        back: set[str] = set()
        dirty, self._dirty_nodes = self._dirty_nodes, {}
        for name in dirty:
            node = self._nodes.get(name)
            fact = self._node_fact(node) if node is not None else None
            if fact is None:
                if self._reported_nodes.pop(name, None) is not None:
                    gone.append(NodeGone(name))
                    self._reported_gone.add(name)
            elif self._reported_nodes.get(name) != fact:
                self._reported_nodes[name] = fact
                facts.append(fact)
                if name in self._reported_gone:
                    back.add(name)
        if back:
            self._report_again(back)
        return gone

    def _report_again(self, nodes: set[str]) -> None:
        """With a node all that ran there was over; if it is back, what runs there has to be told again."""
        self._reported_gone -= nodes
        for uid in [uid for uid, seen in self._reported_status.items() if seen.node in nodes]:
            del self._reported_status[uid]
            self._dirty_pods[uid] = None

    def _node_fact(self, node: Node) -> NodeSet:
        try:
            return node_fact(node, self._settings.topology_levels, self._reported_resources)
        except BadRequest as error:
            return NodeSet(node.metadata.name, (), up=False, why=f"it cannot be read: {error}")

    def _workload_facts(self, workloads: Iterable[str], facts: list[Fact]) -> None:
        for workload in workloads:
            fact = self._workloads.fact(workload)
            if fact is not None and self._reported_workloads.get(workload) != fact:
                self._reported_workloads[workload] = fact
                facts.append(fact)

    def _ended_workloads(self, workloads: Iterable[str], facts: list[Fact]) -> None:
        """After their pods: what became of those is told before the work goes."""
        for workload in workloads:
            if not self._workloads.lives(workload):
                self._inadmissible.forget(workload)
                if self._reported_workloads.pop(workload, None) is not None:
                    facts.append(WorkloadGone(workload))

    def _pod_facts(self, uid: str, facts: list[Fact], now: float) -> None:
        pod = self._pods.get(uid)
        hold = seen = None
        member: MemberSet | Problem | None = None
        if pod is not None and pod.spec.node_name:
            if self.is_ours(pod) and is_placed_by_us(pod):
                seen = self.seen(pod, now)
            elif not is_over(pod):
                hold = external_usage_of(pod)
                hold = replace(hold, usage=self._with_anti_affinity(uid, hold.usage))
        elif pod is not None:
            membership = self._workloads.membership(uid)
            if membership is not None and pod.metadata.deletion_timestamp is None:
                member = self._member(pod, membership)
        problem = member if isinstance(member, Problem) else None
        self._note_problem(uid, problem)
        self._report_external_usage(uid, hold, facts)
        self._report_member(uid, None if isinstance(member, Problem) else member, seen, facts)

    def _note_problem(self, uid: str, problem: Problem | None) -> None:
        self._unresolved.pop(uid, None)
        if self.problems.get(uid) != problem:
            self._news[uid] = None
        if problem is None:
            self.problems.pop(uid, None)
        else:
            self.problems[uid] = problem
            if problem.reason == UNRESOLVED:
                self._unresolved[uid] = None

    def _report_external_usage(self, uid: str, hold: ExternalUsageSet | None, facts: list[Fact]) -> None:
        if hold is None:
            if self._reported_external_usage.pop(uid, None) is not None:
                facts.append(ExternalUsageGone(uid))
        elif self._reported_external_usage.get(uid) != hold:
            self._reported_external_usage[uid] = hold
            facts.append(hold)

    def _report_member(
        self, uid: str, member: MemberSet | None, seen: MemberStatus | None, facts: list[Fact]
    ) -> None:
        """Who waits may go to another work; who is placed is observed; who is neither any more is gone."""
        known, before = self._reported_members.get(uid), self._reported_status.get(uid)
        if seen is not None:
            self._reported_members.pop(uid, None)
            if before is None or replace(before, at=0.0) != replace(seen, at=0.0):
                self._reported_status[uid] = seen
                facts.append(seen)
            return
        self._reported_status.pop(uid, None)
        has_moved = member is None or (known is not None and known.workload != member.workload)
        if has_moved and (known is not None or before is not None):
            self._reported_members.pop(uid, None)
            facts.append(MemberGone(uid))
        if member is not None and known != member:
            self._reported_members[uid] = member
            facts.append(member)

    def _member(self, pod: Pod, membership: GroupMembership) -> MemberSet | Problem:
        """A waiting pod of ours as a member of its work, or why it is set aside."""
        ancestry = self._controllers.ancestry(pod.metadata)
        if ancestry.missing is not None:
            who = f"its {ancestry.missing.kind} {ancestry.missing.name}"
            if ancestry.is_absent:
                return Problem("OwnerGone", f"{who} is gone, and it will be deleted as well")
            return Problem(UNRESOLVED, f"{who} has not been heard of yet")
        if membership.problems:
            return Problem("InvalidSpec", "; ".join(membership.problems))
        try:
            amounts = pod_requests(pod)
        except BadRequest as error:
            return Problem("InvalidSpec", str(error))
        requirements = requirements_of(pod, self._volumes)
        if requirements.refusals:
            return Problem("NotSupported", "; ".join(requirements.refusals))
        problem = self._workloads.missing_group(membership) or self._inadmissible.why(
            pod, membership.workload
        )
        return problem or MemberSet(
            workload=membership.workload,
            member=pod.metadata.uid,
            index=membership.index,
            requests=self._with_anti_affinity(pod.metadata.uid, amounts),
            constraint=requirements.constraint,
            ready=not pod.spec.scheduling_gates,
            recreated=controller_ref_of(pod.metadata) is not None,
            name=pod.metadata.name,
        )

    def seen(self, pod: Pod, now: float) -> MemberStatus:
        """What is to be seen of a pod that we have placed, or wanted to."""
        seen = seen_of(pod, now)
        return replace(seen, usage=self._with_anti_affinity(seen.member, seen.usage)) if seen.usage else seen

    def _with_anti_affinity(self, uid: str, amounts: ResourceList) -> ResourceList:
        more = self._anti_affinity.amounts(uid)
        return tuple(sorted((*amounts, *more))) if more else amounts


def _says_the_same(before: Pod, after: Pod) -> bool:
    """Whether two states of a pod belong to the same work, with the same wishes."""
    old, new = before.metadata, after.metadata
    return (
        before.spec == after.spec
        and old.labels == new.labels
        and old.annotations == new.annotations
        and old.owner_references == new.owner_references
    )


def _version(metadata: ObjectMeta) -> int:
    return int(metadata.resource_version) if metadata.resource_version.isdigit() else 0
