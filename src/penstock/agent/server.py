"""The agent process. It is single-threaded, so that it can fork at any time.

It persists a change before it acts, and acts before it reports. It serves the latest connection that attached
with the current epoch. `tasks` manages the tasks.
"""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.agent import wire
from penstock.agent.connection import Channel, serve_socket
from penstock.agent.launch import FileLimits
from penstock.agent.records import EndRequest, TaskStage
from penstock.agent.task_dirs import AgentDirectory
from penstock.agent.tasks import AgentTask, Tasks, log
from penstock.agent.wire import CommandOutcome
from penstock.errors import BadRequest, Conflict, PenstockError

__all__ = ["Agent", "AgentSettings", "raise_open_files_limit"]

_SHUTDOWN_GRACE_S: Final = 2.0
_POLL_S: Final = 0.02
_LOCK_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    node: str
    directory: Path
    socket: Path
    tasks_max: int = 10_000  # known tasks; each has at most two open output files
    open_files: FileLimits = (1024, 4096)  # soft and hard limit of tasks


class _StaleEpoch(Conflict):
    """The epoch of a command is older than the newest that the agent has seen."""


class Agent:
    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._directory = AgentDirectory(settings.directory)
        self._tasks = Tasks(self._directory, settings.open_files, self._report)
        self._epoch = 0
        self._channel: Channel | None = None
        self._stop = asyncio.Event()
        self._ending_tasks: asyncio.Task[None] | None = None
        self._is_shutting_down = False  # no task is accepted any more

    async def run(self) -> None:
        """Serves until a shutdown or signal; running tasks continue."""
        self._directory.make()
        lock = await self._acquire_lock()
        os.truncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        self._epoch = self._directory.epoch()
        self._tasks.open()
        server = await serve_socket(self._settings.socket, self._serve)
        sweeper = asyncio.create_task(self._tasks.sweep())
        try:
            await self._stop.wait()
        finally:
            sweeper.cancel()
            self._tasks.close()
            server.close()
            with suppress(FileNotFoundError):
                self._settings.socket.unlink()

    async def _acquire_lock(self) -> int:
        """Locks the directory. Retries briefly: a supervisor inherits the lock of a dead agent until it
        closes it."""
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while (lock := self._directory.lock_agent()) is None:
            if time.monotonic() > deadline:
                raise Conflict(f"another agent runs in {self._settings.directory}")
            await asyncio.sleep(_POLL_S)
        return lock

    def _send(self, message: wire.AgentReply) -> None:
        if self._channel is not None and not self._channel.send(message):
            self._channel = None

    def _report(self, task: AgentTask) -> None:
        self._send(_task_report(task))

    def _send_result(self, number: int, member: str, outcome: CommandOutcome, detail: str = "") -> None:
        self._send(wire.CommandResult(number, member, outcome, detail))

    async def _serve(self, channel: Channel) -> None:
        """Serves one connection."""
        try:
            async for command in channel.commands():
                if isinstance(command, wire.Attach):
                    self._attach(channel, command)
                elif channel is not self._channel:
                    raise BadRequest(
                        "the connection is not attached, or a later one has attached", expected="attach"
                    )
                else:
                    self._check_epoch(command.epoch)
                    self._execute(command)
        except _StaleEpoch as error:
            channel.send(wire.CommandRejected(str(error), stale=True))
        except (PenstockError, OSError) as error:
            channel.send(wire.CommandRejected(str(error)))
        finally:
            if self._channel is channel:
                self._channel = None

    def _attach(self, channel: Channel, command: wire.Attach) -> None:
        if command.version != wire.VERSION:
            raise BadRequest(
                "unsupported protocol version", found=str(command.version), expected=str(wire.VERSION)
            )
        self._check_epoch(command.epoch)
        if self._channel is not None and self._channel is not channel:
            self._channel.close()
        self._channel = channel
        self._send(wire.Hello(wire.VERSION, self._settings.node, os.getpid(), len(self._tasks)))
        for task in self._tasks.all():
            self._report(task)
        self._send(wire.ReportsComplete())

    def _check_epoch(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise _StaleEpoch(f"epoch {epoch} has ended: the agent has seen epoch {self._epoch}")
        if epoch > self._epoch:
            self._directory.write_epoch(epoch)
            self._epoch = epoch

    def _execute(self, command: wire.AgentCommand) -> None:
        match command:
            case wire.StartTask():
                self._start(command)
            case wire.EndTask():
                self._send_result(command.id, command.member, *self._end(command))
            case wire.ProbeTask():
                known = self._tasks.get(command.member)
                if known is not None:
                    self._report(known)
                else:
                    self._send_result(
                        command.id, command.member, CommandOutcome.GONE, "unknown to this agent"
                    )
            case wire.ReleaseTasks():
                for member in command.members:
                    self._tasks.release(member)
            case wire.Shutdown():
                self._shut_down(command.kill)

    def _start(self, command: wire.StartTask) -> None:
        member = command.spec.member
        known = self._tasks.get(member)
        if known is not None:
            self._send_result(command.id, member, CommandOutcome.APPLIED)
            self._report(known)
            return
        if self._tasks.has_tombstone(member):
            self._send_result(command.id, member, CommandOutcome.GONE, "ended before it started")
            return
        refusal = self._refusal(command)
        if not refusal:
            try:
                task = self._tasks.accept(command.spec)
            except (OSError, BadRequest) as error:
                refusal = _explain(error, self._directory.path)
        if refusal:
            self._send_result(command.id, member, CommandOutcome.CONFLICT, refusal)
            return
        self._send_result(command.id, member, CommandOutcome.APPLIED)
        self._report(task)
        self._tasks.reconcile(task)

    def _refusal(self, command: wire.StartTask) -> str:
        if self._is_shutting_down:
            return f"{self._settings.node} is shutting down"
        if len(self._tasks) >= self._settings.tasks_max:
            return f"{self._settings.node} has {len(self._tasks)} tasks, the maximum"
        return "" if command.spec.command else "the command is empty"

    def _end(self, command: wire.EndTask) -> tuple[CommandOutcome, str]:
        task = self._tasks.get(command.member)
        try:
            if task is None:
                self._tasks.add_tombstone(command.member)
                return CommandOutcome.GONE, "unknown to this agent; it will not start"
            if task.stage is TaskStage.ENDED:
                self._report(task)
                return CommandOutcome.GONE, "has ended"
            if not 0 < command.signal < signal.NSIG:
                return CommandOutcome.CONFLICT, f"{command.signal} is not a signal number"
            request = EndRequest(command.key, command.signal, command.grace_s, command.why)
            self._tasks.request_end(task, request)
        except (OSError, PenstockError) as error:
            return CommandOutcome.CONFLICT, _explain(error, self._directory.path)
        return CommandOutcome.APPLIED, ""

    def _shut_down(self, kill: bool) -> None:
        self._is_shutting_down = True
        if not kill:
            self._stop.set()
        elif self._ending_tasks is None:
            self._ending_tasks = asyncio.create_task(self._end_tasks())

    async def _end_tasks(self) -> None:
        """Ends every task, then the agent."""
        request = EndRequest("shutdown", signal.SIGTERM, _SHUTDOWN_GRACE_S, "shutdown")
        while tasks := self._tasks.unfinished():
            for task in tasks:
                try:
                    self._tasks.request_end(task, request)
                except (OSError, PenstockError) as error:
                    log(f"cannot end {task.spec.member}: {error}")
            await asyncio.sleep(_POLL_S)
        self._stop.set()


def _task_report(task: AgentTask) -> wire.TaskReport:
    usage = task.spec.usage
    if task.exited is not None:
        cause = task.exited.cause or task.exited.failure
        return wire.TaskReport(
            task.spec.member, TaskStage.ENDED, task.exited.ended_at, task.exited.status, cause, usage
        )
    at = task.started.at if task.started and task.stage is TaskStage.RUNNING else task.accepted.at
    return wire.TaskReport(task.spec.member, task.stage, at, usage=usage)


def _explain(error: Exception, path: Path) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on {path}"
    return str(error)


def raise_open_files_limit() -> FileLimits:
    """Raises the soft limit of open files to the hard limit; returns the former limits, for the tasks."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before
