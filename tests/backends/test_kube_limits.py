"""Limits of groups and namespaces: pods beyond them have a problem, and are tried again when others leave."""

from __future__ import annotations

from typing import Any

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import KubeObject, Pod
from penstock.protocol.facts import MemberSet
from tests.backends.kube_caches import GROUP, NOW, SIZE, put
from tests.backends.kube_objects import job, owned_by, pod, pod_group


def cache_of(*objects: KubeObject, **settings: Any) -> ClusterCache:
    cache = ClusterCache(KubeSettings(**settings))
    for one in objects:
        put(cache, one)
    return cache


def members(cache: ClusterCache) -> set[str]:
    """The waiting pods that a snapshot reports."""
    return {fact.name for fact in cache.snapshot(NOW).members if isinstance(fact, MemberSet)}


def problem(cache: ClusterCache, name: str) -> str:
    cache.facts(NOW)
    found = cache.problems[f"uid-{name}"]
    assert found.reason == "LimitExceeded"
    return found.message


def spec(ports: list[int] | None = None, selectors: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    terms = [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": selector} for selector in selectors or ()
    ]
    main = {"name": "main", "ports": [{"hostPort": port, "containerPort": port} for port in ports or ()]}
    affinity = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {"containers": [main], **({"affinity": affinity} if terms else {})}


def carrier(name: str, *labels: str) -> Pod:
    """A pod with one rule per label, about pods that have it."""
    selectors = [{"matchLabels": {label: "x"}} for label in labels]
    return pod(name, labels=dict.fromkeys(labels, "x"), spec=spec(selectors=selectors))


# Groups


def test_pods_of_a_group_that_needs_too_many_pods_are_refused_until_it_needs_fewer() -> None:
    controller = job("train", wants=5)
    cache = cache_of(controller, pod("a", owner=owned_by("Job", "train")), group_size_max=4)
    expected = "group train needs 5 pods, at most 4 (limits.group_size_max)"
    assert problem(cache, "a") == expected
    put(cache, job("train", wants=4))
    cache.facts(NOW)
    assert not cache.problems
    assert members(cache) == {"a"}


def test_the_size_in_a_pod_group_is_limited_too() -> None:
    named = pod("a", labels={"scheduling.x-k8s.io/pod-group": "g"})
    cache = cache_of(pod_group("g", size=2), named, group_size_max=4)
    cache.facts(NOW)
    assert not cache.problems
    put(cache, pod_group("g", size=70_000))
    assert problem(cache, "a").startswith("group g needs 70000 pods")


def test_the_newest_pods_of_a_group_wait_until_others_of_it_are_gone() -> None:
    made = [pod(name, labels={GROUP: "g", SIZE: "1"}) for name in "abcd"]
    cache = cache_of(*made, group_size_max=2)
    text = "group g has 2 pods, as many as limits.group_size_max allows"
    assert [problem(cache, name) for name in "cd"] == [text, text]
    put(cache, made[0], gone=True)
    cache.facts(NOW)
    assert set(cache.problems) == {"uid-d"}


# Exclusion keys


def test_a_pod_with_too_many_host_ports_is_refused() -> None:
    cache = cache_of(pod("a", spec=spec(ports=[1, 2, 3, 4])), exclusion_keys_max=3)
    assert problem(cache, "a") == (
        "the pod has 4 exclusion keys (host ports and anti-affinity rules), "
        "at most 3 (limits.exclusion_keys_max)"
    )


def test_a_namespace_has_so_many_keys_and_others_have_their_own() -> None:
    first = pod("a", spec=spec(ports=[1, 2]))
    second = pod("b", spec=spec(ports=[2, 3]))
    third = pod("c", spec=spec(ports=[4]))
    other = pod("d", namespace="other", spec=spec(ports=[5, 6, 7]))
    cache = cache_of(first, second, third, other, exclusion_keys_max=3)
    assert problem(cache, "c").startswith(
        "with this pod, the waiting pods of namespace default have 4 exclusion"
    )
    assert set(cache.problems) == {"uid-c"}
    put(cache, pod("b", spec=spec(ports=[2, 3]), node="n1"))  # It does not wait any more: port 3 is free.
    cache.facts(NOW)
    assert not cache.problems


def test_shared_rules_count_once_and_rules_of_one_group_do_not() -> None:
    cache = cache_of(*(carrier(f"own-{index}", f"own-{index}") for index in range(9)), exclusion_keys_max=2)
    cache.facts(NOW)
    assert not cache.problems
    for name in ("a", "b", "c"):
        put(cache, carrier(name, "shared-1", "shared-2"))
    cache.facts(NOW)
    assert not cache.problems
    for name in ("d", "e"):
        put(cache, carrier(name, "shared-3"))
    assert problem(cache, "e").startswith("with this pod, the waiting pods of namespace default have 3 ")


def test_a_pod_with_too_many_anti_affinity_terms_is_refused_and_its_rules_are_not_tracked() -> None:
    terms = [f"app-{index}" for index in range(400)]
    cache = cache_of(carrier("a", *terms), carrier("b", *terms), carrier("c", "app-7"))
    text = "the pod has 400 required anti-affinity terms, at most 200 (limits.exclusion_keys_max)"
    assert [problem(cache, name) for name in "ab"] == [text, text]
    (reported,) = cache.snapshot(NOW).members
    assert reported.name == "c"
    assert {key.name for key in (*reported.brings, *reported.forbids)} == {"anti-affinity with app-7=x"}


def test_rules_that_are_tested_on_every_pod_are_limited_in_a_namespace() -> None:
    def unanchored(name: str, *keys: str) -> Pod:
        selectors = [{"matchExpressions": [{"key": key, "operator": "Exists"}]} for key in keys]
        return pod(name, labels=dict.fromkeys(keys, "x"), spec=spec(selectors=selectors))

    first, second = unanchored("a", "k1"), unanchored("b", "k2", "k3")
    cache = cache_of(first, second, exclusion_keys_max=2)
    assert problem(cache, "b").startswith(
        "the pods of namespace default have 1 anti-affinity rules that require no label by value"
    )
    put(cache, first, gone=True)
    cache.facts(NOW)
    assert not cache.problems
