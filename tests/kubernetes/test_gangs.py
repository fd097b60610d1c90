"""Groups start whole or not at all: contention, order, what can never run, and what is counted."""

from __future__ import annotations

import json

from tests.kubernetes.manifests import bare_pod, deployment, job, stateful_set
from tests.kubernetes.namespaces import Room, job_id
from tests.kubernetes.site import wait_for

GROUP = {"penstock.dev/group": "mixed", "penstock.dev/group-size": "3"}


def test_of_two_gangs_that_cannot_both_fit_one_runs_whole_and_the_other_not_at_all(room: Room) -> None:
    room.put(job("red", 3, "4", run="4s"), job("blue", 3, "4", run="4s"))
    wait_for(lambda: len(room.bound()) == 3, "one of them on its nodes", every_s=0.02)
    winner, loser = ("red", "blue") if room.bound("red") else ("blue", "red")
    assert len({job_id(pod) for pod in room.bound(winner)}) == 1
    room.wait_looked_at(loser)
    assert room.bound(loser) == []
    wait_for(lambda: room.job_is(winner, "Complete"), "the winner to complete")
    wait_for(lambda: room.job_is(loser, "Complete"), "the loser to have its turn")


def test_two_gangs_of_pods_that_come_interleaved_never_share_the_last_nodes(room: Room) -> None:
    def member(group: str, index: int) -> dict[str, object]:
        annotations = {"penstock.dev/group": group, "penstock.dev/group-size": "3"}
        return bare_pod(f"{group}-{index}", "3", app=group, annotations=annotations)

    room.put(*(member(group, index) for index in range(3) for group in ("red", "blue")))
    wait_for(lambda: len(room.bound()) == 3, "one of them on its nodes")
    loser = "blue" if room.bound("red") else "red"
    room.wait_looked_at(loser)
    assert room.bound(loser) == []


def test_what_can_never_run_is_told_at_once(room: Room) -> None:
    room.put(job("huge", 2, "64"))
    told = room.wait_told("huge", "Unschedulable", "it can never run here")
    assert "64" in told
    pod = room.pods("huge")[0]["metadata"]["name"]
    wait_for(
        lambda: any(
            (event["reason"], event["type"]) == ("FailedScheduling", "Warning") and "never" in event["note"]
            for event in room.events(pod)
        ),
        "the event",
    )
    (waiting,) = room.jobs()
    why = room.penstock.call("job", "why", str(waiting["id"]))
    assert why.returncode == 0, why.stderr
    assert "64" in why.stdout
    assert room.bound() == []


def test_members_of_a_group_may_differ(room: Room) -> None:
    room.put(bare_pod("large", "4", annotations=GROUP), bare_pod("small", "1", annotations=GROUP))
    room.wait_told("small", "GroupIncomplete")
    assert room.bound() == []
    room.put(bare_pod("middle", "2", annotations=GROUP))
    wait_for(lambda: len(room.bound()) == 3, "all three on their nodes")
    assert len({job_id(pod) for pod in room.pods()}) == 1


def test_a_priority_class_goes_first(room: Room) -> None:
    room.put(
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": f"high-{room.namespace}"},
            "value": 1000,
        }
    )
    room.put(job("runs", 4, "4"))
    room.wait_bound("runs", 4)
    room.put(job("low", 4, "4"))
    room.wait_looked_at("low")
    room.put(job("high", 4, "4", priorityClassName=f"high-{room.namespace}"))
    room.wait_looked_at("high")
    room.delete("Job", "runs")
    room.wait_bound("high", 4)
    assert room.bound("low") == []


def test_an_unknown_queue_is_told(room: Room) -> None:
    room.put(bare_pod("lost", labels={"penstock.dev/queue": "nowhere"}))
    assert "default" in room.wait_told("lost", "penstock.dev/queue", "nowhere")


def test_a_deployment_that_grows_extends_its_job_pod_by_pod(room: Room) -> None:
    room.put(deployment("web", 2, "3"))
    first = room.wait_bound("web", 2)
    room.patch("Deployment", "web", {"spec": {"replicas": 5}})
    grown = room.wait_bound("web", 4)
    assert {job_id(pod) for pod in grown} == {job_id(pod) for pod in first}
    assert len(room.pods("web")) == 5
    room.patch("Deployment", "web", {"spec": {"replicas": 1}})
    room.wait_bound("web", 1)


def test_a_pod_that_a_deployment_adds_is_told_why_it_waits(room: Room) -> None:
    room.put(deployment("web", 4, "4"))
    room.wait_bound("web", 4)
    room.patch("Deployment", "web", {"spec": {"replicas": 5}})
    room.wait_told("web", "Unschedulable", limit_s=5.0)


def test_a_job_with_more_completions_than_parallelism_runs_to_its_end(room: Room) -> None:
    more = {"completions": 6, "parallelism": 2, "completionMode": "NonIndexed"}
    room.put(job("series", 2, "4", run="1s", spec=more))
    wait_for(lambda: room.job_is("series", "Complete"), "all six completions", 60)
    assert room.get("Job", "series")["status"]["succeeded"] == 6


def test_a_stateful_set_in_order_comes_as_single_pods(room: Room) -> None:
    room.put(stateful_set("ordered", 6, "4", policy="OrderedReady"))
    pods = room.wait_bound("ordered", 4)
    assert len({job_id(pod) for pod in pods}) == 4
    room.wait_looked_at("ordered")


def test_a_parallel_stateful_set_is_a_gang(room: Room) -> None:
    room.put(bare_pod("other", "4"))
    room.wait_bound("other", 1)
    room.put(stateful_set("parallel", 4, "4"))
    room.wait_looked_at("parallel")
    assert room.bound("parallel") == []
    room.delete("Pod", "other")
    assert len({job_id(pod) for pod in room.wait_bound("parallel", 4)}) == 1


def test_a_gated_pod_waits_until_its_gate_is_lifted(room: Room) -> None:
    pair = {"penstock.dev/group": "pair", "penstock.dev/group-size": "2"}
    gated = bare_pod("gated", annotations=pair, schedulingGates=[{"name": "example.com/ready"}])
    room.put(gated, bare_pod("ready", annotations=pair))
    room.wait_told("ready", "GroupIncomplete")
    assert room.bound() == []
    room.patch_list("Pod", "gated", [{"op": "remove", "path": "/spec/schedulingGates"}])
    wait_for(lambda: len(room.bound()) == 2, "both on their nodes")


def test_a_waiting_pod_that_is_resized_is_planned_anew(room: Room) -> None:
    room.put(bare_pod("shrinks", "5"))
    room.wait_told("shrinks", "never")
    smaller = {"requests": {"cpu": "1", "memory": "64Mi"}}
    body = {"spec": {"containers": [{"name": "work", "resources": smaller}]}}
    patch = (
        "patch",
        "pod",
        "shrinks",
        "-n",
        room.namespace,
        "--subresource",
        "resize",
        "-p",
        json.dumps(body),
    )
    room.site.kubectl(*patch)
    room.wait_bound("shrinks", 1)


def test_a_running_pod_whose_group_label_changes_stays_what_it_is(room: Room) -> None:
    room.put(job("stable", 2, "2"))
    before = room.wait_bound("stable", 2)
    name = before[0]["metadata"]["name"]
    room.patch("Pod", name, {"metadata": {"labels": {"penstock.dev/group": "elsewhere"}}})
    room.put(bare_pod("later"))
    room.wait_bound("later", 1)
    (held,) = [found for found in room.jobs() if found["name"] == "stable"]
    assert held["state"] == "RUN"
    assert [job_id(pod) for pod in room.bound("stable")] == [job_id(pod) for pod in before]
    room.delete("Job", "stable")
    room.put(job("whole", 3, "4"))
    room.wait_bound("whole", 3)


def test_capacity_is_released_when_pods_end_are_deleted_or_are_refused(room: Room) -> None:
    room.put(job("ends", 4, "4", run="1s"))
    wait_for(lambda: room.job_is("ends", "Complete"), "the first to end")
    room.put(job("deleted", 4, "4"))
    room.wait_bound("deleted", 4)
    room.delete("Job", "deleted")
    room.put(job("refused", 4, "4", annotations={"penstock.dev/sim-refuse": "OutOfcpu"}))
    wait_for(lambda: room.job_is("refused", "Failed"), "the third to be refused")
    room.put(job("last", 4, "4"))
    room.wait_bound("last", 4)


def test_a_label_of_a_forerunner_names_a_group(room: Room) -> None:
    labels = {"fluence.flux-framework.org/group": "old"}
    size = {"fluence.flux-framework.org/group-size": "2"}
    room.put(bare_pod("old-0", labels=labels, annotations=size, scheduler="fluence"))
    room.wait_told("old-0", "GroupIncomplete")
    room.put(bare_pod("old-1", labels=labels, annotations=size, scheduler="fluence"))
    wait_for(lambda: len(room.bound()) == 2, "both on their nodes")
