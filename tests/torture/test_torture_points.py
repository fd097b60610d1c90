"""Kills at every failpoint of the real instance: store, backend, agents and supervisors.

Each test arms one point, makes a process reach it, checks that it fired, lets the killed process restart, and
verifies the invariants. Every registered point must be in one of the lists below, and every durable change
must have its two points, so a point without a test fails here.
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
from penstock.protocol.intents import Evict, Intent
from penstock.store.transactions import TRANSACTIONS
from tests.store.servers import Server, fresh_database
from tests.torture.cluster import Cluster, cluster, until
from tests.torture.cluster_pool import ClusterPool
from tests.torture.rounds import POINTS, UNKNOWN_ENDS
from tests.torture.verify import verify, wait_inactive
from tests.torture.workload import (
    SubmittedJob,
    Workload,
    cancel,
    job_request,
    mixed_jobs,
    submit,
    submit_dependents,
)

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
DEAD_SUPERVISOR = ("agent.exit.before", "agent.exit.after")
TOMBSTONE = ("agent.gone.before", "agent.gone.after")
MIGRATING = ("store.migrate.before", "store.migrate.after")
# Only instances in a cluster claim one: tests/store/test_store_conformance.py covers it.
OTHER_SUITES = (*("store.claim_cluster.before", "store.claim_cluster.after"),)


def test_every_failpoint_has_a_test() -> None:
    tested = (*WORKING, *CANCELLING, *STARTING, *DEAD_SUPERVISOR, *TOMBSTONE, *MIGRATING, *OTHER_SUITES)
    assert sorted(tested) == list(POINTS)


def test_every_transaction_has_two_failpoints() -> None:
    needed = {f"store.{name}.{when}" for name in TRANSACTIONS for when in ("before", "after")}
    assert needed == {name for name in REGISTRY if name.startswith("store.")}


def test_every_intent_type_with_an_effect_has_two_failpoints() -> None:
    assert set(INTENTS) == set(typing.get_args(Intent)) - {Evict}  # The local backend refuses an eviction.
    needed = {name for points in INTENTS.values() for name in (points.before, points.after)}
    assert needed == {name for name in REGISTRY if name.startswith("local.")}


def test_every_durable_file_of_agent_and_supervisor_has_two_failpoints() -> None:
    """Every function of the agent that renames or syncs a file does so between two failpoints."""
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
    assert files - pairs == {"agent.fork", "supervisor.command", "supervisor.sweep"}  # actions, not files
    assert {"agent.spec", "agent.end", "agent.epoch", "agent.gone", "agent.exit"} <= pairs
    assert {"supervisor.start", "supervisor.exit"} <= pairs


def await_kill(one: Cluster, point: str) -> None:
    """Waits until the point has killed a process; restarts a killed instance."""

    def has_fired() -> bool:
        one.restart_if_dead()
        return one.has_fired(point)

    until(has_fired, f"a process reaches {point}", 20.0)
    one.disarm(point)
    one.wait_ready()


def running(one: Cluster, job: SubmittedJob) -> bool:
    """Whether all its tasks have written their start line."""
    paths = [one.ledger / f"{job.number}.{rank}" for rank in range(job.request.ntasks)]
    return all(path.exists() and "start" in path.read_text() for path in paths)


@pytest.mark.parametrize("point", WORKING)
def test_kill_while_jobs_run(cluster_pool: ClusterPool, point: str) -> None:
    with cluster_pool.acquire() as one:
        workload = Workload()
        rng = random.Random(point)
        one.arm(point)
        submitted = submit(one, workload, mixed_jobs(one, rng, 6))
        submit_dependents(one, workload, rng, submitted)
        await_kill(one, point)
        wait_inactive(one, workload)
        verify(one, workload, other_kills=int(point in UNKNOWN_ENDS))


@pytest.mark.parametrize("point", CANCELLING)
def test_kill_during_a_cancellation(cluster_pool: ClusterPool, point: str) -> None:
    with cluster_pool.acquire() as one:
        workload = Workload()
        (job,) = submit(one, workload, [job_request(one, 60, ntasks=3, results=("CANCELED",))])
        until(lambda: running(one, job), "the job runs")
        one.arm(point)
        cancel(one, job)
        await_kill(one, point)
        wait_inactive(one, workload)
        verify(one, workload)


@pytest.mark.parametrize("point", STARTING)
def test_kill_during_a_restart(cluster_pool: ClusterPool, point: str) -> None:
    with cluster_pool.acquire() as one:
        workload = Workload()
        submitted = submit(one, workload, mixed_jobs(one, random.Random(point), 6))
        until(lambda: any(running(one, job) for job in submitted), "something runs")
        one.arm(point)
        one.kill_instance()
        await_kill(one, point)
        wait_inactive(one, workload)
        verify(one, workload)


@pytest.mark.parametrize("point", DEAD_SUPERVISOR)
def test_kill_of_an_agent_that_writes_the_exit_for_a_dead_supervisor(
    cluster_pool: ClusterPool, point: str
) -> None:
    with cluster_pool.acquire() as one:
        workload = Workload()
        jobs = [
            job_request(one, 0.5, ntasks=2, requeue=requeue)
            for requeue in ("never", "node-failure", "always")
        ]
        submitted = submit(one, workload, jobs)
        until(lambda: all(running(one, job) for job in submitted), "all jobs run")
        one.arm(point)
        killed = one.kill_supervisor(random.Random(point))
        await_kill(one, point)
        wait_inactive(one, workload)
        verify(one, workload, {killed})


@pytest.mark.parametrize("point", TOMBSTONE)
def test_kill_of_an_agent_that_writes_a_tombstone(cluster_pool: ClusterPool, point: str) -> None:
    """The agent dies before it has accepted a task, and the job is cancelled meanwhile."""
    with cluster_pool.acquire() as one:
        workload = Workload()
        one.arm("agent.spec.before")
        with one.agent_prevented("node0"):
            (job,) = submit(one, workload, [job_request(one, 60, results=("CANCELED",))])
            await_kill(one, "agent.spec.before")
            cancel(one, job)
            one.arm(point)
        await_kill(one, point)
        wait_inactive(one, workload)
        verify(one, workload)
        assert not running(one, job)


@pytest.fixture(scope="session")
def server() -> typing.Iterator[Server]:
    from tests.store.servers import started_server

    with started_server() as started:
        yield started


@pytest.mark.parametrize("point", MIGRATING)
def test_kill_during_the_migration_of_the_schema(server: Server, point: str) -> None:
    one = Cluster(nodes=1, database=fresh_database(server))
    try:
        one.arm(point)
        one.start()
        await_kill(one, point)
        workload = Workload()
        submit(one, workload, [job_request(one), job_request(one, ntasks=2)])
        wait_inactive(one, workload)
        verify(one, workload)
        one.stop()
    finally:
        one.destroy()
        one.remove()


def test_a_stopped_cluster_leaves_nothing_behind() -> None:
    with cluster(nodes=1) as one:
        workload = Workload()
        submit(one, workload, [job_request(one, 60, ntasks=2, results=("CANCELED",))])
        until(lambda: running(one, workload.jobs[0]), "the job runs")
        base = one.base
    assert not base.exists()
