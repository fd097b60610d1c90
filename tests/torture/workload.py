"""Jobs that record their own execution, and the results that each may have.

A task appends a line to its own file when it starts and when it ends, and locks a file for each allocated
core of its node. A lock that another task holds means a core that was allocated twice: the task writes that
to a file `conflict`. These are kernel locks, so they last exactly as long as the last process of the task.
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

__all__ = [
    "JobRequest",
    "SubmittedJob",
    "Workload",
    "cancel",
    "job_request",
    "mixed_jobs",
    "submit",
    "submit_dependents",
]

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
class JobRequest:
    """A job to submit, and the results that it may have unless its supervisor is killed."""

    jobspec: dict[str, Any]
    ntasks: int
    requeue: str = "never"
    results: frozenset[str] = frozenset({"COMPLETED"})


@dataclass(frozen=True, slots=True)
class SubmittedJob:
    """A submitted job."""

    id: str
    number: int
    request: JobRequest


@dataclass(slots=True)
class Workload:
    jobs: list[SubmittedJob] = field(default_factory=list)
    keys: dict[str, list[str]] = field(default_factory=dict)  # submission key -> job ids in the response


def job_request(
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
) -> JobRequest:
    """Builds a job with `ntasks` tasks of `cores` cores each, on `nodes` nodes if given."""
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
    return JobRequest(jobspec, ntasks, requeue, frozenset(results or ("FAILED" if code else "COMPLETED",)))


def submit(cluster: Cluster, workload: Workload, jobs: list[JobRequest]) -> list[SubmittedJob]:
    """Submits until accepted. The key makes a repeated request after a lost response idempotent."""
    key = f"{os.getpid()}-{next(_numbers)}"
    body = {"key": key, "jobs": [{"jobspec": job.jobspec, "requeue": job.requeue} for job in jobs]}
    ids = [str(job["id"]) for job in cluster.ask("POST", "/v1/jobs", body)["jobs"]]
    again = [str(job["id"]) for job in cluster.ask("POST", "/v1/jobs", body)["jobs"]]
    assert again == ids, "a repeated key must return the same jobs"
    submitted = [
        SubmittedJob(job_id, parse_jobid(job_id), job) for job_id, job in zip(ids, jobs, strict=True)
    ]
    workload.keys[key] = ids
    workload.jobs += submitted
    return submitted


def submit_dependents(
    cluster: Cluster, workload: Workload, rng: random.Random, jobs: list[SubmittedJob]
) -> list[SubmittedJob]:
    """Submits each separately: a dependency that an ended job can no longer satisfy is refused."""
    submitted: list[SubmittedJob] = []
    for wait in dependent_jobs(cluster, rng, jobs):
        try:
            submitted += submit(cluster, workload, [wait])
        except RequestRefused as refused:
            if refused.kind != "DependencyRefused" or "not found" in str(refused):
                raise
    return submitted


def cancel(cluster: Cluster, *jobs: SubmittedJob) -> None:
    """Cancels the jobs that are still active."""
    try:
        cluster.ask("POST", "/v1/jobs/cancel", {"ids": [job.id for job in jobs], "note": "torture"})
    except RequestRefused as refused:
        if refused.status not in (404, 409):
            raise


def mixed_jobs(cluster: Cluster, rng: random.Random, count: int = 8) -> list[JobRequest]:
    """Single tasks, gangs, jobs on all nodes, failures and time limits, with random requeue policies."""

    def short() -> float:
        return rng.choice((0.05, 0.1, 0.2, 0.4))

    def requeue_policy() -> str:
        return rng.choice(("never", "node-failure", "always"))

    factories: tuple[Callable[[], JobRequest], ...] = (
        lambda: job_request(cluster, short(), requeue=requeue_policy()),
        lambda: job_request(cluster, short(), requeue=requeue_policy()),
        lambda: job_request(cluster, short(), ntasks=rng.randint(2, 4), requeue=requeue_policy()),
        lambda: job_request(cluster, short(), nodes=2, ntasks=rng.choice((2, 4)), requeue=requeue_policy()),
        lambda: job_request(cluster, short(), ntasks=2, cores=2, requeue=requeue_policy()),
        lambda: job_request(cluster, short(), ntasks=cluster.nodes * cluster.cores, requeue=requeue_policy()),
        lambda: job_request(cluster, short(), code=3, requeue=requeue_policy()),
        lambda: job_request(cluster, 30, limit_s=1, requeue=requeue_policy(), results=("TIMEOUT",)),
    )
    first = [make() for make in factories[:count]]
    rng.shuffle(first)
    return first + [rng.choice(factories[:6])() for _ in range(max(0, count - len(factories)))]


def dependent_jobs(cluster: Cluster, rng: random.Random, jobs: list[SubmittedJob]) -> list[JobRequest]:
    """Builds jobs that depend on others: on success, on any end, on failure, or on the start."""
    dependents = []
    for job in rng.sample(jobs, min(3, len(jobs))):
        scheme = rng.choice(("afterok", "afterany", "after", "afternotok"))
        results = {"COMPLETED"}
        if scheme == "afterok" and job.request.results != {"COMPLETED"}:
            results = {"CANCELED", "FAILED"}
        if scheme == "afternotok" and job.request.results == {"COMPLETED"}:
            results = {"CANCELED", "FAILED"}
        wait = job_request(cluster, 0.05, dependencies=((scheme, job.id),), results=tuple(results))
        dependents.append(wait)
    return dependents
