"""Builders of changes with defaults for everything that a test does not care about."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.model.job import JobEvent, JobState
from penstock.protocol.intents import IntentKind
from penstock.sched.records import (
    AllocationGone,
    AllocationNew,
    Change,
    DrainSet,
    IdHighest,
    InadmissibleSet,
    IntentDone,
    IntentNew,
    JobLive,
    JobLogged,
    JobNew,
    NodeNew,
    QueueSet,
)
from penstock.store.port import Store

__all__ = ["EVERYTHING", "ended", "event", "job_lifecycle", "live", "new", "opened"]


def new(job: int, *, key: str = "", seen_at: float = 100.0, name: str = "sleep", **spec: object) -> JobNew:
    return JobNew(job, "ada", name, seen_at, spec, f"workload/{job}", key)


def event(job: int, number: int, name: str = "memo", **context: object) -> JobLogged:
    return JobLogged(job, number, JobEvent(100.5 + number, name, context))


def live(job: int, state: JobState = JobState.SCHED, *, queue: str = "batch", **detail: object) -> JobLive:
    return JobLive(job, state, queue, 16, 20, "", None, None, None, detail)


def ended(job: int, at: float = 200.0, result: str = "COMPLETED", queue: str = "batch") -> JobLive:
    return JobLive(job, JobState.INACTIVE, queue, 16, 20, result, 0, at - 10, at, {})


# One change of every type, with values that need escaping in COPY and JSON.
EVERYTHING: tuple[Change, ...] = (
    new(1, key="k1", command=["echo", 'a\tb\n"\\N"'], env={"ä": None, "x": 1.5}),
    new(2, key="k1", depends_on=[1, 3]),
    JobNew(3, "b\\ob\t", "na\nme \\.", 99.25, {}),
    event(1, 0, "submit", note="tab\tline\nback\\slash 漢"),
    event(1, 1, "vali\\date"),
    live(1, JobState.DEPEND, why={"a": [1, 2, {"b": None}]}),
    live(1, JobState.RUN, queue="q\t\\"),
    ended(3),
    AllocationNew(1, 0, 100, 200, {"R": [1, 2]}),
    AllocationNew(1, 1, 150, None, {}),
    IntentNew(7, 1, IntentKind.PLACE, {"members": ["m"]}),
    IntentNew(8, 2, IntentKind.END, {}),
    NodeNew("n1", 1),
    NodeNew("n0", 0),
    DrainSet("n1", "fan", "ada", 5.0),
    QueueSet("batch", True, False, "", "night"),
    InadmissibleSet("ns/job/a\\b", ("m\t1", "m2"), "CANCELED: by 'ada'"),
    IdHighest(3, 8, 1),
)


def job_lifecycle(job: int) -> list[Change]:
    """The changes of a job that ran to completion: eleven events, three states, an allocation, an intent."""
    names = (
        "submit",
        "validate",
        "depend",
        "priority",
        "alloc",
        "start",
        "memo",
        "finish",
        "release",
        "free",
    )
    events: list[Change] = [
        event(job, number, name, status=0) for number, name in enumerate((*names, "clean"))
    ]
    return [
        new(job, key=f"key{job}", command=["sleep", "1"], cores=4),
        *events[:4],
        live(job, JobState.SCHED),
        *events[4:6],
        AllocationNew(job, 0, 100, 200, {"R_lite": [{"rank": "0", "children": {"core": "0-3"}}]}),
        IntentNew(job, job, IntentKind.PLACE, {"members": ["m"]}),
        live(job, JobState.RUN, nodes="n0"),
        *events[6:],
        IntentDone(job),
        AllocationGone(job, 200.0),
        ended(job),
        IdHighest(job, job, 0),
    ]


@asynccontextmanager
async def opened(*factories: Callable[[], Store]) -> AsyncIterator[list[Store]]:
    """Opens a store per factory, and closes them afterwards."""
    stores = [make() for make in factories]
    try:
        for store in stores:
            await store.open()
        yield stores
    finally:
        for store in stores:
            await store.close()
