"""Works and members for the tests, on nodes whose resources are pools."""

from __future__ import annotations

from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.protocol.facts import Capacity, MemberSet
from penstock.sched.job import Job
from tests.sched.driving import Driver

__all__ = ["endless", "member", "only_job", "pods"]


def pods(nodes: int = 2, cpu: int = 1000) -> SimBackend:
    capacity = [Capacity("cpu", cpu, divisible=True), Capacity("memory", 1 << 30, divisible=True)]
    return SimBackend({node.node: node for node in uniform_nodes(nodes, capacity)})


def member(workload: str, number: int, cpu: int = 400, **more: object) -> MemberSet:
    return MemberSet(workload, f"{workload}-{number}", number, (("cpu", cpu),), **more)


def only_job(driver: Driver) -> Job:
    (job,) = driver.scheduler.jobs.values()
    return job


def endless(driver: Driver) -> None:
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
