"""Pods that keep others off their nodes: the rules, what follows from them, and where pods go by them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from penstock.backends.kube.anti_affinity import UNITS, AntiAffinityTracker
from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.types import Pod, PodAffinityTerm
from penstock.podspec.anti_affinity import rule_of
from penstock.protocol.facts import MemberSet, NodeSet
from tests.backends.kube_caches import NOW, cache_of, put, told
from tests.backends.kube_histories import Cluster
from tests.backends.kube_objects import apart_from, deployment, node, owned_by, pod, replica_set, stateful_set
from tests.costs import instructions

DB = {"app": "db"}
KIND = "anti-affinity/default/app=db"


def carrier(name: str, *selectors: dict[str, Any], labels: dict[str, str] | None = None, **more: Any) -> Pod:
    """A pod with `app=db` that wants no other such pod beside it, unless it is said otherwise."""
    affinity = apart_from(*(selectors or (DB,)))
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
def test_a_rule_is_a_kind_that_people_can_read(selector: dict[str, Any], text: str) -> None:
    anti_affinity = AntiAffinityTracker()
    for name in "ab":
        anti_affinity.set(name, carrier(name, selector), name)
    assert anti_affinity.node_resources() == {f"anti-affinity/default/{text}": UNITS}


def test_what_is_long_or_odd_is_shortened_and_stays_different() -> None:
    anti_affinity = AntiAffinityTracker()
    odd = [expressed(("app", "In", [value])) for value in ("\n", "\t", 90 * "x", 91 * "x")]
    for name in "ab":
        anti_affinity.set(name, carrier(name, *odd), name)
    kinds = list(anti_affinity.node_resources())
    assert len(set(kinds)) == 4
    assert all(len(kind) < 110 and kind.isprintable() for kind in kinds)


@pytest.mark.parametrize(
    "more",
    [{"topologyKey": "zone"}, {"namespaceSelector": {}}, {"namespaces": ["other"]}, {"labelSelector": None}],
)
def test_what_is_about_other_places_is_no_rule(more: dict[str, Any]) -> None:
    raw = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": DB}, **more}
    assert rule_of("default", msgspec.convert(raw, PodAffinityTerm)) is None


# What follows from them


def brute(pods: dict[str, tuple[Pod, str]]) -> tuple[set[str], dict[str, set[tuple[str, int]]]]:
    """Kinds and amounts, from nothing but all pods and their groups."""
    kinds: set[str] = set()
    amounts: dict[str, set[tuple[str, int]]] = {uid: set() for uid in pods}
    all_rules = {rule for one, _ in pods.values() if one.spec.affinity for rule in rules_of(one)}
    for rule in all_rules:
        uses: dict[str, int] = {}
        for uid, (one, _) in pods.items():
            if one.metadata.namespace != rule.namespace:
                continue
            if rule.selects(one.metadata.labels or {}):
                uses[uid] = 1
            if one.spec.affinity and rule in rules_of(one):
                uses[uid] = UNITS
        if len({pods[uid][1] for uid in uses}) > 1:
            alone = AntiAffinityTracker()
            alone.set("a", carrier("a", expressed(*map(_plain, rule.tests)), namespace=rule.namespace), "a")
            alone.set("b", carrier("b", expressed(*map(_plain, rule.tests)), namespace=rule.namespace), "b")
            (kind,) = alone.node_resources()
            kinds.add(kind)
            for uid, units in uses.items():
                amounts[uid].add((kind, units))
    return kinds, amounts


def _plain(test: tuple[str, str, tuple[str, ...]]) -> tuple[str, str, list[str]]:
    return test[0], test[1], list(test[2])


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
def test_what_is_kept_is_what_all_pods_say(seed: int) -> None:
    chance = random.Random(seed)
    anti_affinity, pods = AntiAffinityTracker(), dict[str, tuple[Pod, str]]()
    crossed = 0
    for _ in range(150):
        uid = f"p{chance.randrange(12)}"
        if chance.random() < 0.4:
            anti_affinity.remove(uid)
            pods.pop(uid, None)
        else:
            one = random_pod(chance, uid, namespace="other" if uid in ("p1", "p2", "p3", "p4") else "default")
            pods[uid] = one, chance.choice(["", "w1", "w2"])
            anti_affinity.set(uid, *pods[uid])
        before = {one: set(anti_affinity.usage(one)) for one in pods}
        kinds, amounts = brute(pods)
        assert set(anti_affinity.node_resources()) == kinds
        assert before == amounts
        crossed += len(kinds)
    assert crossed
    for uid in pods:
        anti_affinity.remove(uid)
    assert not anti_affinity.node_resources()
    anti_affinity.take_dirty()
    assert not any(vars(anti_affinity).values()), "nothing is left of pods that are gone"


def test_who_begins_to_cross_is_told_and_who_ceases_too() -> None:
    cache = cache_of(node("n1"), carrier("a"), pod("web", labels={"app": "web"}))
    told(cache)
    put(cache, pod("b", labels=DB))
    facts = told(cache)
    assert isinstance(facts[0], NodeSet), "what is asked for is there before it is"
    asked = {fact.member: dict(fact.requests).get(KIND) for fact in facts if isinstance(fact, MemberSet)}
    assert asked == {"uid-a": UNITS, "uid-b": 1}
    put(cache, carrier("a"), gone=True)
    facts = told(cache)
    assert {fact.member: fact.requests for fact in facts if isinstance(fact, MemberSet)} == {
        "uid-b": (("cpu", 1000), ("pods", 1))
    }
    assert isinstance(facts[-1], NodeSet)
    assert KIND not in {capacity.resource for capacity in facts[-1].capacity}


def test_a_rule_within_one_work_needs_no_kind() -> None:
    mine = {"job-name": "train"}
    pods = [carrier(name, mine, labels=mine, owner=owned_by("Job", "train")) for name in "abc"]
    cache = cache_of(node("n1"), *pods)  # also before their Job is heard of
    assert not any(KIND in str(fact) for fact in told(cache))
    assert all("anti-affinity/" not in str(one) for one in cache.snapshot(NOW).nodes)


def test_what_is_on_a_node_uses_the_kind_whoever_has_placed_it() -> None:
    cache = cache_of(
        carrier("ours", node="n1", placed=True),
        carrier("theirs", node="n2", ours=False),
        pod("selected", node="n2", ours=False, labels=DB),
        carrier("over", node="n3", ours=False, phase="Succeeded"),
        carrier("waits-for-others", ours=False),
    )
    found = cache.snapshot(NOW)
    assert {one.member: dict(one.usage)[KIND] for one in found.statuses} == {"uid-ours": UNITS}
    assert {one.key: dict(one.usage)[KIND] for one in found.external_usage} == {
        "uid-theirs": UNITS,
        "uid-selected": 1,
    }
    assert cache.member_status(carrier("ours", node="n1", placed=True), NOW).usage == found.statuses[0].usage


def test_others_among_themselves_need_no_kind() -> None:
    cache = cache_of(carrier("a", node="n1", ours=False), carrier("b", node="n2", ours=False))
    assert all(KIND not in dict(one.usage) for one in cache.snapshot(NOW).external_usage)


# Where pods go


def nodes_of(cluster: Cluster) -> dict[str, str]:
    """Where each pod is."""
    pods = [one for one in cluster.happenings.of(Pod) if isinstance(one, Pod)]
    return {one.metadata.name: one.spec.node_name for one in pods}


def cluster_of(nodes: int, **more: Any) -> Cluster:
    cluster = Cluster()
    for number in range(nodes):
        cluster.happenings.put(node(f"n{number}", **more))
    cluster.settle()
    return cluster


def test_pods_of_an_ordered_stateful_set_each_have_their_own_node() -> None:
    cluster = cluster_of(3)
    cluster.happenings.put(stateful_set("db"))
    for number in range(3):
        cluster.happenings.put(carrier(f"db-{number}", owner=owned_by("StatefulSet", "db")))
        cluster.settle()
    assert sorted(nodes_of(cluster).values()) == ["n0", "n1", "n2"]
    cluster.happenings.put(pod("fourth", labels=DB))
    cluster.settle()
    assert nodes_of(cluster)["fourth"] == ""
    (job,) = [job for job in cluster.scheduler.state.jobs.values() if job.spec.name == "fourth"]
    sentence = cluster.scheduler.wait_reason(job.id, cluster.now).message
    assert sentence.startswith("it asks for 1 slot; 0 nodes with room (those with app=db are kept apart), it")


def test_bare_pods_with_the_same_label_are_kept_apart() -> None:
    cluster = cluster_of(2)
    for name in "abc":
        cluster.happenings.put(carrier(name))
    cluster.settle()
    assert sorted(nodes_of(cluster).values()) == ["", "n0", "n1"]
    found = nodes_of(cluster)
    gone = next(name for name, where in found.items() if where)
    cluster.happenings.drop(cluster.happenings.objects[(Pod, f"uid-{gone}")])
    cluster.settle()
    assert sorted(nodes_of(cluster).values()) == ["n0", "n1"]


def test_one_that_is_on_its_way_to_a_node_keeps_the_next_one_off_it() -> None:
    """While it was alone its rule had no kind, so it was given none of it."""
    cluster = cluster_of(2)
    cluster.is_slow = True
    for name in "ab":
        cluster.happenings.put(carrier(name))
        cluster.settle()
    cluster.hurry_up()
    cluster.settle()
    assert sorted(nodes_of(cluster).values()) == ["n0", "n1"]


def test_those_who_are_only_selected_share_a_node_that_no_carrier_has() -> None:
    cluster = cluster_of(2)
    cluster.happenings.put(carrier("alone"))
    cluster.settle()
    for name in "abc":
        cluster.happenings.put(pod(name, labels=DB))
    cluster.settle()
    found = nodes_of(cluster)
    assert {found[name] for name in "abc"} == {"n0", "n1"} - {found["alone"]}


@pytest.mark.parametrize("of", ["", "web"])
def test_a_rolling_update_keeps_old_and_new_pods_apart(of: str) -> None:
    """Under a Deployment they are one work, without it two."""
    cluster = cluster_of(3)
    web = {"app": "web"}
    if of:
        cluster.happenings.put(deployment(of))
    cluster.happenings.put(replica_set("old", wants=2, deployment=of))
    for name in ("old-1", "old-2"):
        cluster.happenings.put(carrier(name, web, labels=web, owner=owned_by("ReplicaSet", "old")))
    cluster.settle()
    cluster.happenings.put(replica_set("new", wants=1, deployment=of))
    cluster.happenings.put(carrier("new-1", web, labels=web, owner=owned_by("ReplicaSet", "new")))
    cluster.settle()
    found = nodes_of(cluster)
    assert sorted(found.values()) == ["n0", "n1", "n2"]
    cluster.happenings.put(replica_set("new", wants=2, deployment=of))
    cluster.happenings.put(carrier("new-2", web, labels=web, owner=owned_by("ReplicaSet", "new")))
    cluster.settle()
    assert nodes_of(cluster)["new-2"] == ""
    cluster.happenings.put(replica_set("old", wants=1, deployment=of))
    cluster.happenings.drop(cluster.happenings.objects[(Pod, "uid-old-1")])
    cluster.settle()
    assert nodes_of(cluster)["new-2"] == found["old-1"]


def are_apart(one: Pod, other: Pod) -> bool:
    """Whether anti-affinity of either keeps the other off its node, by Kubernetes' own words."""
    return any(
        rule is not None and rule.selects(second.metadata.labels or {})
        for first, second in ((one, other), (other, one))
        if first.spec.affinity
        for rule in rules_of(first)
    )


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_placed_beside_what_keeps_it_away_and_nothing_waits_without_need(seed: int) -> None:
    cluster = cluster_of(4, cpu="32")
    chance = cluster.happenings.random
    chance.seed(seed)
    for number in range(chance.randrange(4)):
        cluster.happenings.put(random_pod(chance, f"f{number}", ours=False, node=f"n{chance.randrange(4)}"))
    for number in range(25):
        cluster.now += 1.0
        running = [one for one in cluster.happenings.of(Pod) if isinstance(one, Pod) and one.spec.node_name]
        if running and chance.random() < 0.3:
            cluster.happenings.drop(chance.choice(running))
        else:
            cluster.happenings.put(random_pod(chance, f"p{number}"))
        if chance.random() < 0.6:
            cluster.settle()
    cluster.settle()
    pods = [one for one in cluster.happenings.of(Pod) if isinstance(one, Pod)]
    placed = [one for one in pods if one.spec.node_name]
    for one in placed:
        for other in placed:
            is_beside = one is not other and one.spec.node_name == other.spec.node_name
            is_ours = {one.spec.scheduler_name, other.spec.scheduler_name} != {"default-scheduler"}
            assert not (is_beside and is_ours and are_apart(one, other)), (one, other)
    for one in pods:
        if one.spec.node_name or one.metadata.uid in cluster.cache.problems:
            continue
        kept_off = {other.spec.node_name for other in placed if are_apart(one, other)}
        assert kept_off == {f"n{number}" for number in range(4)}, one


# Costs


def test_a_pod_in_a_rule_costs_the_same_among_ten_times_as_many() -> None:
    small, large = _costs(100), _costs(1_000)
    assert all(large[change] <= 1.2 * small[change] for change in small), (small, large)


def _costs(pods: int) -> dict[str, int]:
    """A rule that crosses and selects a tenth of all pods, and a rule by its own name for each Job."""
    cache = ClusterCache(KubeSettings())
    cache.replace_nodes([node("n1", cpu="64")])
    waiting = [carrier(f"c{number}") for number in range(pods // 10)]
    for number in range(pods):
        mine = {"job-name": f"j{number // 10}"}
        waiting.append(carrier(f"p{number}", mine, labels=mine, owner=owned_by("Job", f"j{number // 10}")))
    cache.replace_pods(waiting)
    assert KIND in str(cache.snapshot(NOW).nodes)
    late = {"job-name": "late"}
    changes = {
        "joins a rule that crosses": (carrier("late"), False),
        "leaves it": (carrier("late"), True),
        "is selected": (pod("late", labels=DB), False),
        "is not selected any more": (pod("late", labels={"app": "web"}), False),
        "has a rule of its own": (carrier("own", late, labels=late), False),
        "takes it away": (carrier("own", late, labels=late), True),
    }

    def take(one: Pod, gone: bool) -> None:
        put(cache, one, gone=gone)
        told(cache)

    return {name: instructions(lambda how=how: take(*how)) for name, how in changes.items()}  # type: ignore[misc]


def test_who_has_nothing_to_do_with_rules_pays_nothing_for_them() -> None:
    def cost(rules: int) -> int:
        anti_affinity = AntiAffinityTracker()
        for number in range(rules):
            anti_affinity.set(f"c{number}", carrier(f"c{number}", {"app": f"a{number}"}), f"w{number}")
        plain = pod("plain", labels={"team": "x"})
        return instructions(lambda: anti_affinity.set("plain", plain, "w"))

    assert cost(200) <= 1.05 * cost(2)
