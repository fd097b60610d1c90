"""One agent: its process, the connection to it, and the reports it has sent.

An agent is started detached and outlives the instance. The holder of the agent's lock is the agent, so
starting a second one is harmless: it finds the lock taken and exits. Without a connection this class keeps
retrying, and starts an agent if none runs. An agent that is connected and does not respond is killed, because
its tasks continue without it. If no agent connects for `agent_return_timeout_s`, this class ends the tasks
itself (`penstock.agent.orphans`), and reports only those as ended whose processes are gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from penstock.agent import orphans, wire
from penstock.agent.records import TaskStage
from penstock.agent.task_dirs import AgentDirectory
from penstock.backends.local.settings import LocalSettings
from penstock.errors import BadRequest, Conflict, Unavailable

__all__ = ["AgentConnection", "AgentListener"]

_CONNECT_RETRY_S: Final = 0.02
_START_TIMEOUT_S: Final = 5.0  # from the start of the process until its socket exists
_RESTART_DELAY_S: Final = 0.1
_RESTART_DELAY_MAX_S: Final = 5.0
_ORPHANS_TIMEOUT_S: Final = 5.0
NODE_FAILURE: Final = "node-failure"


class AgentListener(Protocol):
    """Receives events of an agent. Calls are sequential and must not block."""

    def agent_connected(self, agent: AgentConnection) -> None: ...

    def agent_disconnected(self, agent: AgentConnection) -> None: ...

    def reported(self, agent: AgentConnection, report: wire.TaskReport) -> None: ...


@dataclass(slots=True)
class _PendingCommand:
    """A command without a result yet."""

    member: str
    on_result: Callable[[wire.CommandResult | None], None]  # None: disconnected, the outcome is unknown


class AgentConnection:
    def __init__(
        self, rank: int, directory: Path, address: Path, settings: LocalSettings, listener: AgentListener
    ) -> None:
        self.rank = rank
        self.node = settings.node(rank)
        self.up = False
        self.why = "its agent has not connected yet"
        self.pid = 0
        self.members: dict[str, wire.TaskReport] = {}  # latest report of every task that is not released
        self.synced = asyncio.Event()  # the agent has sent the reports of all its tasks
        self._directory = directory
        self._socket = address
        self._settings = settings
        self._listener = listener
        self._epoch = 0
        self._writer: asyncio.StreamWriter | None = None
        self._pending: dict[int, _PendingCommand] = {}
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._disconnected_since = time.monotonic()

    # Commands

    def send(
        self,
        member: str,
        make: Callable[[int], wire.AgentCommand],
        on_result: Callable[[wire.CommandResult | None], None],
    ) -> None:
        """Sends a command and calls `on_result` with its result. Raises `BadRequest` if it cannot be
        encoded."""
        if not self.up or self._writer is None:
            on_result(None)
            return
        self._number += 1
        line = wire.encode(make(self._number))
        self._pending[self._number] = _PendingCommand(member, on_result)
        self._writer.write(line)

    def notify(self, command: wire.AgentCommand) -> None:
        """Sends a command that has no result."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(wire.encode(command))

    # Connection

    async def run(self, epoch: int) -> None:
        """Keeps the agent running and connected until cancelled; raises `Conflict` if the epoch has ended."""
        self._epoch = epoch
        self._disconnected_since = time.monotonic()
        failures = 0
        while True:
            try:
                reader, writer = await self._connect(failures)
                failures = await self._read_replies(reader, writer, failures)
            except (OSError, Unavailable, BadRequest) as error:
                failures += 1
                self.why = f"its agent is not connected: {error}"
            finally:
                self._disconnected()
            delay_s = min(_RESTART_DELAY_S * 2 ** min(failures, 10), _RESTART_DELAY_MAX_S) if failures else 0
            remaining_s = self._disconnected_since + self._settings.agent_return_timeout_s - time.monotonic()
            if remaining_s <= 0:
                await self._end_orphans()
            await asyncio.sleep(min(delay_s, remaining_s) if remaining_s > 0 else delay_s)

    async def _connect(self, failures: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connects to the running agent, or starts one."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        started = False
        while True:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                return await asyncio.open_unix_connection(str(self._socket), limit=wire.FRAME_MAX)
            if self._process is not None and self._process.poll() is not None:
                self._process = None
                if started:
                    raise Unavailable(f"it exited right after its start; see {self._directory / 'agent.log'}")
            if self._process is None and not started:
                started = True
                self._process = await asyncio.to_thread(self._start_agent)
            if time.monotonic() > deadline:
                if failures:
                    self._kill_unresponsive()
                raise Unavailable(f"it did not open its socket within {_START_TIMEOUT_S:g} s")
            await asyncio.sleep(_CONNECT_RETRY_S)

    def _start_agent(self) -> subprocess.Popen[bytes]:
        directory = AgentDirectory(self._directory)
        directory.make()
        command = [sys.executable, "-m", "penstock.agent", "--node", self.node]
        command += ["--dir", str(self._directory), "--socket", str(self._socket)]
        command += ["--tasks-max", str(self._settings.tasks_max)]
        with open(directory.log, "ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, **self._settings.agent_environment},
                start_new_session=True,
            )

    def _kill_unresponsive(self) -> None:
        """Kills an agent process that was started here and does not listen. Its tasks continue."""
        if self._process is not None:
            self._process.kill()

    async def _read_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, failures: int
    ) -> int:
        """Reads until the connection ends; returns the number of consecutive failures."""
        self._writer = writer
        writer.write(wire.encode(wire.Attach(wire.VERSION, self._epoch)))
        reports: dict[str, wire.TaskReport] = {}
        while True:
            line = await self._line(reader, writer)
            if not line.endswith(b"\n"):
                self.why = "its agent closed the connection"
                return failures if self.up else failures + 1
            match wire.decode_reply(line):
                case wire.Hello() as hello:
                    self.pid = hello.pid
                case wire.TaskReport() as report if not self.up:
                    reports[report.member] = report
                case wire.TaskReport() as report:
                    self.members[report.member] = report
                    self._listener.reported(self, report)
                case wire.ReportsComplete():
                    self.members, failures = reports, 0
                    self.up, self.why = True, ""
                    self.synced.set()
                    self._listener.agent_connected(self)
                case wire.CommandResult() as result:
                    pending = self._pending.pop(result.id, None)
                    if pending is not None:
                        pending.on_result(result)
                case wire.CommandRejected(stale=True) as refused:
                    raise Conflict(refused.detail)
                case wire.CommandRejected() as refused:
                    raise Unavailable(refused.detail)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """Returns the next line. Probes a silent agent; kills it if it does not respond to the probe."""
        for _ in range(2):
            try:
                async with asyncio.timeout(self._settings.agent_response_timeout_s):
                    return await reader.readline()
            except TimeoutError:
                if self.up:
                    self._number += 1
                    writer.write(wire.encode(wire.ProbeTask(self._number, self._epoch, "?")))
            except ValueError as error:
                raise BadRequest("a message of the agent is too long") from error
        _kill_peer(writer)
        raise Unavailable(f"it did not respond within {2 * self._settings.agent_response_timeout_s:g} s")

    def _disconnected(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        was_up, self.up = self.up, False
        if was_up:
            self._disconnected_since = time.monotonic()
        pending, self._pending = self._pending, {}
        for command in pending.values():
            command.on_result(None)
        if was_up:
            self._listener.agent_disconnected(self)

    async def _end_orphans(self) -> None:
        """Ends the tasks of an agent that does not return, and reports those whose processes are gone."""
        reports = await asyncio.to_thread(
            orphans.end_tasks, self._directory, NODE_FAILURE, _ORPHANS_TIMEOUT_S
        )
        for report in reports or ():
            known = self.members.get(report.member)
            if known is None or known.stage is not TaskStage.ENDED:
                self.members[report.member] = report
                self._listener.reported(self, report)

    async def _end_remaining_tasks(self, deadline: float) -> None:
        while (
            await asyncio.to_thread(orphans.end_tasks, self._directory, "shutdown", _ORPHANS_TIMEOUT_S)
            is None
        ):
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(_CONNECT_RETRY_S)

    async def read_task_files(self) -> list[wire.TaskReport]:
        """Reports the tasks of a disconnected agent from their files."""
        return await asyncio.to_thread(orphans.read_tasks, self._directory)

    async def stop(self, epoch: int, *, keep_tasks: bool) -> None:
        """Ends the agent, and its tasks unless `keep_tasks`; returns when its process is gone."""
        deadline = time.monotonic() + self._settings.agent_stop_timeout_s
        reader, writer = None, None
        with suppress(OSError):
            reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=wire.FRAME_MAX)
        if reader is not None and writer is not None:
            try:
                writer.write(wire.encode(wire.Attach(wire.VERSION, epoch)))
                writer.write(wire.encode(wire.Shutdown(epoch, kill=not keep_tasks)))
                async with asyncio.timeout(self._settings.agent_stop_timeout_s):
                    while await reader.read(1 << 16):
                        pass
            except TimeoutError:
                _kill_peer(writer)  # An earlier instance may have started it, so `_process` is not enough.
            except OSError:
                pass
            writer.close()
        while self._process is not None and self._process.poll() is None:
            if time.monotonic() > deadline:
                self._process.kill()
            await asyncio.sleep(_CONNECT_RETRY_S)
        if not keep_tasks:
            await self._end_remaining_tasks(deadline)


def _kill_peer(writer: asyncio.StreamWriter) -> None:
    """Kills the process at the other end. Its pid cannot be reused while the connection is open."""
    peer: socket.socket = writer.get_extra_info("socket")
    pid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
