"""A real agent in a temporary directory, and a client of its protocol. No process outlives a rig."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from penstock.agent import orphans, wire
from penstock.agent.processes import processes_with_token
from penstock.agent.records import TaskSpec, TaskStage
from penstock.agent.task_dirs import AgentDirectory

__all__ = ["DEADLINE_S", "Client", "Rig", "processes_with", "until"]

DEADLINE_S = 15.0
PATH = "/usr/local/bin:/usr/bin:/bin"

Found = TypeVar("Found")


def until(poll: Callable[[], Found | None], what: str, timeout_s: float = DEADLINE_S) -> Found:
    """Polls until the result is true, and returns it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = poll()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {timeout_s:g} s: {what}")


def processes_with(word: str) -> list[int]:
    """Returns the processes that have the word in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
    return found


class Lost(Exception):
    """The agent closed the connection."""


class Client:
    def __init__(self, path: Path, epoch: int = 1, *, attach: bool = True) -> None:
        self.epoch = epoch
        self.reports: dict[str, wire.TaskReport] = {}
        self.results: dict[int, wire.CommandResult] = {}
        self.rejected: wire.CommandRejected | None = None
        self.hello: wire.Hello | None = None
        self.is_complete = False
        self._number = 0
        self._partial = b""
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(DEADLINE_S)
        self._socket.connect(str(path))
        if attach:
            self.send(wire.Attach(wire.VERSION, epoch))
            self.read_until(lambda: self.is_complete)

    def close(self) -> None:
        self._socket.close()

    def send_raw(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise Lost from error

    def send(self, message: wire.AgentCommand) -> None:
        self.send_raw(wire.encode(message))

    def read_until(self, done: Callable[[], object]) -> None:
        while not done():
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError as error:
                raise Lost from error
            if not data:
                raise Lost
            *lines, self._partial = (self._partial + data).split(b"\n")
            for line in lines:
                self._handle(wire.decode_reply(line))

    def _handle(self, reply: wire.AgentReply) -> None:
        match reply:
            case wire.Hello():
                self.hello = reply
            case wire.TaskReport():
                self.reports[reply.member] = reply
            case wire.CommandResult():
                self.results[reply.id] = reply
            case wire.ReportsComplete():
                self.is_complete = True
            case wire.CommandRejected():
                self.rejected = reply

    def request(self, make: Callable[[int], wire.AgentCommand]) -> wire.CommandResult:
        self._number += 1
        number = self._number
        self.send(make(number))
        self.read_until(lambda: number in self.results)
        return self.results[number]

    def start(self, spec: TaskSpec) -> wire.CommandResult:
        return self.request(lambda number: wire.StartTask(number, self.epoch, spec))

    def end(
        self,
        member: str,
        number: int = signal.SIGTERM,
        grace_s: float | None = 5.0,
        key: str = "1",
        why: str = "cancel",
    ) -> wire.CommandResult:
        return self.request(lambda id_: wire.EndTask(id_, self.epoch, member, key, number, grace_s, why))

    def probe(self, member: str) -> wire.CommandResult:
        return self.request(lambda number: wire.ProbeTask(number, self.epoch, member))

    def release(self, *members: str) -> None:
        self.send(wire.ReleaseTasks(self.epoch, members))

    def wait(self, member: str, stage: TaskStage = TaskStage.ENDED) -> wire.TaskReport:
        def is_there() -> bool:
            report = self.reports.get(member)
            return report is not None and report.stage in (stage, TaskStage.ENDED)

        self.read_until(is_there)
        return self.reports[member]


class Rig:
    """A context manager that kills everything at its end and checks that no process is left."""

    def __init__(self, directory: Path | None = None) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="pa-", dir="/tmp"))
        self.directory = directory or self.base / "agent"
        self.socket = self.base / "s"
        self.work = self.base / "work"
        self.work.mkdir()
        self.agents: list[subprocess.Popen[bytes]] = []
        self._clients: list[Client] = []

    def __enter__(self) -> Rig:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for client in self._clients:
            client.close()
        for agent in self.agents:
            agent.kill()
            agent.wait()
        tokens = self.tokens()
        until(lambda: orphans.end_tasks(self.directory, "test", DEADLINE_S) is not None, "no agent is left")
        left = [pid for token in tokens for pid in processes_with_token(token)]
        text = self.log()
        shutil.rmtree(self.base, ignore_errors=True)
        assert left == []
        if error is None:
            assert "Traceback" not in text, text

    def log(self) -> str:
        path = self.base / "log"
        return path.read_text() if path.exists() else ""

    def launch(
        self, failpoints: str = "", *extra: str, ignores: tuple[signal.Signals, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """Starts an agent; `ignores` are the signals that it inherits as ignored, as from `nohup`."""

        def ignore() -> None:
            for number in ignores:
                signal.signal(number, signal.SIG_IGN)

        environment = {**os.environ, "PENSTOCK_FAILPOINTS": failpoints}
        command = [sys.executable, "-m", "penstock.agent", "--node", "node0", "--dir", str(self.directory)]
        with open(self.base / "log", "ab") as log:
            agent = subprocess.Popen(
                [*command, "--socket", str(self.socket), *extra],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
                preexec_fn=ignore,
            )
        self.agents.append(agent)
        return agent

    def connect(self, epoch: int = 1, *, attach: bool = True) -> Client:
        def attempt() -> Client | None:
            try:
                return Client(self.socket, epoch, attach=attach)
            except (FileNotFoundError, ConnectionRefusedError, Lost):
                # A supervisor that was just forked briefly keeps the socket of a dead agent open.
                if self.has_died():
                    raise Lost from None
                return None

        client = until(attempt, "the agent listens")
        self._clients.append(client)
        return client

    def agent(self, failpoints: str = "", *extra: str, epoch: int = 1) -> Client:
        """Starts an agent; returns a client that is attached to it."""
        self.launch(failpoints, *extra)
        return self.connect(epoch)

    def kill_agent(self) -> None:
        self.agents[-1].kill()
        self.agents[-1].wait()

    def has_died(self) -> bool:
        return self.agents[-1].poll() is not None

    def tokens(self) -> list[str]:
        found = []
        for task in AgentDirectory(self.directory).tasks():
            accepted = task.accepted()
            if accepted is not None:
                found.append(accepted.token)
        return found

    def supervisor(self, member: str) -> int:
        started = AgentDirectory(self.directory).task(member).started()
        assert started is not None
        return started.pid

    def files_of(self, member: str) -> list[str]:
        path = AgentDirectory(self.directory).task(member).path
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def spec(self, script: str, member: str = "1/1/0", **more: object) -> TaskSpec:
        """Returns the spec of a task that runs a shell script."""
        values: dict[str, object] = {
            "member": member,
            "job": 1,
            "job_f58": "ƒ2",
            "rank": 0,
            "command": ("/bin/sh", "-c", script),
            "cwd": str(self.work),
            "environment": {"PATH": PATH, "WORK": str(self.work)},
            "stdout": str(self.base / "out" / "out"),
            "stderr": str(self.base / "out" / "err"),
            "grace_s": 0.3,
        }
        return TaskSpec(**{**values, **more})  # type: ignore[arg-type]

    def stdout(self) -> str:
        return (self.base / "out" / "out").read_text()

    def stderr(self) -> str:
        return (self.base / "out" / "err").read_text()

    def lines(self, name: str) -> list[str]:
        """Returns the words that tasks wrote into a file in their working directory."""
        path = self.work / name
        return path.read_text().split() if path.exists() else []


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[bool]:
    """Mounts a small file system; yields False if this user may not mount."""
    path.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, check=False
    )
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            subprocess.run(["umount", "-l", str(path)], check=True)


def record(path: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(Path(path).read_text())
    return found
