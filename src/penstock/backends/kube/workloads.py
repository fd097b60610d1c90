"""Which pods belong to which work, how large PodGroups say that works are, and what follows for each work.

A work lives while a pod of it can run, or while somebody wants to make such pods. Without a pod it is told
as its next pods would have it.

Most pods of a work say the same. They are counted by what they say, and one of each kind speaks for all, so
that one more or one less of a thousand costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, replace

from penstock.backends.kube.controllers import Controllers
from penstock.kube.types import NativePodGroup, PodGroup
from penstock.podspec.grouping import GroupMembership, workload_fact, workload_of_group
from penstock.podspec.pod_status import Problem, full_name
from penstock.podspec.settings import TranslationSettings
from penstock.protocol.facts import WorkloadSet

__all__ = ["Workloads"]


@dataclass(slots=True)
class _Kind:
    """Pods of a work that say the same."""

    speaker: GroupMembership
    pods: int = 0


class Workloads:
    """`dirty` has the works that may be other than they were; whoever tells of them clears it."""

    def __init__(self, settings: TranslationSettings, controllers: Controllers) -> None:
        self._settings = settings
        self._controllers = controllers
        self._workload: dict[str, str] = {}  # of a pod
        self._pods: dict[str, dict[str, GroupMembership]] = {}  # by work, in the order they came
        self._pod_groups: dict[str, int] = {}  # "NAMESPACE/NAME" -> least number of members
        self._native_groups: dict[str, int] = {}
        self._kinds: dict[str, dict[Hashable, _Kind]] = {}  # by work
        self.dirty: dict[str, None] = {}

    def membership(self, uid: str) -> GroupMembership | None:
        workload = self._workload.get(uid)
        return None if workload is None else self._pods[workload][uid]

    def pods(self, workload: str) -> Collection[str]:
        return self._pods.get(workload, {})

    def native_group(self, workload: str) -> str:
        for membership in self._pods.get(workload, {}).values():
            if membership.is_native:
                return membership.pod_group
        return ""

    def lives(self, workload: str) -> bool:
        return workload in self._pods or workload in self._controllers.workloads()

    def all(self) -> list[str]:
        return list(dict.fromkeys([*self._pods, *self._controllers.workloads()]))

    # Pods

    def place(self, uid: str, membership: GroupMembership) -> None:
        workload = membership.workload
        before = self.membership(uid)
        if before == membership:
            return
        if before is not None and (before.workload != workload or before.kind() != membership.kind()):
            self.leave(uid)
            before = None
        self._workload[uid] = workload
        self._pods.setdefault(workload, {})[uid] = membership
        kind = self._kinds.setdefault(workload, {}).setdefault(membership.kind(), _Kind(membership))
        if before is None:
            kind.pods += 1
        if kind.pods == 1 or before is not None:
            kind.speaker = membership  # What its makers want may be other than it was.
            self.dirty[workload] = None

    def leave(self, uid: str) -> None:
        workload = self._workload.pop(uid, None)
        if workload is not None:
            kinds, key = self._kinds[workload], self._pods[workload].pop(uid).kind()
            kinds[key].pods -= 1
            if not kinds[key].pods:
                del kinds[key]
                self.dirty[workload] = None
            if not kinds:
                del self._kinds[workload], self._pods[workload]

    # PodGroups: each call returns the pods that are to be looked at again

    def pod_groups_listed(self, groups: Iterable[PodGroup]) -> list[str]:
        listed = {full_name(one.metadata): one.spec.min_member for one in groups}
        return self._listed(listed, is_native=False)

    def pod_group_set(self, group: PodGroup, *, gone: bool) -> list[str]:
        size = None if gone else group.spec.min_member
        return self._set(full_name(group.metadata), size, is_native=False)

    def native_groups_listed(self, groups: Iterable[NativePodGroup]) -> list[str]:
        return self._listed({full_name(one.metadata): _least(one) for one in groups}, is_native=True)

    def native_group_set(self, group: NativePodGroup, *, gone: bool) -> list[str]:
        return self._set(full_name(group.metadata), None if gone else _least(group), is_native=True)

    def _listed(self, listed: dict[str, int], *, is_native: bool) -> list[str]:
        names = dict.fromkeys([*self._sizes(is_native), *listed])
        return [uid for name in names for uid in self._set(name, listed.get(name), is_native=is_native)]

    def _set(self, name: str, size: int | None, *, is_native: bool) -> list[str]:
        sizes = self._sizes(is_native)
        if sizes.get(name) == size:
            return []
        if size is None:
            del sizes[name]
        else:
            sizes[name] = size
        workload = workload_of_group(name, is_native=is_native)
        self.dirty[workload] = None
        return list(self.pods(workload))

    def _sizes(self, is_native: bool) -> dict[str, int]:
        return self._native_groups if is_native else self._pod_groups

    def missing_group(self, membership: GroupMembership) -> Problem | None:
        """Of a group whose size a PodGroup must say, and which is not there."""
        there = self._sizes(membership.is_native)
        if not membership.needs_pod_group or membership.pod_group in there:
            return None
        return Problem("NoPodGroup", f"its PodGroup {membership.pod_group} is not there")

    # What follows

    def fact(self, workload: str) -> WorkloadSet | None:
        """None for a work that lives no more."""
        pods = self._pods.get(workload)
        kinds = self._kinds.get(workload, {}).values()
        members = [kind.speaker for kind in kinds] if pods else self._controllers.templates(workload)
        if not members:
            return None
        fact = workload_fact(members, self._sizes(members[0].is_native), self._settings)
        return fact if pods else replace(fact, begin_at=None)


def _least(group: NativePodGroup) -> int:
    gang = group.spec.scheduling_policy.gang
    return max(gang.min_count, 1) if gang is not None else 1
