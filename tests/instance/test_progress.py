"""The mark by which another thread sees that the loop of an instance moves."""

from __future__ import annotations

import asyncio

from penstock.backends.sim.mock import MockBackend
from penstock.instance.loop import Instance
from penstock.instance.progress import LoopProgress
from penstock.sched.settings import Settings
from penstock.store.memory import MemoryStore


class AwayStore(MemoryStore):
    """A store that does not answer for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()

    async def open(self) -> None:
        await self.answers.wait()
        await super().open()


def test_the_age_is_the_time_since_the_last_mark() -> None:
    now = 100.0
    progress = LoopProgress(lambda: now)
    now = 130.0
    assert progress.age_s() == 30.0
    progress.mark()
    assert progress.age_s() == 0.0


def test_a_loop_that_waits_for_inputs_or_for_the_store_makes_progress() -> None:
    async def scenario() -> None:
        store = AwayStore()
        instance = Instance(Settings(), store, MockBackend(1, 1))
        running = asyncio.create_task(instance.run())
        try:
            await asyncio.sleep(1.5)
            assert instance.progress.age_s() < 1.2, "the store is away"
            store.answers.set()
            await asyncio.wait_for(instance.readiness.until_ready(), 10)
            await asyncio.sleep(3.0)
            assert instance.progress.age_s() < 2.9, "the heartbeat goes on"
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
