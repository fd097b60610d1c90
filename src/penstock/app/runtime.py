"""What differs between an instance that runs processes and one that schedules pods.

A `Runtime` provides the backend and everything that depends on it: leader election, the status of agents, the
paths of output files, metrics and the shutdown. `LocalRuntime` runs processes through node agents;
`KubeRuntime` in `kube` schedules pods.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from msgspec import structs

from penstock.api.responses import AgentInfo, InstanceSettings
from penstock.app.identity import InstanceIdentity
from penstock.app.node_removal import NodeRemoval
from penstock.app.output_retention import OutputRetention
from penstock.backends.local.backend import LocalBackend
from penstock.backends.local.settings import LocalSettings
from penstock.instance.loop import Instance
from penstock.model.memory_size import MIB
from penstock.paths import InstancePaths
from penstock.protocol.backend import Backend
from penstock.sched.settings import Settings
from penstock.store.port import Retention

__all__ = ["LocalRuntime", "Runtime", "cores_here", "memory_here_mib"]

_ORPHANS_S: Final = 30.0  # how long the backend may take to end the tasks of a lost agent


class Runtime(Protocol):
    kind: str  # "local", "kubernetes"
    ends_tasks: bool  # whether running tasks end with the instance, unless the user keeps them

    @property
    def settings(self) -> Settings: ...

    @property
    def backend(self) -> Backend: ...

    def agents(self) -> list[AgentInfo]:
        """The agent processes of the local backend; none with Kubernetes."""

    def describe(self, settings: InstanceSettings) -> InstanceSettings:
        """The settings with those of the backend added."""

    def output_paths(self) -> Callable[[int, int, Mapping[str, object]], tuple[Path, Path]] | None:
        """A function that returns the output files of a task; None if output is not in files."""

    def input_paths(self) -> Callable[[int, Iterable[tuple[str, int]]], tuple[Path, list[Path]]] | None:
        """A function that returns the spool of a job's input and the position files of its members."""

    def metrics(self) -> bytes:
        """Metrics in the Prometheus text format."""

    def is_standby(self) -> bool:
        """Whether another instance is the leader, so that `penstock start` need not wait."""

    def problem(self) -> str:
        """What prevents this instance from becoming leader or from scheduling; empty if nothing does."""

    async def run(self, instance: Instance, run_term: Callable[[], Awaitable[None]]) -> None:
        """Runs `run_term` while this instance is the leader, until cancelled."""

    async def settle(self, instance: Instance) -> list[str]:
        """Called when the instance is ready; returns what whoever starts it should know."""

    def jobs_pruned(self, jobs: Sequence[int]) -> None:
        """These jobs have been deleted from the history."""

    async def stop(self, *, keep_tasks: bool) -> None:
        """Stops everything that the runtime has started."""


def cores_here() -> int:
    """The number of CPUs of this machine."""
    return os.cpu_count() or 1


def memory_here_mib() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // MIB


class LocalRuntime:
    kind = "local"
    ends_tasks = True

    def __init__(
        self, paths: InstancePaths, identity: InstanceIdentity, settings: Settings, retention: Retention
    ) -> None:
        self._identity = identity
        self._output = OutputRetention(paths.output, retention.output_age_s)
        self._backend = LocalBackend(
            paths,
            LocalSettings(
                nodes=identity.nodes,
                cores_per_node=identity.cores,
                gpus_per_node=identity.gpus,
                memory_per_node_bytes=identity.memory_mib * MIB,
                agent_return_timeout_s=settings.lost_timeout_s,
            ),
        )
        self._removal = NodeRemoval(self._backend)
        # The backend ends the tasks of a lost agent and reports them. The scheduler waits for that report
        # before it declares the node lost.
        self._settings = replace(settings, lost_timeout_s=settings.lost_timeout_s + _ORPHANS_S)

    @property
    def settings(self) -> Settings:
        return self._settings

    @property
    def backend(self) -> Backend:
        return self._backend

    def agents(self) -> list[AgentInfo]:
        return [
            AgentInfo(
                node=agent.node,
                rank=agent.rank,
                pid=agent.pid or None,
                state="up" if agent.state == "up" else "away",
                why="" if agent.state == "up" else agent.state,
                tasks=agent.tasks,
            )
            for agent in self._backend.status()
        ]

    def describe(self, settings: InstanceSettings) -> InstanceSettings:
        nodes, cores = self._identity.nodes, self._identity.cores
        is_oversubscribed = nodes * cores > cores_here()
        return structs.replace(settings, oversubscribed=is_oversubscribed, nodes=nodes, cores=cores)

    def output_paths(self) -> Callable[[int, int, Mapping[str, object]], tuple[Path, Path]] | None:
        return self._backend.output_paths

    def input_paths(self) -> Callable[[int, Iterable[tuple[str, int]]], tuple[Path, list[Path]]] | None:
        return self._backend.input_paths

    def metrics(self) -> bytes:
        return b""

    def is_standby(self) -> bool:
        return False

    def problem(self) -> str:
        return ""

    async def run(self, instance: Instance, run_term: Callable[[], Awaitable[None]]) -> None:
        beside = [
            asyncio.create_task(self._removal.run(instance)),
            asyncio.create_task(self._output.run(instance)),
        ]
        try:
            await run_term()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    async def settle(self, instance: Instance) -> list[str]:
        return await self._removal.settle(instance)

    def jobs_pruned(self, jobs: Sequence[int]) -> None:
        self._output.jobs_pruned(jobs)

    async def stop(self, *, keep_tasks: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            await self._backend.stop(keep_tasks=keep_tasks)
