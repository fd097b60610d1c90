"""Keeps the status of coscheduling PodGroups current, for groups with pods that Penstock schedules.

`PodGroupTracker` counts the pods of each PodGroup by their phases, as the watches deliver them: what the API
server has of a pod follows from committed decisions. `PodGroupStatusWriter` writes what differs from the last
status, at most once per interval and PodGroup. It does not answer the writes of others: the controller of
the plugin may run beside Penstock.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, PatchType
from penstock.kube.errors import ApiError, NotFound
from penstock.kube.resources import PODGROUPS
from penstock.kube.types import Pod, PodGroup, PodGroupStatus
from penstock.podspec.pod_groups import PodCounts, PodProgress, pod_group_status, pod_progress
from penstock.podspec.pod_status import full_name

__all__ = ["PodGroupStatusWriter", "PodGroupTracker", "PodGroupUpdate"]

_LOG: Final = logging.getLogger("penstock.kube")
_INTERVAL_S: Final = 1.0
_RETRY_S: Final = 10.0  # after a failed write


@dataclass(frozen=True, slots=True)
class PodGroupUpdate:
    """A status to be written."""

    name: str  # "NAMESPACE/NAME"
    uid: str
    status: PodGroupStatus


@dataclass(slots=True)
class _Group:
    pods: dict[str, PodProgress] = field(default_factory=dict)
    counts: Counter[PodProgress] = field(default_factory=Counter)
    found: PodGroup | None = None  # None: it does not exist
    last: PodGroupStatus | None = None  # as written by us; None: not yet

    @property
    def present(self) -> PodGroupStatus:
        of_object = self.found.status if self.found is not None else None
        return self.last or of_object or PodGroupStatus()


class PodGroupTracker:
    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}  # by "NAMESPACE/NAME"
        self._group_of: dict[str, str] = {}  # pod -> name
        self._dirty: dict[str, None] = {}

    def group_of(self, uid: str) -> str:
        return self._group_of.get(uid, "")

    # PodGroups

    def replace_groups(self, groups: Iterable[PodGroup]) -> None:
        """All PodGroups that exist."""
        listed = {full_name(group.metadata): group for group in groups}
        for name in [name for name, known in self._groups.items() if known.found and name not in listed]:
            self._remove_group(name)
        for group in listed.values():
            self.set_group(group)

    def set_group(self, group: PodGroup, *, gone: bool = False) -> None:
        name = full_name(group.metadata)
        if gone:
            self._remove_group(name)
            return
        known = self._groups.setdefault(name, _Group())
        if known.found is None or known.found.metadata.uid != group.metadata.uid:
            known.last = None
        known.found = group
        if known.pods:
            self._dirty[name] = None

    def _remove_group(self, name: str) -> None:
        known = self._groups.get(name)
        if known is not None:
            known.found = known.last = None
            self._forget_unused(name)

    # Pods

    def assign(self, pod: Pod, name: str) -> None:
        """Says to which PodGroup a pod belongs, whether that exists or not; "": to none."""
        uid = pod.metadata.uid
        before = self._group_of.get(uid, "")
        if before == name:
            return
        if before:
            self.remove_pod(uid)
        if name:
            self._group_of[uid] = name
            self._count(name, uid, pod_progress(pod))

    def set_pod(self, pod: Pod) -> None:
        """Notes how far a pod has come, if it belongs to a PodGroup."""
        name = self._group_of.get(pod.metadata.uid)
        if name is not None:
            self._count(name, pod.metadata.uid, pod_progress(pod))

    def remove_pod(self, uid: str) -> None:
        name = self._group_of.pop(uid, None)
        if name is not None:
            known = self._groups[name]
            known.counts[known.pods.pop(uid)] -= 1
            self._dirty[name] = None
            self._forget_unused(name)

    def _count(self, name: str, uid: str, progress: PodProgress) -> None:
        known = self._groups.setdefault(name, _Group())
        before = known.pods.get(uid)
        if before is progress:
            return
        if before is not None:
            known.counts[before] -= 1
        known.pods[uid] = progress
        known.counts[progress] += 1
        self._dirty[name] = None

    def _forget_unused(self, name: str) -> None:
        known = self._groups[name]
        if known.found is None and not known.pods:
            del self._groups[name]

    # Statuses

    def take_updates(self) -> list[PodGroupUpdate]:
        """The PodGroups whose status is not what it should be. `written` or `retry` follows for each."""
        dirty, self._dirty = self._dirty, {}
        updates: list[PodGroupUpdate] = []
        for name in dirty:
            known = self._groups.get(name)
            if known is None or known.found is None:
                continue
            counts = PodCounts(**{one.value: known.counts[one] for one in PodProgress})
            if not known.pods and known.present.phase in ("Finished", "Failed"):
                continue  # What became of its pods stays to be read.
            status = pod_group_status(known.present.phase, known.found.spec.min_member, counts)
            if status != known.present:
                updates.append(PodGroupUpdate(name, known.found.metadata.uid, status))
        return updates

    def written(self, update: PodGroupUpdate) -> None:
        known = self._groups.get(update.name)
        if known is not None and known.found is not None and known.found.metadata.uid == update.uid:
            known.last = update.status

    def retry(self, update: PodGroupUpdate) -> None:
        if update.name in self._groups:
            self._dirty[update.name] = None


class PodGroupStatusWriter:
    def __init__(
        self, client: KubeClient, tracker: Callable[[], PodGroupTracker], may_act: Callable[[], bool]
    ) -> None:
        self._client = client
        self._tracker = tracker
        self._may_act = may_act

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            if self._may_act() and not await self.write_updates():
                await asyncio.sleep(_RETRY_S)

    async def write_updates(self) -> bool:
        """Writes what is due. Returns whether all of it was written."""
        tracker, is_written = self._tracker(), True
        for update in tracker.take_updates():
            try:
                if not self._may_act():
                    tracker.retry(update)
                else:
                    await self._write(update)
                    tracker.written(update)
            except NotFound:
                continue
            except (ApiError, Unavailable) as error:
                if is_written:
                    _LOG.warning("cannot set the status of PodGroup %s: %s", update.name, error)
                tracker.retry(update)
                is_written = False
        return is_written

    async def _write(self, update: PodGroupUpdate) -> None:
        namespace, _, name = update.name.partition("/")
        status = update.status
        body: dict[str, object] = {
            "metadata": {"uid": update.uid},
            "status": {
                "phase": status.phase,
                "running": status.running,
                "succeeded": status.succeeded,
                "failed": status.failed,
            },
        }
        await self._client.patch(PODGROUPS.path(namespace, name, "status"), body, patch_type=PatchType.MERGE)
