"""`python -m tests.kubernetes.soak MINUTES [SEED]`: a busy cluster for a while; then all must be in order.

Gangs, endless pods, pods that no node can hold, failing and deleted pods, changed and deleted nodes, and
kills of Penstock, its database and the API server go on at random, from one seed. Meanwhile each gang that
the cluster can hold must start within `START_MAX_S`, and on claimed nodes only pods start that the rule
allows. In the last third Penstock is not killed, and its memory must not grow. At the end the load stops:
what can end must end, no group may be incomplete, no pod was bound twice, and the auditor must report no
difference.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from penstock.cli.client import job_path
from penstock.devcluster.client import StatusError
from penstock.devcluster.settings import DevSettings
from penstock.errors import PenstockError
from penstock.model.duration import parse_duration
from penstock.paths import paths_of
from penstock.store.embedded import EmbeddedPostgres
from tests.kubernetes.faults import (
    api_of,
    bare_gang,
    bindings,
    create,
    delete_lease,
    foreign_pod,
    job_gang,
    new_namespace,
    replica_set_gang,
)
from tests.kubernetes.site import Replica, Site, simulated_site, wait_for

NODES, CPU = 12, 4
STARVATION_AFTER_S, CLAIM_BACKFILL_MAX_S = 15, 10
ENDLESS_S = (5.0, 40.0)  # how long pods without a limit run, until they are deleted
START_MAX_S = 240.0  # several times the run time of all that can be before a gang on its claimed nodes
DRAIN_S = 240.0  # from the end of the load until everything has ended
ENDLESS_CPU_MAX = NODES * CPU * 0.6
MEMORY_GROWTH_MAX = 1.15

CONFIGURATION = f"""
starvation_after = "{STARVATION_AFTER_S}s"
claim_backfill_max = "{CLAIM_BACKFILL_MAX_S}s"
"""

Document = dict[str, Any]


class Violation(AssertionError):
    """Something that must never happen has happened."""


@dataclass
class Gang:
    """A gang that the cluster can hold, and when it was created."""

    namespace: str
    name: str
    size: int
    created_at: float
    started_at: float | None = None


@dataclass
class Start:
    """A pod of Penstock that was bound."""

    pod: str
    node: str
    job: str
    at: float
    limit: str  # of penstock.dev/limit; "": none


@dataclass(frozen=True)
class Claimed:
    """A node that a job keeps for itself; the times are those of Penstock's cycles."""

    node: str
    job: str
    since: float


@dataclass
class ClaimWatch:
    """Claims as the timeline shows them about once a second, and the starts that they may forbid.

    The timeline says since when every cycle has kept the node. A job that starts there between that time and
    the last time at which the claim was seen has broken the rule, if it was submitted later than the job with
    the claim.
    """

    replica: Replica
    seen_until: dict[Claimed, float] = field(default_factory=dict)
    starts: dict[str, Start] = field(default_factory=dict)  # by uid, not yet checked
    seen: set[str] = field(default_factory=set)  # uids
    claims: set[str] = field(default_factory=set)  # jobs that had one
    checked: int = 0

    def look(self, pods: list[Document]) -> None:
        now = time.time()
        for claimed in self._claimed():
            self.seen_until[claimed] = now
            self.claims.add(claimed.job)
        for pod in pods:
            self._note(pod)
        for uid in [uid for uid, start in self.starts.items() if start.at < now - 6.0]:
            self._check(self.starts.pop(uid))
        self.seen_until = {claimed: at for claimed, at in self.seen_until.items() if at > now - 120.0}

    def _claimed(self) -> Iterator[Claimed]:
        with contextlib.suppress(PenstockError, OSError):
            for node in self.replica.client.get("/v1/timeline")["nodes"]:
                for span in node["spans"]:
                    if span["kind"] == "claimed":
                        yield Claimed(node["name"], span["job"], span["from"])

    def _note(self, pod: Document) -> None:
        metadata, node = pod["metadata"], pod["spec"].get("nodeName", "")
        job = metadata.get("annotations", {}).get("penstock.dev/job", "")
        if not node or not job or metadata["uid"] in self.seen:
            return
        for condition in pod["status"].get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "True":
                self.seen.add(metadata["uid"])
                at = datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
                limit = metadata["annotations"].get("penstock.dev/limit", "")
                self.starts[metadata["uid"]] = Start(metadata["name"], node, job, at, limit)

    def _check(self, start: Start) -> None:
        for claimed, until in self.seen_until.items():
            if claimed.node != start.node or claimed.job == start.job or start.at < claimed.since:
                continue
            self.checked += 1
            if start.limit and parse_duration(start.limit) <= CLAIM_BACKFILL_MAX_S:
                continue
            own, other = self._job(start.job), self._job(claimed.job)
            if own is None or other is None or own["t_submit"] <= other["t_submit"]:
                continue
            # Members that join or replace others start later than their job.
            if own["t_run"] is not None and claimed.since < own["t_run"] < until:
                raise Violation(
                    f"{start} on a node that {claimed} kept until {until} at least\n"
                    f"its job: {own}\n{self._eventlog(start.job)}\n"
                    f"the job with the claim: {other}\n{self._eventlog(claimed.job)}"
                )

    def _eventlog(self, job: str) -> str:
        with contextlib.suppress(PenstockError, OSError):
            return json.dumps(self.replica.client.get(job_path(job, "eventlog")))
        return "no eventlog"

    def _job(self, job: str) -> Document | None:
        with contextlib.suppress(PenstockError, OSError):
            found = self.replica.client.get(job_path(job))
            return dict(found.get("job", found))
        return None


@dataclass
class Soak:
    site: Site
    chance: random.Random
    namespaces: tuple[str, ...]
    ends_at: float
    kills_until: float
    replica: Replica
    watch: ClaimWatch
    created: int = 0
    gangs: dict[tuple[str, str], Gang] = field(default_factory=dict)
    endless_cpu: dict[str, int] = field(default_factory=dict)  # by the path of what is deleted later
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    memory: list[tuple[float, int]] = field(default_factory=list)  # (time, bytes), in the last third

    # The load

    def run(self) -> None:
        """Creates load and faults until the time is over; looks at the pods about once a second."""
        for every_s, action in LOAD:
            self._repeat(every_s, action)
        said_at = looked_at = 0.0
        while (now := time.monotonic()) < self.ends_at:
            self.due.sort(key=lambda one: one[:2])
            while self.due and self.due[0][0] <= now:
                self.due.pop(0)[2]()
            self._revive()
            if now - looked_at >= 1.0:
                looked_at = now
                self.look()
            if now - said_at >= 30.0:
                said_at = now
                say(f"{self.ends_at - now:5.0f} s left: {self._describe_counts()}")
            time.sleep(0.05)

    def _repeat(self, every_s: float, action: Callable[[Soak], None]) -> None:
        """Does something now and then, about every `every_s` seconds."""

        def do() -> None:
            name = action.__name__.strip("_")
            if time.monotonic() < self.ends_at:
                self.counts[name] = self.counts.get(name, 0) + 1
                action(self)
                self._later(self.chance.uniform(0.5, 1.5) * every_s, do)

        self._later(self.chance.uniform(0.0, every_s), do)

    def _later(self, after_s: float, do: Callable[[], None]) -> None:
        self.created += 1
        self.due.append((time.monotonic() + after_s, self.created, do))

    def _name(self, kind: str) -> str:
        self.created += 1
        return f"{kind}{self.created}"

    def _create(self, namespace: str, *documents: Document) -> None:
        for document in documents:
            self._request(partial(create, self.site, namespace, document))

    def _request(self, do: Callable[[], object]) -> None:
        """Repeats a request while the API server restarts. One that was carried out before counts."""

        def is_done() -> bool:
            try:
                do()
            except StatusError as error:
                return error.status in (404, 409)
            except PenstockError:
                return False
            return True

        wait_for(is_done, "the API server to accept a request", 60.0)

    def _delete(self, path: str) -> None:
        self.endless_cpu.pop(path, None)
        self._request(
            partial(
                api_of(self.site).delete, path, {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
            )
        )

    def _patch(self, path: str, body: Document) -> None:
        self._request(partial(api_of(self.site).request, "PATCH", path, body, "application/merge-patch+json"))

    def _add_gang(self, name: str, namespace: str, size: int, *documents: Document) -> None:
        self._create(namespace, *documents)
        self.gangs[(namespace, name)] = Gang(namespace, name, size, time.monotonic())

    def _gang(self) -> None:
        """A gang with a short run time, as a Job or as bare pods."""
        namespace, size = self.chance.choice(self.namespaces), self.chance.randint(1, 5)
        cpu, run = self.chance.choice(("500m", "1", "2")), self.chance.choice(("1s", "3s", "8s"))
        more = {"limit": f"{self.chance.choice((9, 30))}s"} if self.chance.random() < 0.4 else {}
        name = self._name("gang")
        if self.chance.random() < 0.6:
            self._add_gang(name, namespace, size, job_gang(name, size, cpu=cpu, run=run, **more))
        else:
            self._add_gang(name, namespace, size, *bare_gang(name, size, cpu=cpu, run=run, **more))

    def _large_gang(self) -> None:
        """A gang that needs most nodes completely: without claims, endless pods would keep it waiting."""
        waits = sum(1 for gang in self.gangs.values() if gang.size > NODES // 2 and gang.started_at is None)
        if waits < 2:
            name, namespace = self._name("large"), self.chance.choice(self.namespaces)
            size = self.chance.randint(NODES // 2 + 1, NODES - 3)
            self._add_gang(name, namespace, size, job_gang(name, size, cpu="3500m", run="3s"))

    def _endless_pod(self) -> None:
        """A pod without a limit, deleted after a while."""
        cpu = self.chance.randint(1, 3)
        if sum(self.endless_cpu.values()) + cpu <= ENDLESS_CPU_MAX:
            name, namespace = self._name("endless"), self.chance.choice(self.namespaces)
            path = f"/api/v1/namespaces/{namespace}/pods/{name}-0"
            self.endless_cpu[path] = cpu
            self._create(namespace, *bare_gang(name, 1, cpu=str(cpu), run="inf"))
            self._later(self.chance.uniform(*ENDLESS_S), partial(self._delete, path))

    def _endless_set(self) -> None:
        """A ReplicaSet, scaled and deleted after a while."""
        size, later_size = self.chance.randint(2, 4), self.chance.randint(1, 4)
        if sum(self.endless_cpu.values()) + 4 <= ENDLESS_CPU_MAX:
            name, namespace = self._name("set"), self.chance.choice(self.namespaces)
            path = f"/apis/apps/v1/namespaces/{namespace}/replicasets/{name}"
            self.endless_cpu[path] = 4
            self._create(namespace, replica_set_gang(name, size, cpu="1"))
            scale = partial(self._patch, path, {"spec": {"replicas": later_size}})
            lasts_s = self.chance.uniform(*ENDLESS_S)
            self._later(lasts_s / 2, scale)
            self._later(lasts_s, partial(self._delete, path))

    def _unsatisfiable_pod(self) -> None:
        """Pods that no node can ever hold, each with a request of its own."""
        name, namespace = self._name("never"), self.chance.choice(self.namespaces)
        self._create(namespace, *bare_gang(name, 1, cpu=str(CPU * 2 + self.created), run="1s"))
        path = f"/api/v1/namespaces/{namespace}/pods/{name}-0"
        self._later(self.chance.uniform(10.0, 60.0), partial(self._delete, path))

    def _incomplete_group(self) -> None:
        """A group that never gets all of its pods."""
        name, namespace = self._name("part"), self.chance.choice(self.namespaces)
        self._create(namespace, *bare_gang(name, 3, cpu="1", run="1s")[:2])
        for index in range(2):
            path = f"/api/v1/namespaces/{namespace}/pods/{name}-{index}"
            self._later(self.chance.uniform(10.0, 40.0), partial(self._delete, path))

    def _foreign_pod(self) -> None:
        """A pod of the default scheduler, which also lands on claimed nodes."""
        name, namespace = self._name("other"), self.chance.choice(self.namespaces)
        self._create(namespace, foreign_pod(name, cpu=self.chance.choice(("500m", "2")), run="6s"))

    # Faults

    def _delete_running_pod(self) -> None:
        """Deletes a running pod that a controller replaces."""
        running = [
            pod
            for pod in self._pods()
            if pod["metadata"].get("ownerReferences") and pod["status"]["phase"] == "Running"
        ]
        if running:
            pod = self.chance.choice(running)["metadata"]
            self._delete(f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}")

    def _change_node(self) -> None:
        """Changes a label, or cordons a node for a few seconds."""
        path = f"/api/v1/nodes/{self.chance.choice(self._nodes())}"
        if self.chance.random() < 0.5:
            self._patch(path, {"metadata": {"labels": {"soak": self._name("v")}}})
            return
        self._patch(path, {"spec": {"unschedulable": True}})
        undo = partial(self._patch, path, {"spec": {"unschedulable": None}})
        self._later(self.chance.uniform(1.0, 8.0), undo)

    def _replace_node(self) -> None:
        assert self.site.cluster is not None
        self._delete(f"/api/v1/nodes/{self.chance.choice(self._nodes())}")
        self._request(partial(self.site.cluster.add_nodes, 1))

    def _kill_penstock(self) -> None:
        if self.replica.is_alive() and time.monotonic() < self.kills_until:
            self.replica.kill()

    def _kill_database(self) -> None:
        pid = EmbeddedPostgres(paths_of(str(self.replica.state), os.environ)).pid()
        if pid is not None and time.monotonic() < self.kills_until:
            os.kill(pid, signal.SIGKILL)

    def _kill_api_server(self) -> None:
        assert self.site.cluster is not None
        if time.monotonic() < self.kills_until:
            self.site.cluster.kill_component("kube-apiserver")
            time.sleep(self.chance.choice((0.0, 1.0, 4.0)))
            self.site.cluster.start_component("kube-apiserver")

    def _revive(self) -> None:
        if not self.replica.is_alive():
            self._request(lambda: delete_lease(self.site))
            self.replica.start()

    # What is observed

    def _nodes(self) -> list[str]:
        found: list[str] = []
        self._request(
            lambda: found.extend(
                node["metadata"]["name"] for node in api_of(self.site).get("/api/v1/nodes")["items"]
            )
        )
        return sorted(set(found))

    def _pods(self) -> list[Document]:
        found: list[Document] = []
        for namespace in self.namespaces:
            with contextlib.suppress(PenstockError):
                found += api_of(self.site).get(f"/api/v1/namespaces/{namespace}/pods")["items"]
        return found

    def look(self) -> None:
        """Notes which gangs have started, and whether one waits for too long."""
        bound: dict[tuple[str, str], int] = {}
        found = self._pods()
        self.watch.look(found)
        for pod in found:
            metadata = pod["metadata"]
            name = metadata.get("annotations", {}).get("penstock.dev/group")
            name = name or metadata.get("labels", {}).get("batch.kubernetes.io/job-name", "")
            if pod["spec"].get("nodeName"):
                key = (metadata["namespace"], name)
                bound[key] = bound.get(key, 0) + 1
        now = time.monotonic()
        for key, gang in self.gangs.items():
            if gang.started_at is None and bound.get(key, 0) >= gang.size:
                gang.started_at = now
            if gang.started_at is None and now - gang.created_at > START_MAX_S:
                raise Violation(
                    f"{gang.name} of {gang.size} pods has waited for {START_MAX_S:g} s\n{self._state()}"
                )
        if now >= self.kills_until and self.replica.is_alive():
            self.memory.append((now, resident_bytes(self.replica)))

    def _describe_counts(self) -> str:
        waiting = sum(1 for gang in self.gangs.values() if gang.started_at is None)
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        claims = f"{len(self.watch.claims)} claims, {self.watch.checked} starts on claimed nodes"
        return f"{len(self.gangs)} gangs, {waiting} wait, {claims}; {done}"

    def _state(self) -> str:
        lines: list[str] = []
        with contextlib.suppress(PenstockError, OSError):
            lines = [
                f"{job['id']} {job['name']} {job['state']} {job['reason']}" for job in self.replica.jobs()
            ]
        return "\n".join([*lines, self.replica.log_tail(40)])

    # Checks at the end

    def finish(self) -> None:
        """Ends the load, and checks that everything ends and is in order."""
        for path in list(self.endless_cpu):
            self._delete(path)
        while self.due:  # Deletions, uncordons: faults have ended with the time.
            self.due.pop(0)[2]()
        self._revive()
        self.replica.wait_ready(90)
        deadline = time.monotonic() + DRAIN_S
        while left := self._left():
            if time.monotonic() > deadline:
                raise Violation(f"{left} have not ended\n{self._state()}")
            self.look()
            time.sleep(0.5)
        for job in self.replica.jobs():
            if job["incomplete_reason"]:
                raise Violation(f"{job['name']} is incomplete: {job['incomplete_reason']}")
        for namespace in self.namespaces:
            done = [one.pod for one in bindings(self.site, namespace) if one.code == 201]
            if len(done) != len(set(done)):
                raise Violation("a pod was bound twice")
        self.site.wait_consistent(self.replica, 90)
        self._check_memory()
        waits = [gang.started_at - gang.created_at for gang in self.gangs.values() if gang.started_at]
        say(f"longest wait {max(waits, default=0.0):.0f} s; {self._describe_counts()}")

    def _left(self) -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in self._pods()
            if pod["status"]["phase"] not in ("Succeeded", "Failed")
        ]

    def _check_memory(self) -> None:
        """Compares the largest resident set of the two halves of the last third."""
        if len(self.memory) < 20:
            return
        half = len(self.memory) // 2
        first = max(size for _, size in self.memory[:half])
        second = max(size for _, size in self.memory[half:])
        say(f"memory: {first >> 20} MiB, then {second >> 20} MiB")
        if second > first * MEMORY_GROWTH_MAX:
            raise Violation(f"the memory of Penstock grows: {first >> 20} MiB, then {second >> 20} MiB")


LOAD: tuple[tuple[float, Callable[[Soak], None]], ...] = (
    (1.5, Soak._gang),
    (20.0, Soak._large_gang),
    (2.0, Soak._endless_pod),
    (12.0, Soak._endless_set),
    (8.0, Soak._unsatisfiable_pod),
    (15.0, Soak._incomplete_group),
    (10.0, Soak._foreign_pod),
    (10.0, Soak._delete_running_pod),
    (10.0, Soak._change_node),
    (60.0, Soak._replace_node),
    (40.0, Soak._kill_penstock),
    (90.0, Soak._kill_database),
    (150.0, Soak._kill_api_server),
)


def resident_bytes(replica: Replica) -> int:
    assert replica.process is not None
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{replica.process.pid}/statm").read_text().split()[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    return 0


@contextlib.contextmanager
def _namespaces(site: Site, count: int) -> Iterator[tuple[str, ...]]:
    with contextlib.ExitStack() as stack:
        yield tuple(stack.enter_context(new_namespace(site)) for _ in range(count))


def main() -> int:
    minutes = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    is_seeded = len(sys.argv) > 2 and sys.argv[2]
    seed = int(sys.argv[2]) if is_seeded else random.SystemRandom().randrange(1 << 32)
    say(f"soak: {minutes:g} minutes, seed {seed}")
    with simulated_site(
        DevSettings(nodes=NODES, cpu=CPU), audit_every="5s", configuration=CONFIGURATION
    ) as site:
        replica = site.replica().start().wait_ready()
        with _namespaces(site, 2) as namespaces:
            now = time.monotonic()
            ends_at, kills_until = now + minutes * 60, now + minutes * 40
            watch = ClaimWatch(replica)
            soak = Soak(site, random.Random(seed), namespaces, ends_at, kills_until, replica, watch)
            try:
                soak.run()
                soak.finish()
            except BaseException:
                kept = Path(tempfile.gettempdir()) / f"penstock-soak-{seed}.log"
                with contextlib.suppress(OSError):
                    kept.write_text(replica.log.read_text())
                say(f"seed {seed}; the log is kept in {kept}")
                raise
    say("everything is in order")
    return 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
