"""Kills from outside, through the real instance: who comes back, who is missed, and who must give way."""

from __future__ import annotations

import random
import signal
import typing

import pytest

from penstock.agent.task_dirs import AgentDirectory
from penstock.cli.client import NoInstance, RequestRefused, StreamBroken
from tests.store.servers import fresh_database, started_server
from tests.torture.cluster import Cluster, cluster, until
from tests.torture.judge import judge, wait_over
from tests.torture.rounds import play
from tests.torture.sites import Hall
from tests.torture.workload import Given, Workload, asked, base_of, submit

pytestmark = pytest.mark.slow


def pids(one: Cluster, job: Given) -> set[str]:
    """What its tasks call themselves, once all of them run."""

    def all_of_them() -> set[str] | None:
        paths = [one.ledger / f"{job.number}.{rank}" for rank in range(job.asked.ntasks)]
        if not all(path.exists() and path.read_text().endswith("\n") for path in paths):
            return None
        return {path.read_text().split()[-1] for path in paths}

    return until(all_of_them, "the job runs")


def node_of(one: Cluster, job: Given) -> str:
    return str(one.ask("GET", f"/v1/jobs/{job.number}")["members"][0]["node"])


def test_a_killed_agent_is_replaced_and_its_tasks_go_on(hall: Hall) -> None:
    with hall.borrowed() as one:
        workload = Workload()
        (job,) = submit(one, workload, [asked(one, 1.5, ntasks=6)])
        before = pids(one, job)
        was = {node: one.agent_pid(node) for node in ("node0", "node1", "node2")}
        for node in was:
            one.kill_agent(node)
        until(
            lambda: all(one.agent_pid(node) not in (None, pid) for node, pid in was.items()),
            "there are other agents",
        )
        assert pids(one, job) == before
        wait_over(one, workload)
        judge(one, workload)


def test_a_job_is_cancelled_although_instance_agents_and_database_die_after_the_word(hall: Hall) -> None:
    with hall.borrowed() as one:
        workload = Workload()
        (job,) = submit(one, workload, [asked(one, 60, ntasks=6, results=("CANCELED",))])
        pids(one, job)
        one.ask("POST", "/v1/jobs/cancel", {"ids": [job.id]})
        one.kill_instance()
        for node in ("node0", "node1", "node2"):
            one.kill_agent(node)
        one.kill_database()
        one.wait_ready()
        wait_over(one, workload)
        judge(one, workload)


def test_a_limit_holds_although_nobody_is_left_who_knows_of_it(hall: Hall) -> None:
    """The supervisor ends its task by itself, while instance and agents are dead."""
    with hall.borrowed() as one:
        workload = Workload()
        (job,) = submit(one, workload, [asked(one, 60, ntasks=2, limit_s=1, results=("TIMEOUT",))])
        pids(one, job)
        one.kill_instance()
        for node in ("node0", "node1", "node2"):
            one.kill_agent(node)
        until(lambda: not one.running_tasks(), "the task has ended", 10.0)
        one.wait_ready()
        wait_over(one, workload)
        judge(one, workload)


@pytest.mark.parametrize(
    ("requeue", "result"), [("never", "FAILED"), ("node-failure", "COMPLETED"), ("always", "COMPLETED")]
)
def test_a_job_whose_agent_stays_away_fails_or_runs_again_by_its_policy(
    patient: Cluster, requeue: str, result: str
) -> None:
    one, workload = patient, Workload()
    (job,) = submit(one, workload, [asked(one, 4, requeue=requeue, results=(result,))])
    before, node = pids(one, job), node_of(one, job)
    with one.no_agent(node):
        one.kill_agent(node)
        if requeue == "never":
            wait_over(one, workload)
        else:
            until(lambda: pids(one, job) != before, "it runs again, elsewhere", 20.0)
            assert node_of(one, job) != node
        # By now nothing of the first attempt may be alive: who was given up is ended first.
        assert AgentDirectory(one.paths.agent(node)).tasks()
        assert not {task for task in one.running_tasks() if f"/{node}/" in task.path}
    wait_over(one, workload)
    judge(one, workload)
    doc = one.ask("GET", f"/v1/jobs/{job.number}")
    assert (doc["result"], doc["attempt"]) == (result, 1 if requeue == "never" else 2)
    if requeue == "never":
        assert "node failure" in doc["exception"]["note"]


@pytest.fixture(scope="module")
def patient() -> typing.Iterator[Cluster]:
    """One that waits two seconds for an agent."""
    with cluster(nodes=2, config='grace = "1s"\nlost_timeout = "2s"\n') as one:
        yield one


def test_while_the_database_is_away_a_submission_is_refused_or_kept(hall: Hall) -> None:
    with hall.borrowed() as one:
        workload = Workload()
        (long,) = submit(one, workload, [asked(one, 1.0, ntasks=2)])
        before = pids(one, long)
        one.kill_database()
        refused, kept = 0, 0
        body = {"jobs": [{"jobspec": asked(one, 0.05).jobspec}]}
        numbers: list[str] = []

        def ask_once() -> bool:
            nonlocal refused, kept
            try:
                numbers.append(one.client.post("/v1/jobs", body)["jobs"][0]["id"])
                kept += 1
            except RequestRefused as answer:
                if answer.status != 503:
                    raise
                refused += 1
            except (NoInstance, StreamBroken) as error:
                raise AssertionError("the instance must survive its database") from error
            return kept >= 3

        until(ask_once, "submissions are taken again")
        assert refused > 0
        told = {
            job["id"] for job in one.ask("GET", "/v1/jobs", states="active,inactive", limit=10_000)["jobs"]
        }
        assert set(numbers) <= told
        assert pids(one, long) == before
        until(lambda: not one.ask("GET", "/v1/jobs", states="active", limit=10)["jobs"], "all jobs are over")
        judge(one, workload)


def test_an_idle_instance_brings_its_database_back(hall: Hall) -> None:
    """Nothing is to be written, so only the beat of the loop can notice."""
    with hall.borrowed() as one:
        workload = Workload()
        submit(one, workload, [asked(one, 0.05)])
        wait_over(one, workload)
        one.kill_database()
        judge(one, workload)


def test_a_second_instance_in_the_same_state_directory_is_refused(hall: Hall) -> None:
    with hall.borrowed() as one:
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
            submit(first, Workload(), [asked(first)])
            process = first._process
            assert process is not None
            second.start()
            assert process.wait(30) == 1  # without being asked anything
            assert "another instance has taken over" in first.log
            workload = Workload()
            submit(second, workload, base_of(second, random.Random(1), 3)[:1])
            wait_over(second, workload)
            second.stop()
        finally:
            for one in (first, second):
                one.destroy()
                one.remove()


def test_an_instance_that_is_told_to_end_leaves_its_tasks_to_the_next(hall: Hall) -> None:
    """SIGTERM is what a service manager sends before it starts another."""
    with hall.borrowed() as one:
        workload = Workload()
        (job,) = submit(one, workload, [asked(one, 1.5, ntasks=2)])
        before = pids(one, job)
        process = one._process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        one.start()
        assert pids(one, job) == before
        wait_over(one, workload)
        judge(one, workload)


@pytest.mark.parametrize("seed", range(6))
def test_deaths_at_random(hall: Hall, seed: int) -> None:
    with hall.borrowed() as one:
        play(one, random.Random(seed), 5)


def test_the_lot_is_over_quickly_if_nobody_dies(hall: Hall) -> None:
    with hall.borrowed() as one:
        assert play(one, random.Random(0), 0).deeds == []
