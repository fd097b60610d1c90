"""An instance as a scheduler of pods: in office by a Lease, fenced by the store, looked over by an auditor.

The Lease only says who should try: whoever has it takes over in the store, which is what counts. Without it
nothing is written. When it is lost, or when somebody else has taken over, the instance stands by and tries
again; what it had in mind is dropped, since others may have changed everything meanwhile.

What is recorded is about one cluster. In another one, by a switched context or a database that two share, all
of it would be gone at the first look; so before anybody takes over, the store is asked which one it is about.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from penstock.api.responses import AgentInfo, InstanceSettings
from penstock.app.audit_snapshot import graph_reading
from penstock.app.kube_options import KubeOptions
from penstock.audit.api import read_api
from penstock.audit.auditor import Auditor
from penstock.audit.readings import GraphReading
from penstock.audit.store import read_store
from penstock.backends.kube.backend import KubeBackend
from penstock.errors import Conflict, Unavailable
from penstock.instance.loop import Instance, NotReady, NotReadyCause
from penstock.kube.access import Access, find_access
from penstock.kube.client import KubeClient
from penstock.kube.errors import ApiError, Forbidden, NotFound
from penstock.kube.lease import LeaderElector, LeaseLost
from penstock.kube.resources import NAMESPACES
from penstock.kube.transport import RetryPolicy
from penstock.kube.types import KubeObject
from penstock.protocol.backend import Backend
from penstock.protocol.facts import MemberGone
from penstock.sched.settings import Settings
from penstock.store.port import Fenced

__all__ = ["KubeRuntime", "Repairs", "WrongCluster"]

_LOG: Final = logging.getLogger("penstock.kube")
_REQUEST_S: Final = 5.0  # the longest that a write may take; the lease must last for that long
_STAND_BY_S: Final = 1.0
_LOOK_S: Final = 0.5


class WrongCluster(Conflict):
    """What is recorded is about another cluster: to go on would declare everything gone."""


class KubeRuntime:
    kind = "kubernetes"
    ends_tasks = False

    def __init__(self, options: KubeOptions, settings: Settings, instance_id: str) -> None:
        self._options = options
        self._settings = settings
        self._access: Access = find_access(options.kubeconfig, options.context)
        in_flight = options.settings.binds_in_flight_max
        self._client = KubeClient(
            self._access,
            in_flight_max=in_flight + 16,
            timeout_s=_REQUEST_S,
            retries=RetryPolicy(write_attempts=1),
            may_write=self._may_act,
        )
        self._ancestry = f"{instance_id}_"  # The state directory is locked: whoever else had it is dead.
        self.identity = f"{self._ancestry}{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        # The election has a client of its own: a long queue of writes must not keep it from renewing.
        self._election_client = KubeClient(self._access, in_flight_max=4, timeout_s=_REQUEST_S)
        self._election = LeaderElector(
            self._election_client,
            options.lease_namespace,
            options.lease_name,
            self.identity,
            request_s_max=_REQUEST_S,
            predecessor_prefix=self._ancestry,
        )
        self._backend = KubeBackend(
            self._client,
            options.settings,
            identity=self.identity,
            may_act=self._may_act,
        )
        self._auditor: Auditor | None = None

    def _may_act(self) -> bool:
        """Whether we are in office, and for longer than what is sent now can take."""
        return self._election.is_leader(_REQUEST_S)

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def backend(self) -> Backend:
        return self._backend

    def agents(self) -> list[AgentInfo]:
        return []

    def describe(self, settings: InstanceSettings) -> InstanceSettings:
        return structs.replace(
            settings,
            server=self._access.server,
            schedulers=list(self._options.settings.scheduler_names),
            leader=self._election.holder,
            is_leader=self._election.is_leader(),
            problem=self.problem(),
        )

    def output_paths(self) -> Callable[[int, int, Mapping[str, object]], tuple[Path, Path]] | None:
        return None

    def metrics(self) -> bytes:
        return self._auditor.metrics.render() if self._auditor is not None else b""

    def is_standing_by(self) -> bool:
        holder = self._election.holder
        return bool(holder) and not holder.startswith(self._ancestry)

    def problem(self) -> str:
        return self._election.problem or self._backend.problem()

    async def run(self, instance: Instance, live: Callable[[], Awaitable[None]]) -> None:
        self._auditor = self._make_auditor(instance)
        while True:
            instance.not_ready = NotReady(
                NotReadyCause.STANDBY, "another instance is the leader, or none is yet"
            )
            await self._election.acquire()
            instance.not_ready = NotReady(NotReadyCause.TAKING_OVER)
            await self._serve_as_leader(instance, live, self._auditor)

    async def _serve_as_leader(
        self, instance: Instance, live: Callable[[], Awaitable[None]], auditor: Auditor
    ) -> None:
        """Until the lease is lost, or somebody else has taken over in the store."""
        tasks = [
            asyncio.ensure_future(self._election.renew()),
            asyncio.ensure_future(self._live_here(instance, live)),
            asyncio.ensure_future(self._say_why_not_ready(instance)),
            asyncio.ensure_future(auditor.run()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        for error in ended:
            if isinstance(error, LeaseLost | Fenced):
                _LOG.warning("standing by: %s", error)
                await self._election.release()
                await asyncio.sleep(_STAND_BY_S)
            elif isinstance(error, Exception):
                if isinstance(error, WrongCluster):
                    await self._election.release()
                raise error

    async def _live_here(self, instance: Instance, live: Callable[[], Awaitable[None]]) -> None:
        """Lives in this cluster, if what is recorded is about it or about none yet."""
        while True:
            try:
                await self._claim_cluster(instance)
                break
            except (ApiError, Unavailable) as error:
                _LOG.warning("whether this is the cluster of what is recorded is not known yet: %s", error)
                instance.not_ready = NotReady(NotReadyCause.TAKING_OVER, str(error))
            await asyncio.sleep(_STAND_BY_S)
        await live()

    async def _claim_cluster(self, instance: Instance) -> None:
        try:
            found = await self._client.get(NAMESPACES.path(name="kube-system"), KubeObject)
        except (Forbidden, NotFound) as error:
            _LOG.warning("whether this is the cluster of what is recorded is not checked: %s", error)
            return
        await instance.store.open()
        cluster = found.metadata.uid
        recorded = await instance.store.claim_cluster(cluster)
        if recorded != cluster:
            raise WrongCluster(
                f"{self._access.server} is another cluster than what is recorded is about: "
                f"its namespace kube-system has the uid {cluster}, expected {recorded}; "
                "name the kubeconfig and context of that one, or another --state, or --database"
            )

    async def _say_why_not_ready(self, instance: Instance) -> None:
        """Whoever waits for us to take over is told what we wait for."""
        while True:
            is_taking_over = instance.not_ready.cause is NotReadyCause.TAKING_OVER
            if not instance.is_ready.is_set() and is_taking_over:
                instance.not_ready = NotReady(NotReadyCause.TAKING_OVER, self._backend.problem())
            await asyncio.sleep(_LOOK_S)

    def _make_auditor(self, instance: Instance) -> Auditor:
        async def graph() -> GraphReading:
            return await instance.query(lambda scheduler, _: graph_reading(scheduler))

        return Auditor(
            lambda: read_api(self._client),
            lambda: read_store(instance.store),
            graph,
            Repairs(instance, self._backend),
            scheduler_names=self._options.settings.scheduler_names,
            every_s=self._options.audit_every_s,
        )

    async def stop(self, *, keep_tasks: bool) -> None:  # noqa: ARG002
        await self._election.release()
        await self._client.close()
        await self._election_client.close()


class Repairs:
    """What the auditor can have done."""

    def __init__(self, instance: Instance, backend: KubeBackend) -> None:
        self._instance = instance
        self._backend = backend

    async def snapshot(self) -> None:
        self._backend.refresh()

    async def release(self, members: Sequence[str]) -> None:
        for member in members:
            self._instance.receive(MemberGone(member))
        self._backend.refresh()

    async def restart(self, why: str) -> None:
        self._instance.reload(why)
