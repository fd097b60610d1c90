"""A copy of a scheduler: decides as the original would, and changes nothing of it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from penstock.backends.sim.backend import MemberScript, SimBackend, uniform_nodes
from penstock.instance.steps import advance_once
from penstock.protocol.commands import Cancel, Command, Drain, SetUrgency, Submit, Undrain
from penstock.protocol.facts import (
    Capacity,
    ExternalUsageGone,
    ExternalUsageSet,
    Fact,
    MemberGone,
    MemberSet,
    MemberStatus,
    NodeGone,
    Phase,
    WorkloadGone,
    WorkloadSet,
)
from penstock.sched.commands import CanNeverRun
from penstock.sched.dependencies import JobProgress
from penstock.sched.queue import Bucket, QueueEntry, order_key
from penstock.sched.records import QueueSet
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.state import SlipCause
from tests.sched.driving import Driver, settings_of, submission
from tests.sched.internals import check_invariants, corruptible_state
from tests.sched.object_graphs import digest, shared_mutables

NODES = ("node0", "node1", "node2")
Event = tuple[str, int, int]
ENGINE = ("cluster", "_cluster", "_engine")  # its copy shares values that are replaced and never modified

events = st.lists(
    st.tuples(
        st.sampled_from(
            ["job"] * 4
            + ["gang"] * 4
            + ["wait"] * 4
            + ["chain", "begin", "cancel", "urgency", "drain", "undrain", "usage", "usage-gone"]
            + ["node-gone", "node-back", "member-gone", "workload-gone", "lost", "more"]
        ),
        st.integers(0, 5),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=14,
)


def backend() -> SimBackend:
    capacity = [Capacity("cpu", 1000, divisible=True), Capacity("core", 2)]
    made = SimBackend({node.node: node for node in uniform_nodes(len(NODES), capacity)})
    made.applies_immediately = False  # External usage may appear on a full node.
    made.script_for = lambda place, assignment: MemberScript(
        runs_s=5.0 + (place.job + assignment.index) % 7 * 4, place_delay_s=(place.job % 3) * 1.0
    )
    return made


def inputs_of(driver: Driver, event: Event) -> list[Fact | Command]:
    """What happens next, in the state in which the driver is."""
    kind, which, size = event
    jobs = list(driver.scheduler.jobs)
    job = jobs[which % len(jobs)] if jobs else 0
    node, sim = NODES[which % len(NODES)], driver.backend
    workload = f"w{which}"
    limit_s = 10 + 5 * which
    match kind:
        case "job":
            return [Submit((submission(nodes=size, cores=1, duration_s=limit_s),))]
        case "chain":
            return [Submit((submission(slots=size, duration_s=limit_s, dependencies=_after(job)),))]
        case "begin":
            return [Submit((submission(dependencies=[{"scheme": "begin-time", "value": "20"}]),))]
        case "gang" | "more":
            numbers = range(size) if kind == "gang" else range(size, size + 2)
            members = [MemberSet(workload, f"{workload}-{n}", n, (("cpu", 400),)) for n in numbers]
            return [WorkloadSet(workload, workload, size), *members]
        case "cancel" | "urgency" if job:
            return [Cancel((job,), "enough") if kind == "cancel" else SetUrgency(job, 10 + which)]
        case "drain" | "undrain":
            return [Drain((node,), "repair") if kind == "drain" else Undrain((node,))]
        case "usage":
            return [ExternalUsageSet(f"other{which}", node, (("cpu", 300),))]
        case "usage-gone":
            return [ExternalUsageGone(f"other{which}")]
        case "node-gone" if node in sim.nodes:
            return [sim.remove_node(node)]
        case "node-back" if node not in sim.nodes:
            (found,) = (one for one in backend().nodes.values() if one.node == node)
            sim.nodes[node] = found
            return [found]
        case "member-gone" | "workload-gone":
            return [MemberGone(f"{workload}-0") if kind == "member-gone" else WorkloadGone(workload)]
        case "lost":
            lost = [key for key, run in sim.runs.items() if run.phase is Phase.RUNNING][which : which + 1]
            return [MemberStatus(key, Phase.LOST, driver.now, sim.runs[key].assignment.node) for key in lost]
    return []


def _after(job: int) -> list[dict[str, str]]:
    return [{"scheme": "afterany", "value": str(job)}] if job else []


def play(driver: Driver, story: Sequence[Event]) -> None:
    for event in story:
        if event[0] == "wait":
            driver.run_until(driver.now + event[1] * event[2])
        else:
            driver.feed(*inputs_of(driver, event))
            if event[1] % 2:
                driver.settle()


def run_cycle(cycle: Generator[None, None, Step]) -> Step:
    while (step := advance_once(cycle)) is None:
        pass
    return step


@given(before=events, after=events, policy=st.sampled_from(["fcfs", "easy", "conservative"]))
def test_a_copy_decides_as_the_original_does(before: list[Event], after: list[Event], policy: str) -> None:
    driver = Driver(backend(), settings_of(policy))
    play(driver, before)
    copied = driver.scheduler.copy()
    assert shared_mutables(driver.scheduler, copied, ENGINE) == []
    assert digest(copied, ENGINE) == digest(driver.scheduler, ENGINE)
    decisions: list[Step] = []
    handle, plan, prove = Scheduler.handle, Scheduler.plan, Scheduler.prove

    def both_handle(scheduler: Scheduler, inputs: Sequence[Fact | Command], now: float) -> Step:
        decisions.append(handle(copied, inputs, now))
        return handle(scheduler, inputs, now)

    def both_plan(
        scheduler: Scheduler, now: float, *, deep: bool, hurry: Callable[[], bool]
    ) -> Generator[None, None, Step]:
        decisions.append(run_cycle(plan(copied, now, deep=deep)))
        return plan(scheduler, now, deep=deep, hurry=hurry)

    def both_prove(
        scheduler: Scheduler, now: float, enough: Callable[[], bool]
    ) -> Generator[None, None, Step]:
        decisions.append(run_cycle(prove(copied, now)))
        return prove(scheduler, now, enough)

    made = len(driver.steps)
    with (
        patch.object(Scheduler, "handle", both_handle),
        patch.object(Scheduler, "plan", both_plan),
        patch.object(Scheduler, "prove", both_prove),
    ):
        play(driver, after)
        driver.run_until(driver.now + 100)
    assert [comparable(step) for step in decisions] == [comparable(step) for step in driver.steps[made:]]
    check_invariants(copied)


def comparable(step: Step) -> tuple[object, ...]:
    replies = [(reply.value, str(reply.error)) for reply in step.replies]
    return (step.changes, step.intents, step.probes, step.status_updates, step.forgotten, replies)


@given(before=events, after=events)
def test_nothing_that_is_done_to_a_copy_changes_the_original(before: list[Event], after: list[Event]) -> None:
    driver = Driver(backend())
    play(driver, before)
    was, tables = digest(driver.scheduler), digest(driver.store.tables)
    copied = driver.scheduler.copy()
    now = driver.now
    for event in after:
        now += event[1]
        inputs = inputs_of(driver, event) if not event[0].startswith("node-") else [NodeGone("node0")]
        copied.handle(inputs, now)
        run_cycle(copied.plan(now, deep=bool(event[2] % 2)))
    copied.handle([Cancel(tuple(copied.jobs), "all")], now)
    copied.handle([NodeGone(node) for node in NODES], now + 1000)
    (refused,) = copied.handle([Submit((submission(nodes=1),))], now + 1000).replies
    assert isinstance(refused.error, CanNeverRun)
    assert digest(driver.scheduler) == was
    assert digest(driver.store.tables) == tables


def test_a_copy_of_a_copy_is_equal() -> None:
    driver = Driver(backend())
    story = [("job", 1, 2), ("gang", 2, 3), ("chain", 1, 1), ("drain", 1, 1), ("wait", 3, 2), ("gang", 3, 2)]
    play(driver, story)
    first = driver.scheduler.copy()
    assert digest(first, ENGINE) == digest(first.copy(), ENGINE)


def test_every_part_is_copied() -> None:
    """Also what is empty in most states, or between two steps."""
    driver = Driver(backend())
    jobs = driver.submit(*(submission(nodes=3, duration_s=60) for _ in range(4)))
    driver.settle()
    scheduler = driver.scheduler.copy()
    state = corruptible_state(scheduler)
    state.queue.remember_submission("key", jobs)
    state.queue.set_state(QueueSet("default", enabled=True, started=False), 0.0)
    state.dependencies.add_finished(7, JobProgress(True, True, True, True, False))
    state.dependencies.add(jobs[0], 7)
    state.dependencies.add_singleton("me", "one")
    state.satisfiability.forget(jobs[1])
    state.cluster.remove_node("node1")
    state.satisfiability.advance()
    state.cluster.remove_node("node0")
    state.worklist.advance(jobs[0])
    state.worklist.release_slots(jobs[0], [0])
    state.intents.resend_all()
    state.members.add_refusal("node0", jobs[0], "m")
    state.plans.slip_cause = SlipCause("node0 was drained")
    copied = scheduler.copy()
    assert digest(copied, ENGINE) == digest(scheduler, ENGINE)
    assert shared_mutables(copied, scheduler, ENGINE) == []


def test_a_bucket_is_copied_without_the_entries_that_have_left() -> None:
    bucket = Bucket("default", 0, is_late=False)
    entries = [QueueEntry(order_key(16, 0, 0.0, job), job) for job in range(4)]
    for entry in entries:
        bucket.add(entry)
    bucket.remove(entries[0])
    copied = bucket.copy()
    copied.remove(entries[1])
    assert list(bucket.entries()) == entries[1:]
    assert list(copied.entries()) == entries[2:]
