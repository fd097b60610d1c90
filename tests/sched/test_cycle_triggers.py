"""Which reports make a scheduling cycle due: those that can let a job start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.instance.virtual import VIRTUAL_CADENCE
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.job import JobState
from penstock.protocol.facts import (
    Capacity,
    ExternalUsageGone,
    ExternalUsageSet,
    NodeGone,
    NodeSet,
    WorkloadSet,
)
from tests.sched.driving import Driver, nodes_of, settings_of, submission
from tests.sched.workloads import endless, member, pods

PORT = ExclusionKey("node", "port 80")
OTHER_PORT = ExclusionKey("node", "port 81")
USED = ExternalUsageSet("other", "node0", (("cpu", 600), ("memory", 100)), brings=(PORT,))


def waiting() -> Driver:
    """Two nodes with external usage on the first, and a pod that waits."""
    driver = Driver(pods(nodes=2), settings_of("easy"))
    endless(driver)
    driver.backend.external_usage["other"] = USED
    driver.feed(USED, ExternalUsageSet("more", "node1", (("cpu", 600),)))
    driver.feed(WorkloadSet("waits", "waits", 1), member("waits", 0, cpu=900))
    driver.settle()
    job = driver.scheduler.job_of_workload("waits")
    assert job is not None
    assert job.state is JobState.SCHED
    assert not driver.scheduler.is_dirty
    return driver


@pytest.mark.parametrize(
    ("usage", "is_due"),
    [
        (replace(USED, key="new"), False),
        (replace(USED, usage=(("cpu", 700), ("memory", 100))), False),
        (replace(USED, usage=(("cpu", 600), ("memory", 100), ("gpu", 1))), False),
        (replace(USED, brings=(PORT, OTHER_PORT)), False),
        (replace(USED, name="renamed"), False),
        (replace(USED, usage=(("cpu", 500), ("memory", 100))), True),
        (replace(USED, usage=(("cpu", 700), ("memory", 50))), True),
        (replace(USED, usage=(("cpu", 600),)), True),
        (replace(USED, brings=(OTHER_PORT,)), True),
        (replace(USED, node="node1"), True),
        (replace(USED, node="unknown"), True),
        (ExternalUsageGone("other"), True),
        (ExternalUsageGone("nobody"), False),
    ],
)
def test_external_usage_makes_a_cycle_due_if_it_frees_something(
    usage: ExternalUsageSet | ExternalUsageGone, is_due: bool
) -> None:
    driver = waiting()
    driver.feed(usage)
    assert driver.scheduler.is_dirty is is_due


NODE = pods(nodes=1).nodes["node0"]
CPU, MEMORY = NODE.capacity


@pytest.mark.parametrize(
    ("node", "is_due"),
    [
        (replace(NODE, up=False, why="not ready"), False),
        (replace(NODE, capacity=(replace(CPU, units=500), MEMORY)), False),
        (replace(NODE, capacity=(CPU,)), False),
        (replace(NODE, node="node2", up=False), False),
        (replace(NODE, node="node2"), True),
        (replace(NODE, capacity=(replace(CPU, units=2000), MEMORY)), True),
        (replace(NODE, capacity=(replace(CPU, units=500), replace(MEMORY, units=1 << 31))), True),
        (replace(NODE, capacity=(CPU, MEMORY, Capacity("gpu", 1))), True),
        (replace(NODE, labels=(("zone", "b"),)), True),
        (replace(NODE, topology_levels=(("rack", "b"),)), True),
        (NodeGone("node0"), True),
    ],
)
def test_a_node_makes_a_cycle_due_if_it_offers_more(node: NodeSet | NodeGone, is_due: bool) -> None:
    driver = waiting()
    driver.feed(node)
    assert driver.scheduler.is_dirty is is_due


def test_a_node_that_returns_makes_a_cycle_due() -> None:
    driver = waiting()
    driver.feed(replace(NODE, up=False))
    assert not driver.scheduler.is_dirty
    driver.feed(NODE)
    assert driver.scheduler.is_dirty


def test_a_start_that_is_delayed_by_external_usage_slips_with_the_next_refresh() -> None:
    cadence = replace(VIRTUAL_CADENCE, refresh_after_s=30.0)
    driver = Driver(nodes_of(2, 1), settings_of("easy"), runs_s=lambda _job: 1000, cadence=cadence)
    driver.submit(submission(duration_s=100), submission(duration_s=1000))
    (waits,) = driver.submit(submission(duration_s=1000))
    driver.run_until(10)
    forecast = driver.scheduler.jobs[waits].forecast
    assert forecast is not None
    assert forecast.start_at == 100
    first = next(job for job, start in driver.starts.items() if start == 0)
    node = driver.scheduler.jobs[first].members[f"{first}/1/0"].node
    driver.feed(ExternalUsageSet("other", node, (("core", 1),)))
    driver.run_until(50)
    slips = [event.context for event in driver.logs[waits] if "cause" in event.context]
    assert [slip["cause"] for slip in slips] == [f"external usage of {node} has changed"]
