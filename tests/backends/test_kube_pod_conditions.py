"""Conditions and events of pods: coalesced, in time, and within a rate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.backends.kube.condition_queue import PodCondition, Precedence
from penstock.backends.kube.pod_conditions import (
    ConditionWriter,
    condition_of_problem,
    condition_of_update,
)
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.errors import ApiConflict, Forbidden, TooManyRequests, Unreachable
from penstock.kube.types import Pod
from penstock.podspec.problems import OWNER_NOT_SYNCED, PodProblem
from penstock.protocol.intents import StatusUpdate, WorkloadStatus
from tests.backends.kube_client import FakeClient
from tests.backends.kube_objects import pod, time_text

WAITING = PodCondition("Unschedulable", "2 of 3 nodes are busy")
NEVER = PodCondition("Unschedulable", "it can never run here", is_urgent=True)


class WriterHarness:
    """A condition writer that writes on request, with the clock of the test."""

    def __init__(self, *pods: Pod, client: FakeClient | None = None, **settings: Any) -> None:
        self.now = 1000.0
        self.pods = {one.metadata.uid: one for one in pods}
        self.client = client or FakeClient()
        self.is_leader = True
        self.writer = ConditionWriter(
            self.client,  # type: ignore[arg-type]
            KubeSettings(**settings),
            lambda uid: self.pods.get(uid),
            lambda: self.is_leader,
            lambda: self.now,
            "me",
        )

    def write(self, rounds: int = 20) -> list[tuple[str, Any]]:
        """Requests of that many writes at the present instant."""

        async def scenario() -> None:
            for _ in range(rounds):
                await self.writer._write_next()

        before = len(self.client.requests)
        asyncio.run(scenario())
        return self.client.requests[before:]

    def conditions(self, rounds: int = 20) -> list[tuple[str, str]]:
        """Pods and messages of the conditions that were written."""
        return [
            (what[0].split("/")[-2], what[1]["status"]["conditions"][0]["message"])
            for verb, what in self.write(rounds)
            if verb == "patch"
        ]

    def remembered(self) -> int:
        return len(self.writer._conditions)


def test_a_condition_is_written_with_an_event() -> None:
    harness = WriterHarness(pod("a", resourceVersion="7", generation=3))
    harness.writer.set("uid-a", WAITING)
    assert harness.write() == [], "a condition is not written before it has settled"
    harness.now += 1.0
    patch, event = harness.write()
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "2 of 3 nodes are busy",
        "observedGeneration": 3,
        "lastTransitionTime": time_text(1001.0),
    }
    assert patch[1][0] == "/api/v1/namespaces/default/pods/a/status"
    assert patch[1][1] == {
        "metadata": {"uid": "uid-a", "resourceVersion": "7"},
        "status": {"conditions": [condition]},
    }
    assert event == ("event", ("a", "FailedScheduling", "2 of 3 nodes are busy"))


def test_only_the_latest_condition_is_written() -> None:
    harness = WriterHarness(pod("a"))
    for number in range(5):
        harness.writer.set("uid-a", PodCondition("Unschedulable", f"text {number}"))
        harness.now += 0.2
    assert harness.conditions() == [("a", "text 4")], "the wait counts from the first condition"


def test_urgent_conditions_are_written_first_and_at_once() -> None:
    harness = WriterHarness(pod("a"), pod("b"), pod("c"))
    harness.writer.set("uid-a", WAITING)
    harness.writer.scheduled(pod("c"), "n1")
    harness.now += 5.0
    harness.writer.set("uid-b", NEVER, Precedence.URGENT)
    written = harness.write(4)
    assert written[0][1][0].endswith("/pods/b/status")
    assert sorted(verb for verb, _ in written[1:]) == ["event", "event", "patch"]


def test_a_written_condition_is_not_written_again() -> None:
    harness = WriterHarness(pod("a"))
    for _ in range(3):
        harness.writer.set("uid-a", WAITING)
        harness.now += 100.0
        harness.write()
    assert harness.client.verbs() == ["patch", "event"]


def test_a_condition_that_the_pod_has_already_is_not_written() -> None:
    present = {"type": "PodScheduled", "status": "False", "reason": WAITING.reason, "message": WAITING.text}
    harness = WriterHarness(pod("a", status={"conditions": [present]}))
    harness.writer.set("uid-a", WAITING)
    harness.now += 5.0
    assert harness.write() == []


def test_an_outdated_condition_of_the_pod_is_overwritten() -> None:
    present = {
        "type": "PodScheduled",
        "status": "False",
        "reason": WAITING.reason,
        "message": "3 nodes are busy",
    }
    harness = WriterHarness(pod("a", status={"conditions": [present]}))
    harness.writer.set("uid-a", WAITING)
    harness.now += 5.0
    assert harness.conditions() == [("a", WAITING.text)]


def test_the_transition_time_of_a_condition_that_stays_false_is_kept() -> None:
    present = {"type": "PodScheduled", "status": "False", "reason": "x", "lastTransitionTime": time_text(5.0)}
    harness = WriterHarness(pod("a", status={"conditions": [present]}))
    harness.writer.set("uid-a", NEVER)
    body = harness.write()[0][1][1]
    assert body["status"]["conditions"][0]["lastTransitionTime"] == time_text(5.0)


def test_a_small_change_of_the_start_is_not_written_and_a_large_one_with_delay() -> None:
    harness = WriterHarness(pod("a"), condition_interval_s=15.0)
    harness.writer.set("uid-a", PodCondition("Unschedulable", "busy", start_at=2000.0))
    harness.now += 1.0
    assert harness.conditions() == [("a", f"expected to start at {time_text(2000.0)}: busy")]
    harness.writer.set("uid-a", PodCondition("Unschedulable", "busy", start_at=2025.0))
    harness.now += 100.0
    assert harness.write() == []
    harness.now = 1002.0
    harness.writer.set("uid-a", PodCondition("Unschedulable", "busy", start_at=2400.0))
    harness.now = 1010.0
    assert harness.write() == [], "the interval between minor changes has not passed"
    harness.now = 1017.0
    assert harness.conditions() == [("a", f"expected to start at {time_text(2400.0)}: busy")]
    events = [what[2] for verb, what in harness.client.requests if verb == "event"]
    assert events == [f"expected to start at {time_text(at)}: busy" for at in (2000.0, 2400.0)]


def test_an_event_is_renewed_when_the_start_that_it_tells_has_moved_noticeably_or_has_passed() -> None:
    harness = WriterHarness(pod("a"), condition_interval_s=0.0)

    def told(start_at: float | None) -> list[str]:
        harness.writer.set("uid-a", PodCondition("Unschedulable", "busy", start_at))
        harness.now += 2.0
        return [what[2] for verb, what in harness.write() if verb == "event"]

    assert told(1300.0) == [f"expected to start at {time_text(1300.0)}: busy"]
    assert told(1350.0) == [], "the condition says it, and no minute has been added"
    assert told(1390.0) == [f"expected to start at {time_text(1390.0)}: busy"], "slips add up"
    assert told(1200.0) == [f"expected to start at {time_text(1200.0)}: busy"], "it starts earlier"
    assert told(None) == [], "the forecast may come back"
    harness.now = 1201.0
    assert told(4000.0) == [f"expected to start at {time_text(4000.0)}: busy"]


# Order


def test_the_head_of_the_queue_comes_first_then_one_pod_of_each_group_then_the_rest() -> None:
    harness = WriterHarness(
        *(pod(f"{precedence.name.lower()}{number}") for precedence in Precedence for number in range(20))
    )
    for number in range(20):
        for precedence in reversed(Precedence):
            harness.writer.set(f"uid-{precedence.name.lower()}{number}", WAITING, precedence)
    harness.now += 1.0
    written = [name.rstrip("0123456789") for name, _ in harness.conditions(rounds=200)]
    assert sorted(written[:40]) == ["head"] * 20 + ["urgent"] * 20
    assert set(zip(written[:40:2], written[1:40:2], strict=True)) <= {("urgent", "head"), ("head", "urgent")}
    assert written[40:] == ["first"] * 20 + ["rest"] * 20


def test_a_pod_that_moves_to_the_head_of_the_queue_is_told_before_others_that_wait_longer() -> None:
    harness = WriterHarness(pod("a"), pod("b"))
    harness.writer.set("uid-a", WAITING)
    harness.writer.set("uid-b", WAITING)
    harness.now += 1.0
    harness.writer.set("uid-b", PodCondition("Unschedulable", "soon"), Precedence.HEAD)
    assert harness.conditions() == [("b", "soon"), ("a", WAITING.text)]


def test_events_do_not_hold_up_conditions() -> None:
    harness = WriterHarness(*(pod(f"p{number}") for number in range(90)))
    for number in range(90):
        harness.writer.scheduled(pod(f"q{number}"), "n1")
        harness.writer.set(f"uid-p{number}", WAITING)
    harness.now += 1.0
    assert [verb for verb, _ in harness.write(120)].count("patch") == 90


def test_two_conditions_of_one_pod_are_not_written_at_a_time() -> None:
    harness = WriterHarness(pod("a"))
    harness.writer.set("uid-a", NEVER)

    def meanwhile() -> None:
        harness.writer.set("uid-a", PodCondition("GroupIncomplete", "later", is_urgent=True))

    harness.client.responses["patch"] = [meanwhile]

    async def scenario() -> None:
        await asyncio.gather(*(harness.writer._write_next() for _ in range(3)))

    asyncio.run(scenario())
    assert harness.client.verbs() == ["patch"]
    harness.now += 1.0
    assert harness.conditions() == [("a", "later")]


def test_an_event_is_written_for_a_new_reason_or_an_urgent_condition_only() -> None:
    harness = WriterHarness(pod("a"))
    for text in ("one", "two"):
        harness.writer.set("uid-a", PodCondition("Unschedulable", text))
        harness.now += 100.0
        harness.write()
    harness.writer.set("uid-a", PodCondition("GroupIncomplete", "three", is_urgent=True))
    harness.write()
    assert [what[2] for verb, what in harness.client.requests if verb == "event"] == ["one", "three"]


def test_an_urgent_condition_that_is_withdrawn_is_not_written() -> None:
    harness = WriterHarness(pod("a"))
    harness.writer.set("uid-a", WAITING)
    harness.now += 5.0
    harness.write()
    harness.writer.set("uid-a", NEVER)
    harness.writer.set("uid-a", WAITING)
    assert harness.write() == []


def test_an_urgent_condition_that_is_replaced_is_not_written() -> None:
    harness = WriterHarness(pod("a"))
    harness.writer.set("uid-a", NEVER)
    harness.writer.set("uid-a", WAITING)
    harness.now += 5.0
    assert harness.conditions() == [("a", WAITING.text)]


def test_the_condition_after_an_urgent_one_is_written_without_delay() -> None:
    harness = WriterHarness(pod("a"), condition_interval_s=15.0)
    harness.writer.set("uid-a", NEVER)
    harness.write()
    harness.writer.set("uid-a", WAITING)
    harness.now += 2.0
    assert harness.conditions() == [("a", WAITING.text)]


def test_a_condition_that_is_not_due_delays_no_other() -> None:
    harness = WriterHarness(*(pod(f"p{number}") for number in range(300)))
    for number in range(300):
        harness.writer.set(f"uid-p{number}", WAITING)
        if number == 149:
            harness.now += 2.0
    assert len(harness.conditions(rounds=400)) == 150
    harness.writer.set("uid-p299", NEVER)
    assert harness.conditions(rounds=1) == [("p299", NEVER.text)]


@pytest.mark.parametrize("error", [Unreachable("no route"), ApiConflict(409)])
def test_a_condition_that_could_not_be_written_is_retried(error: Exception) -> None:
    harness = WriterHarness(pod("a"), client=FakeClient(patch=[error]))
    harness.writer.set("uid-a", NEVER)
    assert len(harness.write()) == 1
    harness.now += 1.0
    assert harness.conditions() == [("a", NEVER.text)]


def test_a_retried_condition_gives_way_to_a_later_one() -> None:
    harness = WriterHarness(pod("a"))

    def refused() -> None:
        harness.writer.set("uid-a", NEVER)
        raise ApiConflict(409)

    harness.client.responses["patch"] = [refused]
    harness.writer.set("uid-a", WAITING)
    harness.now += 2.0
    assert harness.conditions() == [("a", WAITING.text), ("a", NEVER.text)]
    harness.now += 100.0
    assert harness.conditions() == []


def test_a_forbidden_write_is_not_retried() -> None:
    harness = WriterHarness(pod("a"), client=FakeClient(patch=[Forbidden(403)]))
    harness.writer.set("uid-a", NEVER)
    harness.write()
    harness.now += 100.0
    assert harness.write() == []
    assert harness.remembered() == 0


@pytest.mark.parametrize("error", [Unreachable("no route"), TooManyRequests(429)])
def test_an_event_that_was_not_sent_is_retried_a_few_times(error: Exception) -> None:
    harness = WriterHarness(pod("a"))
    harness.client.responses["event"] = [error]
    harness.writer.scheduled(pod("a"), "n1")
    assert [verb for verb, _ in harness.write()] == ["event"] * 2
    harness.client.responses["event"] = [error] * 20
    harness.writer.scheduled(pod("a"), "n1")
    assert len(harness.write()) == 5


# Memory


def test_deleted_and_bound_pods_are_forgotten() -> None:
    harness = WriterHarness(pod("a"), pod("b"), pod("c"), pod("d"))
    for uid in harness.pods:
        harness.writer.set(uid, NEVER)
    harness.write(2)
    assert harness.remembered() == 4
    harness.writer.forget("uid-a")
    harness.writer.scheduled(pod("b"), "n1")
    del harness.pods["uid-c"]
    harness.pods["uid-d"] = pod("d", node="n1")
    harness.write()
    assert harness.remembered() == 0


def test_a_sweep_forgets_pods_whose_deletion_was_missed() -> None:
    harness = WriterHarness(*(pod(f"p{number}") for number in range(30)))
    for uid in harness.pods:
        harness.writer.set(uid, NEVER)
    harness.write(100)
    harness.pods = {"uid-p0": pod("p0")}
    harness.writer.sweep()
    assert harness.remembered() == 1


def test_a_sweep_forgets_conditions_that_are_not_written_yet() -> None:
    harness = WriterHarness(pod("a"), pod("b"))
    harness.writer.set("uid-a", WAITING)
    harness.writer.set("uid-b", NEVER)
    harness.pods = {}
    harness.writer.sweep()
    assert harness.remembered() == 0


def test_a_pod_that_is_bound_during_the_write_is_forgotten() -> None:
    harness = WriterHarness(pod("a"))

    def bind_meanwhile() -> None:
        harness.pods["uid-a"] = pod("a", node="n1")

    harness.client.responses["patch"] = [bind_meanwhile]
    harness.writer.set("uid-a", NEVER)
    assert len(harness.write()) == 1
    assert harness.remembered() == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.backends.kube.condition_queue._WAITING_MAX", 10)
    harness = WriterHarness()
    for number in range(50):
        harness.writer.set(f"uid-{number}", WAITING)
    assert harness.remembered() == 10
    for number in range(60_000):
        harness.writer._events.append(number)  # type: ignore[arg-type]
    assert len(harness.writer._events) == 50_000


# Rate


def test_all_writes_together_are_rate_limited() -> None:
    harness = WriterHarness(*(pod(f"p{number}") for number in range(500)), status_writes_per_s=100.0)
    for uid in harness.pods:
        harness.writer.set(uid, WAITING)
    harness.now += 5.0

    async def scenario() -> None:
        task = asyncio.create_task(harness.writer.run())
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert 2 <= len(harness.client.requests) <= 31


def test_nothing_is_written_without_leadership() -> None:
    harness = WriterHarness(pod("a"))
    harness.is_leader = False
    harness.writer.set("uid-a", NEVER)

    async def scenario() -> None:
        task = asyncio.create_task(harness.writer.run())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert harness.client.requests == []


# Reasons and messages


@pytest.mark.parametrize(
    ("status", "reason", "is_urgent"),
    [
        (WorkloadStatus.ASSEMBLING, "GroupIncomplete", False),
        (WorkloadStatus.WAITING, "Unschedulable", False),
        (WorkloadStatus.HELD, "Held", False),
        (WorkloadStatus.DELAYED, "Delayed", False),
        (WorkloadStatus.QUEUE_STOPPED, "QueueStopped", False),
        (WorkloadStatus.UNSATISFIABLE, "Unschedulable", True),
        (WorkloadStatus.INCOMPLETE, "GroupIncomplete", True),
        (WorkloadStatus.INADMISSIBLE, "GroupInadmissible", True),
    ],
)
def test_the_condition_of_each_status(status: WorkloadStatus, reason: str, is_urgent: bool) -> None:
    message = condition_of_update(StatusUpdate("default/job/x/1", 1, status, "why"))
    assert (message.reason, message.is_urgent) == (reason, is_urgent)
    is_never = status is WorkloadStatus.UNSATISFIABLE
    assert message.text == ("it can never run here: why" if is_never else "why")


def test_an_owner_that_is_not_synced_is_not_urgent() -> None:
    assert not condition_of_problem(PodProblem(OWNER_NOT_SYNCED, "x")).is_urgent
    assert condition_of_problem(PodProblem("InvalidSpec", "x")).is_urgent
