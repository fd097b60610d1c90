"""The cluster cache under random changes: the sum of its facts equals its state."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import (
    KubeObject,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
    UnstructuredObject,
)
from penstock.podspec.controller_kinds import CONTROLLER_KINDS, require_controller_kind
from tests.backends.kube_caches import NOW, FactSum, cache_of, new_facts, put
from tests.backends.kube_histories import Cluster, RandomChanges, changed
from tests.backends.kube_objects import as_controller, job, node, owned_by, pod
from tests.costs import instructions


@pytest.mark.parametrize("seed", range(60))
def test_the_sum_of_all_facts_equals_a_snapshot(seed: int) -> None:
    cache = ClusterCache(KubeSettings())
    changes = RandomChanges(seed, lambda one, gone: put(cache, one, gone=gone))
    total = FactSum()
    for _ in range(120):
        changes.apply_random()
        if changes.random.random() < 0.4:
            for fact in cache.facts(NOW):
                total.take(fact)
            assert cache.facts(NOW) == [], "no fact is repeated"
    for fact in cache.facts(NOW):
        total.take(fact)
    objects = list(changes.objects.values())
    changes.random.shuffle(objects)
    total.assert_equals(cache_of(*objects).snapshot(NOW))
    total.assert_equals(cache.snapshot(NOW))
    for one in changes.of(Pod):
        put(cache, one, gone=True)
    cache.facts(NOW)
    assert not cache.problems
    assert not cache.missing_controllers()


@pytest.mark.parametrize("seed", range(20))
def test_a_complete_list_equals_the_changes_that_it_replaces(seed: int) -> None:
    """Complete lists, in any order, bring a stale cache up to date."""
    stale, cache = ClusterCache(KubeSettings()), ClusterCache(KubeSettings())
    is_delivered = True

    def deliver(one: KubeObject, gone: bool) -> None:
        if is_delivered:
            put(stale, one, gone=gone)
        put(cache, one, gone=gone)

    changes = RandomChanges(seed, deliver)
    total = FactSum()
    for step in range(120):
        is_delivered = step < 60
        changes.apply_random()
        for fact in stale.facts(NOW):
            total.take(fact)
    lists: list[Callable[[], None]] = [
        lambda: stale.replace_nodes(changes.of(Node)),  # type: ignore[arg-type]
        lambda: stale.replace_pods(changes.of(Pod)),  # type: ignore[arg-type]
        lambda: stale.replace_pod_groups(changes.of(PodGroup)),  # type: ignore[arg-type]
        lambda: stale.replace_claims(changes.of(PersistentVolumeClaim)),  # type: ignore[arg-type]
        lambda: stale.replace_volumes(changes.of(PersistentVolume)),  # type: ignore[arg-type]
    ]
    for kind in CONTROLLER_KINDS:
        lists.append(
            lambda kind=kind: stale.replace_controllers(  # type: ignore[misc]
                kind,
                [
                    as_controller(one)
                    for one in changes.of(UnstructuredObject)
                    if isinstance(one, UnstructuredObject) and one.kind == kind.name
                ],
            )
        )
    changes.random.shuffle(lists)
    for listed in lists:
        listed()
        for fact in stale.facts(NOW):
            total.take(fact)
    total.assert_equals(cache.snapshot(NOW))


@pytest.mark.parametrize("seed", range(25))
def test_no_state_is_left_when_all_objects_are_deleted(seed: int) -> None:
    cluster = Cluster(seed)
    for number in range(3):
        cluster.changes.put(node(f"n{number}"))
    for _ in range(120):
        cluster.now += 1.0
        cluster.changes.apply_random()
        if cluster.changes.random.random() < 0.5:
            cluster.settle()
    cluster.settle()
    for one in list(cluster.changes.objects.values()):
        if not isinstance(one, Node):
            cluster.changes.drop(one)
    cluster.settle()
    cluster.now += 10_000.0
    cluster.settle()
    scheduler = cluster.scheduler
    assert not scheduler.jobs
    assert not scheduler.workloads()
    assert not scheduler.open_intents()
    assert not scheduler.allocated_jobs()
    assert not scheduler.external_usage()


def test_the_cost_of_a_change_does_not_depend_on_the_size_of_the_cluster() -> None:
    small, large = _costs_of_changes(200), _costs_of_changes(2_000)
    assert all(large[change] <= 1.5 * small[change] for change in small), (small, large)


def _costs_of_changes(pods: int) -> dict[str, int]:
    """Instructions per change, in a cluster with that many waiting pods in groups of 100."""
    cache = ClusterCache(KubeSettings())
    cache.replace_nodes([node(f"n{number}", cpu="64") for number in range(pods // 10)])
    cache.replace_controllers(
        require_controller_kind("batch/v1", "Job"),
        (as_controller(job(f"j{number}", wants=100)) for number in range(pods // 100)),
    )
    waiting = [
        pod(f"p{number}", owner=owned_by("Job", f"j{number // 100}"), created=1000.0 + number // 100)
        for number in range(pods)
    ]
    cache.replace_pods(waiting)
    assert len(cache.snapshot(NOW).members) == pods
    new_facts(cache)
    first, second = waiting[0], waiting[1]
    changes = {
        "says nothing new": changed(first, status=changed(first.status, reason="x")),
        "is bound by others": changed(second, spec=changed(second.spec, node_name="n1")),
        "comes late": pod("late", owner=owned_by("Job", "j0"), created=1000.0),
    }

    def take(one: Pod) -> None:
        put(cache, one)
        new_facts(cache)

    return {name: instructions(lambda one=one: take(one)) for name, one in changes.items()}  # type: ignore[misc]
