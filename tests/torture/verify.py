"""Verifies the invariants from the output of the jobs, the API and the database.

The sources are independent of the scheduler's own view: a task that ran twice has two start lines, a core
that was allocated twice has a conflict, and a unit that was freed twice or never shows in a row or a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from penstock.model.job import JobEvent, JobState, state_after
from tests.torture.cluster import Cluster, InvariantViolation, until
from tests.torture.workload import SubmittedJob, Workload

__all__ = ["verify", "wait_inactive"]


def wait_inactive(cluster: Cluster, workload: Workload, timeout_s: float = 60.0) -> None:
    """Waits until every job is inactive, also across kills."""
    left = {str(job.number) for job in workload.jobs}

    def all_inactive() -> bool:
        active = cluster.ask("GET", "/v1/jobs", states="active", limit=10_000)
        left.intersection_update({job["id_dec"] for job in active["jobs"]})
        return not left

    def pending_jobs() -> str:
        lines = ["all jobs are over"]
        for number in sorted(left):
            log = cluster.ask("GET", f"/v1/jobs/{number}/eventlog")["events"]
            doc = cluster.ask("GET", f"/v1/jobs/{number}")
            names = [event["name"] for event in log]
            lines.append(f"{number}: {doc['state']} {doc['reason']} {names} {doc.get('members')}")
        return "\n".join(lines)

    until(all_inactive, pending_jobs, timeout_s)


def verify(cluster: Cluster, workload: Workload, killed: Collection[str] = (), other_kills: int = 0) -> None:
    """Verifies a workload whose jobs are all inactive.

    `killed`: members whose supervisors were killed; `other_kills`: supervisors that failpoints killed.
    """
    unknown = [
        note
        for job in workload.jobs
        for note in _verify_job(cluster, job, {member for member in killed if member}, other_kills)
    ]
    enough = len(unknown) <= len(set(killed)) + other_kills
    _require(enough, f"killed were only {sorted(killed)} and {other_kills} others, but: {unknown}")
    _verify_ledger(cluster)
    _verify_submissions(cluster, workload)
    _verify_resources(cluster)


def _require(holds: object, what: str) -> None:
    if not holds:
        raise InvariantViolation(what)


def _verify_job(cluster: Cluster, job: SubmittedJob, killed: set[str], other_kills: int) -> list[str]:
    """Verifies a job; returns the notes of its unknown exits."""
    doc = cluster.ask("GET", f"/v1/jobs/{job.number}")
    log = [
        JobEvent(event["timestamp"], event["name"], event["context"])
        for event in cluster.ask("GET", f"/v1/jobs/{job.number}/eventlog")["events"]
    ]
    names = Counter(event.name for event in log)
    story = f"{job.id} ({job.number}): {doc['result']} {doc['exception']} {[event.name for event in log]}"
    _require(doc["state"] == "INACTIVE" and doc["result"], f"not over: {story}")
    _require(state_after(log) is JobState.INACTIVE, f"its log does not lead to its state: {story}")
    final = sum(1 for event in log if event.name == "release" and event.context.get("final"))
    _require(names["alloc"] == names["free"] == final, f"not freed exactly once: {story}")
    attempts = 1 + names["requeue"]
    _require(doc["attempt"] == attempts, f"the attempt is {doc['attempt']}: {story}")
    unknown = [event for event in log if event.is_fatal and "unknown" in str(event.context.get("note"))]
    lost = [event for event in log if event.is_fatal and "node failure" in str(event.context.get("note"))]
    again = {"never": 0, "node-failure": len(lost), "always": len(lost) + len(unknown)}[job.request.requeue]
    _require(names["requeue"] <= again, f"run again against its policy ({job.request.requeue}): {story}")
    ours = {member for member in killed if member.startswith(f"{job.number}/")}
    if not lost and len(unknown) <= names["requeue"]:
        depends = bool(job.request.jobspec["attributes"]["system"].get("dependencies"))
        expected = job.request.results | (
            {"COMPLETED", "CANCELED", "FAILED"} if depends and killed else set()
        )
        _require(doc["result"] in expected, f"not {sorted(expected)}: {story}")
    _require(
        len(unknown) <= len(ours) + other_kills, f"its exit is unknown, but no supervisor was killed: {story}"
    )
    _verify_tasks(cluster, job, doc, attempts, story)
    return [f"{job.id} ({job.number}): {event.context.get('note')}" for event in unknown]


def _verify_tasks(
    cluster: Cluster, job: SubmittedJob, doc: dict[str, Any], attempts: int, story: str
) -> None:
    for rank in range(job.request.ntasks):
        path = cluster.ledger / f"{job.number}.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        started = Counter(int(line.split()[1]) for line in lines if line.startswith("start"))
        ended = Counter(int(line.split()[1]) for line in lines if line.startswith("end"))
        detail = f"rank {rank} wrote {lines}: {story}"
        _require(max(started.values(), default=0) <= 1, f"a task ran twice in one attempt: {detail}")
        _require(set(started) <= set(range(1, attempts + 1)), f"an attempt that never was: {detail}")
        _require(not ended - started, f"ended without a beginning: {detail}")
        if doc["result"] == "COMPLETED":
            _require(ended[attempts] == 1, f"completed, but did not come to its end: {detail}")


def _verify_ledger(cluster: Cluster) -> None:
    conflict = cluster.ledger / "conflict"
    _require(not conflict.exists(), "over-committed: " + (conflict.read_text() if conflict.exists() else ""))


def _verify_submissions(cluster: Cluster, workload: Workload) -> None:
    found: dict[str, list[int]] = {}
    rows = cluster.rows("SELECT key, id FROM jobs WHERE key = ANY(%s) ORDER BY id", [list(workload.keys)])
    for key, number in rows:
        found.setdefault(key, []).append(number)
    numbers = {job.id: job.number for job in workload.jobs}
    for key, ids in workload.keys.items():
        expected = sorted(numbers[text] for text in ids)
        _require(found.get(key) == expected, f"{key}: answered {expected}, recorded {found.get(key)}")


def _verify_resources(cluster: Cluster) -> None:
    active = cluster.ask("GET", "/v1/jobs", states="active", limit=10)["jobs"]
    _require(not active, f"unknown jobs are active: {active}")
    last: list[object] = []

    def is_free() -> bool:
        """Polled: an agent may be reconnecting, and orphans may be ending."""
        nodes = cluster.ask("GET", "/v1/resources")["nodes"]
        last[:] = [node for node in nodes if not node["up"] or node["cores_free"] != cluster.cores]
        return not last

    until(is_free, lambda: f"every core is free: {last}", 20.0)
    for table in ("allocations", "allocation_slots"):
        _require(not (rows := cluster.rows(f"SELECT * FROM {table}")), f"{table}: {rows}")
    open_intents: list[object] = []

    def is_settled() -> bool:
        open_intents[:] = cluster.rows("SELECT * FROM intents")
        return not open_intents

    until(is_settled, lambda: f"no intent is open: {open_intents}", 10.0)

    def kept_tasks() -> list[str]:
        return [
            str(path) for kind in ("tasks", "gone") for path in cluster.paths.state.glob(f"agents/*/{kind}/*")
        ]

    until(lambda: not kept_tasks(), lambda: f"agents have removed the ended tasks: {kept_tasks()}", 10.0)
    _require(not cluster.running_tasks(), "a task runs although no job does")
