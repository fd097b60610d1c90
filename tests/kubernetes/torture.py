"""`python -m tests.kubernetes.torture N [SEED]`: injects N random faults while gangs are created and end.

It stops at the first violated check. The same seed produces the same gangs and faults.

A round alternates between creating gangs and injecting a fault: Penstock is killed, dies at a failpoint or is
suspended; the API server, etcd or the database is killed; nodes or pods are deleted; foreign pods are
created. At the end of a round no more faults are injected: all pods that can end must end, and the state must
be consistent.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from penstock.devcluster.client import StatusError
from penstock.devcluster.settings import DevSettings
from penstock.errors import PenstockError
from penstock.paths import paths_of
from penstock.store.embedded import EmbeddedPostgres
from tests.kubernetes.faults import (
    Failpoints,
    api_of,
    bare_gang,
    bindings,
    create,
    delete_lease,
    foreign_pod,
    job_gang,
    new_namespace,
    pods,
)
from tests.kubernetes.site import Replica, Site, simulated_site, wait_for

NODES = 4
POINTS = (
    *("instance.act.before", "instance.act.after", "kube.bind.before", "kube.bind.after"),
    *("store.record.before", "store.record.after", "kube.evict.before", "kube.evict.after"),
)


class Torture:
    def __init__(self, site: Site, chance: random.Random) -> None:
        assert site.cluster is not None
        self.site, self.chance, self.cluster = site, chance, site.cluster
        self.failpoints = Failpoints(site.directory / "failpoints")
        self.failpoints.directory.mkdir()
        self.replica: Replica = site.replica("penstock", **self.failpoints.environ).start().wait_ready()
        self.faults = 0
        self.created = 0

    def round(self, wanted: int) -> None:
        with new_namespace(self.site) as namespace:
            for _ in range(wanted):
                for _ in range(self.chance.randint(1, 3)):
                    self._create_gang(namespace)
                fault = self.chance.choice(FAULTS)
                say(f"  {fault.__name__.strip('_')}")
                fault(self, namespace)
                self.faults += 1
                time.sleep(self.chance.choice((0.0, 0.3, 1.0)))
            self._check_recovery(namespace)
        wait_for(lambda: not self._jobs(), "no jobs to be left", 90.0)

    def _create_gang(self, namespace: str) -> None:
        """Creates a gang of one to four pods, as a Job or as bare pods, with a random run time."""
        self.created += 1
        size = self.chance.randint(1, 4)
        cpu, run = self.chance.choice(("500m", "1500m", "3")), self.chance.choice(("100ms", "1s", "3s"))
        name = f"gang{self.created}"
        if self.chance.random() < 0.6:
            requeue = self.chance.choice(("never", "always", "node-failure"))
            documents = [job_gang(name, size, cpu=cpu, run=run, requeue=requeue)]
        else:
            documents = bare_gang(name, size, cpu=cpu, run=run)
        for document in documents:
            self._retry(partial(create, self.site, namespace, document))

    def _retry(self, do: Callable[[], object]) -> None:
        """Retries a request while the API server restarts. A request that was already carried out counts."""

        def done() -> bool:
            try:
                do()
            except StatusError as error:
                return error.status in (404, 409)
            except PenstockError:
                return False
            return True

        wait_for(done, "the API server to accept the request", 60.0)

    def _jobs(self) -> list[object]:
        with contextlib.suppress(PenstockError, OSError):
            return list(self.replica.jobs())
        return [None]

    def restart(self) -> None:
        if not self.replica.is_alive():
            if self.chance.random() < 0.8:
                self._retry(lambda: delete_lease(self.site))
            self.replica.start()

    # Faults

    def _kill_penstock(self, namespace: str) -> None:
        del namespace
        if self.replica.is_alive():
            self.replica.kill()
        self.restart()

    def _die_at_a_failpoint(self, namespace: str) -> None:
        point = self.chance.choice(POINTS)
        self.failpoints.arm(point)
        self._create_gang(namespace)
        deadline = time.monotonic() + 5.0
        while self.replica.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        (self.failpoints.directory / point).unlink(missing_ok=True)
        self.restart()

    def _suspend_penstock(self, namespace: str) -> None:
        """Stops the process for a while, sometimes long enough for the lease to expire."""
        self.restart()
        assert self.replica.process is not None
        self.replica.process.send_signal(signal.SIGSTOP)
        self._create_gang(namespace)
        time.sleep(self.chance.choice((0.5, 2.0, 17.0)))
        self.replica.process.send_signal(signal.SIGCONT)

    def _kill_component(self, namespace: str) -> None:
        del namespace
        component = self.chance.choice(("kube-apiserver", "etcd"))
        self.cluster.kill_component(component)
        time.sleep(self.chance.choice((0.0, 1.0, 4.0, 12.0)))
        self.cluster.start_component(component)

    def _kill_database(self, namespace: str) -> None:
        del namespace
        pid = EmbeddedPostgres(paths_of(str(self.replica.state), os.environ)).pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)

    def _delete_node(self, namespace: str) -> None:
        """Deletes a node and adds another one."""
        del namespace
        found: list[str] = []
        self._retry(
            lambda: found.extend(
                node["metadata"]["name"] for node in api_of(self.site).get("/api/v1/nodes")["items"]
            )
        )
        name = self.chance.choice(sorted(found))
        self._retry(lambda: api_of(self.site).delete(f"/api/v1/nodes/{name}"))
        self._retry(lambda: self.cluster.add_nodes(1))

    def _delete_pods(self, namespace: str) -> None:
        found: list[str] = []
        self._retry(lambda: found.extend(pod["metadata"]["name"] for pod in pods(self.site, namespace)))
        for name in self.chance.sample(sorted(found), min(len(found), self.chance.randint(1, 3))):
            path = f"/api/v1/namespaces/{namespace}/pods/{name}"
            body = {"gracePeriodSeconds": 0} if self.chance.random() < 0.5 else None
            self._retry(partial(api_of(self.site).delete, path, body))

    def _create_foreign_pods(self, namespace: str) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self.created += 1
            pod = foreign_pod(f"other{self.created}", cpu=self.chance.choice(("500m", "2", "3")), run="4s")
            self._retry(partial(create, self.site, namespace, pod))

    # Checks at the end of a round

    def _check_recovery(self, namespace: str) -> None:
        """Waits until all pods that can end have ended, then checks bindings and consistency."""
        self.restart()
        self.replica.wait_ready(90)
        deadline = time.monotonic() + 150
        while self._left(namespace):
            assert time.monotonic() < deadline, self._describe(namespace)
            time.sleep(0.5)
        done = [one.pod for one in bindings(self.site, namespace) if one.code == 201]
        assert len(done) == len(set(done)), "a pod was bound twice"
        self.site.wait_consistent(self.replica, 90)

    def _left(self, namespace: str) -> list[str]:
        """Pods that should have ended and have not. A bare gang that lost a pod waits for it without end."""
        with contextlib.suppress(PenstockError):
            found = pods(self.site, namespace)
            existing = {pod["metadata"]["name"] for pod in found}
            return [
                pod["metadata"]["name"]
                for pod in found
                if pod["status"]["phase"] not in ("Succeeded", "Failed") and not _is_orphan(pod, existing)
            ]
        return ["?"]

    def _describe(self, namespace: str) -> str:
        lines = [f"{self._left(namespace)} have not ended"]
        for pod in pods(self.site, namespace):
            conditions = [
                f"{one.get('reason')}: {one.get('message')}"
                for one in pod["status"].get("conditions", ())
                if one["type"] == "PodScheduled"
            ]
            name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "-")
            lines.append(f"{name} {pod['status']['phase']} {node} {conditions}")
        lines += [f"{job['id']} {job['name']} {job['state']} {job['reason']}" for job in self.replica.jobs()]
        return "\n".join([*lines, str(self.replica.differences()), self.replica.log_tail(60)])


def _is_orphan(pod: dict[str, object], existing: set[str]) -> bool:
    """Whether a bare pod belongs to a group that has lost a pod."""
    metadata = pod["metadata"]
    assert isinstance(metadata, dict)
    annotations = metadata.get("annotations", {})
    group, size = annotations.get("penstock.dev/group"), int(annotations.get("penstock.dev/group-size", "0"))
    return bool(group) and any(f"{group}-{index}" not in existing for index in range(size))


FAULTS = (
    Torture._kill_penstock,
    Torture._die_at_a_failpoint,
    Torture._die_at_a_failpoint,
    Torture._suspend_penstock,
    Torture._kill_component,
    Torture._kill_database,
    Torture._delete_node,
    Torture._delete_pods,
    Torture._delete_pods,
    Torture._create_foreign_pods,
)


def main() -> int:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    say(f"torture: {wanted} faults, seed {seed}")
    began, rounds = time.monotonic(), 0
    with simulated_site(DevSettings(nodes=NODES, cpu=4), audit_every="1s") as site:
        torture = Torture(site, random.Random(seed))
        while torture.faults < wanted:
            try:
                torture.round(torture.chance.randint(3, 6))
            except BaseException:
                kept = Path(tempfile.gettempdir()) / f"penstock-torture-{seed}.log"
                with contextlib.suppress(OSError):
                    kept.write_text(torture.replica.log.read_text())
                say(f"round {rounds + 1}, seed {seed}; the log is kept in {kept}")
                raise
            rounds += 1
            passed_s = time.monotonic() - began
            say(f"{torture.faults:5} faults in {passed_s:5.0f} s, round {rounds}: consistent")
    return 0


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
