"""Names of members and external usage appear in messages instead of their keys."""

from __future__ import annotations

from dataclasses import replace

from penstock.backends.sim.backend import MemberScript
from penstock.protocol.facts import (
    EndCause,
    ExternalUsageSet,
    MemberSet,
    MemberStatus,
    Phase,
    Requeue,
    WorkloadSet,
)
from penstock.sched.job import Job, Member, job_from, live_of, member_record
from penstock.sched.records import JobNew, JobRow
from tests.sched.driving import Driver, settings_of
from tests.sched.test_sched_gangs import endless, only_job, pods


def named(number: int, cpu: int = 400) -> MemberSet:
    return MemberSet("w", f"uid-{number}", number, (("cpu", cpu),), name=f"web-{number}")


def notes(job: Job) -> list[object]:
    return [event.context["note"] for event in job.log if event.name == "exception"]


def test_a_member_without_a_name_is_shown_by_its_key() -> None:
    assert (Member("uid", 0).display_name, Member("uid", 0, name="web").display_name) == ("uid", "web")


def test_a_refusal_shows_the_name_of_the_member() -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    driver.backend.script_for = lambda _place, assignment: MemberScript(
        runs_s=1e9, refused="OutOfcpu" if assignment.node == "node0" else ""
    )
    driver.feed(WorkloadSet("w", "refused", 1), named(0))
    driver.settle()
    assert notes(only_job(driver)) == ["node0 refused web-0: OutOfcpu"]


def test_a_member_that_was_not_started_is_shown_by_its_name() -> None:
    driver = Driver(pods(), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "admitted", 2), named(0), named(1))
    driver.settle()
    job = only_job(driver)
    node = job.members["uid-0"].node
    driver.feed(
        MemberStatus(
            "uid-0", Phase.ENDED, driver.now, node, 1 << 8, EndCause.OTHER, "OutOfcpu", started=False
        )
    )
    assert notes(job)[0] == f"web-0 was not started on {node}: OutOfcpu"


def test_a_name_is_recorded_with_the_member() -> None:
    driver = Driver(pods(), settings_of("easy"))
    driver.feed(WorkloadSet("w", "kept", 2), named(0), MemberSet("w", "plain", 1, (("cpu", 1),)))
    job = only_job(driver)
    members = tuple(member_record(member) for member in job.members.values())
    new = JobNew(job.id, job.owner, "kept", job.seen_at, job.recorded_spec, job.workload)
    again = job_from(JobRow(new, live_of(job), members=members), job.spec, job.ownership)
    assert [member.name for member in again.members.values()] == ["web-0", ""]


def test_external_usage_is_a_blocker_by_its_name() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    driver.feed(
        ExternalUsageSet("uid-7", "node0", (("cpu", 500),), name="kube-system/proxy"),
        ExternalUsageSet("nameless", "node0", (("cpu", 300),)),
    )
    driver.feed(WorkloadSet("w", "waits", 1), named(0))
    driver.settle()
    why = driver.scheduler.wait_reason(only_job(driver).id, driver.now)
    assert sorted(blocker.name for blocker in why.blockers) == ["kube-system/proxy", "nameless"]
    assert "kube-system/proxy" in why.message


def test_a_resized_member_is_a_blocker_by_its_name() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    driver.feed(WorkloadSet("w", "grows", 1), named(0))
    driver.settle()
    driver.feed(MemberStatus("uid-0", Phase.RUNNING, driver.now, "node0", usage=(("cpu", 700),)))
    driver.feed(WorkloadSet("x", "waits", 1), MemberSet("x", "x-0", 0, (("cpu", 500),)))
    driver.settle()
    why = driver.scheduler.wait_reason(driver.scheduler.job_of_workload("x").id, driver.now)
    assert "more: web-0" in [blocker.name for blocker in why.blockers]


def test_a_member_of_the_next_job_keeps_its_name() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    endless(driver)
    made_again = replace(named(0), recreated=True)
    driver.feed(WorkloadSet("w", "again", 1, requeue=Requeue.ALWAYS), made_again)
    driver.settle()
    first = only_job(driver)
    driver.feed(replace(named(1, cpu=900), recreated=True))  # It finds no room, and is there afterwards.
    driver.settle()
    driver.feed(MemberStatus("uid-0", Phase.ENDED, driver.now, "node0", 1 << 8))
    driver.settle()
    following = only_job(driver)
    assert following.id != first.id
    assert [member.name for member in following.members.values()] == ["web-1"]
