"""Time limits, deadlines, begin times, and reservations with backfill."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.kubernetes.manifests import bare_pod, deployment, job
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.site import wait_for

LIMIT = "penstock.dev/limit"
DEADLINE = "activeDeadlineSeconds"


def annotate(namespace: Namespace, kind: str, name: str, key: str, value: str) -> None:
    namespace.patch(kind, name, {"metadata": {"annotations": {key: value}}})


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_pod_ends_at_its_deadline_and_releases_its_resources(namespace: Namespace) -> None:
    namespace.create(bare_pod("short", "4", activeDeadlineSeconds=2))
    namespace.wait_bound("short", 1)
    wait_for(
        lambda: namespace.pods("short")[0]["status"].get("reason") == "DeadlineExceeded", "the pod's deadline"
    )
    namespace.create(job("whole", 4, "4"))
    namespace.wait_bound("whole", 4)


def test_a_job_ends_at_its_deadline(namespace: Namespace) -> None:
    namespace.create(job("short", 2, "4", spec={"activeDeadlineSeconds": 3}))
    namespace.wait_bound("short", 2)
    ended = wait_for(lambda: namespace.job_condition("short", "Failed"), "the Job's deadline")
    assert ended["reason"] == "DeadlineExceeded"
    wait_for(lambda: not namespace.jobs(), "its job to end")
    assert [one["result"] for one in namespace.jobs("inactive")] == ["TIMEOUT"]
    namespace.create(job("whole", 4, "4"))
    namespace.wait_bound("whole", 4)


def test_a_penstock_limit_becomes_the_deadline_of_a_job(namespace: Namespace) -> None:
    namespace.create(job("limited", 2, "4", annotations={LIMIT: "4s"}))
    namespace.wait_bound("limited", 2)
    deadline = wait_for(
        lambda: namespace.get("Job", "limited")["spec"].get("activeDeadlineSeconds"), "the Job's deadline"
    )
    assert 4 <= deadline <= 20
    ended = wait_for(lambda: namespace.job_condition("limited", "Failed"), "the Job to end at its limit")
    assert ended["reason"] == "DeadlineExceeded"
    wait_for(lambda: not namespace.jobs(), "its job to end")


def test_the_limit_of_a_job_does_not_include_its_queue_time(namespace: Namespace) -> None:
    namespace.create(job("runs", 4, "4", annotations={LIMIT: "6s"}))
    namespace.wait_bound("runs", 4)
    namespace.create(job("waits", 4, "4", annotations={LIMIT: "10s"}))
    namespace.wait_any_reason("waits")
    waits = namespace.wait_bound("waits", 4)
    found = wait_for(lambda: _limited(namespace, "waits"), "the Job's deadline")
    began = min(seconds(pod["status"]["startTime"]) for pod in _started(namespace, "waits", len(waits)))
    ends = seconds(found["status"]["startTime"]) + found["spec"]["activeDeadlineSeconds"]
    assert 8 <= ends - began <= 20


def _limited(namespace: Namespace, name: str) -> dict[str, Any] | None:
    found = namespace.get("Job", name)
    return found if "activeDeadlineSeconds" in found["spec"] else None


def _started(namespace: Namespace, app: str, count: int) -> list[dict[str, object]]:
    wait_for(
        lambda: sum("startTime" in pod["status"] for pod in namespace.bound(app)) == count, "their start"
    )
    return namespace.bound(app)


def test_a_penstock_limit_ends_a_pod_without_controller(namespace: Namespace) -> None:
    namespace.create(bare_pod("limited", "1", annotations={LIMIT: "2s"}))
    namespace.wait_bound("limited", 1)
    namespace.wait_gone("limited")
    wait_for(lambda: not namespace.jobs(), "its job to end")


def test_the_events_of_cancelled_jobs_name_penstock_and_the_note(namespace: Namespace) -> None:
    namespace.create(job("runs", 4, "4"))
    namespace.wait_bound("runs", 4)
    namespace.create(job("waits", 4, "4"))
    namespace.wait_any_reason("waits")
    for name in ("waits", "runs"):  # Otherwise it would start.
        done = namespace.penstock.call("cancel", "-m", "wrong data set", f"{namespace.name}/{name}")
        assert done.returncode == 0, done.stderr
    ended = wait_for(lambda: namespace.regarded("Canceled").get("runs"), "the event of the Job that ran")
    assert ended["regarding"]["kind"] == "Job"
    assert ended["note"].startswith("Penstock ends it: ")
    assert ended["note"].endswith("was canceled: wrong data set")
    told = wait_for(lambda: namespace.regarded("GroupInadmissible").get("waits"), "that of the other")
    assert told["regarding"]["kind"] == "Job"
    assert told["note"].startswith("Penstock does not start the group: ")
    assert told["note"].endswith("was canceled: wrong data set")
    namespace.wait_reason("waits", "GroupInadmissible", "was canceled: wrong data set")


def test_the_limit_of_a_running_pod_can_be_changed(namespace: Namespace) -> None:
    namespace.create(bare_pod("limited", "1", annotations={LIMIT: "1h"}))
    namespace.wait_bound("limited", 1)
    before = wait_for(lambda: [job["expiration"] for job in namespace.jobs()], "its end")
    annotate(namespace, "Pod", "limited", LIMIT, "3h")
    expected = [pytest.approx(before[0] + 7200)]
    wait_for(lambda: [job["expiration"] for job in namespace.jobs()] == expected, "its later end")
    annotate(namespace, "Pod", "limited", LIMIT, "1s")
    namespace.wait_gone("limited")


def test_a_held_job_is_released_and_its_limit_raised_by_annotations(namespace: Namespace) -> None:
    namespace.create(job("held", 2, annotations={LIMIT: "1h", "penstock.dev/urgency": "0"}))
    namespace.wait_reason("held", "Held")
    annotate(namespace, "Job", "held", "penstock.dev/urgency", "16")
    pods = namespace.wait_bound("held", 2)
    assert 3600 <= wait_for(lambda: _limited(namespace, "held"), "the deadline")["spec"][DEADLINE] < 7200
    annotate(namespace, "Pod", pods[0]["metadata"]["name"], LIMIT, "2h")
    wait_for(lambda: namespace.get("Job", "held")["spec"][DEADLINE] >= 7200, "the later deadline")


def test_a_held_job_is_released_by_one_of_its_pods(namespace: Namespace) -> None:
    namespace.create(job("held", 2, annotations={"penstock.dev/urgency": "0"}))
    namespace.wait_reason("held", "Held")
    annotate(namespace, "Pod", namespace.pods("held")[0]["metadata"]["name"], "penstock.dev/urgency", "16")
    namespace.wait_bound("held", 2)


def test_an_unknown_key_is_reported_with_the_one_that_was_meant(namespace: Namespace) -> None:
    namespace.create(bare_pod("typo", annotations={"penstock.dev/limt": "1h"}))
    found = wait_for(
        lambda: [one["note"] for one in namespace.events("typo") if one["reason"] == "UnknownKey"],
        "the warning",
    )
    assert found == ["unknown key penstock.dev/limt has no effect; did you mean penstock.dev/limit?"]


def test_a_limit_that_cannot_be_enforced_is_rejected(namespace: Namespace) -> None:
    namespace.create(deployment("server", 1, annotations={LIMIT: "2s"}))
    assert "ReplicaSet" in namespace.wait_reason("server", LIMIT, "cannot be enforced")
    assert namespace.bound() == []


def test_backfill_starts_only_jobs_that_end_before_the_reservation(namespace: Namespace) -> None:
    hour, minute = {LIMIT: "1h"}, {LIMIT: "1m"}
    namespace.create(job("runs", 3, "4", annotations=hour))
    namespace.wait_bound("runs", 3)
    namespace.create(job("head", 4, "4", annotations=hour))
    told = namespace.wait_reason("head", "Unschedulable", "expected to start at")
    start = seconds(told.partition("expected to start at ")[2].split(": ")[0])
    begun = seconds(namespace.get("Job", "runs")["status"]["startTime"])
    assert abs(start - begun - 3600) < 60
    namespace.create(job("endless", 1, "4"))
    namespace.wait_any_reason("endless")
    assert namespace.bound("endless") == []
    namespace.create(job("short", 1, "4", annotations=minute))
    namespace.wait_bound("short", 1)
    namespace.delete("Job", "runs")
    namespace.delete("Job", "short")
    namespace.wait_bound("head", 4)
    assert namespace.bound("endless") == []


def test_no_pod_starts_before_its_begin_time(namespace: Namespace) -> None:
    namespace.create(bare_pod("later", annotations={"penstock.dev/begin": "+5s"}), bare_pod("now"))
    namespace.wait_bound("now", 1)
    assert namespace.bound("later") == []
    (pod,) = namespace.wait_bound("later", 1)
    (placed,) = [one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled"]
    assert seconds(placed["lastTransitionTime"]) - seconds(pod["metadata"]["creationTimestamp"]) >= 5


def test_an_invalid_begin_time_is_reported(namespace: Namespace) -> None:
    namespace.create(bare_pod("when", annotations={"penstock.dev/begin": "tomorrow"}))
    namespace.wait_reason("when", "penstock.dev/begin", "tomorrow", "+10m")
