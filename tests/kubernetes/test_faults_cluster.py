"""Faults between the allocation and the start of a gang: lost nodes, foreign pods, kubelets that reject pods.

The time between both is too short for a test to act. Penstock therefore crashes there at a failpoint, the
cluster changes while it is down, and a restarted Penstock continues from the recorded state.
"""

from __future__ import annotations

import threading

import pytest

from penstock.devcluster.client import StatusError, SyncClient
from tests.kubernetes.faults import (
    UNLIMITED,
    Failpoints,
    api_of,
    bare_gang,
    check_bound_once,
    check_next_gang,
    clean_namespace,
    create,
    foreign_pod,
    incomplete_reasons,
    job_gang,
    pods,
    restart,
    wait_all_bound,
    wait_phases,
)
from tests.kubernetes.site import Replica, Site, wait_for

pytestmark = pytest.mark.slow


def nodes(site: Site) -> list[str]:
    return sorted(node["metadata"]["name"] for node in api_of(site).get("/api/v1/nodes")["items"])


def delete_node(site: Site, name: str) -> None:
    api_of(site).delete(f"/api/v1/nodes/{name}")


def add_node(site: Site) -> None:
    assert site.cluster is not None
    site.cluster.add_nodes(1)


def gang(kind: str, run: str = "1s") -> list[dict[str, object]]:
    return bare_gang("gang", run=run) if kind == "pods" else [job_gang("gang", run=run)]


@pytest.mark.parametrize("kind", ["pods", "job"])
@pytest.mark.parametrize("is_away", [True, False], ids=["while-away", "while-there"])
def test_a_node_disappears_before_the_binding(
    site: Site, replica: Replica, failpoints: Failpoints, kind: str, is_away: bool
) -> None:
    """Its pods are bound to another node as soon as one has enough free resources."""
    with clean_namespace(site, replica) as namespace:
        failpoints.arm("instance.act.before")
        create(site, namespace, *gang(kind))
        replica.wait_dead()
        gone = nodes(site)[0]
        if is_away:
            delete_node(site, gone)
            restart(replica)
        else:
            failpoints.arm("kube.bind.before")
            restart(replica)
            replica.wait_dead()
            restart(replica)
            delete_node(site, gone)
        add_node(site)
        wait_phases(site, namespace, Succeeded=3, limit_s=90)
        check_next_gang(site, namespace)
        site.wait_consistent(replica)


@pytest.mark.parametrize("kind", ["pods", "job"])
def test_foreign_pods_fill_a_node_between_match_and_binding(
    site: Site, replica: Replica, failpoints: Failpoints, kind: str
) -> None:
    """No pod is bound there. When the foreign pods end, the gang is completed."""
    with clean_namespace(site, replica) as namespace:
        failpoints.arm("instance.act.before")
        create(site, namespace, *gang(kind, run=UNLIMITED))
        replica.wait_dead()
        create(site, namespace, foreign_pod("foreign", node=nodes(site)[1]))
        restart(replica)
        wait_phases(site, namespace, "gang", Running=2, Pending=1)
        assert site.overcommitted() == {}
        api_of(site).delete(f"/api/v1/namespaces/{namespace}/pods/foreign", {"gracePeriodSeconds": 0})
        wait_phases(site, namespace, "gang", Running=3)
        assert incomplete_reasons(replica) == []
        site.wait_consistent(replica)


@pytest.mark.parametrize("kind", ["bare", "Job"])
def test_foreign_pods_stay_and_a_gang_of_which_pods_run_reports_that_it_is_incomplete(
    site: Site, replica: Replica, failpoints: Failpoints, kind: str
) -> None:
    with clean_namespace(site, replica) as namespace:
        failpoints.arm("instance.act.before")
        made = [job_gang("gang", run=UNLIMITED)] if kind == "Job" else bare_gang("gang", run=UNLIMITED)
        create(site, namespace, *made)
        replica.wait_dead()
        create(site, namespace, foreign_pod("foreign", node=nodes(site)[1]))
        restart(replica)
        wait_phases(site, namespace, "gang", Running=2, Pending=1)
        wait_for(lambda: incomplete_reasons(replica), "the job to be reported as incomplete", 60.0)
        assert "no longer has the requested resources" in incomplete_reasons(replica)[0]
        wait_for(lambda: "GroupIncomplete" in reasons(site, namespace), "its pod to say so")
        site.wait_consistent(replica)
        api_of(site).delete(f"/api/v1/namespaces/{namespace}/pods/foreign", {"gracePeriodSeconds": 0})
        wait_phases(
            site, namespace, "gang", Running=3
        )  # The gang is completed even after it was reported as incomplete.
        site.wait_consistent(replica)


def reasons(site: Site, namespace: str) -> set[str]:
    return {
        str(condition.get("reason"))
        for pod in pods(site, namespace)
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "PodScheduled"
    }


def test_a_gang_is_incomplete_after_a_kubelet_rejects_a_bare_pod(site: Site, replica: Replica) -> None:
    with clean_namespace(site, replica) as namespace:
        made = bare_gang("gang", run=UNLIMITED)
        made[1]["metadata"]["annotations"]["penstock.dev/sim-refuse"] = "OutOfcpu"
        create(site, namespace, *made)
        wait_phases(site, namespace, Running=2, Failed=1)
        wait_for(lambda: incomplete_reasons(replica), "the job to be reported as incomplete")
        assert "OutOfcpu" in incomplete_reasons(replica)[0]
        site.wait_consistent(replica)


def test_a_pod_of_a_job_that_a_kubelet_rejects_is_replaced(site: Site, replica: Replica) -> None:
    """The Job controller creates another pod, which is not rejected, and it joins the gang."""
    with clean_namespace(site, replica) as namespace:
        create(site, namespace, job_gang("gang", run=UNLIMITED, group_size="3"))
        path = f"/api/v1/namespaces/{namespace}/pods"
        wait_phases(site, namespace, Running=3)
        victim = pods(site, namespace)[0]["metadata"]["name"]
        refused = {"status": {"phase": "Failed", "reason": "OutOfcpu", "containerStatuses": None}}
        api_of(site).request("PATCH", f"{path}/{victim}/status", refused, "application/merge-patch+json")
        wait_phases(site, namespace, Running=3, Failed=1)
        assert incomplete_reasons(replica) == []
        assert len(replica.jobs()) == 1
        check_bound_once(site, namespace)
        site.wait_consistent(replica)


def test_pods_deleted_while_they_are_pending(site: Site, replica: Replica) -> None:
    """A gang that lost a pod waits for another member; the job of a gang without pods ends."""
    with clean_namespace(site, replica) as namespace:
        path = f"/api/v1/namespaces/{namespace}/pods"
        create(site, namespace, *bare_gang("first", run=UNLIMITED))
        wait_phases(site, namespace, "first", Running=3)
        create(site, namespace, *bare_gang("second"), *bare_gang("third"))
        wait_for(lambda: len(replica.jobs()) == 3, "three jobs")
        for name in ("second-0", "third-0", "third-1", "third-2"):
            api_of(site).delete(f"{path}/{name}", {"gracePeriodSeconds": 0})
        wait_for(lambda: len(replica.jobs()) == 2, "the third job to be over")
        for index in range(3):
            api_of(site).delete(f"{path}/first-{index}", {"gracePeriodSeconds": 0})
        wait_for(lambda: len(replica.jobs()) == 1, "the first job to be over")
        site.wait_consistent(replica)
        assert not any(pod["spec"].get("nodeName") for pod in pods(site, namespace))
        create(site, namespace, bare_gang("second")[0])
        wait_phases(site, namespace, "second", Succeeded=3)
        site.wait_consistent(replica)


def test_the_default_scheduler_uses_the_same_nodes(site: Site, replica: Replica) -> None:
    """Both schedulers learn of each other's bindings late; Penstock never uses what it knows to be taken."""
    with clean_namespace(site, replica) as namespace:
        stop = threading.Event()
        over: list[object] = []
        others = threading.Thread(target=come_and_go, args=(site, namespace, stop))
        looks = threading.Thread(target=look, args=(site, stop, over))
        others.start()
        looks.start()
        try:
            for number in range(12):
                create(site, namespace, job_gang(f"gang{number}", cpu="1500m", run="300ms"))
            wait_phases(site, namespace, "gang", Succeeded=36, limit_s=120)
        finally:
            stop.set()
            others.join()
            looks.join()
        assert over == []
        bound_once_ours(site, namespace)
        site.wait_consistent(replica)


def come_and_go(site: Site, namespace: str, stop: threading.Event) -> None:
    assert site.cluster is not None
    api = SyncClient(site.cluster.kubeconfig)
    path = f"/api/v1/namespaces/{namespace}/pods"
    number = 0
    while not stop.wait(0.05):
        api.post(path, foreign_pod(f"other-{number}", cpu="700m"))
        if number >= 5:
            api.delete(f"{path}/other-{number - 5}", {"gracePeriodSeconds": 0})
        number += 1
    for left in range(max(0, number - 5), number):
        try:
            api.delete(f"{path}/other-{left}", {"gracePeriodSeconds": 0})
        except StatusError:
            continue


def look(site: Site, stop: threading.Event, over: list[object]) -> None:
    """Collects nodes that Penstock over-committed. Simultaneous bindings are left to the kubelet."""
    while not stop.wait(0.5):
        found = site.overcommitted(blame_s=2.0)
        if found:
            over.append(found)


def bound_once_ours(site: Site, namespace: str) -> None:
    refused = [
        pod["metadata"]["name"]
        for pod in pods(site, namespace, "gang")
        if pod["status"].get("reason", "").startswith("OutOf")
    ]
    assert refused == []
    assert wait_all_bound(site, namespace, "gang")
