"""Leader election in a thread of its own, with an event loop and a client of its own.

The event loop of an instance can be held for longer than a Lease lasts, by whatever is handled in one piece.
That must not cost the Lease, so nothing of the instance runs here. That the instance is not stuck is the
elector's to check before each renewal (`progress_age_s`).

One call runs at a time. A cancelled call has ended in the thread before it ends here, so that a Lease is
released with no renewal in flight.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

from penstock.kube.client import KubeClient
from penstock.kube.lease import LeaderElector

__all__ = ["ElectionThread"]


class ElectionThread:
    def __init__(self, elector: LeaderElector, client: KubeClient) -> None:
        """The elector's client must be used by nobody else: it belongs to the loop of the thread."""
        self._elector = elector
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._call: asyncio.Task[None] | None = None  # only the thread uses it

    # What other threads may read

    @property
    def holder(self) -> str:
        return self._elector.holder

    @property
    def problem(self) -> str:
        return self._elector.problem

    def is_leader(self, margin_s: float = 0.0) -> bool:
        return self._elector.is_leader(margin_s)

    # Calls

    async def acquire(self) -> None:
        await self._run(self._elector.acquire())

    async def renew(self) -> None:
        await self._run(self._elector.renew())

    async def release(self) -> None:
        await self._run(self._elector.release())

    async def close(self) -> None:
        """Ends the thread. It starts again with the next call."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None:
            return
        await self._run(self._client.close())
        self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()

    async def _run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        loop = self._started_loop()
        called = asyncio.run_coroutine_threadsafe(self._as_call(coroutine), loop)
        try:
            await asyncio.shield(asyncio.wrap_future(called))
        except asyncio.CancelledError:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end_call(), loop))
            raise

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="lease", daemon=True)
            self._thread.start()
        return self._loop

    async def _as_call(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self._call = asyncio.current_task()
        try:
            await coroutine
        finally:
            self._call = None

    async def _end_call(self) -> None:
        call = self._call
        if call is not None:
            call.cancel()
            await asyncio.wait({call})
