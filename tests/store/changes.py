"""Builders of changes with defaults for everything that a test does not care about."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock.model.job import JobEvent, JobState
from penstock.protocol.facts import Requeue, WorkloadSet
from penstock.protocol.intents import IntentKind
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import (
    AllocationGone,
    AllocationNew,
    Change,
    ClaimGone,
    ClaimSet,
    DrainSet,
    ExceptionRecord,
    IdHighest,
    InadmissibleSet,
    IntentDone,
    IntentNew,
    JobLive,
    JobLogged,
    JobNew,
    JobNodeGone,
    JobNodeSet,
    JobRecord,
    MemberDropped,
    MemberRecord,
    MemberRecorded,
    NodeNew,
    Promise,
    QueueSet,
    SlotRecord,
)
from penstock.store.port import Store

__all__ = ["EVERYTHING", "ended", "event", "job_lifecycle", "live", "member", "new", "opened", "slots"]


def new(job: int, *, key: str = "", seen_at: float = 100.0, name: str = "sleep", **spec: object) -> JobNew:
    return JobNew(job, "ada", name, seen_at, spec, f"workload/{job}", key)


def event(job: int, number: int, name: str = "memo", **context: object) -> JobLogged:
    return JobLogged(job, number, JobEvent(100.5 + number, name, context))


def live(job: int, state: JobState = JobState.SCHED, *, queue: str = "batch", **record: Any) -> JobLive:
    return JobLive(job, state, queue, 16, 20, "", None, None, None, JobRecord(**record))


def ended(job: int, at: float = 200.0, result: str = "COMPLETED", queue: str = "batch") -> JobLive:
    return JobLive(job, JobState.INACTIVE, queue, 16, 20, result, 0, at - 10, at)


def member(job: int, key: str, phase: str = "waiting", node: str = "", **more: Any) -> MemberRecorded:
    return MemberRecorded(job, MemberRecord(key, more.pop("number", 0), 0, MemberPhase(phase), node, **more))


def slots(*numbers: int) -> tuple[SlotRecord, ...]:
    return tuple(SlotRecord(number, {"grants": [[f"n{number}:cpu", 500]]}) for number in numbers)


# One change of every type, with values that need escaping in COPY and JSON.
EVERYTHING: tuple[Change, ...] = (
    new(1, key="k1", command=["echo", 'a\tb\n"\\N"'], env={"ä": None, "x": 1.5}),
    new(2, key="k1", depends_on=[1, 3]),
    JobNew(3, "b\\ob\t", "na\nme \\.", 99.25, {}),
    event(1, 0, "submit", note="tab\tline\nback\\slash 漢"),
    event(1, 1, "vali\\date"),
    live(1, JobState.DEPEND, incomplete_reason="why"),
    live(
        1,
        JobState.RUN,
        queue="q\t\\",
        attempt=2,
        times={"RUN": 10.5, "DEPEND": 3.0},
        exception=ExceptionRecord("cancel", 0, "by\t'ada' \\N"),
        placed_at=11.0,
        incomplete_reason="line\n",
        is_assembled=False,
        promise=Promise(1.0, 2.5, 3.0, True),
        slots_made=7,
        workload=WorkloadSet("ns/job/a\\b", "n\tame", 2, 60.0, 10.5, requeue=Requeue.ALWAYS),
    ),
    ended(3),
    AllocationNew(1, 0, 100, 200, {"R": [1, 2]}, slots(0, 2)),
    AllocationNew(1, 1, 150, None, {}, slots(3)),
    IntentNew(7, 1, IntentKind.PLACE, {"members": ["m"]}),
    IntentNew(8, 2, IntentKind.END, {}),
    NodeNew("n1", 1),
    NodeNew("n0", 0),
    DrainSet("n1", "fan", "ada", 5.0),
    QueueSet("batch", True, False, "", "night"),
    InadmissibleSet("ns/job/a\\b", ("m\t1", "m2"), "CANCELED: by 'ada'"),
    member(1, "m\t1", number=1, seen_at=2.0),
    member(
        1,
        "m0\\N",
        "ended",
        "n0",
        slot=3,
        group=1,
        grants=(("core", "0-1", 2), ("cpu", "", 500)),
        status=256,
        cause='it\'s "over"',
        started_at=1.0,
        ended_at=2.0,
        lost_at=0.5,
        is_recreated=True,
        slot_release_pending=True,
        refused_by=("n1", "n2"),
        name="a-0",
    ),
    member(2, "gone"),
    MemberDropped(2, "gone"),
    JobNodeSet(1, "n1", {"core": "0-3"}),
    JobNodeSet(1, "n0", {"cpu": "500"}),
    JobNodeSet(1, "n1", {"core": "0-1", "gpu": "0"}),
    JobNodeSet(1, "n2", {}),
    JobNodeGone(1, "n2"),
    ClaimSet(1, ("n0",), 4.5),
    ClaimSet(1, ("n1", "n\\0"), 5.5),
    ClaimSet(2, ("n0",), 6.0),
    ClaimGone(2),
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
        AllocationNew(job, 0, 100, 200, {"claims": []}, slots(0)),
        IntentNew(job, job, IntentKind.PLACE, {"members": ["m"]}),
        member(job, "m", "placing", "n0"),
        JobNodeSet(job, "n0", {"core": "0-3"}),
        live(job, JobState.RUN, placed_at=100.0),
        *events[6:],
        member(job, "m", "ended", "n0", ended_at=200.0),
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
