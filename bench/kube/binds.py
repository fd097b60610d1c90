"""The time at which each pod was bound, from a watch that is the same for every contender."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from penstock.kube.client import KubeClient
from penstock.kube.resources import PODS
from penstock.kube.types import KubeObject
from penstock.kube.watch import Relisted, Upserted, WatchEvent, WatchState, reflect

__all__ = ["Binds", "watched_binds"]


class Binds:
    """Monotonic binding times by pod name, in the order in which the watch reported them."""

    def __init__(self) -> None:
        self.at_s: dict[str, float] = {}
        self._wanted = 0
        self._reached = asyncio.Event()

    def handle(self, change: WatchEvent[KubeObject]) -> None:
        now_s = time.monotonic()
        match change:
            case Relisted(items):
                for item in items:
                    self.at_s.setdefault(item.metadata.name, now_s)
            case Upserted(item):
                self.at_s.setdefault(item.metadata.name, now_s)
        if len(self.at_s) >= self._wanted:
            self._reached.set()

    async def wait(self, count: int, limit_s: float) -> bool:
        """Waits until `count` pods are bound; False if that takes longer than `limit_s`."""
        self._wanted = count
        self._reached.clear()
        if len(self.at_s) < count:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._reached.wait(), limit_s)
        return len(self.at_s) >= count


@asynccontextmanager
async def watched_binds(client: KubeClient, namespace: str) -> AsyncIterator[Binds]:
    """Records all bindings, from the start of the block."""
    binds, state = Binds(), WatchState()
    watching = asyncio.create_task(
        reflect(
            client,
            PODS,
            KubeObject,
            binds.handle,
            namespace=namespace,
            field_selector="spec.nodeName!=",
            state=state,
        )
    )
    try:
        while not state.is_synced:
            if watching.done():
                watching.result()
            await asyncio.sleep(0.02)
        yield binds
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching
