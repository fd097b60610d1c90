"""One agent: its process, the connection to it, and what it has told.

An agent is started detached and outlives us. Whoever holds the agent's lock is the agent, so starting one
too many does no harm: it finds the lock taken and leaves. While there is no connection we try again and
again, and start another agent if none lives; one that is connected and silent is killed, since its tasks go
on without it. If that does not help for `return_within_s`, what the agent has left behind is ended by
ourselves (`penstock.agent.orphans`), and only what is certainly gone is told as ended.
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
from penstock.agent.records import Stage
from penstock.agent.task_dirs import TaskDirs
from penstock.backends.local.settings import LocalSettings
from penstock.errors import BadRequest, Conflict, Unavailable

__all__ = ["AgentConnection", "Listener"]

_CONNECT_AGAIN_S: Final = 0.02
_STARTED_WITHIN_S: Final = 5.0  # from the start of a process to its socket
_START_AGAIN_S: Final = 0.1
_START_AGAIN_MAX_S: Final = 5.0
_SALVAGE_SLICE_S: Final = 5.0
_STOP_WITHIN_S: Final = 10.0
NODE_FAILURE: Final = "node-failure"


class Listener(Protocol):
    """Who is told. Calls come one at a time and return at once."""

    def link_up(self, link: AgentConnection) -> None: ...

    def link_down(self, link: AgentConnection) -> None: ...

    def reported(self, link: AgentConnection, report: wire.TaskReport) -> None: ...


@dataclass(slots=True)
class _Asked:
    """A command that has not been answered."""

    member: str
    then: Callable[[wire.TaskAnswer | None], None]  # None: the connection broke, nobody knows


class AgentConnection:
    def __init__(
        self, rank: int, home: Path, address: Path, settings: LocalSettings, listener: Listener
    ) -> None:
        self.rank = rank
        self.node = settings.node(rank)
        self.up = False
        self.why = "its agent has not answered yet"
        self.pid = 0
        self.members: dict[str, wire.TaskReport] = {}  # what the agent has told, and is not released
        self.first = asyncio.Event()  # the agent has told everything once
        self._home = home
        self._socket = address
        self._settings = settings
        self._listener = listener
        self._epoch = 0
        self._writer: asyncio.StreamWriter | None = None
        self._asked: dict[int, _Asked] = {}
        self._number = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._away_since = time.monotonic()

    # Commands

    def ask(
        self, member: str, make: Callable[[int], wire.Command], then: Callable[[wire.TaskAnswer | None], None]
    ) -> None:
        """Sends a command; `then` is called with its answer. One that cannot be sent is a `BadRequest`."""
        if not self.up or self._writer is None:
            then(None)
            return
        self._number += 1
        line = wire.encode(make(self._number))
        self._asked[self._number] = _Asked(member, then)
        self._writer.write(line)

    def tell(self, command: wire.Command) -> None:
        """Sends a command that has no answer."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(wire.encode(command))

    # The life of the connection

    async def run(self, epoch: int) -> None:
        """Keeps the agent and the connection alive until it is cancelled; `Conflict` if the epoch is over."""
        self._epoch = epoch
        self._away_since = time.monotonic()
        failures = 0
        while True:
            try:
                reader, writer = await self._connect(failures)
                failures = await self._converse(reader, writer, failures)
            except (OSError, Unavailable, BadRequest) as error:
                failures += 1
                self.why = f"its agent is away: {error}"
            finally:
                self._disconnected()
            delay_s = min(_START_AGAIN_S * 2 ** min(failures, 10), _START_AGAIN_MAX_S) if failures else 0
            left_s = self._away_since + self._settings.return_within_s - time.monotonic()
            if left_s <= 0:
                await self._give_up()
            await asyncio.sleep(min(delay_s, left_s) if left_s > 0 else delay_s)

    async def _connect(self, failures: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the agent that lives, or to one that we start."""
        until = time.monotonic() + _STARTED_WITHIN_S
        started = False
        while True:
            with suppress(FileNotFoundError, ConnectionRefusedError):
                return await asyncio.open_unix_connection(str(self._socket), limit=wire.FRAME_MAX)
            if self._process is not None and self._process.poll() is not None:
                self._process = None
                if started:
                    raise Unavailable("it ended as soon as it was started; its log says why")
            if self._process is None and not started:
                started = True
                self._process = await asyncio.to_thread(self._start_agent)
            if time.monotonic() > until:
                if failures:
                    self._kill_silent()
                raise Unavailable(f"it has not opened its socket within {_STARTED_WITHIN_S:g} s")
            await asyncio.sleep(_CONNECT_AGAIN_S)

    def _start_agent(self) -> subprocess.Popen[bytes]:
        TaskDirs(self._home).make()
        command = [sys.executable, "-m", "penstock.agent", "--node", self.node]
        command += ["--dir", str(self._home), "--socket", str(self._socket)]
        command += ["--tasks-max", str(self._settings.tasks_max)]
        with open(self._home / "agent.log", "ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, **self._settings.agent_environment},
                start_new_session=True,
            )

    def _kill_silent(self) -> None:
        """An agent that we have started and that does not come is replaced; its tasks go on."""
        if self._process is not None:
            self._process.kill()

    async def _converse(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, failures: int
    ) -> int:
        """Reads until the connection ends; returns how many failures there are in a row."""
        self._writer = writer
        writer.write(wire.encode(wire.Attach(wire.VERSION, self._epoch)))
        told: dict[str, wire.TaskReport] = {}
        while True:
            line = await self._line(reader, writer)
            if not line.endswith(b"\n"):
                self.why = "its agent has closed the connection"
                return failures if self.up else failures + 1
            match wire.decode_reply(line):
                case wire.Hello() as hello:
                    self.pid = hello.pid
                case wire.TaskReport() as report if not self.up:
                    told[report.member] = report
                case wire.TaskReport() as report:
                    self.members[report.member] = report
                    self._listener.reported(self, report)
                case wire.Complete():
                    self.members, failures = told, 0
                    self.up, self.why = True, ""
                    self.first.set()
                    self._listener.link_up(self)
                case wire.TaskAnswer() as answer:
                    asked = self._asked.pop(answer.id, None)
                    if asked is not None:
                        asked.then(answer)
                case wire.TaskRefused(stale=True) as refused:
                    raise Conflict(refused.detail)
                case wire.TaskRefused() as refused:
                    raise Unavailable(refused.detail)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        """The next line. An agent that says nothing is asked something; one that is dumb is killed."""
        for _ in range(2):
            try:
                async with asyncio.timeout(self._settings.answer_within_s):
                    return await reader.readline()
            except TimeoutError:
                if self.up:
                    self._number += 1
                    writer.write(wire.encode(wire.Probe(self._number, self._epoch, "?")))
            except ValueError as error:
                raise BadRequest("the agent's line is too long") from error
        _kill_peer(writer)
        raise Unavailable("it did not answer")

    def _disconnected(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._process is not None and self._process.poll() is not None:
            self._process = None
        was_up, self.up = self.up, False
        if was_up:
            self._away_since = time.monotonic()
        asked, self._asked = self._asked, {}
        for question in asked.values():
            question.then(None)
        if was_up:
            self._listener.link_down(self)

    async def _give_up(self) -> None:
        """No agent comes back: ends what it has left behind, and tells what is certainly gone."""
        reports = await asyncio.to_thread(orphans.end_all, self._home, NODE_FAILURE, _SALVAGE_SLICE_S)
        for report in reports or ():
            known = self.members.get(report.member)
            if known is None or known.stage is not Stage.ENDED:
                self.members[report.member] = report
                self._listener.reported(self, report)

    async def _end_what_is_left(self, until: float) -> None:
        while await asyncio.to_thread(orphans.end_all, self._home, "shutdown", _SALVAGE_SLICE_S) is None:
            if time.monotonic() > until:
                return
            await asyncio.sleep(_CONNECT_AGAIN_S)

    async def look_at_files(self) -> list[wire.TaskReport]:
        """What is there, of an agent that does not answer."""
        return await asyncio.to_thread(orphans.read_all, self._home)

    async def stop(self, epoch: int, *, keep_tasks: bool) -> None:
        """Ends the agent, and its tasks unless they are to be kept; returns when it is gone."""
        until = time.monotonic() + _STOP_WITHIN_S
        reader, writer = None, None
        with suppress(OSError):
            reader, writer = await asyncio.open_unix_connection(str(self._socket), limit=wire.FRAME_MAX)
        if reader is not None and writer is not None:
            with suppress(OSError, TimeoutError):
                writer.write(wire.encode(wire.Attach(wire.VERSION, epoch)))
                writer.write(wire.encode(wire.Shutdown(epoch, kill=not keep_tasks)))
                async with asyncio.timeout(_STOP_WITHIN_S):
                    while await reader.read(1 << 16):
                        pass
            writer.close()
        while self._process is not None and self._process.poll() is None:
            if time.monotonic() > until:
                self._process.kill()
            await asyncio.sleep(_CONNECT_AGAIN_S)
        if not keep_tasks:
            await self._end_what_is_left(until)


def _kill_peer(writer: asyncio.StreamWriter) -> None:
    """Kills the process that listens at the other end; while it holds its end its pid is its own."""
    peer: socket.socket = writer.get_extra_info("socket")
    pid: int = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    with suppress(OSError):
        os.kill(pid, signal.SIGKILL)
