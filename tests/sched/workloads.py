"""Works and members for the tests, on nodes whose resources are pools."""

from __future__ import annotations

from penstock.backends.sim.backend import Fate, SimWorld, plain_nodes
from penstock.protocol.facts import Capacity, MemberSet
from penstock.sched.job import Job
from tests.sched.driving import Driver

__all__ = ["endless", "member", "only_job", "pods"]


def pods(nodes: int = 2, cpu: int = 1000) -> SimWorld:
    capacity = [Capacity("cpu", cpu, divisible=True), Capacity("memory", 1 << 30, divisible=True)]
    return SimWorld({node.node: node for node in plain_nodes(nodes, capacity)})


def member(work: str, number: int, cpu: int = 400, **more: object) -> MemberSet:
    return MemberSet(work, f"{work}-{number}", number, (("cpu", cpu),), **more)  # type: ignore[arg-type]


def only_job(driver: Driver) -> Job:
    (job,) = driver.scheduler.core.jobs.values()
    return job


def endless(driver: Driver) -> None:
    driver.world.fate_of = lambda _place, _seat: Fate(runs_s=1e9)
