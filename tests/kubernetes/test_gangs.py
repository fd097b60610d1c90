"""All-or-nothing groups: contention, order, unsatisfiable requests, scaling and released capacity."""

from __future__ import annotations

import json

from tests.kubernetes.manifests import bare_pod, deployment, job, quota, stateful_set
from tests.kubernetes.namespaces import Namespace, job_id
from tests.kubernetes.site import wait_for

CONTAINER = {"name": "work", "image": "busybox:latest", "imageID": "", "ready": False, "restartCount": 0}
GROUP = {"penstock.dev/group": "mixed", "penstock.dev/group-size": "3"}


def test_only_one_of_two_gangs_that_do_not_fit_together_runs(
    namespace: Namespace,
) -> None:
    namespace.create(job("red", 3, "4", run="4s"), job("blue", 3, "4", run="4s"))
    wait_for(lambda: len(namespace.bound()) == 3, "one of them on its nodes", every_s=0.02)
    winner, loser = ("red", "blue") if namespace.bound("red") else ("blue", "red")
    assert len({job_id(pod) for pod in namespace.bound(winner)}) == 1
    namespace.wait_any_reason(loser)
    assert namespace.bound(loser) == []
    wait_for(lambda: namespace.job_condition(winner, "Complete"), "the winner to complete")
    wait_for(lambda: namespace.job_condition(loser, "Complete"), "the loser to have its turn")


def test_two_gangs_with_interleaved_pods_never_share_the_last_nodes(namespace: Namespace) -> None:
    def member(group: str, index: int) -> dict[str, object]:
        annotations = {"penstock.dev/group": group, "penstock.dev/group-size": "3"}
        return bare_pod(f"{group}-{index}", "3", app=group, annotations=annotations)

    namespace.create(*(member(group, index) for index in range(3) for group in ("red", "blue")))
    wait_for(lambda: len(namespace.bound()) == 3, "one of them on its nodes")
    loser = "blue" if namespace.bound("red") else "red"
    namespace.wait_any_reason(loser)
    assert namespace.bound(loser) == []


def test_an_unsatisfiable_gang_is_reported_at_once(namespace: Namespace) -> None:
    namespace.create(job("huge", 2, "64"))
    told = namespace.wait_reason("huge", "Unschedulable", "it can never run here")
    assert "64" in told
    pod = namespace.pods("huge")[0]["metadata"]["name"]
    wait_for(
        lambda: any(
            (event["reason"], event["type"]) == ("FailedScheduling", "Warning") and "never" in event["note"]
            for event in namespace.events(pod)
        ),
        "the event",
    )
    (waiting,) = namespace.jobs()
    why = namespace.penstock.call("job", "why", str(waiting["id"]))
    assert why.returncode == 0, why.stderr
    assert "64" in why.stdout
    assert namespace.bound() == []


def test_a_group_name_that_cannot_be_stored_is_reported_and_the_others_run(namespace: Namespace) -> None:
    namespace.create(bare_pod("odd", "1", annotations={"penstock.dev/group": "a\0b"}))
    told = namespace.wait_reason("odd", "InvalidSpec", "penstock.dev/group")
    assert r"'a\x00b'" in told
    namespace.create(job("usual", 2, "1"))
    namespace.wait_bound("usual", 2)
    assert namespace.penstock.is_ready()


def test_members_of_a_group_may_have_different_requests(namespace: Namespace) -> None:
    namespace.create(bare_pod("large", "4", annotations=GROUP), bare_pod("small", "1", annotations=GROUP))
    namespace.wait_reason("small", "GroupIncomplete")
    assert namespace.bound() == []
    namespace.create(bare_pod("middle", "2", annotations=GROUP))
    wait_for(lambda: len(namespace.bound()) == 3, "all three on their nodes")
    assert len({job_id(pod) for pod in namespace.pods()}) == 1


def test_a_higher_priority_class_starts_first(namespace: Namespace) -> None:
    namespace.create(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": f"high-{namespace.name}"},
            "value": 1000,
        }
    )
    namespace.create(job("runs", 4, "4"))
    namespace.wait_bound("runs", 4)
    namespace.create(job("low", 4, "4"))
    namespace.wait_any_reason("low")
    namespace.create(job("high", 4, "4", priorityClassName=f"high-{namespace.name}"))
    namespace.wait_any_reason("high")
    namespace.delete("Job", "runs")
    namespace.wait_bound("high", 4)
    assert namespace.bound("low") == []


def test_the_pod_that_replaces_a_failed_one_gets_its_node_although_others_wait(namespace: Namespace) -> None:
    namespace.create(job("gang", 4, "4", spec={"backoffLimit": 3}))
    namespace.wait_bound("gang", 4)
    namespace.create(bare_pod("next", "4", annotations={"penstock.dev/urgency": "16"}))
    namespace.wait_any_reason("next")
    failed = namespace.pods("gang")[0]
    name, node = failed["metadata"]["name"], failed["spec"]["nodeName"]
    ended = {"exitCode": 1, "reason": "Error", "startedAt": None, "finishedAt": None}
    status = {"phase": "Failed", "containerStatuses": [{**CONTAINER, "state": {"terminated": ended}}]}
    namespace.patch("Pod", name, {"status": status}, "status")

    def replacement() -> bool:
        bound = namespace.bound("gang")
        running = [pod for pod in bound if pod["status"]["phase"] in ("Pending", "Running")]
        return len(running) == 4

    wait_for(replacement, "the replacement on its node", 60.0)
    (found,) = [
        pod
        for pod in namespace.bound("gang")
        if pod["spec"]["nodeName"] == node and pod["metadata"]["name"] != name
    ]
    assert job_id(found) == job_id(failed)
    assert namespace.bound("next") == []
    namespace.delete("Job", "gang")
    namespace.wait_bound("next", 1)


def set_quota(namespace: Namespace, name: str, pods: int) -> None:
    namespace.create(quota(name, pods))
    wait_for(lambda: "used" in namespace.get("ResourceQuota", name).get("status", {}), "the quota to count")


def test_a_quota_that_keeps_a_gang_from_starting_is_named(namespace: Namespace) -> None:
    set_quota(namespace, "two", 2)
    namespace.create(job("gang", 3))
    namespace.wait_reason(
        "gang", "GroupIncomplete", "2 of 3", "Job gang cannot create pods", "exceeded quota: two"
    )
    assert namespace.bound() == []
    namespace.delete("ResourceQuota", "two")


def test_a_quota_that_keeps_a_gang_from_being_repaired_is_named(namespace: Namespace) -> None:
    namespace.create(job("gang", 2, spec={"backoffLimit": 3}))
    failed, other = (pod["metadata"]["name"] for pod in namespace.wait_bound("gang", 2))
    set_quota(namespace, "one", 1)
    ended = {"exitCode": 1, "reason": "Error", "startedAt": None, "finishedAt": None}
    status = {"phase": "Failed", "containerStatuses": [{**CONTAINER, "state": {"terminated": ended}}]}
    namespace.patch("Pod", failed, {"status": status}, "status")
    events = wait_for(
        lambda: (
            {"gang", other} <= namespace.regarded("PodCreationBlocked").keys()
            and namespace.regarded("PodCreationBlocked")
        ),
        "the events of the Job and of the pod that runs",
        60.0,
    )
    assert all("exceeded quota: one" in event["note"] for event in events.values())
    assert events["gang"]["regarding"]["kind"] == "Job"
    namespace.delete("ResourceQuota", "one")


def test_pods_in_a_disabled_queue_wait_until_it_is_enabled(namespace: Namespace) -> None:
    namespace.create(job("before", 2, "4"))
    namespace.wait_bound("before", 2)
    assert namespace.penstock.call("queue", "disable", "-m", "moving house").returncode == 0
    try:
        namespace.create(job("new", 2, "4"))
        namespace.wait_reason("new", "QueueDisabled", "queue default is disabled", "moving house")
        assert namespace.bound("new") == []
    finally:
        assert namespace.penstock.call("queue", "enable").returncode == 0
    namespace.wait_bound("new", 2)


def test_an_unknown_queue_is_reported(namespace: Namespace) -> None:
    namespace.create(bare_pod("lost", labels={"penstock.dev/queue": "nowhere"}))
    assert "default" in namespace.wait_reason("lost", "penstock.dev/queue", "nowhere")


def test_scaling_up_a_deployment_extends_its_job_pod_by_pod(namespace: Namespace) -> None:
    namespace.create(deployment("web", 2, "3"))
    first = namespace.wait_bound("web", 2)
    namespace.patch("Deployment", "web", {"spec": {"replicas": 5}})
    grown = namespace.wait_bound("web", 4)
    assert {job_id(pod) for pod in grown} == {job_id(pod) for pod in first}
    assert len(namespace.pods("web")) == 5
    namespace.patch("Deployment", "web", {"spec": {"replicas": 1}})
    namespace.wait_bound("web", 1)


def test_replicas_of_a_deployment_start_one_by_one_and_are_spread(namespace: Namespace) -> None:
    """Four nodes with four cores: of five replicas four have a node each, the fifth has a reason."""
    namespace.create(deployment("web", 5, "3"))
    bound = namespace.wait_bound("web", 4)
    assert len({job_id(pod) for pod in bound}) == 1
    assert len({pod["spec"]["nodeName"] for pod in bound}) == 4
    namespace.wait_reason("web", "Unschedulable", limit_s=5.0)
    namespace.delete("Deployment", "web")
    namespace.create(deployment("small", 4, "1"))
    assert len({pod["spec"]["nodeName"] for pod in namespace.wait_bound("small", 4)}) == 4


def test_a_deployment_is_a_gang_if_asked_for_or_under_the_name_of_fluence(namespace: Namespace) -> None:
    namespace.create(
        deployment("sized", 5, "3", annotations={"penstock.dev/group-size": "5"}),
        deployment("fluence", 5, "3", scheduler="fluence"),
    )
    for name in ("sized", "fluence"):
        namespace.wait_reason(name, "Unschedulable")
        assert namespace.bound(name) == []


def test_preferred_node_affinity_comes_first(namespace: Namespace) -> None:
    first = sorted(
        node["metadata"]["name"] for node in namespace.site.cluster.api.get("/api/v1/nodes")["items"]
    )[-1]
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [first]}]}
    key = "preferredDuringSchedulingIgnoredDuringExecution"
    affinity = {"nodeAffinity": {key: [{"weight": 10, "preference": term}]}}
    namespace.create(job("likes", 2, "2", affinity=affinity))
    assert {pod["spec"]["nodeName"] for pod in namespace.wait_bound("likes", 2)} == {first}


def test_a_job_with_more_completions_than_parallelism_completes(namespace: Namespace) -> None:
    more = {"completions": 6, "parallelism": 2, "completionMode": "NonIndexed"}
    namespace.create(job("series", 2, "4", run="1s", spec=more))
    wait_for(lambda: namespace.job_condition("series", "Complete"), "all six completions", 60)
    assert namespace.get("Job", "series")["status"]["succeeded"] == 6


def test_the_pods_of_an_ordered_stateful_set_are_single_jobs(namespace: Namespace) -> None:
    namespace.create(stateful_set("ordered", 6, "4", policy="OrderedReady"))
    pods = namespace.wait_bound("ordered", 4)
    assert len({job_id(pod) for pod in pods}) == 4
    namespace.wait_any_reason("ordered")


def test_a_parallel_stateful_set_is_a_gang(namespace: Namespace) -> None:
    namespace.create(bare_pod("other", "4"))
    namespace.wait_bound("other", 1)
    namespace.create(stateful_set("parallel", 4, "4"))
    namespace.wait_any_reason("parallel")
    assert namespace.bound("parallel") == []
    namespace.delete("Pod", "other")
    assert len({job_id(pod) for pod in namespace.wait_bound("parallel", 4)}) == 1


def test_a_gated_pod_waits_until_its_gate_is_removed(namespace: Namespace) -> None:
    pair = {"penstock.dev/group": "pair", "penstock.dev/group-size": "2"}
    gated = bare_pod("gated", annotations=pair, schedulingGates=[{"name": "example.com/ready"}])
    namespace.create(gated, bare_pod("ready", annotations=pair))
    namespace.wait_reason("ready", "GroupIncomplete")
    assert namespace.bound() == []
    namespace.json_patch("Pod", "gated", [{"op": "remove", "path": "/spec/schedulingGates"}])
    wait_for(lambda: len(namespace.bound()) == 2, "both on their nodes")


def test_a_resized_pending_pod_is_scheduled_with_its_new_requests(namespace: Namespace) -> None:
    namespace.create(bare_pod("shrinks", "5"))
    namespace.wait_reason("shrinks", "never")
    smaller = {"requests": {"cpu": "1", "memory": "64Mi"}}
    body = {"spec": {"containers": [{"name": "work", "resources": smaller}]}}
    patch = (
        "patch",
        "pod",
        "shrinks",
        "-n",
        namespace.name,
        "--subresource",
        "resize",
        "-p",
        json.dumps(body),
    )
    namespace.site.kubectl(*patch)
    namespace.wait_bound("shrinks", 1)


def test_a_changed_group_label_does_not_affect_a_running_pod(namespace: Namespace) -> None:
    namespace.create(job("stable", 2, "2"))
    before = namespace.wait_bound("stable", 2)
    name = before[0]["metadata"]["name"]
    namespace.patch("Pod", name, {"metadata": {"labels": {"penstock.dev/group": "elsewhere"}}})
    namespace.create(bare_pod("later"))
    namespace.wait_bound("later", 1)
    (held,) = [found for found in namespace.jobs() if found["name"] == "stable"]
    assert held["state"] == "RUN"
    assert [job_id(pod) for pod in namespace.bound("stable")] == [job_id(pod) for pod in before]
    namespace.delete("Job", "stable")
    namespace.create(job("whole", 3, "4"))
    namespace.wait_bound("whole", 3)


def test_capacity_is_released_when_pods_end_are_deleted_or_rejected(namespace: Namespace) -> None:
    namespace.create(job("ends", 4, "4", run="1s"))
    wait_for(lambda: namespace.job_condition("ends", "Complete"), "the first to end")
    namespace.create(job("deleted", 4, "4"))
    namespace.wait_bound("deleted", 4)
    namespace.delete("Job", "deleted")
    namespace.create(job("refused", 4, "4", annotations={"penstock.dev/sim-refuse": "OutOfcpu"}))
    wait_for(lambda: namespace.job_condition("refused", "Failed"), "the third to be refused")
    namespace.create(job("last", 4, "4"))
    namespace.wait_bound("last", 4)


def test_a_fluence_label_defines_a_group(namespace: Namespace) -> None:
    labels = {"fluence.flux-framework.org/group": "old"}
    size = {"fluence.flux-framework.org/group-size": "2"}
    namespace.create(bare_pod("old-0", labels=labels, annotations=size, scheduler="fluence"))
    namespace.wait_reason("old-0", "GroupIncomplete")
    namespace.create(bare_pod("old-1", labels=labels, annotations=size, scheduler="fluence"))
    wait_for(lambda: len(namespace.bound()) == 2, "both on their nodes")
