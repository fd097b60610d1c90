"""A real agent in a directory of its own, and a client that speaks its protocol. Nothing outlives a rig."""

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
from penstock.agent.processes import bearers
from penstock.agent.records import Stage, TaskSpec
from penstock.agent.task_dirs import TaskDirs

__all__ = ["DEADLINE_S", "Client", "Rig", "processes_with", "until"]

DEADLINE_S = 15.0
PATH = "/usr/local/bin:/usr/bin:/bin"

Found = TypeVar("Found")


def until(ask: Callable[[], Found | None], what: str, within_s: float = DEADLINE_S) -> Found:
    """Asks until there is an answer."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        found = ask()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"within {within_s:g} s: {what}")


def processes_with(word: str) -> list[int]:
    """Living processes that have the word in their command line."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                    found.append(int(name))
    return found


class Lost(Exception):
    """The agent has closed the connection."""


class Client:
    def __init__(self, path: Path, epoch: int = 1, *, attach: bool = True) -> None:
        self.epoch = epoch
        self.reports: dict[str, wire.TaskReport] = {}
        self.answers: dict[int, wire.TaskAnswer] = {}
        self.refused: wire.TaskRefused | None = None
        self.hello: wire.Hello | None = None
        self.is_complete = False
        self._number = 0
        self._rest = b""
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

    def send(self, message: wire.ProcessCommand) -> None:
        self.send_raw(wire.encode(message))

    def read_until(self, done: Callable[[], object]) -> None:
        while not done():
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionError as error:
                raise Lost from error
            if not data:
                raise Lost
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self._take(wire.decode_reply(line))

    def _take(self, reply: wire.AgentReply) -> None:
        match reply:
            case wire.Hello():
                self.hello = reply
            case wire.TaskReport():
                self.reports[reply.member] = reply
            case wire.TaskAnswer():
                self.answers[reply.id] = reply
            case wire.Complete():
                self.is_complete = True
            case wire.TaskRefused():
                self.refused = reply

    def ask(self, make: Callable[[int], wire.ProcessCommand]) -> wire.TaskAnswer:
        self._number += 1
        number = self._number
        self.send(make(number))
        self.read_until(lambda: number in self.answers)
        return self.answers[number]

    def start(self, spec: TaskSpec) -> wire.TaskAnswer:
        return self.ask(lambda number: wire.Start(number, self.epoch, spec))

    def end(
        self,
        member: str,
        number: int = signal.SIGTERM,
        grace_s: float | None = 5.0,
        key: str = "1",
        why: str = "cancel",
    ) -> wire.TaskAnswer:
        return self.ask(lambda id_: wire.EndTask(id_, self.epoch, member, key, number, grace_s, why))

    def forget(self, member: str) -> wire.TaskAnswer:
        return self.ask(lambda number: wire.Forget(number, self.epoch, member))

    def probe(self, member: str) -> wire.TaskAnswer:
        return self.ask(lambda number: wire.Probe(number, self.epoch, member))

    def release(self, *members: str) -> None:
        self.send(wire.Release(self.epoch, members))

    def wait(self, member: str, stage: Stage = Stage.ENDED) -> wire.TaskReport:
        def is_there() -> bool:
            report = self.reports.get(member)
            return report is not None and report.stage in (stage, Stage.ENDED)

        self.read_until(is_there)
        return self.reports[member]


class Rig:
    """Use it as a context: at its end everything is killed, and it is checked that nothing is left."""

    def __init__(self, home: Path | None = None) -> None:
        self.base = Path(tempfile.mkdtemp(prefix="pa-", dir="/tmp"))
        self.home = home or self.base / "home"
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
        until(lambda: orphans.end_all(self.home, "test", DEADLINE_S) is not None, "no agent is left")
        left = [pid for token in tokens for pid in bearers(token)]
        text = self.log()
        shutil.rmtree(self.base, ignore_errors=True)
        assert left == []
        if error is None:
            assert "Traceback" not in text, text

    def log(self) -> str:
        path = self.base / "log"
        return path.read_text() if path.exists() else ""

    def launch(self, failpoints: str = "", *extra: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PENSTOCK_FAILPOINTS": failpoints}
        command = [sys.executable, "-m", "penstock.agent", "--node", "node0", "--dir", str(self.home)]
        with open(self.base / "log", "ab") as log:
            agent = subprocess.Popen(
                [*command, "--socket", str(self.socket), *extra],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self.agents.append(agent)
        return agent

    def connect(self, epoch: int = 1, *, attach: bool = True) -> Client:
        def attempt() -> Client | None:
            try:
                return Client(self.socket, epoch, attach=attach)
            except (FileNotFoundError, ConnectionRefusedError, Lost):
                # A supervisor that was just forked has the socket of a dead agent open for an instant.
                if self.died():
                    raise Lost from None
                return None

        client = until(attempt, "the agent listens")
        self._clients.append(client)
        return client

    def agent(self, failpoints: str = "", *extra: str, epoch: int = 1) -> Client:
        """A started agent, attached to."""
        self.launch(failpoints, *extra)
        return self.connect(epoch)

    def kill_agent(self) -> None:
        self.agents[-1].kill()
        self.agents[-1].wait()

    def died(self) -> bool:
        return self.agents[-1].poll() is not None

    def tokens(self) -> list[str]:
        found = []
        for task in TaskDirs(self.home).tasks():
            accepted = task.accepted()
            if accepted is not None:
                found.append(accepted.token)
        return found

    def supervisor(self, member: str) -> int:
        started = TaskDirs(self.home).task(member).started()
        assert started is not None
        return started.pid

    def files_of(self, member: str) -> list[str]:
        path = TaskDirs(self.home).task(member).path
        return sorted(os.listdir(path)) if os.path.isdir(path) else []

    def spec(self, script: str, member: str = "1/1/0", **more: object) -> TaskSpec:
        """A shell script as a task."""
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
        """What tasks have written into a file in their directory."""
        path = self.work / name
        return path.read_text().split() if path.exists() else []


@contextmanager
def small_disk(path: Path, size: str) -> Iterator[bool]:
    """A file system with little room; False if this user cannot make one."""
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
