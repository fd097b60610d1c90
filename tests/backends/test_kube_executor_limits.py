"""Time limits of workloads as deadlines of their Jobs."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from penstock.backends.kube import executor
from penstock.kube.client import PatchType
from penstock.kube.errors import (
    Forbidden,
    OutcomeUnknown,
    TooManyRequests,
    Unreachable,
)
from penstock.kube.types import Pod, UnstructuredObject
from penstock.protocol.facts import Outcome
from penstock.protocol.intents import Assignment, End, EndReason, Evict
from tests.backends.kube_client import FakeClient
from tests.backends.kube_execution import NOW, PLACE, FakeContext, execute, outcomes, quick
from tests.backends.kube_objects import as_controller, job, owned_by, pod

__all__ = ["quick"]  # a fixture

pytestmark = pytest.mark.usefixtures("quick")


def limited_pod(name: str = "a") -> Pod:
    return pod(name, owner=owned_by("Job", "train"), annotations={"penstock.dev/limit": "60"})


def test_a_limit_becomes_the_deadline_of_the_job_once() -> None:
    context = FakeContext(job(started=1900.0), limited_pod("a"), limited_pod("b"))
    assignments = (Assignment("uid-a", 0, "n1"), Assignment("uid-b", 1, "n1"))
    client = FakeClient()
    execute(context, client, replace(PLACE, assignments=assignments, end_at=2060.5), want=2)
    patches = [what for verb, what in client.requests if verb == "patch"]
    annotations = {"penstock.dev/deadline-set": "161", "penstock.dev/deadline-original": None}
    body = {
        "metadata": {"uid": "uid-train", "annotations": annotations},
        "spec": {"activeDeadlineSeconds": 161},
    }
    assert patches == [("/apis/batch/v1/namespaces/default/jobs/train", body, PatchType.MERGE)]


def test_an_earlier_deadline_of_the_job_stays() -> None:
    context = FakeContext(job(started=1900.0, activeDeadlineSeconds=100), limited_pod())
    client = FakeClient()
    execute(context, client, replace(PLACE, end_at=2060.0))
    assert client.verbs() == ["bind"]


def deadline(client: FakeClient) -> tuple[object, object, object]:
    """The last deadline that was set, and the annotations that record it."""
    body = [what[1] for verb, what in client.requests if verb == "patch"][-1]
    annotations = body["metadata"]["annotations"]
    found = (annotations["penstock.dev/deadline-set"], annotations["penstock.dev/deadline-original"])
    return body["spec"]["activeDeadlineSeconds"], *found


def job_with_our_deadline(seconds: int, requests: str = "") -> UnstructuredObject:
    """A Job whose deadline Penstock has set, in place of its original one."""
    annotations = {"penstock.dev/deadline-set": str(seconds)}
    if requests:
        annotations["penstock.dev/deadline-original"] = requests
    return job(started=1000.0, activeDeadlineSeconds=seconds, annotations=annotations)


@pytest.mark.parametrize(
    ("job_object", "expected"),
    [
        (job_with_our_deadline(1010), (1060, "1060", None)),
        (job_with_our_deadline(1010, requests="5000"), (1060, "1060", "5000")),
        (job_with_our_deadline(1010, requests="1030"), (1030, None, None)),
        (job(started=1000.0, activeDeadlineSeconds=5000), (1060, "1060", "5000")),
    ],
)
def test_each_attempt_has_its_whole_limit(
    job_object: UnstructuredObject, expected: tuple[object, object, object]
) -> None:
    client = FakeClient()
    execute(FakeContext(job_object, limited_pod()), client, replace(PLACE, end_at=2060.0))
    assert client.verbs().count("patch") == 1
    assert deadline(client) == expected


def test_a_deadline_that_is_set_already_is_not_set_again() -> None:
    client = FakeClient()
    execute(FakeContext(job_with_our_deadline(1060), limited_pod()), client, replace(PLACE, end_at=2060.0))
    assert client.verbs() == ["bind"]


def test_our_deadline_is_removed_when_the_group_has_no_limit() -> None:
    job_object, client = pod(owner=owned_by("Job", "train")), FakeClient()
    execute(
        FakeContext(job_with_our_deadline(1010, requests="5000"), job_object),
        client,
        replace(PLACE, end_at=None),
    )
    assert deadline(client) == (5000, None, None)


def test_our_deadline_is_removed_when_a_group_is_evicted() -> None:
    client = FakeClient()
    context = FakeContext(
        job_with_our_deadline(1010), pod(owner=owned_by("Job", "train"), node="n1", placed=True)
    )
    execute(context, client, Evict(2, 77, ("uid-a",)))
    assert sorted(client.verbs()) == ["evict", "patch"]
    assert deadline(client) == (None, None, None)


def test_the_owners_deadline_stays_when_a_group_is_evicted() -> None:
    client = FakeClient()
    job_object = job(started=1000.0, activeDeadlineSeconds=5000)
    context = FakeContext(job_object, pod(owner=owned_by("Job", "train"), node="n1", placed=True))
    execute(context, client, Evict(2, 77, ("uid-a",)))
    assert client.verbs() == ["evict"]


@pytest.mark.parametrize("error", [Unreachable("no route"), OutcomeUnknown("reset"), Forbidden(403)])
def test_setting_a_deadline_is_retried(error: Exception) -> None:
    client = FakeClient(patch=[error, error])
    context = FakeContext(job(started=1900.0), limited_pod())
    execute(context, client, replace(PLACE, end_at=2060.0), until=lambda: client.verbs().count("patch") == 3)
    assert deadline(client) == (160, "160", None)


def test_the_deadline_of_a_job_that_has_not_started_is_set_when_it_has() -> None:
    context, client = FakeContext(job(), limited_pod()), FakeClient()

    def until() -> bool:
        if context.facts:
            context.cache.set_controller(as_controller(job(started=1900.0)))
            context.cache.facts(NOW)
        return "patch" in client.verbs()

    execute(context, client, replace(PLACE, end_at=2060.0), until=until)
    assert deadline(client) == (160, "160", None)


@pytest.mark.parametrize("end", ["the pod is gone", "the Job is over", "the limit has passed"])
def test_setting_a_deadline_is_not_retried_for_ever(end: str) -> None:
    context, now = FakeContext(job(started=1900.0), limited_pod()), NOW
    client = FakeClient(patch=[Forbidden(403)] * 100)
    checks = 0

    def until() -> bool:
        nonlocal now, checks
        if client.verbs().count("patch") < 3:
            return False
        match end:
            case "the pod is gone":
                context.cache.remove_pod(limited_pod())
            case "the Job is over":
                context.cache.set_controller(as_controller(job(started=1900.0, over="Failed")))
                context.cache.facts(NOW)
            case "the limit has passed":
                now = 2060.0
        checks += 1
        return checks > 50

    execute(context, client, replace(PLACE, end_at=2060.0), until=until, clock=lambda: now)
    assert client.verbs().count("patch") <= 4


def test_an_end_replaces_a_pending_deadline() -> None:
    context, client = FakeContext(job(started=1900.0), limited_pod()), FakeClient()
    end = End(3, 77, ("uid-a",), 15, 30.0, EndReason.CANCEL)
    execute(context, client, replace(PLACE, end_at=2060.0), end, want=2)
    patches = [what[1]["spec"] for verb, what in client.requests if verb == "patch"]
    assert patches == [{"activeDeadlineSeconds": 100}]


def test_a_deadline_is_not_set_without_leadership() -> None:
    context, client = FakeContext(job(started=1900.0), limited_pod(), is_leader=lambda: False), FakeClient()
    execute(context, client, replace(PLACE, end_at=2060.0))
    assert client.requests == []


def test_retry_after_of_a_busy_server_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_RETRY_AFTER_S_MAX", 0.05)
    client = FakeClient(bind=[TooManyRequests(429, retry_after_s=600.0)])
    began = time.monotonic()
    assert outcomes(execute(FakeContext(pod()), client, PLACE)) == [Outcome.APPLIED]
    assert time.monotonic() - began >= 0.05
