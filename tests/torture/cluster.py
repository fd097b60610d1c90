"""A real instance in a temporary directory: its process, its agents and its database, each of which a test
may kill.

The instance runs in the foreground as a child process, so a kill can be told from an exit. Failpoints are
armed by files, for the first process that reaches them. A request to a dead instance restarts it, as a
service manager would.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from penstock.agent.processes import TOKEN_VARIABLE, open_pidfd
from penstock.agent.task_dirs import AgentDirectory, TaskDirectory
from penstock.cli.client import ApiClient, NoInstance, RequestRefused, StreamBroken
from penstock.paths import paths_of
from penstock.store.embedded import EmbeddedPostgres

__all__ = ["DEADLINE_S", "Cluster", "InvariantViolation", "cluster", "until"]

DEADLINE_S = 60.0
_LOG_KEPT = 4000

Found = TypeVar("Found")
Doc = dict[str, Any]


class InvariantViolation(AssertionError):
    """An invariant does not hold."""


def until(
    poll: Callable[[], Found | None], what: str | Callable[[], str], timeout_s: float = DEADLINE_S
) -> Found:
    """Polls until the result is true, and returns it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = poll()
        if found:
            return found
        time.sleep(0.01)
    raise InvariantViolation(f"not within {timeout_s:g} s: {what if isinstance(what, str) else what()}")


class Cluster:
    def __init__(
        self, *, nodes: int = 3, cores: int = 2, config: str = 'grace = "1s"\n', database: str = ""
    ) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="pt-", dir="/tmp"))
        self.base.chmod(0o711)  # the database runs as another user
        self.nodes, self.cores = nodes, cores
        self.points = self.base / "points"
        self.ledger = self.base / "ledger"
        for path in (self.points, self.ledger, self.ledger / "locks"):
            path.mkdir()
        self._environment = {**os.environ, "PENSTOCK_RUNTIME": str(self.base / "r")}
        self.paths = paths_of(str(self.base / "s"), self._environment)
        self.database = database
        self.client = ApiClient(self.paths)
        self.kills = 0
        (self.base / "config.toml").write_text(config)
        self._process: subprocess.Popen[bytes] | None = None

    # The instance

    @property
    def log(self) -> str:
        path = self.base / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def launch(self, *extra: str) -> subprocess.Popen[bytes]:
        """Starts a process of the instance; does not wait for it."""
        command = [sys.executable, "-m", "penstock.cli", "start", "--foreground"]
        command += ["--state", str(self.paths.state), "--config", str(self.base / "config.toml")]
        command += ["--nodes", str(self.nodes), "--cores", str(self.cores), *extra]
        with open(self.base / "log", "ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={
                    **self._environment,
                    "PENSTOCK_FAILPOINTS": f"@{self.points}",
                    "PENSTOCK_DATABASE": self.database,
                },
                start_new_session=True,
            )

    def start(self) -> None:
        """Starts the instance; restarts it if a failpoint kills it meanwhile."""
        self._process = self.launch()
        self.wait_ready()

    def is_dead(self) -> bool:
        """Whether the instance was killed. Raises if it exited by itself."""
        if self._process is None:
            return True
        code = self._process.poll()
        if code is not None and code != -signal.SIGKILL:
            raise InvariantViolation(f"the instance exited by itself with {code}:\n{self.log[-_LOG_KEPT:]}")
        return code is not None

    def restart_if_dead(self) -> None:
        """Restarts a killed instance, as a service manager would."""
        if self.is_dead():
            self._process = self.launch()

    def wait_ready(self, timeout_s: float = DEADLINE_S) -> Doc:
        def ready() -> Doc | None:
            self.restart_if_dead()
            with suppress(NoInstance, StreamBroken, RequestRefused):
                found = self.client.get("/v1/status")
                return found if found["instance"]["ready"] else None
            return None

        return until(ready, "the instance is ready", timeout_s)

    def ask(self, method: str, path: str, body: object = None, **query: object) -> Doc:
        """Sends a request until it is answered, also across kills of the instance. Raises a refusal."""

        def attempt() -> Doc | None:
            self.restart_if_dead()
            try:
                return self.client.post(path, body) if method == "POST" else self.client.get(path, **query)
            except (NoInstance, StreamBroken):
                return None
            except RequestRefused as refused:
                if refused.status != 503:
                    raise
                return None

        return until(attempt, f"an answer to {method} {path}")

    def status(self) -> Doc:
        return self.ask("GET", "/v1/status")

    # Kills

    def arm(self, point: str) -> None:
        (self.points / point).touch()

    def disarm(self, point: str) -> bool:
        """Disarms a point; returns whether it had fired, which counts as a kill."""
        try:
            (self.points / point).unlink()
        except FileNotFoundError:
            self.kills += 1
            return True
        return False

    def has_fired(self, point: str) -> bool:
        return not (self.points / point).exists()

    def kill_instance(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
            self.kills += 1

    def agent_pid(self, node: str) -> int | None:
        """Returns the pid of the running agent."""
        directory = self.paths.agent(node)
        with suppress(OSError, ValueError):
            pid = int((directory / "agent.lock").read_text())
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if b"penstock.agent" in words and os.fsencode(directory) in words:
                return pid
        return None

    def kill_agent(self, node: str) -> bool:
        pid = self.agent_pid(node)
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
            return True
        return False

    def running_tasks(self) -> list[TaskDirectory]:
        """Returns the tasks with a started supervisor and without an exit."""
        found = []
        for node in range(self.nodes):
            for task in AgentDirectory(self.paths.agent(f"node{node}")).tasks():
                with suppress(OSError):
                    if task.started() is not None and task.exited() is None:
                        found.append(task)
        return found

    def kill_supervisor(self, rng: random.Random) -> str:
        """Kills a random supervisor; returns its member, or an empty string."""
        tasks = self.running_tasks()
        rng.shuffle(tasks)
        for task in tasks:
            with suppress(OSError):
                accepted, started = task.accepted(), task.started()
                pidfd = open_pidfd(started.pid, started.ticks) if started is not None else None
                if accepted is None or pidfd is None:
                    continue
                try:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
                self.kills += 1
                return accepted.spec.member
        return ""

    @property
    def embedded(self) -> EmbeddedPostgres:
        return EmbeddedPostgres(self.paths)

    def kill_database(self) -> bool:
        pid = self.embedded.pid()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
            return True
        return False

    # Prevention of an agent restart

    @contextmanager
    def agent_prevented(self, node: str) -> Iterator[None]:
        """Damages the epoch file of a node, so that every agent that starts there exits."""
        epoch = self.paths.agent(node) / "epoch"
        kept = epoch.read_bytes()
        epoch.write_bytes(b"damaged\n")
        try:
            yield
        finally:
            epoch.write_bytes(kept)

    # Inspection and cleanup

    def rows(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        url = self.database or self.embedded.start()
        with psycopg.connect(url) as connection:
            return connection.execute(query.encode(), values).fetchall()

    def processes(self) -> list[str]:
        """Returns the processes of this cluster, found by command line or by the environment of tasks."""
        base, token = os.fsencode(self.base), TOKEN_VARIABLE.encode()
        found = []
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                with suppress(OSError):
                    words = Path(f"/proc/{name}/cmdline").read_bytes()
                    environment = Path(f"/proc/{name}/environ").read_bytes()
                    if base in words or (base in environment and token in environment):
                        found.append(f"{name}: {words.replace(bytes(1), b' ').decode(errors='replace')}")
        return found

    def stop(self) -> None:
        """Shuts down and checks that no process is left."""
        self.wait_ready()
        process = self._process
        assert process is not None
        self.client.post("/v1/shutdown", {"keep_tasks": False})
        code = process.wait(DEADLINE_S)
        if code != 0:
            raise InvariantViolation(f"it stopped with {code}:\n{self.log[-_LOG_KEPT:]}")
        until(lambda: not self.processes(), lambda: f"no process is left: {self.processes()}", 10.0)

    def destroy(self) -> None:
        """Kills every process of the cluster, also after a failed test."""
        for path in self.points.iterdir():
            path.unlink(missing_ok=True)
        if self._process is not None:
            self._process.kill()
            self._process.wait()

        def gone() -> bool:
            left = self.processes()
            for line in left:
                with suppress(ProcessLookupError):
                    os.kill(int(line.partition(":")[0]), signal.SIGKILL)
            return not left

        until(gone, "everything is dead")

    def remove(self) -> None:
        shutil.rmtree(self.base, ignore_errors=True)


@contextmanager
def cluster(**settings: Any) -> Iterator[Cluster]:
    """A temporary started cluster; shut down after success, and removed in any case."""
    one = Cluster(**settings)
    try:
        one.start()
        yield one
        one.stop()
    finally:
        one.destroy()
        one.remove()
