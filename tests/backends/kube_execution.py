"""Runs intents with a fake API server and context, without the pauses of retries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.backends.kube import action_queue, executor
from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.executor import IntentExecutor
from penstock.backends.kube.pod_conditions import ObjectEvent
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import Pod, UnstructuredObject
from penstock.protocol.facts import Fact, IntentResult, Outcome
from penstock.protocol.intents import Assignment, Intent, Place
from tests.backends.kube_client import FakeClient
from tests.backends.kube_objects import as_controller, node, pod

NOW = 2000.0
PLACE = Place(1, 77, "default/pod/uid-a", (Assignment("uid-a", 0, "n1"),))
BOUND = pod(node="n1", placed=True)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_BIND_PAUSES_S", (0.0, 0.0, 0.0))
    monkeypatch.setattr(executor, "_EVICT_PAUSE_S", 0.001)
    monkeypatch.setattr(executor, "_RETRY_S", 0.001)
    monkeypatch.setattr(action_queue, "_FAULT_PAUSE_S", 0.001)


class FakeContext:
    def __init__(
        self, *objects: Pod | UnstructuredObject, is_leader: Callable[[], bool] = lambda: True
    ) -> None:
        self.cache = ClusterCache(KubeSettings())
        self.cache.set_node(node("n1", cpu="2"))
        for one in objects:
            if isinstance(one, Pod):
                self.cache.set_pod(one)
            else:
                self.cache.set_controller(as_controller(one))
        self.cache.facts(NOW)
        self.is_leader = is_leader
        self.facts: list[Fact] = []
        self.bound: list[tuple[str, str]] = []
        self.events: list[ObjectEvent] = []

    def may_act(self) -> bool:
        return self.is_leader()

    def report(self, fact: Fact) -> None:
        self.facts.append(fact)

    def scheduled(self, found: Pod, on: str) -> None:
        self.bound.append((found.metadata.name, on))

    def add_event(self, event: ObjectEvent) -> None:
        self.events.append(event)


def execute(
    context: FakeContext,
    client: FakeClient,
    *intents: Intent,
    probe: str = "",
    want: int = 1,
    until: Callable[[], bool] = lambda: True,
    clock: Callable[[], float] = lambda: NOW,
) -> list[Fact]:
    """Runs until that many facts are reported and `until` holds."""

    async def scenario() -> None:
        queue = IntentExecutor(client, context, clock)  # type: ignore[arg-type]
        for intent in intents:
            queue.put(intent)
        if probe:
            queue.put_probe(probe)
        workers = [asyncio.create_task(queue.run_worker()) for _ in range(2)]
        try:
            async with asyncio.timeout(5):
                while len(context.facts) < want or not until():
                    for worker in workers:
                        if worker.done():
                            worker.result()
                    await asyncio.sleep(0.001)
            await asyncio.sleep(0.005)  # No further fact follows.
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
            queue.clear()

    asyncio.run(scenario())
    return context.facts


def outcomes(facts: list[Fact]) -> list[Outcome]:
    assert all(isinstance(fact, IntentResult) for fact in facts)
    return [fact.outcome for fact in facts if isinstance(fact, IntentResult)]
