"""Jobs that write down what happens to them, and what may become of each.

A task appends a line to a file of its own when it begins and when it ends, and holds a lock for each core of
its node that it was given. A lock that somebody else holds is a core that was given twice: the task says so
in a file `conflict`. Locks are the kernel's, so they last exactly as long as the last process of the task.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock.cli.client import RequestRefused
from penstock.model.jobid import parse_jobid
from tests.torture.cluster import Cluster

__all__ = ["Asked", "Given", "Workload", "asked", "base_of", "cancel", "submit", "submit_dependents"]

_SCRIPT = """\
me="$LEDGER/$PENSTOCK_JOB_ID.$FLUX_TASK_RANK"
echo "start $PENSTOCK_ATTEMPT $PENSTOCK_NODE $PENSTOCK_CORES $$" >> "$me"
fd=3
IFS=,
for core in $PENSTOCK_CORES; do
    eval "exec $fd>>\\"\\$LEDGER/locks/\\$PENSTOCK_NODE.$core\\""
    flock -n $fd || echo "$PENSTOCK_JOB_ID $PENSTOCK_NODE $core" >> "$LEDGER/conflict"
    fd=$((fd + 1))
done
sleep "$1"
echo "end $PENSTOCK_ATTEMPT $PENSTOCK_NODE $PENSTOCK_CORES $$" >> "$me"
exit "$2"
"""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Asked:
    """One job before it is submitted, and the results that it may have if nobody kills its supervisor."""

    jobspec: dict[str, Any]
    ntasks: int
    requeue: str = "never"
    results: frozenset[str] = frozenset({"COMPLETED"})


@dataclass(frozen=True, slots=True)
class Given:
    """One job after."""

    id: str
    number: int
    asked: Asked


@dataclass(slots=True)
class Workload:
    jobs: list[Given] = field(default_factory=list)
    keys: dict[str, list[str]] = field(default_factory=dict)  # of submissions, with the ids that were told


def asked(
    cluster: Cluster,
    seconds: float = 0.1,
    *,
    code: int = 0,
    nodes: int = 0,
    ntasks: int = 1,
    cores: int = 1,
    limit_s: float = 0.0,
    requeue: str = "never",
    dependencies: tuple[tuple[str, str], ...] = (),
    results: tuple[str, ...] = (),
    script: str = _SCRIPT,
) -> Asked:
    """So many tasks, on so many nodes if that is said, each with so many cores."""
    slot = {
        "type": "slot",
        "count": ntasks // nodes if nodes else ntasks,
        "label": "task",
        "with": [{"type": "core", "count": cores}],
    }
    system: dict[str, Any] = {
        "duration": limit_s,
        "cwd": "/",
        "environment": {
            "PATH": os.environ["PATH"],
            "LEDGER": str(cluster.ledger),
        },
    }
    if dependencies:
        system["dependencies"] = [{"scheme": scheme, "value": value} for scheme, value in dependencies]
    jobspec = {
        "version": 1,
        "resources": [{"type": "node", "count": nodes, "with": [slot]}] if nodes else [slot],
        "tasks": [
            {
                "command": ["/bin/sh", "-c", script, "task", f"{seconds:g}", str(code)],
                "slot": "task",
                "count": {"per_slot": 1},
            }
        ],
        "attributes": {"system": system},
    }
    return Asked(jobspec, ntasks, requeue, frozenset(results or ("FAILED" if code else "COMPLETED",)))


def submit(cluster: Cluster, workload: Workload, jobs: list[Asked]) -> list[Given]:
    """Until it is accepted. The key makes it harmless to ask again after an answer that was lost."""
    key = f"{os.getpid()}-{next(_numbers)}"
    body = {"key": key, "jobs": [{"jobspec": job.jobspec, "requeue": job.requeue} for job in jobs]}
    ids = [str(job["id"]) for job in cluster.ask("POST", "/v1/jobs", body)["jobs"]]
    again = [str(job["id"]) for job in cluster.ask("POST", "/v1/jobs", body)["jobs"]]
    assert again == ids, "the same key again is the same request again"
    given = [Given(told, parse_jobid(told), job) for told, job in zip(ids, jobs, strict=True)]
    workload.keys[key] = ids
    workload.jobs += given
    return given


def submit_dependents(
    cluster: Cluster, workload: Workload, chance: random.Random, jobs: list[Given]
) -> list[Given]:
    """Each by itself: what can never be met any more, because the other job is over, is refused."""
    given: list[Given] = []
    for wait in dependents_of(cluster, chance, jobs):
        try:
            given += submit(cluster, workload, [wait])
        except RequestRefused as refused:
            if refused.kind != "DependencyRefused" or "not found" in str(refused):
                raise
    return given


def cancel(cluster: Cluster, *jobs: Given) -> None:
    """Cancels what is not over yet."""
    try:
        cluster.ask("POST", "/v1/jobs/cancel", {"ids": [job.id for job in jobs], "note": "torture"})
    except RequestRefused as refused:
        if refused.status not in (404, 409):
            raise


def base_of(cluster: Cluster, chance: random.Random, count: int = 8) -> list[Asked]:
    """A mix: single tasks, gangs, wide ones, failures, limits, each with some policy of running again."""

    def short() -> float:
        return chance.choice((0.05, 0.1, 0.2, 0.4))

    def again() -> str:
        return chance.choice(("never", "node-failure", "always"))

    controllers: tuple[Callable[[], Asked], ...] = (
        lambda: asked(cluster, short(), requeue=again()),
        lambda: asked(cluster, short(), requeue=again()),
        lambda: asked(cluster, short(), ntasks=chance.randint(2, 4), requeue=again()),
        lambda: asked(cluster, short(), nodes=2, ntasks=chance.choice((2, 4)), requeue=again()),
        lambda: asked(cluster, short(), ntasks=2, cores=2, requeue=again()),
        lambda: asked(cluster, short(), ntasks=cluster.nodes * cluster.cores, requeue=again()),
        lambda: asked(cluster, short(), code=3, requeue=again()),
        lambda: asked(cluster, 30, limit_s=1, requeue=again(), results=("TIMEOUT",)),
    )
    first = [controller() for controller in controllers[:count]]
    chance.shuffle(first)
    return first + [chance.choice(controllers[:6])() for _ in range(max(0, count - len(controllers)))]


def dependents_of(cluster: Cluster, chance: random.Random, jobs: list[Given]) -> list[Asked]:
    """Jobs that wait for others: for their good end, for any, for their start."""
    made = []
    for job in chance.sample(jobs, min(3, len(jobs))):
        scheme = chance.choice(("afterok", "afterany", "after", "afternotok"))
        results = {"COMPLETED"}
        if scheme == "afterok" and job.asked.results != {"COMPLETED"}:
            results = {"CANCELED", "FAILED"}
        if scheme == "afternotok" and job.asked.results == {"COMPLETED"}:
            results = {"CANCELED", "FAILED"}
        wait = asked(cluster, 0.05, dependencies=((scheme, job.id),), results=tuple(results))
        made.append(wait)
    return made
