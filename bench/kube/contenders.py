"""The contenders: kube-scheduler, Penstock, and bare bindings, which show the API server's own rate.

Each is started on a control plane on which pods with its schedulerName already exist, and is stopped before
the next one starts.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, Protocol

import psycopg

from bench.kube.plane import NAMESPACE, Plane
from penstock.cli.client import ApiClient
from penstock.errors import PenstockError
from penstock.paths import paths_of
from penstock.store.embedded import EmbeddedPostgres

__all__ = ["Binder", "Contender", "KubeScheduler", "Penstock", "log_since"]

_STOP_S: Final = 60.0
_KUBE_SCHEDULER: Final = "kube-scheduler"
_ROOT: Final = Path(__file__).resolve().parents[2]


class Contender(Protocol):
    name: str
    scheduler: str  # the schedulerName of its pods
    log: Path
    up: bytes  # the log message that shows that it begins to read the cluster

    def start(self) -> None: ...

    def stop(self) -> None:
        """Stops it, if it runs, and returns after it has exited."""

    def is_alive(self) -> bool: ...

    def processes(self) -> dict[str, int]:
        """PIDs of its running processes by name: `scheduler`, `database`."""


def log_since(log: Path, offset: int) -> bytes:
    """The content of a log after its first `offset` bytes."""
    try:
        with log.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


class KubeScheduler:
    name = _KUBE_SCHEDULER
    scheduler = "default-scheduler"
    up = b"Starting Kubernetes Scheduler"

    def __init__(self, plane: Plane) -> None:
        self._cluster = plane.cluster
        self.log = plane.cluster.logs / f"{_KUBE_SCHEDULER}.log"
        self._is_started = False

    def start(self) -> None:
        self._cluster.start_component(_KUBE_SCHEDULER)
        self._is_started = True

    def stop(self) -> None:
        if self._is_started:
            self._cluster.stop_component(_KUBE_SCHEDULER)
            self._is_started = False

    def is_alive(self) -> bool:
        return self._is_started and self._cluster.component(_KUBE_SCHEDULER).exit_code is None

    def processes(self) -> dict[str, int]:
        return {"scheduler": self._cluster.component(_KUBE_SCHEDULER).pid} if self._is_started else {}


class _Process:
    """A Python module run as a process, with its output in a log file."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, argv: list[str], environ: dict[str, str] | None = None) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=_ROOT,
                env={**os.environ, **(environ or {})},
            )

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def processes(self) -> dict[str, int]:
        return {} if self._process is None else {"scheduler": self._process.pid}


class Binder:
    name = "bare binds"
    scheduler = "nobody"
    up = b"up"

    def __init__(self, plane: Plane) -> None:
        self.log = plane.directory / "binder.log"
        self._plane = plane
        self._process = _Process(self.log)

    def start(self) -> None:
        plane = self._plane
        arguments = [str(plane.cluster.kubeconfig), NAMESPACE, self.scheduler, str(plane.nodes)]
        self._process.start(["bench.kube.binder", *arguments])

    def stop(self) -> None:
        self._process.stop()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def processes(self) -> dict[str, int]:
        return self._process.processes()


class Penstock:
    """Penstock with its own database, the permissions of its ServiceAccount, and default settings."""

    name = "Penstock"
    scheduler = "penstock"
    up = b"acquired lease"  # logged by kube/lease.py
    ready = b"ready: epoch"  # logged by app/daemon.py

    def __init__(self, plane: Plane, number: int, *, is_sampled: bool = False) -> None:
        self._kubeconfig = plane.cluster.penstock_kubeconfig
        self._state = plane.directory / f"p{number}"
        self._samples = plane.directory / f"p{number}.json" if is_sampled else None
        self._environ = {"PENSTOCK_RUNTIME": str(plane.directory)}
        self._paths = paths_of(str(self._state), self._environ)
        self.log = plane.directory / f"p{number}.log"
        self._process = _Process(self.log)

    def start(self) -> None:
        program = ["penstock.app"]
        if self._samples is not None:
            program = ["bench.kube.sampled", str(self._samples)]
        options = ["--state", str(self._state), "--kubeconfig", str(self._kubeconfig)]
        self._process.start([*program, "serve", "--kube", *options], self._environ)

    def stop(self) -> None:
        self._process.stop()
        with contextlib.suppress(PenstockError):
            EmbeddedPostgres(self._paths).stop()

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def processes(self) -> dict[str, int]:
        found = self._process.processes()
        database = EmbeddedPostgres(self._paths).pid()
        if found and database is not None:
            found["database"] = database
        return found

    def queue(self, limit: int) -> list[str]:
        """The names of the first pending jobs, in the order of the queue."""
        jobs = ApiClient(self._paths).get("/v1/jobs", states="pending", limit=limit)["jobs"]
        return [str(job["name"]) for job in jobs]

    def written(self) -> tuple[int, int]:
        """The transactions and rows that its database has written since it was created."""
        with psycopg.connect(EmbeddedPostgres(self._paths).start()) as connection:
            found = connection.execute(
                "SELECT xact_commit, tup_inserted + tup_updated FROM pg_stat_database"
                " WHERE datname = current_database()"
            ).fetchone()
        assert found is not None
        return int(found[0]), int(found[1])

    def samples(self) -> dict[str, dict[str, int]]:
        """Sample counts by package and by function; empty unless it is sampled."""
        if self._samples is None or not self._samples.exists():
            return {}
        counts = json.loads(self._samples.read_text("utf-8"))
        return {"packages": counts["packages"], "functions": counts["functions"]}
