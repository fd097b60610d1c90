"""The world of Kubernetes: watches that fill the mirror, facts out of it, intents into actions.

One life of `run` begins with complete lists of everything and one `Snapshot`; from then on the watches tell
changes, and facts follow in batches, at our own pace. `refresh` begins that anew without ending the life: it
is how a doubt about the mirror is settled. The old mirror is in use until the other is complete: one that is
still being filled would say of every pod that there is none. Nothing is written unless `may_act` says that we
are in office for longer than a request takes. What is wanted before the first snapshot is passed over: the
scheduler wants everything that is open again when it has taken that in.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from penstock.backends.kube.cache import ClusterCache, Problem
from penstock.backends.kube.executor import IntentExecutor
from penstock.backends.kube.pod_conditions import ConditionWriter, message_of, problem_message
from penstock.backends.kube.settings import KubeSettings
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, decode_metadata
from penstock.kube.errors import ApiError, NotFound
from penstock.kube.resources import (
    DEPLOYMENTS,
    JOBS,
    NATIVE_PODGROUPS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODGROUPS,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    ApiResource,
)
from penstock.kube.types import (
    BatchJob,
    Deployment,
    KubeObject,
    NativePodGroup,
    Node,
    OwnerReference,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
    ReplicaSet,
    StatefulSet,
)
from penstock.kube.watch import Deleted, Relisted, Upserted, WatchEvent, WatchState, reflect
from penstock.podspec.grouping import controller_of
from penstock.podspec.pod_status import salvaged
from penstock.protocol.backend import Sink
from penstock.protocol.facts import Fact
from penstock.protocol.intents import Intent, StatusUpdate, WorkloadStatus

__all__ = ["KubeBackend"]

_LOG: Final = logging.getLogger("penstock.kube")
_SILENCE_S: Final = 60.0  # after so long a watch that was interrupted is a problem
_BATCH_S: Final = 0.01  # changes that come within this time are told together
_CONTROLLERS: Final[
    dict[str, tuple[ApiResource, type[BatchJob] | type[ReplicaSet] | type[StatefulSet] | type[Deployment]]]
] = {
    "Job": (JOBS, BatchJob),
    "ReplicaSet": (REPLICASETS, ReplicaSet),
    "StatefulSet": (STATEFULSETS, StatefulSet),
    "Deployment": (DEPLOYMENTS, Deployment),
}

T = TypeVar("T", bound=KubeObject)


@dataclass(frozen=True, slots=True)
class _Watched:
    """A kind of object, and what its changes do to the mirror."""

    resource: ApiResource
    type: type[Any]
    listed: Callable[[tuple[Any, ...]], None]
    changed: Callable[[Any], None]
    gone: Callable[[Any], None]
    decode_partial: Callable[[bytes], Any] = lambda _: None  # of one that cannot be read


def _controllers_listed(cache: ClusterCache, kind: str, items: tuple[Any, ...]) -> None:
    cache.controllers_listed(kind, map(controller_of, items))


class KubeBackend:
    def __init__(
        self,
        client: KubeClient,
        settings: KubeSettings,
        *,
        identity: str,
        may_act: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.cache = ClusterCache(settings)
        self._client = client
        self._settings = settings
        self._is_leader = may_act
        self._clock = clock
        self._epoch: int | None = None  # None: not running, nothing may be done
        self._has_told = False  # the first snapshot of this life
        self._sink: Sink | None = None
        self._stirred = asyncio.Event()
        self._refresh = asyncio.Event()
        self._synced: set[ApiResource] = set()
        self._states: dict[ApiResource, WatchState] = {}
        self._executor = IntentExecutor(client, self, clock)
        self._condition_writer = ConditionWriter(client, settings, self._pod, self.may_act, clock, identity)

    # The port

    async def run(self, epoch: int, sink: Sink) -> None:
        self._epoch, self._sink, self._has_told = epoch, sink, False
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._settings.binds_in_flight_max):
                    tasks.create_task(self._executor.workload())
                tasks.create_task(self._condition_writer.run())
                while True:
                    await self._reflect_until_refreshed()
        except BaseExceptionGroup as group:
            raise _first_of(group) from group  # Whoever runs us tells apart what is worth another life.
        finally:
            self._epoch = self._sink = None
            self._states.clear()
            self._executor.drop()

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        if epoch == self._epoch and self._has_told:
            for intent in intents:
                self._executor.put(intent)

    async def probe(self, members: Sequence[str]) -> None:
        if self._epoch is not None and self._has_told:
            for member in members:
                self._executor.put_probe(member)

    def forget(self, members: Sequence[str]) -> None:
        for member in members:
            self._condition_writer.forget(member)

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        for update in status_updates:
            message = message_of(update)
            if update.status is WorkloadStatus.FINISHED:
                continue
            if update.status is WorkloadStatus.INADMISSIBLE:
                self.cache.mark_inadmissible(update.workload, Problem(message.reason, update.reason))
                self._stirred.set()
                continue
            if self._epoch is not None and self._has_told:
                self._executor.take_back_deadlines(update.workload)
            for pod in self.cache.waiting_pods(update.workload):
                self._condition_writer.set(pod.metadata.uid, message)

    def problem(self) -> str:
        """What keeps us from knowing everything, for longer than a stream takes to be opened again."""
        now = time.monotonic()
        for state in self._states.values():
            heard_at = state.last_received_at
            is_silent = heard_at is None or now - heard_at > _SILENCE_S
            if state.problem and not state.is_unserved and (is_silent or not state.is_synced):
                return state.problem
        return ""

    # For actions

    def may_act(self) -> bool:
        return self._epoch is not None and self._has_told and self._is_leader()

    def report(self, fact: Fact) -> None:
        if self._sink is not None:
            self._sink(fact)

    def scheduled(self, pod: Pod, node: str) -> None:
        self._condition_writer.scheduled(pod, node)

    def _pod(self, uid: str) -> Pod | None:
        return self.cache.pod(uid)

    # Watching

    def refresh(self) -> None:
        """Has everything listed afresh, and a snapshot told."""
        self._refresh.set()

    async def _reflect_until_refreshed(self) -> None:
        cache = ClusterCache(self._settings)
        self._synced = set()
        self._refresh.clear()
        watched = self._watched(cache)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._reflect(one)) for one in watched]
            running.append(tasks.create_task(self._pump(cache, len(watched))))
            running.append(tasks.create_task(self._resolve_controllers(cache)))
            await self._refresh.wait()
            _LOG.info("everything is listed afresh")
            for task in running:
                task.cancel()

    def _watched(self, cache: ClusterCache) -> list[_Watched]:
        def pod_set(pod: Pod) -> None:
            cache.pod_set(pod)
            if pod.spec.node_name:
                self._condition_writer.forget(pod.metadata.uid)

        def pod_gone(pod: Pod) -> None:
            cache.pod_gone(pod)
            self._condition_writer.forget(pod.metadata.uid)

        def pod_salvaged(raw: bytes) -> Pod | None:
            uid = decode_metadata(raw).uid
            return salvaged(raw, cache.pod(uid) or self.cache.pod(uid))

        def node_salvaged(raw: bytes) -> Node | None:
            name = decode_metadata(raw).name
            return cache.node(name) or self.cache.node(name)

        watched = [
            _Watched(
                NODES, Node, cache.nodes_listed, cache.node_set, cache.node_gone, decode_partial=node_salvaged
            ),
            _Watched(PODS, Pod, cache.pods_listed, pod_set, pod_gone, decode_partial=pod_salvaged),
            _Watched(
                PODGROUPS,
                PodGroup,
                cache.pod_groups_listed,
                cache.pod_group_set,
                lambda one: cache.pod_group_set(one, gone=True),
            ),
            _Watched(
                NATIVE_PODGROUPS,
                NativePodGroup,
                cache.native_groups_listed,
                cache.native_group_set,
                lambda one: cache.native_group_set(one, gone=True),
            ),
            _Watched(
                PERSISTENT_VOLUME_CLAIMS,
                PersistentVolumeClaim,
                cache.claims_listed,
                cache.claim_set,
                lambda one: cache.claim_set(one, gone=True),
            ),
            _Watched(
                PERSISTENT_VOLUMES,
                PersistentVolume,
                cache.volumes_listed,
                cache.volume_set,
                lambda one: cache.volume_set(one, gone=True),
            ),
        ]
        for kind, (resource, of_type) in _CONTROLLERS.items():
            watched.append(
                _Watched(
                    resource,
                    of_type,
                    partial(_controllers_listed, cache, kind),
                    lambda one: cache.controller_set(controller_of(one)),
                    lambda one: cache.controller_gone(one.metadata.uid),
                )
            )
        return watched

    async def _reflect(self, watched: _Watched) -> None:
        def on(change: WatchEvent[Any]) -> None:
            match change:
                case Relisted(items):
                    watched.listed(items)
                    self._synced.add(watched.resource)
                case Upserted(item):
                    watched.changed(item)
                case Deleted(item):
                    watched.gone(item)
            self._stirred.set()

        state = self._states[watched.resource] = WatchState()
        await reflect(
            self._client,
            watched.resource,
            watched.type,
            on,
            decode_partial=watched.decode_partial,
            state=state,
        )

    async def _pump(self, cache: ClusterCache, kinds: int) -> None:
        """Tells a snapshot as soon as everything is known, and then what changes."""
        while len(self._synced) < kinds:
            await self._next_stir()
        self._stirred.clear()
        cache.inherit(self.cache)
        self.cache = cache
        self.report(cache.snapshot(self._clock()))
        self._has_told = True
        self._condition_writer.sweep()
        self._report_problems()
        while True:
            await self._next_stir()
            for fact in cache.facts(self._clock()):
                self.report(fact)
            self._report_problems()

    async def _next_stir(self) -> None:
        await self._stirred.wait()
        await asyncio.sleep(_BATCH_S)
        self._stirred.clear()

    def _report_problems(self) -> None:
        for uid, problem in self.cache.take_news().items():
            if problem is None:
                self._condition_writer.forget(uid)  # What was to be told holds no more.
            else:
                self._condition_writer.set(uid, problem_message(problem))

    # Owners that have not been heard of

    async def _resolve_controllers(self, cache: ClusterCache) -> None:
        """Watches of different kinds do not wait for each other: who is not heard of in time is asked for."""
        seen: dict[str, float] = {}
        while True:
            await asyncio.sleep(self._settings.controller_wait_s / 2)
            missing = cache.missing_controllers()
            now = time.monotonic()
            seen = {uid: seen.get(uid, now) for uid in missing}
            for uid, (namespace, owner) in missing.items():
                if now - seen[uid] >= self._settings.controller_wait_s:
                    await self._ask_for(cache, namespace, owner)
                    self._stirred.set()

    async def _ask_for(self, cache: ClusterCache, namespace: str, owner: OwnerReference) -> None:
        resource, of_type = _CONTROLLERS[owner.kind]
        try:
            found = await self._client.get(resource.path(namespace, owner.name), of_type)
        except NotFound:
            cache.controller_absent(owner.uid)
        except (ApiError, Unavailable) as error:
            _LOG.warning("%s %s/%s cannot be read: %s", owner.kind, namespace, owner.name, error)
        else:
            if found.metadata.uid == owner.uid:
                cache.controller_read(controller_of(found))
            else:
                cache.controller_absent(owner.uid)


def _first_of(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to be told of several: one that is not worth another try, if there is any."""
    errors: list[BaseException] = []
    left: list[BaseException] = [group]
    while left:
        error = left.pop(0)
        if isinstance(error, BaseExceptionGroup):
            left.extend(error.exceptions)
        else:
            errors.append(error)
    return next((error for error in errors if not isinstance(error, Unavailable)), errors[0])
