"""Why controllers create no pods: which events are read, how often, and what they say."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.creation_problems import CreationProblems, creation_problem
from penstock.backends.kube.settings import KubeSettings
from penstock.kube.client import ListResult
from penstock.kube.errors import Forbidden
from penstock.kube.types import Event, ObjectMeta
from penstock.podspec.controllers import Controller
from tests.backends.kube_objects import as_controller, job, owned_by, pod, time_text

NOW = 100_000.0
QUOTA = "exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2"


def event(note: str = f'Error creating: pods "train-x7" is forbidden: {QUOTA}', at: float = NOW) -> Event:
    return Event(
        metadata=ObjectMeta(creation_timestamp=time_text(NOW - 9000)),
        note=note,
        deprecated_last_timestamp=time_text(at),
    )


@dataclass
class Rounds:
    """Rounds of a `CreationProblems` on a cache, with a clock that the test advances."""

    cache: ClusterCache = field(default_factory=lambda: ClusterCache(KubeSettings()))
    events: tuple[Event, ...] = ()
    error: Exception | None = None
    now: float = 0.0
    reads: list[str] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        def tell(_workload: str, controller: Controller, problem: str) -> None:
            self.told.append((controller.name, problem))

        self.problems = CreationProblems(self, tell, lambda: NOW, lambda: self.now)  # type: ignore[arg-type]

    async def list(self, path: str, _type: type, *, field_selector: str) -> ListResult[Any]:
        self.reads.append(f"{path}?{field_selector}")
        if self.error is not None:
            raise self.error
        return ListResult(self.events, "1")

    def look(self, at: float) -> None:
        self.now = at
        self.cache.facts(NOW)
        asyncio.run(self.problems.look(self.cache))

    def add_job(self, name: str, wants: int, pods: int) -> None:
        self.cache.set_controller(as_controller(job(name, wants=wants)))
        for number in range(pods):
            self.cache.set_pod(pod(f"{name}-{number}", owner=owned_by("Job", name)))


def test_only_controllers_that_stay_short_of_pods_are_read() -> None:
    rounds = Rounds(events=(event(),))
    rounds.add_job("train", 3, 2)
    rounds.add_job("complete", 2, 2)
    rounds.look(0.0)
    assert rounds.reads == [], "a controller gets a moment to create its pods"
    rounds.look(5.0)
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    assert rounds.reads == [f"{path}?regarding.uid=uid-train,reason=FailedCreate"]
    assert rounds.told == [("train", QUOTA)]
    rounds.look(6.0)
    assert len(rounds.reads) == 1
    rounds.look(30.0)
    assert len(rounds.reads) == 2
    assert rounds.told == [("train", QUOTA)], "the same is told once"


def test_a_problem_that_is_resolved_is_withdrawn() -> None:
    rounds = Rounds(events=(event(),))
    rounds.add_job("train", 3, 2)
    rounds.look(0.0)
    rounds.look(5.0)
    rounds.add_job("train", 3, 3)
    rounds.look(7.0)
    assert rounds.told == [("train", QUOTA), ("train", "")]
    rounds.look(60.0)
    assert len(rounds.reads) == 1


def test_a_member_that_has_failed_makes_its_job_short() -> None:
    rounds = Rounds(events=(event(),))
    rounds.add_job("train", 2, 2)
    rounds.look(0.0)
    rounds.cache.set_pod(pod("train-1", owner=owned_by("Job", "train"), node="n1", phase="Failed"))
    rounds.look(1.0)
    rounds.look(6.0)
    assert rounds.told == [("train", QUOTA)]


def test_reads_are_bounded_and_become_rare_where_nothing_is_found() -> None:
    rounds = Rounds()
    for number in range(30):
        rounds.add_job(f"job-{number}", 2, 1)
    rounds.look(0.0)
    rounds.look(5.0)
    assert len(rounds.reads) == 10
    rounds.look(7.0)
    rounds.look(9.0)
    assert len(set(rounds.reads)) == 30
    for at in range(10, 600):
        rounds.look(float(at))
    assert len(rounds.reads) <= 30 * 6
    assert rounds.told == []


def test_a_read_that_is_not_permitted_tells_nothing() -> None:
    rounds = Rounds(error=Forbidden(403))
    rounds.add_job("train", 3, 2)
    rounds.look(0.0)
    rounds.look(5.0)
    assert (len(rounds.reads), rounds.told) == (1, [])


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ((), ""),
        ((event(),), QUOTA),
        ((event(at=NOW - 3600),), ""),
        ((event("old", NOW - 60), event("new", NOW - 5), event("older", NOW - 90)), "new"),
        (
            (event("Error creating: admission webhook denied it"),),
            "Error creating: admission webhook denied it",
        ),
        ((event("x" * 1000),), "x" * 397 + "..."),
        ((event(at=NOW - 60), Event(note="no time")), QUOTA),
    ],
)
def test_the_latest_recent_event_says_why(events: tuple[Event, ...], text: str) -> None:
    assert creation_problem(events, NOW) == text
