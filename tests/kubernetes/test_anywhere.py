"""Tests that pass on any cluster: a simulated one, or one with real kubelets (`make e2e KUBECONFIG=FILE`).

On a real cluster the nodes must be able to run `busybox:latest`, at least two of them must have about the
same free capacity, and no other Penstock may be leader.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

from penstock.devcluster.settings import NodeShape
from penstock.model.quantity import parse_quantity
from tests.kubernetes.manifests import job
from tests.kubernetes.namespaces import SharedCluster
from tests.kubernetes.site import ROOT, Replica, Site, external_kubeconfig, requests_of, site_of, wait_for

LIMIT_S = 120.0  # real containers start slowly
GANG = ROOT / "examples" / "kube" / "gang.yaml"


@dataclass(frozen=True)
class TwoNodes:
    site: Site
    penstock: Replica
    nodes: tuple[str, str]
    cpu: str  # a request of which exactly one fits on each of the two nodes

    def gang(self, name: str, command: str, cpu: str = "", count: int = 2) -> dict[str, Any]:
        """A Job bound to the two nodes. Its command also determines the run time of simulated pods."""
        names = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(self.nodes)}
        terms = [{"matchExpressions": [names]}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        container = {"command": ["sh", "-c", command]}
        made = job(
            name,
            count,
            cpu or self.cpu,
            container=container,
            affinity={"nodeAffinity": required},
            terminationGracePeriodSeconds=1,
        )
        del made["spec"]["template"]["metadata"]["annotations"]["penstock.dev/sim-run"]
        return made

    def bound(self, namespace: str, app: str) -> list[dict[str, Any]]:
        return [
            pod
            for pod in self.site.pods(namespace, f"app={app}")
            if pod["spec"].get("nodeName") and pod["status"]["phase"] in ("Pending", "Running")
        ]

    def is_complete(self, namespace: str, name: str) -> bool:
        conditions = self.site.get("job", name, "-n", namespace)["status"].get("conditions", ())
        return any(one["type"] == "Complete" and one["status"] == "True" for one in conditions)

    def pending_reason(self, namespace: str, app: str) -> str:
        for pod in self.site.pods(namespace, f"app={app}"):
            for condition in pod["status"].get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    return f"{condition.get('reason')}: {condition.get('message')}"
        return ""


def _two_nodes(site: Site, penstock: Replica) -> TwoNodes:
    """Chooses the two nodes whose free CPU differs least."""
    used: dict[str, int] = {}
    for pod in site.get("pods", "-A")["items"]:
        node = pod["spec"].get("nodeName")
        if node and pod["status"].get("phase") not in ("Succeeded", "Failed"):
            used[node] = used.get(node, 0) + requests_of(pod).get("cpu", 0)
    free = sorted(
        (
            parse_quantity(node["status"]["allocatable"]["cpu"], scale=1000) - used.get(_name(node), 0),
            _name(node),
        )
        for node in site.get("nodes")["items"]
        if not node["spec"].get("taints")
    )
    pairs = sorted(pairwise(free), key=lambda pair: pair[1][0] - pair[0][0])
    if not pairs or pairs[0][1][0] > 1.6 * pairs[0][0][0]:
        pytest.skip(f"SKIPPED because no two nodes have about the same free CPU: {free}")
    (least, first), (_, second) = pairs[0]
    return TwoNodes(site, penstock, (first, second), f"{least * 6 // 10}m")


def _name(node: dict[str, Any]) -> str:
    return str(node["metadata"]["name"])


@pytest.fixture(scope="module")
def two_nodes(shared_cluster: SharedCluster) -> Iterator[TwoNodes]:
    kubeconfig = external_kubeconfig()
    if kubeconfig is not None:
        with site_of(kubeconfig) as site:
            yield _two_nodes(site, site.replica().start().wait_ready())
        return
    site = shared_cluster.site()
    shared_cluster.ensure_nodes(2, NodeShape(cpu="2", memory="8Gi"))
    yield _two_nodes(site, shared_cluster.penstock())


def test_the_first_example_starts_as_a_gang_and_completes(two_nodes: TwoNodes) -> None:
    site = two_nodes.site
    with site.namespace() as namespace:
        site.apply(GANG, namespace)
        pods = wait_for(lambda: _all_running(site, namespace, 3), "all three to run", LIMIT_S)
        assert len({pod["metadata"]["annotations"]["penstock.dev/job"] for pod in pods}) == 1
        wait_for(lambda: two_nodes.is_complete(namespace, "gang"), "the Job to complete", LIMIT_S)
        for pod in pods:
            assert {event["reportingComponent"] for event in _scheduled(site, namespace, _name(pod))} == {
                "penstock"
            }


def test_the_containers_of_the_first_example_print_their_output(two_nodes: TwoNodes) -> None:
    site = two_nodes.site
    if site.cluster is not None:
        pytest.skip("SKIPPED because simulated nodes print nothing that kubectl logs could show")
    with site.namespace() as namespace:
        site.apply(GANG, namespace)
        pods = wait_for(lambda: _all_running(site, namespace, 3), "all three to run", LIMIT_S)
        for pod in pods:
            index = pod["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
            assert _printed(site, namespace, _name(pod)) == f"hello from {index}\n"


def _printed(site: Site, namespace: str, pod: str) -> str:
    found = wait_for(lambda: site.kubectl("logs", "-n", namespace, pod), "something printed", LIMIT_S)
    return str(found)


def _all_running(site: Site, namespace: str, count: int) -> list[dict[str, Any]]:
    pods = site.pods(namespace)
    return pods if [pod["status"]["phase"] for pod in pods] == ["Running"] * count else []


def _scheduled(site: Site, namespace: str, pod: str) -> list[dict[str, Any]]:
    found = site.get("events", "-n", namespace, "--field-selector", f"involvedObject.name={pod}")["items"]
    return [event for event in found if event["reason"] == "Scheduled"]


def test_two_gangs_that_do_not_fit_together_run_one_after_another(two_nodes: TwoNodes) -> None:
    site = two_nodes.site
    with site.namespace() as namespace:
        site.apply([two_nodes.gang("red", "sleep 10"), two_nodes.gang("blue", "sleep 10")], namespace)
        wait_for(
            lambda: len(two_nodes.bound(namespace, "red") + two_nodes.bound(namespace, "blue")) == 2,
            "one of them on its nodes",
            LIMIT_S,
        )
        winner, loser = ("red", "blue") if two_nodes.bound(namespace, "red") else ("blue", "red")
        assert len(two_nodes.bound(namespace, winner)) == 2
        wait_for(
            lambda: "Unschedulable" in two_nodes.pending_reason(namespace, loser),
            "the other to be told",
            LIMIT_S,
        )
        wait_for(lambda: two_nodes.is_complete(namespace, winner), "the winner to complete", LIMIT_S)
        wait_for(lambda: two_nodes.is_complete(namespace, loser), "the loser to have its turn", LIMIT_S)
        assert site.overcommitted() == {}
    site.wait_consistent(two_nodes.penstock)


def test_finished_and_deleted_pods_release_their_resources(two_nodes: TwoNodes) -> None:
    site = two_nodes.site
    with site.namespace() as namespace:
        site.apply(two_nodes.gang("ends", "sleep 1"), namespace)
        wait_for(lambda: two_nodes.is_complete(namespace, "ends"), "the first to end", LIMIT_S)
        site.apply(two_nodes.gang("deleted", "sleep infinity"), namespace)
        wait_for(lambda: len(two_nodes.bound(namespace, "deleted")) == 2, "the second on its nodes", LIMIT_S)
        site.kubectl("delete", "job", "deleted", "-n", namespace)
        site.apply(two_nodes.gang("last", "sleep 1"), namespace)
        wait_for(lambda: two_nodes.is_complete(namespace, "last"), "the third to end", LIMIT_S)
    site.wait_consistent(two_nodes.penstock)


def test_an_unsatisfiable_gang_has_a_condition_that_says_so(two_nodes: TwoNodes) -> None:
    with two_nodes.site.namespace() as namespace:
        two_nodes.site.apply(two_nodes.gang("huge", "true", "4000"), namespace)
        wait_for(
            lambda: "it can never run here" in two_nodes.pending_reason(namespace, "huge"),
            "the huge one to be told",
            LIMIT_S,
        )
        assert two_nodes.bound(namespace, "huge") == []
