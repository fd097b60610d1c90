"""Requests that the nodes can never satisfy are found in slices, once per shape, if a change can matter."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine import Engine, Never
from penstock.engine.engine import MatchOp
from penstock.engine.request import Request
from penstock.errors import BadRequest
from penstock.model.constraint import And, HostIn, Not, Value, ValueOperator
from penstock.model.exclusion_key import ExclusionKey
from penstock.model.job import JobState
from penstock.protocol.commands import Cancel
from penstock.protocol.facts import (
    Capacity,
    ExternalUsageGone,
    ExternalUsageSet,
    Fact,
    MemberSet,
    NodeGone,
    NodeSet,
    Snapshot,
    WorkloadGone,
    WorkloadSet,
)
from penstock.protocol.intents import WorkloadStatus
from penstock.sched.reasons import WaitCause
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import Settings
from tests.sched.driving import Driver, jobspec, settings_of, submission
from tests.sched.internals import check_invariants, engine_of
from tests.sched.workloads import endless, member, pods

NOW = 1000.0
GPU = Value("gpu", ValueOperator.IN, ("a100",))


def node(name: str, cpu: int = 1000, *, gpus: int = 0, zone: str = "", **labels: str) -> NodeSet:
    capacity = (Capacity("cpu", cpu, divisible=True), Capacity("pods", 10, divisible=True))
    if gpus:
        capacity = (*capacity, Capacity("gpu", gpus, divisible=True))
    levels = (("zone", zone),) if zone else ()
    return NodeSet(name, capacity, levels, tuple(sorted(labels.items())))


def scheduler_of(*facts: Fact, nodes: tuple[NodeSet, ...] = ()) -> Scheduler:
    scheduler = scheduler_from(Settings(forecast_depth=0), Recorded(), NOW)
    scheduler.handle([Snapshot(nodes=nodes), *facts], NOW)
    return scheduler


def pod(name: str, cpu: int = 100, count: int = 1, **more: object) -> list[Fact]:
    """A group of equal members."""
    within = str(more.pop("within", ""))
    distinct = bool(more.pop("distinct", False))
    requests = (("cpu", cpu), ("pods", 1))
    workload = WorkloadSet(name, name, count, within=within, distinct_nodes=distinct)
    members = [MemberSet(name, f"{name}-{index}", index, requests, **more) for index in range(count)]  # type: ignore[arg-type]
    return [workload, *members]


def slices(scheduler: Scheduler) -> Iterator[Step]:
    """Proofs in the smallest slices, each with its step."""
    while scheduler.has_unproven_requests:
        proofs = scheduler.prove(NOW, lambda: True)
        try:
            while True:
                next(proofs)
        except StopIteration as done:
            yield done.value


def prove(scheduler: Scheduler) -> list[Step]:
    return list(slices(scheduler))


def reason(scheduler: Scheduler, workload: str) -> str:
    job = scheduler.job_of_workload(workload)
    assert job is not None
    return job.unsatisfiable_reason


@pytest.fixture
def proofs(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that were proven."""
    proven: list[Request] = []
    never = Engine.never

    def count(engine: Engine, request: Request) -> str:
        proven.append(request)
        return never(engine, request)

    monkeypatch.setattr(Engine, "never", count)
    return proven


# When proofs are made


def test_no_fact_makes_a_proof(proofs: list[Request]) -> None:
    scheduler = scheduler_of(nodes=(node("a"), node("b")))
    step = scheduler.handle([*pod("huge", 5000), *pod("small")], NOW)
    scheduler.handle([node("a", 2000), NodeGone("b"), ExternalUsageSet("d", "a", (("cpu", 10),), True)], NOW)
    assert proofs == []
    assert WorkloadStatus.UNSATISFIABLE not in [update.status for update in step.status_updates]
    steps = prove(scheduler)
    assert len(proofs) == 2
    updates = [update for step in steps for update in step.status_updates]
    assert [(update.workload, update.status) for update in updates] == [
        ("huge", WorkloadStatus.UNSATISFIABLE)
    ]
    assert reason(scheduler, "huge") == "needs 5 cpu per slot, the largest node has 1990m"
    assert reason(scheduler, "small") == ""


def test_equal_requests_are_proven_once_whatever_their_limits(proofs: list[Request]) -> None:
    scheduler = scheduler_of(nodes=(node("a"),))
    for index in range(20):
        workload, *members = pod(f"w{index}", 5000)
        assert isinstance(workload, WorkloadSet)
        scheduler.handle([replace(workload, limit_s=60 + index), *members], NOW)
    prove(scheduler)
    assert len(proofs) == 1
    assert all(reason(scheduler, f"w{index}") for index in range(20))
    scheduler.handle(pod("later", 5000), NOW)
    assert reason(scheduler, "later"), "the verdict is known"
    assert len(proofs) == 1


def test_facts_and_commands_are_handled_between_two_proofs() -> None:
    scheduler = scheduler_of(nodes=(node("a"),))
    scheduler.handle([fact for index in range(10) for fact in pod(f"w{index}", 5000 + index)], NOW)
    running = slices(scheduler)
    next(running)
    (first,) = [job for job in scheduler.jobs.values() if job.unsatisfiable_reason]
    scheduler.handle([Cancel((first.id,), "enough"), WorkloadGone("w7"), node("b", 5003)], NOW)
    list(running)
    check_invariants(scheduler)
    unsatisfiable = [job.spec.name for job in scheduler.jobs.values() if job.unsatisfiable_reason]
    assert sorted(unsatisfiable) == ["w4", "w5", "w6", "w8", "w9"]


def test_an_invalid_request_is_known_at_once() -> None:
    """It must not reach a scheduling cycle, which could not match it."""
    scheduler = scheduler_of(nodes=(node("a"),))
    scheduler.handle([WorkloadSet("w", "w", 1), MemberSet("w", "w-0", 0, (("slot", 1), ("cpu", 1)))], NOW)
    assert reason(scheduler, "w").startswith("invalid request: ")
    scheduler.handle([node("b")], NOW)
    prove(scheduler)
    assert reason(scheduler, "w").startswith("invalid request: ")


@pytest.mark.parametrize(
    "change",
    [
        [ExternalUsageSet("daemon", "plain0", (("cpu", 100),), standing=True)],
        [ExternalUsageSet("other", "gpu0", (("cpu", 1000),))],
        [node("plain0", tier="other")],
        [node("plain0", 4000)],
        [node("plain2", 4000)],
        [NodeGone("plain0")],
        [replace(node("gpu0", gpus=4, gpu="a100"), up=False)],
        [node("gpu0", 500, gpus=4, gpu="a100")],
        [NodeGone("gpu0")],
        [node("gpu0", gpus=8, gpu="a100")],
    ],
    ids=str,
)
def test_a_change_that_cannot_help_an_unsatisfiable_request_costs_no_proof(
    proofs: list[Request], change: list[Fact]
) -> None:
    nodes = (node("plain0"), node("plain1"), node("gpu0", gpus=4, gpu="a100"))
    scheduler = scheduler_of(*pod("w", 2000, constraint=GPU), nodes=nodes)
    prove(scheduler)
    assert reason(scheduler, "w")
    proofs.clear()
    scheduler.handle(change, NOW)
    prove(scheduler)
    assert proofs == []
    assert reason(scheduler, "w")


@pytest.mark.parametrize(
    "change",
    [
        [node("gpu0", 2000, gpus=4, gpu="a100")],
        [node("big", gpu="a100", cpu=2000)],
        [node("large", 2000, gpu="a100")],
        [ExternalUsageGone("daemon")],
    ],
    ids=str,
)
def test_a_change_that_helps_makes_a_request_satisfiable(change: list[Fact]) -> None:
    nodes = (node("large", 2000), node("gpu0", gpus=4, gpu="a100"), node("full", 2000, gpu="a100"))
    daemon = ExternalUsageSet("daemon", "full", (("cpu", 100),), standing=True)
    scheduler = scheduler_of(daemon, *pod("w", 2000, constraint=GPU), nodes=nodes)
    prove(scheduler)
    assert reason(scheduler, "w")
    scheduler.handle(change, NOW)
    (*_, step) = prove(scheduler)
    assert reason(scheduler, "w") == ""
    assert [update.status for update in step.status_updates] == [WorkloadStatus.WAITING]
    assert scheduler.is_dirty


def test_a_daemon_that_is_replaced_costs_no_proof(proofs: list[Request]) -> None:
    daemon = ExternalUsageSet("old", "a", (("cpu", 100),), standing=True)
    scheduler = scheduler_of(daemon, *pod("w", 1000), nodes=(node("a"),))
    prove(scheduler)
    proofs.clear()
    scheduler.handle([ExternalUsageGone("old"), replace(daemon, key="new")], NOW)
    prove(scheduler)
    assert proofs == []


def test_a_job_becomes_unsatisfiable_when_its_last_suitable_node_is_gone() -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    endless(driver)
    driver.backend.nodes["node1"] = replace(driver.backend.nodes["node1"], labels=(("gpu", "a100"),))
    driver.feed(driver.backend.nodes["node1"])
    driver.feed(WorkloadSet("a", "a", 1), member("a", 0, cpu=900, constraint=GPU))
    driver.settle()
    driver.feed(WorkloadSet("b", "b", 1), member("b", 0, cpu=900, constraint=GPU))
    driver.settle()
    (waiting,) = [job for job in driver.scheduler.jobs.values() if job.state is JobState.SCHED]
    assert waiting.unsatisfiable_reason == ""
    back = driver.backend.nodes.pop("node1")
    driver.feed(NodeGone("node1"))
    driver.settle()
    found = driver.scheduler.wait_reason(waiting.id, driver.now)
    assert found.cause is WaitCause.UNSATISFIABLE
    assert found.message == (
        "it can never run here: 0 of 1 nodes match; 1 node: node selector gpu=a100 does not match"
    )
    assert driver.statuses["b"].status is WorkloadStatus.UNSATISFIABLE
    driver.backend.nodes["node1"] = back
    driver.feed(back)
    driver.settle()
    assert waiting.state is JobState.RUN


def test_a_submitted_job_waits_as_unsatisfiable_when_the_nodes_shrink() -> None:
    driver = Driver(pods(nodes=2), settings_of("easy"))
    first, second = driver.submit(
        submission(slots=2, cores=900, kind="cpu"), submission(slots=2, cores=900, kind="cpu")
    )
    driver.settle()
    del driver.backend.nodes["node1"]
    driver.feed(NodeGone("node1"))
    driver.settle()
    found = driver.scheduler.wait_reason(second, driver.now)
    assert found.cause is WaitCause.UNSATISFIABLE
    assert "fits at most 1" in found.message
    assert first not in driver.scheduler.jobs or not driver.scheduler.jobs[first].state.is_pending


def test_a_submission_is_refused_by_the_nodes_of_this_moment() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    asked = submission(cores=2000, kind="cpu", duration_s=5)
    with pytest.raises(BadRequest, match="unsatisfiable request: needs 2 cpu per slot"):
        driver.submit(asked)
    large = replace(driver.backend.nodes["node0"], capacity=(Capacity("cpu", 2000, divisible=True),))
    driver.backend.nodes["node0"] = large
    driver.feed(large)
    (job,) = driver.submit(asked)
    driver.run()
    assert driver.names(job)[-1] == "clean"
    assert jobspec(cores=2000, kind="cpu")


def test_verdicts_survive_a_restart_and_are_proven_again() -> None:
    driver = Driver(pods(nodes=1), settings_of("easy"))
    facts = [WorkloadSet("w", "huge", 1), member("w", 0, cpu=5000)]
    driver.feed(*facts)
    driver.settle()
    driver.backend.nodes["node0"] = node("node0", 6000)
    again = Driver(driver.backend, driver.settings, store=driver.store)
    endless(again)
    again.feed(*facts)
    again.settle()
    (job,) = again.scheduler.jobs.values()
    assert job.unsatisfiable_reason == ""
    assert job.state is JobState.RUN


# Against a proof of everything


KEYS = (ExclusionKey("node", "host port 80/TCP"), ExclusionKey("zone", "anti-affinity with app=db"))
TIERS = ("gold", "silver")


class _World:
    """Random nodes, standing usage and workloads, with changes of all of them."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: dict[str, NodeSet] = {}
        self.usage: dict[str, ExternalUsageSet] = {}
        self.made = itertools.count()
        first = tuple(self.node(f"n{index}") for index in range(rng.randint(0, 5)))
        self.scheduler = scheduler_of(nodes=first)

    def node(self, name: str) -> NodeSet:
        rng = self.rng
        labels = {"tier": rng.choice(TIERS)} if rng.random() < 0.7 else {}
        made = node(
            name,
            rng.choice((500, 1000, 2000)),
            gpus=rng.choice((0, 0, 2)),
            zone=rng.choice(("", "x", "y")),
            **labels,
        )
        self.nodes[name] = made
        return made

    def change(self) -> list[Fact]:
        rng = self.rng
        name = f"n{rng.randrange(6)}"
        match rng.randrange(7):
            case 0 | 1:
                return [self.node(name)]
            case 2:
                self.nodes.pop(name, None)
                return [NodeGone(name)]
            case 3 | 4:
                brings = tuple(sorted(rng.sample(KEYS, rng.randint(0, 2))))
                key = f"u{rng.randrange(4)}"
                usage = (("cpu", rng.choice((100, 600))),)
                return [ExternalUsageSet(key, name, usage, rng.random() < 0.8, brings=brings)]
            case 5:
                return [ExternalUsageGone(f"u{rng.randrange(4)}")]
            case _:
                return self.workload()

    def workload(self) -> list[Fact]:
        rng = self.rng
        name = f"w{next(self.made)}"
        constraint = rng.choice(
            (
                None,
                Value("tier", ValueOperator.IN, ("gold",)),
                And((Value("tier", ValueOperator.NOT_IN, ("gold",)), Not((HostIn(frozenset({"n1"})),)))),
            )
        )
        keys = tuple(sorted(rng.sample(KEYS, rng.randint(0, 2)))) if rng.random() < 0.4 else ()
        resource = rng.choice(("cpu", "cpu", "gpu"))
        facts: list[Fact] = [
            WorkloadSet(name, name, 1, within=rng.choice(("", "", "zone")), distinct_nodes=rng.random() < 0.3)
        ]
        count = 0
        for group in range(rng.choice((1, 1, 2))):
            units = rng.choice((400, 1000, 1500)) if resource == "cpu" else 1
            for _ in range(rng.randint(1, 4)):
                requests = ((resource, units), ("pods", 1 + group))
                facts.append(
                    MemberSet(
                        name,
                        f"{name}-{count}",
                        count,
                        requests,
                        constraint,
                        brings=keys if rng.random() < 0.7 else (),
                        forbids=keys,
                    )
                )
                count += 1
        assert isinstance(facts[0], WorkloadSet)
        facts[0] = replace(facts[0], size=count)
        return facts

    def check(self) -> None:
        scheduler = self.scheduler
        check_invariants(scheduler)
        engine = engine_of(scheduler)
        for job in scheduler.jobs.values():
            answer = engine.match(0, job.spec.request, 0, MatchOp.SATISFIABILITY)
            assert bool(job.unsatisfiable_reason) is isinstance(answer, Never), job.spec.request


@given(st.integers(0, 1 << 32))
def test_the_verdicts_are_those_of_proofs_from_scratch(seed: int) -> None:
    world = _World(random.Random(seed))
    for _ in range(30):
        for fact in world.change():
            world.scheduler.handle([fact], NOW)
        for _ in range(world.rng.randint(0, 3)):
            next(slices(world.scheduler), None)
        if world.rng.random() < 0.5:
            prove(world.scheduler)
            world.check()
    prove(world.scheduler)
    world.check()


@given(st.integers(0, 1 << 32))
def test_a_proof_names_the_clause_of_the_engine(seed: int) -> None:
    """The quick proof gives the same answer, in the same words, as a match."""
    world = _World(random.Random(seed))
    for _ in range(12):
        world.scheduler.handle(world.change(), NOW)
    engine = engine_of(world.scheduler)
    for job in world.scheduler.jobs.values():
        answer = engine.match(0, job.spec.request, 0, MatchOp.SATISFIABILITY)
        assert engine.never(job.spec.request) == (str(answer.reason) if isinstance(answer, Never) else "")
