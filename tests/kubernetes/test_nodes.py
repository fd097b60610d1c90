"""The choice of nodes: taints, cordons, anti-affinity, zones, host ports, foreign pods and match policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kubernetes.conftest import FOUR_CORES
from tests.kubernetes.manifests import bare_pod, job, stateful_set
from tests.kubernetes.namespaces import Namespace, SharedCluster, workers
from tests.kubernetes.site import wait_for

ZONE = "topology.kubernetes.io/zone"


@contextmanager
def changed(namespace: Namespace, node: str, *doing: str, undo: tuple[str, ...]) -> Iterator[None]:
    """A node whose changes are reverted at the end."""
    namespace.site.kubectl(*doing)
    try:
        yield
    finally:
        namespace.site.kubectl(*undo, check=False)
        wait_for(lambda: node in workers(namespace.site), "the node to be as before")


def test_a_tainted_node_is_used_only_by_pods_that_tolerate_it(namespace: Namespace) -> None:
    node = workers(namespace.site)[0]
    taint = "penstock-test=blocked:NoSchedule"
    with changed(namespace, node, "taint", "node", node, taint, undo=("taint", "node", node, f"{taint}-")):
        namespace.create(job("gang", 3, "4"))
        namespace.wait_bound("gang", 3)
        assert node not in namespace.nodes_of("gang")
        namespace.create(job("extra", 1, "1"))
        namespace.wait_any_reason("extra")
        namespace.create(
            bare_pod("tolerant", "4", tolerations=[{"key": "penstock-test", "operator": "Exists"}])
        )
        (pod,) = namespace.wait_bound("tolerant", 1)
        assert pod["spec"]["nodeName"] == node
        assert namespace.bound("extra") == []
        namespace.delete("Pod", "tolerant")
    namespace.wait_bound("extra", 1)


def test_a_cordoned_node_is_used_again_when_it_is_uncordoned(namespace: Namespace) -> None:
    node = workers(namespace.site)[-1]
    with changed(namespace, node, "cordon", node, undo=("uncordon", node)):
        namespace.create(job("gang", 4, "4"))
        namespace.wait_any_reason("gang")
        assert namespace.bound() == []
    namespace.wait_bound("gang", 4)
    assert node in namespace.nodes_of("gang")


def apart_from(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_pods_with_anti_affinity_to_their_own_label_get_distinct_nodes(namespace: Namespace) -> None:
    namespace.create(job("apart", 4, "1", affinity=apart_from("apart")))
    namespace.wait_bound("apart", 4)
    assert len(set(namespace.nodes_of("apart"))) == 4


def test_anti_affinity_applies_across_groups(namespace: Namespace) -> None:
    """Each pod of an ordered StatefulSet is a group, created when the previous pod runs."""
    namespace.create(stateful_set("db", 4, "100m", policy="OrderedReady", affinity=apart_from("db")))
    namespace.wait_bound("db", 4, limit_s=60.0)
    assert len(set(namespace.nodes_of("db"))) == 4
    namespace.create(bare_pod("late", "100m", app="db"), bare_pod("other", "100m"))
    namespace.wait_bound("other", 1)
    assert "Unschedulable" in namespace.wait_reason("db", "anti-affinity with app=db excludes 4 nodes")
    namespace.delete("StatefulSet", "db")
    wait_for(lambda: len(namespace.pods("db")) == 1, "the pods of the StatefulSet to go")
    namespace.wait_bound("db", 1)


def test_anti_affinity_of_foreign_pods_is_respected(namespace: Namespace) -> None:
    others = [bare_pod(f"other-{n}", "100m", app="web", scheduler="default-scheduler") for n in range(4)]
    for one in others:
        one["spec"]["affinity"] = apart_from("web")
    namespace.create(*others)
    namespace.wait_bound("web", 4)
    namespace.create(bare_pod("ours", "100m", app="web"))
    namespace.wait_reason("web", "anti-affinity with app=web excludes 4 nodes")
    node = namespace.get("Pod", "other-2")["spec"]["nodeName"]
    namespace.delete("Pod", "other-2")
    namespace.wait(
        lambda: namespace.get("Pod", "ours")["spec"].get("nodeName") == node,
        lambda: namespace.pending_reason("web"),
    )


def test_distinct_nodes_can_be_requested_by_annotation(namespace: Namespace) -> None:
    namespace.create(job("apart", 5, "100m", annotations={"penstock.dev/distinct-nodes": "true"}))
    namespace.wait_reason("apart", "never")
    namespace.create(job("fewer", 4, "100m", annotations={"penstock.dev/distinct-nodes": "true"}))
    namespace.wait_bound("fewer", 4)
    assert len(set(namespace.nodes_of("fewer"))) == 4


def test_a_gang_stays_within_one_zone(namespace: Namespace) -> None:
    within = {"penstock.dev/within": "zone"}
    namespace.create(job("near", 2, "4", annotations=within), job("wide", 3, "4", annotations=within))
    namespace.wait_bound("near", 2)
    namespace.wait_reason("wide", "never")
    zones = {node["metadata"]["name"]: node["metadata"]["labels"][ZONE] for node in _nodes(namespace)}
    assert len({zones[name] for name in namespace.nodes_of("near")}) == 1


def _nodes(namespace: Namespace) -> list[dict[str, dict[str, dict[str, str]]]]:
    assert namespace.site.cluster is not None
    found: list[dict[str, dict[str, dict[str, str]]]] = namespace.site.cluster.api.get("/api/v1/nodes")[
        "items"
    ]
    return found


def test_a_host_port_is_used_once_per_node(namespace: Namespace) -> None:
    port = {"ports": [{"containerPort": 80, "hostPort": 18080}]}
    namespace.create(
        *(bare_pod(f"server-{index}", "100m", app="server", container=port) for index in range(5))
    )
    first = namespace.wait_bound("server", 4)
    assert len(set(namespace.nodes_of("server"))) == 4
    assert "Unschedulable" in namespace.wait_reason("server", "host port 18080/TCP excludes 4 nodes")
    namespace.delete("Pod", first[0]["metadata"]["name"])
    wait_for(lambda: len(namespace.pods("server")) == 4, "the first to go")
    namespace.wait_bound("server", 4)


def test_foreign_pods_count_as_usage(namespace: Namespace) -> None:
    namespace.create(
        *(bare_pod(f"other-{n}", "3", app="other", scheduler="default-scheduler") for n in range(4))
    )
    namespace.wait_bound("other", 4)
    namespace.create(job("gang", 2, "2"), job("small", 4, "1"))
    namespace.wait_bound("small", 4)
    namespace.wait_any_reason("gang")
    assert namespace.bound("gang") == []
    assert namespace.site.overcommitted() == {}
    namespace.delete("Pod", "other-0")
    namespace.wait_reason("gang", "Unschedulable")
    namespace.delete("Pod", "other-1")
    namespace.wait_bound("gang", 2)


def test_no_node_is_overcommitted_while_foreign_pods_end(namespace: Namespace) -> None:
    for n in range(12):
        namespace.create(
            bare_pod(f"other-{n}", app="other", scheduler="default-scheduler", run=f"{3 + n / 4}s")
        )
    namespace.wait_bound("other", 12)
    namespace.create(*(bare_pod(f"ours-{n}", app="ours", run="2s") for n in range(12)))
    seen: list[object] = []

    def is_over() -> bool:
        seen.append(namespace.site.overcommitted())
        return all(pod["status"]["phase"] == "Succeeded" for pod in namespace.pods())

    wait_for(is_over, "all to run", 60)
    assert [over for over in seen if over] == []


@pytest.mark.parametrize(("policy", "nodes"), [("pack", 1), ("spread", 4)])
def test_the_match_policy_packs_or_spreads(shared_cluster: SharedCluster, policy: str, nodes: int) -> None:
    shared_cluster.site()
    shared_cluster.ensure_nodes(4, FOUR_CORES)
    with shared_cluster.namespace(shared_cluster.penstock("--match-policy", policy)) as namespace:
        for index in range(4):
            name = f"single-{index}"
            namespace.create(bare_pod(name, "1"))
            namespace.wait_bound(name, 1)
        assert len(set(namespace.nodes_of())) == nodes


def test_an_incomplete_group_becomes_inadmissible_until_a_pod_is_added(
    shared_cluster: SharedCluster,
) -> None:
    shared_cluster.site()
    shared_cluster.ensure_nodes(4, FOUR_CORES)
    group = {"penstock.dev/group": "half", "penstock.dev/group-size": "3"}
    with shared_cluster.namespace(shared_cluster.penstock(assembly_timeout="5s")) as namespace:
        namespace.create(*(bare_pod(f"half-{n}", app="half", annotations=group) for n in range(2)))
        namespace.wait_reason("half", "GroupIncomplete", "2 of 3")
        namespace.wait_reason("half", "GroupInadmissible")
        wait_for(
            lambda: any(
                event["reason"] == "FailedScheduling" and event["type"] == "Warning"
                for event in namespace.events("half-0")
            ),
            "the event",
        )
        assert namespace.bound() == []
        namespace.create(bare_pod("half-2", app="half", annotations=group))
        namespace.wait_bound("half", 3)
