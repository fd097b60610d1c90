"""Lists and watches without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from penstock.kube.resources import PODS, ApiResource
from penstock.kube.types import KubeObject
from penstock.kube.watch import Relisted

__all__ = ["Server"]


class Server:
    """Objects by resource, and a substitute for `reflect` that delivers them."""

    def __init__(self, **listed: list[KubeObject]) -> None:
        self.objects: dict[str, list[KubeObject]] = listed
        self.is_slow: set[str] = set()  # resources whose lists are delayed
        self.receivers: dict[str, Callable[[Any], None]] = {}
        self.lists = 0
        self.fault: asyncio.Future[None] | None = None

    async def reflect(
        self, _client: object, resource: ApiResource, _type: type, on: Callable[[Any], None], **_more: object
    ) -> None:
        while resource.plural in self.is_slow:
            await asyncio.sleep(0.001)
        is_native = resource.group_version.startswith("scheduling.k8s.io")
        self.lists += 1
        on(Relisted(() if is_native else tuple(self.objects.get(resource.plural, ()))))
        self.receivers[resource.plural] = on
        if self.fault is not None and resource is PODS:
            await self.fault
        await asyncio.Event().wait()
