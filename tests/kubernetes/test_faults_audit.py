"""The auditor repairs differences: each test corrupts the cluster, the store or the graph in one way.

The difference must be detected, repaired and counted; afterwards all three agree and no resource is in use
twice.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from penstock.app.kube import KubeRuntime
from penstock.app.kube_options import KubeOptions
from penstock.backends.kube.backend import KubeBackend
from penstock.backends.kube.settings import KubeSettings
from penstock.devcluster.settings import DevSettings
from penstock.instance.loop import Instance
from penstock.kube.access import find_access
from penstock.kube.client import KubeClient
from penstock.paths import paths_of
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import Settings
from penstock.store.embedded import EmbeddedPostgres
from penstock.store.memory import MemoryStore
from tests.kubernetes.faults import (
    UNLIMITED,
    api_of,
    bare_gang,
    clean_namespace,
    create,
    delete_lease,
    foreign_pod,
    new_namespace,
    phases,
    pods,
    restart,
    wait_phases,
)
from tests.kubernetes.site import Replica, Site, simulated_site, wait_for
from tests.sched.internals import corruptible_state, engine_of

pytestmark = pytest.mark.slow

_REPAIRS = re.compile(r'^penstock_audit_repairs_total\{repair="([^"]+)"\} (\S+)', re.M)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with simulated_site(DevSettings(nodes=3, cpu=4, scheduler=False), audit_every="500ms") as made:
        yield made


@pytest.fixture(scope="module")
def started(site: Site) -> Replica:
    return site.replica("penstock").start()


@pytest.fixture
def replica(started: Replica) -> Replica:
    """A Penstock that has not repaired anything yet, because the auditor limits how often it reloads."""
    if started.is_alive():
        started.kill()
    return restart(started).wait_ready()


def repairs(metrics: str) -> dict[str, float]:
    return {repair: float(count) for repair, count in _REPAIRS.findall(metrics) if float(count)}


def execute(replica: Replica, statement: str) -> None:
    embedded = EmbeddedPostgres(paths_of(str(replica.state), os.environ))
    with psycopg.connect(embedded.start(), autocommit=True) as connection:
        assert connection.execute(statement.encode()).rowcount == 1


# The store

_FIRST = "WHERE number = 0 AND job IN (SELECT id FROM jobs WHERE state = 'RUN')"
CORRUPTIONS = {
    "a member is gone": f"DELETE FROM members {_FIRST}",
    "a member is elsewhere": f"UPDATE members SET node = 'node-9' {_FIRST}",
    "a member has ended": f"UPDATE members SET phase = 'ended' {_FIRST}",
}


@pytest.mark.parametrize("corruption", CORRUPTIONS)
def test_the_store_disagrees_with_the_graph(site: Site, replica: Replica, corruption: str) -> None:
    with clean_namespace(site, replica) as namespace:
        create(site, namespace, *bare_gang("gang", run=UNLIMITED))
        wait_phases(site, namespace, Running=3)
        execute(replica, CORRUPTIONS[corruption])
        wait_for(lambda: "member_disagreed" in replica.differences(), "the auditor to detect it")
        wait_for(lambda: repairs(replica.metrics()).get("restart") == 1, "the state to be reloaded")
        check_no_double_allocation(site, replica, namespace)


def check_no_double_allocation(site: Site, replica: Replica, namespace: str) -> None:
    """The running pod is counted, as a member or as external usage; when it ends, everything is free."""
    site.wait_consistent(replica)
    create(site, namespace, *bare_gang("waits", run="100ms"))
    wait_for(lambda: len(replica.jobs("pending")) == 1, "a gang to wait")
    site.wait_consistent(replica)
    assert phases(site, namespace, "waits") == {"Pending": 3}
    path = f"/api/v1/namespaces/{namespace}/pods"
    for pod in pods(site, namespace, "gang"):
        api_of(site).delete(f"{path}/{pod['metadata']['name']}", {"gracePeriodSeconds": 0})
    wait_phases(site, namespace, "waits", Succeeded=3)
    site.wait_consistent(replica)


def test_the_recorded_allocation_of_a_job_is_missing(site: Site, replica: Replica) -> None:
    """After the restart the graph has no allocation for the running pods: they count as external usage."""
    with clean_namespace(site, replica) as namespace:
        create(site, namespace, *bare_gang("gang", run=UNLIMITED))
        wait_phases(site, namespace, Running=3)
        site.wait_consistent(replica)
        replica.kill()
        execute(replica, "DELETE FROM allocations")
        restart(replica).wait_ready()
        check_no_double_allocation(site, replica, namespace)


# The cluster


def test_a_pod_loses_its_job_annotation(site: Site, replica: Replica) -> None:
    """The watch reports the change and the scheduler handles it: the auditor has nothing to repair."""
    with clean_namespace(site, replica) as namespace:
        create(site, namespace, *bare_gang("gang", run=UNLIMITED))
        wait_phases(site, namespace, Running=3)
        site.wait_consistent(replica)
        body = {"metadata": {"annotations": {"penstock.dev/job": None}}}
        path = f"/api/v1/namespaces/{namespace}/pods/gang-0"
        api_of(site).request("PATCH", path, body, "application/merge-patch+json")
        check_no_double_allocation(site, replica, namespace)
        assert repairs(replica.metrics()) == {}


def test_pods_are_force_deleted_while_penstock_is_suspended(site: Site, replica: Replica) -> None:
    assert replica.process is not None
    with clean_namespace(site, replica) as namespace:
        create(site, namespace, *bare_gang("gang", run=UNLIMITED))
        wait_phases(site, namespace, Running=3)
        replica.process.send_signal(signal.SIGSTOP)
        site.kubectl("delete", "pods", "--all", "-n", namespace, "--force", "--grace-period=0")
        create(site, namespace, *bare_gang("next", run="100ms"))
        replica.process.send_signal(signal.SIGCONT)
        wait_phases(site, namespace, "next", Succeeded=3)
        site.wait_consistent(replica)


def test_a_node_is_recreated_with_the_same_name(site: Site, replica: Replica) -> None:
    """The cluster has not noticed, so its pods still exist: they count, as members or as external usage."""
    with clean_namespace(site, replica) as namespace:
        create(site, namespace, *bare_gang("gang", run=UNLIMITED))
        wait_phases(site, namespace, Running=3)
        node = api_of(site).get("/api/v1/nodes/node-0")
        api_of(site).delete("/api/v1/nodes/node-0")
        time.sleep(0.5)
        kept = {
            key: node["metadata"][key] for key in ("name", "labels", "annotations") if key in node["metadata"]
        }
        api_of(site).post("/api/v1/nodes", {"metadata": kept, "status": node["status"]})
        check_no_double_allocation(site, replica, namespace)


# The graph in memory


async def run_inside(
    site: Site, corruption: Callable[[Scheduler], object], prepare: list[dict[str, Any]], kind: str
) -> str:
    """Runs an instance in this process, corrupts it, and returns its metrics after the repair."""
    delete_lease(site)
    options = KubeOptions(site.penstock_kubeconfig, audit_every_s=0.3)
    settings = Settings(gang_repair_timeout_s=20.0)
    runtime = KubeRuntime(options, settings, "inside")
    instance = Instance(settings, MemoryStore(), runtime.backend)
    running = asyncio.create_task(runtime.run(instance, instance.run))
    with new_namespace(site) as namespace:
        try:
            await asyncio.wait_for(instance.readiness.until_ready(), 30)
            await asyncio.to_thread(create, site, namespace, *prepare)
            await asyncio.to_thread(wait_phases, site, namespace, Running=len(prepare))
            await until(lambda: _rounds(runtime) > 1)
            await instance.query(lambda scheduler, _: corruption(scheduler))
            await until(lambda: f'differences{{kind="{kind}"}} 1.0' in runtime.metrics().decode())
            await until(lambda: not re.search(r"audit_differences\{.*\} [1-9]", runtime.metrics().decode()))
            return runtime.metrics().decode()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await runtime.stop(keep_tasks=True)


def _rounds(runtime: KubeRuntime) -> float:
    found = re.search(r"^penstock_audit_rounds_total (\S+)", runtime.metrics().decode(), re.M)
    return float(found[1]) if found else 0.0


async def until(holds: Callable[[], bool], limit_s: float = 40.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.05)


def first_hold(scheduler: Scheduler) -> str:
    return next(iter(scheduler.external_usage()))


def first_job(scheduler: Scheduler) -> int:
    return next(iter(scheduler.jobs))


@pytest.mark.parametrize(
    ("kind", "repair", "corruption", "is_foreign"),
    [
        (
            "external_usage_missing",
            "snapshot",
            lambda it: corruptible_state(it).cluster.remove_external_usage(first_hold(it)),
            True,
        ),
        (
            "external_booking_differs",
            "restart",
            lambda it: engine_of(it).external_usage.remove(first_hold(it)),
            True,
        ),
        ("node_missing", "snapshot", lambda it: corruptible_state(it).cluster.remove_node("node-1"), True),
        (
            "member_disagreed",
            "restart",
            lambda it: corruptible_state(it).cluster.engine.release(first_job(it)),
            False,
        ),
    ],
)
def test_the_graph_is_corrupted(
    site: Site,
    started: Replica,
    kind: str,
    repair: str,
    corruption: Callable[[Scheduler], object],
    is_foreign: bool,
) -> None:
    if started.is_alive():
        started.kill()
    one = (
        [foreign_pod("foreign", node="node-2", cpu="1")] if is_foreign else bare_gang("one", 1, run=UNLIMITED)
    )
    metrics = asyncio.run(run_inside(site, corruption, one, kind))
    assert repairs(metrics).get(repair) == 1, repairs(metrics)


# The clock


def test_the_clock_jumps(site: Site, started: Replica) -> None:
    """The clock jumps two hours ahead, four hours back and to the right time; gangs run normally."""
    if started.is_alive():
        started.kill()
    asyncio.run(_jump(site))


async def _jump(site: Site) -> None:
    skew_s = 0.0

    def clock() -> float:
        return time.time() + skew_s

    async with KubeClient(find_access(site.penstock_kubeconfig, "")) as client:
        backend = KubeBackend(client, KubeSettings(), identity="inside", clock=clock)
        instance = Instance(Settings(), MemoryStore(), backend, clock=clock)
        running = asyncio.create_task(instance.run())
        with new_namespace(site) as namespace:
            try:
                await asyncio.wait_for(instance.readiness.until_ready(), 30)
                for number, skew_s in enumerate((0.0, 7200.0, -7200.0, 0.0)):  # noqa: B007
                    for half in ("a", "b"):  # The second gang waits for the first.
                        gang = bare_gang(f"{half}{number}", run="500ms", limit="1h")
                        await asyncio.to_thread(create, site, namespace, *gang)
                    for half in ("a", "b"):
                        await asyncio.to_thread(wait_phases, site, namespace, f"{half}{number}", Succeeded=3)
                assert not running.done()
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
