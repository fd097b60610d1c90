"""The mirror: whatever comes in, in whatever order, what was told adds up to what is there."""

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
from tests.backends.kube_caches import NOW, Folded, cache_of, put, told
from tests.backends.kube_histories import Cluster, Happenings, changed
from tests.backends.kube_objects import as_controller, job, node, owned_by, pod
from tests.costs import instructions


@pytest.mark.parametrize("seed", range(60))
def test_what_was_told_bit_by_bit_is_what_is_there(seed: int) -> None:
    cache = ClusterCache(KubeSettings())
    happenings = Happenings(seed, lambda one, gone: put(cache, one, gone=gone))
    folded = Folded()
    for _ in range(120):
        happenings.happen()
        if happenings.random.random() < 0.4:
            for fact in cache.facts(NOW):
                folded.take(fact)
            assert cache.facts(NOW) == [], "nothing is told twice"
    for fact in cache.facts(NOW):
        folded.take(fact)
    objects = list(happenings.objects.values())
    happenings.random.shuffle(objects)
    folded.assert_equals(cache_of(*objects).snapshot(NOW))
    folded.assert_equals(cache.snapshot(NOW))
    for one in happenings.of(Pod):
        put(cache, one, gone=True)
    cache.facts(NOW)
    assert not cache.problems
    assert not cache.missing_controllers()


@pytest.mark.parametrize("seed", range(20))
def test_a_list_says_the_same_as_the_changes_before_it(seed: int) -> None:
    """A relist of each kind, in any order, brings a stale mirror to what is there."""
    stale, cache = ClusterCache(KubeSettings()), ClusterCache(KubeSettings())
    is_heard = True

    def tell(one: KubeObject, gone: bool) -> None:
        if is_heard:
            put(stale, one, gone=gone)
        put(cache, one, gone=gone)

    happenings = Happenings(seed, tell)
    folded = Folded()
    for turn in range(120):
        is_heard = turn < 60
        happenings.happen()
        for fact in stale.facts(NOW):
            folded.take(fact)
    lists: list[Callable[[], None]] = [
        lambda: stale.replace_nodes(happenings.of(Node)),  # type: ignore[arg-type]
        lambda: stale.replace_pods(happenings.of(Pod)),  # type: ignore[arg-type]
        lambda: stale.replace_pod_groups(happenings.of(PodGroup)),  # type: ignore[arg-type]
        lambda: stale.replace_claims(happenings.of(PersistentVolumeClaim)),  # type: ignore[arg-type]
        lambda: stale.replace_volumes(happenings.of(PersistentVolume)),  # type: ignore[arg-type]
    ]
    for kind in CONTROLLER_KINDS:
        lists.append(
            lambda kind=kind: stale.replace_controllers(  # type: ignore[misc]
                kind,
                [
                    as_controller(one)
                    for one in happenings.of(UnstructuredObject)
                    if isinstance(one, UnstructuredObject) and one.kind == kind.name
                ],
            )
        )
    happenings.random.shuffle(lists)
    for listed in lists:
        listed()
        for fact in stale.facts(NOW):
            folded.take(fact)
    folded.assert_equals(cache.snapshot(NOW))


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_left_when_all_objects_are_gone(seed: int) -> None:
    cluster = Cluster(seed)
    for number in range(3):
        cluster.happenings.put(node(f"n{number}"))
    for _ in range(120):
        cluster.now += 1.0
        cluster.happenings.happen()
        if cluster.happenings.random.random() < 0.5:
            cluster.settle()
    cluster.settle()
    for one in list(cluster.happenings.objects.values()):
        if not isinstance(one, Node):
            cluster.happenings.drop(one)
    cluster.settle()
    cluster.now += 10_000.0
    cluster.settle()
    state = cluster.scheduler.state
    assert not state.jobs
    assert not state.workloads
    assert not state.intents
    assert not list(state.cluster.engine.jobs)
    assert not state.cluster.external_usage_keys()
    assert not state.members_by_node or not any(state.members_by_node.values())
    assert not state.members_of_next_job or not any(state.members_of_next_job.values())


def test_a_change_costs_the_same_in_a_cluster_of_ten_times_the_size() -> None:
    small, large = _costs_of_changes(200), _costs_of_changes(2_000)
    assert all(large[change] <= 1.5 * small[change] for change in small), (small, large)


def _costs_of_changes(pods: int) -> dict[str, int]:
    """Instructions for single changes in a cluster with so many waiting pods in gangs of 100."""
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
    told(cache)
    first, second = waiting[0], waiting[1]
    changes = {
        "says nothing new": changed(first, status=changed(first.status, reason="x")),
        "is bound by others": changed(second, spec=changed(second.spec, node_name="n1")),
        "comes late": pod("late", owner=owned_by("Job", "j0"), created=1000.0),
    }

    def take(one: Pod) -> None:
        put(cache, one)
        told(cache)

    return {name: instructions(lambda one=one: take(one)) for name, one in changes.items()}  # type: ignore[misc]
