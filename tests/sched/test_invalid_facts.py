"""Facts with hostile texts and numbers, and facts in an unusual order."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from penstock.model.job import JobState
from penstock.protocol.commands import Cancel, Drain, Undrain
from penstock.protocol.facts import (
    Capacity,
    EndCause,
    ExternalUsageSet,
    MemberGone,
    MemberStatus,
    NodeSet,
    Phase,
    WorkloadSet,
)
from penstock.protocol.intents import WorkloadStatus
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import endless, member, only_job, pods

NUL = "a\x00b"


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (WorkloadSet("w", NUL, 1), "its name is not valid"),
        (WorkloadSet("w", "x" * 600, 1), "1 to 512 printable characters"),
        (WorkloadSet("w", "w", 1, owner=NUL), "its owner"),
        (WorkloadSet("w", "w", -1), "its size is not valid (found -1"),
        (WorkloadSet("w", "w", 1, limit_s=0), "its time limit"),
        (WorkloadSet("w", "w", 1, begin_at=float("nan")), "its begin time"),
        (WorkloadSet("w", "w", 1, deadline_at=float("inf")), "its deadline"),
        (WorkloadSet("w", "w", 1, urgency=2**70), "its urgency"),
        (WorkloadSet("w", "w", 1, queue="nope"), "its queue is not valid"),
        (member("w", 0, cpu=2**64), "its request of cpu"),
        (member("w", 0, cpu=0), "it requests nothing"),
        (replace(member("w", 0), index=-1), "its index"),
        (replace(member("w", 0), member=NUL), "the key of the member"),
        (replace(member("w", 0), requests=(("cpu", 1), ("cpu", 2))), "requests a resource twice"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_an_invalid_workload_or_member_is_inadmissible_with_its_reason(fact: Any, words: str) -> None:
    driver = Driver(pods(), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("good", "good", 1), member("good", 0), fact)
    driver.settle()
    assert only_job(driver).workload == "good"
    assert only_job(driver).state is JobState.RUN
    status = driver.statuses["w"]
    assert status.status is WorkloadStatus.INADMISSIBLE
    assert words in status.reason


@pytest.mark.parametrize(
    "change",
    [
        {"capacity": (Capacity("cpu", -5, divisible=True),)},
        {"capacity": (Capacity("cpu", 2**70, divisible=True),)},
        {"capacity": (Capacity("core", 10**9),)},
        {"capacity": (Capacity("cpu", 5, divisible=True), Capacity("cpu", 6, divisible=True))},
        {"topology_levels": (("zone", NUL),)},
        {"topology_levels": (("zone", "a/b"),)},
        {"topology_levels": (("node", "a"),)},
    ],
    ids=str,
)
def test_an_invalid_node_gets_nothing_and_keeps_what_it_has(change: dict[str, Any]) -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "w", 1), member("w", 0))
    driver.settle()
    known = driver.scheduler.nodes["node0"].fact
    driver.feed(replace(known, **change), WorkloadSet("x", "x", 1), member("x", 0))
    driver.settle()
    found = driver.scheduler.nodes["node0"].fact
    assert (found.capacity, found.up) == (known.capacity, False)
    assert "the node cannot be used" in found.why
    states = {job.workload: job.state for job in driver.scheduler.jobs.values()}
    assert states == {"w": JobState.RUN, "x": JobState.SCHED}


def test_a_node_whose_name_cannot_be_recorded_is_ignored() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    for name in (NUL, "", "a/b", "a:b"):
        driver.feed(NodeSet(name, (Capacity("cpu", 1000, divisible=True),)))
    assert list(driver.scheduler.nodes) == ["node0"]


def test_external_usage_beyond_every_bound_fills_its_node() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    driver.feed(ExternalUsageSet("u", "node0", (("cpu", 2**70), (NUL, 3), ("memory", -4))))
    driver.feed(WorkloadSet("w", "w", 1), member("w", 0))
    driver.settle()
    assert only_job(driver).state is JobState.SCHED


# Unusual orders


def test_a_member_that_ends_before_its_group_is_placed_is_not_counted() -> None:
    driver = Driver(pods(nodes=1, cpu=300), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "w", 1), member("w", 0))  # It does not fit.
    driver.settle()
    driver.feed(member("w", 1, cpu=100))
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, "node0", 256, EndCause.NODE_FAILURE))
    driver.settle()
    assert list(only_job(driver).members) == ["w-1"]
    assert only_job(driver).state is JobState.RUN


def test_a_workload_that_is_renamed_keeps_the_name_of_its_job() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(WorkloadSet("w", "before", 2), member("w", 0))
    driver.feed(WorkloadSet("w", "after", 2), member("w", 1))
    driver.settle()
    assert only_job(driver).spec.name == "before"


def test_a_member_that_leaves_an_inadmissible_workload_belongs_to_the_other_one() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(WorkloadSet("w", "w", 2), member("w", 0))
    driver.feed(Cancel((only_job(driver).id,)))
    assert driver.scheduler.is_inadmissible("w")
    driver.feed(WorkloadSet("x", "x", 2), replace(member("w", 0), workload="x"))
    assert list(only_job(driver).members) == ["w-0"]
    driver.feed(member("w", 1))
    readmitted = driver.scheduler.job_of_workload("w")
    assert readmitted is not None
    assert list(readmitted.members) == ["w-1"]


def test_a_member_that_waits_after_it_was_an_orphan_is_counted_once() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(MemberStatus("w-0", Phase.RUNNING, 0.0, "node0", usage=(("cpu", 400),), has_owner=True))
    assert driver.scheduler.external_usage()
    driver.feed(WorkloadSet("w", "w", 1), member("w", 0))
    assert driver.scheduler.external_usage() == {}


def test_a_node_named_twice_is_undrained_once() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(Drain(("node0",), "x"))
    (reply,) = driver.feed(Undrain(("node0", "node0"))).replies
    assert reply.error is None


def test_a_unit_that_a_node_loses_stays_for_the_job_that_uses_it() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    cores = NodeSet("cores", (Capacity("core", 4),))
    driver.backend.nodes["cores"] = cores
    request = replace(member("w", 0), requests=(("core", 4),))
    driver.feed(cores, WorkloadSet("w", "w", 1), request)
    driver.settle()
    job = only_job(driver)
    smaller = replace(cores, capacity=(Capacity("core", 1),))
    driver.backend.nodes["cores"] = smaller
    driver.feed(smaller)
    assert driver.scheduler.assignments(job.id) == {0: "cores"}
    driver.feed(WorkloadSet("x", "x", 1), replace(member("x", 0), requests=(("core", 1),)))
    driver.settle()
    assert driver.scheduler.job_of_workload("x").state is JobState.SCHED  # type: ignore[union-attr]
    driver.feed(MemberGone("w-0"))
    driver.settle()
    assert driver.scheduler.job_of_workload("x").state is JobState.RUN  # type: ignore[union-attr]
    units = [unit.id for unit in driver.scheduler.nodes["cores"].vertex.below()]
    assert units == [0]


def test_thousands_of_units_come_and_go_in_time_despite_external_usage() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    few, many = (NodeSet("cores", (Capacity("core", units),)) for units in (1, 8192))
    driver.feed(few, ExternalUsageSet("u", "cores", (("core", 1),)))
    began = time.process_time()
    driver.feed(many)
    driver.feed(few)
    assert time.process_time() - began < 20
    driver.feed(WorkloadSet("w", "w", 1), replace(member("w", 0), requests=(("core", 1),)))
    driver.settle()
    assert only_job(driver).state is JobState.SCHED
