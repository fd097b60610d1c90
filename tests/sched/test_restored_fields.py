"""Everything that a workload, a member or a submission specifies, and every job state, survives a restart.

The comparison goes through the fields of the types. A field that is added later fails a test until it is
restored, or listed below with the reason why it need not be.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any

import msgspec
import pytest

from penstock.backends.sim.backend import MemberScript, SimBackend
from penstock.instance.virtual import run_without_loop
from penstock.model.constraint import HostIn, Properties
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import Cancel, QueueChange, Submission
from penstock.protocol.facts import (
    Capacity,
    EndCause,
    MemberGone,
    MemberSet,
    MemberStatus,
    NodeSet,
    Outcome,
    Phase,
    Requeue,
    WorkloadGone,
    WorkloadSet,
)
from penstock.sched.job import Job, Member
from penstock.sched.jobspec import SchedulingSpec
from penstock.sched.records import JobRow, Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.settings import QueueSettings, Settings, parse_backfill
from penstock.store.encoding import decode_member, decode_record, encode_member, encode_record
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.sched.driving import Driver, jobspec

EASY = parse_backfill("easy")
SETTINGS = Settings(queues=(QueueSettings("default", EASY), QueueSettings("night", EASY, pending_max=2)))
KEY = ExclusionKey("node", "host port 80/TCP")

# Not stored, and why.
NOT_RESTORED: dict[type, dict[str, str]] = {
    Job: {
        "shape": "numbers of shapes are those of one process",
        "forecast": "the next cycle computes it",
        "settings_reason": "follows from the settings, which are those of one start",
        "assembly": "made of `request` and `is_ready` of its members",
        "members_ready": "as `is_ready` of its members",
        "slots": "noted with the first snapshot, when the nodes are known",
        "result": "jobs that have one are inactive, and not restored",
        "status": "as `result`",
        "ended_at": "as `result`",
    },
    Member: {
        "is_ready": "reported with the first snapshot, before which nothing is planned",
        "request": "as `is_ready`; what a placed member holds is recorded with its slot",
    },
    SchedulingSpec: {
        "request": "its groups are the requests of members; the rest is compared",
    },
}
# Restored, but at the end of a step no member has a slot left to release.
WITHIN_STEPS = {Job: {"members_with_slots"}, Member: {"slot_release_pending"}, SchedulingSpec: set[str]()}

WORKLOAD = WorkloadSet(
    workload="w",
    name="mpi",
    size=2,
    assembly_timeout_s=900.0,
    begin_at=10_000.0,
    limit_s=3_600,
    deadline_at=20_000.0,
    enforced_by_backend=False,
    is_limit_enforced=False,
    class_value=7,
    urgency=9,
    queue="night",
    distinct_nodes=True,
    within="rack",
    requeue=Requeue.NODE_FAILURE,
    owner="team",
    desired=2,
    final_indexes=((4, 6),),
    is_gang=False,
    keeps_limit=True,
)
MEMBER = MemberSet(
    workload="w",
    member="uid-0",
    index=3,
    requests=(("cpu", 400),),
    constraint=Properties(frozenset({"fast"})),
    ready=True,
    recreated=True,
    name="mpi-0",
    brings=(KEY,),
    forbids=(KEY,),
    prefers=((HostIn(frozenset({"node1"})), 5),),
)
SUBMISSION = Submission(
    jobspec(
        nodes=1, cores=2, duration_s=300, command=("sleep", "9"), queue="night", job={"name": "named"}
    ).replace('"per_slot": 1', '"per_slot": 2'),
    owner="ada",
    urgency=20,
    requeue=Requeue.ALWAYS,
)


def _defaults(kind: type) -> dict[str, object]:
    found: dict[str, object] = {}
    for one in fields(kind):
        found[one.name] = one.default if one.default_factory is MISSING else one.default_factory()
    return found


@pytest.mark.parametrize("given", [WORKLOAD, MEMBER, SUBMISSION], ids=lambda one: type(one).__name__)
def test_the_examples_have_another_value_than_the_default_in_every_field(given: object) -> None:
    defaults = _defaults(type(given))
    left = {name for name, default in defaults.items() if getattr(given, name) == default}
    # A member that is not ready is not placed; `by_operator` only decides whether a submission is refused.
    assert left <= {"ready", "by_operator"}


def backend() -> SimBackend:
    capacity = (Capacity("cpu", 1000, divisible=True), Capacity("core", 4))
    names = ("node0", "node1", "node2")
    made = SimBackend({name: NodeSet(name, capacity, (("rack", "r"),), (("fast", "yes"),)) for name in names})
    made.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    return made


def other(number: int, **changes: Any) -> MemberSet:
    return replace(
        MEMBER, member=f"uid-{number}", index=number, brings=(), forbids=(), constraint=None, **changes
    )


def feed(driver: Driver, *facts: WorkloadSet | MemberSet) -> None:
    for fact in facts:
        if isinstance(fact, WorkloadSet):
            driver.backend.workloads[fact.workload] = fact
        else:
            driver.backend.members[fact.member] = fact
    driver.feed(*facts)
    driver.settle()


# Histories: each leads a scheduler to jobs whose fields differ from the defaults.


def waits_for_its_begin_time(driver: Driver) -> None:
    feed(driver, WORKLOAD, MEMBER, other(1))


def changes_its_description(driver: Driver) -> None:
    feed(driver, WORKLOAD, MEMBER, other(1))
    feed(driver, replace(WORKLOAD, begin_at=11_000.5, limit_s=1_800, requeue=Requeue.ALWAYS, owner="other"))


def is_not_assembled(driver: Driver) -> None:
    feed(driver, replace(WORKLOAD, begin_at=None), MEMBER)


def can_never_run(driver: Driver) -> None:
    large = replace(MEMBER, requests=(("cpu", 99_000),))
    feed(driver, replace(WORKLOAD, begin_at=None, size=1), large)


def runs_with_a_lost_an_ended_and_a_refused_member(driver: Driver) -> None:
    driver.backend.script_for = lambda _place, one: MemberScript(
        runs_s=1e9, outcome=Outcome.CONFLICT if one.member == "uid-2" else Outcome.APPLIED, cause="full"
    )
    feed(driver, replace(WORKLOAD, begin_at=None, size=3), MEMBER, other(1), other(2))
    driver.run_until(50.0)
    (job,) = driver.scheduler.jobs.values()
    nodes = {key: member.node for key, member in job.members.items()}
    further = ExclusionKey("node", "anti-affinity with app=db")
    driver.feed(
        MemberStatus("uid-0", Phase.RUNNING, 55.0, nodes["uid-0"], brings=(KEY, further)),
        MemberStatus("uid-0", Phase.LOST, 60.0, nodes["uid-0"]),
        MemberStatus("uid-1", Phase.ENDED, 60.0, nodes["uid-1"], 256, EndCause.OTHER, "OOMKilled"),
    )


def waits_outside_the_queue(driver: Driver) -> None:
    for number in range(3):
        feed(
            driver,
            replace(WORKLOAD, workload=f"w{number}"),
            replace(MEMBER, workload=f"w{number}", member=f"uid-{number}"),
        )


def waits_for_a_disabled_queue(driver: Driver) -> None:
    driver.feed(QueueChange(WORKLOAD.queue, enabled=False))
    feed(driver, WORKLOAD, MEMBER, other(1))


def has_got_a_further_key(driver: Driver) -> None:
    feed(driver, replace(WORKLOAD, begin_at=None, size=1), MEMBER)
    node = next(iter(driver.scheduler.jobs.values())).members["uid-0"].node
    further = ExclusionKey("node", "anti-affinity with app=db", "default/carrier")
    driver.feed(
        MemberStatus("uid-0", Phase.RUNNING, driver.now, node, usage=(("cpu", 400),), brings=(KEY, further))
    )


def is_incomplete_for_good(driver: Driver) -> None:
    driver.backend.script_for = lambda _place, one: MemberScript(
        runs_s=1e9, outcome=Outcome.CONFLICT if one.member == "uid-1" else Outcome.APPLIED, cause="full"
    )
    unowned = {"recreated": False}
    feed(driver, replace(WORKLOAD, begin_at=None), replace(MEMBER, **unowned), other(1, **unowned))
    driver.run_until(200.0)


def has_dropped_members(driver: Driver) -> None:
    feed(driver, replace(WORKLOAD, begin_at=None, size=1, requeue=Requeue.NEVER), MEMBER)
    (job,) = driver.scheduler.jobs.values()
    for number in range(80):
        node = job.members[f"uid-{number}"].node
        driver.feed(MemberStatus(f"uid-{number}", Phase.ENDED, driver.now, node, 512 if number == 3 else 0))
        # No controller replaces the one that fails, so its exit code counts.
        feed(driver, replace(MEMBER, member=f"uid-{number + 1}", recreated=number + 1 != 3))


def has_lost_a_node(driver: Driver) -> None:
    driver.run_until(9.0)
    feed(driver, replace(WORKLOAD, begin_at=None, requeue=Requeue.NEVER), MEMBER, other(1))
    driver.feed(driver.backend.remove_node("node0"))


def waits_for_replacements(driver: Driver) -> None:
    """One slot is kept. One replacement waits because it is not ready."""
    workload = replace(WORKLOAD, begin_at=None, size=3, requeue=Requeue.NEVER, desired=3)
    feed(driver, workload, MEMBER, other(1), other(2))
    driver.run_until(30.0)
    (job,) = driver.scheduler.jobs.values()
    nodes = {key: member.node for key, member in job.members.items()}
    driver.feed(
        MemberStatus("uid-0", Phase.ENDED, 30.0, nodes["uid-0"], 256),
        MemberStatus("uid-1", Phase.ENDED, 30.0, nodes["uid-1"], 256, EndCause.OTHER, "OutOfcpu", False),
    )
    feed(driver, replace(other(3), index=1, ready=False))


def has_lost_its_owner(driver: Driver) -> None:
    feed(driver, replace(WORKLOAD, begin_at=None, size=1), MEMBER)
    driver.feed(WorkloadGone("w"))


def is_submitted_and_waits(driver: Driver) -> None:
    (first,) = driver.submit(SUBMISSION)
    driver.settle()
    depends = [
        {"scheme": "afterok", "value": encode_jobid(first)},
        {"scheme": "begin-time", "value": "5000.25"},
    ]
    text = jobspec(nodes=1, duration_s=60, command=("true",), queue="night", dependencies=depends)
    driver.submit(replace(SUBMISSION, jobspec=text))


def is_promised_a_start(driver: Driver) -> None:
    driver.submit(*(replace(SUBMISSION, jobspec=jobspec(nodes=3, cores=4, queue="night")),) * 2)
    driver.settle()


def has_been_requeued(driver: Driver) -> None:
    driver.submit(SUBMISSION)
    driver.settle()
    driver.feed(driver.backend.remove_node("node0"))
    driver.settle()


def is_ending(driver: Driver) -> None:
    driver.backend.script_for = lambda _place, _one: MemberScript(runs_s=1e9, end_delay_s=100.0)
    (job,) = driver.submit(SUBMISSION)
    driver.settle()
    driver.feed(Cancel((job,), "enough"))
    driver.settle()


def has_slots_to_release(driver: Driver) -> None:
    """The only live task has ended with an unknown cause, the other one waits for a node."""
    driver.backend.script_for = lambda _place, one: MemberScript(
        runs_s=10.0,
        outcome=Outcome.CONFLICT if one.index == 1 else Outcome.APPLIED,
        cause="full",
    )
    driver.submit(replace(SUBMISSION, jobspec=jobspec(nodes=2, cores=4, queue="night")))
    driver.run_until(20.0)
    (job,) = driver.scheduler.jobs.values()
    (running,) = job.live_members() or [next(iter(job.members.values()))]
    driver.feed(MemberStatus(running.key, Phase.ENDED, driver.now, running.node, 0))


HISTORIES: tuple[Callable[[Driver], None], ...] = (
    waits_for_its_begin_time,
    changes_its_description,
    is_not_assembled,
    can_never_run,
    runs_with_a_lost_an_ended_and_a_refused_member,
    waits_outside_the_queue,
    waits_for_a_disabled_queue,
    has_got_a_further_key,
    is_incomplete_for_good,
    has_dropped_members,
    has_lost_a_node,
    waits_for_replacements,
    has_lost_its_owner,
    is_submitted_and_waits,
    is_promised_a_start,
    has_been_requeued,
    is_ending,
    has_slots_to_release,
)


def after(history: Callable[[Driver], None], tables: MemoryTables | None = None) -> Driver:
    driver = Driver(backend(), SETTINGS, store=MemoryStore(tables))
    history(driver)
    return driver


def _as_stored(row: JobRow) -> JobRow:
    """A row after a way through the documents of a database."""
    record = decode_record(json.loads(msgspec.json.encode(encode_record(row.live.record))))
    members = tuple(
        decode_member(json.loads(msgspec.json.encode(encode_member(row.new.id, member))))
        for member in row.members
    )
    return replace(row, live=replace(row.live, record=record), members=members)


def restored_jobs(driver: Driver) -> dict[int, Job]:
    """The jobs of another process, before its backend has reported anything."""
    found: Recorded = run_without_loop(driver.store.take_over(driver.now))[1]
    stored = replace(found, jobs=tuple(_as_stored(row) for row in found.jobs))
    return dict(scheduler_from(SETTINGS, stored, driver.now).jobs)


def _compared(one: object) -> list[Field[Any]]:
    assert is_dataclass(one)
    return [field for field in fields(one) if field.name not in NOT_RESTORED.get(type(one), {})]


def _differences(before: Any, after: Any, where: str) -> list[str]:
    found = []
    for field in _compared(before):
        old, new = getattr(before, field.name), getattr(after, field.name)
        place = f"{where}.{field.name}"
        if field.name == "members":
            assert list(old) == list(new)
            found += [text for key in old for text in _differences(old[key], new[key], f"{place}[{key}]")]
        elif isinstance(old, SchedulingSpec):
            found += _differences(old, new, place)
            if before.workload:
                old, new = (replace(one.request, groups=()) for one in (old, new))
            if old != new:
                found.append(f"{place}.request: {old} became {new}")
        elif old != new:
            found.append(f"{place}: {old!r} became {new!r}")
    return found


@pytest.mark.parametrize("history", HISTORIES, ids=lambda one: one.__name__)
def test_every_field_of_a_job_and_its_members_survives_a_restart(
    history: Callable[[Driver], None],
) -> None:
    driver = after(history)
    restored = restored_jobs(driver)
    assert driver.scheduler.jobs
    assert restored.keys() == driver.scheduler.jobs.keys()
    for number, job in driver.scheduler.jobs.items():
        assert _differences(job, restored[number], history.__name__) == []


def test_the_histories_give_every_field_another_value_than_its_default() -> None:
    untouched = {
        kind: {field.name for field in fields(kind) if field.name not in NOT_RESTORED.get(kind, {})}
        for kind in (Job, Member, SchedulingSpec)
    }
    defaults = {kind: _defaults(kind) for kind in untouched}

    def note(one: object) -> None:
        changed = {name for name in untouched[type(one)] if getattr(one, name) != defaults[type(one)][name]}
        untouched[type(one)] -= changed

    for history in HISTORIES:
        for job in after(history).scheduler.jobs.values():
            note(job)
            note(job.spec)
            for member in job.members.values():
                note(member)
    assert untouched == WITHIN_STEPS


@pytest.mark.parametrize("is_old", [False, True], ids=["recorded", "recorded by an earlier version"])
def test_a_workload_starts_at_its_begin_time_although_the_instance_is_restarted(is_old: bool) -> None:
    tables = MemoryTables()
    driver = after(waits_for_its_begin_time, tables)
    driver.run_until(5.0)
    if is_old:
        for number, live in tables.live.items():
            tables.live[number] = replace(live, record=replace(live.record, workload=None))
    again = Driver(driver.backend, SETTINGS, store=MemoryStore(tables))
    again.run_until(9_999.0)
    (job,) = again.scheduler.jobs.values()
    assert job.state is JobState.DEPEND
    again.run_until(10_000.0)
    assert again.starts == {job.id: 10_000.0}


@pytest.mark.parametrize(("begin_at", "starts_at"), [(12_000.0, 12_000.0), (300.0, 300.0), (None, 100.0)])
def test_a_begin_time_that_changes_counts_in_place_of_the_earlier_one(
    begin_at: float | None, starts_at: float
) -> None:
    """Every further pod of a Job can have a later one: `+10m` counts from the creation of each pod."""
    driver = after(waits_for_its_begin_time)
    driver.run_until(100.0)
    feed(driver, replace(WORKLOAD, begin_at=begin_at))
    driver.run_until(20_000.0)
    assert list(driver.starts.values()) == [starts_at]


def test_a_group_that_loses_a_member_before_its_begin_time_assembles_again() -> None:
    driver = after(waits_for_its_begin_time)
    driver.feed(MemberGone("uid-1"))
    driver.run_until(10_500.0)
    assert driver.starts == {}
    feed(driver, other(2))
    assert list(driver.starts.values()) == [10_500.0]
