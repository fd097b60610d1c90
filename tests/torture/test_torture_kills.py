"""Kills of the processes of a real instance from outside: restarts, outages, and competing instances."""

from __future__ import annotations

import random
import signal
import typing

import pytest

from penstock.agent.task_dirs import AgentDirectory
from penstock.cli.client import NoInstance, RequestRefused, StreamBroken
from tests.store.servers import fresh_database, started_server
from tests.torture.cluster import Cluster, cluster, until
from tests.torture.cluster_pool import ClusterPool
from tests.torture.rounds import run_round
from tests.torture.verify import verify, wait_inactive
from tests.torture.workload import SubmittedJob, Workload, job_request, mixed_jobs, submit

pytestmark = pytest.mark.slow


def pids(one: Cluster, job: SubmittedJob) -> set[str]:
    """Waits until all tasks run; returns their pids."""

    def pids_of_all() -> set[str] | None:
        paths = [one.ledger / f"{job.number}.{rank}" for rank in range(job.request.ntasks)]
        if not all(path.exists() and path.read_text().endswith("\n") for path in paths):
            return None
        return {path.read_text().split()[-1] for path in paths}

    return until(pids_of_all, "the job runs")


def node_of(one: Cluster, job: SubmittedJob) -> str:
    return str(one.ask("GET", f"/v1/jobs/{job.number}")["members"][0]["node"])


def test_a_killed_agent_is_replaced_and_its_tasks_continue(cluster_pool: ClusterPool) -> None:
    with cluster_pool.acquire() as one:
        workload = Workload()
        (job,) = submit(one, workload, [job_request(one, 1.5, ntasks=6)])
        before = pids(one, job)
        was = {node: one.agent_pid(node) for node in ("node0", "node1", "node2")}
        for node in was:
            one.kill_agent(node)
        until(
            lambda: all(one.agent_pid(node) not in (None, pid) for node, pid in was.items()),
            "other agents run",
        )
        assert pids(one, job) == before
        wait_inactive(one, workload)
        verify(one, workload)


def test_a_cancellation_survives_kills_of_instance_agents_and_database(cluster_pool: ClusterPool) -> None:
    with cluster_pool.acquire() as one:
        workload = Workload()
        (job,) = submit(one, workload, [job_request(one, 60, ntasks=6, results=("CANCELED",))])
        pids(one, job)
        one.ask("POST", "/v1/jobs/cancel", {"ids": [job.id]})
        one.kill_instance()
        for node in ("node0", "node1", "node2"):
            one.kill_agent(node)
        one.kill_database()
        one.wait_ready()
        wait_inactive(one, workload)
        verify(one, workload)


def test_a_time_limit_is_enforced_without_instance_and_agents(cluster_pool: ClusterPool) -> None:
    """The supervisor ends its task by itself, while instance and agents are dead."""
    with cluster_pool.acquire() as one:
        workload = Workload()
        (job,) = submit(one, workload, [job_request(one, 60, ntasks=2, limit_s=1, results=("TIMEOUT",))])
        pids(one, job)
        one.kill_instance()
        for node in ("node0", "node1", "node2"):
            one.kill_agent(node)
        until(lambda: not one.running_tasks(), "the task has ended", 10.0)
        one.wait_ready()
        wait_inactive(one, workload)
        verify(one, workload)


@pytest.mark.parametrize(
    ("requeue", "result"), [("never", "FAILED"), ("node-failure", "COMPLETED"), ("always", "COMPLETED")]
)
def test_a_job_without_its_agent_fails_or_is_requeued_by_its_policy(
    short_timeout_cluster: Cluster, requeue: str, result: str
) -> None:
    one, workload = short_timeout_cluster, Workload()
    (job,) = submit(one, workload, [job_request(one, 4, requeue=requeue, results=(result,))])
    before, node = pids(one, job), node_of(one, job)
    with one.agent_prevented(node):
        one.kill_agent(node)
        if requeue == "never":
            wait_inactive(one, workload)
        else:
            until(lambda: pids(one, job) != before, "it runs again on another node", 20.0)
            assert node_of(one, job) != node
        # By now nothing of the first attempt may be alive: who was submitted up is ended first.
        assert AgentDirectory(one.paths.agent(node)).tasks()
        assert not {task for task in one.running_tasks() if f"/{node}/" in task.path}
    wait_inactive(one, workload)
    verify(one, workload)
    doc = one.ask("GET", f"/v1/jobs/{job.number}")
    assert (doc["result"], doc["attempt"]) == (result, 1 if requeue == "never" else 2)
    if requeue == "never":
        assert "node failure" in doc["exception"]["note"]


@pytest.fixture(scope="module")
def short_timeout_cluster() -> typing.Iterator[Cluster]:
    """A cluster that waits two seconds for an agent to return."""
    with cluster(nodes=2, config='grace = "1s"\nlost_timeout = "2s"\n') as one:
        yield one


def test_during_a_database_outage_a_submission_is_refused_or_recorded(cluster_pool: ClusterPool) -> None:
    with cluster_pool.acquire() as one:
        workload = Workload()
        (long,) = submit(one, workload, [job_request(one, 1.0, ntasks=2)])
        before = pids(one, long)
        one.kill_database()
        refused, recorded = 0, 0
        body = {"jobs": [{"jobspec": job_request(one, 0.05).jobspec}]}
        numbers: list[str] = []

        def submit_once() -> bool:
            nonlocal refused, recorded
            try:
                numbers.append(one.client.post("/v1/jobs", body)["jobs"][0]["id"])
                recorded += 1
            except RequestRefused as answer:
                if answer.status != 503:
                    raise
                refused += 1
            except (NoInstance, StreamBroken) as error:
                raise AssertionError("the instance must survive its database") from error
            return recorded >= 3

        until(submit_once, "submissions are accepted again")
        assert refused > 0
        listed = {
            job["id"] for job in one.ask("GET", "/v1/jobs", states="active,inactive", limit=10_000)["jobs"]
        }
        assert set(numbers) <= listed
        assert pids(one, long) == before
        until(lambda: not one.ask("GET", "/v1/jobs", states="active", limit=10)["jobs"], "all jobs are over")
        verify(one, workload)


def test_an_idle_instance_restarts_its_database(cluster_pool: ClusterPool) -> None:
    """Nothing is written, so only the heartbeat of the loop detects the outage."""
    with cluster_pool.acquire() as one:
        workload = Workload()
        submit(one, workload, [job_request(one, 0.05)])
        wait_inactive(one, workload)
        one.kill_database()
        verify(one, workload)


def test_a_second_instance_in_the_same_state_directory_is_refused(cluster_pool: ClusterPool) -> None:
    with cluster_pool.acquire() as one:
        epoch = one.status()["instance"]["epoch"]
        second = one.launch()
        assert second.wait(30) == 1
        assert "an instance already runs in" in one.log.splitlines()[-1]
        assert one.status()["instance"]["epoch"] == epoch


def test_a_second_instance_on_the_same_database_ends_the_first() -> None:
    with started_server() as server:
        database = fresh_database(server)
        first, second = Cluster(nodes=1, database=database), Cluster(nodes=1, database=database)
        try:
            first.start()
            submit(first, Workload(), [job_request(first)])
            process = first._process
            assert process is not None
            second.start()
            assert process.wait(30) == 1  # without being job_request anything
            assert "another instance has taken over" in first.log
            workload = Workload()
            submit(second, workload, mixed_jobs(second, random.Random(1), 3)[:1])
            wait_inactive(second, workload)
            second.stop()
        finally:
            for one in (first, second):
                one.destroy()
                one.remove()


def test_tasks_survive_a_sigterm_of_the_instance(cluster_pool: ClusterPool) -> None:
    """A service manager sends SIGTERM before it starts another instance."""
    with cluster_pool.acquire() as one:
        workload = Workload()
        (job,) = submit(one, workload, [job_request(one, 1.5, ntasks=2)])
        before = pids(one, job)
        process = one._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        one.start()
        assert pids(one, job) == before
        wait_inactive(one, workload)
        verify(one, workload)


@pytest.mark.parametrize("seed", range(6))
def test_random_kills(cluster_pool: ClusterPool, seed: int) -> None:
    with cluster_pool.acquire() as one:
        run_round(one, random.Random(seed), 5)


def test_a_round_without_kills_completes(cluster_pool: ClusterPool) -> None:
    with cluster_pool.acquire() as one:
        assert run_round(one, random.Random(0), 0).actions == []
