"""A Lease in virtual time, with clients whose connections fail."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.kube.errors import AlreadyExists, ApiConflict, NotFound, OutcomeUnknown, Unreachable
from penstock.kube.lease import LeaderElector

REQUEST_S_MAX = 3.0


class _VirtualTimeSelector(selectors.SelectSelector):
    """No test waits for I/O: where the event loop would sleep, the clock advances instead."""

    now = 1_000.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "deadlock: all tasks wait for each other"
        self.now += timeout
        return super().select(0)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    selector = _VirtualTimeSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    try:
        loop.run_until_complete(scenario)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(1))
    finally:
        loop.close()


class FakeLease:
    """The one Lease, as the API server stores it."""

    timeout_s = 2.0

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.written: list[tuple[float, dict[str, Any]]] = []

    def write(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        self.written.append((asyncio.get_running_loop().time(), self.lease["spec"]))
        return copy.deepcopy(self.lease)

    @property
    def spec(self) -> dict[str, Any]:
        assert self.lease is not None
        return self.lease["spec"]


class FakeLeaseClient:
    """The client of one candidate.

    `fault` names the fault of each request. While `connected` is not set, requests and responses hang.
    """

    timeout_s = 2.0

    def __init__(self, server: FakeLease, fault: Callable[[], str] = lambda: "") -> None:
        self.server = server
        self.fault = fault
        self.connected = asyncio.Event()
        self.connected.set()

    async def get(self, _path: str, type: Any, **_: object) -> Any:  # noqa: A002
        async with self._round_trip(is_write=False):
            if self.server.lease is None:
                raise NotFound(404)
            return msgspec.convert(copy.deepcopy(self.server.lease), type)

    async def create(self, _path: str, body: dict[str, Any], type: Any, **_: object) -> Any:  # noqa: A002
        async with self._round_trip(is_write=True):
            if self.server.lease is not None:
                raise AlreadyExists(409)
            return msgspec.convert(self.server.write(body), type)

    async def replace(self, _path: str, body: dict[str, Any], type: Any, **_: object) -> Any:  # noqa: A002
        async with self._round_trip(is_write=True):
            if self.server.lease is None:
                raise NotFound(404)
            if body["metadata"]["resourceVersion"] != self.server.lease["metadata"]["resourceVersion"]:
                raise ApiConflict(409)
            return msgspec.convert(self.server.write(body), type)

    @contextlib.asynccontextmanager
    async def _round_trip(self, *, is_write: bool) -> Any:
        fault = self.fault()
        await asyncio.sleep(0.01)
        await self.connected.wait()
        if fault == "unreachable":
            raise Unreachable("no connection")
        if fault == "request lost":
            await asyncio.sleep(self.timeout_s)
            raise OutcomeUnknown("?") if is_write else Unreachable("?")
        if fault == "late":
            await asyncio.sleep(self.timeout_s * 0.9)
        yield
        if fault == "response lost":
            await asyncio.sleep(self.timeout_s)
            raise OutcomeUnknown("?") if is_write else Unreachable("?")
        await self.connected.wait()


def candidate(
    client: FakeLeaseClient,
    identity: str,
    *,
    offset_s: float = 0.0,
    rate: float = 1.0,
    jitter: float = 0.5,
    **settings: Any,
) -> LeaderElector:
    loop = asyncio.get_running_loop()

    def clock() -> float:
        return offset_s + loop.time() * rate

    options = {"request_s_max": REQUEST_S_MAX, **settings}
    return LeaderElector(
        client,  # type: ignore[arg-type]
        "ns",
        "penstock",
        identity,
        clock=clock,
        wall_clock=lambda: datetime.fromtimestamp(clock(), UTC),
        jitter=lambda: jitter,
        **options,
    )


@contextmanager
def task(coroutine: Coroutine[Any, Any, None]) -> Iterator[asyncio.Task[None]]:
    started = asyncio.ensure_future(coroutine)
    try:
        yield started
    finally:
        started.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()
