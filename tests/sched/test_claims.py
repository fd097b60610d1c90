"""Claims: a job that would starve behind work without an end collects nodes, and keeps them over restarts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import Cancel, Drain, QueueChange, SetUrgency
from penstock.protocol.facts import ExternalUsageSet, MemberGone, NodeGone, NodeSet
from penstock.sched.reasons import WaitCause
from penstock.sched.records import ClaimSet
from penstock.sched.settings import QueueSettings, parse_backfill
from tests.sched.driving import Driver, nodes_of, settings_of, submission
from tests.sched.pod_driver import Pods
from tests.sched.workloads import member

BACKFILLING = ("easy", "hybrid:3", "conservative")


@pytest.mark.parametrize("policy", BACKFILLING)
def test_a_gang_starts_although_pods_without_an_end_keep_coming(policy: str) -> None:
    driver = Pods(4, policy)
    old = driver.fill()
    job = driver.gang()
    driver.run_until(600)
    assert driver.claimed(job) == ("node0", "node1")
    overtakers = []
    for number, name in enumerate(old):
        driver.run_until(700 + 10 * number)
        overtakers.append(driver.pod(f"new{number}"))
        driver.end(name)
        if driver.started(job):
            break
    assert driver.starts[job] == 730  # The last pod of the two claimed nodes has ended.
    assert driver.started(*overtakers) == []
    assert driver.nodes_of(job) == {"node0", "node1"}
    assert list(driver.scheduler.claims()) == []


@pytest.mark.parametrize("policy", BACKFILLING)
def test_without_claims_every_later_pod_would_overtake(policy: str) -> None:
    driver = Pods(4, policy, starvation_after_s=1e9)
    old = driver.fill()
    job = driver.gang()
    for number, name in enumerate(old):
        driver.run_until(700 + 10 * number)
        later = driver.pod(f"new{number}")
        driver.end(name)
        assert driver.started(later)
    assert job not in driver.starts


def test_only_what_is_enforced_and_short_uses_claimed_nodes() -> None:
    driver = Pods(2)
    for number in range(3):
        driver.pod(f"old{number}")
    driver.settle()
    job = driver.gang("gang", 1)
    driver.run_until(600)
    assert driver.claimed(job) == ("node1",)
    refused = [
        driver.pod("endless"),
        driver.pod("long", limit_s=601),
        driver.pod("planned", limit_s=60, is_limit_enforced=False),
    ]
    assert driver.started(job, *refused) == []
    short = driver.pod("short", limit_s=600)
    assert driver.started(short)
    assert driver.nodes_of(short) == {"node1"}


def test_reasons_tell_about_claims() -> None:
    driver = Pods(2)
    old = [driver.pod(f"old{number}") for number in range(2)]
    driver.pod("other", owner="elsewhere")
    driver.settle()
    job = driver.gang()
    driver.run_until(660)
    why = driver.scheduler.wait_reason(job, driver.now).message
    names = " and ".join(encode_jobid(number) for number in old)
    assert why.endswith(
        f"; it has claimed 2 nodes for 1m, where {names} and 1 other job run without a known end"
    )
    assert driver.statuses["gang"].reason.endswith("run without a known end")
    driver.end("other")
    mine = driver.pod("mine")
    driver.pod("foreign", owner="elsewhere")
    driver.settle()
    allowed = "only jobs with an enforced limit of at most 10m start there"
    reason = driver.scheduler.wait_reason(mine, driver.now)
    named = f"what is free is on nodes claimed by {encode_jobid(job)} (ns/gang), ahead of it; {allowed}"
    assert (reason.cause, reason.message) == (WaitCause.CLAIMED, named)
    assert driver.statuses["mine"].reason == named
    counted = f"what is free is on nodes claimed by 1 job in another namespace, ahead of it; {allowed}"
    assert driver.statuses["foreign"].reason == counted
    driver.end("old0", "old1")
    assert driver.started(job)


def test_submitted_jobs_have_enforced_limits() -> None:
    driver = Driver(nodes_of(2, 2), settings_of(), runs_s=lambda _job: 1e9)
    driver.submit(*(submission(duration_s=0) for _ in range(3)))
    driver.settle()
    (job,) = driver.submit(submission(nodes=1, cores=2, duration_s=0))
    driver.run_until(600)
    assert [claim.nodes for claim in driver.scheduler.claims()] == [("node1",)]
    long, short = driver.submit(submission(duration_s=601), submission(duration_s=600))
    driver.settle()
    assert {job, long, short} & driver.starts.keys() == {short}


def test_jobs_before_the_claim_in_the_order_are_not_affected() -> None:
    driver = Pods(2)
    for number in range(3):
        driver.pod(f"old{number}")
    job = driver.gang()
    driver.run_until(600)
    assert driver.claimed(job) == ("node0", "node1")
    urgent = driver.pod("urgent", class_value=10)
    usual = driver.pod("usual")
    assert driver.started(urgent, usual) == [urgent]


def test_a_job_with_a_start_time_claims_nothing() -> None:
    driver = Pods(2)
    driver.pod("a", cpu=1000, limit_s=7200)
    driver.pod("b", cpu=1000, limit_s=9000)
    first, second = driver.gang("first"), driver.gang("second")
    driver.run_until(3600)
    assert list(driver.scheduler.claims()) == []
    assert first in driver.scheduler.reservations()
    assert second not in driver.scheduler.reservations()


def test_nodes_closest_to_being_free_are_claimed() -> None:
    driver = Pods(4)
    driver.pod("on0", cpu=1000)
    driver.pod("on1", cpu=600)
    driver.pod("on2", cpu=1000, limit_s=90_000)
    driver.pod("on3", cpu=700)
    driver.settle()
    job = driver.gang()
    driver.run_until(600)
    assert driver.claimed(job) == ("node1", "node2")


def test_a_claim_becomes_a_reservation_when_every_end_on_its_nodes_is_known() -> None:
    driver = Pods(4, "easy")
    driver.pod("on0", cpu=1000)
    driver.pod("on1", cpu=1000, limit_s=90_000)
    driver.pod("on2", cpu=1000)
    driver.pod("on3", cpu=1000)
    driver.settle()
    head = driver.pod("head", cpu=1000, limit_s=10)  # It gets the one reservation of its queue.
    job = driver.gang()
    driver.run_until(600)
    assert driver.claimed(job) == ("node0", "node1")
    assert set(driver.scheduler.reservations()) == {head}
    driver.end("on0")
    assert driver.started(head)
    driver.end("head")
    assert driver.scheduler.reservations() == {job: 90_000.0}
    assert driver.claim(job) == ClaimSet(job, ("node0", "node1"), 600.0)
    until_then = driver.pod("until-then", cpu=1000, limit_s=80_000)
    too_long = driver.pod("too-long", cpu=1000, limit_s=100_000)
    assert driver.started(until_then, too_long) == [until_then]
    driver.run_until(80_000)
    driver.end("until-then")
    driver.run_until(90_000)
    driver.end("on1")
    assert driver.starts[job] == 90_000


def test_a_reservation_that_turns_impossible_falls_back_to_the_claim() -> None:
    driver = Pods(2)
    driver.pod("on0", cpu=1000)
    driver.pod("on1", cpu=1000, limit_s=90_000)
    driver.settle()
    job = driver.gang()
    driver.run_until(600)
    driver.end("on0")
    driver.settle()
    assert job in driver.scheduler.reservations()
    urgent = driver.pod("urgent", class_value=10)
    driver.settle()
    assert urgent in driver.starts
    assert driver.scheduler.reservations() == {}
    assert driver.claim(job) == ClaimSet(job, ("node0", "node1"), 600.0)


def test_a_claim_survives_a_restart() -> None:
    driver = Pods(4)
    old = driver.fill()
    job = driver.gang()
    driver.run_until(600)
    before = driver.claim(job)
    assert before == ClaimSet(job, ("node0", "node1"), 600.0)
    driver.restart()
    assert driver.claim(job) == before
    driver.settle()
    assert driver.claim(job) == before
    late = driver.pod("late")
    driver.end(*old[:3])
    assert driver.started(job, late) == []
    driver.restart()
    driver.end(old[3])
    assert driver.started(job, late) == [job]


def test_waiting_time_counts_over_restarts() -> None:
    driver = Pods(4)
    driver.fill()
    job = driver.gang()
    driver.run_until(400)
    driver.restart()
    driver.run_until(599)
    assert driver.claimed(job) == ()
    driver.run_until(600)
    assert driver.claimed(job) == ("node0", "node1")


def test_usage_of_others_moves_a_claim() -> None:
    driver = Pods(6)
    driver.fill(6)
    job = driver.gang()
    driver.run_until(600)
    assert driver.claimed(job) == ("node0", "node1")
    driver.feed(ExternalUsageSet("other", "node5", (("cpu", 100),)))
    driver.settle()
    assert driver.claimed(job) == ("node0", "node1")
    driver.feed(ExternalUsageSet("other", "node1", (("cpu", 100),)))
    driver.settle()
    assert driver.claim(job) == ClaimSet(job, ("node0", "node2"), 600.0)


def test_a_claim_moves_if_a_node_is_drained_down_removed_or_relabelled() -> None:
    driver = Pods(8)
    driver.fill(8)
    job = driver.gang()
    driver.run_until(600)
    assert driver.claimed(job) == ("node0", "node1")
    driver.feed(Drain(("node0",), "fan", "ada"))
    driver.settle()
    assert driver.claimed(job) == ("node1", "node2")
    driver.feed(replace(driver.backend.nodes["node1"], up=False))
    driver.settle()
    assert driver.claimed(job) == ("node2", "node3")
    driver.feed(NodeGone("node3"))
    driver.settle()
    assert driver.claimed(job) == ("node2", "node4")
    driver.feed(replace(driver.backend.nodes["node4"], capacity=()))
    driver.settle()
    assert driver.claimed(job) == ("node2", "node5")


def test_claims_cover_at_most_half_of_the_nodes() -> None:
    driver = Pods(6)
    driver.fill(6)
    jobs = [driver.gang(f"gang{number}", owner=f"ns{number}") for number in range(2)]
    driver.run_until(600)
    assert [driver.claimed(job) for job in jobs] == [("node0", "node1"), ()]
    for name in ("node6", "node7"):
        driver.backend.nodes[name] = NodeSet(name, driver.backend.nodes["node0"].capacity)
        driver.feed(driver.backend.nodes[name])
        driver.pod(f"on {name}", 1000, class_value=1)
    driver.run_until(700)
    assert [driver.claimed(job) for job in jobs] == [("node0", "node1"), ("node2", "node3")]


def test_a_job_that_needs_more_than_half_claims_alone() -> None:
    driver = Pods(4)
    driver.fill()
    small = driver.gang("small", 1, owner="a")
    large = driver.gang("large", 3, owner="b")
    tiny = driver.gang("tiny", 1, 999, owner="c")
    driver.run_until(600)
    assert [driver.claimed(job) for job in (small, large, tiny)] == [("node0",), (), ()]
    driver.feed(Cancel((small,)))
    driver.settle()
    assert [driver.claimed(job) for job in (large, tiny)] == [("node0", "node1", "node2"), ()]


def test_the_number_of_claims_is_bounded() -> None:
    driver = Pods(70, forecast_depth=0)
    for number in range(70):
        driver.pod(f"old{number}", 1000)
    driver.settle()
    jobs = [driver.gang(f"gang{number}", 1, owner=f"ns{number}") for number in range(34)]
    driver.run_until(700)
    assert sum(bool(driver.claimed(job)) for job in jobs) == 32
    driver.feed(Cancel((jobs[0],)))
    driver.settle()
    assert [driver.claimed(job) != () for job in jobs[1:]] == [True] * 32 + [False]


def test_a_queue_has_one_claim_per_owner() -> None:
    queues = tuple(QueueSettings(name, parse_backfill("easy")) for name in ("default", "batch"))
    driver = Pods(12, "", queues=queues)
    driver.fill(12)
    jobs = [
        driver.gang(f"gang{number}", 1, 1000 - number, owner=owner, queue=queue)
        for number, (owner, queue) in enumerate(
            [("a", "default"), ("a", "default"), ("b", "default"), ("a", "batch")]
        )
    ]
    driver.run_until(600)
    assert [driver.claimed(job) for job in jobs] == [("node0",), (), ("node1",), ("node2",)]
    driver.feed(Cancel((jobs[0],)))
    driver.settle()
    assert driver.claimed(jobs[1]) == ("node0",)


@pytest.mark.parametrize("how", ["cancel", "hold", "stop", "delete", "unsatisfiable"])
def test_a_claim_ends_when_its_job_is_not_eligible(how: str) -> None:
    driver = Pods(2)
    driver.fill(2)
    job = driver.gang()
    driver.run_until(600)
    assert driver.claimed(job) == ("node0", "node1")
    match how:
        case "cancel":
            driver.feed(Cancel((job,)))
        case "hold":
            driver.feed(SetUrgency(job, 0))
        case "stop":
            driver.feed(QueueChange("default", started=False, reason="night"))
        case "delete":
            driver.feed(MemberGone("gang-0"))
        case _:
            driver.feed(NodeGone("node0"))
            driver.settle()
    assert list(driver.scheduler.claims()) == []
    driver.settle()
    assert list(driver.scheduler.claims()) == []


def test_the_wait_begins_again_with_a_release_or_a_start_of_the_queue() -> None:
    driver = Pods(2)
    driver.fill(2)
    job = driver.gang()
    driver.run_until(500)
    driver.feed(SetUrgency(job, 0))
    driver.run_until(1000)
    driver.feed(SetUrgency(job, 16))
    driver.run_until(1599)
    assert driver.claimed(job) == ()
    driver.run_until(1600)
    assert driver.claimed(job) == ("node0", "node1")
    driver.feed(QueueChange("default", started=False))
    driver.run_until(2000)
    driver.feed(QueueChange("default", started=True))
    driver.run_until(2599)
    assert driver.claimed(job) == ()
    driver.run_until(2600)
    assert driver.claimed(job) == ("node0", "node1")


def test_a_strict_queue_makes_no_claims() -> None:
    driver = Pods(2, "fcfs")
    driver.fill(2)
    driver.gang()
    driver.run_until(2000)
    assert list(driver.scheduler.claims()) == []


def test_a_late_member_does_not_use_nodes_that_a_job_before_it_claims() -> None:
    driver = Pods(2)
    grows = driver.pod("grows")
    driver.settle()
    driver.pod("old", 1000)
    driver.settle()
    job = driver.gang("gang", 1)
    driver.run_until(600)
    assert driver.claimed(job) == ("node0",)
    driver.feed(member("grows", 1, 500))
    driver.run_until(700)
    assert driver.scheduler.jobs[grows].members["grows-1"].node == ""


def test_a_claim_is_in_one_domain() -> None:
    driver = Pods(6)
    for number in range(6):
        node = replace(driver.backend.nodes[f"node{number}"], topology_levels=(("rack", str(number % 3)),))
        driver.backend.nodes[node.node] = node
        driver.feed(node)
    for number, cpu in enumerate((500, 600, 1000, 900, 700, 500)):  # in the order of the nodes
        driver.pod(f"on{number}", cpu)
        driver.settle()
    job = driver.gang(within="rack")
    driver.run_until(600)
    assert driver.claimed(job) == ("node1", "node4")
