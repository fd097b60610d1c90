"""What people read at their pods: enough of it, in time, and no more than a server bears."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.backends.kube.pod_conditions import (
    ConditionWriter,
    PodCondition,
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


class Room:
    """A teller that writes when it is told to, on a clock of the test."""

    def __init__(self, *pods: Pod, client: FakeClient | None = None, **settings: Any) -> None:
        self.now = 1000.0
        self.pods = {one.metadata.uid: one for one in pods}
        self.client = client or FakeClient()
        self.is_in_office = True
        self.teller = ConditionWriter(
            self.client,  # type: ignore[arg-type]
            KubeSettings(**settings),
            lambda uid: self.pods.get(uid),
            lambda: self.is_in_office,
            lambda: self.now,
            "me",
        )

    def write(self, turns: int = 20) -> list[tuple[str, Any]]:
        """So many turns, at this instant; what was written in them."""

        async def scenario() -> None:
            for _ in range(turns):
                await self.teller._write_next(2)

        before = len(self.client.asked)
        asyncio.run(scenario())
        return self.client.asked[before:]

    def conditions(self, turns: int = 20) -> list[tuple[str, str]]:
        """Which pods were told, and what."""
        return [
            (what[0].split("/")[-2], what[1]["status"]["conditions"][0]["message"])
            for verb, what in self.write(turns)
            if verb == "patch"
        ]

    def remembered(self) -> int:
        teller = self.teller
        return len(teller._written) + len(teller._waiting) + len(teller._urgent)


def test_a_message_is_a_condition_and_an_event() -> None:
    room = Room(pod("a", resourceVersion="7", generation=3))
    room.teller.set("uid-a", WAITING)
    assert room.write() == [], "what holds for less than a moment is never told"
    room.now += 1.0
    patch, event = room.write()
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


def test_the_newest_message_is_written_and_the_others_never() -> None:
    room = Room(pod("a"))
    for number in range(5):
        room.teller.set("uid-a", PodCondition("Unschedulable", f"text {number}"))
        room.now += 0.2
    assert room.conditions() == [("a", "text 4")], "it has waited since the first"


def test_what_is_urgent_goes_first_and_at_once() -> None:
    room = Room(pod("a"), pod("b"), pod("c"))
    room.teller.set("uid-a", WAITING)
    room.teller.scheduled(pod("c"), "n1")
    room.now += 5.0
    room.teller.set("uid-b", NEVER)
    written = room.write(3)
    assert written[0][1][0].endswith("/pods/b/status")
    assert sorted(verb for verb, _ in written[1:]) == ["event", "patch"], "and then both in turn"


def test_what_was_told_is_not_told_again() -> None:
    room = Room(pod("a"))
    for _ in range(3):
        room.teller.set("uid-a", WAITING)
        room.now += 100.0
        room.write()
    assert room.client.verbs() == ["patch", "event"]


def test_what_a_pod_says_already_is_not_written_after_a_restart() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": WAITING.reason, "message": WAITING.text}
    room = Room(pod("a", status={"conditions": [said]}))
    room.teller.set("uid-a", WAITING)
    room.now += 5.0
    assert room.write() == []


def test_what_a_pod_said_before_a_restart_and_holds_no_more_is_written_over() -> None:
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": WAITING.reason,
        "message": "3 nodes are busy",
    }
    room = Room(pod("a", status={"conditions": [said]}))
    room.teller.set("uid-a", WAITING)
    room.now += 5.0
    assert room.conditions() == [("a", WAITING.text)]


def test_the_time_of_a_condition_that_stays_false_is_kept() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "x", "lastTransitionTime": time_text(5.0)}
    room = Room(pod("a", status={"conditions": [said]}))
    room.teller.set("uid-a", NEVER)
    body = room.write()[0][1][1]
    assert body["status"]["conditions"][0]["lastTransitionTime"] == time_text(5.0)


def test_a_start_that_drifts_is_no_news_and_one_that_slips_is_told_in_its_time() -> None:
    room = Room(pod("a"), condition_interval_s=15.0)
    room.teller.set("uid-a", PodCondition("Unschedulable", "busy", start_at=2000.0))
    room.now += 1.0
    assert room.conditions() == [("a", f"expected to start at {time_text(2000.0)}: busy")]
    room.teller.set("uid-a", PodCondition("Unschedulable", "busy", start_at=2025.0))
    room.now += 100.0
    assert room.write() == []
    room.now = 1002.0
    room.teller.set("uid-a", PodCondition("Unschedulable", "busy", start_at=2400.0))
    room.now = 1010.0
    assert room.write() == [], "the same pod is not told so often"
    room.now = 1017.0
    assert room.conditions() == [("a", f"expected to start at {time_text(2400.0)}: busy")]
    assert room.client.verbs().count("event") == 1, "a start that moves is no event"


def test_an_event_for_each_news_and_only_for_that() -> None:
    room = Room(pod("a"))
    for text in ("one", "two"):
        room.teller.set("uid-a", PodCondition("Unschedulable", text))
        room.now += 100.0
        room.write()
    room.teller.set("uid-a", PodCondition("GroupIncomplete", "three", is_urgent=True))
    room.write()
    assert [what[2] for verb, what in room.client.asked if verb == "event"] == ["one", "three"]


def test_what_was_urgent_and_holds_no_more_is_not_written() -> None:
    room = Room(pod("a"))
    room.teller.set("uid-a", WAITING)
    room.now += 5.0
    room.write()
    room.teller.set("uid-a", NEVER)
    room.teller.set("uid-a", WAITING)
    assert room.write() == []


def test_what_was_urgent_and_gave_way_to_something_else_is_not_written() -> None:
    room = Room(pod("a"))
    room.teller.set("uid-a", NEVER)
    room.teller.set("uid-a", WAITING)
    room.now += 5.0
    assert room.conditions() == [("a", WAITING.text)]


def test_who_could_never_run_and_can_after_all_reads_it_without_delay() -> None:
    room = Room(pod("a"), condition_interval_s=15.0)
    room.teller.set("uid-a", NEVER)
    room.write()
    room.teller.set("uid-a", WAITING)
    room.now += 2.0
    assert room.conditions() == [("a", WAITING.text)]


def test_one_whose_time_has_not_come_holds_nobody_up() -> None:
    room = Room(*(pod(f"p{number}") for number in range(300)))
    for number in range(300):
        room.teller.set(f"uid-p{number}", WAITING)
        if number == 149:
            room.now += 2.0
    assert len(room.conditions(turns=400)) == 150
    room.teller.set("uid-p299", NEVER)
    assert room.conditions(turns=1) == [("p299", NEVER.text)]


@pytest.mark.parametrize("error", [Unreachable("no way"), ApiConflict(409)])
def test_what_could_not_be_written_is_written_a_moment_later(error: Exception) -> None:
    room = Room(pod("a"), client=FakeClient(patch=[error]))
    room.teller.set("uid-a", NEVER)
    assert len(room.write()) == 1
    room.now += 1.0
    assert room.conditions() == [("a", NEVER.text)]


def test_what_could_not_be_written_gives_way_to_what_came_meanwhile() -> None:
    room = Room(pod("a"))

    def refused() -> None:
        room.teller.set("uid-a", NEVER)
        raise ApiConflict(409)

    room.client.answers["patch"] = [refused]
    room.teller.set("uid-a", WAITING)
    room.now += 2.0
    assert room.conditions() == [("a", WAITING.text), ("a", NEVER.text)]
    room.now += 100.0
    assert room.conditions() == []


def test_what_is_forbidden_is_not_tried_again() -> None:
    room = Room(pod("a"), client=FakeClient(patch=[Forbidden(403)]))
    room.teller.set("uid-a", NEVER)
    room.write()
    room.now += 100.0
    assert room.write() == []
    assert room.remembered() == 0


@pytest.mark.parametrize("error", [Unreachable("no way"), TooManyRequests(429)])
def test_an_event_that_was_not_taken_is_written_again_but_not_for_ever(error: Exception) -> None:
    room = Room(pod("a"))
    room.client.answers["event"] = [error]
    room.teller.scheduled(pod("a"), "n1")
    assert [verb for verb, _ in room.write()] == ["event"] * 2
    room.client.answers["event"] = [error] * 20
    room.teller.scheduled(pod("a"), "n1")
    assert len(room.write()) == 5


# Memory


def test_pods_that_are_gone_or_on_a_node_are_forgotten() -> None:
    room = Room(pod("a"), pod("b"), pod("c"), pod("d"))
    for uid in room.pods:
        room.teller.set(uid, NEVER)
    room.write(2)
    assert room.remembered() == 4
    room.teller.forget("uid-a")
    room.teller.scheduled(pod("b"), "n1")
    del room.pods["uid-c"]
    room.pods["uid-d"] = pod("d", node="n1")
    room.write()
    assert room.remembered() == 0


def test_a_sweep_finds_those_of_whom_nobody_has_told() -> None:
    room = Room(*(pod(f"p{number}") for number in range(30)))
    for uid in room.pods:
        room.teller.set(uid, NEVER)
    room.write(100)
    room.pods = {"uid-p0": pod("p0")}
    room.teller.sweep()
    assert room.remembered() == 1


def test_a_sweep_forgets_those_as_well_who_were_to_be_told() -> None:
    room = Room(pod("a"), pod("b"))
    room.teller.set("uid-a", WAITING)
    room.teller.set("uid-b", NEVER)
    room.pods = {}
    room.teller.sweep()
    assert room.remembered() == 0


def test_one_that_is_bound_while_it_is_told_is_forgotten() -> None:
    room = Room(pod("a"))

    def bound() -> None:
        room.pods["uid-a"] = pod("a", node="n1")

    room.client.answers["patch"] = [bound]
    room.teller.set("uid-a", NEVER)
    assert len(room.write()) == 1
    assert room.remembered() == 0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.backends.kube.pod_conditions._WAITING_MAX", 10)
    room = Room()
    for number in range(50):
        room.teller.set(f"uid-{number}", WAITING)
    assert room.remembered() == 10
    for number in range(60_000):
        room.teller._events.append(number)  # type: ignore[arg-type]
    assert len(room.teller._events) == 50_000


# The pace


def test_all_writes_together_keep_to_a_rate() -> None:
    room = Room(*(pod(f"p{number}") for number in range(500)), status_writes_per_s=100.0)
    for uid in room.pods:
        room.teller.set(uid, WAITING)
    room.now += 5.0

    async def scenario() -> None:
        task = asyncio.create_task(room.teller.run())
        await asyncio.sleep(0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert 2 <= len(room.client.asked) <= 31


def test_nothing_is_written_out_of_office() -> None:
    room = Room(pod("a"))
    room.is_in_office = False
    room.teller.set("uid-a", NEVER)

    async def scenario() -> None:
        task = asyncio.create_task(room.teller.run())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scenario())
    assert room.client.asked == []


# Words


@pytest.mark.parametrize(
    ("status", "reason", "is_urgent"),
    [
        (WorkloadStatus.ASSEMBLING, "GroupIncomplete", False),
        (WorkloadStatus.WAITING, "Unschedulable", False),
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


def test_a_maker_that_has_not_been_heard_of_yet_is_not_urgent() -> None:
    assert not condition_of_problem(PodProblem(OWNER_NOT_SYNCED, "x")).is_urgent
    assert condition_of_problem(PodProblem("InvalidSpec", "x")).is_urgent
