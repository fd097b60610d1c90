"""An unexpected exception about one object: the others go on, and it is set aside until it changes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from penstock.backends.sim.backend import MemberScript
from penstock.errors import BadRequest, Unavailable
from penstock.instance.isolation import AtFault
from penstock.instance.quarantine import Quarantine
from penstock.model.job import JobState
from penstock.protocol.commands import Cancel, Drain, Submit
from penstock.protocol.facts import (
    ExternalUsageGone,
    ExternalUsageSet,
    MemberGone,
    MemberSet,
    NodeGone,
    NodeSet,
    Snapshot,
    WorkloadGone,
    WorkloadSet,
)
from penstock.protocol.intents import WorkloadStatus
from penstock.sched import deadlines, gangs, nodes
from penstock.sched.job import Job
from penstock.sched.records import Change, JobNew
from penstock.sched.state import SchedulerState
from penstock.sched.subjects import Culprit, CulpritKind
from penstock.store.memory_tables import Applier
from tests.sched.driving import Driver, nodes_of, settings_of, submission
from tests.sched.internals import corruptible_state
from tests.sched.workloads import endless, member, pods

BAD = Culprit(CulpritKind.WORKLOAD, "bad")


def failing_for(function: Callable[..., Any], is_culprit: Callable[..., bool]) -> Callable[..., Any]:
    def call(*args: Any, **named: Any) -> Any:
        if is_culprit(*args):
            raise KeyError("unexpected")
        return function(*args, **named)

    return call


def is_bad(job: Job) -> bool:
    return job.workload == "bad" and 400 in _cpu(job)


STAGES: dict[str, Callable[..., bool]] = {
    "penstock.sched.gangs.member_set": lambda _, fact, *__: (
        (fact.workload, fact.requests[0][1]) == ("bad", 400)
    ),
    "penstock.sched.gangs.assemble": lambda _, job, *__: is_bad(job),
    "penstock.sched.scheduler.leave_depend": lambda _, job, *__: is_bad(job),
    "penstock.sched.scheduler.start_job": lambda _, job, *__: is_bad(job),
}


def _cpu(job: Job) -> list[int]:
    return [dict(one.request.requests)["cpu"] for one in job.members.values() if one.request is not None]


def bad_workload(cpu: int = 400) -> tuple[WorkloadSet, MemberSet, MemberSet]:
    return WorkloadSet("bad", "bad", 2), member("bad", 0, cpu), member("bad", 1, cpu)


def with_workloads(driver: Driver, *facts: WorkloadSet | MemberSet) -> None:
    """Reports these facts, and those of earlier calls also in every later snapshot."""
    backend = driver.backend
    known = REPORTED.setdefault(id(driver), {})
    for fact in facts:
        known[type(fact), fact.member if isinstance(fact, MemberSet) else fact.workload] = fact
    plain = type(backend).snapshot

    def snapshot() -> Snapshot:
        found = plain(backend)
        placed = {status.member for status in found.statuses}
        waiting = (one for one in known.values() if isinstance(one, MemberSet))
        return replace(
            found,
            workloads=tuple(one for one in known.values() if isinstance(one, WorkloadSet)),
            members=tuple(one for one in waiting if one.member not in placed),
        )

    backend.snapshot = snapshot  # type: ignore[method-assign]
    driver.feed(*facts)


REPORTED: dict[int, dict[tuple[type, str], WorkloadSet | MemberSet]] = {}


def state_of(driver: Driver, workload: str) -> JobState | None:
    job = driver.scheduler.job_of_workload(workload)
    return job.state if job is not None else None


@pytest.mark.parametrize("stage", STAGES)
def test_a_workload_that_fails_is_set_aside_until_it_changes_and_the_others_go_on(stage: str) -> None:
    driver = Driver(pods(nodes=4), settings_of("easy"))
    endless(driver)
    with_workloads(driver, WorkloadSet("old", "old", 1), member("old", 0))
    driver.settle()
    epoch = driver.instance.epoch
    with patch(stage, failing_for(_attribute(stage), STAGES[stage])):
        with_workloads(driver, *bad_workload())
        driver.settle()
        assert driver.instance.epoch == epoch + 1
        assert BAD in driver.instance.isolation.quarantine
        status = driver.statuses["bad"]
        assert status.status is WorkloadStatus.INADMISSIBLE
        assert "KeyError" in status.reason
        assert state_of(driver, "old") is JobState.RUN
        with_workloads(driver, WorkloadSet("fresh", "fresh", 1), member("fresh", 0, 100))
        driver.settle()
        assert state_of(driver, "fresh") is JobState.RUN
        driver.feed(*bad_workload())  # Unchanged: it is not tried again.
        driver.settle()
        assert driver.instance.epoch == epoch + 1
        with_workloads(driver, *bad_workload(cpu=300))
        driver.settle()
        assert BAD not in driver.instance.isolation.quarantine
        assert state_of(driver, "bad") is JobState.RUN


def _attribute(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def test_a_value_that_the_store_rejects_is_attributed_to_its_workload() -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    endless(driver)
    apply = Applier.apply

    def rejecting(self: Applier, change: Change) -> None:
        if isinstance(change, JobNew) and change.workload == "bad":
            raise BadRequest("a value that cannot be stored")
        apply(self, change)

    with patch.object(Applier, "apply", rejecting):
        with_workloads(driver, WorkloadSet("good", "good", 1), member("good", 0), *bad_workload())
        driver.settle()
        assert state_of(driver, "good") is JobState.RUN
        assert [found.subject for found in driver.instance.isolation.quarantine.objects()] == [BAD]


def test_a_command_that_fails_is_answered_and_the_others_of_its_batch_are_executed() -> None:
    driver = Driver(nodes_of(1, 4))
    (victim,) = driver.submit(submission())
    original = _attribute("penstock.sched.commands._drain")
    with patch("penstock.sched.commands._drain", failing_for(original, lambda *_: True)):
        step = driver.feed(Cancel((victim,)), Drain(("node0",), "x"), Submit((submission(),)))
    assert [reply.error for reply in step.replies] == [None, None]
    driver.run()
    assert len(driver.instance.isolation.quarantine) == 0
    assert driver.names(victim)[-1] == "clean"
    assert len(driver.logs) == 2


def test_a_running_job_that_fails_keeps_its_allocation_until_its_members_end() -> None:
    driver = Driver(nodes_of(2, 4))
    driver.backend.script_for = lambda place, _assignment: MemberScript(
        runs_s=100 if place.job == first else 10
    )
    (first,) = driver.submit(submission(nodes=1, slots=4, duration_s=0))
    driver.settle()
    checks = deadlines._check_deadlines

    def check(state: SchedulerState, job: Job, now: float) -> None:
        if job.id == first:
            raise RuntimeError("unexpected")
        checks(state, job, now)

    corruptible_state(driver.scheduler).wake(driver.now + 1, first)
    with patch.object(deadlines, "_check_deadlines", check):
        driver.run_until(driver.now + 2)
    assert first not in driver.scheduler.jobs
    aside = driver.scheduler.set_aside.get(first)
    assert aside is not None
    assert "RuntimeError: unexpected" in aside
    assert first in driver.scheduler.allocated_jobs()
    on_nodes = [driver.scheduler.members_on(node) for node in driver.scheduler.nodes]
    assert {job for members in on_nodes for job in members.values()} == {first}
    (second,) = driver.submit(submission(nodes=2, slots=4, duration_s=60))
    driver.run_until(driver.now + 5)
    assert driver.scheduler.jobs[second].state is JobState.SCHED  # One node is still in use.
    driver.run_until(driver.now + 200)
    assert driver.names(second)[-1] == "clean"


def test_a_job_whose_record_contradicts_itself_is_set_aside_alone() -> None:
    driver = Driver(nodes_of(2, 4))
    driver.backend.script_for = lambda *_: MemberScript(runs_s=1000)
    broken, other = driver.submit(submission(slots=4, duration_s=0), submission(slots=1, duration_s=0))
    driver.settle()
    live = driver.store.tables.live[broken]
    driver.store.tables.live[broken] = replace(live, state=JobState.SCHED)
    again = Driver(driver.backend, driver.settings, store=driver.store)
    assert list(again.scheduler.jobs) == [other]
    assert set(again.scheduler.allocated_jobs()) == {broken, other}
    aside = again.scheduler.set_aside.get(broken)
    assert aside is not None
    assert "its log leads to RUN" in aside
    (more,) = again.submit(submission(slots=4, duration_s=60))
    again.settle()
    assert again.scheduler.jobs[more].state is JobState.SCHED  # 3 cores are left.


def test_a_node_that_fails_gets_nothing_and_its_members_stay() -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    endless(driver)
    with_workloads(driver, WorkloadSet("w", "w", 2, distinct_nodes=True), member("w", 0), member("w", 1))
    driver.settle()
    original = nodes.node_set
    fact = driver.scheduler.nodes["node0"].fact
    changed = replace(fact, labels=(("bad", "yes"),))
    with patch(
        "penstock.sched.nodes.node_set",
        failing_for(original, lambda _state, node: dict(node.labels).get("bad") == "yes"),
    ):
        driver.backend.nodes["node0"] = changed
        driver.feed(changed)
        driver.settle()
        node = driver.scheduler.nodes["node0"].fact
        assert not node.up
        assert "KeyError" in node.why
        assert node.capacity == fact.capacity
        job = driver.scheduler.job_of_workload("w")
        assert job is not None
        assert job.has_live_members
        with_workloads(driver, WorkloadSet("x", "x", 2), member("x", 0), member("x", 1))
        driver.settle()
        assert state_of(driver, "x") is JobState.SCHED
        driver.backend.nodes["node0"] = fact
        driver.feed(fact)
        driver.settle()
        assert state_of(driver, "x") is JobState.RUN


def test_a_node_gets_nothing_while_its_external_usage_fails() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    usage = ExternalUsageSet("u", "node0", (("cpu", 1),))
    original = nodes.external_usage_set
    with patch(
        "penstock.sched.nodes.external_usage_set", failing_for(original, lambda _state, fact: fact.key == "u")
    ):
        plain = driver.backend.snapshot
        driver.backend.snapshot = lambda: replace(plain(), external_usage=(usage,))  # type: ignore[method-assign]
        driver.feed(usage)
        assert not driver.scheduler.nodes["node0"].fact.up
        driver.feed(ExternalUsageGone("u"))
        assert driver.scheduler.nodes["node0"].fact.up


def test_more_than_ten_failures_within_a_minute_are_our_fault() -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    original = gangs.member_set
    with patch("penstock.sched.gangs.member_set", failing_for(original, lambda *_: True)):
        for number in range(10):
            key = f"w{number}"
            with_workloads(driver, WorkloadSet(key, key, 1), member(key, 0))
        assert len(driver.instance.isolation.quarantine) == 10
        with pytest.raises(AtFault, match=r"more than 10 objects failed within a minute.*KeyError"):
            with_workloads(driver, WorkloadSet("more", "more", 1), member("more", 0))
    assert len(driver.instance.isolation.quarantine) == 0


@pytest.mark.parametrize("where", ["store", "backend"])
def test_what_is_unavailable_sets_nothing_aside(where: str) -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    target, name = (driver.store, "record") if where == "store" else (driver.backend, "apply")

    def start() -> None:
        with_workloads(driver, WorkloadSet("w", "w", 1), member("w", 0))
        driver.settle()

    with (
        patch.object(target, name, side_effect=Unavailable("away")),
        pytest.raises(Unavailable, match="away") as caught,
    ):
        start()
    assert type(caught.value) is Unavailable  # It is not `AtFault` either.
    assert len(driver.instance.isolation.quarantine) == 0
    assert 'kind="workload"} 0.0' in driver.instance.isolation.metrics.render().decode()


def test_failures_are_counted_by_kind() -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    with patch("penstock.sched.gangs.member_set", failing_for(gangs.member_set, lambda *_: True)):
        with_workloads(driver, *bad_workload())
    text = driver.instance.isolation.metrics.render().decode()
    assert 'penstock_quarantined_total{kind="workload"} 1.0' in text
    assert 'penstock_quarantined_total{kind="node"} 0.0' in text


# The pure core


def workload(size: int = 1) -> WorkloadSet:
    return WorkloadSet("bad", "bad", size)


def test_the_facts_of_a_quarantined_workload_are_withheld_and_others_pass() -> None:
    quarantine = Quarantine()
    other = (WorkloadSet("good", "good", 1), member("good", 0), NodeSet("n", ()))
    assert quarantine.add(BAD, "error", (workload(), member("bad", 0)), 0.0)
    assert quarantine.admit((workload(), *other, member("bad", 0))) == list(other)
    assert quarantine.take_changed(0.0) == []
    snapshot = Snapshot((NodeSet("n", ()),), (), (workload(), other[0]), (member("bad", 0), other[1]), ())
    assert quarantine.admit((snapshot,)) == [replace(snapshot, workloads=other[:1], members=other[1:2])]
    assert quarantine.take_changed(0.0) == []
    (update,) = quarantine.take_status_updates()
    assert (update.workload, update.status) == ("bad", WorkloadStatus.INADMISSIBLE)
    assert quarantine.take_status_updates() == []


@pytest.mark.parametrize(
    "change", [workload(2), member("bad", 1), member("bad", 0, 100), MemberGone("bad-0"), WorkloadGone("bad")]
)
def test_a_change_of_what_failed_lets_it_be_tried_again(change: Any) -> None:
    quarantine = Quarantine()
    quarantine.add(BAD, "error", (workload(), member("bad", 0)), 0.0)
    quarantine.admit((Snapshot(workloads=(workload(),), members=(member("bad", 0),)),))
    quarantine.admit((change,))
    (found,) = quarantine.take_changed(0.0)
    assert found.subject == BAD
    assert len(quarantine) == 0


def test_members_that_the_failing_batch_did_not_contain_are_no_change() -> None:
    quarantine = Quarantine()
    quarantine.add(BAD, "error", (member("bad", 1),), 0.0)
    quarantine.admit((Snapshot(workloads=(workload(),), members=(member("bad", 0), member("bad", 1))),))
    assert quarantine.take_changed(0.0) == []


def test_an_object_that_is_absent_from_a_snapshot_is_forgotten() -> None:
    quarantine = Quarantine()
    quarantine.add(BAD, "error", (workload(),), 0.0)
    quarantine.add(Culprit(CulpritKind.NODE, "n"), "error", (NodeSet("n", ()),), 0.0)
    quarantine.add(Culprit(CulpritKind.JOB, "7"), "error", (), 0.0)
    quarantine.admit((Snapshot(),))
    assert [found.subject.key for found in quarantine.objects()] == ["7"]
    assert quarantine.reason_of(7, "")
    quarantine.admit((NodeGone("n"),))


def test_an_object_that_fails_again_waits_longer_for_its_next_try() -> None:
    quarantine = Quarantine()
    now, pauses = 0.0, []
    for attempt in range(1, 6):
        quarantine.add(BAD, "error", (workload(attempt),), now)
        quarantine.admit((workload(100 + attempt),))
        (found,) = quarantine.objects()
        pauses.append(found.retry_at - now)
        assert quarantine.take_changed(found.retry_at - 0.1) == [] or not pauses[-1]
        quarantine.take_changed(found.retry_at)
        now = found.retry_at
    assert pauses == [0.0, 60.0, 120.0, 240.0, 480.0]
