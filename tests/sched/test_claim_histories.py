"""Random histories with claims: only what the rule allows starts on claimed nodes, and every gang starts."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.job import JobState
from penstock.protocol.commands import Cancel, Drain, SetUrgency, Undrain
from penstock.protocol.facts import ExternalUsageGone, ExternalUsageSet
from penstock.sched.job import Job
from penstock.sched.queue import OrderKey, order_key
from penstock.sched.records import AllocationNew, ClaimSet
from penstock.sched.scheduler import Scheduler, Step
from tests.sched.pod_driver import Pods

NODES = 5
SHORT_S = 600


def order_of(job: Job) -> OrderKey:
    return order_key(job.urgency, job.class_value, job.seen_at, job.id)


def is_short(job: Job) -> bool:
    limit_s = job.spec.limit_s
    return limit_s is not None and limit_s <= SHORT_S and job.spec.is_limit_enforced


class CheckedPods(Pods):
    """Checks after every step that claims are observed, and remembers whether there were any."""

    claims_seen: int = 0

    def _note_step(self, scheduler: Scheduler, step: Step) -> None:
        super()._note_step(scheduler, step)
        claims = scheduler.claims()
        reserved = scheduler.reservations()
        in_force = [claim for claim in claims if claim.job not in reserved]
        begun = {change.job for change in step.changes if isinstance(change, AllocationNew)}
        for claim in in_force:
            holder = scheduler.jobs[claim.job]
            for number in begun & scheduler.jobs.keys():
                job = scheduler.jobs[number]
                if order_of(job) > order_of(holder) and not is_short(job):
                    nodes = set(scheduler.assignments(number).values())
                    assert nodes.isdisjoint(claim.nodes), (job.spec.name, claim)
        made = [change for change in step.changes if isinstance(change, ClaimSet)]
        self.claims_seen += len(made)
        if made and len(claims) > 1:
            up = sum(node.vertex.up for node in scheduler.nodes.values())
            assert sum(len(claim.nodes) for claim in claims) <= up // 2


limits = st.sampled_from(
    [{}, {}, {}, {"limit_s": 300}, {"limit_s": 5000}, {"limit_s": 300, "is_limit_enforced": False}]
)
owners = st.sampled_from(["a", "b"])
events = st.one_of(
    st.tuples(st.just("pod"), st.sampled_from([300, 500, 1000]), limits, owners),
    st.tuples(st.just("pod"), st.just(500), st.just({}), owners),
    st.tuples(st.just("gang"), st.integers(2, 4), st.sampled_from([600, 1000]), owners),
    st.tuples(st.just("end"), st.integers(0, 30)),
    st.tuples(st.just("end"), st.integers(0, 30)),
    st.tuples(st.just("usage"), st.integers(0, NODES - 1), st.sampled_from([0, 100, 700])),
    st.tuples(st.just("drain"), st.integers(0, NODES - 1)),
    st.tuples(st.just("urgency"), st.integers(0, 30), st.sampled_from([0, 10, 20])),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("pass"), st.sampled_from([30, 400, 700])),
)
policies = st.sampled_from(["easy", "hybrid:2", "conservative"])


def apply(driver: CheckedPods, number: int, event: tuple[object, ...]) -> None:
    names = list(driver.backend.workloads)
    match event:
        case ("pod", int(cpu), dict(limit), owner):
            driver.pod(f"pod{number}", cpu, owner=owner, **limit)
        case ("gang", int(size), int(cpu), owner):
            driver.gang(f"gang{number}", size, cpu, owner=owner)
        case ("end", int(which)):
            pods = [name for name in names if name.startswith("pod")]
            if pods:
                driver.end(pods[which % len(pods)])
        case ("usage", int(node), int(cpu)):
            key = f"usage{node}"
            driver.backend.external_usage.pop(key, None)
            if cpu:
                driver.backend.external_usage[key] = ExternalUsageSet(key, f"node{node}", (("cpu", cpu),))
            driver.feed(driver.backend.external_usage.get(key, ExternalUsageGone(key)))
        case ("drain", int(node)):
            name = f"node{node}"
            is_drained = driver.scheduler.nodes[name].is_drained
            driver.feed(Undrain((name,)) if is_drained else Drain((name,), "r", "ada"))
        case ("urgency", int(which), int(urgency)):
            jobs = [job.id for job in driver.scheduler.jobs.values() if job.state is JobState.SCHED]
            if jobs:
                driver.feed(SetUrgency(jobs[which % len(jobs)], urgency))
        case ("cancel", int(which)):
            jobs = [job.id for job in driver.scheduler.jobs.values() if job.state is JobState.SCHED]
            if jobs:
                driver.feed(Cancel((jobs[which % len(jobs)],)))
        case ("restart",):
            driver.restart()
        case ("pass", int(seconds)):
            driver.run_until(driver.now + seconds)
    driver.settle()


def begun(policy: str) -> CheckedPods:
    """Endless pods on every node, and a gang that claims three of five nodes."""
    driver = CheckedPods(NODES, policy)
    for number in range(2 * NODES):
        driver.pod(f"pod-first{number}", owner="a")
    driver.settle()
    driver.gang("gang-first", 3, owner="a")
    driver.run_until(700)
    assert driver.claims_seen == 1
    return driver


@settings(max_examples=30, deadline=None)
@given(policy=policies, history=st.lists(events, min_size=10, max_size=22))
def test_claims_are_observed_in_every_history(policy: str, history: list[tuple[object, ...]]) -> None:
    driver = begun(policy)
    for number, event in enumerate(history):
        apply(driver, number, event)
    for number in range(NODES):
        apply(driver, number, ("usage", number, 0))
        if driver.scheduler.nodes[f"node{number}"].is_drained:
            apply(driver, number, ("drain", number))
    while running := [job.workload for job in driver.scheduler.jobs.values() if job.state is JobState.RUN]:
        driver.end(*running)
        driver.run_until(driver.now + 61)
    assert [job.spec.name for job in driver.scheduler.jobs.values() if job.urgency] == []
