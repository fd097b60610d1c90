"""Nodes that a job cannot use: for now or for ever, because of what, and which one is nearest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.model.constraint import (
    TAINTS_PROPERTY,
    And,
    Constraint,
    Or,
    Taint,
    Tolerates,
    Value,
    ValueOperator,
    encode_taints,
)
from penstock.protocol.commands import Drain
from penstock.protocol.facts import WorkloadSet
from penstock.sched.reasons import WaitCause
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import member, only_job, pods

CORDON = Taint("node.kubernetes.io/unschedulable", "", "NoSchedule")
DEDICATED = Taint("dedicated", "ml", "NoSchedule")


def cluster(*nodes: tuple[dict[str, str], tuple[Taint, ...]]) -> Driver:
    """Nodes of 1000 units with labels and taints."""
    backend = pods(len(nodes))
    for number, (labels, taints) in enumerate(nodes):
        properties = dict(labels)
        if taints:
            properties[TAINTS_PROPERTY] = encode_taints(taints)
        name = f"node{number}"
        backend.nodes[name] = replace(backend.nodes[name], labels=tuple(sorted(properties.items())))
    return Driver(backend, settings_of("easy"))


def reason_of(driver: Driver, constraint: Constraint | None = None, cpu: int = 400) -> tuple[WaitCause, str]:
    rule = Tolerates(()) if constraint is None else constraint
    driver.feed(WorkloadSet("w", "w", 1, owner="ns"), member("w", 0, cpu=cpu, constraint=rule))
    driver.settle()
    found = driver.scheduler.wait_reason(only_job(driver).id, driver.now)
    return found.cause, found.message


@pytest.mark.parametrize(
    ("taint", "text"),
    [
        (CORDON, "1 node: cordoned"),
        (
            Taint("node.kubernetes.io/not-ready", "", "NoSchedule"),
            "1 node: taint node.kubernetes.io/not-ready:NoSchedule not tolerated",
        ),
        (
            Taint("node.kubernetes.io/disk-pressure", "", "NoSchedule"),
            "1 node: taint node.kubernetes.io/disk-pressure:NoSchedule not tolerated",
        ),
    ],
)
def test_a_taint_of_a_temporary_condition_is_no_reason_to_never_run(taint: Taint, text: str) -> None:
    cause, message = reason_of(cluster(({}, (taint,))))
    assert cause is WaitCause.RESOURCES
    assert message.endswith(f"0 of 1 nodes match, 1 is needed; {text}")


def test_a_pod_starts_when_the_last_suitable_node_is_uncordoned() -> None:
    driver = cluster(({}, (CORDON,)))
    assert reason_of(driver)[0] is WaitCause.RESOURCES
    driver.feed(replace(driver.backend.nodes["node0"], labels=()))
    driver.settle()
    assert driver.starts


def test_a_taint_that_somebody_has_set_is_named_as_one() -> None:
    cause, message = reason_of(cluster(({}, (DEDICATED,)), ({}, (DEDICATED, CORDON))))
    assert cause is WaitCause.UNSATISFIABLE
    text = "0 of 2 nodes match; 2 nodes: taint dedicated=ml:NoSchedule not tolerated"
    assert message == f"it can never run here: {text}"


def test_selector_affinity_and_taint_are_told_apart_and_the_nearest_node_is_named() -> None:
    selector = Value("disk", ValueOperator.IN, ("ssd",))
    affinity = Or((Value("zone", ValueOperator.IN, ("a", "b")),))
    driver = cluster(({"zone": "c"}, ()), ({"disk": "ssd", "zone": "c"}, ()), ({"zone": "a"}, (DEDICATED,)))
    cause, message = reason_of(driver, And((selector, affinity, Tolerates(()))))
    assert cause is WaitCause.UNSATISFIABLE
    assert "2 nodes: node selector disk=ssd does not match" in message
    assert "2 nodes: node affinity zone In a,b does not match" in message
    assert "1 node: taint dedicated=ml:NoSchedule not tolerated" in message
    assert message.endswith("; nearest: node1 (node affinity zone In a,b does not match)")


def test_drained_and_unready_nodes_are_told_with_the_reason() -> None:
    driver = cluster(({}, ()), ({}, ()), ({}, ()))
    driver.feed(Drain(("node0",), "bad DIMM", "root"))
    unready = driver.backend.nodes["node1"]
    driver.feed(replace(unready, up=False, why="not ready: KubeletNotReady"))
    driver.feed(replace(driver.backend.nodes["node2"], capacity=unready.capacity[:1], up=False))
    driver.settle()
    cause, message = reason_of(driver)
    assert cause is WaitCause.RESOURCES
    assert "0 of 3 nodes are up, 1 is needed" in message
    assert "node0 is drained (bad DIMM), node1 is down (not ready: KubeletNotReady)" in message


def test_the_short_resource_is_told_with_its_units() -> None:
    driver = cluster(({}, ()), ({}, ()))
    for number in range(2):
        name = f"old{number}"
        driver.feed(WorkloadSet(name, name, 1, owner="ns"), member(name, 0, cpu=700))
    driver.settle()
    driver.feed(WorkloadSet("w", "w", 1, owner="ns"), member("w", 0, cpu=800))
    driver.settle()
    job = driver.scheduler.job_of_workload("w")
    assert job is not None
    message = driver.scheduler.wait_reason(job.id, driver.now).message
    assert "cpu: needs 800m, the largest free node has 300m" in message
    assert "ns/old0" in message, "the workload is named beside the id of its job"
