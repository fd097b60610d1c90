"""Repairs that the auditor requests from an instance whose backend has missed an event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.app.kube import Repairs
from penstock.backends.kube import backend as backend_module
from penstock.backends.kube.backend import KubeBackend
from penstock.backends.kube.settings import KubeSettings
from penstock.instance.loop import Instance
from penstock.kube.watch import Upserted
from penstock.sched.settings import Settings
from penstock.store.memory import MemoryStore
from tests.backends.kube_client import FakeClient
from tests.backends.kube_objects import node, pod
from tests.backends.kube_server import Server


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.002)


def test_the_node_of_a_leaked_member_can_be_bound_to_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend has missed the deletion of a pod and counts its node as full."""
    server, client = Server(nodes=[node("n1", cpu="4")], pods=[pod("a", cpu="3")]), FakeClient()
    monkeypatch.setattr(backend_module, "reflect", server.reflect)
    backend = KubeBackend(client, KubeSettings(), identity="me")  # type: ignore[arg-type]
    instance = Instance(Settings(), MemoryStore(), backend)

    def bound() -> list[str]:
        return [what[1] for verb, what in client.requests if verb == "bind"]

    async def scenario() -> None:
        running = asyncio.create_task(instance.run())
        try:
            await until(lambda: bound() == ["uid-a"])
            server.receivers["pods"](Upserted(pod("a", cpu="3", node="n1", placed=True, phase="Running")))
            server.objects["pods"] = [pod("b", cpu="3")]
            server.receivers["pods"](Upserted(pod("b", cpu="3")))
            await until(lambda: backend.cache.pod("uid-b"))
            await Repairs(instance, backend).release(["uid-a"])
            await until(lambda: bound() == ["uid-a", "uid-b"])
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
