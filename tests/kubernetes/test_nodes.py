"""Which nodes are used: taints, cordons, zones, ports, others' pods, and the policy that chooses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.kubernetes.conftest import FOUR_CORES
from tests.kubernetes.manifests import bare_pod, job, stateful_set
from tests.kubernetes.namespaces import Lab, Room, workers
from tests.kubernetes.site import wait_for

ZONE = "topology.kubernetes.io/zone"


@contextmanager
def changed(room: Room, node: str, *doing: str, undo: tuple[str, ...]) -> Iterator[None]:
    """A node that is left as it was."""
    room.site.kubectl(*doing)
    try:
        yield
    finally:
        room.site.kubectl(*undo, check=False)
        wait_for(lambda: node in workers(room.site), "the node to be as before")


def test_a_tainted_node_is_used_by_those_who_tolerate_it_only(room: Room) -> None:
    node = workers(room.site)[0]
    taint = "penstock-test=blocked:NoSchedule"
    with changed(room, node, "taint", "node", node, taint, undo=("taint", "node", node, f"{taint}-")):
        room.put(job("gang", 3, "4"))
        room.wait_bound("gang", 3)
        assert node not in room.nodes_of("gang")
        room.put(job("extra", 1, "1"))
        room.wait_looked_at("extra")
        room.put(bare_pod("tolerant", "4", tolerations=[{"key": "penstock-test", "operator": "Exists"}]))
        (pod,) = room.wait_bound("tolerant", 1)
        assert pod["spec"]["nodeName"] == node
        assert room.bound("extra") == []
        room.delete("Pod", "tolerant")
    room.wait_bound("extra", 1)


def test_a_cordoned_node_is_used_again_when_it_is_uncordoned(room: Room) -> None:
    node = workers(room.site)[-1]
    with changed(room, node, "cordon", node, undo=("uncordon", node)):
        room.put(job("gang", 4, "4"))
        room.wait_looked_at("gang")
        assert room.bound() == []
    room.wait_bound("gang", 4)
    assert node in room.nodes_of("gang")


def apart_from(app: str) -> dict[str, Any]:
    term = {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "kubernetes.io/hostname"}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def test_pods_that_keep_apart_from_their_like_get_distinct_nodes(room: Room) -> None:
    room.put(job("apart", 4, "1", affinity=apart_from("apart")))
    room.wait_bound("apart", 4)
    assert len(set(room.nodes_of("apart"))) == 4


def test_pods_of_different_groups_are_kept_apart_from_each_other(room: Room) -> None:
    """Each pod of such a StatefulSet is a group by itself, made when the one before runs."""
    room.put(stateful_set("db", 4, "100m", policy="OrderedReady", affinity=apart_from("db")))
    room.wait_bound("db", 4, limit_s=60.0)
    assert len(set(room.nodes_of("db"))) == 4
    room.put(bare_pod("late", "100m", app="db"), bare_pod("other", "100m"))
    room.wait_bound("other", 1)
    assert "Unschedulable" in room.wait_told("db", "those with app=db are kept apart")
    room.delete("StatefulSet", "db")
    wait_for(lambda: len(room.pods("db")) == 1, "the pods of the StatefulSet to go")
    room.wait_bound("db", 1)


def test_pods_of_others_keep_ours_off_their_nodes(room: Room) -> None:
    others = [bare_pod(f"other-{n}", "100m", app="web", scheduler="default-scheduler") for n in range(4)]
    for one in others:
        one["spec"]["affinity"] = apart_from("web")
    room.put(*others)
    room.wait_bound("web", 4)
    room.put(bare_pod("ours", "100m", app="web"))
    room.wait_told("web", "those with app=web are kept apart")
    node = room.get("Pod", "other-2")["spec"]["nodeName"]
    room.delete("Pod", "other-2")
    room.wait(lambda: room.get("Pod", "ours")["spec"].get("nodeName") == node, lambda: room.why("web"))


def test_distinct_nodes_can_be_asked_for_by_name(room: Room) -> None:
    room.put(job("apart", 5, "100m", annotations={"penstock.dev/distinct-nodes": "true"}))
    room.wait_told("apart", "never")
    room.put(job("fewer", 4, "100m", annotations={"penstock.dev/distinct-nodes": "true"}))
    room.wait_bound("fewer", 4)
    assert len(set(room.nodes_of("fewer"))) == 4


def test_a_gang_stays_within_one_zone(room: Room) -> None:
    within = {"penstock.dev/within": "zone"}
    room.put(job("near", 2, "4", annotations=within), job("wide", 3, "4", annotations=within))
    room.wait_bound("near", 2)
    room.wait_told("wide", "never")
    zones = {node["metadata"]["name"]: node["metadata"]["labels"][ZONE] for node in _nodes(room)}
    assert len({zones[name] for name in room.nodes_of("near")}) == 1


def _nodes(room: Room) -> list[dict[str, dict[str, dict[str, str]]]]:
    assert room.site.cluster is not None
    found: list[dict[str, dict[str, dict[str, str]]]] = room.site.cluster.api.get("/api/v1/nodes")["items"]
    return found


def test_a_host_port_is_given_once_per_node(room: Room) -> None:
    port = {"ports": [{"containerPort": 80, "hostPort": 18080}]}
    room.put(*(bare_pod(f"server-{index}", "100m", app="server", container=port) for index in range(5)))
    first = room.wait_bound("server", 4)
    assert len(set(room.nodes_of("server"))) == 4
    room.wait_told("server", "Unschedulable")
    room.delete("Pod", first[0]["metadata"]["name"])
    wait_for(lambda: len(room.pods("server")) == 4, "the first to go")
    room.wait_bound("server", 4)


def test_pods_of_others_are_counted(room: Room) -> None:
    room.put(*(bare_pod(f"other-{n}", "3", app="other", scheduler="default-scheduler") for n in range(4)))
    room.wait_bound("other", 4)
    room.put(job("gang", 2, "2"), job("small", 4, "1"))
    room.wait_bound("small", 4)
    room.wait_looked_at("gang")
    assert room.bound("gang") == []
    assert room.site.overcommitted() == {}
    room.delete("Pod", "other-0")
    room.wait_told("gang", "Unschedulable")
    room.delete("Pod", "other-1")
    room.wait_bound("gang", 2)


def test_no_node_is_overcommitted_while_others_go_one_by_one(room: Room) -> None:
    for n in range(12):
        room.put(bare_pod(f"other-{n}", app="other", scheduler="default-scheduler", run=f"{3 + n / 4}s"))
    room.wait_bound("other", 12)
    room.put(*(bare_pod(f"ours-{n}", app="ours", run="2s") for n in range(12)))
    seen: list[object] = []

    def is_over() -> bool:
        seen.append(room.site.overcommitted())
        return all(pod["status"]["phase"] == "Succeeded" for pod in room.pods())

    wait_for(is_over, "all to run", 60)
    assert [over for over in seen if over] == []


@pytest.mark.parametrize(("policy", "nodes"), [("pack", 1), ("spread", 4)])
def test_the_match_policy_packs_or_spreads(lab: Lab, policy: str, nodes: int) -> None:
    lab.site()
    lab.have_nodes(4, FOUR_CORES)
    with lab.room(lab.penstock("--match-policy", policy)) as room:
        for index in range(4):
            name = f"single-{index}"
            room.put(bare_pod(name, "1"))
            room.wait_bound(name, 1)
        assert len(set(room.nodes_of())) == nodes


def test_a_group_that_never_completes_is_given_up_and_tried_again_when_somebody_comes(lab: Lab) -> None:
    lab.site()
    lab.have_nodes(4, FOUR_CORES)
    group = {"penstock.dev/group": "half", "penstock.dev/group-size": "3"}
    with lab.room(lab.penstock(assemble="5s")) as room:
        room.put(*(bare_pod(f"half-{n}", app="half", annotations=group) for n in range(2)))
        room.wait_told("half", "GroupIncomplete", "2 of 3")
        room.wait_told("half", "GroupInadmissible")
        wait_for(
            lambda: any(
                event["reason"] == "FailedScheduling" and event["type"] == "Warning"
                for event in room.events("half-0")
            ),
            "the event",
        )
        assert room.bound() == []
        room.put(bare_pod("half-2", app="half", annotations=group))
        room.wait_bound("half", 3)
