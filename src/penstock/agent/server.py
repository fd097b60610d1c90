"""The agent itself: one process, one thread, so that it may fork at any instant.

It writes down before it acts, and acts before it tells. The newest connection that has attached with an epoch
that is not over is the one that is obeyed and told. What becomes of tasks is in `tasks`.
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
from penstock.agent.launch import Limits
from penstock.agent.records import EndRequest, Stage
from penstock.agent.task_dirs import TaskDirs
from penstock.agent.tasks import RunningTask, Tasks, log
from penstock.agent.wire import Answered
from penstock.errors import BadRequest, Conflict, PenstockError

__all__ = ["Agent", "AgentSettings", "raised_open_files"]

_SHUTDOWN_GRACE_S: Final = 2.0
_POLL_S: Final = 0.02
_LOCK_WITHIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class AgentSettings:
    node: str
    home: Path
    socket: Path
    tasks_max: int = 10_000  # known at once; each has at most two output files open
    open_files: Limits = (1024, 4096)  # what tasks get


class _Stale(Conflict):
    """An epoch that is over."""


class Agent:
    def __init__(self, settings: AgentSettings) -> None:
        self._settings = settings
        self._home = TaskDirs(settings.home)
        self._tasks = Tasks(self._home, settings.open_files, self._report)
        self._epoch = 0
        self._channel: Channel | None = None
        self._stop = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self._over = False  # no task is accepted any more

    async def run(self) -> None:
        """Serves until it is told to stop; the tasks go on."""
        self._home.make()
        lock = await self._take_lock()
        os.truncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        self._epoch = self._home.epoch()
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

    async def _take_lock(self) -> int:
        """A supervisor holds the lock of a dead agent for the instant between its fork and its first step."""
        until = time.monotonic() + _LOCK_WITHIN_S
        while (lock := self._home.lock_agent()) is None:
            if time.monotonic() > until:
                raise Conflict(f"another agent works in {self._settings.home}")
            await asyncio.sleep(_POLL_S)
        return lock

    def _send(self, message: wire.AgentReply) -> None:
        if self._channel is not None and not self._channel.send(message):
            self._channel = None

    def _report(self, task: RunningTask) -> None:
        self._send(_report_of(task))

    def _answer(self, number: int, member: str, outcome: Answered, detail: str = "") -> None:
        self._send(wire.TaskAnswer(number, member, outcome, detail))

    async def _serve(self, channel: Channel) -> None:
        """One connection, from its first line to its last."""
        try:
            async for command in channel.commands():
                if isinstance(command, wire.Attach):
                    self._attach(channel, command)
                elif channel is not self._channel:
                    raise BadRequest(
                        "a connection begins with attach, and ends when a newer one has attached"
                    )
                else:
                    self._see_epoch(command.epoch)
                    self._obey(command)
        except _Stale as error:
            channel.send(wire.TaskRefused(str(error), stale=True))
        except (PenstockError, OSError) as error:
            channel.send(wire.TaskRefused(str(error)))
        finally:
            if self._channel is channel:
                self._channel = None

    def _attach(self, channel: Channel, command: wire.Attach) -> None:
        if command.version != wire.VERSION:
            raise BadRequest(
                "another version of the protocol", found=str(command.version), expected=str(wire.VERSION)
            )
        self._see_epoch(command.epoch)
        if self._channel is not None and self._channel is not channel:
            self._channel.close()
        self._channel = channel
        self._send(wire.Hello(wire.VERSION, self._settings.node, os.getpid(), len(self._tasks)))
        for task in self._tasks.all():
            self._report(task)
        self._send(wire.Complete())

    def _see_epoch(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise _Stale(f"epoch {epoch} is over: epoch {self._epoch} has been seen")
        if epoch > self._epoch:
            self._home.write_epoch(epoch)
            self._epoch = epoch

    def _obey(self, command: wire.Command) -> None:
        match command:
            case wire.Start():
                self._start(command)
            case wire.EndTask():
                self._answer(command.id, command.member, *self._end(command))
            case wire.Forget():
                self._answer(command.id, command.member, *self._forget(command.member))
            case wire.Probe():
                known = self._tasks.get(command.member)
                if known is not None:
                    self._report(known)
                else:
                    self._answer(command.id, command.member, Answered.GONE, "not known here")
            case wire.Release():
                for member in command.members:
                    self._tasks.release(member)
            case wire.Shutdown():
                self._shut_down(command.kill)

    def _start(self, command: wire.Start) -> None:
        member = command.spec.member
        known = self._tasks.get(member)
        if known is not None:
            self._answer(command.id, member, Answered.APPLIED)
            self._report(known)
            return
        if self._tasks.is_buried(member):
            self._answer(command.id, member, Answered.GONE, "it was ended before it started")
            return
        refusal = self._refusal(command)
        if not refusal:
            try:
                task = self._tasks.accept(command.spec)
            except (OSError, BadRequest) as error:
                refusal = _explain(error, self._home.path)
        if refusal:
            self._answer(command.id, member, Answered.CONFLICT, refusal)
            return
        self._answer(command.id, member, Answered.APPLIED)
        self._report(task)
        self._tasks.look(task)

    def _refusal(self, command: wire.Start) -> str:
        if self._over:
            return f"{self._settings.node} is shutting down"
        if len(self._tasks) >= self._settings.tasks_max:
            return f"{self._settings.node} has {len(self._tasks)} tasks, and may have no more"
        return "" if command.spec.command else "the command is empty"

    def _end(self, command: wire.EndTask) -> tuple[Answered, str]:
        task = self._tasks.get(command.member)
        try:
            if task is None:
                self._tasks.bury(command.member)
                return Answered.GONE, "not known here; it will not start"
            if task.stage is Stage.ENDED:
                self._report(task)
                return Answered.GONE, "it has ended"
            if not 0 < command.signal < signal.NSIG:
                return Answered.CONFLICT, f"{command.signal} is no signal"
            request = EndRequest(command.key, command.signal, command.grace_s, command.why)
            self._tasks.ask_to_end(task, request)
        except (OSError, PenstockError) as error:
            return Answered.CONFLICT, _explain(error, self._home.path)
        return Answered.APPLIED, ""

    def _forget(self, member: str) -> tuple[Answered, str]:
        task = self._tasks.get(member)
        try:
            if task is None:
                self._tasks.bury(member)
            else:
                self._tasks.forget(task)
        except (OSError, PenstockError) as error:
            return Answered.CONFLICT, _explain(error, self._home.path)
        return Answered.APPLIED, ""

    def _shut_down(self, kill: bool) -> None:
        self._over = True
        if not kill:
            self._stop.set()
        elif self._ending is None:
            self._ending = asyncio.create_task(self._end_all())

    async def _end_all(self) -> None:
        """Ends every task, and then this agent."""
        request = EndRequest("shutdown", signal.SIGTERM, _SHUTDOWN_GRACE_S, "shutdown")
        while living := self._tasks.living():
            for task in living:
                try:
                    self._tasks.ask_to_end(task, request)
                except (OSError, PenstockError) as error:
                    log(f"{task.spec.member} cannot be ended: {error}")
            await asyncio.sleep(_POLL_S)
        self._stop.set()


def _report_of(task: RunningTask) -> wire.TaskReport:
    uses = task.spec.uses
    if task.exited is not None:
        cause = task.exited.cause or task.exited.failure
        return wire.TaskReport(
            task.spec.member, Stage.ENDED, task.exited.ended_at, task.exited.status, cause, uses
        )
    at = task.started.at if task.started and task.stage is Stage.RUNNING else task.accepted.at
    return wire.TaskReport(task.spec.member, task.stage, at, uses=uses)


def _explain(error: Exception, path: Path) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space left on {path}"
    return str(error)


def raised_open_files() -> Limits:
    """Raises the limit of open files as far as it goes; returns what it was, which tasks get."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before
