"""What the API server has told, and the facts that follow from it. No I/O, no clock.

Objects come in one by one, or as complete lists; each only marks what may have changed. `facts` then
compares what is derived from the objects with what was told before, and tells the difference: a heartbeat, a
replay or a list that says nothing new is no fact. `snapshot` tells everything.

A pod is one of four things. *Foreign*: on a node, and not placed by us: a hold. *Ours and placed*: on a node,
bound by us (the binding has left an annotation): observations, until it ends or is gone. *Ours and waiting*:
on no node, understood, its makers known: a member of a work. *Ours and set aside*: it asks for something that
is not honoured, its work was given up, or it cannot be understood: told to its owner, not to the scheduler.

Who made whom is in `makers`, which work a pod belongs to in `works`, what a pod claims in `volumes`, whom it
keeps off its node in `apart`, and what a single pod shows in `seeing`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from penstock.backends.kube.controllers import Makers
from penstock.backends.kube.host_ports import Ports
from penstock.backends.kube.inadmissible import GivenUp
from penstock.backends.kube.node_usage import Rooms
from penstock.backends.kube.pod_status import (
    GIVEN_UP,
    UNRESOLVED,
    Problem,
    hold_of,
    is_over,
    is_placed_by_us,
    seen_of,
)
from penstock.backends.kube.volumes import Volumes
from penstock.backends.kube.workloads import Works
from penstock.errors import BadRequest
from penstock.kube.types import (
    Metadata,
    NativePodGroup,
    Node,
    Owner,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
)
from penstock.podspec.anti_affinity import FOREIGN, Apart
from penstock.podspec.constraints import requirements_of
from penstock.podspec.grouping import Belonging, Maker, belonging_of, controller_of
from penstock.podspec.nodes import node_fact
from penstock.podspec.pod_resources import Amounts, ask_of
from penstock.podspec.settings import KubeSettings
from penstock.protocol.facts import (
    Fact,
    HoldGone,
    HoldSet,
    MemberGone,
    MemberSet,
    NodeGone,
    NodeSet,
    Observed,
    Snapshot,
    WorkGone,
    WorkSet,
)

__all__ = ["GIVEN_UP", "Mirror", "Problem"]


class Mirror:
    def __init__(self, settings: KubeSettings) -> None:
        self._settings = settings
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._makers = Makers(settings)
        self._works = Works(settings, self._makers)
        self._volumes = Volumes()
        self._ports = Ports()
        self._apart = Apart()
        self._rooms = Rooms()
        self._given_up = GivenUp(self.waiting_pods, self._touch)
        self._unresolved: dict[str, None] = {}  # pods whose makers are not known
        self.problems: dict[str, Problem] = {}  # of pods that are set aside
        # What was told:
        self._told_nodes: dict[str, NodeSet] = {}
        self._told_kinds: dict[str, int] = {}  # what every node has because pods ask for it
        self._told_holds: dict[str, HoldSet] = {}
        self._told_works: dict[str, WorkSet] = {}
        self._told_members: dict[str, MemberSet] = {}
        self._told_seen: dict[str, Observed] = {}
        self._told_gone: set[str] = set()  # nodes that were there once
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

    def waiting_pods(self, work: str) -> list[Pod]:
        """Those of a work that are on no node."""
        return [pod for pod in self.pods_of(work) if not pod.spec.node_name]

    def pods_of(self, work: str) -> list[Pod]:
        return [self._pods[uid] for uid in self._works.pods(work)]

    def native_group(self, work: str) -> str:
        """The name of the work's own PodGroup of Kubernetes, if it has one."""
        return self._works.native_group(work)

    def job_of(self, pod: Pod) -> Maker | None:
        """The Job that has made a pod."""
        return self._makers.job_of(pod)

    def own_limit_s(self, uid: str) -> int | None:
        belonging = self._works.belonging(uid)
        return belonging.limit_s if belonging is not None else None

    def has_room(self, node: str, pod: Pod) -> bool:
        """Whether a node still has what a pod asks for, counting every pod that is known to be there."""
        found = self._told_nodes.get(node)
        return found is not None and self._rooms.has(found, pod)

    def missing_makers(self) -> dict[str, tuple[str, Owner]]:
        """Makers of waiting pods that have not been heard of, by uid, with their namespaces."""
        missing: dict[str, tuple[str, Owner]] = {}
        for uid in self._unresolved:
            pod = self._pods.get(uid)
            ancestry = self._makers.ancestry(pod.metadata) if pod is not None else None
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
        self._rooms.count(before, pod)
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
            self._rooms.count(pod, None)
            self._unrelate(uid)
            self._apart.note(uid, None, FOREIGN)

    def is_ours(self, pod: Pod) -> bool:
        return pod.spec.scheduler_name in self._settings.scheduler_names

    def _relate(self, uid: str, pod: Pod) -> None:
        """Notes the work of a pod of ours that can still run, who made it, and what it claims."""
        is_foreign = bool(pod.spec.node_name) and not is_placed_by_us(pod)
        if is_over(pod) or is_foreign or not self.is_ours(pod):
            self._unrelate(uid)
            self._apart.note(uid, pod if pod.spec.node_name and not is_over(pod) else None, FOREIGN)
            return
        ancestry = self._makers.ancestry(pod.metadata)
        makers = ancestry.makers
        belonging = belonging_of(pod, makers, self._settings)
        if pod.spec.affinity is not None and requirements_of(pod, self._volumes).distinct_nodes:
            belonging = replace(belonging, distinct_nodes=True)
        self._works.place(uid, belonging)
        self._makers.note(uid, pod, makers)
        self._volumes.note(uid, pod)
        self._ports.note(uid, pod)
        # Those of a maker that is not heard of stay together, whatever works they will belong to.
        missing = ancestry.missing if not belonging.pod_group else None
        self._apart.note(uid, pod, belonging.work if missing is None else f"owner/{missing.uid}")

    def _unrelate(self, uid: str) -> None:
        self._works.leave(uid)
        self._makers.note(uid, None)
        self._volumes.note(uid, None)
        self._ports.note(uid, None)

    # Makers, PodGroups, volumes

    def makers_listed(self, kind: str, makers: Iterable[Maker]) -> None:
        self._makers.listed(kind, makers)

    def maker_set(self, maker: Maker) -> None:
        self._makers.set(maker)

    def maker_read(self, maker: Maker) -> None:
        """A maker as it was read by itself: no news if it was heard of meanwhile, or is gone by now."""
        self._makers.read(maker)

    def maker_gone(self, uid: str) -> None:
        self._makers.gone(uid)

    def maker_absent(self, uid: str) -> None:
        """It was asked for, and there is none."""
        self._makers.absent(uid)

    def pod_groups_listed(self, groups: Iterable[PodGroup]) -> None:
        self._touch(self._works.pod_groups_listed(groups))

    def pod_group_set(self, group: PodGroup, *, gone: bool = False) -> None:
        self._touch(self._works.pod_group_set(group, gone=gone))

    def native_groups_listed(self, groups: Iterable[NativePodGroup]) -> None:
        self._touch(self._works.native_groups_listed(groups))

    def native_group_set(self, group: NativePodGroup, *, gone: bool = False) -> None:
        self._touch(self._works.native_group_set(group, gone=gone))

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

    def give_up(self, work: str, problem: Problem) -> None:
        """The job of a work has ended while pods of it still wait: they wait for somebody to act."""
        self._given_up.add(work, problem)

    def inherit(self, before: Mirror) -> None:
        """Takes over what no object tells, from the mirror that was in use until now."""
        self._given_up.inherit(before._given_up)

    # Facts

    def snapshot(self, now: float) -> Snapshot:
        """Everything, as if nothing had been told."""
        self._told_nodes, self._told_holds, self._told_works = {}, {}, {}
        self._told_members, self._told_seen = {}, {}
        self._told_gone = set()
        self._settle_makers()
        self._told_kinds = self._kinds()
        self._dirty_nodes = dict.fromkeys(self._nodes)
        self._dirty_pods = dict.fromkeys(self._pods)
        self._works.dirty = dict.fromkeys([*self._works.all(), *self._given_up.works()])
        self.facts(now)
        return Snapshot(
            tuple(self._told_nodes.values()),
            tuple(self._told_holds.values()),
            tuple(self._told_works.values()),
            tuple(self._told_members.values()),
            tuple(self._told_seen.values()),
        )

    def facts(self, now: float) -> list[Fact]:
        """What has changed since the last call, in an order that can be taken in one by one."""
        facts: list[Fact] = []
        self._settle_makers()
        kinds = self._kinds()
        self._tell_kinds({**self._told_kinds, **kinds})
        self._touch(self._apart.take_dirty())
        gone_nodes = self._node_facts(facts)
        while self._dirty_pods or self._works.dirty:
            pods, self._dirty_pods = self._dirty_pods, {}
            works, self._works.dirty = self._works.dirty, {}
            self._work_facts(works, facts)
            for uid in pods:
                self._pod_facts(uid, facts, now)
            self._works_that_ended(works, facts)
        self._tell_kinds(kinds)  # What nobody asks for any more goes after those who have asked for it.
        self._node_facts(facts)
        facts.extend(gone_nodes)
        return facts

    def _settle_makers(self) -> None:
        """Pods of makers that have changed may belong elsewhere now, and those of what these have made."""
        pods, works = self._makers.settle()
        self._works.dirty.update(dict.fromkeys(works))
        self._touch(pods)
        for uid in pods:
            self._relate(uid, self._pods[uid])

    def _kinds(self) -> dict[str, int]:
        """What every node has because pods ask for it."""
        return {**self._ports.kinds(), **self._apart.kinds()}

    def _tell_kinds(self, kinds: dict[str, int]) -> None:
        if self._told_kinds != kinds:
            self._told_kinds = kinds
            self._dirty_nodes.update(dict.fromkeys(self._nodes))

    def _node_facts(self, facts: list[Fact]) -> list[NodeGone]:
        gone: list[NodeGone] = []
        back: set[str] = set()
        dirty, self._dirty_nodes = self._dirty_nodes, {}
        for name in dirty:
            node = self._nodes.get(name)
            fact = self._node_fact(node) if node is not None else None
            if fact is None:
                if self._told_nodes.pop(name, None) is not None:
                    gone.append(NodeGone(name))
                    self._told_gone.add(name)
            elif self._told_nodes.get(name) != fact:
                self._told_nodes[name] = fact
                facts.append(fact)
                if name in self._told_gone:
                    back.add(name)
        if back:
            self._tell_again(back)
        return gone

    def _tell_again(self, nodes: set[str]) -> None:
        """With a node all that ran there was over; if it is back, what runs there has to be told again."""
        self._told_gone -= nodes
        for uid in [uid for uid, seen in self._told_seen.items() if seen.node in nodes]:
            del self._told_seen[uid]
            self._dirty_pods[uid] = None

    def _node_fact(self, node: Node) -> NodeSet:
        try:
            return node_fact(node, self._settings.levels, self._told_kinds)
        except BadRequest as error:
            return NodeSet(node.metadata.name, (), up=False, why=f"it cannot be read: {error}")

    def _work_facts(self, works: Iterable[str], facts: list[Fact]) -> None:
        for work in works:
            fact = self._works.fact(work)
            if fact is not None and self._told_works.get(work) != fact:
                self._told_works[work] = fact
                facts.append(fact)

    def _works_that_ended(self, works: Iterable[str], facts: list[Fact]) -> None:
        """After their pods: what became of those is told before the work goes."""
        for work in works:
            if not self._works.lives(work):
                self._given_up.forget(work)
                if self._told_works.pop(work, None) is not None:
                    facts.append(WorkGone(work))

    def _pod_facts(self, uid: str, facts: list[Fact], now: float) -> None:
        pod = self._pods.get(uid)
        hold = seen = None
        member: MemberSet | Problem | None = None
        if pod is not None and pod.spec.node_name:
            if self.is_ours(pod) and is_placed_by_us(pod):
                seen = self.seen(pod, now)
            elif not is_over(pod):
                hold = hold_of(pod)
                hold = replace(hold, amounts=self._with_apart(uid, hold.amounts))
        elif pod is not None:
            belonging = self._works.belonging(uid)
            if belonging is not None and pod.metadata.deletion_timestamp is None:
                member = self._member(pod, belonging)
        problem = member if isinstance(member, Problem) else None
        self._note_problem(uid, problem)
        self._tell_hold(uid, hold, facts)
        self._tell_member(uid, None if isinstance(member, Problem) else member, seen, facts)

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

    def _tell_hold(self, uid: str, hold: HoldSet | None, facts: list[Fact]) -> None:
        if hold is None:
            if self._told_holds.pop(uid, None) is not None:
                facts.append(HoldGone(uid))
        elif self._told_holds.get(uid) != hold:
            self._told_holds[uid] = hold
            facts.append(hold)

    def _tell_member(
        self, uid: str, member: MemberSet | None, seen: Observed | None, facts: list[Fact]
    ) -> None:
        """Who waits may go to another work; who is placed is observed; who is neither any more is gone."""
        known, before = self._told_members.get(uid), self._told_seen.get(uid)
        if seen is not None:
            self._told_members.pop(uid, None)
            if before is None or replace(before, at=0.0) != replace(seen, at=0.0):
                self._told_seen[uid] = seen
                facts.append(seen)
            return
        self._told_seen.pop(uid, None)
        has_moved = member is None or (known is not None and known.work != member.work)
        if has_moved and (known is not None or before is not None):
            self._told_members.pop(uid, None)
            facts.append(MemberGone(uid))
        if member is not None and known != member:
            self._told_members[uid] = member
            facts.append(member)

    def _member(self, pod: Pod, belonging: Belonging) -> MemberSet | Problem:
        """A waiting pod of ours as a member of its work, or why it is set aside."""
        ancestry = self._makers.ancestry(pod.metadata)
        if ancestry.missing is not None:
            who = f"its {ancestry.missing.kind} {ancestry.missing.name}"
            if ancestry.is_absent:
                return Problem("OwnerGone", f"{who} is gone, and it will be deleted as well")
            return Problem(UNRESOLVED, f"{who} has not been heard of yet")
        if belonging.problems:
            return Problem("Misunderstood", "; ".join(belonging.problems))
        try:
            amounts = ask_of(pod)
        except BadRequest as error:
            return Problem("Misunderstood", str(error))
        requirements = requirements_of(pod, self._volumes)
        if requirements.refusals:
            return Problem("NotSupported", "; ".join(requirements.refusals))
        problem = self._works.missing_group(belonging) or self._given_up.why(pod, belonging.work)
        return problem or MemberSet(
            work=belonging.work,
            member=pod.metadata.uid,
            index=belonging.index,
            amounts=self._with_apart(pod.metadata.uid, amounts),
            constraint=requirements.constraint,
            ready=not pod.spec.scheduling_gates,
            recreated=controller_of(pod.metadata) is not None,
            name=pod.metadata.name,
        )

    def seen(self, pod: Pod, now: float) -> Observed:
        """What is to be seen of a pod that we have placed, or wanted to."""
        seen = seen_of(pod, now)
        return replace(seen, amounts=self._with_apart(seen.member, seen.amounts)) if seen.amounts else seen

    def _with_apart(self, uid: str, amounts: Amounts) -> Amounts:
        more = self._apart.amounts(uid)
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


def _version(metadata: Metadata) -> int:
    return int(metadata.resource_version) if metadata.resource_version.isdigit() else 0
