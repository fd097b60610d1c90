"""How an instance comes into office in a cluster, and what it says when it cannot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.api.responses import InstanceSettings
from penstock.app import kube
from penstock.app.kube import KubeRuntime, WrongCluster
from penstock.app.kube_options import KubeOptions
from penstock.instance.loop import Instance
from penstock.sched.settings import Settings
from penstock.store.memory import MemoryStore, MemoryTables
from tests.app.kube_cluster import FakeCluster, kubeconfig
from tests.kube.raw_server import eventually, raw_server

SETTINGS = InstanceSettings(policy="easy", match_policy="first", queue_depth=None, forecast_depth=100)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "_LOOK_S", 0.01)
    monkeypatch.setattr(kube, "_STAND_BY_S", 0.01)


@dataclass
class Office:
    runtime: KubeRuntime
    instance: Instance
    running: asyncio.Task[None]


@asynccontextmanager
async def office(cluster: FakeCluster, tables: MemoryTables, directory: Path) -> AsyncIterator[Office]:
    """An instance in a cluster, with what others have recorded."""
    async with raw_server(cluster) as server:
        options = KubeOptions(kubeconfig(directory / "config", server.url))
        runtime = KubeRuntime(options, Settings(), "me")
        instance = Instance(Settings(), MemoryStore(tables), runtime.backend)
        running = asyncio.create_task(runtime.run(instance, instance.run))
        try:
            yield Office(runtime, instance, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await runtime.stop(keep_tasks=True)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_an_instance_that_may_not_list_something_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.forbidden.add("pods")
        async with office(cluster, MemoryTables(), tmp_path) as at:
            await eventually(lambda: "not allowed to list pods" in at.instance.not_ready.message)
            assert str(at.instance.not_ready).startswith("taking over: ")
            assert "not allowed to list pods" in at.runtime.problem()
            assert at.runtime.describe(SETTINGS).problem == at.runtime.problem()
            assert not at.instance.is_ready.is_set()

    run(scenario())


def test_an_instance_that_may_do_everything_has_no_problem(tmp_path: Path) -> None:
    """Kinds that are not served are none either."""

    async def scenario() -> None:
        async with office(FakeCluster(), MemoryTables(), tmp_path) as at:
            await asyncio.wait_for(at.instance.is_ready.wait(), 10)
            assert at.runtime.problem() == ""

    run(scenario())


# Which cluster


def test_what_is_recorded_about_one_cluster_is_not_taken_to_another(tmp_path: Path) -> None:
    """Nobody takes over, nothing is declared gone, and the lease is free at once."""

    async def scenario() -> None:
        tables, other = MemoryTables(), FakeCluster("cluster-2")
        async with office(FakeCluster("cluster-1"), tables, tmp_path) as at:
            await asyncio.wait_for(at.instance.is_ready.wait(), 10)
        epoch = tables.instance["epoch"]
        async with office(other, tables, tmp_path) as at:
            with pytest.raises(WrongCluster) as caught:
                await asyncio.wait_for(asyncio.shield(at.running), 10)
            assert other.holder == ""
        said = str(caught.value)
        assert "uid cluster-2, expected cluster-1" in said
        assert "another --state" in said
        assert tables.instance["epoch"] == epoch
        async with office(FakeCluster("cluster-1"), tables, tmp_path) as at:
            await asyncio.wait_for(at.instance.is_ready.wait(), 10)

    run(scenario())


def test_who_may_not_know_which_cluster_it_is_goes_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.forbidden.add("kube-system")
        async with office(cluster, MemoryTables(), tmp_path) as at:
            await asyncio.wait_for(at.instance.is_ready.wait(), 10)

    run(scenario())
    assert "is not checked: GET /api/v1/namespaces/kube-system: 403" in caplog.text
