"""Torture rounds: a workload, random kills while it runs, and the verification.

All random choices derive from one seed; the time of a kill still depends on the machine. A failpoint that was
armed and not reached by the end of its round is disarmed and does not count as a kill.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import penstock.agent.server  # registers all failpoints
import penstock.backends.local
import penstock.instance.steps
import penstock.store.postgres  # noqa: F401
from penstock.failpoints import REGISTRY
from tests.torture.cluster import Cluster, InvariantViolation
from tests.torture.verify import verify, wait_inactive
from tests.torture.workload import Workload, cancel, job_request, mixed_jobs, submit, submit_dependents

__all__ = ["POINTS", "UNKNOWN_ENDS", "Round", "run_round"]

# tests/kubernetes/test_faults.py covers the failpoints of the kube backend.
POINTS = tuple(sorted(name for name in REGISTRY if not name.startswith("kube.")))
# A supervisor that dies at one of these points leaves the exit of its command unknown.
UNKNOWN_ENDS = frozenset(
    {
        "supervisor.start.after",
        "supervisor.command.after",
        "supervisor.sweep.after",
        "supervisor.exit.before",
    }
)


@dataclass(slots=True)
class Round:
    """The kills of one round, for the verification and the report."""

    killed: set[str] = field(default_factory=set)  # members whose supervisors were killed
    armed: set[str] = field(default_factory=set)
    actions: list[str] = field(default_factory=list)


def run_round(cluster: Cluster, rng: random.Random, kills: int) -> Round:
    """Runs a round with about `kills` kills; raises `InvariantViolation` if the verification fails."""
    done = Round()
    try:
        _run_round(cluster, rng, kills, done)
    except InvariantViolation as broken:
        raise InvariantViolation(f"{broken}\nafter the kills of {done.actions}") from broken
    return done


def _run_round(cluster: Cluster, rng: random.Random, kills: int, done: Round) -> None:
    workload = Workload()
    submitted = submit(cluster, workload, mixed_jobs(cluster, rng))
    endless = submit(cluster, workload, [job_request(cluster, 60, ntasks=2, results=("CANCELED",))])
    submit_dependents(cluster, workload, rng, submitted)
    for number in range(kills):
        time.sleep(rng.random() * rng.choice((0.05, 0.3, 0.8)))  # a random time is part of the test
        _kill_something(cluster, rng, done)
        if number == kills // 2:
            cancel(cluster, *endless)
    if kills == 0:
        cancel(cluster, *endless)
    wait_inactive(cluster, workload)
    fired = {point for point in done.armed if cluster.disarm(point)}
    verify(cluster, workload, done.killed, other_kills=len(fired & UNKNOWN_ENDS))


def _kill_something(cluster: Cluster, rng: random.Random, done: Round) -> None:
    actions_by_weight: list[tuple[int, Callable[[], str]]] = [
        (5, lambda: _instance(cluster)),
        (5, lambda: _agent(cluster, rng)),
        (3, lambda: _supervisor(cluster, rng, done)),
        (2, lambda: _database(cluster)),
        (6, lambda: _point(cluster, rng, done)),
        (1, lambda: f"{_database(cluster)} and {_instance(cluster)}"),
        (1, lambda: f"{_instance(cluster)} and {_agent(cluster, rng)}"),
        (1, lambda: f"{_agent(cluster, rng)} and {_supervisor(cluster, rng, done)}"),
        (1, lambda: " and ".join((_instance(cluster), *_agents(cluster)))),
    ]
    (action,) = rng.choices(
        [action for _, action in actions_by_weight], [weight for weight, _ in actions_by_weight]
    )
    done.actions.append(action())
    if rng.random() < 0.7:
        cluster.wait_ready()  # otherwise the next request restarts it


def _instance(cluster: Cluster) -> str:
    cluster.kill_instance()
    return "instance"


def _agent(cluster: Cluster, rng: random.Random) -> str:
    node = f"node{rng.randrange(cluster.nodes)}"
    return f"agent of {node}" if cluster.kill_agent(node) else "no process"


def _agents(cluster: Cluster) -> list[str]:
    return [node for node in (f"node{rank}" for rank in range(cluster.nodes)) if cluster.kill_agent(node)]


def _supervisor(cluster: Cluster, rng: random.Random, done: Round) -> str:
    member = cluster.kill_supervisor(rng)
    done.killed.add(member)
    return f"supervisor of {member}" if member else "no process"


def _database(cluster: Cluster) -> str:
    return "database" if cluster.kill_database() else "no process"


def _point(cluster: Cluster, rng: random.Random, done: Round) -> str:
    point = rng.choice([point for point in POINTS if point not in done.armed])
    done.armed.add(point)
    cluster.arm(point)
    return f"the first process at {point}"
