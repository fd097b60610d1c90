"""What happens to a gang between its allocation and its start: nodes go, others come, kubelets refuse.

Between the two there is no time in which a test could act; so Penstock is made to die there, the cluster
changes while it is away, and another one goes on with what was recorded.
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
def test_a_node_that_goes_before_the_binding(
    site: Site, replica: Replica, failpoints: Failpoints, kind: str, is_away: bool
) -> None:
    """Those who were on their way to it go elsewhere, as soon as there is somewhere."""
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
def test_others_fill_a_node_between_match_and_binding(
    site: Site, replica: Replica, failpoints: Failpoints, kind: str
) -> None:
    """Nobody is bound there. When the others go, the gang is made whole."""
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


def test_others_stay_and_the_gang_of_a_job_begins_anew(
    site: Site, replica: Replica, failpoints: Failpoints
) -> None:
    """It could not be made whole in time: those who are there are evicted, and all of it waits again."""
    with clean_namespace(site, replica) as namespace:
        failpoints.arm("instance.act.before")
        create(site, namespace, job_gang("gang", run=UNLIMITED))
        replica.wait_dead()
        create(site, namespace, foreign_pod("foreign", node=nodes(site)[1]))
        restart(replica)
        wait_phases(site, namespace, "gang", Running=2, Pending=1)
        wait_phases(site, namespace, "gang", Pending=3, Running=0, limit_s=60)
        site.wait_consistent(replica)
        api_of(site).delete(f"/api/v1/namespaces/{namespace}/pods/foreign", {"gracePeriodSeconds": 0})
        wait_phases(site, namespace, "gang", Running=3)
        site.wait_consistent(replica)


def test_others_stay_and_bare_pods_say_that_they_are_broken(
    site: Site, replica: Replica, failpoints: Failpoints
) -> None:
    with clean_namespace(site, replica) as namespace:
        failpoints.arm("instance.act.before")
        create(site, namespace, *bare_gang("gang", run=UNLIMITED))
        replica.wait_dead()
        create(site, namespace, foreign_pod("foreign", node=nodes(site)[1]))
        restart(replica)
        wait_phases(site, namespace, "gang", Running=2, Pending=1)
        wait_for(lambda: incomplete_reasons(replica), "the job to be told broken", 60.0)
        assert "others have taken what was free" in incomplete_reasons(replica)[0]
        wait_for(lambda: "GroupIncomplete" in reasons(site, namespace), "its pod to say so")
        site.wait_consistent(replica)
        api_of(site).delete(f"/api/v1/namespaces/{namespace}/pods/foreign", {"gracePeriodSeconds": 0})
        wait_phases(site, namespace, "gang", Running=3)  # Late is better than never.
        site.wait_consistent(replica)


def reasons(site: Site, namespace: str) -> set[str]:
    return {
        str(condition.get("reason"))
        for pod in pods(site, namespace)
        for condition in pod["status"].get("conditions", ())
        if condition["type"] == "PodScheduled"
    }


def test_a_kubelet_that_refuses_a_bare_pod_breaks_its_gang(site: Site, replica: Replica) -> None:
    with clean_namespace(site, replica) as namespace:
        made = bare_gang("gang", run=UNLIMITED)
        made[1]["metadata"]["annotations"]["penstock.dev/sim-refuse"] = "OutOfcpu"
        create(site, namespace, *made)
        wait_phases(site, namespace, Running=2, Failed=1)
        wait_for(lambda: incomplete_reasons(replica), "the job to be told broken")
        assert "OutOfcpu" in incomplete_reasons(replica)[0]
        site.wait_consistent(replica)


def test_a_kubelet_that_refuses_a_pod_of_a_job_gets_another(site: Site, replica: Replica) -> None:
    """The Job's controller makes it, without the order to refuse it, and it joins the gang."""
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


def test_pods_deleted_while_they_wait(site: Site, replica: Replica) -> None:
    """A gang that is not whole any more waits for another member; one that is gone is forgotten."""
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


def test_the_default_scheduler_works_on_the_same_nodes(site: Site, replica: Replica) -> None:
    """Both find out late what the other has taken, again and again: we never take what we could know of."""
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
    """Nodes on which we took too much. What both take in the same moment is for the kubelet to decide."""
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
