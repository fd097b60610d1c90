"""Tracks which pods belong to which workload, what PodGroups say, and the resulting fact per workload.

A workload exists while a pod of it can run, or while a controller wants to create such pods. Without pods,
its fact is derived from the templates of its next pods.

Most pods of a workload declare the same. Pods are counted per equivalence class, and one representative of
each class enters the fact, so that one pod more or less of a thousand costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from penstock.backends.kube.controllers import ControllerTracker
from penstock.kube.client import ObjectReference
from penstock.kube.resources import NATIVE_PODGROUPS, PODGROUPS
from penstock.kube.types import NativePodGroup, PodGroup
from penstock.podspec.grouping import GroupMembership, PodGroupTerms, workload_fact, workload_of_group
from penstock.podspec.keys import GROUP_SIZE_KEYS
from penstock.podspec.pod_status import full_name
from penstock.podspec.problems import LIMIT_EXCEEDED, POD_GROUP_NOT_FOUND, PodProblem
from penstock.podspec.settings import TranslationSettings
from penstock.protocol.facts import WorkloadSet

__all__ = ["WorkloadTracker"]


@dataclass(slots=True)
class _EquivalenceClass:
    """Pods of a workload that declare the same."""

    representative: GroupMembership
    pods: int = 0


class WorkloadTracker:
    """`dirty` has the workloads whose fact may have changed; the reader of the facts clears it."""

    def __init__(self, settings: TranslationSettings, controllers: ControllerTracker) -> None:
        self._settings = settings
        self._controllers = controllers
        self._workload: dict[str, str] = {}  # pod -> workload
        self._pods: dict[str, dict[str, GroupMembership]] = {}  # by workload, in order of arrival
        self._pod_groups: dict[str, PodGroupTerms] = {}  # by "NAMESPACE/NAME"
        self._native_groups: dict[str, PodGroupTerms] = {}  # by "NAMESPACE/NAME"
        self._group_uids: dict[tuple[bool, str], str] = {}  # is native, "NAMESPACE/NAME" -> uid
        self._classes: dict[str, dict[Hashable, _EquivalenceClass]] = {}  # by workload
        self._sizes_too_large: dict[str, int] = {}  # by workload
        self._excess: dict[str, dict[str, None]] = {}  # by workload: pods beyond the largest group
        self._to_examine: dict[str, None] = {}  # pods whose problem may have changed
        self.dirty: dict[str, None] = {}

    def membership(self, uid: str) -> GroupMembership | None:
        workload = self._workload.get(uid)
        return None if workload is None else self._pods[workload][uid]

    def pods(self, workload: str) -> Collection[str]:
        return self._pods.get(workload, {})

    def native_group(self, workload: str) -> str:
        """The PodGroup of scheduling.k8s.io that names the workload, as "NAMESPACE/NAME"; empty: none."""
        for membership in self._pods.get(workload, {}).values():
            if membership.is_native:
                return membership.pod_group
        return ""

    def owners(self, workload: str) -> list[ObjectReference]:
        """The objects whose readers ask for the whole workload: its PodGroup, its outermost controllers."""
        classes = self._classes.get(workload, {}).values()
        members = [one.representative for one in classes] or self._controllers.template_memberships(workload)
        found: dict[str, ObjectReference] = {}
        for membership in members:
            group = (membership.is_native, membership.pod_group)
            if group in self._group_uids:
                namespace, _, name = membership.pod_group.partition("/")
                version = (NATIVE_PODGROUPS if membership.is_native else PODGROUPS).group_version
                uid = self._group_uids[group]
                found[uid] = ObjectReference(version, "PodGroup", name, namespace, uid)
            if membership.controllers:
                one = membership.controllers[-1]
                found[one.uid] = ObjectReference(
                    one.kind.api_version, one.kind.name, one.name, one.namespace, one.uid
                )
        return list(found.values())

    def is_alive(self, workload: str) -> bool:
        return workload in self._pods or workload in self._controllers.workloads()

    def all(self) -> list[str]:
        return list(dict.fromkeys([*self._pods, *self._controllers.workloads()]))

    # Pods

    def add_pod(self, uid: str, membership: GroupMembership) -> None:
        """Adds a pod, or moves it if it belongs to another workload by now."""
        workload = membership.workload
        before = self.membership(uid)
        if before == membership:
            return
        key = membership.equivalence_key()
        if before is not None and (before.workload != workload or before.equivalence_key() != key):
            self.remove_pod(uid)
            before = None
        self._workload[uid] = workload
        pods = self._pods.setdefault(workload, {})
        if (
            uid not in pods
            and len(pods) - len(self._excess.get(workload, ())) >= self._settings.group_size_max
        ):
            self._excess.setdefault(workload, {})[uid] = None
        pods[uid] = membership
        classes = self._classes.setdefault(workload, {})
        equivalence_class = classes.setdefault(key, _EquivalenceClass(membership))
        if before is None:
            equivalence_class.pods += 1
        if equivalence_class.pods == 1 or before is not None:
            equivalence_class.representative = membership  # It refers to the controllers as they are.
            self.dirty[workload] = None

    def remove_pod(self, uid: str) -> None:
        workload = self._workload.pop(uid, None)
        if workload is not None:
            classes, key = self._classes[workload], self._pods[workload].pop(uid).equivalence_key()
            classes[key].pods -= 1
            if not classes[key].pods:
                del classes[key]
                self.dirty[workload] = None
            self._remove_excess(uid, workload)
            if not classes:
                del self._classes[workload], self._pods[workload]

    def _remove_excess(self, uid: str, workload: str) -> None:
        """A pod has left: the oldest one beyond the largest group takes its place."""
        excess = self._excess.get(workload)
        if excess is None:
            return
        if uid not in excess:
            uid = next(iter(excess))
            self._to_examine[uid] = None
        del excess[uid]
        if not excess:
            del self._excess[workload]

    def take_pods_to_examine(self) -> Iterable[str]:
        """Pods whose problem may have changed although they have not."""
        pods, self._to_examine = self._to_examine, {}
        return pods

    # PodGroups: each call returns the pods that have to be examined again

    def replace_pod_groups(self, groups: Iterable[PodGroup]) -> list[str]:
        found = list(groups)
        self._replace_uids(found, is_native=False)
        return self._replace_terms({full_name(one.metadata): _terms(one) for one in found}, is_native=False)

    def set_pod_group(self, group: PodGroup, *, gone: bool) -> list[str]:
        self._set_uid(group, gone=gone, is_native=False)
        return self._set_terms(full_name(group.metadata), None if gone else _terms(group), is_native=False)

    def replace_native_groups(self, groups: Iterable[NativePodGroup]) -> list[str]:
        found = list(groups)
        self._replace_uids(found, is_native=True)
        listed = {full_name(one.metadata): _native_terms(one) for one in found}
        return self._replace_terms(listed, is_native=True)

    def set_native_group(self, group: NativePodGroup, *, gone: bool) -> list[str]:
        terms = None if gone else _native_terms(group)
        self._set_uid(group, gone=gone, is_native=True)
        return self._set_terms(full_name(group.metadata), terms, is_native=True)

    def _replace_uids(self, groups: Sequence[PodGroup | NativePodGroup], *, is_native: bool) -> None:
        for key in [key for key in self._group_uids if key[0] is is_native]:
            del self._group_uids[key]
        for group in groups:
            self._set_uid(group, gone=False, is_native=is_native)

    def _set_uid(self, group: PodGroup | NativePodGroup, *, gone: bool, is_native: bool) -> None:
        key = (is_native, full_name(group.metadata))
        if gone:
            self._group_uids.pop(key, None)
        else:
            self._group_uids[key] = group.metadata.uid

    def _replace_terms(self, listed: dict[str, PodGroupTerms], *, is_native: bool) -> list[str]:
        names = dict.fromkeys([*self._terms(is_native), *listed])
        return [uid for name in names for uid in self._set_terms(name, listed.get(name), is_native=is_native)]

    def _set_terms(self, name: str, terms: PodGroupTerms | None, *, is_native: bool) -> list[str]:
        known = self._terms(is_native)
        if known.get(name) == terms:
            return []
        if terms is None:
            del known[name]
        else:
            known[name] = terms
        workload = workload_of_group(name, is_native=is_native)
        self.dirty[workload] = None
        return list(self.pods(workload))

    def _terms(self, is_native: bool) -> dict[str, PodGroupTerms]:
        return self._native_groups if is_native else self._pod_groups

    def missing_pod_group(self, membership: GroupMembership) -> PodProblem | None:
        """The problem of a pod whose group has no size because its PodGroup does not exist."""
        if not membership.needs_pod_group or membership.pod_group in self._terms(membership.is_native):
            return None
        if membership.is_native:
            kind, remedy = "PodGroup (scheduling.k8s.io)", "create it"
        else:
            kind, remedy = "PodGroup (scheduling.x-k8s.io)", f"create it, or set {GROUP_SIZE_KEYS[0]}"
        text = f"{kind} {membership.pod_group} of the pod's group does not exist; {remedy}"
        return PodProblem(POD_GROUP_NOT_FOUND, text)

    def group_too_large(self, uid: str, membership: GroupMembership) -> PodProblem | None:
        """The problem of a pod whose group is larger than a group may be."""
        most = self._settings.group_size_max
        size = self._sizes_too_large.get(membership.workload)
        if size is not None:
            text = f"group {membership.name} needs {size} pods, at most {most} (limits.group_size_max)"
            return PodProblem(LIMIT_EXCEEDED, text)
        if uid in self._excess.get(membership.workload, ()):
            text = f"group {membership.name} has {most} pods, as many as limits.group_size_max allows"
            return PodProblem(LIMIT_EXCEEDED, text)
        return None

    # Facts

    def fact(self, workload: str) -> WorkloadSet | None:
        """None for a workload without pods and without a controller that wants any."""
        pods = self._pods.get(workload)
        classes = self._classes.get(workload, {}).values()
        next_members = self._controllers.template_memberships(workload)
        members = [one.representative for one in classes] if pods else next_members
        if not members:
            self._sizes_too_large.pop(workload, None)
            return None
        fact = workload_fact(members, self._terms(members[0].is_native), self._settings, next_members)
        self._note_size(workload, fact.size)
        # A relative begin time counts from the creation of a pod, and there is none.
        return fact if pods else replace(fact, begin_at=None)

    def _note_size(self, workload: str, size: int) -> None:
        is_too_large = size > self._settings.group_size_max
        if is_too_large is not (workload in self._sizes_too_large):
            self._to_examine.update(dict.fromkeys(self.pods(workload)))
        if is_too_large:
            self._sizes_too_large[workload] = size
        else:
            self._sizes_too_large.pop(workload, None)


def _terms(group: PodGroup) -> PodGroupTerms:
    """A timeout of 0 is how some controllers write that there is none."""
    timeout_s = group.spec.schedule_timeout_seconds or 0
    return PodGroupTerms(group.spec.min_member, float(timeout_s) if timeout_s > 0 else None)


def _native_terms(group: NativePodGroup) -> PodGroupTerms:
    gang = group.spec.scheduling_policy.gang
    return PodGroupTerms(max(gang.min_count, 1) if gang is not None else 1)
