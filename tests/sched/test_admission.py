"""Limits of one namespace: jobs and shapes beyond them wait outside the queue."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from penstock.api import live_jobs
from penstock.backends.sim.backend import MemberScript
from penstock.engine.request import Request
from penstock.protocol.commands import Cancel, Submit
from penstock.protocol.facts import MemberGone, WorkloadGone, WorkloadSet
from penstock.sched.admission import Admission
from penstock.sched.jobspec import MemberRequest, group_of
from penstock.sched.reasons import WaitCause
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import QueueSettings, Settings
from penstock.store.memory import MemoryStore
from penstock.store.memory_tables import MemoryTables
from tests.instance.restarts import RestartingInstance
from tests.sched.driving import Driver, nodes_of, submission
from tests.sched.workloads import endless, member, pods

_INCOMPLETE = "1 of 9 members are ready; it waits for the others without a limit"


def limits(pending_max: int = 1000, shapes_max: int = 1000) -> Settings:
    return Settings(queues=(QueueSettings("default", pending_max=pending_max),), shapes_max=shapes_max)


def add(driver: Driver, name: str, owner: str = "team-a", cpu: int = 1000, size: int = 1) -> None:
    driver.feed(WorkloadSet(name, name, size, owner=owner), member(name, 0, cpu=cpu))


def busy(settings: Settings) -> Driver:
    """One node, which a job of team-b uses until it is cancelled."""
    driver = Driver(pods(1, cpu=1000), settings)
    endless(driver)
    add(driver, "running", "team-b")
    driver.settle()
    return driver


def queued(driver: Driver) -> list[str]:
    return [driver.scheduler.jobs[job].spec.name for job, _ in driver.scheduler.queued()]


def outside(driver: Driver) -> dict[str, str]:
    return _outside(driver.scheduler)


def _outside(scheduler: Scheduler) -> dict[str, str]:
    reasons = {job.spec.name: scheduler.wait_reason(job.id, 0.0) for job in scheduler.jobs.values()}
    return {name: reason.message for name, reason in reasons.items() if reason.cause is WaitCause.LIMIT}


def number(driver: Driver, name: str) -> int:
    job = driver.scheduler.job_of_workload(name)
    assert job is not None
    return job.id


def test_the_newest_jobs_beyond_the_limit_wait_outside_and_enter_as_others_leave() -> None:
    driver = busy(limits(pending_max=2))
    for name in ("a1", "a2", "a3", "a4", "a5"):
        add(driver, name)
    add(driver, "b1", "team-b")
    driver.settle()
    assert queued(driver) == ["a1", "a2", "b1"]
    reason = (
        "waits outside queue default: namespace team-a has 2 pending jobs in it, "
        "as many as pending_max allows"
    )
    assert outside(driver) == dict.fromkeys(("a3", "a4", "a5"), reason)
    assert b"penstock_jobs_outside_queue 3.0" in live_jobs.state_metrics(driver.scheduler, driver.now)
    assert driver.statuses["a3"].reason == reason
    driver.feed(Cancel((number(driver, "a2"),)))
    driver.settle()
    assert queued(driver) == ["a1", "a3", "b1"]
    assert sorted(outside(driver)) == ["a4", "a5"]
    assert "held by" in driver.statuses["a3"].reason
    driver.feed(MemberGone("a4-0"))  # One outside leaves: nobody enters.
    assert sorted(outside(driver)) == ["a5"]
    driver.feed(WorkloadGone("running"), MemberGone("running-0"))
    driver.settle()  # a1 starts and leaves the queue.
    assert queued(driver) == ["a3", "a5", "b1"]
    assert outside(driver) == {}


def test_groups_that_never_complete_count_as_pending_jobs() -> None:
    driver = busy(limits(pending_max=2))
    for name in ("g1", "g2", "g3"):
        add(driver, name, size=9)
    add(driver, "whole")
    driver.settle()
    assert sorted(outside(driver)) == ["g3", "whole"]
    assert driver.statuses["g1"].reason == _INCOMPLETE
    driver.feed(WorkloadGone("g1"), WorkloadGone("g2"))
    driver.settle()
    assert outside(driver) == {}
    assert (queued(driver), driver.statuses["g3"].reason) == (
        ["whole"],
        _INCOMPLETE,
    )


def test_a_job_with_one_shape_too_many_waits_outside_until_another_shape_is_gone() -> None:
    driver = busy(limits(shapes_max=2))
    for name, cpu in (("a1", 100), ("a2", 200), ("a3", 300), ("a4", 300), ("a5", 400), ("a6", 200)):
        add(driver, name, cpu=cpu)
    add(driver, "b1", "team-b", cpu=777)
    driver.settle()
    assert queued(driver) == ["a1", "a2", "a6", "b1"]
    reason = (
        "waits outside queue default: the pending jobs of namespace team-a have 2 distinct requests, "
        "as many as limits.shapes_max allows"
    )
    assert outside(driver) == dict.fromkeys(("a3", "a4", "a5"), reason)
    driver.feed(Cancel((number(driver, "a2"),)))
    assert sorted(outside(driver)) == ["a3", "a4", "a5"]  # a6 has the same request as a2.
    driver.feed(Cancel((number(driver, "a6"),)))
    assert queued(driver) == ["a1", "a3", "a4", "b1"]
    assert sorted(outside(driver)) == ["a5"]


def test_shapes_that_can_never_run_count_as_well() -> None:
    driver = busy(limits(shapes_max=2))
    for name, cpu in (("a1", 5000), ("a2", 6000), ("a3", 7000)):
        add(driver, name, cpu=cpu)
    driver.settle()
    assert sorted(outside(driver)) == ["a3"]


def test_a_group_with_too_many_distinct_requests_waits_outside() -> None:
    driver = busy(limits(shapes_max=2))
    driver.feed(WorkloadSet("wide", "wide", 3, owner="team-a"))
    driver.feed(*(member("wide", index, cpu=100 + index) for index in range(3)))
    driver.settle()
    reason = "its members have 3 distinct requests, at most 2 (limits.shapes_max)"
    assert outside(driver)["wide"] == f"waits outside queue default: {reason}"


def test_late_members_with_one_shape_too_many_wait_outside() -> None:
    driver = Driver(pods(1, cpu=1000), limits(shapes_max=2))
    endless(driver)
    driver.feed(WorkloadSet("w", "w", 1, owner="team-a"), member("w", 0, cpu=1000))
    driver.settle()
    late = [member("w", index, cpu=cpu) for index, cpu in enumerate((100, 200, 300, 300, 400, 200), 1)]
    driver.feed(*late)
    driver.settle()

    def entries() -> list[str]:
        return sorted(key for _, key in driver.scheduler.queued())

    assert entries() == ["w-1", "w-2", "w-6"]
    reason = "late members of namespace team-a have 2 distinct requests, as many as limits.shapes_max allows"
    assert any(reason in update.reason for step in driver.steps for update in step.status_updates)
    driver.feed(MemberGone("w-1"))
    assert entries() == ["w-2", "w-3", "w-4", "w-6"]
    driver.feed(MemberGone("w-3"), MemberGone("w-5"), MemberGone("w-4"))
    assert entries() == ["w-2", "w-6"]
    driver.feed(MemberGone("w-0"))
    driver.settle()  # The node is free: all start.
    assert entries() == []


def test_jobs_outside_wait_outside_after_a_restart() -> None:
    tables = MemoryTables()
    backend = pods(1, cpu=1000)
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    instance = RestartingInstance(backend, limits(pending_max=2), lambda: MemoryStore(tables))
    for at, name in enumerate(("running", "a1", "a2", "a3", "a4")):
        backend.workloads[name] = WorkloadSet(name, name, 1, owner="team-a")
        backend.members[f"{name}-0"] = member(name, 0, cpu=1000)
        instance.feed(backend.workloads[name], backend.members[f"{name}-0"])
        instance.run_until(at + 1)
    before = _outside(instance.scheduler)
    assert sorted(before) == ["a3", "a4"]
    instance.restart()
    instance.run_until(10)
    assert _outside(instance.scheduler) == before
    assert instance.scheduler.queue_length == 2


def test_a_workload_of_a_queue_that_is_gone_waits_in_the_queue_that_its_backend_reports() -> None:
    tables = MemoryTables()
    backend = pods(1, cpu=1000)
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=1e9)
    queues = (QueueSettings("default"), QueueSettings("night"))
    instance = RestartingInstance(backend, Settings(queues=queues), lambda: MemoryStore(tables))
    for name in ("running", "waits"):
        workload, pod = WorkloadSet(name, name, 1, queue="night"), member(name, 0, cpu=1000)
        backend.workloads[name] = replace(workload, queue="")  # As the backend reports it without the queue.
        backend.members[f"{name}-0"] = pod
        instance.feed(workload, pod)
        instance.run_until(1)
    instance.settings = Settings(queues=queues[:1])
    instance.restart()
    instance.run_until(2)
    assert [job.queue for job in instance.scheduler.jobs.values()] == ["night", "default"]
    assert instance.scheduler.queue_length == 1


def test_a_submitted_job_survives_a_shorter_limit_and_the_end_of_its_queue() -> None:
    tables = MemoryTables()
    queues = (QueueSettings("default"), QueueSettings("night"))
    backend = nodes_of(1, 1)
    backend.script_for = lambda _place, _assignment: MemberScript(runs_s=500)
    instance = RestartingInstance(backend, Settings(queues=queues), lambda: MemoryStore(tables))
    instance.feed(Submit((submission(duration_s=600), submission(duration_s=600, queue="night"))))
    instance.run_until(1)
    instance.settings = Settings(queues=(QueueSettings("default", duration_max_s=60),))
    instance.restart()
    instance.run_until(2)
    found = {(job.queue, job.spec.limit_s) for job in instance.scheduler.jobs.values()}
    assert (len(instance.scheduler.jobs), found) == (2, {("default", 600), ("night", 600)})


REQUESTS = [Request((group_of(MemberRequest((("cpu", cpu),)), 1),), None) for cpu in range(1, 6)]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "remove", "request", "queue"]),
            st.integers(0, 11),
            st.sampled_from(["a", "b"]),
            st.sampled_from(["x", "y"]),
            st.sampled_from(REQUESTS),
        ),
        max_size=60,
    )
)
def test_limits_hold_and_nobody_waits_for_nothing_after_any_changes(
    steps: list[tuple[str, int, str, str, Request]],
) -> None:
    settings = Settings(
        queues=(QueueSettings("x", pending_max=3), QueueSettings("y", pending_max=1)), shapes_max=2
    )
    admission = Admission(settings)
    known: set[int] = set()
    for at, (what, job, owner, queue, request) in enumerate(steps):
        if what == "add" and job not in known:
            known.add(job)
            admission.add(job, owner, queue, float(at))
        elif what == "remove":
            known.discard(job)
            admission.remove(job)
        elif what == "request":
            admission.set_request(job, request)
        elif what == "queue":
            admission.set_queue(job, queue)
        waiting = {job for job in known if admission.outside_reason(job)}
        entered = set(admission.take_entered())
        assert list(admission.violations()) == []
        assert set(admission.jobs()) == known
        copied = admission.copy()
        assert {job for job in known if copied.outside_reason(job)} == waiting
        assert entered <= known
    for job in sorted(known):
        admission.remove(job)
    assert vars(admission) == {**vars(Admission(settings)), "_entered": {}}
