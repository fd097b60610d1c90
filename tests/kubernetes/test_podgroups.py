"""Groups whose size an object of its own says: coscheduling's PodGroup, and Kubernetes' own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.conftest import FOUR_CORES
from tests.kubernetes.manifests import bare_pod, deployment, job, native_group, pod_group
from tests.kubernetes.namespaces import Lab, Room, job_id
from tests.kubernetes.site import wait_for

COSCHEDULING = "scheduling.x-k8s.io/pod-group"


@pytest.fixture
def room(lab: Lab) -> Iterator[Room]:
    """As elsewhere, on a control plane with Kubernetes' own gang scheduling."""
    lab.site(native_gang=True)
    lab.have_nodes(4, FOUR_CORES)
    with lab.room(lab.penstock()) as made:
        yield made


def test_a_pod_group_of_coscheduling_says_how_many_must_be_there(room: Room) -> None:
    labels = {COSCHEDULING: "team"}
    room.put(bare_pod("team-0", "4", app="team", labels=labels))
    room.wait_told("team", "PodGroupNotFound")
    room.put(pod_group("team", 3))
    room.wait_told("team", "GroupIncomplete", "1 of 3")
    room.put(
        bare_pod("team-1", "4", app="team", labels=labels), bare_pod("team-2", "4", app="team", labels=labels)
    )
    assert len({job_id(pod) for pod in room.wait_bound("team", 3)}) == 1


def test_two_pod_groups_of_coscheduling_do_not_share_what_is_left(room: Room) -> None:
    for name in ("red", "blue"):
        room.put(pod_group(name, 3), deployment(name, 3, "4", labels={COSCHEDULING: name}))
    wait_for(lambda: len(room.bound()) == 3, "one of them on its nodes")
    loser = "blue" if room.bound("red") else "red"
    room.wait_looked_at(loser)
    assert room.bound(loser) == []


def test_a_pod_group_of_kubernetes_starts_whole_and_is_told_so(room: Room) -> None:
    group = {"podGroupName": "team"}
    room.put(bare_pod("early", "4", app="team", schedulingGroup=group))
    room.wait_told("team", "PodGroupNotFound")
    room.put(native_group("team", 3))
    assert room.site.cluster is not None
    api = room.site.cluster.api
    path = f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{room.namespace}/podgroups/team"
    others = {
        "type": "DisruptionTarget",
        "status": "False",
        "reason": "Nothing",
        "message": "",
        "lastTransitionTime": "2030-01-01T00:00:00Z",
    }
    body = {"status": {"conditions": [others]}}
    api.request("PATCH", f"{path}/status", body, "application/merge-patch+json")
    room.wait_told("team", "GroupIncomplete")
    room.put(job("late", 2, "4", schedulingGroup=group, labels={"app": "team"}))
    pods = room.wait_bound("team", 3)
    assert len({job_id(pod) for pod in pods}) == 1

    def told() -> dict[str, str]:
        conditions = api.get(path).get("status", {}).get("conditions", ())
        return {one["type"]: one["status"] for one in conditions}

    wait_for(lambda: told().get("PodGroupInitiallyScheduled") == "True", "the PodGroup to be told")
    assert told()["DisruptionTarget"] == "False"


def test_two_pod_groups_of_kubernetes_do_not_share_what_is_left(room: Room) -> None:
    for name in ("red", "blue"):
        room.put(native_group(name, 3), job(name, 3, "4", run="3s", schedulingGroup={"podGroupName": name}))
    wait_for(lambda: len(room.bound()) == 3, "one of them on its nodes", every_s=0.02)
    winner, loser = ("red", "blue") if room.bound("red") else ("blue", "red")
    room.wait_looked_at(loser)
    assert room.bound(loser) == []
    wait_for(lambda: room.job_is(winner, "Complete"), "the winner to complete")
    wait_for(lambda: room.job_is(loser, "Complete"), "the loser to have its turn")
