"""The loop of an instance, with a real event loop around it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.backends.sim.backend import uniform_nodes
from penstock.instance.loop import Instance
from penstock.protocol.backend import Sink
from penstock.protocol.facts import Capacity, ExternalUsageSet, Snapshot
from penstock.protocol.intents import Intent, StatusUpdate
from penstock.sched.settings import Settings
from penstock.store.memory import MemoryStore


class Large:
    """A backend whose first snapshot takes a while to handle."""

    def __init__(self) -> None:
        self.has_reported = asyncio.Event()

    async def run(self, epoch: int, sink: Sink) -> None:
        del epoch
        nodes = uniform_nodes(400, [Capacity("cpu", 64_000, divisible=True)])
        holds = (
            ExternalUsageSet(f"{node.node}-{n}", node.node, (("cpu", 1),))
            for node in nodes
            for n in range(10)
        )
        sink(Snapshot(nodes, tuple(holds)))
        self.has_reported.set()
        await asyncio.Event().wait()

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        raise AssertionError((epoch, intents))

    async def probe(self, members: Sequence[str]) -> None:
        raise AssertionError(members)

    def forget(self, members: Sequence[str]) -> None:
        pass

    def tell(self, status_updates: Sequence[StatusUpdate]) -> None:
        pass


def test_other_tasks_run_while_a_large_snapshot_is_handled() -> None:
    """Among them is the renewal of the Lease."""

    async def scenario() -> int:
        backend = Large()
        instance = Instance(Settings(), MemoryStore(), backend)
        running = asyncio.create_task(instance.run())
        await backend.has_reported.wait()
        pauses = 0
        while not instance.is_ready.is_set():
            await asyncio.sleep(0.001)
            pauses += 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return pauses

    assert asyncio.run(scenario()) > 10
