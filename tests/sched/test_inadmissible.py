"""A cancelled group, or one that did not assemble, stays inadmissible until a new member appears."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from penstock.backends.sim.backend import MemberScript, SimBackend
from penstock.model.constraint import HostIn, Not
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import Cancel
from penstock.protocol.facts import MemberGone, MemberSet, WorkloadGone, WorkloadSet
from penstock.protocol.intents import End, EndReason, Intent, StatusUpdate, WorkloadStatus
from penstock.sched.records import InadmissibleGone
from penstock.sched.scheduler import Scheduler
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.instance.restarts import RestartingInstance
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import member, only_job, pods

TOO_LARGE = 700  # two of them are more than the node has


@dataclass
class Cancelled:
    """A group of two that waited for room and was cancelled; its members are still there."""

    backend: SimBackend = field(default_factory=lambda: pods(nodes=1))
    tables: MemoryTables = field(default_factory=MemoryTables)

    def __post_init__(self) -> None:
        self.instance = RestartingInstance(
            self.backend, settings_of("easy"), lambda: MemoryStore(self.tables)
        )
        self.backend.workloads["w"] = WorkloadSet("w", "gang", 2)
        self.backend.members.update({f"w-{number}": member("w", number, TOO_LARGE) for number in range(2)})
        self.instance.feed(self.backend.workloads["w"], *self.backend.members.values())
        self.instance.run_until(10)
        (number,) = self.scheduler.jobs
        self.instance.feed(Cancel((number,), "not today"))
        assert not self.scheduler.jobs

    @property
    def scheduler(self) -> Scheduler:
        return self.instance.scheduler

    def workloads(self) -> list[str]:
        return [job.workload for job in self.scheduler.jobs.values()]


def test_members_of_a_cancelled_group_make_no_job_after_a_restart() -> None:
    cancelled = Cancelled()
    for _ in range(2):
        cancelled.instance.restart()
        cancelled.instance.run_until(cancelled.backend.now + 10)
        assert cancelled.workloads() == []


def test_a_new_member_readmits_waiting_members_that_are_not_reported_again() -> None:
    cancelled = Cancelled()
    cancelled.instance.feed(member("w", 2, TOO_LARGE))
    (job,) = cancelled.scheduler.jobs.values()
    assert sorted(job.members) == ["w-0", "w-1", "w-2"]
    assert not cancelled.tables.inadmissible


def test_waiting_members_are_readmitted_with_all_that_they_requested() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    key = ExclusionKey("port", "80")
    rules = {
        "constraint": Not((HostIn(frozenset({"node7"})),)),
        "recreated": True,
        "name": "ns/w-0",
        "brings": (key,),
        "forbids": (key,),
        "prefers": ((HostIn(frozenset({"node0"})), 5),),
    }
    driver.feed(WorkloadSet("w", "w", 2), member("w", 0, **rules))
    first = only_job(driver)
    driver.feed(Cancel((first.id,), ""))
    driver.feed(member("w", 1))
    again = only_job(driver)
    assert again.id != first.id
    for one in (first.members["w-0"], again.members["w-0"]):
        assert one.request is not None
        kept = {name: getattr(one.request, name) for name in ("constraint", "brings", "forbids", "prefers")}
        assert kept | {"recreated": one.is_recreated, "name": one.name} == rules


def test_the_note_of_a_cancel_goes_with_the_end_of_the_members_also_after_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend, tables, ends = pods(nodes=1), MemoryTables(), []
    apply = backend.apply

    def lose_ends(epoch: int, intents: Sequence[Intent]) -> None:
        ends.extend(intent for intent in intents if isinstance(intent, End))
        apply(epoch, [intent for intent in intents if not isinstance(intent, End)])

    monkeypatch.setattr(backend, "apply", lose_ends)
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    backend.workloads["w"] = WorkloadSet("w", "gang", 2)
    backend.members.update({f"w-{number}": member("w", number) for number in range(2)})
    instance.feed(backend.workloads["w"], *backend.members.values())
    instance.run_until(10)
    (number,) = instance.scheduler.jobs
    instance.feed(Cancel((number,), "not today"))
    instance.restart()
    instance.run_until(20)
    assert [(end.reason, end.note) for end in ends[:2]] == [(EndReason.CANCEL, "not today")] * 2


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("first", ["who waits", "who comes"])
def test_a_new_member_readmits_all_waiting_members(restarts: bool, first: str) -> None:
    cancelled = Cancelled()
    if restarts:
        cancelled.instance.restart()
    waiting = list(cancelled.backend.members.values())
    newcomer = member("w", 2, TOO_LARGE)
    cancelled.backend.members["w-2"] = newcomer
    cancelled.instance.feed(*((*waiting, newcomer) if first == "who waits" else (newcomer, *waiting)))
    (job,) = cancelled.scheduler.jobs.values()
    assert sorted(job.members) == ["w-0", "w-1", "w-2"]
    cancelled.instance.restart()
    assert cancelled.workloads() == ["w"]
    assert not cancelled.tables.inadmissible


@pytest.mark.parametrize("restarts", [False, True])
def test_a_workload_that_is_gone_leaves_no_inadmissible_record(restarts: bool) -> None:
    cancelled = Cancelled()
    cancelled.backend.workloads.clear()
    cancelled.backend.members.clear()
    if restarts:
        cancelled.instance.restart()
    else:
        cancelled.instance.feed(WorkloadGone("w"))
    assert not cancelled.tables.inadmissible
    assert not cancelled.scheduler.is_inadmissible("w")


def test_the_status_is_published_again_for_waiting_members_and_deleted_ones_do_not_return() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    waiting = [member("w", number, TOO_LARGE) for number in range(3)]
    driver.feed(WorkloadSet("w", "gang", 3), *waiting)
    driver.settle()
    name = encode_jobid(only_job(driver).id)
    driver.feed(Cancel((only_job(driver).id,), "not today"))
    step = driver.feed(*waiting)
    update = StatusUpdate("w", 0, WorkloadStatus.INADMISSIBLE, f"its job {name} was canceled: not today")
    assert step.status_updates == (update,)
    driver.feed(MemberGone("w-1"))
    step = driver.feed(MemberSet("w", "w-3", 3, (("cpu", 1),)))
    assert InadmissibleGone("w") in step.changes
    assert sorted(only_job(driver).members) == ["w-0", "w-2", "w-3"]


def test_a_group_that_did_not_assemble_makes_no_job_after_a_restart() -> None:
    tables, backend = MemoryTables(), pods(nodes=1)
    instance = RestartingInstance(backend, settings_of("easy"), lambda: MemoryStore(tables))
    backend.workloads["w"], backend.members["w-0"] = (
        WorkloadSet("w", "stuck", 2, assembly_timeout_s=60.0),
        member("w", 0),
    )
    instance.feed(backend.workloads["w"], backend.members["w-0"])
    instance.run_until(61)
    instance.restart()
    instance.run_until(62)
    scheduler = instance.scheduler
    assert not scheduler.jobs


def incomplete(**more: object) -> Driver:
    """A group of three that did not assemble in time."""
    driver = Driver(pods(nodes=2), settings_of("easy"))
    rules = WorkloadSet("w", "stuck", 3, assembly_timeout_s=60.0)
    driver.feed(rules, member("w", 0), member("w", 1, **more))
    driver.run_until(61)
    assert driver.statuses["w"].status is WorkloadStatus.INADMISSIBLE
    assert not driver.scheduler.jobs
    return driver


def test_a_group_is_admissible_again_when_it_needs_fewer_members() -> None:
    driver = incomplete()
    driver.feed(WorkloadSet("w", "stuck", 4, assembly_timeout_s=60.0))
    assert not driver.scheduler.jobs
    driver.feed(WorkloadSet("w", "stuck", 2, assembly_timeout_s=60.0))
    driver.settle()
    assert only_job(driver).live_count == 2


def test_a_group_is_admissible_again_when_it_may_wait_longer() -> None:
    driver = incomplete()
    driver.feed(WorkloadSet("w", "stuck", 3, assembly_timeout_s=30.0))
    assert not driver.scheduler.jobs
    driver.feed(WorkloadSet("w", "stuck", 3, assembly_timeout_s=600.0))
    driver.run_until(driver.now + 300)
    assert sorted(only_job(driver).members) == ["w-0", "w-1"]
    assert driver.statuses["w"].status is WorkloadStatus.ASSEMBLING


def test_a_group_is_admissible_again_when_a_member_becomes_ready() -> None:
    driver = incomplete(ready=False)
    driver.feed(member("w", 1, ready=False))
    assert not driver.scheduler.jobs
    driver.feed(member("w", 1))
    assert sorted(only_job(driver).members) == ["w-0", "w-1"]
