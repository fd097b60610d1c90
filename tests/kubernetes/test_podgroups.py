"""Groups whose size is defined by an object: the PodGroups of coscheduling and of Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.conftest import FOUR_CORES
from tests.kubernetes.manifests import bare_pod, deployment, job, native_group, pod_group
from tests.kubernetes.namespaces import Namespace, SharedCluster, job_id
from tests.kubernetes.site import wait_for

COSCHEDULING = "scheduling.x-k8s.io/pod-group"


@pytest.fixture
def namespace(shared_cluster: SharedCluster) -> Iterator[Namespace]:
    """A namespace on a control plane with Kubernetes' own gang scheduling enabled."""
    shared_cluster.site(native_gang=True)
    shared_cluster.ensure_nodes(4, FOUR_CORES)
    with shared_cluster.namespace(shared_cluster.penstock()) as made:
        yield made


def wait_phase(namespace: Namespace, name: str, phase: str, **counts: int) -> None:
    """Waits for the status of a coscheduling PodGroup."""
    assert namespace.site.cluster is not None
    api = namespace.site.cluster.api
    path = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{namespace.name}/podgroups/{name}"
    expected = {"phase": phase, **counts}

    def has_status() -> bool:
        status = api.get(path).get("status", {})
        return all(status.get(key) == value for key, value in expected.items())

    namespace.wait(has_status, lambda: f"{expected} of PodGroup {name}; found {api.get(path).get('status')}")


def test_a_coscheduling_pod_group_defines_the_group_size(namespace: Namespace) -> None:
    labels = {COSCHEDULING: "team"}
    namespace.create(bare_pod("team-0", "4", app="team", labels=labels))
    namespace.wait_reason("team", "PodGroupNotFound")
    namespace.create(pod_group("team", 3))
    namespace.wait_reason("team", "GroupIncomplete", "1 of 3")
    wait_phase(namespace, "team", "Pending")
    namespace.create(
        bare_pod("team-1", "4", app="team", labels=labels), bare_pod("team-2", "4", app="team", labels=labels)
    )
    assert len({job_id(pod) for pod in namespace.wait_bound("team", 3)}) == 1
    wait_phase(namespace, "team", "Running", running=3)
    # More pods than the group needs join it, as far as there is room.
    more = [bare_pod(f"team-{number}", "4", app="team", labels=labels) for number in (3, 4)]
    namespace.create(*more)
    assert len({job_id(pod) for pod in namespace.wait_bound("team", 4)}) == 1


def test_a_group_starts_with_its_minimum_while_further_pods_wait(namespace: Namespace) -> None:
    namespace.create(
        *(bare_pod(f"team-{n}", "4", app="team", labels={COSCHEDULING: "team"}) for n in range(6))
    )
    namespace.wait_reason("team", "PodGroupNotFound")
    namespace.create(pod_group("team", 3))
    assert len({job_id(pod) for pod in namespace.wait_bound("team", 4)}) == 1


def test_a_pod_group_with_a_refused_pod_is_incomplete_and_its_owner_is_told(namespace: Namespace) -> None:
    """Two of three bare pods run, the kubelet refuses the third, and nobody replaces it."""
    labels = {COSCHEDULING: "team"}
    pods = [bare_pod(f"team-{number}", "4", app="team", labels=labels) for number in range(3)]
    pods[1]["metadata"]["annotations"]["penstock.dev/sim-refuse"] = "OutOfcpu"
    namespace.create(pod_group("team", 3), *pods)
    incomplete = {"team", "team-0", "team-2"}
    events = wait_for(
        lambda: (
            incomplete <= namespace.regarded("GroupIncomplete").keys()
            and namespace.regarded("GroupIncomplete")
        ),
        "the events of the pods and the PodGroup",
    )
    group = events["team"]["regarding"]
    found = namespace.get("PodGroup", "team", "scheduling.x-k8s.io/v1alpha1")
    assert (group["kind"], group["uid"]) == ("PodGroup", found["metadata"]["uid"])
    assert all("team-1" in event["note"] and "OutOfcpu" in event["note"] for event in events.values())
    (held,) = namespace.jobs()
    assert " RI " in namespace.penstock.call("jobs").stdout
    assert "penstock_jobs_incomplete 1.0" in namespace.penstock.metrics()
    done = namespace.penstock.call("cancel", "-m", "will not recover", held["id"])
    assert done.returncode == 0, done.stderr
    ended = wait_for(
        lambda: (
            {"team-0", "team-2"} <= namespace.regarded("Canceled").keys() and namespace.regarded("Canceled")
        ),
        "the events of the pods that Penstock has ended",
    )
    assert all(
        event["reportingController"] == "penstock"
        and event["note"].startswith("Penstock ends it: ")
        and event["note"].endswith("was canceled: will not recover")
        for event in ended.values()
    )


def test_the_timeout_of_a_pod_group_is_how_long_its_pods_wait_for_the_others(namespace: Namespace) -> None:
    pods = [bare_pod(f"team-{n}", app="team", labels={COSCHEDULING: "team"}, run="1s") for n in range(2)]
    namespace.create(pod_group("team", 2, timeout_s=1), pods[0])
    namespace.wait_reason("team", "GroupInadmissible", "1 of 2")
    namespace.create(pods[1])
    wait_phase(namespace, "team", "Finished", succeeded=2)


def test_two_coscheduling_pod_groups_never_share_the_last_nodes(namespace: Namespace) -> None:
    for name in ("red", "blue"):
        namespace.create(pod_group(name, 3), deployment(name, 3, "4", labels={COSCHEDULING: name}))
    wait_for(lambda: len(namespace.bound()) == 3, "one of them on its nodes")
    loser = "blue" if namespace.bound("red") else "red"
    namespace.wait_any_reason(loser)
    assert namespace.bound(loser) == []


def test_a_native_pod_group_starts_as_a_gang_and_gets_a_condition(namespace: Namespace) -> None:
    group = {"podGroupName": "team"}
    namespace.create(bare_pod("early", "4", app="team", schedulingGroup=group))
    namespace.wait_reason("team", "PodGroupNotFound")
    namespace.create(native_group("team", 3))
    assert namespace.site.cluster is not None
    api = namespace.site.cluster.api
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace.name}/podgroups/team"
    others = {
        "type": "DisruptionTarget",
        "status": "False",
        "reason": "Nothing",
        "message": "",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }
    body = {"status": {"conditions": [others]}}
    api.request("PATCH", f"{path}/status", body, "application/merge-patch+json")
    namespace.wait_reason("team", "GroupIncomplete")
    namespace.create(job("late", 2, "4", schedulingGroup=group, labels={"app": "team"}))
    pods = namespace.wait_bound("team", 3)
    assert len({job_id(pod) for pod in pods}) == 1

    def conditions_by_type() -> dict[str, str]:
        conditions = api.get(path).get("status", {}).get("conditions", ())
        return {one["type"]: one["status"] for one in conditions}

    wait_for(
        lambda: conditions_by_type().get("PodGroupInitiallyScheduled") == "True",
        "the condition of the PodGroup",
    )
    assert conditions_by_type()["DisruptionTarget"] == "False"


def test_two_native_pod_groups_never_share_the_last_nodes(namespace: Namespace) -> None:
    for name in ("red", "blue"):
        namespace.create(
            native_group(name, 3), job(name, 3, "4", run="3s", schedulingGroup={"podGroupName": name})
        )
    wait_for(lambda: len(namespace.bound()) == 3, "one of them on its nodes", every_s=0.02)
    winner, loser = ("red", "blue") if namespace.bound("red") else ("blue", "red")
    namespace.wait_any_reason(loser)
    assert namespace.bound(loser) == []
    wait_for(lambda: namespace.job_condition(winner, "Complete"), "the winner to complete")
    wait_for(lambda: namespace.job_condition(loser, "Complete"), "the loser to have its turn")
