"""Limits, deadlines, begin times, and what is promised: who ends what, and who may go before whom."""

from __future__ import annotations

from datetime import datetime

from tests.kubernetes.manifests import bare_pod, deployment, job
from tests.kubernetes.namespaces import Room
from tests.kubernetes.site import wait_for

LIMIT = "penstock.dev/limit"


def seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_a_pod_ends_at_its_own_deadline_and_gives_back_what_it_had(room: Room) -> None:
    room.put(bare_pod("short", "4", activeDeadlineSeconds=2))
    room.wait_bound("short", 1)
    wait_for(
        lambda: room.pods("short")[0]["status"].get("reason") == "DeadlineExceeded", "the pod's deadline"
    )
    room.put(job("whole", 4, "4"))
    room.wait_bound("whole", 4)


def test_a_job_ends_at_its_own_deadline(room: Room) -> None:
    room.put(job("short", 2, "4", spec={"activeDeadlineSeconds": 3}))
    room.wait_bound("short", 2)
    ended = wait_for(lambda: room.job_is("short", "Failed"), "the Job's deadline")
    assert ended["reason"] == "DeadlineExceeded"
    room.put(job("whole", 4, "4"))
    room.wait_bound("whole", 4)


def test_a_limit_of_ours_on_a_job_becomes_its_deadline(room: Room) -> None:
    room.put(job("limited", 2, "4", annotations={LIMIT: "4s"}))
    room.wait_bound("limited", 2)
    deadline = wait_for(
        lambda: room.get("Job", "limited")["spec"].get("activeDeadlineSeconds"), "the Job's deadline"
    )
    assert 4 <= deadline <= 20
    ended = wait_for(lambda: room.job_is("limited", "Failed"), "the Job to end at its limit")
    assert ended["reason"] == "DeadlineExceeded"
    wait_for(lambda: not room.jobs(), "its job to end")


def test_a_limit_of_a_job_does_not_count_the_time_that_it_waited(room: Room) -> None:
    room.put(job("runs", 4, "4", annotations={LIMIT: "6s"}))
    room.wait_bound("runs", 4)
    room.put(job("waits", 4, "4", annotations={LIMIT: "10s"}))
    room.wait_looked_at("waits")
    waits = room.wait_bound("waits", 4)
    found = wait_for(lambda: _limited(room, "waits"), "the Job's deadline")
    began = min(seconds(pod["status"]["startTime"]) for pod in _started(room, "waits", len(waits)))
    ends = seconds(found["status"]["startTime"]) + found["spec"]["activeDeadlineSeconds"]
    assert 8 <= ends - began <= 20


def _limited(room: Room, name: str) -> dict[str, object] | None:
    found = room.get("Job", name)
    return found if "activeDeadlineSeconds" in found["spec"] else None


def _started(room: Room, app: str, count: int) -> list[dict[str, object]]:
    wait_for(lambda: sum("startTime" in pod["status"] for pod in room.bound(app)) == count, "their start")
    return room.bound(app)


def test_a_limit_of_ours_ends_a_pod_that_nobody_would_make_again(room: Room) -> None:
    room.put(bare_pod("limited", "1", annotations={LIMIT: "2s"}))
    room.wait_bound("limited", 1)
    room.wait_gone("limited")
    wait_for(lambda: not room.jobs(), "its job to end")


def test_a_limit_is_refused_where_it_cannot_be_kept(room: Room) -> None:
    room.put(deployment("server", 1, annotations={LIMIT: "2s"}))
    assert "ReplicaSet" in room.wait_told("server", LIMIT, "cannot be enforced")
    assert room.bound() == []


def test_first_come_first_served_and_holes_are_filled_by_who_is_gone_in_time(room: Room) -> None:
    hour, minute = {LIMIT: "1h"}, {LIMIT: "1m"}
    room.put(job("runs", 3, "4", annotations=hour))
    room.wait_bound("runs", 3)
    room.put(job("head", 4, "4", annotations=hour))
    told = room.wait_told("head", "Unschedulable", "expected to start at")
    start = seconds(told.partition("expected to start at ")[2].split(": ")[0])
    begun = seconds(room.get("Job", "runs")["status"]["startTime"])
    assert abs(start - begun - 3600) < 60
    room.put(job("endless", 1, "4"))
    room.wait_looked_at("endless")
    assert room.bound("endless") == []
    room.put(job("short", 1, "4", annotations=minute))
    room.wait_bound("short", 1)
    room.delete("Job", "runs")
    room.delete("Job", "short")
    room.wait_bound("head", 4)
    assert room.bound("endless") == []


def test_nobody_starts_before_the_time_that_it_asked_for(room: Room) -> None:
    room.put(bare_pod("later", annotations={"penstock.dev/begin": "+5s"}), bare_pod("now"))
    room.wait_bound("now", 1)
    assert room.bound("later") == []
    (pod,) = room.wait_bound("later", 1)
    (placed,) = [one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled"]
    assert seconds(placed["lastTransitionTime"]) - seconds(pod["metadata"]["creationTimestamp"]) >= 5


def test_a_begin_time_that_cannot_be_read_is_told(room: Room) -> None:
    room.put(bare_pod("when", annotations={"penstock.dev/begin": "tomorrow"}))
    room.wait_told("when", "penstock.dev/begin", "tomorrow", "+10m")
