"""Rounds of torture: a workload, deaths at random in the middle of it, and the verdict.

Everything that is drawn comes from one seed; when a death strikes depends on the machine all the same. A
point that was armed and not passed by the end of its round is disarmed, and counts as no kill.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import penstock.agent.server  # so that all points are registered
import penstock.backends.local
import penstock.instance.steps
import penstock.store.postgres  # noqa: F401
from penstock.failpoints import REGISTRY
from tests.torture.cluster import Broken, Cluster
from tests.torture.judge import judge, wait_over
from tests.torture.workload import Workload, asked, base_of, cancel, submit, submit_dependents

__all__ = ["POINTS", "UNKNOWN_ENDS", "Round", "play"]

# Those of the world of pods are passed in tests/kubernetes/test_faults.py.
POINTS = tuple(sorted(name for name in REGISTRY if not name.startswith("kube.")))
# Where a supervisor can die with nobody left who knows how the command ended.
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
    """What was done in one round, for the verdict and for who reads the report."""

    killed: set[str] = field(default_factory=set)  # members whose supervisors were killed
    armed: set[str] = field(default_factory=set)
    deeds: list[str] = field(default_factory=list)


def play(cluster: Cluster, chance: random.Random, kills: int) -> Round:
    """One round with about so many kills; raises `Broken` if something is wrong afterwards."""
    done = Round()
    try:
        _play(cluster, chance, kills, done)
    except Broken as broken:
        raise Broken(f"{broken}\nafter the deaths of {done.deeds}") from broken
    return done


def _play(cluster: Cluster, chance: random.Random, kills: int, done: Round) -> None:
    workload = Workload()
    given = submit(cluster, workload, base_of(cluster, chance))
    endless = submit(cluster, workload, [asked(cluster, 60, ntasks=2, results=("CANCELED",))])
    submit_dependents(cluster, workload, chance, given)
    for number in range(kills):
        time.sleep(chance.random() * chance.choice((0.05, 0.3, 0.8)))  # when is part of the torture
        _strike(cluster, chance, done)
        if number == kills // 2:
            cancel(cluster, *endless)
    if kills == 0:
        cancel(cluster, *endless)
    wait_over(cluster, workload)
    fired = {point for point in done.armed if cluster.disarm(point)}
    judge(cluster, workload, done.killed, deaths=len(fired & UNKNOWN_ENDS))


def _strike(cluster: Cluster, chance: random.Random, done: Round) -> None:
    strikes: list[tuple[int, Callable[[], str]]] = [
        (5, lambda: _instance(cluster)),
        (5, lambda: _agent(cluster, chance)),
        (3, lambda: _supervisor(cluster, chance, done)),
        (2, lambda: _database(cluster)),
        (6, lambda: _point(cluster, chance, done)),
        (1, lambda: f"{_database(cluster)} and {_instance(cluster)}"),
        (1, lambda: f"{_instance(cluster)} and {_agent(cluster, chance)}"),
        (1, lambda: f"{_agent(cluster, chance)} and {_supervisor(cluster, chance, done)}"),
        (1, lambda: " and ".join((_instance(cluster), *_agents(cluster)))),
    ]
    (strike,) = chance.choices([strike for _, strike in strikes], [weight for weight, _ in strikes])
    done.deeds.append(strike())
    if chance.random() < 0.7:
        cluster.wait_ready()  # otherwise whoever asks next starts it


def _instance(cluster: Cluster) -> str:
    cluster.kill_instance()
    return "instance"


def _agent(cluster: Cluster, chance: random.Random) -> str:
    node = f"node{chance.randrange(cluster.nodes)}"
    return f"agent of {node}" if cluster.kill_agent(node) else "nobody"


def _agents(cluster: Cluster) -> list[str]:
    return [node for node in (f"node{rank}" for rank in range(cluster.nodes)) if cluster.kill_agent(node)]


def _supervisor(cluster: Cluster, chance: random.Random, done: Round) -> str:
    member = cluster.kill_supervisor(chance)
    done.killed.add(member)
    return f"supervisor of {member}" if member else "nobody"


def _database(cluster: Cluster) -> str:
    return "database" if cluster.kill_database() else "nobody"


def _point(cluster: Cluster, chance: random.Random, done: Round) -> str:
    point = chance.choice([point for point in POINTS if point not in done.armed])
    done.armed.add(point)
    cluster.arm(point)
    return f"whoever comes to {point}"
