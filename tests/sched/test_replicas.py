"""Workloads that need fewer members than they have: replicas, and gangs with a minimum."""

from __future__ import annotations

from penstock.backends.sim.backend import uniform_nodes
from penstock.model.constraint import HostIn
from penstock.model.job import JobState
from penstock.protocol.facts import (
    Capacity,
    ExternalUsageGone,
    ExternalUsageSet,
    MemberGone,
    MemberStatus,
    Phase,
    Requeue,
    WorkloadSet,
)
from penstock.sched.job import Job
from penstock.sched.member_states import MemberPhase
from penstock.sched.settings import Settings
from tests.sched.controllers import ControllerBackend
from tests.sched.driving import Driver, settings_of
from tests.sched.workloads import endless, member, only_job, pods


def started(workload: WorkloadSet, count: int, nodes: int = 2, cpu: int = 400, **more: object) -> Driver:
    driver = Driver(pods(nodes), settings_of("easy"))
    endless(driver)
    driver.feed(workload, *(member(workload.workload, number, cpu, **more) for number in range(count)))
    driver.settle()
    return driver


def phases(job: Job) -> list[MemberPhase]:
    return [one.phase for one in sorted(job.members.values(), key=lambda one: one.index)]


def nodes(job: Job) -> list[str]:
    return sorted(one.node for one in job.members.values() if one.phase.is_live)


def test_replicas_start_as_far_as_there_is_room_and_are_spread() -> None:
    driver = started(WorkloadSet("w", "web", 1, is_gang=False), 5, nodes=2)
    job = only_job(driver)
    assert job.state is JobState.RUN
    assert nodes(job) == ["node0", "node0", "node1", "node1"]
    assert phases(job).count(MemberPhase.WAITING) == 1
    driver.feed(MemberGone(next(one.key for one in job.members.values() if one.node == "node0")))
    driver.settle()
    assert nodes(only_job(driver)) == ["node0", "node0", "node1", "node1"]


def test_two_replicas_are_on_two_nodes_and_two_members_of_a_gang_on_one() -> None:
    assert nodes(only_job(started(WorkloadSet("w", "web", 1, is_gang=False), 2))) == ["node0", "node1"]
    assert nodes(only_job(started(WorkloadSet("w", "mpi", 2), 2))) == ["node0", "node0"]


def test_a_gang_starts_with_its_minimum_and_the_rest_joins() -> None:
    """Of four members two fit, and two are enough; those of the lowest indexes start."""
    driver = started(WorkloadSet("w", "mpi", 2), 4, nodes=2, cpu=900)
    job = only_job(driver)
    waiting, running = MemberPhase.WAITING, MemberPhase.RUNNING
    assert phases(job) == [running, running, waiting, waiting]
    more = uniform_nodes(4, [Capacity("cpu", 1000, divisible=True)])[2:]
    driver.backend.nodes.update((node.node, node) for node in more)
    driver.feed(*more)
    driver.settle()
    assert phases(only_job(driver)) == [running] * 4


def test_a_gang_below_its_minimum_does_not_start() -> None:
    driver = started(WorkloadSet("w", "mpi", 3), 4, nodes=2, cpu=900)
    assert only_job(driver).state is JobState.SCHED
    assert set(phases(only_job(driver))) == {MemberPhase.WAITING}


def test_a_group_that_keeps_its_minimum_is_not_incomplete_without_a_replacement() -> None:
    capacity = [Capacity("cpu", 1000, divisible=True)]
    backend = ControllerBackend({node.node: node for node in uniform_nodes(3, capacity)}, backoff_s=1e9)
    driver = Driver(backend, settings_of("easy"))
    driver.feed(*backend.create(WorkloadSet("w", "web", 1, desired=3, is_gang=False)))
    driver.settle()
    job = only_job(driver)
    assert len(nodes(job)) == 3
    driver.feed(*backend.fail(next(iter(job.members))))
    driver.settle()
    driver.run_until(driver.now + Settings().replacement_timeout_s + 1)
    assert job.incomplete_reason == ""
    assert job.live_count == 2


def test_preferred_nodes_are_used_first_and_others_if_they_are_full() -> None:
    prefers = ((HostIn(frozenset({"node2"})), 10),)
    driver = started(WorkloadSet("w", "web", 1, is_gang=False), 3, nodes=3, prefers=prefers)
    assert nodes(only_job(driver)) == ["node0", "node2", "node2"]


def test_members_that_are_left_for_the_next_job_still_prefer_their_nodes() -> None:
    prefers = ((HostIn(frozenset({"node2"})), 10),)
    workload = WorkloadSet("w", "mpi", 1, owner="ns", requeue=Requeue.ALWAYS, desired=2)
    driver = started(workload, 1, nodes=3, cpu=1000, recreated=True)
    driver.feed(*(ExternalUsageSet(f"u{number}", f"node{number}", (("cpu", 1000),)) for number in (1, 2)))
    driver.feed(member("w", 1, cpu=400, recreated=True, prefers=prefers))
    driver.settle()
    assert phases(only_job(driver))[1] is MemberPhase.WAITING
    driver.feed(MemberStatus("w-0", Phase.ENDED, driver.now, "node0", status=256), MemberGone("w-0"))
    driver.feed(ExternalUsageGone("u1"), ExternalUsageGone("u2"))
    driver.settle()
    assert nodes(only_job(driver)) == ["node2"]
