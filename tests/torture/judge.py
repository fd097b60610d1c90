"""The verdict, from what the jobs themselves wrote, what the API says and what the database holds.

Nobody who could be wrong in the same way is asked: a task that ran twice has two lines, a core that was given
twice has a conflict, and a unit that was freed twice or never has a row or a count that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from penstock.model.job import JobEvent, JobState, state_after
from tests.torture.cluster import Broken, Cluster, until
from tests.torture.workload import Given, Workload

__all__ = ["judge", "wait_over"]


def wait_over(cluster: Cluster, workload: Workload, within_s: float = 60.0) -> None:
    """Until every job is inactive, however often something dies meanwhile."""
    left = {str(job.number) for job in workload.jobs}

    def over() -> bool:
        told = cluster.ask("GET", "/v1/jobs", states="active", limit=10_000)
        left.intersection_update({job["id_dec"] for job in told["jobs"]})
        return not left

    def stories() -> str:
        lines = ["all jobs are over"]
        for number in sorted(left):
            log = cluster.ask("GET", f"/v1/jobs/{number}/eventlog")["events"]
            doc = cluster.ask("GET", f"/v1/jobs/{number}")
            names = [event["name"] for event in log]
            lines.append(f"{number}: {doc['state']} {doc['reason']} {names} {doc.get('members')}")
        return "\n".join(lines)

    until(over, stories, within_s)


def judge(cluster: Cluster, workload: Workload, killed: Collection[str] = (), deaths: int = 0) -> None:
    """All jobs are over. `killed`: members whose supervisors were; `deaths`: of others, whoever they were."""
    unknown = [
        note
        for job in workload.jobs
        for note in _judge_job(cluster, job, {member for member in killed if member}, deaths)
    ]
    enough = len(unknown) <= len(set(killed)) + deaths
    _require(enough, f"killed were only {sorted(killed)} and {deaths} others, but: {unknown}")
    _judge_ledger(cluster)
    _judge_submissions(cluster, workload)
    _judge_resources(cluster)


def _require(holds: object, what: str) -> None:
    if not holds:
        raise Broken(what)


def _judge_job(cluster: Cluster, job: Given, killed: set[str], deaths: int) -> list[str]:
    """Returns what is said of ends that nobody knows."""
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
    again = {"never": 0, "node-failure": len(lost), "always": len(lost) + len(unknown)}[job.asked.requeue]
    _require(names["requeue"] <= again, f"run again against its policy ({job.asked.requeue}): {story}")
    ours = {member for member in killed if member.startswith(f"{job.number}/")}
    if not lost and len(unknown) <= names["requeue"]:
        depends = bool(job.asked.jobspec["attributes"]["system"].get("dependencies"))
        expected = job.asked.results | ({"COMPLETED", "CANCELED", "FAILED"} if depends and killed else set())
        _require(doc["result"] in expected, f"not {sorted(expected)}: {story}")
    _require(len(unknown) <= len(ours) + deaths, f"its end is unknown, but nobody was killed: {story}")
    _judge_tasks(cluster, job, doc, attempts, story)
    return [f"{job.id} ({job.number}): {event.context.get('note')}" for event in unknown]


def _judge_tasks(cluster: Cluster, job: Given, doc: dict[str, Any], attempts: int, story: str) -> None:
    for rank in range(job.asked.ntasks):
        path = cluster.ledger / f"{job.number}.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        begun = Counter(int(line.split()[1]) for line in lines if line.startswith("start"))
        ended = Counter(int(line.split()[1]) for line in lines if line.startswith("end"))
        told = f"rank {rank} wrote {lines}: {story}"
        _require(max(begun.values(), default=0) <= 1, f"a task ran twice in one attempt: {told}")
        _require(set(begun) <= set(range(1, attempts + 1)), f"an attempt that never was: {told}")
        _require(not ended - begun, f"ended without a beginning: {told}")
        if doc["result"] == "COMPLETED":
            _require(ended[attempts] == 1, f"completed, but did not come to its end: {told}")


def _judge_ledger(cluster: Cluster) -> None:
    conflict = cluster.ledger / "conflict"
    _require(not conflict.exists(), "over-committed: " + (conflict.read_text() if conflict.exists() else ""))


def _judge_submissions(cluster: Cluster, workload: Workload) -> None:
    found: dict[str, list[int]] = {}
    rows = cluster.rows("SELECT key, id FROM jobs WHERE key = ANY(%s) ORDER BY id", [list(workload.keys)])
    for key, number in rows:
        found.setdefault(key, []).append(number)
    numbers = {job.id: job.number for job in workload.jobs}
    for key, ids in workload.keys.items():
        told = sorted(numbers[text] for text in ids)
        _require(found.get(key) == told, f"{key}: told {told}, recorded {found.get(key)}")


def _judge_resources(cluster: Cluster) -> None:
    active = cluster.ask("GET", "/v1/jobs", states="active", limit=10)["jobs"]
    _require(not active, f"jobs that nobody knows of are active: {active}")
    last: list[object] = []

    def is_free() -> bool:
        """Soon: an agent may be on its way back, and the end of what was left over may be under way."""
        nodes = cluster.ask("GET", "/v1/resources")["nodes"]
        last[:] = [node for node in nodes if not node["up"] or node["cores_free"] != cluster.cores]
        return not last

    until(is_free, lambda: f"every core is free: {last}", 20.0)
    for table in ("allocations", "freed_slots"):
        _require(not (rows := cluster.rows(f"SELECT * FROM {table}")), f"{table}: {rows}")
    open_intents: list[object] = []

    def is_settled() -> bool:
        open_intents[:] = cluster.rows("SELECT * FROM intents")
        return not open_intents

    until(is_settled, lambda: f"no intent is open: {open_intents}", 10.0)

    def remembered() -> list[str]:
        return [
            str(path) for kind in ("tasks", "gone") for path in cluster.paths.state.glob(f"agents/*/{kind}/*")
        ]

    until(lambda: not remembered(), lambda: f"agents have forgotten what is over: {remembered()}", 10.0)
    _require(not cluster.running_tasks(), "a task runs although no job does")
