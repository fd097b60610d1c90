"""An instance that schedules pods: leader election by Lease, fencing by the store, checks by an auditor.

The Lease only decides which instance should try to lead; it is renewed in a thread of its own, while the loop
of the instance makes progress. The leader then takes over in the store, whose epoch is the fence. An instance
without the Lease writes nothing to the API server. When it loses the Lease, or when another instance has
taken over in the store, it drops its state, becomes a standby and runs for leader again.

The records in the store belong to one cluster. With another one (a switched context, or a database shared by
two instances) all recorded pods would look deleted. Therefore the leader compares the uid of the namespace
kube-system with the recorded one before it starts.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import structs

from penstock.api.responses import AgentInfo, InstanceSettings
from penstock.app.audit_snapshot import graph_snapshot
from penstock.app.kube_options import KubeOptions
from penstock.audit.api import read_api
from penstock.audit.auditor import Auditor
from penstock.audit.snapshots import GraphSnapshot
from penstock.audit.store import read_store
from penstock.backends.kube.backend import KubeBackend
from penstock.errors import Conflict, Unavailable
from penstock.instance.loop import Instance
from penstock.instance.progress import LoopProgress
from penstock.kube.access import Access, find_access
from penstock.kube.client import KubeClient
from penstock.kube.election_thread import ElectionThread
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
_REQUEST_S: Final = 5.0  # timeout of a write; the Lease must outlast it
_RETRY_S: Final = 1.0
_POLL_S: Final = 0.5


class WrongCluster(Conflict):
    """The records in the store belong to another cluster; all their pods would look deleted."""


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
        # The state directory is locked, so another holder with this prefix is a dead predecessor.
        self._identity_prefix = f"{instance_id}_"
        self.identity = f"{self._identity_prefix}{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
        # A thread and a client of its own: neither a busy loop nor a long queue of writes delays renewals.
        election_client = KubeClient(
            find_access(options.kubeconfig, options.context), in_flight_max=4, timeout_s=_REQUEST_S
        )
        self._progress = LoopProgress()  # of the instance, once it runs
        elector = LeaderElector(
            election_client,
            options.lease_namespace,
            options.lease_name,
            self.identity,
            request_s_max=_REQUEST_S,
            predecessor_prefix=self._identity_prefix,
            progress_age_s=lambda: self._progress.age_s(),
            progress_timeout_s=options.progress_timeout_s,
        )
        self._election = ElectionThread(elector, election_client)
        self._backend = KubeBackend(
            self._client,
            options.settings,
            identity=self.identity,
            may_act=self._may_act,
        )
        self._auditor: Auditor | None = None

    def _may_act(self) -> bool:
        """Whether this instance is the leader for at least as long as a request can take."""
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

    def input_paths(self) -> Callable[[int, Iterable[tuple[str, int]]], tuple[Path, list[Path]]] | None:
        return None

    def metrics(self) -> bytes:
        return self._auditor.metrics.render() if self._auditor is not None else b""

    def is_standby(self) -> bool:
        holder = self._election.holder
        return bool(holder) and not holder.startswith(self._identity_prefix)

    def problem(self) -> str:
        return self._election.problem or self._backend.problem()

    async def run(self, instance: Instance, run_term: Callable[[], Awaitable[None]]) -> None:
        self._auditor = self._make_auditor(instance)
        self._progress = instance.progress
        while True:
            instance.readiness.leader_is_another("another instance is the leader, or none is yet")
            await self._election.acquire()
            self._progress.mark()
            instance.readiness.became_leader()
            await self._serve_as_leader(instance, run_term, self._auditor)

    async def _serve_as_leader(
        self, instance: Instance, run_term: Callable[[], Awaitable[None]], auditor: Auditor
    ) -> None:
        """Runs until the Lease is lost, or another instance has taken over in the store."""
        tasks = [
            asyncio.ensure_future(self._election.renew()),
            asyncio.ensure_future(self._run_term(instance, run_term)),
            asyncio.ensure_future(self._report_problems(instance)),
            asyncio.ensure_future(auditor.run()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for error in results:
            if isinstance(error, LeaseLost | Fenced):
                _LOG.warning("no longer the leader: %s", error)
                await self._election.release()
                await asyncio.sleep(_RETRY_S)
            elif isinstance(error, Exception):
                if isinstance(error, WrongCluster):
                    await self._election.release()
                raise error

    async def _run_term(self, instance: Instance, run_term: Callable[[], Awaitable[None]]) -> None:
        """Runs a term after verifying that the records in the store belong to this cluster."""
        while True:
            try:
                await self._claim_cluster(instance)
                break
            except (ApiError, Unavailable) as error:
                _LOG.warning("cannot verify the cluster's identity yet: %s", error)
                instance.readiness.cluster_unverified(str(error))
                self._progress.mark()
            await asyncio.sleep(_RETRY_S)
        await run_term()

    async def _claim_cluster(self, instance: Instance) -> None:
        try:
            found = await self._client.get(NAMESPACES.path(name="kube-system"), KubeObject)
        except (Forbidden, NotFound) as error:
            _LOG.warning("the cluster's identity is not verified: %s", error)
            return
        await instance.store.open()
        cluster = found.metadata.uid
        recorded = await instance.store.claim_cluster(cluster)
        if recorded != cluster:
            raise WrongCluster(
                f"{self._access.server} is not the cluster that the database belongs to: "
                f"its namespace kube-system has the uid {cluster}, expected {recorded}; "
                "use the kubeconfig and context of that cluster, or another --state or --database"
            )

    async def _report_problems(self, instance: Instance) -> None:
        """Reports what this instance waits for while it takes over as leader."""
        while True:
            instance.readiness.takeover_waits(self._backend.problem())
            await asyncio.sleep(_POLL_S)

    def _make_auditor(self, instance: Instance) -> Auditor:
        async def graph() -> GraphSnapshot:
            return await instance.query(lambda scheduler, _: graph_snapshot(scheduler))

        return Auditor(
            lambda: read_api(self._client),
            lambda: read_store(instance.store),
            graph,
            Repairs(instance, self._backend),
            scheduler_names=self._options.settings.scheduler_names,
            interval_s=self._options.audit_every_s,
        )

    async def settle(self, instance: Instance) -> list[str]:  # noqa: ARG002
        return []

    def jobs_pruned(self, jobs: Sequence[int]) -> None:
        """Does nothing: no output of pods is kept here."""

    async def stop(self, *, keep_tasks: bool) -> None:  # noqa: ARG002
        await self._election.release()
        await self._client.close()
        await self._election.close()


class Repairs:
    """The repairs that the auditor can request."""

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
