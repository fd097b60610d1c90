"""Client, watch and election against a real API server: what the fakes beside this suppose, holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.settings import DevSettings
from penstock.kube.access import from_kubeconfig
from penstock.kube.client import KubeClient, ObjectReference, PatchType
from penstock.kube.errors import AlreadyExists, ApiConflict, ApiError, Invalid, NotFound, TooManyRequests
from penstock.kube.lease import LeaderElector, LeaseLost
from penstock.kube.resources import EVENTS, LEASES, NAMESPACES, NODES, PODGROUPS, PODS
from penstock.kube.types import KubeObject, Node, Pod
from penstock.kube.watch import Deleted, Relisted, Upserted, WatchBackoff, WatchEvent, WatchState, reflect
from tests.clusters import cluster_fixture
from tests.kube.raw_server import eventually, running

pytestmark = pytest.mark.slow

cluster = cluster_fixture(DevSettings(nodes=2, scheduler=False, audit_log=False))


def run(cluster: DevCluster, scenario: Callable[[KubeClient], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        async with KubeClient(from_kubeconfig(cluster.kubeconfig)) as client:
            await scenario(client)

    asyncio.run(whole())


def pod_body(name: str, *, scheduler: str = "nobody", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **metadata},
        "spec": {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "busybox", "resources": {"requests": {"cpu": "100m"}}}],
        },
    }


async def make_pod(client: KubeClient, name: str, **more: Any) -> Pod:
    return await client.create(PODS.path("default"), pod_body(name, **more), Pod)


async def make_namespace(client: KubeClient, name: str) -> None:
    await client.create(NAMESPACES.path(), {"metadata": {"name": name}})


async def node_names(client: KubeClient) -> list[str]:
    return [node.metadata.name for node in (await client.list(NODES.path(), Node)).items]


def test_version_and_discovery(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        assert (await client.get("/version", dict[str, str]))["gitVersion"].startswith("v")
        assert "pods/binding" in await client.discover("v1")
        assert "leases" in await client.discover("coordination.k8s.io/v1")
        assert await client.discover(PODGROUPS.group_version) == frozenset()

    run(cluster, scenario)


def test_a_pod_from_its_making_to_its_end(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        node = (await node_names(client))[0]
        pod = await make_pod(client, "life")
        assert pod.spec.scheduler_name == "nobody"
        with pytest.raises(AlreadyExists):
            await make_pod(client, "life")
        with pytest.raises(Invalid):
            await client.patch(PODS.path("default", "life"), {"spec": {"schedulerName": "me"}})
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "why"}
        waiting = await client.patch(
            PODS.path("default", "life", "status"),
            {"status": {"conditions": [condition]}},
            patch_type=PatchType.STRATEGIC,
            type=Pod,
            field_manager="penstock",
        )
        assert [found.message for found in waiting.status.conditions or ()] == ["why"]
        with pytest.raises(ApiConflict):
            await client.bind("default", "life", "another uid", node)
        await client.bind("default", "life", pod.metadata.uid, node, {"penstock/job": "7"})
        with pytest.raises(ApiConflict):
            await client.bind("default", "life", pod.metadata.uid, node)
        bound = await client.get(PODS.path("default", "life"), Pod)
        assert bound.spec.node_name == node
        assert (bound.metadata.annotations or {})["penstock/job"] == "7"
        with pytest.raises(NotFound):
            await client.bind("default", "no-such-pod", "", node)
        with pytest.raises(ApiConflict):
            await client.delete(PODS.path("default", "life"), uid="another uid")
        await client.delete(PODS.path("default", "life"), uid=pod.metadata.uid, grace_s=0)
        with pytest.raises(NotFound):
            await client.get(PODS.path("default", "life"), Pod)

    run(cluster, scenario)


def test_eviction_and_its_budget(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        node = (await node_names(client))[0]
        budget = {
            "metadata": {"name": "all"},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"kept": "yes"}}},
        }
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        await client.create(budgets, budget)
        kept = await make_pod(client, "kept", labels={"kept": "yes"})
        await client.bind("default", "kept", kept.metadata.uid, node)
        pod = await make_pod(client, "evicted")
        await client.evict("default", "evicted", pod.metadata.uid, 0)
        with pytest.raises(NotFound):
            await client.get(PODS.path("default", "evicted"), Pod)

        async def is_counted() -> bool:
            return (await client.get(f"{budgets}/all", dict))["status"].get("currentHealthy") == 1

        async with asyncio.timeout(30):
            while not await is_counted():
                await asyncio.sleep(0.1)
        with pytest.raises(TooManyRequests) as caught:
            await client.evict("default", "kept", kept.metadata.uid)
        assert caught.value.is_budget

    run(cluster, scenario)


def test_an_event_of_the_greatest_length(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        pod = await make_pod(client, "talked-about")
        about = ObjectReference("v1", "Pod", "talked-about", "default", pod.metadata.uid)
        for note in ("short", "🚰" * 1000):
            await client.post_event(about, reason="Queued", note=note, action="Scheduling", instance="a-1")
        found = await client.list(
            EVENTS.path("default"), dict, field_selector=f"regarding.uid={pod.metadata.uid},reason=Queued"
        )
        assert sorted(len(event["note"].encode()) for event in found.items) == [5, 1023]

    run(cluster, scenario)


def test_pages_and_versions(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        await make_namespace(client, "pages")
        for number in range(7):
            await client.create(PODS.path("pages"), pod_body(f"pod-{number}"))
        listed = await client.list(
            PODS.path("pages"), Pod, page=3, field_selector="spec.schedulerName=nobody"
        )
        assert [pod.metadata.name for pod in listed.items] == [f"pod-{number}" for number in range(7)]
        assert listed.consistent
        whole = await client.list(PODS.path("pages"), Pod, page=0)
        assert len(whole.items) == 7
        with pytest.raises(ApiError, match="field label not supported"):
            await client.list(PODS.path("pages"), Pod, field_selector="spec.color=red")

    run(cluster, scenario)


class RecordedObjects:
    def __init__(self) -> None:
        self.found: dict[str, KubeObject] = {}
        self.changes = 0
        self.state = WatchState()

    def on(self, change: WatchEvent[Any]) -> None:
        self.changes += 1
        match change:
            case Relisted(items):
                self.found = {item.metadata.name: item for item in items}
            case Upserted(item):
                self.found[item.metadata.name] = item
            case Deleted(item):
                del self.found[item.metadata.name]


def test_a_reflection_follows_through_a_restart_of_the_server(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        await make_namespace(client, "followed")
        node = (await node_names(client))[0]
        cache = RecordedObjects()
        work = reflect(
            client,
            PODS,
            Pod,
            cache.on,
            namespace="followed",
            pace=WatchBackoff(pause_s_max=1.0),
            state=cache.state,
        )
        async with running(work):
            await eventually(lambda: cache.state.is_synced)
            made = [await client.create(PODS.path("followed"), pod_body(f"p-{n}"), Pod) for n in range(20)]
            await asyncio.gather(
                *(client.bind("followed", pod.metadata.name, pod.metadata.uid, node) for pod in made)
            )
            await asyncio.gather(
                *(client.delete(PODS.path("followed", pod.metadata.name), grace_s=0) for pod in made[:5])
            )
            await eventually(lambda: set(cache.found) == {f"p-{number}" for number in range(5, 20)})
            assert cache.state.relists == 1
            await asyncio.to_thread(cluster.kill_part, "kube-apiserver")
            await eventually(lambda: cache.state.problem != "")
            await asyncio.to_thread(cluster.start_part, "kube-apiserver")
            await client.delete(PODS.path("followed", "p-7"), grace_s=0)
            await client.create(PODS.path("followed"), pod_body("after"))
            expected = {*(f"p-{number}" for number in range(5, 20)), "after"} - {"p-7"}
            await eventually(lambda: set(cache.found) == expected, limit_s=60)

        query = {"watch": "1", "resourceVersion": "1"}  # from before the restart, which nobody remembers
        async with client.stream(PODS.path("followed"), query, open_s=5.0) as content:
            line = await content.readline()
        assert line.startswith(b'{"type":"ERROR"')
        assert b'"code":410' in line
        listed = await client.list(PODS.path("followed"), Pod)
        assert set(cache.found) == {pod.metadata.name for pod in listed.items}

    run(cluster, scenario)


def test_a_definition_that_comes_and_goes(cluster: DevCluster) -> None:
    group, _ = PODGROUPS.group_version.split("/")
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    annotations = {"api-approved.kubernetes.io": "unapproved, for a test"}
    definition = {
        "metadata": {"name": f"podgroups.{group}", "annotations": annotations},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "podgroups", "kind": "PodGroup"},
            "versions": [
                {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
            ],
        },
    }

    async def scenario(client: KubeClient) -> None:
        cache = RecordedObjects()
        pace = WatchBackoff(first_s=0.05, pause_s_max=0.2, slow_s=0.2)
        async with running(reflect(client, PODGROUPS, KubeObject, cache.on, pace=pace, state=cache.state)):
            await eventually(lambda: cache.changes == 1)
            assert not cache.state.is_synced
            await client.create(path, definition)
            await eventually(lambda: cache.state.is_synced, limit_s=30)
            group_body = {
                "apiVersion": PODGROUPS.group_version,
                "kind": "PodGroup",
                "metadata": {"name": "gang"},
                "spec": {"minMember": 4},
            }
            await client.create(PODGROUPS.path("default"), group_body)
            await eventually(lambda: set(cache.found) == {"gang"})
            await client.delete(f"{path}/podgroups.{group}")
            await eventually(lambda: cache.found == {}, limit_s=30)
            await eventually(lambda: not cache.state.is_synced, limit_s=30)

    run(cluster, scenario)


def test_an_election(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        settings: dict[str, Any] = {
            "lease_duration_s": 3,
            "renew_interval_s": 0.3,
            "renew_deadline_s": 2.0,
            "request_s_max": 0.5,
        }
        one = LeaderElector(client, "default", "office", "one", **settings)
        two = LeaderElector(client, "default", "office", "two", **settings)
        await one.acquire()
        holding = asyncio.ensure_future(one.renew())
        taking = asyncio.ensure_future(two.acquire())
        await asyncio.sleep(2.0)
        assert one.is_leader(margin_s=1.0)
        assert not taking.done()
        term = (await client.get(LEASES.path("default", "office"), dict[str, Any]))["spec"]
        assert term["holderIdentity"] == "one"
        assert term["renewTime"] != term["acquireTime"]
        assert len(term["renewTime"].partition(".")[2]) == len("123456Z")
        holding.cancel()
        await one.release()
        await asyncio.wait_for(taking, 2.0)
        term = (await client.get(LEASES.path("default", "office"), dict[str, Any]))["spec"]
        assert (term["holderIdentity"], term["leaseTransitions"]) == ("two", 1)
        await client.delete(LEASES.path("default", "office"))
        with pytest.raises(LeaseLost):
            await two.renew()

    run(cluster, scenario)
