"""Strict queues (`fcfs`): the first job that must wait blocks the jobs behind it, and is not reserved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.documents import PendingInfo, wait_explanation
from penstock.api.timeline import live_timeline
from penstock.backends.sim.backend import MemberScript
from penstock.model.constraint import HostIn
from penstock.model.job import JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import SetUrgency
from penstock.protocol.facts import ExternalUsageGone, ExternalUsageSet, MemberGone, WorkloadGone, WorkloadSet
from penstock.sched.reasons import WaitCause
from tests.sched.driving import Driver, nodes_of, pool_of, settings_of, submission
from tests.sched.workloads import endless, member, pods


def state(driver: Driver, job: int) -> JobState:
    found = driver.scheduler.jobs.get(job)
    return found.state if found is not None else JobState.INACTIVE


def workload_state(driver: Driver, workload: str) -> JobState:
    job = driver.scheduler.job_of_workload(workload)
    return job.state if job is not None else JobState.INACTIVE


def test_pods_without_an_end_do_not_overtake_a_gang() -> None:
    driver = Driver(pods(nodes=2), settings_of("fcfs"))
    endless(driver)
    driver.feed(WorkloadSet("first", "first", 1), member("first", 0, cpu=400))
    driver.settle()
    gang = (member("gang", number, cpu=800) for number in range(2))
    driver.feed(WorkloadSet("gang", "gang", 2), *gang)
    for number in range(20):
        driver.feed(WorkloadSet(f"w{number}", f"w{number}", 1), member(f"w{number}", 0, cpu=100))
        driver.settle()
    assert workload_state(driver, "gang") is JobState.SCHED
    assert all(workload_state(driver, f"w{number}") is JobState.SCHED for number in range(20))
    driver.feed(MemberGone("first-0"), WorkloadGone("first"))
    driver.settle()
    assert workload_state(driver, "gang") is JobState.RUN
    assert workload_state(driver, "w0") is JobState.RUN


def test_a_head_that_waits_for_external_usage_blocks_its_queue() -> None:
    driver = Driver(pods(nodes=1), settings_of("fcfs"))
    endless(driver)
    driver.backend.external_usage["other"] = ExternalUsageSet("other", "node0", (("cpu", 700),))
    driver.feed(driver.backend.external_usage["other"])
    driver.feed(WorkloadSet("large", "large", 1), member("large", 0, cpu=600))
    driver.feed(WorkloadSet("small", "small", 1), member("small", 0, cpu=200))
    driver.settle()
    assert [workload_state(driver, name) for name in ("large", "small")] == [JobState.SCHED] * 2
    driver.feed(ExternalUsageGone("other"))
    driver.settle()
    assert [workload_state(driver, name) for name in ("large", "small")] == [JobState.RUN] * 2


@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 8), st.sampled_from([0, 5, 20]), st.integers(0, 10)), min_size=2, max_size=14
    )
)
def test_no_job_overtakes_another_also_if_jobs_have_no_end(jobs: list[tuple[int, int, int]]) -> None:
    driver = Driver(pool_of(8), settings_of("fcfs"), runs_s=lambda job: runs[job])
    runs: dict[int, float] = {}
    numbers = []
    for cores, limit_s, wait_s in jobs:
        (number,) = driver.submit(submission(cores=cores, duration_s=limit_s))
        runs[number] = limit_s or 30.0
        numbers.append(number)
        driver.run_until(driver.now + wait_s)
        started = [one in driver.starts for one in numbers]
        assert started == sorted(started, reverse=True)
    driver.run()
    starts = [driver.starts[number] for number in numbers]
    assert starts == sorted(starts)


def test_held_and_delayed_jobs_do_not_block() -> None:
    driver = Driver(pool_of(4), settings_of("fcfs"), runs_s=lambda _job: 1000)
    begin = [{"scheme": "begin-time", "value": "500"}]
    held, delayed, usual = driver.submit(
        submission(urgency=0), submission(dependencies=begin, duration_s=1000), submission(duration_s=1000)
    )
    (dependent,) = driver.submit(
        submission(dependencies=[{"scheme": "afterany", "value": encode_jobid(usual)}], duration_s=1000)
    )
    (last,) = driver.submit(submission(duration_s=1000))
    driver.settle()
    states = [state(driver, job) for job in (held, delayed, dependent, usual, last)]
    assert states == [JobState.SCHED, JobState.DEPEND, JobState.DEPEND, JobState.RUN, JobState.RUN]


def test_a_head_that_becomes_unsatisfiable_does_not_block() -> None:
    driver = Driver(nodes_of(2, 1), settings_of("fcfs"), runs_s=lambda _job: 1e6)
    (running,) = driver.submit(submission(duration_s=0))
    gang, small = driver.submit(submission(nodes=2, duration_s=0), submission(duration_s=0))
    driver.settle()
    assert [state(driver, job) for job in (gang, small)] == [JobState.SCHED, JobState.SCHED]
    nodes = dict(driver.backend.nodes)
    used = driver.scheduler.jobs[running].members[f"{running}/1/0"].node
    driver.feed(driver.backend.remove_node(used))
    driver.settle()
    assert state(driver, small) is JobState.RUN
    assert driver.scheduler.wait_reason(gang, driver.now).cause is WaitCause.UNSATISFIABLE
    driver.backend.nodes[used] = nodes[used]
    driver.feed(nodes[used])
    driver.settle()
    assert driver.scheduler.wait_reason(gang, driver.now).cause is WaitCause.RESOURCES


def test_a_late_member_is_placed_behind_a_waiting_head() -> None:
    driver = Driver(pods(nodes=2), settings_of("fcfs"))
    endless(driver)
    driver.feed(WorkloadSet("runs", "runs", 1), member("runs", 0, cpu=400))
    driver.settle()
    head = (member("head", number, cpu=700) for number in range(2))
    driver.feed(WorkloadSet("head", "head", 2), *head)
    driver.settle()
    driver.feed(member("runs", 1, cpu=400))
    driver.settle()
    assert workload_state(driver, "head") is JobState.SCHED
    job = driver.scheduler.job_of_workload("runs")
    assert job is not None
    assert all(one.node for one in job.members.values())


def test_a_late_member_that_does_not_fit_does_not_block() -> None:
    driver = Driver(pods(nodes=1), settings_of("fcfs"))
    endless(driver)
    driver.feed(WorkloadSet("runs", "runs", 1), member("runs", 0, cpu=600))
    driver.settle()
    driver.feed(member("runs", 1, cpu=600))
    driver.feed(WorkloadSet("small", "small", 1), member("small", 0, cpu=300))
    driver.settle()
    assert workload_state(driver, "small") is JobState.RUN


def test_a_late_member_without_room_in_its_rack_says_nothing_about_an_equal_job() -> None:
    backend = pods(nodes=3)
    for number, node in enumerate(list(backend.nodes.values())):
        backend.nodes[node.node] = replace(node, topology_levels=(("rack", f"rack{number}"),))
    driver = Driver(backend, settings_of("easy"))
    endless(driver)
    on_node2 = HostIn(frozenset({"node2"}))
    driver.feed(WorkloadSet("gang", "gang", 1, within="rack"), member("gang", 0, cpu=900))
    driver.feed(WorkloadSet("busy", "busy", 1, limit_s=100), member("busy", 0, cpu=900, constraint=on_node2))
    driver.settle()
    driver.feed(WorkloadSet("next", "next", 1, limit_s=100), member("next", 0, cpu=900, constraint=on_node2))
    driver.feed(member("gang", 1, cpu=300))
    driver.feed(WorkloadSet("other", "other", 1, within="rack"), member("other", 0, cpu=300))
    driver.settle()
    assert len(driver.scheduler.reservations()) == 1
    assert workload_state(driver, "other") is JobState.RUN


def test_the_head_has_a_forecast_and_no_reservation() -> None:
    driver = Driver(nodes_of(2, 1), settings_of("fcfs"), runs_s=lambda _job: 100)
    driver.submit(submission(duration_s=100))
    head, behind = driver.submit(submission(nodes=2, duration_s=100), submission(duration_s=10))
    driver.run_until(10)
    found = driver.scheduler.jobs[head].forecast
    assert found is not None
    assert (found.start_at, found.is_reservation) == (100.0, False)
    assert driver.scheduler.reservations() == {}
    nodes = live_timeline(driver.scheduler, driver.now, 0.0).nodes
    kinds = {span.kind for node in nodes for span in node.spans if span.job == encode_jobid(head)}
    assert kinds == {"forecast"}
    reason = driver.scheduler.wait_reason(behind, driver.now)
    assert reason.cause is WaitCause.QUEUE_ORDER
    name = encode_jobid(head)
    strict = "queue default is strict first-come, first-served"
    assert reason.message == f"{strict}, and {name} (true) at its head waits"
    told = wait_explanation(behind, JobState.SCHED, reason, PendingInfo(), ())
    assert told.suggestion == ""
    assert driver.scheduler.wait_reason(head, driver.now).cause is WaitCause.RESOURCES


@pytest.mark.parametrize("urgency", [0, 20])
def test_the_reason_names_the_head_that_waits(urgency: int) -> None:
    driver = Driver(nodes_of(2, 1), settings_of("fcfs"))
    driver.backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e6)
    driver.submit(submission(duration_s=0))
    first, second = (driver.submit(submission(nodes=2, duration_s=0))[0] for _ in range(2))
    (last,) = driver.submit(submission(duration_s=0))
    driver.settle()
    assert encode_jobid(first) in driver.scheduler.wait_reason(last, driver.now).message
    driver.feed(SetUrgency(first if urgency == 0 else second, urgency))
    driver.settle()
    assert encode_jobid(second) in driver.scheduler.wait_reason(last, driver.now).message
