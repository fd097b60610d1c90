"""Groups that wait: which members start together, and what an event of one member costs in a large group."""

from __future__ import annotations

import random

import pytest

from penstock.protocol.commands import QueueChange
from penstock.protocol.facts import Fact, MemberGone, WorkloadSet
from penstock.sched.assembly import Assembly
from penstock.sched.jobspec import MemberRequest
from tests.costs import instructions
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import endless, member, only_job, pods


def a_large_group(members: int, size: int) -> Driver:
    """A group in a stopped queue."""
    driver = Driver(pods(nodes=4, cpu=10_000_000), settings_of("easy"), deep=False)
    driver.feed(QueueChange("default", started=False))
    driver.feed(WorkloadSet("w", "w", size), *(member("w", number, cpu=4_000) for number in range(members)))
    driver.settle()
    assert only_job(driver).state.is_pending
    return driver


@pytest.mark.parametrize("size", [pytest.param(0, id="assembled"), pytest.param(1, id="assembling")])
@pytest.mark.parametrize(
    "fact",
    [
        pytest.param(member("w", 100_000, cpu=4_000), id="one more"),
        pytest.param(member("w", 3, cpu=4_000, ready=False), id="not ready"),
        pytest.param(member("w", 3, cpu=5_000), id="another request"),
        pytest.param(MemberGone("w-3"), id="gone"),
    ],
)
def test_an_event_of_one_member_costs_the_same_in_a_large_waiting_group(fact: Fact, size: int) -> None:
    def cost(members: int) -> int:
        driver = a_large_group(members, members + 100 if size else members - 1)
        scheduler, now = driver.scheduler, driver.now
        return instructions(lambda: scheduler.handle([fact], now))

    small, large = cost(50), cost(5_000)
    assert large <= 1.2 * small  # A binary search takes some steps more.


def test_the_first_members_start_together_whatever_came_and_went_before() -> None:
    rng = random.Random(1)
    requests = [MemberRequest((("cpu", units),)) for units in (1, 2, 3)]
    assembly = Assembly()
    known: dict[str, tuple[int, int, MemberRequest]] = {}
    for number in range(3_000):
        draw = rng.random()
        if known and draw < 0.3:
            key = rng.choice(list(known))
            assembly.remove(key)
            del known[key]
        elif known and draw < 0.5:
            key = rng.choice(list(known))
            known[key] = (*known[key][:2], rng.choice(requests))
            assembly.add(key, *known[key])
        elif draw < 0.6:
            assembly.set_size(rng.randrange(30))
        else:
            known[f"m{number}"] = (rng.randrange(8), number, rng.choice(requests))
            assembly.add(f"m{number}", *known[f"m{number}"])
        first = sorted(known, key=lambda key: known[key][:2])[: assembly.size]
        groups = list(dict.fromkeys(known[key][2] for key in first))
        assert assembly.group_numbers() == {key: groups.index(known[key][2]) for key in first}
        counted = [sum(known[key][2] == request for key in first) for request in groups]
        assert assembly.groups() == list(zip(groups, counted, strict=True))
        assert (len(assembly), assembly.is_complete) == (len(known), len(known) >= assembly.size)


def test_a_member_that_is_not_ready_any_more_lets_the_next_one_start_in_its_place() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("first", "first", 1), member("first", 0, cpu=900))
    driver.settle()
    driver.feed(WorkloadSet("w", "w", 2), *(member("w", number, cpu=200 + number) for number in range(4)))
    driver.feed(member("w", 0, cpu=200, ready=False))
    driver.feed(MemberGone("first-0"))
    driver.settle()
    job = driver.scheduler.job_of_workload("w")
    assert job is not None
    units = {one.index: units for one in job.members.values() for _, _, units in one.grants}
    assert {1: 201, 2: 202}.items() <= units.items()
    assert 0 not in units


def test_the_timeout_of_a_group_counts_from_its_last_member() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(WorkloadSet("w", "w", 3, assembly_timeout_s=10.0), member("w", 0))
    driver.run_until(8)
    driver.feed(member("w", 1))
    driver.run_until(16)
    assert only_job(driver).workload == "w"
    driver.run_until(19)
    assert not driver.scheduler.jobs
    assert driver.scheduler.is_inadmissible("w")
