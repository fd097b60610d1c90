"""Client, watch and leader election against a real API server: checks what the fakes assume."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.settings import DevSettings
from penstock.kube.access import from_kubeconfig
from penstock.kube.client import KubeClient, ObjectReference, PatchType
from penstock.kube.election_thread import ElectionThread
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
    async def with_client() -> None:
        async with KubeClient(from_kubeconfig(cluster.kubeconfig)) as client:
            await scenario(client)

    asyncio.run(with_client())


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


def test_the_version_of_the_server(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        assert (await client.get("/version", dict[str, str]))["gitVersion"].startswith("v")

    run(cluster, scenario)


def test_a_pod_from_creation_to_deletion(cluster: DevCluster) -> None:
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


def test_an_eviction_respects_the_disruption_budget(cluster: DevCluster) -> None:
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
        assert caught.value.is_disruption_budget

    run(cluster, scenario)


def test_an_event_of_maximum_length(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        pod = await make_pod(client, "talked-about")
        regarding = ObjectReference("v1", "Pod", "talked-about", "default", pod.metadata.uid)
        for note in ("short", "🚰" * 1000):
            await client.post_event(
                regarding, reason="Queued", note=note, action="Scheduling", instance="a-1"
            )
        found = await client.list(
            EVENTS.path("default"), dict, field_selector=f"regarding.uid={pod.metadata.uid},reason=Queued"
        )
        assert sorted(len(event["note"].encode()) for event in found.items) == [5, 1023]

    run(cluster, scenario)


def test_lists_are_paged(cluster: DevCluster) -> None:
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
        self.events = 0
        self.state = WatchState()

    def receive(self, event: WatchEvent[Any]) -> None:
        self.events += 1
        match event:
            case Relisted(items):
                self.found = {item.metadata.name: item for item in items}
            case Upserted(item):
                self.found[item.metadata.name] = item
            case Deleted(item):
                del self.found[item.metadata.name]


def test_reflect_survives_a_restart_of_the_server(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        await make_namespace(client, "followed")
        node = (await node_names(client))[0]
        recorded = RecordedObjects()
        reflection = reflect(
            client,
            PODS,
            Pod,
            recorded.receive,
            namespace="followed",
            backoff=WatchBackoff(max_s=1.0),
            state=recorded.state,
        )
        async with running(reflection):
            await eventually(lambda: recorded.state.is_synced)
            created = [await client.create(PODS.path("followed"), pod_body(f"p-{n}"), Pod) for n in range(20)]
            await asyncio.gather(
                *(client.bind("followed", pod.metadata.name, pod.metadata.uid, node) for pod in created)
            )
            await asyncio.gather(
                *(client.delete(PODS.path("followed", pod.metadata.name), grace_s=0) for pod in created[:5])
            )
            await eventually(lambda: set(recorded.found) == {f"p-{number}" for number in range(5, 20)})
            assert recorded.state.relists == 1
            await asyncio.to_thread(cluster.kill_component, "kube-apiserver")
            await eventually(lambda: recorded.state.problem != "")
            await asyncio.to_thread(cluster.start_component, "kube-apiserver")
            await client.delete(PODS.path("followed", "p-7"), grace_s=0)
            await client.create(PODS.path("followed"), pod_body("after"))
            expected = {*(f"p-{number}" for number in range(5, 20)), "after"} - {"p-7"}
            await eventually(lambda: set(recorded.found) == expected, limit_s=60)

        query = {"watch": "1", "resourceVersion": "1"}  # Compacted long ago.
        async with client.stream(PODS.path("followed"), query, open_s=5.0) as content:
            line = await content.readline()
        assert line.startswith(b'{"type":"ERROR"')
        assert b'"code":410' in line
        listed = await client.list(PODS.path("followed"), Pod)
        assert set(recorded.found) == {pod.metadata.name for pod in listed.items}

    run(cluster, scenario)


def test_reflect_follows_a_crd_that_is_created_and_deleted(cluster: DevCluster) -> None:
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
        recorded = RecordedObjects()
        backoff = WatchBackoff(min_s=0.05, max_s=0.2, persistent_error_s=0.2)
        async with running(
            reflect(client, PODGROUPS, KubeObject, recorded.receive, backoff=backoff, state=recorded.state)
        ):
            await eventually(lambda: recorded.events == 1)
            assert not recorded.state.is_synced
            await client.create(path, definition)
            await eventually(lambda: recorded.state.is_synced, limit_s=30)
            group_body = {
                "apiVersion": PODGROUPS.group_version,
                "kind": "PodGroup",
                "metadata": {"name": "gang"},
                "spec": {"minMember": 4},
            }
            await client.create(PODGROUPS.path("default"), group_body)
            await eventually(lambda: set(recorded.found) == {"gang"})
            await client.delete(f"{path}/podgroups.{group}")
            await eventually(lambda: recorded.found == {}, limit_s=30)
            await eventually(lambda: not recorded.state.is_synced, limit_s=30)

    run(cluster, scenario)


def test_leader_election(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        settings: dict[str, Any] = {
            "lease_duration_s": 3,
            "renew_interval_s": 0.3,
            "renew_deadline_s": 2.0,
            "request_s_max": 0.5,
        }
        one = LeaderElector(client, "default", "leader", "one", **settings)
        two = LeaderElector(client, "default", "leader", "two", **settings)
        await one.acquire()
        renewing = asyncio.ensure_future(one.renew())
        acquiring = asyncio.ensure_future(two.acquire())
        await asyncio.sleep(2.0)
        assert one.is_leader(margin_s=1.0)
        assert not acquiring.done()
        lease_spec = (await client.get(LEASES.path("default", "leader"), dict[str, Any]))["spec"]
        assert lease_spec["holderIdentity"] == "one"
        assert lease_spec["renewTime"] != lease_spec["acquireTime"]
        assert len(lease_spec["renewTime"].partition(".")[2]) == len("123456Z")
        renewing.cancel()
        await one.release()
        await asyncio.wait_for(acquiring, 2.0)
        lease_spec = (await client.get(LEASES.path("default", "leader"), dict[str, Any]))["spec"]
        assert (lease_spec["holderIdentity"], lease_spec["leaseTransitions"]) == ("two", 1)
        await client.delete(LEASES.path("default", "leader"))
        with pytest.raises(LeaseLost):
            await two.renew()

    run(cluster, scenario)


_ELECTION: dict[str, Any] = {
    "lease_duration_s": 3,
    "renew_interval_s": 0.3,
    "renew_deadline_s": 2.0,
    "request_s_max": 0.5,
}


async def _is_cancelled(call: asyncio.Future[None]) -> None:
    call.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await call


def test_a_blocked_event_loop_does_not_cost_the_lease(cluster: DevCluster) -> None:
    """The event loop is held for longer than the renewal deadline and the lease last."""

    async def scenario(client: KubeClient) -> None:
        threads = [
            ElectionThread(LeaderElector(own, "default", "busy", name, **_ELECTION), own)
            for name in ("one", "two")
            for own in [KubeClient(client.access)]
        ]
        one, two = threads
        await one.acquire()
        renewing, acquiring = asyncio.ensure_future(one.renew()), asyncio.ensure_future(two.acquire())
        await asyncio.sleep(0.5)
        time.sleep(6.0)
        assert one.is_leader(margin_s=1.0)
        assert not two.is_leader()
        assert not renewing.done()
        await _is_cancelled(renewing)
        await one.release()
        assert not one.is_leader()
        await asyncio.wait_for(acquiring, 5.0)
        assert two.holder == "two"
        for thread in threads:
            await thread.release()
            await thread.close()

    run(cluster, scenario)


def test_a_standby_takes_over_from_a_leader_that_is_stuck(cluster: DevCluster) -> None:
    async def scenario(client: KubeClient) -> None:
        stuck_since = time.monotonic()
        first, second = KubeClient(client.access), KubeClient(client.access)
        one = ElectionThread(
            LeaderElector(
                first,
                "default",
                "stuck",
                "one",
                progress_age_s=lambda: time.monotonic() - stuck_since,
                progress_timeout_s=2.0,
                **_ELECTION,
            ),
            first,
        )
        two = ElectionThread(LeaderElector(second, "default", "stuck", "two", **_ELECTION), second)
        await one.acquire()
        renewing, acquiring = asyncio.ensure_future(one.renew()), asyncio.ensure_future(two.acquire())
        await asyncio.sleep(0.1)
        time.sleep(4.0)
        assert not one.is_leader(), "it gave up while the event loop was held"
        with pytest.raises(LeaseLost, match="the instance is stuck"):
            await renewing
        await asyncio.wait_for(acquiring, 10.0)
        assert two.is_leader()
        assert not one.is_leader()
        for thread in (one, two):
            await thread.release()
            await thread.close()

    run(cluster, scenario)
