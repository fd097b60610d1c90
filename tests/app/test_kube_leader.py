"""An instance becomes the leader of a cluster, or reports what prevents it."""

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
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.app.kube_cluster import FakeCluster, kubeconfig
from tests.kube.raw_server import eventually, raw_server

SETTINGS = InstanceSettings(policy="easy", match_policy="first", queue_depth=None, forecast_depth=100)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kube, "_POLL_S", 0.01)
    monkeypatch.setattr(kube, "_RETRY_S", 0.01)


@dataclass
class RunningInstance:
    runtime: KubeRuntime
    instance: Instance
    running: asyncio.Task[None]


@asynccontextmanager
async def running_instance(
    cluster: FakeCluster, tables: MemoryTables, directory: Path
) -> AsyncIterator[RunningInstance]:
    """An instance on a cluster, with the records of earlier instances."""
    async with raw_server(cluster) as server:
        options = KubeOptions(kubeconfig(directory / "config", server.url))
        runtime = KubeRuntime(options, Settings(), "me")
        instance = Instance(Settings(), MemoryStore(tables), runtime.backend)
        running = asyncio.create_task(runtime.run(instance, instance.run))
        try:
            yield RunningInstance(runtime, instance, running)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await runtime.stop(keep_tasks=True)


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


def test_a_missing_permission_to_list_is_reported(tmp_path: Path) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.forbidden.add("pods")
        async with running_instance(cluster, MemoryTables(), tmp_path) as at:
            await eventually(lambda: "not allowed to list pods" in at.instance.readiness.current.message)
            assert str(at.instance.readiness.current).startswith("taking over: ")
            assert "not allowed to list pods" in at.runtime.problem()
            assert at.runtime.describe(SETTINGS).problem == at.runtime.problem()
            assert not at.instance.readiness.current.is_ready

    run(scenario())


def test_an_instance_with_all_permissions_has_no_problem(tmp_path: Path) -> None:
    """Resources that the API server does not serve are no problem either."""

    async def scenario() -> None:
        async with running_instance(FakeCluster(), MemoryTables(), tmp_path) as at:
            await asyncio.wait_for(at.instance.readiness.until_ready(), 10)
            assert at.runtime.problem() == ""

    run(scenario())


def test_a_leader_whose_loop_is_stuck_gives_up_the_lease(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The thread that renews the Lease sees the age of the mark that the loop sets."""

    async def scenario() -> None:
        async with raw_server(FakeCluster()) as server:
            options = KubeOptions(kubeconfig(tmp_path / "config", server.url), progress_timeout_s=0.5)
            runtime = KubeRuntime(options, Settings(), "me")
            instance = Instance(Settings(), MemoryStore(MemoryTables()), runtime.backend)
            running = asyncio.create_task(runtime.run(instance, asyncio.Event().wait))
            try:
                await eventually(lambda: "no longer the leader" in caplog.text, limit_s=20)
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await runtime.stop(keep_tasks=True)

    run(scenario())
    assert "no longer the leader: the instance is stuck: its loop has made no progress" in caplog.text


# Identity of the cluster


def test_records_of_one_cluster_are_not_used_with_another(tmp_path: Path) -> None:
    """The instance does not take over, deletes no record, and releases the Lease at once."""

    async def scenario() -> None:
        tables, other = MemoryTables(), FakeCluster("cluster-2")
        async with running_instance(FakeCluster("cluster-1"), tables, tmp_path) as at:
            await asyncio.wait_for(at.instance.readiness.until_ready(), 10)
        epoch = tables.instance["epoch"]
        async with running_instance(other, tables, tmp_path) as at:
            with pytest.raises(WrongCluster) as caught:
                await asyncio.wait_for(asyncio.shield(at.running), 10)
            assert other.holder == ""
        message = str(caught.value)
        assert "uid cluster-2, expected cluster-1" in message
        assert "another --state" in message
        assert tables.instance["epoch"] == epoch
        async with running_instance(FakeCluster("cluster-1"), tables, tmp_path) as at:
            await asyncio.wait_for(at.instance.readiness.until_ready(), 10)

    run(scenario())


def test_without_permission_to_verify_the_cluster_the_instance_runs_and_logs_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        cluster = FakeCluster()
        cluster.forbidden.add("kube-system")
        async with running_instance(cluster, MemoryTables(), tmp_path) as at:
            await asyncio.wait_for(at.instance.readiness.until_ready(), 10)

    run(scenario())
    assert "is not verified: GET /api/v1/namespaces/kube-system: 403" in caplog.text
