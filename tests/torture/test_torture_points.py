"""Death at every named point of the real instance, its store, its driver, its agents and its supervisors.

Each test arms one point, brings somebody past it, sees that it has fired, lets what died come back, and asks
for the verdict. A point that nobody thought of fails here: everything that is registered must be in one of
the lists below, and everything that must survive must have its two points.
"""

from __future__ import annotations

import ast
import random
import typing
from pathlib import Path

import pytest

import penstock.agent
from penstock.backends.local import INTENTS
from penstock.failpoints import REGISTRY
from penstock.protocol.intents import Intent
from penstock.store.transactions import TRANSACTIONS
from tests.store.servers import Server, fresh_database
from tests.torture.cluster import Cluster, cluster, until
from tests.torture.judge import judge, wait_over
from tests.torture.rounds import POINTS, UNKNOWN_ENDS
from tests.torture.sites import Hall
from tests.torture.workload import Given, Workload, asked, base_of, cancel, submit, submit_dependents

WORKING = (
    *("store.record.before", "store.record.after", "instance.act.before", "instance.act.after"),
    *("local.place.before", "local.place.after", "agent.spec.before", "agent.spec.after"),
    *("agent.fork.after", "agent.release.before", "agent.release.after"),
    *("supervisor.start.before", "supervisor.start.after", "supervisor.command.after"),
    *("supervisor.sweep.after", "supervisor.exit.before", "supervisor.exit.after"),
)
CANCELLING = ("local.end.before", "local.end.after", "agent.end.before", "agent.end.after")
STARTING = (
    *("store.take_over.before", "store.take_over.after", "store.prune.before", "store.prune.after"),
    *("agent.epoch.before", "agent.epoch.after"),
)
BURYING = ("agent.exit.before", "agent.exit.after")
FORBIDDING = ("agent.gone.before", "agent.gone.after")
MIGRATING = ("store.migrate.before", "store.migrate.after")
# Nothing is retracted from jobs that were submitted, only from groups that a world has brought:
# tests/backends/test_local_backend.py has an instance die there.
# A cluster is claimed by instances in one: tests/store/test_store_conformance.py has these die there.
ELSEWHERE = (
    *("local.retract.before", "local.retract.after"),
    *("store.claim_cluster.before", "store.claim_cluster.after"),
)


def test_every_point_has_a_test() -> None:
    tested = (*WORKING, *CANCELLING, *STARTING, *BURYING, *FORBIDDING, *MIGRATING, *ELSEWHERE)
    assert sorted(tested) == list(POINTS)


def test_every_transaction_has_its_two_points() -> None:
    needed = {f"store.{name}.{when}" for name in TRANSACTIONS for when in ("before", "after")}
    assert needed == {name for name in REGISTRY if name.startswith("store.")}


def test_every_kind_of_intent_has_its_two_points() -> None:
    assert set(INTENTS) == set(typing.get_args(Intent))
    needed = {name for points in INTENTS.values() for name in (points.before, points.after)}
    assert needed == {name for name in REGISTRY if name.startswith("local.")}


def test_every_file_that_an_agent_or_a_supervisor_must_not_lose_has_its_two_points() -> None:
    """Whoever renames, removes or syncs something in the agent does so between the two points of a pair."""
    bare: dict[str, set[str]] = {}
    for path in Path(penstock.agent.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                calls = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
                if calls & {"os.rename", "os.replace", "os.fsync"} and "reach" not in calls:
                    bare.setdefault(path.name, set()).add(function.name)
    assert bare == {"durable.py": {"fsync_directory"}}
    files = {name.rpartition(".")[0] for name in REGISTRY if name.startswith(("agent.", "supervisor."))}
    pairs = {name for name in files if {f"{name}.before", f"{name}.after"} <= REGISTRY.keys()}
    assert files - pairs == {"agent.fork", "supervisor.command", "supervisor.sweep"}  # deeds, not files
    assert {"agent.spec", "agent.end", "agent.epoch", "agent.gone", "agent.exit"} <= pairs
    assert {"supervisor.start", "supervisor.exit"} <= pairs


def await_death(one: Cluster, point: str) -> None:
    """Until somebody has died there; an instance that did is started again."""

    def has_fired() -> bool:
        one.revive()
        return one.has_fired(point)

    until(has_fired, f"somebody comes to {point}", 20.0)
    one.disarm(point)
    one.wait_ready()


def running(one: Cluster, job: Given) -> bool:
    """Whether all its tasks have said so themselves."""
    paths = [one.ledger / f"{job.number}.{rank}" for rank in range(job.asked.ntasks)]
    return all(path.exists() and "start" in path.read_text() for path in paths)


@pytest.mark.parametrize("point", WORKING)
def test_death_in_the_middle_of_work(hall: Hall, point: str) -> None:
    with hall.borrowed() as one:
        workload = Workload()
        chance = random.Random(point)
        one.arm(point)
        given = submit(one, workload, base_of(one, chance, 6))
        submit_dependents(one, workload, chance, given)
        await_death(one, point)
        wait_over(one, workload)
        judge(one, workload, deaths=int(point in UNKNOWN_ENDS))


@pytest.mark.parametrize("point", CANCELLING)
def test_death_in_the_middle_of_a_cancellation(hall: Hall, point: str) -> None:
    with hall.borrowed() as one:
        workload = Workload()
        (job,) = submit(one, workload, [asked(one, 60, ntasks=3, results=("CANCELED",))])
        until(lambda: running(one, job), "the job runs")
        one.arm(point)
        cancel(one, job)
        await_death(one, point)
        wait_over(one, workload)
        judge(one, workload)


@pytest.mark.parametrize("point", STARTING)
def test_death_in_the_middle_of_a_restart(hall: Hall, point: str) -> None:
    with hall.borrowed() as one:
        workload = Workload()
        given = submit(one, workload, base_of(one, random.Random(point), 6))
        until(lambda: any(running(one, job) for job in given), "something runs")
        one.arm(point)
        one.kill_instance()
        await_death(one, point)
        wait_over(one, workload)
        judge(one, workload)


@pytest.mark.parametrize("point", BURYING)
def test_death_of_an_agent_that_writes_the_end_of_a_dead_supervisor(hall: Hall, point: str) -> None:
    with hall.borrowed() as one:
        workload = Workload()
        jobs = [asked(one, 0.5, ntasks=2, requeue=requeue) for requeue in ("never", "node-failure", "always")]
        given = submit(one, workload, jobs)
        until(lambda: all(running(one, job) for job in given), "all jobs run")
        one.arm(point)
        killed = one.kill_supervisor(random.Random(point))
        await_death(one, point)
        wait_over(one, workload)
        judge(one, workload, {killed})


@pytest.mark.parametrize("point", FORBIDDING)
def test_death_of_an_agent_that_writes_that_a_member_must_not_start(hall: Hall, point: str) -> None:
    """The agent dies before it has accepted a task, and while it is away the job is cancelled."""
    with hall.borrowed() as one:
        workload = Workload()
        one.arm("agent.spec.before")
        with one.no_agent("node0"):
            (job,) = submit(one, workload, [asked(one, 60, results=("CANCELED",))])
            await_death(one, "agent.spec.before")
            cancel(one, job)
            one.arm(point)
        await_death(one, point)
        wait_over(one, workload)
        judge(one, workload)
        assert not running(one, job)


@pytest.fixture(scope="session")
def server() -> typing.Iterator[Server]:
    from tests.store.servers import started_server

    with started_server() as started:
        yield started


@pytest.mark.parametrize("point", MIGRATING)
def test_death_in_the_middle_of_making_the_schema(server: Server, point: str) -> None:
    one = Cluster(nodes=1, database=fresh_database(server))
    try:
        one.arm(point)
        one.start()
        await_death(one, point)
        workload = Workload()
        submit(one, workload, [asked(one), asked(one, ntasks=2)])
        wait_over(one, workload)
        judge(one, workload)
        one.stop()
    finally:
        one.destroy()
        one.remove()


def test_a_cluster_of_its_own_leaves_nothing_behind() -> None:
    with cluster(nodes=1) as one:
        workload = Workload()
        submit(one, workload, [asked(one, 60, ntasks=2, results=("CANCELED",))])
        until(lambda: running(one, workload.jobs[0]), "the job runs")
        base = one.base
    assert not base.exists()
