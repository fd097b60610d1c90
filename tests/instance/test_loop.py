"""The loop of an instance, with a real event loop around it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest

from penstock.backends.sim.backend import uniform_nodes
from penstock.backends.sim.mock import MockBackend
from penstock.errors import Defect, Unavailable
from penstock.instance import loop as loop_module
from penstock.instance.cadence import Cadence, CadenceSettings
from penstock.instance.loop import Instance
from penstock.protocol.backend import Sink
from penstock.protocol.commands import Command, Drain, Submit
from penstock.protocol.facts import Capacity, ExternalUsageSet, Snapshot
from penstock.protocol.intents import Intent, StatusUpdate
from penstock.sched import commands
from penstock.sched.records import Change
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import Settings
from penstock.sched.state import SchedulerState
from penstock.store.memory import MemoryStore
from penstock.store.port import Fenced
from tests.sched.driving import submission


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

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        pass


def test_other_tasks_run_while_a_large_snapshot_is_handled() -> None:
    """Among them is the renewal of the Lease."""

    async def scenario() -> int:
        backend = Large()
        instance = Instance(Settings(), MemoryStore(), backend)
        running = asyncio.create_task(instance.run())
        await backend.has_reported.wait()
        pauses = 0
        while not instance.readiness.current.is_ready:
            await asyncio.sleep(0.001)
            pauses += 1
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return pauses

    assert asyncio.run(scenario()) > 10


class FailingStore(MemoryStore):
    """A store whose next commit can be made to fail."""

    failure: Exception | None = None

    async def record(self, epoch: int, changes: Sequence[Change]) -> None:
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        await super().record(epoch, changes)


class EndingBackend(MockBackend):
    """A backend that can end by itself."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.may_end = asyncio.Event()

    async def run(self, epoch: int, sink: Sink) -> None:
        running = asyncio.create_task(super().run(epoch, sink))
        await self.may_end.wait()
        self.may_end.clear()
        running.cancel()


@asynccontextmanager
async def running_instance(
    store: MemoryStore, backend: MockBackend | None = None
) -> AsyncIterator[tuple[Instance, asyncio.Task[None]]]:
    instance = Instance(Settings(), store, backend or MockBackend(2, 2))
    running = asyncio.create_task(instance.run())
    try:
        await asyncio.wait_for(instance.readiness.until_ready(), 10)
        yield instance, running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def ended_term(instance: Instance, epoch: int) -> None:
    """Waits until the instance is ready in a later term."""
    async with asyncio.timeout(10):
        while instance.epoch == epoch or not instance.readiness.current.is_ready:
            await asyncio.sleep(0.001)


def in_store(failure: Exception) -> Callable[[Instance], Awaitable[None]]:
    async def fail(instance: Instance) -> None:
        assert isinstance(instance.store, FailingStore)
        instance.store.failure = failure
        with pytest.raises(Unavailable, match=str(failure)):
            await instance.execute(Submit((submission(),)))

    return fail


async def by_reload(instance: Instance) -> None:
    instance.reload("an audit has failed")


async def in_backend(instance: Instance) -> None:
    assert isinstance(instance.backend, EndingBackend)
    instance.backend.may_end.set()


@pytest.mark.parametrize(
    "fail",
    [in_store(Unavailable("the database is away")), by_reload, in_backend],
    ids=["store", "reload", "backend"],
)
def test_a_term_that_ends_is_followed_by_another_one(fail: Callable[[Instance], Awaitable[None]]) -> None:
    async def scenario() -> None:
        async with running_instance(FailingStore(), EndingBackend()) as (instance, running):
            epoch = instance.epoch
            await fail(instance)
            await ended_term(instance, epoch)
            assert instance.epoch == epoch + 1
            assert await instance.execute(Submit((submission(),)))
            assert not running.done()

    asyncio.run(scenario())


def test_another_instance_that_takes_over_ends_the_loop_at_the_next_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_module, "Cadence", lambda: Cadence(CadenceSettings(heartbeat_every_s=0.01)))

    async def scenario() -> None:
        store = MemoryStore()
        async with running_instance(store) as (instance, running):
            await store.take_over(0.0)
            with pytest.raises(Fenced):
                await asyncio.wait_for(asyncio.shield(running), 10)
            assert not instance.readiness.current.is_ready
            with pytest.raises(Unavailable, match="the instance is not ready: the instance is stopping"):
                await instance.query(lambda scheduler, _now: scheduler)

    asyncio.run(scenario())


def test_callers_that_wait_when_the_loop_is_stopped_get_unavailable() -> None:
    async def scenario() -> None:
        async with running_instance(MemoryStore()) as (instance, running):
            waiting = asyncio.create_task(instance.execute(Submit((submission(),))))
            await asyncio.sleep(0)
            running.cancel()
            with pytest.raises(Unavailable):
                await asyncio.wait_for(waiting, 10)

    asyncio.run(scenario())


# Unexpected exceptions


def test_commands_that_wait_are_executed_after_a_command_of_their_batch_has_failed() -> None:
    apply = commands.apply_command

    def failing(state: SchedulerState, command: Command, now: float) -> object:
        if isinstance(command, Drain):
            raise ZeroDivisionError("unexpected")
        return apply(state, command, now)

    async def scenario() -> None:
        async with running_instance(MemoryStore()) as (instance, running):
            epoch = instance.epoch
            with patch("penstock.sched.scheduler.apply_command", failing):
                submits = [asyncio.create_task(instance.execute(Submit((submission(),)))) for _ in range(3)]
                drain = asyncio.create_task(instance.execute(Drain(("node0",), "x")))
                later = asyncio.create_task(instance.execute(Submit((submission(),))))
                query = asyncio.create_task(instance.query(lambda scheduler, _now: len(scheduler.jobs)))
                with pytest.raises(Defect, match="internal error while a command was handled: Zero"):
                    await drain
                found = await asyncio.gather(*submits, later)
                assert len(set(found)) == 4
                assert await query == 4
            await ended_term(instance, epoch)
            assert instance.epoch == epoch + 1
            assert not running.done()
            assert b'penstock_quarantined_total{kind="command"} 1.0' in instance.metrics()

    asyncio.run(scenario())


def test_an_exception_without_a_culprit_ends_the_term_and_not_the_instance() -> None:
    async def scenario() -> None:
        backend = EndingBackend()
        async with running_instance(MemoryStore(), backend) as (instance, running):
            epoch = instance.epoch
            with patch.object(Scheduler, "_settle", side_effect=ZeroDivisionError("unexpected")):
                with pytest.raises(Unavailable, match="internal error: ZeroDivisionError: unexpected"):
                    await instance.execute(Submit((submission(),)))
                async with asyncio.timeout(10):
                    while instance.readiness.current.is_ready:
                        await asyncio.sleep(0.001)
                assert "ZeroDivisionError" in str(instance.readiness.current)
            await ended_term(instance, epoch)
            assert await instance.execute(Submit((submission(),)))
            assert not running.done()

    asyncio.run(scenario())


def test_an_unexpected_exception_of_the_backend_ends_the_term_and_not_the_instance() -> None:
    class Raising(EndingBackend):
        async def run(self, epoch: int, sink: Sink) -> None:
            await super().run(epoch, sink)
            raise ZeroDivisionError("unexpected")

    async def scenario() -> None:
        backend = Raising()
        async with running_instance(MemoryStore(), backend) as (instance, running):
            epoch = instance.epoch
            backend.may_end.set()
            await ended_term(instance, epoch)
            assert not running.done()

    asyncio.run(scenario())
