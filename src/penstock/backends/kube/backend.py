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

from penstock.backends.kube.cache import Mirror, Problem
from penstock.backends.kube.executor import Actions
from penstock.backends.kube.pod_conditions import Teller, message_of, problem_message
from penstock.backends.kube.pod_status import salvaged
from penstock.errors import Unavailable
from penstock.kube.client import Client, metadata_of
from penstock.kube.errors import ApiError, NotFound
from penstock.kube.resources import (
    CLAIMS,
    DEPLOYMENTS,
    JOBS,
    NATIVE_PODGROUPS,
    NODES,
    PODGROUPS,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    VOLUMES,
    Resource,
)
from penstock.kube.types import (
    Deployment,
    Job,
    NativePodGroup,
    Node,
    Object,
    Owner,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
    ReplicaSet,
    StatefulSet,
)
from penstock.kube.watch import Change, Deleted, Relisted, Upserted, WatchState, reflect
from penstock.podspec.grouping import maker_of
from penstock.podspec.settings import KubeSettings
from penstock.protocol.backend import Sink
from penstock.protocol.facts import Fact
from penstock.protocol.intents import Intent, Tell

__all__ = ["KubeWorld"]

_LOG: Final = logging.getLogger("penstock.kube")
_SILENCE_S: Final = 60.0  # after so long a watch that was interrupted is a problem
_BATCH_S: Final = 0.01  # changes that come within this time are told together
_MAKERS: Final[
    dict[str, tuple[Resource, type[Job] | type[ReplicaSet] | type[StatefulSet] | type[Deployment]]]
] = {
    "Job": (JOBS, Job),
    "ReplicaSet": (REPLICASETS, ReplicaSet),
    "StatefulSet": (STATEFULSETS, StatefulSet),
    "Deployment": (DEPLOYMENTS, Deployment),
}

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True)
class _Watched:
    """A kind of object, and what its changes do to the mirror."""

    resource: Resource
    type: type[Any]
    listed: Callable[[tuple[Any, ...]], None]
    changed: Callable[[Any], None]
    gone: Callable[[Any], None]
    salvage: Callable[[bytes], Any] = lambda _: None  # of one that cannot be read


def _makers_listed(mirror: Mirror, kind: str, items: tuple[Any, ...]) -> None:
    mirror.makers_listed(kind, map(maker_of, items))


class KubeWorld:
    def __init__(
        self,
        client: Client,
        settings: KubeSettings,
        *,
        identity: str,
        may_act: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.mirror = Mirror(settings)
        self._client = client
        self._settings = settings
        self._in_office = may_act
        self._clock = clock
        self._epoch: int | None = None  # None: not running, nothing may be done
        self._has_told = False  # the first snapshot of this life
        self._sink: Sink | None = None
        self._stirred = asyncio.Event()
        self._refresh = asyncio.Event()
        self._synced: set[Resource] = set()
        self._states: dict[Resource, WatchState] = {}
        self._actions = Actions(client, self, clock)
        self._teller = Teller(client, settings, self._pod, self.may_act, clock, identity)

    # The port

    async def run(self, epoch: int, sink: Sink) -> None:
        self._epoch, self._sink, self._has_told = epoch, sink, False
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._settings.binds_in_flight_max):
                    tasks.create_task(self._actions.work())
                tasks.create_task(self._teller.run())
                while True:
                    await self._reflect_until_refreshed()
        except BaseExceptionGroup as group:
            raise _first_of(group) from group  # Whoever runs us tells apart what is worth another life.
        finally:
            self._epoch = self._sink = None
            self._states.clear()
            self._actions.drop()

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        if epoch == self._epoch and self._has_told:
            for intent in intents:
                self._actions.put(intent)

    async def probe(self, members: Sequence[str]) -> None:
        if self._epoch is not None and self._has_told:
            for member in members:
                self._actions.put_probe(member)

    def forget(self, members: Sequence[str]) -> None:
        for member in members:
            self._teller.forget(member)

    def tell(self, tidings: Sequence[Tell]) -> None:
        for tiding in tidings:
            message = message_of(tiding)
            if tiding.verdict == "over":
                continue
            if tiding.verdict == "given-up":
                self.mirror.give_up(tiding.work, Problem(message.reason, tiding.reason))
                self._stirred.set()
                continue
            if self._epoch is not None and self._has_told:
                self._actions.take_back_deadlines(tiding.work)
            for pod in self.mirror.waiting_pods(tiding.work):
                self._teller.tell(pod.metadata.uid, message)

    def problem(self) -> str:
        """What keeps us from knowing everything, for longer than a stream takes to be opened again."""
        now = time.monotonic()
        for state in self._states.values():
            heard_at = state.last_heard_at
            is_silent = heard_at is None or now - heard_at > _SILENCE_S
            if state.problem and not state.is_absent and (is_silent or not state.is_synced):
                return state.problem
        return ""

    # For actions

    def may_act(self) -> bool:
        return self._epoch is not None and self._has_told and self._in_office()

    def report(self, fact: Fact) -> None:
        if self._sink is not None:
            self._sink(fact)

    def scheduled(self, pod: Pod, node: str) -> None:
        self._teller.scheduled(pod, node)

    def _pod(self, uid: str) -> Pod | None:
        return self.mirror.pod(uid)

    # Watching

    def refresh(self) -> None:
        """Has everything listed afresh, and a snapshot told."""
        self._refresh.set()

    async def _reflect_until_refreshed(self) -> None:
        mirror = Mirror(self._settings)
        self._synced = set()
        self._refresh.clear()
        watched = self._watched(mirror)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._reflect(one)) for one in watched]
            running.append(tasks.create_task(self._pump(mirror, len(watched))))
            running.append(tasks.create_task(self._resolve_makers(mirror)))
            await self._refresh.wait()
            _LOG.info("everything is listed afresh")
            for task in running:
                task.cancel()

    def _watched(self, mirror: Mirror) -> list[_Watched]:
        def pod_set(pod: Pod) -> None:
            mirror.pod_set(pod)
            if pod.spec.node_name:
                self._teller.forget(pod.metadata.uid)

        def pod_gone(pod: Pod) -> None:
            mirror.pod_gone(pod)
            self._teller.forget(pod.metadata.uid)

        def pod_salvaged(raw: bytes) -> Pod | None:
            uid = metadata_of(raw).uid
            return salvaged(raw, mirror.pod(uid) or self.mirror.pod(uid))

        def node_salvaged(raw: bytes) -> Node | None:
            name = metadata_of(raw).name
            return mirror.node(name) or self.mirror.node(name)

        watched = [
            _Watched(
                NODES, Node, mirror.nodes_listed, mirror.node_set, mirror.node_gone, salvage=node_salvaged
            ),
            _Watched(PODS, Pod, mirror.pods_listed, pod_set, pod_gone, salvage=pod_salvaged),
            _Watched(
                PODGROUPS,
                PodGroup,
                mirror.pod_groups_listed,
                mirror.pod_group_set,
                lambda one: mirror.pod_group_set(one, gone=True),
            ),
            _Watched(
                NATIVE_PODGROUPS,
                NativePodGroup,
                mirror.native_groups_listed,
                mirror.native_group_set,
                lambda one: mirror.native_group_set(one, gone=True),
            ),
            _Watched(
                CLAIMS,
                PersistentVolumeClaim,
                mirror.claims_listed,
                mirror.claim_set,
                lambda one: mirror.claim_set(one, gone=True),
            ),
            _Watched(
                VOLUMES,
                PersistentVolume,
                mirror.volumes_listed,
                mirror.volume_set,
                lambda one: mirror.volume_set(one, gone=True),
            ),
        ]
        for kind, (resource, of_type) in _MAKERS.items():
            watched.append(
                _Watched(
                    resource,
                    of_type,
                    partial(_makers_listed, mirror, kind),
                    lambda one: mirror.maker_set(maker_of(one)),
                    lambda one: mirror.maker_gone(one.metadata.uid),
                )
            )
        return watched

    async def _reflect(self, watched: _Watched) -> None:
        def on(change: Change[Any]) -> None:
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
        await reflect(self._client, watched.resource, watched.type, on, salvage=watched.salvage, state=state)

    async def _pump(self, mirror: Mirror, kinds: int) -> None:
        """Tells a snapshot as soon as everything is known, and then what changes."""
        while len(self._synced) < kinds:
            await self._next_stir()
        self._stirred.clear()
        mirror.inherit(self.mirror)
        self.mirror = mirror
        self.report(mirror.snapshot(self._clock()))
        self._has_told = True
        self._teller.sweep()
        self._tell_problems()
        while True:
            await self._next_stir()
            for fact in mirror.facts(self._clock()):
                self.report(fact)
            self._tell_problems()

    async def _next_stir(self) -> None:
        await self._stirred.wait()
        await asyncio.sleep(_BATCH_S)
        self._stirred.clear()

    def _tell_problems(self) -> None:
        for uid, problem in self.mirror.take_news().items():
            if problem is None:
                self._teller.forget(uid)  # What was to be told holds no more.
            else:
                self._teller.tell(uid, problem_message(problem))

    # Owners that have not been heard of

    async def _resolve_makers(self, mirror: Mirror) -> None:
        """Watches of different kinds do not wait for each other: who is not heard of in time is asked for."""
        seen: dict[str, float] = {}
        while True:
            await asyncio.sleep(self._settings.maker_wait_s / 2)
            missing = mirror.missing_makers()
            now = time.monotonic()
            seen = {uid: seen.get(uid, now) for uid in missing}
            for uid, (namespace, owner) in missing.items():
                if now - seen[uid] >= self._settings.maker_wait_s:
                    await self._ask_for(mirror, namespace, owner)
                    self._stirred.set()

    async def _ask_for(self, mirror: Mirror, namespace: str, owner: Owner) -> None:
        resource, of_type = _MAKERS[owner.kind]
        try:
            found = await self._client.get(resource.path(namespace, owner.name), of_type)
        except NotFound:
            mirror.maker_absent(owner.uid)
        except (ApiError, Unavailable) as error:
            _LOG.warning("%s %s/%s cannot be read: %s", owner.kind, namespace, owner.name, error)
        else:
            if found.metadata.uid == owner.uid:
                mirror.maker_read(maker_of(found))
            else:
                mirror.maker_absent(owner.uid)


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
