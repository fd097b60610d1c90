"""The cluster as the watches have delivered it, and the facts that follow from it. No I/O, no clock.

Objects arrive one by one or as complete lists; each arrival only marks what may have changed. `facts`
derives the present state of what is marked and reports the differences (`reported`). `snapshot` reports
everything.

A pod is in one of four states:

- *external*: on a node, not bound by us. Its usage is reported as external usage.
- *bound by us*: on a node, with the annotation that our binding leaves. Its status is reported until it ends.
- *waiting*: of ours, on no node, its spec understood and its controllers known. Reported as a member.
- *with a problem*: of ours, on no node, and not schedulable as it is: an unsupported requirement, a missing
  object. Its condition says so; the scheduler does not know of it.

An unexpected exception about one object concerns that object alone: a waiting pod has a problem, a node is
not up, an external pod counts as one pod, and a pod that we have bound stays as it was last reported.

Relations between objects are tracked elsewhere: pods and their controllers in `controllers`, workloads and
PodGroups in `workloads`, the pods of PodGroups in `pod_group_status`, claims and volumes in `volumes`,
anti-affinity rules in `anti_affinity`, usage per node in `node_usage`. What one object means by itself is in
`penstock.podspec`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.backends.kube.anti_affinity import EXTERNAL_PODS, AntiAffinityTracker
from penstock.backends.kube.controllers import ControllerTracker
from penstock.backends.kube.declaration_warnings import DeclarationWarnings
from penstock.backends.kube.key_limits import KeyLimits
from penstock.backends.kube.node_usage import NodeUsage
from penstock.backends.kube.object_faults import fault_of, isolated_node_fact
from penstock.backends.kube.pod_group_status import PodGroupTracker
from penstock.backends.kube.pod_versions import declares_the_same, resource_version
from penstock.backends.kube.reported import ReportedFacts
from penstock.backends.kube.volumes import VolumeTracker
from penstock.backends.kube.workloads import WorkloadTracker
from penstock.kube.client import ObjectReference
from penstock.kube.types import (
    NativePodGroup,
    Node,
    OwnerReference,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
)
from penstock.model.exclusion_key import ExclusionKey
from penstock.podspec.constraints import requirements_of
from penstock.podspec.controller_kinds import ControllerKind
from penstock.podspec.controllers import Controller
from penstock.podspec.grouping import GroupMembership, membership_of
from penstock.podspec.members import member_of
from penstock.podspec.pod_resources import PODS
from penstock.podspec.pod_status import (
    external_usage_of,
    full_name,
    is_bound_by_us,
    is_terminal,
    member_status_of,
)
from penstock.podspec.problems import (
    LIMIT_EXCEEDED,
    OWNER_NOT_FOUND,
    OWNER_NOT_SYNCED,
    PodProblem,
)
from penstock.podspec.settings import TranslationSettings
from penstock.protocol.facts import (
    ExternalUsageSet,
    Fact,
    MemberSet,
    MemberStatus,
    NodeGone,
    Snapshot,
)

__all__ = ["ClusterCache"]


class ClusterCache:
    def __init__(self, settings: TranslationSettings, warnings: DeclarationWarnings | None = None) -> None:
        self._settings = settings
        self._warnings = warnings or DeclarationWarnings()
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._controllers = ControllerTracker(settings)
        self._workloads = WorkloadTracker(settings, self._controllers)
        self.pod_groups = PodGroupTracker()
        self._volumes = VolumeTracker()
        self._anti_affinity = AntiAffinityTracker(settings.exclusion_keys_max)
        self._key_limits = KeyLimits(settings.exclusion_keys_max)
        self._node_usage = NodeUsage()
        self._reported = ReportedFacts()
        self._unsynced: dict[str, None] = {}  # pods whose controllers are not known
        self.problems: dict[str, PodProblem] = {}  # by pod
        self._changed_problems: dict[str, None] = {}  # pods
        self._faults: dict[str, PodProblem] = {}  # by pod or workload: an unexpected exception
        self._dirty_nodes: dict[str, None] = {}
        self._dirty_pods: dict[str, None] = {}

    # Queries

    def pod(self, uid: str) -> Pod | None:
        return self._pods.get(uid)

    def node(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def pods_of(self, workload: str) -> list[Pod]:
        return [self._pods[uid] for uid in self._workloads.pods(workload)]

    def pods_to_inform(self, workload: str, uid: str = "") -> list[Pod]:
        """The pods of a workload that wait for Penstock alone; with a uid, that pod if it does.

        A gated pod waits for whoever set the gates, and one with a problem is told about that.
        """
        pod = self._pods.get(uid)
        pods = self.pods_of(workload) if not uid else [pod] if pod is not None else []
        return [
            pod
            for pod in pods
            if not pod.spec.node_name
            and not pod.spec.scheduling_gates
            and pod.metadata.uid not in self.problems
        ]

    def native_group(self, workload: str) -> str:
        """The PodGroup of scheduling.k8s.io that names the workload, as "NAMESPACE/NAME"; empty: none."""
        return self._workloads.native_group(workload)

    def owners(self, workload: str) -> list[ObjectReference]:
        return self._workloads.owners(workload)

    def short_controllers(self) -> list[tuple[str, Controller]]:
        return self._controllers.short()

    def job_of(self, pod: Pod) -> Controller | None:
        """The Job that has created a pod."""
        return self._controllers.job_of(pod)

    def own_limit_s(self, uid: str) -> int | None:
        """The limit of a pod that Penstock enforces: penstock.dev/limit, else that of its queue."""
        membership = self._workloads.membership(uid)
        return membership.limit_s if membership is not None else None

    def bind_problem(self, name: str, pod: Pod) -> str:
        """Why a pod cannot be bound to a node, by what the watches delivered last; "" if it can."""
        node, fact = self._nodes.get(name), self._reported.node(name)
        if node is None:
            return f"node {name} does not exist"
        if fact is None or name in self._dirty_nodes:
            fact = isolated_node_fact(node, self._settings.topology_levels)
        return self._node_usage.problem(fact, pod, requirements_of(pod, self._volumes).constraint)

    def assume_bound(self, pod: Pod, node: str) -> None:
        """Counts a pod on a node from its binding on, until the watch shows it there."""
        self._node_usage.assume(pod, node)

    def drop_assumed(self, uid: str) -> None:
        """The binding of a pod has failed."""
        self._node_usage.drop_assumed(uid)

    def is_ours(self, pod: Pod) -> bool:
        return pod.spec.scheduler_name in self._settings.scheduler_names

    def missing_controllers(self) -> dict[str, tuple[str, OwnerReference]]:
        """Unknown controllers of waiting pods, by uid, with their namespaces."""
        missing: dict[str, tuple[str, OwnerReference]] = {}
        for uid in self._unsynced:
            pod = self._pods.get(uid)
            chain = self._controllers.chain_of(pod.metadata) if pod is not None else None
            if pod is not None and chain is not None and chain.missing is not None:
                missing[chain.missing.uid] = (pod.metadata.namespace, chain.missing)
        return missing

    def take_problem_changes(self) -> dict[str, PodProblem | None]:
        """Pods whose problem has changed since the last call; None: it is resolved."""
        changed, self._changed_problems = self._changed_problems, {}
        return {uid: self.problems.get(uid) for uid in changed if uid in self._pods}

    # Nodes

    def replace_nodes(self, nodes: Iterable[Node]) -> None:
        listed = {node.metadata.name: node for node in nodes}
        self._dirty_nodes.update(dict.fromkeys([*self._nodes, *listed]))
        self._nodes = listed

    def set_node(self, node: Node) -> None:
        self._nodes[node.metadata.name] = node
        self._dirty_nodes[node.metadata.name] = None

    def remove_node(self, node: Node) -> None:
        self._nodes.pop(node.metadata.name, None)
        self._dirty_nodes[node.metadata.name] = None

    # Pods

    def replace_pods(self, pods: Iterable[Pod]) -> None:
        listed = {pod.metadata.uid: pod for pod in pods}
        for uid in [uid for uid in self._pods if uid not in listed]:
            self._remove_pod(uid)
        for pod in listed.values():
            self.set_pod(pod)

    def set_pod_from_read(self, pod: Pod) -> None:
        """A pod that was read by itself; ignored if the watch has delivered its deletion or a later one."""
        before = self._pods.get(pod.metadata.uid)
        if before is not None and resource_version(before.metadata) <= resource_version(pod.metadata):
            self.set_pod(pod)

    def set_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        before = self._pods.get(uid)
        self._node_usage.replace(before, pod)
        self._pods[uid] = pod
        self._dirty_pods[uid] = None
        if before is None or is_terminal(pod) or not declares_the_same(before, pod):
            self._track_isolated(uid, pod)
        self.pod_groups.set_pod(pod)

    def remove_pod(self, pod: Pod) -> None:
        self._remove_pod(pod.metadata.uid)

    def _remove_pod(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._dirty_pods[uid] = None
            self._faults.pop(uid, None)
            self._node_usage.replace(pod, None)
            self._untrack(uid)
            self.pod_groups.remove_pod(uid)
            self._anti_affinity.remove(uid)

    def _track_isolated(self, uid: str, pod: Pod) -> None:
        self._faults.pop(uid, None)
        try:
            self._track(uid, pod)
        except Exception as error:
            self._faults[uid] = fault_of(f"pod {full_name(pod.metadata)}", error)

    def _track(self, uid: str, pod: Pod) -> None:
        """Tracks the relations of a pod. External and terminated pods have at most anti-affinity."""
        is_external = bool(pod.spec.node_name) and not is_bound_by_us(pod)
        if is_terminal(pod) or is_external or not self.is_ours(pod):
            self._untrack(uid)
            if pod.spec.node_name and not is_terminal(pod):
                self._anti_affinity.set(uid, pod, EXTERNAL_PODS)
            else:
                self._anti_affinity.remove(uid)
            self._assign_ended(uid, pod, is_external)
            return
        chain = self._controllers.chain_of(pod.metadata)
        membership = membership_of(pod, chain.controllers, self._settings)
        self.pod_groups.assign(pod, "" if membership.is_native else membership.pod_group)
        self._warnings.examine(pod, chain.controllers)
        if membership.problems and pod.spec.node_name:
            self._warnings.note_problems(pod, membership.problems)
        if pod.spec.affinity is not None and requirements_of(pod, self._volumes).distinct_nodes:
            membership = replace(membership, distinct_nodes=True)
        self._workloads.add_pod(uid, membership)
        self._controllers.track_pod(uid, pod, chain.controllers)
        self._volumes.track_pod(uid, pod)
        # Pods of one unknown controller count as one group until the controller says which workload it is.
        missing = chain.missing if not membership.pod_group else None
        group = membership.workload if missing is None else f"owner/{missing.uid}"
        self._anti_affinity.set(uid, pod, group)

    def _assign_ended(self, uid: str, pod: Pod, is_external: bool) -> None:
        """A terminated pod counts in the status of its PodGroup until it is deleted."""
        if is_external or not self.is_ours(pod):
            self.pod_groups.assign(pod, "")
        elif not self.pod_groups.group_of(uid):
            chain = self._controllers.chain_of(pod.metadata)
            membership = membership_of(pod, chain.controllers, self._settings)
            self.pod_groups.assign(pod, "" if membership.is_native else membership.pod_group)

    def _untrack(self, uid: str) -> None:
        self._workloads.remove_pod(uid)
        self._controllers.untrack_pod(uid)
        self._volumes.untrack_pod(uid)

    # Controllers, PodGroups, volumes

    def replace_controllers(self, kind: ControllerKind, controllers: Iterable[Controller]) -> None:
        self._controllers.replace_all(kind, controllers)

    def set_controller(self, controller: Controller) -> None:
        self._controllers.set(controller)

    def set_controller_from_read(self, controller: Controller) -> None:
        """A controller that was read by itself; ignored if the watch has delivered it or its deletion."""
        self._controllers.set_from_read(controller)

    def remove_controller(self, uid: str) -> None:
        self._controllers.remove(uid)

    def mark_controller_absent(self, uid: str) -> None:
        """A read has shown that the controller does not exist."""
        self._controllers.mark_absent(uid)

    def replace_pod_groups(self, groups: Iterable[PodGroup]) -> None:
        listed = list(groups)
        self.pod_groups.replace_groups(listed)
        self._mark_pods(self._workloads.replace_pod_groups(listed))

    def set_pod_group(self, group: PodGroup, *, gone: bool = False) -> None:
        self.pod_groups.set_group(group, gone=gone)
        self._mark_pods(self._workloads.set_pod_group(group, gone=gone))

    def replace_native_groups(self, groups: Iterable[NativePodGroup]) -> None:
        self._mark_pods(self._workloads.replace_native_groups(groups))

    def set_native_group(self, group: NativePodGroup, *, gone: bool = False) -> None:
        self._mark_pods(self._workloads.set_native_group(group, gone=gone))

    def replace_claims(self, claims: Iterable[PersistentVolumeClaim]) -> None:
        self._mark_pods(self._volumes.replace_claims(claims))

    def set_claim(self, claim: PersistentVolumeClaim, *, gone: bool = False) -> None:
        self._mark_pods(self._volumes.set_claim(claim, gone=gone))

    def replace_volumes(self, volumes: Iterable[PersistentVolume]) -> None:
        self._mark_pods(self._volumes.replace_volumes(volumes))

    def set_volume(self, volume: PersistentVolume, *, gone: bool = False) -> None:
        self._mark_pods(self._volumes.set_volume(volume, gone=gone))

    def _mark_pods(self, pods: Iterable[str]) -> None:
        self._dirty_pods.update(dict.fromkeys(pods))

    # Facts

    def snapshot(self, now: float) -> Snapshot:
        """Everything, as if nothing had been reported before."""
        self._reported = ReportedFacts()
        self._apply_controller_changes()
        self._dirty_nodes = dict.fromkeys(self._nodes)
        self._dirty_pods = dict.fromkeys(self._pods)
        self._workloads.dirty = dict.fromkeys(self._workloads.all())
        self.facts(now)
        return self._reported.snapshot()

    def facts(self, now: float) -> list[Fact]:
        """What has changed since the last call, in an order in which the facts can be applied one by one.

        A node is reported before the pods on it, and removed after them.
        """
        facts: list[Fact] = []
        gone_nodes: list[NodeGone] = []
        self._apply_controller_changes()
        for uid in self._anti_affinity.take_retries():
            self._track_isolated(uid, self._pods[uid])
            self._dirty_pods[uid] = None
        self._mark_pods(self._anti_affinity.take_dirty())
        self._report_nodes(facts, gone_nodes)
        while self._dirty_pods or self._workloads.dirty:
            pods, self._dirty_pods = self._dirty_pods, {}
            workloads, self._workloads.dirty = self._workloads.dirty, {}
            for workload in workloads:
                self._report_workload(workload, facts)
            self._mark_pods(self._workloads.take_pods_to_examine())
            for uid in pods:
                self._report_pod(uid, facts, now)
            self._mark_pods(self._key_limits.take_dirty())
            self._report_ended_workloads(workloads, facts)
        return [*facts, *gone_nodes]

    def _report_workload(self, workload: str, facts: list[Fact]) -> None:
        had_fault = self._faults.pop(workload, None) is not None
        try:
            fact = self._workloads.fact(workload)
        except Exception as error:
            self._faults[workload] = fault_of(f"workload {workload}", error)
            self._mark_pods(self._workloads.pods(workload))
            return
        if had_fault:
            self._mark_pods(self._workloads.pods(workload))
        if fact is not None:
            self._reported.report_workload(fact, facts)

    def _apply_controller_changes(self) -> None:
        """Pods below controllers that have changed may belong to another workload."""
        pods, workloads = self._controllers.take_changes()
        self._workloads.dirty.update(dict.fromkeys(workloads))
        self._mark_pods(pods)
        for uid in pods:
            self._track_isolated(uid, self._pods[uid])

    def _report_nodes(self, facts: list[Fact], gone_nodes: list[NodeGone]) -> None:
        dirty, self._dirty_nodes = self._dirty_nodes, {}
        returned: set[str] = set()
        for name in dirty:
            node = self._nodes.get(name)
            if node is None:
                self._reported.report_node_gone(name, gone_nodes)
            elif self._reported.report_node(isolated_node_fact(node, self._settings.topology_levels), facts):
                returned.add(name)
        if returned:
            self._mark_pods(self._reported.forget_statuses_on(returned))

    def _report_ended_workloads(self, workloads: Iterable[str], facts: list[Fact]) -> None:
        """Runs after the pods of the workloads were reported, so that their ends come first."""
        for workload in workloads:
            if not self._workloads.is_alive(workload):
                self._reported.report_workload_gone(workload, facts)

    def _report_pod(self, uid: str, facts: list[Fact], now: float) -> None:
        pod = self._pods.get(uid)
        try:
            member, status, usage = self._state_of(uid, pod, now)
        except Exception as error:
            assert pod is not None
            member, status, usage = fault_of(f"pod {full_name(pod.metadata)}", error), None, None
            if self.is_ours(pod) and is_bound_by_us(pod):
                return
            if pod.spec.node_name:
                key, node = pod.metadata.uid, pod.spec.node_name
                usage = ExternalUsageSet(
                    key, node, ((PODS, 1),), name=full_name(pod.metadata), owner=pod.metadata.namespace
                )
        problem = member if isinstance(member, PodProblem) else None
        if member is None or (problem is not None and problem.reason != LIMIT_EXCEEDED):
            self._key_limits.remove(uid)
        self._set_problem(uid, problem)
        self._reported.report_external_usage(uid, usage, facts)
        self._reported.report_member(uid, None if isinstance(member, PodProblem) else member, status, facts)

    def _state_of(
        self, uid: str, pod: Pod | None, now: float
    ) -> tuple[MemberSet | PodProblem | None, MemberStatus | None, ExternalUsageSet | None]:
        """A waiting pod has the first, one that we have bound the second, an external one the third."""
        usage = status = None
        member: MemberSet | PodProblem | None = None
        if pod is not None and pod.spec.node_name:
            if self.is_ours(pod) and is_bound_by_us(pod):
                status = self.member_status(pod, now)
            elif not is_terminal(pod):
                usage = external_usage_of(pod)
                brings, _ = self._anti_affinity.keys(uid)
                usage = replace(usage, brings=_joined(usage.brings, brings)) if brings else usage
        elif pod is not None:
            membership = self._workloads.membership(uid)
            if membership is not None and pod.metadata.deletion_timestamp is None:
                member = self._faults.get(membership.workload) or self._member(pod, membership)
            member = self._faults.get(uid, member)
        return member, status, usage

    def _set_problem(self, uid: str, problem: PodProblem | None) -> None:
        self._unsynced.pop(uid, None)
        if self.problems.get(uid) != problem:
            self._changed_problems[uid] = None
        if problem is None:
            self.problems.pop(uid, None)
        else:
            self.problems[uid] = problem
            if problem.reason == OWNER_NOT_SYNCED:
                self._unsynced[uid] = None

    def _member(self, pod: Pod, membership: GroupMembership) -> MemberSet | PodProblem:
        """A waiting pod as a member of its workload, or why it is not schedulable."""
        chain = self._controllers.chain_of(pod.metadata)
        if chain.missing is not None:
            owner = f"{chain.missing.kind} {chain.missing.name}"
            if chain.is_absent:
                text = f"the pod's controller, {owner}, does not exist; the garbage collector deletes the pod"
                return PodProblem(OWNER_NOT_FOUND, text)
            return PodProblem(OWNER_NOT_SYNCED, f"the pod's controller, {owner}, has not been read yet")
        member = member_of(pod, membership, self._volumes)
        if isinstance(member, PodProblem):
            return member
        uid, workloads = pod.metadata.uid, self._workloads
        problem = workloads.missing_pod_group(membership) or workloads.group_too_large(uid, membership)
        return problem or self._with_keys(pod, member)

    def _with_keys(self, pod: Pod, member: MemberSet) -> MemberSet | PodProblem:
        """A member with the keys of its anti-affinity rules, unless there are too many."""
        uid, namespace = pod.metadata.uid, pod.metadata.namespace
        problem = self._anti_affinity.problem(uid)
        if problem is not None:
            return problem
        brings, forbids = self._anti_affinity.keys(uid)
        if brings or forbids:
            all_brings, all_forbids = _joined(member.brings, brings), _joined(member.forbids, forbids)
            member = replace(member, brings=all_brings, forbids=all_forbids)
        return self._key_limits.set(uid, namespace, (*member.brings, *member.forbids)) or member

    def member_status(self, pod: Pod, now: float) -> MemberStatus:
        """The status of a pod that we have bound, or tried to bind."""
        status = member_status_of(pod, now)
        brings, _ = self._anti_affinity.keys(status.member)
        if not brings or not status.usage:
            return status  # A pod that uses nothing has ended.
        return replace(status, brings=_joined(status.brings, brings))


def _joined(own: Iterable[ExclusionKey], more: Iterable[ExclusionKey]) -> tuple[ExclusionKey, ...]:
    return tuple(sorted({*own, *more}))
