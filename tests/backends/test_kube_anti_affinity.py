"""Required anti-affinity: the rules, their exclusion keys, and the resulting placements."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from penstock.backends.kube.anti_affinity import AntiAffinityTracker
from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import Pod, PodAffinityTerm
from penstock.model.exclusion_key import ExclusionKey
from penstock.podspec.anti_affinity import rule_of
from penstock.podspec.exclusion_keys import carrier_key, host_port_keys, selected_key
from penstock.protocol.facts import MemberSet, NodeSet
from penstock.sched.former_pools import keys_of_pool
from tests.backends.kube_caches import NOW, cache_of, new_facts, put
from tests.backends.kube_histories import Cluster
from tests.backends.kube_objects import (
    anti_affinity_to,
    deployment,
    node,
    owned_by,
    pod,
    replica_set,
    stateful_set,
)
from tests.costs import instructions

DB = {"app": "db"}
NAME = "anti-affinity with app=db"
CARRIER, SELECTED = (ExclusionKey("node", NAME, f"default/{side}") for side in ("carrier", "selected"))


def carrier(name: str, *selectors: dict[str, Any], labels: dict[str, str] | None = None, **more: Any) -> Pod:
    """A pod with anti-affinity, by default one with `app=db` to other pods with `app=db`."""
    affinity = anti_affinity_to(*(selectors or (DB,)))
    return pod(name, labels=DB if labels is None else labels, spec={"affinity": affinity}, **more)


def expressed(*parts: tuple[str, str, list[str] | None]) -> dict[str, Any]:
    return {"matchExpressions": [{"key": k, "operator": o, "values": v} for k, o, v in parts]}


def rules_of(found: Pod) -> list[Any]:
    affinity = found.spec.affinity
    assert affinity is not None
    assert affinity.pod_anti_affinity is not None
    terms = affinity.pod_anti_affinity.required or ()
    return [rule_of(found.metadata.namespace, term) for term in terms]


# Rules


@pytest.mark.parametrize(
    ("selector", "text"),
    [
        (DB, "app=db"),
        (expressed(("app", "In", ["db"])), "app=db"),
        ({"b": "2", "a": "1"}, "a=1,b=2"),
        (expressed(("app", "In", ["y", "x", "x"])), "app in (x,y)"),
        (expressed(("app", "NotIn", ["x"]), ("tier", "Exists", None)), "app notin (x),tier"),
        (expressed(("tier", "DoesNotExist", None)), "!tier"),
        ({"matchExpressions": []}, "*"),
    ],
)
def test_the_keys_of_a_rule_show_its_selector(selector: dict[str, Any], text: str) -> None:
    anti_affinity = AntiAffinityTracker()
    for name in "ab":
        anti_affinity.set(name, carrier(name, selector), name)
    brings, forbids = anti_affinity.keys("a")
    assert {key.name for key in (*brings, *forbids)} == {f"anti-affinity with {text}"}
    assert {key.level for key in (*brings, *forbids)} == {"node"}


def test_long_and_invalid_selectors_are_cut_and_stay_unique() -> None:
    anti_affinity = AntiAffinityTracker()
    odd = [expressed(("app", "In", [value])) for value in ("\n", "\t", 90 * "x", 91 * "x")]
    for name in "ab":
        anti_affinity.set(name, carrier(name, *odd), name)
    brings, _ = anti_affinity.keys("a")
    assert len({key for key in brings if key.scope == "default/carrier"}) == 4
    assert all(len(key.name) < 110 and key.name.isprintable() for key in brings)


def test_recorded_pools_stand_for_the_same_keys() -> None:
    """Allocations that were recorded with pools exclude pods that are translated to keys."""
    rule = rules_of(carrier("a", expressed(("app", "NotIn", ["x"]), ("tier", "Exists", None))))[0]
    pool = "n1:anti-affinity/default/app notin (x),tier"
    assert keys_of_pool(pool, 1024) == (carrier_key(rule), selected_key(rule))
    assert keys_of_pool(pool, 1) == (selected_key(rule),)
    ports = {"containers": [{"name": "main", "ports": [{"hostPort": 53, "protocol": "UDP"}]}]}
    assert keys_of_pool("n1:hostport/UDP/53", 1) == host_port_keys(pod("b", spec=ports))


def test_a_rule_has_its_own_keys_in_every_namespace() -> None:
    anti_affinity = AntiAffinityTracker()
    for namespace in ("one", "other"):
        for name in "ab":
            uid = f"{namespace}-{name}"
            anti_affinity.set(uid, carrier(name, namespace=namespace), uid)
    brings, forbids = (set(keys) for keys in anti_affinity.keys("one-a"))
    theirs_bring, theirs_forbid = (set(keys) for keys in anti_affinity.keys("other-a"))
    assert brings == forbids
    assert theirs_bring == theirs_forbid
    assert brings.isdisjoint(theirs_bring)


@pytest.mark.parametrize(
    "more",
    [{"topologyKey": "zone"}, {"namespaceSelector": {}}, {"namespaces": ["other"]}, {"labelSelector": None}],
)
def test_a_term_for_other_topologies_or_namespaces_is_no_rule(more: dict[str, Any]) -> None:
    raw = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": DB}, **more}
    assert rule_of("default", msgspec.convert(raw, PodAffinityTerm)) is None


# Keys of rules


Keys = tuple[set[ExclusionKey], set[ExclusionKey]]  # brought, forbidden


def brute(pods: dict[str, tuple[Pod, str]]) -> tuple[int, dict[str, Keys]]:
    """The number of shared rules and the keys of pods, computed from all pods and their groups."""
    shared = 0
    keys: dict[str, Keys] = {uid: (set(), set()) for uid in pods}
    all_rules = {rule for one, _ in pods.values() if one.spec.affinity for rule in rules_of(one)}
    for rule in all_rules:
        here = {uid: one for uid, (one, _) in pods.items() if one.metadata.namespace == rule.namespace}
        selected = {uid for uid, one in here.items() if rule.selects(one.metadata.labels or {})}
        carriers = {uid for uid, one in here.items() if one.spec.affinity and rule in rules_of(one)}
        if len({pods[uid][1] for uid in selected | carriers}) > 1:
            shared += 1
            for uid in carriers:
                keys[uid][0].add(carrier_key(rule))
                keys[uid][1].add(selected_key(rule))
            for uid in selected:
                keys[uid][0].add(selected_key(rule))
                keys[uid][1].add(carrier_key(rule))
    return shared, keys


SELECTORS = [
    {"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}, {"tier": "x"},
    expressed(("app", "In", ["a", "b"])), expressed(("app", "NotIn", ["a"])),
    expressed(("tier", "Exists", None)),
    expressed(("tier", "DoesNotExist", None), ("app", "In", ["b"])), {"matchExpressions": []},
]  # fmt: skip
LABELS = [{}, {"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"}, {"tier": "x"}, {"tier": "y", "app": "b"}]


def random_pod(chance: random.Random, name: str, **more: Any) -> Pod:
    labels, rules = chance.choice(LABELS), chance.choice([0, 0, 0, 1, 1, 2])
    if not rules:
        return pod(name, labels=labels, **more)
    return carrier(name, *chance.sample(SELECTORS, rules), labels=labels, **more)


@pytest.mark.parametrize("seed", range(30))
def test_the_tracker_equals_a_computation_from_all_pods(seed: int) -> None:
    chance = random.Random(seed)
    anti_affinity, pods = AntiAffinityTracker(), dict[str, tuple[Pod, str]]()
    shared = 0
    for _ in range(150):
        uid = f"p{chance.randrange(12)}"
        if chance.random() < 0.4:
            anti_affinity.remove(uid)
            pods.pop(uid, None)
        else:
            one = random_pod(chance, uid, namespace="other" if uid in ("p1", "p2", "p3", "p4") else "default")
            pods[uid] = one, chance.choice(["", "w1", "w2"])
            anti_affinity.set(uid, *pods[uid])
        found = {one: tuple(map(set, anti_affinity.keys(one))) for one in pods}
        rules, keys = brute(pods)
        assert found == keys
        shared += rules
    assert shared
    for uid in pods:
        anti_affinity.remove(uid)
    anti_affinity.take_dirty()
    assert vars(anti_affinity) == vars(AntiAffinityTracker()), "no state is left of deleted pods"


def test_pods_are_reported_when_a_rule_becomes_shared_and_when_it_ceases() -> None:
    cache = cache_of(node("n1"), carrier("a"), pod("web", labels={"app": "web"}))
    new_facts(cache)
    put(cache, pod("b", labels=DB))
    facts = new_facts(cache)
    assert not any(isinstance(fact, NodeSet) for fact in facts), "no node changes with a rule"
    keys = {fact.member: (fact.brings, fact.forbids) for fact in facts if isinstance(fact, MemberSet)}
    assert keys == {
        "uid-a": ((CARRIER, SELECTED), (CARRIER, SELECTED)),
        "uid-b": ((SELECTED,), (CARRIER,)),
    }
    put(cache, carrier("a"), gone=True)
    facts = new_facts(cache)
    assert {
        fact.member: (fact.requests, fact.brings, fact.forbids)
        for fact in facts
        if isinstance(fact, MemberSet)
    } == {"uid-b": ((("cpu", 1000), ("pods", 1)), (), ())}
    assert not any(isinstance(fact, NodeSet) for fact in facts)


def test_a_rule_within_one_workload_has_no_keys() -> None:
    mine = {"job-name": "train"}
    pods = [carrier(name, mine, labels=mine, owner=owned_by("Job", "train")) for name in "abc"]
    cache = cache_of(node("n1"), *pods)  # also before their Job is known
    facts = new_facts(cache)
    assert all(not fact.brings and not fact.forbids for fact in facts if isinstance(fact, MemberSet))
    assert all(not one.brings and not one.forbids for one in cache.snapshot(NOW).members)


def test_every_pod_on_a_node_brings_the_keys_of_a_shared_rule() -> None:
    cache = cache_of(
        carrier("ours", node="n1", placed=True),
        carrier("theirs", node="n2", ours=False),
        pod("selected", node="n2", ours=False, labels=DB),
        carrier("apart", node="n2", ours=False, labels={}),
        carrier("over", node="n3", ours=False, phase="Succeeded"),
        carrier("waits-for-others", ours=False),
    )
    found = cache.snapshot(NOW)
    assert {one.member: one.brings for one in found.statuses} == {"uid-ours": (CARRIER, SELECTED)}
    assert {one.key: one.brings for one in found.external_usage} == {
        "uid-theirs": (CARRIER, SELECTED),
        "uid-selected": (SELECTED,),
        "uid-apart": (CARRIER,),
    }
    status = cache.member_status(carrier("ours", node="n1", placed=True), NOW)
    assert status.brings == found.statuses[0].brings


def test_rules_among_external_pods_have_no_keys() -> None:
    cache = cache_of(carrier("a", node="n1", ours=False), carrier("b", node="n2", ours=False))
    assert all(not one.brings for one in cache.snapshot(NOW).external_usage)


# Placements


def nodes_of(cluster: Cluster) -> dict[str, str]:
    """The node of each pod."""
    pods = [one for one in cluster.changes.of(Pod) if isinstance(one, Pod)]
    return {one.metadata.name: one.spec.node_name for one in pods}


def cluster_of(nodes: int, **more: Any) -> Cluster:
    cluster = Cluster()
    for number in range(nodes):
        cluster.changes.put(node(f"n{number}", **more))
    cluster.settle()
    return cluster


def test_pods_of_an_ordered_stateful_set_each_have_their_own_node() -> None:
    cluster = cluster_of(3)
    cluster.changes.put(stateful_set("db"))
    for number in range(3):
        cluster.changes.put(carrier(f"db-{number}", owner=owned_by("StatefulSet", "db")))
        cluster.settle()
    assert sorted(nodes_of(cluster).values()) == ["n0", "n1", "n2"]
    cluster.changes.put(pod("fourth", labels=DB))
    cluster.settle()
    assert nodes_of(cluster)["fourth"] == ""
    (job,) = [job for job in cluster.scheduler.jobs.values() if job.spec.name == "fourth"]
    sentence = cluster.scheduler.wait_reason(job.id, cluster.now).message
    assert sentence.startswith(
        "needs 1 slot with 1 free cpu, 0 of 3 nodes qualify; anti-affinity with app=db excludes 3 nodes"
    )


def test_bare_pods_with_anti_affinity_get_different_nodes() -> None:
    cluster = cluster_of(2)
    for name in "abc":
        cluster.changes.put(carrier(name))
    cluster.settle()
    assert sorted(nodes_of(cluster).values()) == ["", "n0", "n1"]
    found = nodes_of(cluster)
    gone = next(name for name, where in found.items() if where)
    cluster.changes.drop(cluster.changes.objects[(Pod, f"uid-{gone}")])
    cluster.settle()
    assert sorted(nodes_of(cluster).values()) == ["n0", "n1"]


def test_a_pod_whose_binding_is_in_flight_keeps_the_next_one_off_its_node() -> None:
    """The first pod was placed while its rule had no keys."""
    cluster = cluster_of(2)
    cluster.is_slow = True
    for name in "ab":
        cluster.changes.put(carrier(name))
        cluster.settle()
    cluster.execute_delayed()
    cluster.settle()
    assert sorted(nodes_of(cluster).values()) == ["n0", "n1"]


def test_pods_that_are_only_selected_share_a_node_without_a_carrier() -> None:
    cluster = cluster_of(2)
    cluster.changes.put(carrier("alone"))
    cluster.settle()
    for name in "abc":
        cluster.changes.put(pod(name, labels=DB))
    cluster.settle()
    found = nodes_of(cluster)
    assert {found[name] for name in "abc"} == {"n0", "n1"} - {found["alone"]}


@pytest.mark.parametrize("of", ["", "web"])
def test_a_rolling_update_places_old_and_new_pods_on_different_nodes(of: str) -> None:
    """Under a Deployment they are one workload, without it two."""
    cluster = cluster_of(3)
    web = {"app": "web"}
    if of:
        cluster.changes.put(deployment(of))
    cluster.changes.put(replica_set("old", wants=2, deployment=of))
    for name in ("old-1", "old-2"):
        cluster.changes.put(carrier(name, web, labels=web, owner=owned_by("ReplicaSet", "old")))
    cluster.settle()
    cluster.changes.put(replica_set("new", wants=1, deployment=of))
    cluster.changes.put(carrier("new-1", web, labels=web, owner=owned_by("ReplicaSet", "new")))
    cluster.settle()
    found = nodes_of(cluster)
    assert sorted(found.values()) == ["n0", "n1", "n2"]
    cluster.changes.put(replica_set("new", wants=2, deployment=of))
    cluster.changes.put(carrier("new-2", web, labels=web, owner=owned_by("ReplicaSet", "new")))
    cluster.settle()
    assert nodes_of(cluster)["new-2"] == ""
    cluster.changes.put(replica_set("old", wants=1, deployment=of))
    cluster.changes.drop(cluster.changes.objects[(Pod, "uid-old-1")])
    cluster.settle()
    assert nodes_of(cluster)["new-2"] == found["old-1"]


def exclude_each_other(one: Pod, other: Pod) -> bool:
    """Whether an anti-affinity rule of either pod selects the other."""
    return any(
        rule is not None and rule.selects(second.metadata.labels or {})
        for first, second in ((one, other), (other, one))
        if first.spec.affinity
        for rule in rules_of(first)
    )


@pytest.mark.parametrize("seed", range(40))
def test_placements_respect_anti_affinity_and_no_pod_waits_without_need(seed: int) -> None:
    cluster = cluster_of(4, cpu="32")
    chance = cluster.changes.random
    chance.seed(seed)
    for number in range(chance.randrange(4)):
        cluster.changes.put(random_pod(chance, f"f{number}", ours=False, node=f"n{chance.randrange(4)}"))
    for number in range(25):
        cluster.now += 1.0
        running = [one for one in cluster.changes.of(Pod) if isinstance(one, Pod) and one.spec.node_name]
        if running and chance.random() < 0.3:
            cluster.changes.drop(chance.choice(running))
        else:
            cluster.changes.put(random_pod(chance, f"p{number}"))
        if chance.random() < 0.6:
            cluster.settle()
    cluster.settle()
    pods = [one for one in cluster.changes.of(Pod) if isinstance(one, Pod)]
    placed = [one for one in pods if one.spec.node_name]
    for one in placed:
        for other in placed:
            is_beside = one is not other and one.spec.node_name == other.spec.node_name
            is_ours = {one.spec.scheduler_name, other.spec.scheduler_name} != {"default-scheduler"}
            assert not (is_beside and is_ours and exclude_each_other(one, other)), (one, other)
    for one in pods:
        if one.spec.node_name or one.metadata.uid in cluster.cache.problems:
            continue
        excluded = {other.spec.node_name for other in placed if exclude_each_other(one, other)}
        assert excluded == {f"n{number}" for number in range(4)}, one


# Costs


def test_the_cost_of_a_change_does_not_depend_on_the_number_of_pods() -> None:
    small, large = _costs(100), _costs(1_000)
    assert all(large[change] <= 1.2 * small[change] for change in small), (small, large)


def _costs(pods: int) -> dict[str, int]:
    """Instructions per change, with a shared rule for a tenth of all pods and a rule per Job."""
    cache = ClusterCache(KubeSettings())
    cache.replace_nodes([node("n1", cpu="64")])
    waiting = [carrier(f"c{number}") for number in range(pods // 10)]
    for number in range(pods):
        mine = {"job-name": f"j{number // 10}"}
        waiting.append(carrier(f"p{number}", mine, labels=mine, owner=owned_by("Job", f"j{number // 10}")))
    cache.replace_pods(waiting)
    assert NAME in str(cache.snapshot(NOW).members)
    late = {"job-name": "late"}
    changes = {
        "joins a shared rule": (carrier("late"), False),
        "leaves it": (carrier("late"), True),
        "is selected": (pod("late", labels=DB), False),
        "is not selected any more": (pod("late", labels={"app": "web"}), False),
        "has a rule of its own": (carrier("own", late, labels=late), False),
        "takes it away": (carrier("own", late, labels=late), True),
    }

    def take(one: Pod, gone: bool) -> None:
        put(cache, one, gone=gone)
        new_facts(cache)

    return {name: instructions(lambda how=how: take(*how)) for name, how in changes.items()}  # type: ignore[misc]


def test_pods_without_matching_labels_cost_nothing() -> None:
    def cost(rules: int) -> int:
        anti_affinity = AntiAffinityTracker()
        for number in range(rules):
            anti_affinity.set(f"c{number}", carrier(f"c{number}", {"app": f"a{number}"}), f"w{number}")
        plain = pod("plain", labels={"team": "x"})
        return instructions(lambda: anti_affinity.set("plain", plain, "w"))

    assert cost(200) <= 1.05 * cost(2)
