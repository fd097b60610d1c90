"""A group that was cancelled or never became whole stays so, whoever dies, until somebody new comes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from penstock.backends.sim.backend import SimWorld
from penstock.protocol.commands import Cancel
from penstock.protocol.facts import MemberGone, MemberSet, WorkGone, WorkSet
from penstock.protocol.intents import Tell
from penstock.sched.records import GivenUpGone
from penstock.sched.scheduler import Scheduler
from penstock.store.memory import MemoryStore, MemoryTables
from tests.instance.terms import Lives
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import member, only_job, pods

TOO_LARGE = 700  # two of them are more than the node has


@dataclass
class Cancelled:
    """A group of two that waited for room and was cancelled; its members are still there."""

    world: SimWorld = field(default_factory=lambda: pods(nodes=1))
    tables: MemoryTables = field(default_factory=MemoryTables)

    def __post_init__(self) -> None:
        self.lives = Lives(self.world, settings_of("easy"), lambda: MemoryStore(self.tables))
        self.world.works["w"] = WorkSet("w", "gang", 2)
        self.world.members.update({f"w-{number}": member("w", number, TOO_LARGE) for number in range(2)})
        self.lives.feed(self.world.works["w"], *self.world.members.values())
        self.lives.run_until(10)
        (number,) = self.scheduler.core.jobs
        self.lives.feed(Cancel((number,), "not today"))
        assert not self.scheduler.core.jobs

    @property
    def scheduler(self) -> Scheduler:
        found = self.lives.turns.scheduler
        assert found is not None
        return found

    def works(self) -> list[str]:
        return [job.work for job in self.scheduler.core.jobs.values()]


def test_members_of_a_cancelled_group_make_no_job_after_a_restart() -> None:
    cancelled = Cancelled()
    for _ in range(2):
        cancelled.lives.begin()
        cancelled.lives.run_until(cancelled.world.now + 10)
        assert cancelled.works() == []


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("first", ["who waits", "who comes"])
def test_somebody_who_comes_brings_all_back_who_wait(restarts: bool, first: str) -> None:
    cancelled = Cancelled()
    if restarts:
        cancelled.lives.begin()
    waiting = list(cancelled.world.members.values())
    newcomer = member("w", 2, TOO_LARGE)
    cancelled.world.members["w-2"] = newcomer
    cancelled.lives.feed(*((*waiting, newcomer) if first == "who waits" else (newcomer, *waiting)))
    (job,) = cancelled.scheduler.core.jobs.values()
    assert sorted(job.members) == ["w-0", "w-1", "w-2"]
    cancelled.lives.begin()
    assert cancelled.works() == ["w"]
    assert not cancelled.tables.given_up


@pytest.mark.parametrize("restarts", [False, True])
def test_a_work_that_is_gone_leaves_nothing(restarts: bool) -> None:
    cancelled = Cancelled()
    cancelled.world.works.clear()
    cancelled.world.members.clear()
    if restarts:
        cancelled.lives.begin()
    else:
        cancelled.lives.feed(WorkGone("w"))
    assert not cancelled.tables.given_up
    assert not cancelled.scheduler.core.given_up


def test_the_world_is_told_again_by_whoever_still_waits_and_those_who_left_do_not_come_back() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    waiting = [member("w", number, TOO_LARGE) for number in range(3)]
    driver.feed(WorkSet("w", "gang", 3), *waiting)
    driver.settle()
    driver.feed(Cancel((only_job(driver).id,), "not today"))
    step = driver.feed(*waiting)
    assert step.tidings == (Tell("w", 0, "given-up", "CANCELED: not today"),)
    driver.feed(MemberGone("w-1"))
    step = driver.feed(MemberSet("w", "w-3", 3, (("cpu", 1),)))
    assert GivenUpGone("w") in step.changes
    assert sorted(only_job(driver).members) == ["w-0", "w-2", "w-3"]


def test_a_group_that_never_became_whole_makes_no_job_after_a_restart() -> None:
    tables, world = MemoryTables(), pods(nodes=1)
    lives = Lives(world, settings_of("easy"), lambda: MemoryStore(tables))
    world.works["w"], world.members["w-0"] = WorkSet("w", "stuck", 2, assemble_s=60.0), member("w", 0)
    lives.feed(world.works["w"], world.members["w-0"])
    lives.run_until(61)
    lives.begin()
    lives.run_until(62)
    scheduler = lives.turns.scheduler
    assert scheduler is not None
    assert not scheduler.core.jobs
