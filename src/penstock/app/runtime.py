"""Where an instance lives: what differs between a world of processes and one of pods.

A habitat brings the driver and all that belongs to it: who may be in office, what is shown of the nodes,
where output is, what is left to be taken down. `LocalRuntime` is the one of processes; that of pods is in
`kube`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from msgspec import structs

from penstock.api.responses import AgentInfo, InstanceSettings
from penstock.app.identity import InstanceIdentity
from penstock.backends.local.backend import LocalBackend
from penstock.backends.local.settings import LocalSettings
from penstock.instance.loop import Instance
from penstock.paths import InstancePaths
from penstock.protocol.backend import Backend
from penstock.sched.settings import Settings

__all__ = ["LocalRuntime", "Runtime", "cores_here"]

_SALVAGE_S: Final = 30.0


class Runtime(Protocol):
    kind: str  # "local", "kubernetes"
    ends_tasks: bool  # whether what runs ends with the instance, unless told otherwise

    @property
    def settings(self) -> Settings: ...

    @property
    def backend(self) -> Backend: ...

    def agents(self) -> list[AgentInfo]:
        """The agent processes of the local backend; none with Kubernetes."""

    def describe(self, settings: InstanceSettings) -> InstanceSettings:
        """The settings with those of the backend added."""

    def output_paths(self) -> Callable[[int, int, Mapping[str, object]], tuple[Path, Path]] | None:
        """Where a task's output is, if that is a file of ours."""

    def metrics(self) -> bytes:
        """In the text format of Prometheus."""

    def is_standing_by(self) -> bool:
        """Whether another instance is in office, so that there is nothing to wait for."""

    def problem(self) -> str:
        """What keeps us from coming into office, if anything."""

    async def run(self, instance: Instance, live: Callable[[], Awaitable[None]]) -> None:
        """Runs `live` whenever we may be in office, until it is cancelled."""

    async def stop(self, *, keep_tasks: bool) -> None:
        """Takes down what was started."""


def cores_here() -> int:
    return os.cpu_count() or 1


class LocalRuntime:
    kind = "local"
    ends_tasks = True

    def __init__(self, paths: InstancePaths, identity: InstanceIdentity, settings: Settings) -> None:
        self._identity = identity
        self._backend = LocalBackend(
            paths,
            LocalSettings(
                nodes=identity.nodes,
                cores_per_node=identity.cores,
                gpus_per_node=identity.gpus,
                agent_return_timeout_s=settings.lost_timeout_s,
            ),
        )
        # The driver ends what a silent agent has left behind, and tells: the scheduler waits for that first.
        self._settings = replace(settings, lost_timeout_s=settings.lost_timeout_s + _SALVAGE_S)

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

    def metrics(self) -> bytes:
        return b""

    def is_standing_by(self) -> bool:
        return False

    def problem(self) -> str:
        return ""

    async def run(self, instance: Instance, live: Callable[[], Awaitable[None]]) -> None:  # noqa: ARG002
        await live()

    async def stop(self, *, keep_tasks: bool) -> None:
        with contextlib.suppress(ProcessLookupError):
            await self._backend.stop(keep_tasks=keep_tasks)
