"""The watches of the backend: malformed objects are skipped, and every controller kind is watched."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.settings import KubeSettings
from penstock.backends.kube.watches import Watch, watches_of
from penstock.kube.resources import JOBS
from penstock.kube.types import UnstructuredObject
from penstock.protocol.facts import WorkloadSet
from tests.backends.kube_caches import NOW
from tests.backends.kube_objects import job, unstructured


def job_watch(cache: ClusterCache) -> Watch:
    watches = watches_of(cache, lambda: cache, lambda _: None)
    return next(one for one in watches if one.resource == JOBS)


def malformed() -> UnstructuredObject:
    raw: dict[str, Any] = {"metadata": {"name": "train", "namespace": "default", "uid": "uid-train"}}
    return unstructured("Job", {**raw, "spec": {"parallelism": "many"}})


def sizes(cache: ClusterCache) -> list[int]:
    return [workload.size for workload in cache.snapshot(NOW).workloads if isinstance(workload, WorkloadSet)]


def test_every_controller_kind_is_watched() -> None:
    cache = ClusterCache(KubeSettings())
    watched = {str(one.resource) for one in watches_of(cache, lambda: cache, lambda _: None)}
    assert {"jobs.batch", "replicasets.apps", "statefulsets.apps", "deployments.apps"} <= watched


def test_a_malformed_update_is_logged_and_keeps_the_last_state(caplog: pytest.LogCaptureFixture) -> None:
    cache = ClusterCache(KubeSettings())
    watch = job_watch(cache)
    watch.set(job("train", wants=3))
    watch.set(malformed())
    assert sizes(cache) == [3]
    assert "cannot read Job default/train: spec.parallelism: malformed field" in caplog.text


def test_a_malformed_object_in_a_list_is_skipped() -> None:
    cache = ClusterCache(KubeSettings())
    watch = job_watch(cache)
    watch.replace((malformed(), job("other", wants=2)))
    assert sizes(cache) == [2]


def test_a_malformed_object_can_be_deleted() -> None:
    cache = ClusterCache(KubeSettings())
    watch = job_watch(cache)
    watch.set(job("train", wants=3))
    watch.remove(malformed())
    assert sizes(cache) == []
