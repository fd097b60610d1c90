"""The lifecycle of simulated pods, as a real API server shows it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from penstock.devcluster.client import StatusError
from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.settings import DevSettings
from tests.clusters import cluster_fixture, pod, wait_for

cluster = cluster_fixture(DevSettings(nodes=2))

ENDED = ("Succeeded", "Failed")
PODS = "/api/v1/namespaces/default/pods"
START = "penstock.dev/SimulatedStart"


def created(cluster: DevCluster, manifest: str) -> str:
    return str(cluster.api.post(PODS, json.loads(manifest))["metadata"]["name"])


def status_of(cluster: DevCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.api.get(f"{PODS}/{name}")["status"]
    return found


def ended(cluster: DevCluster, name: str) -> dict[str, Any]:
    wait_for(lambda: status_of(cluster, name)["phase"] in ENDED, f"{name} to end")
    return status_of(cluster, name)


def running(cluster: DevCluster, name: str) -> dict[str, Any]:
    wait_for(lambda: status_of(cluster, name)["phase"] == "Running", f"{name} to run")
    return status_of(cluster, name)


def state_of(status: dict[str, Any]) -> dict[str, Any]:
    """The state of the only container, without the key that names it."""
    (state,) = status["containerStatuses"][0]["state"].values()
    assert isinstance(state, dict)
    return state


def ran_s(status: dict[str, Any]) -> float:
    """The run time. It is approximate because Kubernetes timestamps have whole seconds."""
    (start,) = (one["message"] for one in status["conditions"] if one["type"] == START)
    end = datetime.fromisoformat(state_of(status)["finishedAt"])
    return (end - datetime.fromisoformat(start)).total_seconds()


def test_a_running_pod_has_the_status_of_a_real_one(cluster: DevCluster) -> None:
    manifest = json.loads(pod("looks"))
    manifest["spec"]["initContainers"] = [{"name": "before", "image": "busybox", "command": ["true"]}]
    created(cluster, json.dumps(manifest))
    status = running(cluster, "looks")
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert {conditions[name] for name in ("PodScheduled", "Initialized", "ContainersReady", "Ready")} == {
        "True"
    }
    assert status["podIP"]
    assert status["hostIP"].startswith("10.32.")
    assert status["startTime"]
    assert status["containerStatuses"][0]["ready"] is True
    assert list(status["containerStatuses"][0]["state"]) == ["running"]
    assert list(status["initContainerStatuses"][0]["state"]) == ["terminated"]


def test_the_command_determines_the_run_time(cluster: DevCluster) -> None:
    commands: dict[str, tuple[list[str], float]] = {
        "sleep": (["sleep", "2"], 2),
        "path": (["/bin/sleep", "2s"], 2),
        "shell": (["sh", "-c", "sleep 2"], 2),
        "twice": (["/bin/bash", "-c", "echo one && sleep 1; sleep 1.5"], 2.5),
        "echo": (["echo", "sleep", "30"], 1),
        "talks": (["sh", "-c", "echo potato"], 1),
    }
    for name, (command, _) in commands.items():
        created(cluster, pod(f"by-command-{name}", *command))
    for name, (_, expected_s) in commands.items():
        status = ended(cluster, f"by-command-{name}")
        assert (status["phase"], state_of(status)["exitCode"]) == ("Succeeded", 0)
        assert expected_s - 1 <= ran_s(status) <= expected_s + 2


def test_the_annotation_takes_precedence_over_the_command(cluster: DevCluster) -> None:
    created(cluster, pod("annotated", "sleep", "infinity", annotations={"penstock.dev/sim-run": "1500ms"}))
    created(cluster, pod("for-ever", "sleep", "1", annotations={"penstock.dev/sim-run": "inf"}))
    assert ended(cluster, "annotated")["phase"] == "Succeeded"
    assert status_of(cluster, "for-ever")["phase"] == "Running"


def test_a_pod_without_a_known_run_time_keeps_running(cluster: DevCluster) -> None:
    endless = {
        "endless-sleep": ["sleep", "infinity"],
        "endless-shell": ["sh", "-c", "while true; do sleep infinity; done"],
        "server": ["python", "serve.py", "--sleep", "1"],
        "silent": [],
    }
    for name, command in endless.items():
        created(cluster, pod(name, *command))
    created(cluster, pod("later", "sleep", "3"))
    ended(cluster, "later")
    assert {name: status_of(cluster, name)["phase"] for name in endless} == dict.fromkeys(endless, "Running")


def test_an_update_does_not_extend_the_run_time(cluster: DevCluster) -> None:
    created(cluster, pod("touched", "sleep", "3"))
    running(cluster, "touched")
    body = {"metadata": {"labels": {"touched": "yes"}}}
    cluster.api.request("PATCH", f"{PODS}/touched", body, "application/merge-patch+json")
    assert ran_s(ended(cluster, "touched")) < 4.5


def test_a_nonzero_exit_code_fails_the_pod(cluster: DevCluster) -> None:
    annotations = {"penstock.dev/sim-exit": "42", "penstock.dev/sim-run": "1s"}
    created(cluster, pod("fails", annotations=annotations))
    status = ended(cluster, "fails")
    assert status["phase"] == "Failed"
    assert state_of(status)["exitCode"] == 42
    assert "reason" not in status


def test_a_deadline_ends_a_pod_that_runs_too_long(cluster: DevCluster) -> None:
    created(cluster, pod("late", "sleep", "60", activeDeadlineSeconds=2))
    created(cluster, pod("in-time", "sleep", "1", activeDeadlineSeconds=20))
    status = ended(cluster, "late")
    assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
    assert 1 <= ran_s(status) <= 5
    assert ended(cluster, "in-time")["phase"] == "Succeeded"


def test_a_rejected_pod_fails_with_the_reason_and_keeps_its_node(cluster: DevCluster) -> None:
    created(cluster, pod("refused", annotations={"penstock.dev/sim-refuse": "OutOfcpu"}))
    status = ended(cluster, "refused")
    assert (status["phase"], status["reason"]) == ("Failed", "OutOfcpu")
    assert status["message"].startswith("Pod was rejected: ")
    assert "containerStatuses" not in status
    assert cluster.api.get(f"{PODS}/refused")["spec"]["nodeName"].startswith("node-")


def is_gone(cluster: DevCluster, name: str) -> bool:
    try:
        cluster.api.get(f"{PODS}/{name}")
    except StatusError as error:
        return error.status == 404
    return False


def test_a_deleted_pod_is_removed_promptly(cluster: DevCluster) -> None:
    created(cluster, pod("deleted"))
    created(cluster, pod("deleted-late", "sleep", "1"))
    running(cluster, "deleted")
    ended(cluster, "deleted-late")
    names = ("deleted", "deleted-late")
    for name in names:
        cluster.api.delete(f"{PODS}/{name}")
    wait_for(lambda: all(is_gone(cluster, name) for name in names), "both to be gone", 10)


def job(name: str, *command: str, **spec: Any) -> dict[str, Any]:
    template = json.loads(pod("unused", *command))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**spec, "template": {"spec": template["spec"]}},
    }


JOBS = "/apis/batch/v1/namespaces/default/jobs"


def test_a_job_completes_under_the_default_scheduler(cluster: DevCluster) -> None:
    cluster.api.post(JOBS, job("whole", completions=4, parallelism=2))
    cluster.kubectl("wait", "--for=condition=Complete", "job/whole", "--timeout=40s")
    assert cluster.api.get(f"{JOBS}/whole")["status"]["succeeded"] == 4


def test_a_deleted_pod_of_a_job_counts_as_failed_and_is_replaced(cluster: DevCluster) -> None:
    cluster.api.post(JOBS, job("again", "sleep", "infinity", backoffLimit=3))
    query = f"{PODS}?labelSelector=batch.kubernetes.io/job-name=again&fieldSelector=status.phase=Running"
    wait_for(lambda: len(cluster.api.get(query)["items"]) == 1, "the pod to run")
    (first,) = cluster.api.get(query)["items"]
    cluster.api.delete(f"{PODS}/{first['metadata']['name']}")
    wait_for(lambda: is_gone(cluster, first["metadata"]["name"]), "the pod to be gone")
    wait_for(lambda: cluster.api.get(f"{JOBS}/again")["status"].get("failed") == 1, "the count")


def test_a_pod_of_a_deployment_keeps_running_regardless_of_its_command(cluster: DevCluster) -> None:
    template = json.loads(pod("unused", "sleep", "1"))["spec"]
    del template["restartPolicy"]
    labels = {"app": "kept"}
    cluster.api.post(
        "/apis/apps/v1/namespaces/default/deployments",
        {
            "metadata": {"name": "kept"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": template},
            },
        },
    )
    cluster.kubectl("rollout", "status", "deployment/kept", "--timeout=30s")
    created(cluster, pod("meanwhile", "sleep", "2"))
    ended(cluster, "meanwhile")
    phases = [one["status"]["phase"] for one in cluster.api.get(f"{PODS}?labelSelector=app=kept")["items"]]
    assert phases == ["Running", "Running"]
