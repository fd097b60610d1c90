"""Real instances for tests: started with `penstock start`, used through the commands, then stopped.

Each instance has its own directory, which the account of PostgreSQL can traverse. After the stop, no process
that refers to its state directory may be left: no agent, no task, no database.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.cli.client import ApiClient
from penstock.paths import InstancePaths, paths_of
from tests.cli.terminal import Screen, Terminal, environment, on_terminal, runtime
from tests.store.servers import wait_until

__all__ = [
    "Running",
    "Sandbox",
    "kill_supervisors",
    "left_behind",
    "running_instance",
    "tasks_of",
    "temporary_sandbox",
    "wait_until",
]

PENSTOCK = Path(sys.executable).parent / "penstock"
TIMEOUT_S = 60
NODE_OPTIONS = ("--nodes", "4", "--cores", "2", "--mem", "8G")


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A temporary state directory, with or without an instance, and the commands for it."""

    directory: Path
    state: Path

    def environment(self, **extra: str) -> dict[str, str]:
        return environment(self.state, **extra)

    @property
    def paths(self) -> InstancePaths:
        return paths_of(str(self.state), self.environment())

    def call(self, *arguments: str, stdin: str = "", **extra: str) -> subprocess.CompletedProcess[str]:
        """The command with its output in a pipe, from the instance's own directory."""
        return subprocess.run(
            [PENSTOCK, *arguments],
            input=stdin,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=TIMEOUT_S,
            check=False,
            cwd=self.directory,
            env=self.environment(**extra),
        )

    def launch(self, *arguments: str, **extra: str) -> subprocess.Popen[str]:
        """Starts the command in its own session, so that signals reach no other process."""
        return subprocess.Popen(
            [PENSTOCK, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            cwd=self.directory,
            env=self.environment(**extra),
            start_new_session=True,
        )

    def ok(self, *arguments: str, **extra: str) -> str:
        """The standard output of a command that must succeed without errors."""
        done = self.call(*arguments, **extra)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def refused(self, *arguments: str, code: int, **extra: str) -> str:
        """The error of a command that must fail: one message, nothing on stdout, no traceback."""
        done = self.call(*arguments, **extra)
        assert done.returncode == code, done
        assert done.stdout == "", done
        assert done.stderr.startswith("penstock: "), done
        assert "Traceback" not in done.stderr
        return done.stderr

    def json(self, *arguments: str) -> Any:
        return json.loads(self.ok(*arguments))

    def screen(self, *arguments: str, columns: int = 80) -> Screen:
        return on_terminal(self.state, *arguments, columns=columns, still=False)

    def terminal(self, *arguments: str, columns: int = 80) -> Terminal:
        return Terminal(self.state, *arguments, columns=columns, still=False)


class Running(Sandbox):
    """A state directory with a running instance."""

    __slots__ = ()

    @property
    def client(self) -> ApiClient:
        return ApiClient(self.paths)

    def submit(self, *arguments: str) -> str:
        (job,) = self.ok("submit", *arguments).split()
        return job

    def job(self, job: str) -> Any:
        return self.client.get(f"/v1/jobs/{job.replace('ƒ', 'f')}")

    def until(self, job: str, state: str, limit_s: float = 20.0) -> Any:
        """Waits until the job is in a state; returns its document."""
        found: list[Any] = []

        def holds() -> bool:
            found[:] = [self.job(job)]
            return bool(found[0]["state"] == state)

        wait_until(holds, limit_s)
        return found[0]

    def end(self, *jobs: str) -> list[Any]:
        """Waits until the jobs are inactive; returns their documents."""
        return [self.until(job, "INACTIVE", 30.0) for job in jobs]

    def started(self, job: str) -> Any:
        """Waits until the tasks of a job run, so that they receive signals; returns its document."""
        wait_until(lambda: self.job(job)["t_start"] is not None)
        return self.job(job)

    def output(self, job: str) -> str:
        return self.call("job", "attach", job).stdout

    def clear(self) -> None:
        """Resets the instance: no jobs, no drained nodes, all queues enabled and started."""
        client = self.client
        client.post("/v1/jobs/cancel", {"all": True, "note": ""})
        client.post("/v1/queues/-/enable", {"reason": ""})
        client.post("/v1/queues/-/start", {"reason": ""})
        out = [node["name"] for node in client.get("/v1/resources")["nodes"] if node["drained"]]
        if out:
            client.post("/v1/resources/undrain", {"targets": ",".join(out)})
        wait_until(lambda: not client.get("/v1/jobs", states="active")["jobs"])


@contextmanager
def temporary_sandbox() -> Iterator[Sandbox]:
    """An empty state directory. Processes left at the end are killed, and the test fails."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-e2e-"))
    directory.chmod(0o755)
    sandbox = Sandbox(directory, directory / "state")
    try:
        yield sandbox
    finally:
        left = left_behind(sandbox)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(runtime(sandbox.state), ignore_errors=True)
    assert not left, f"left behind: {left}"


@contextmanager
def running_instance(*arguments: str) -> Iterator[Running]:
    """An instance of four nodes with two cores each, stopped at the end without leftovers."""
    with temporary_sandbox() as sandbox:
        done = sandbox.call("start", *NODE_OPTIONS, *arguments)
        assert done.returncode == 0, done
        running = Running(sandbox.directory, sandbox.state)
        try:
            yield running
        finally:
            if running.paths.socket.exists():
                stopped = running.call("stop")
                assert stopped.returncode == 0, stopped
        wait_until(lambda: not left_behind(sandbox), 5.0)


def tasks_of(running: Running, job: str) -> list[int]:
    """The processes of a job's tasks."""
    marks = (f"FLUX_JOB_ID={job}\0".encode(), os.fsencode(running.state))
    found = []
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes() + b"\0" if entry.name.isdigit() else b""
        except OSError:
            continue
        if all(mark in variables for mark in marks):
            found.append(int(entry.name))
    return found


def kill_supervisors(running: Running, job: str) -> None:
    """Kills the supervisors of the tasks, as a machine fault would."""
    # A task is reported as started when it is forked; its environment is there once it runs its command.
    wait_until(lambda: tasks_of(running, job))
    tasks = tasks_of(running, job)
    supervisors = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in tasks}
    assert supervisors - set(tasks)
    for pid in supervisors - set(tasks):
        os.kill(pid, signal.SIGKILL)


def left_behind(sandbox: Sandbox) -> dict[int, str]:
    """Processes that refer to the state directory in their command line or environment."""
    mark = os.fsencode(sandbox.directory)
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if mark in command or mark in (entry / "environ").read_bytes():
                found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # It has ended meanwhile.
    return found
