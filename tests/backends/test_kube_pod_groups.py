"""Coscheduling PodGroups: what they say about their pods, and the status that Penstock keeps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.pod_group_status import PodGroupStatusWriter
from penstock.kube.errors import ApiError, NotFound
from penstock.kube.types import KubeObject, Pod
from penstock.protocol.facts import WorkloadSet
from tests.backends.kube_caches import NOW, cache_of, put
from tests.backends.kube_client import FakeClient
from tests.backends.kube_objects import job, native_group, owned_by, pod, pod_group, template

LABEL = "scheduling.x-k8s.io/pod-group"


def member(name: str, **more: Any) -> Pod:
    return pod(name, labels={LABEL: "g"}, **more)


def running(name: str) -> Pod:
    return member(name, node="n1", placed=True, phase="Running")


def ended(name: str, phase: str = "Succeeded") -> Pod:
    return member(name, node="n1", placed=True, phase=phase)


class Site:
    """A cache and a client, with what was written to PodGroups."""

    def __init__(self, *objects: KubeObject, **responses: list[object]) -> None:
        self.cache: ClusterCache = cache_of(*objects)
        self.client = FakeClient(**responses)
        self.is_leader = True

    def put(self, *objects: KubeObject, gone: bool = False) -> None:
        for one in objects:
            put(self.cache, one, gone=gone)

    def write(self) -> list[tuple[str, int, int, int]]:
        """Writes what is due: phases with the numbers of running, succeeded and failed pods."""
        seen = len(self.client.requests)
        writer = PodGroupStatusWriter(self.client, lambda: self.cache.pod_groups, lambda: self.is_leader)  # type: ignore[arg-type]
        self.is_complete = asyncio.run(writer.write_updates())
        statuses = [body["status"] for _, (_, body, _) in self.client.requests[seen:]]
        return [(one["phase"], one["running"], one["succeeded"], one["failed"]) for one in statuses]


def workload(cache: ClusterCache) -> WorkloadSet:
    (found,) = cache.snapshot(NOW).workloads
    return found


def test_min_member_and_timeout_of_a_pod_group_are_those_of_its_workload() -> None:
    cache = cache_of(pod_group(size=3, timeout_s=10), member("a"))
    assert (workload(cache).size, workload(cache).assembly_timeout_s) == (3, 10.0)
    put(cache, pod_group(size=2, timeout_s=0))  # as controllers write that there is none
    (changed,) = cache.facts(NOW)
    assert isinstance(changed, WorkloadSet)
    assert (changed.size, changed.assembly_timeout_s) == (2, 3600.0)


@pytest.mark.parametrize("is_native", [False, True])
def test_a_group_needs_no_more_pods_than_its_minimum(is_native: bool) -> None:
    spec = {"schedulingGroup": {"podGroupName": "g"}}
    pods = [pod(name, spec=spec) if is_native else member(name) for name in "abcde"]
    cache = cache_of(*pods)
    if is_native:
        cache.set_native_group(native_group(size=3))
    else:
        cache.set_pod_group(pod_group(size=3))
    assert (workload(cache).size, len(cache.snapshot(NOW).members)) == (3, 5)


def test_the_status_follows_the_pods() -> None:
    site = Site(pod_group(size=2), member("a"))
    assert site.write() == [("Pending", 0, 0, 0)]
    verb, (path, body, _) = site.client.requests[-1]
    assert (verb, path) == (
        "patch",
        "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups/g/status",
    )
    assert body["metadata"] == {"uid": "uid-g"}
    site.put(member("b"))
    assert site.write() == [("Scheduling", 0, 0, 0)]
    site.put(running("a"), running("b"))
    assert site.write() == [("Running", 2, 0, 0)]
    site.put(ended("a"))
    assert site.write() == [("Running", 1, 1, 0)]
    site.put(ended("b"))
    assert site.write() == [("Finished", 0, 2, 0)]
    site.put(ended("a"), gone=True)
    assert [one[0] for one in site.write()] == ["Finished"]
    site.put(ended("b"), gone=True)
    assert site.write() == []  # It stays as it was last written.


def test_changes_between_two_writes_are_written_once() -> None:
    site = Site(pod_group(size=3), *(member(name) for name in "abc"))
    for name in "abc":
        site.put(member(name, node="n1", placed=True))
        site.put(running(name))
    assert site.write() == [("Running", 3, 0, 0)]
    site.put(running("a"))
    assert site.write() == []


def test_a_status_that_is_there_already_is_not_written_again_after_a_restart() -> None:
    present = {"phase": "Running", "running": 1, "succeeded": 1}
    site = Site(pod_group(size=2, **present), running("a"), ended("b"))
    assert site.write() == []
    site.put(ended("a", "Failed"))
    assert site.write() == [("Failed", 0, 1, 1)]


def test_the_writes_of_another_controller_are_not_answered() -> None:
    site = Site(pod_group(size=1), running("a"))
    assert site.write() == [("Running", 1, 0, 0)]
    site.put(pod_group(size=1, phase="Scheduled"))
    assert site.write() == []
    site.put(ended("a"))
    assert site.write() == [("Finished", 0, 1, 0)]


def test_only_pods_that_penstock_schedules_count() -> None:
    site = Site(pod_group(size=2), member("a", ours=False), member("b", ours=False, node="n1"))
    assert site.write() == []
    site.put(member("c"), member("d", node="n1", phase="Running"))  # The last one was bound by another.
    assert site.write() == [("Pending", 0, 0, 0)]


def test_pods_join_through_the_keys_of_their_controller_and_leave_with_them() -> None:
    train = job("train", wants=2, labels={LABEL: "g"}, of=template())
    one = pod("a", owner=owned_by("Job", "train"), node="n1", placed=True, phase="Running")
    site = Site(pod_group(size=1), one)
    site.cache.facts(NOW)
    assert site.write() == []
    site.put(train)
    site.cache.facts(NOW)
    assert site.write() == [("Running", 1, 0, 0)]
    done = pod("b", owner=owned_by("Job", "train"), node="n1", placed=True, phase="Succeeded")
    site.put(done)  # It was never seen while it ran.
    assert site.write() == [("Running", 1, 1, 0)]


def test_groups_without_such_a_pod_group_are_left_alone() -> None:
    native = pod("a", spec={"schedulingGroup": {"podGroupName": "g"}})
    site = Site(pod_group(size=1), native)
    site.cache.set_native_group(native_group())
    site.put(pod("b", annotations={"penstock.dev/group": "other"}))
    assert site.write() == []


def test_a_pod_group_that_is_created_later_or_again_gets_its_status() -> None:
    site = Site(running("a"))
    assert site.write() == []
    site.put(pod_group(size=1))
    assert site.write() == [("Running", 1, 0, 0)]
    site.put(pod_group(size=1), gone=True)
    assert site.write() == []
    site.put(pod_group(size=1))
    assert site.write() == [("Running", 1, 0, 0)]
    site.cache.replace_pod_groups([])
    site.cache.replace_pod_groups([pod_group(size=2)])
    assert site.write() == [("Pending", 1, 0, 0)]


@pytest.mark.parametrize("error", [ApiError(500), ApiError(403)])
def test_a_failed_write_is_repeated(error: ApiError) -> None:
    site = Site(pod_group(size=1), running("a"), patch=[error])
    site.write()
    assert not site.is_complete
    assert site.write() == [("Running", 1, 0, 0)]
    assert site.is_complete


def test_a_deleted_pod_group_and_a_former_leader_write_nothing_more() -> None:
    site = Site(pod_group(size=1), running("a"), patch=[NotFound(404)])
    site.write()
    assert site.is_complete
    assert site.write() == []
    site.is_leader = False
    site.put(ended("a"))
    assert site.write() == []
    site.is_leader = True
    assert site.write() == [("Finished", 0, 1, 0)]
