"""The tasks of an agent and what becomes of them.

What is remembered of a task is a copy of its files. `look` brings it up to date and does what the files call
for, and it does not matter what made us look: the end of a supervisor (a pidfd), a word in the pipe that all
supervisors share, or the clock. So a supervisor that was forked by an agent that is dead is treated like one
of our own. The agent is a subreaper too: what a dead supervisor leaves behind becomes our child, and
whatever is our child and was not forked by us is killed.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Final

from penstock.agent.launch import NOT_EXECUTABLE, Limits
from penstock.agent.processes import children_of, hold, kill_bearers, set_subreaper
from penstock.agent.records import CAUSE_UNKNOWN, Accepted, EndRequest, Exited, Stage, Started, TaskSpec
from penstock.agent.supervisor import BLOCKED, supervise
from penstock.agent.task_dirs import TaskDir, TaskDirs, stage_of
from penstock.errors import Conflict, Corrupt
from penstock.failpoints import reach, register

__all__ = ["RunningTask", "Tasks", "log"]

_FORKED: Final = register("agent.fork.after", "after: the agent has forked a supervisor")
_SWEEP_S: Final = 1.0
_POLL_S: Final = 0.02
_FORKS_MAX: Final = 20  # supervisors that die before the start, for one task
_FORK_AGAIN_S: Final = 0.05
_FORK_AGAIN_MAX_S: Final = 5.0
_TOMBSTONES_MAX: Final = 100_000


class RunningTask:
    """A task as the agent remembers it."""

    __slots__ = (
        "accepted",
        "directory",
        "exited",
        "fork_at",
        "forks",
        "pidfd",
        "set_aside",
        "stage",
        "started",
    )

    def __init__(self, accepted: Accepted, directory: TaskDir) -> None:
        self.accepted = accepted
        self.directory = directory
        self.stage = Stage.ACCEPTED
        self.started: Started | None = None
        self.exited: Exited | None = None
        self.pidfd: int | None = None
        self.forks = 0
        self.fork_at = 0.0  # not before this, by the monotonic clock
        self.set_aside = False  # somebody else sees to its end, or nobody can: not looked at

    @property
    def spec(self) -> TaskSpec:
        return self.accepted.spec


class Tasks:
    def __init__(self, home: TaskDirs, open_files: Limits, report: Callable[[RunningTask], None]) -> None:
        self._home = home
        self._open_files = open_files
        self._report = report
        self._tasks: dict[str, RunningTask] = {}
        self._tombstones: set[str] = set()
        self._forked: set[int] = set()  # our children
        self._unsettled: set[str] = set()  # members to be looked at again soon
        self._poke = asyncio.Event()
        self._notices = (-1, -1)
        self._rest = b""
        self._background: set[asyncio.Task[None]] = set()
        self._over = False

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, member: str) -> RunningTask | None:
        return self._tasks.get(member)

    def all(self) -> list[RunningTask]:
        return list(self._tasks.values())

    def living(self) -> list[RunningTask]:
        return [task for task in self._tasks.values() if task.stage is not Stage.ENDED]

    def open(self) -> None:
        """Takes over what there is. Needs the agent's lock and a running loop."""
        set_subreaper()
        self._notices = os.pipe()
        for fd in self._notices:
            os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(self._notices[0], self._hear)
        self._home.empty_trash()
        self._tombstones = self._home.tombstones()
        for directory in self._home.tasks():
            try:
                accepted = directory.accepted()
            except Corrupt as error:
                log(f"{error}; it is left alone")
                continue
            if accepted is None:
                shutil.rmtree(directory.path, ignore_errors=True)
            else:
                self._tasks[accepted.spec.member] = RunningTask(accepted, directory)
        for task in self.all():
            self.look(task)
        for name in os.listdir(self._home.tmp):
            self._remove_tmpdir(f"{self._home.tmp}/{name}")

    def close(self) -> None:
        """From here on nothing is started; what runs goes on."""
        self._over = True
        for workload in tuple(self._background):
            workload.cancel()

    # What becomes of a task

    def look(self, task: RunningTask) -> None:
        """Reads a task's files and does what they call for. Doing it too often does no harm."""
        if task.stage is Stage.ENDED or task.set_aside:
            return
        self._unsettled.discard(task.spec.member)
        try:
            if self._follow(task):
                return
            lock = task.directory.try_lock()
            if lock is None:
                self._watch(task)
                return
            # They are read again: the supervisor may have written between our reading and its end.
            if self._follow(task):
                os.close(lock)
            elif task.stage is Stage.RUNNING:
                task.set_aside = True
                self._do(self._bury_dead(task, lock))
            else:
                self._fork(task, lock)
        except Corrupt as error:
            task.set_aside = True
            log(f"{error}; {task.spec.member} is left alone")

    def _follow(self, task: RunningTask) -> bool:
        """Takes over what the files say; returns whether that was the end."""
        stage, task.started, exited = stage_of(task.directory)
        if exited is not None:
            self._record_exit(task, exited)
            return True
        if stage is Stage.RUNNING and task.stage is Stage.ACCEPTED:
            task.stage = stage
            self._report(task)
        return False

    def _record_exit(self, task: RunningTask, exited: Exited) -> None:
        task.exited, task.stage = exited, Stage.ENDED
        self._report(task)
        self._remove_tmpdir(task.spec.tmpdir)

    def _watch(self, task: RunningTask) -> None:
        """A supervisor lives: its end must not pass unseen."""
        if task.pidfd is not None:
            return
        if task.started is not None:
            task.pidfd = hold(task.started.pid, task.started.ticks)
        if task.pidfd is None:
            self._look_soon(task)
            return
        asyncio.get_running_loop().add_reader(task.pidfd, self._supervisor_ended, task)
        self._wake(task)  # whoever wrote a request to end may have died before it could say so

    def _look_soon(self, task: RunningTask) -> None:
        self._unsettled.add(task.spec.member)
        self._poke.set()

    def _wake(self, task: RunningTask) -> None:
        if task.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(task.pidfd, signal.SIGUSR1)

    def _supervisor_ended(self, task: RunningTask) -> None:
        if task.pidfd is not None:
            asyncio.get_running_loop().remove_reader(task.pidfd)
            os.close(task.pidfd)
            task.pidfd = None
        self._reap()
        self.look(task)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._forked.discard(pid)

    async def _bury_dead(self, task: RunningTask, lock: int) -> None:
        """The supervisor died: what is left of the task is killed, and that is its end. Keeps the lock."""
        try:
            log(f"the supervisor of {task.spec.member} died; what is left of the task is killed")
            while kill_bearers(task.accepted.token) + self._kill_strays() > 0:
                await asyncio.sleep(_POLL_S)
            at = task.started.at if task.started else None
            await self._write_exit(task, Exited(signal.SIGKILL, time.time(), CAUSE_UNKNOWN, "", at))
        finally:
            os.close(lock)

    def _kill_strays(self) -> int:
        """Kills children that we have not forked; returns how many there were."""
        self._reap()
        strays = [pid for pid in children_of(os.getpid()) if pid not in self._forked]
        for pid in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return len(strays)

    async def _write_exit(self, task: RunningTask, exited: Exited) -> None:
        while True:
            try:
                task.directory.write_exit(exited, by_supervisor=False)
                break
            except OSError as error:
                log(f"the exit of {task.spec.member} cannot be written: {error}")
                await asyncio.sleep(_SWEEP_S)
        self._record_exit(task, exited)

    def _fork(self, task: RunningTask, lock: int) -> None:
        """Starts a supervisor, which inherits the lock. Only for a task that never ran."""
        try:
            if self._over:
                return
            if task.forks >= _FORKS_MAX:
                text = f"start failed: {task.forks} supervisors died before the start"
                task.set_aside = True
                self._do(self._write_exit(task, Exited(NOT_EXECUTABLE, time.time(), "", text)))
                return
            if time.monotonic() < task.fork_at:
                self._look_soon(task)
                return
            task.forks += 1
            task.fork_at = time.monotonic() + min(_FORK_AGAIN_S * 2**task.forks, _FORK_AGAIN_MAX_S)
            pid = self._fork_blocked(task, lock)
        except OSError as error:
            log(f"no supervisor for {task.spec.member}: {error}")
            self._look_soon(task)
            return
        finally:
            os.close(lock)
        reach(_FORKED)
        self._forked.add(pid)
        task.pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(task.pidfd, self._supervisor_ended, task)

    def _fork_blocked(self, task: RunningTask, lock: int) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        try:
            pid = os.fork()
            if pid == 0:
                supervise(task.directory, task.accepted, lock, self._notices[1], self._open_files)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)

    # What wakes us

    def _hear(self) -> None:
        """A supervisor has said that there is something to read."""
        try:
            data = os.read(self._notices[0], 1 << 16)
        except BlockingIOError:
            return
        *members, self._rest = (self._rest + data).split(b"\n")
        for member in dict.fromkeys(members):
            task = self._tasks.get(member.decode(errors="replace"))
            if task is not None:
                self.look(task)

    async def sweep(self) -> None:
        """Looks at what nothing else would tell of; soon, where there is something to wait for."""
        swept_at = time.monotonic()
        while True:
            self._poke.clear()
            if not self._unsettled:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SWEEP_S):
                        await self._poke.wait()
            await asyncio.sleep(_POLL_S)
            for member in tuple(self._unsettled):
                task = self._tasks.get(member)
                if task is None:
                    self._unsettled.discard(member)
                else:
                    self.look(task)
            if time.monotonic() - swept_at >= _SWEEP_S:
                swept_at = time.monotonic()
                self._reap()
                for task in self.all():
                    if task.stage is Stage.ACCEPTED:
                        self.look(task)

    def _do(self, workload: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(workload)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Directories of jobs

    def _remove_tmpdir(self, path: str) -> None:
        """Removes the directory of a job whose last task here has ended."""
        if os.path.dirname(path) != self._home.tmp or any(t.spec.tmpdir == path for t in self.living()):
            return
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError:
            self._remove_tree(path)

    def _remove_tree(self, path: str) -> None:
        """In a process of its own: it may take long, and a thread would forbid us to fork."""
        with suppress(OSError):
            pid = os.fork()
            if pid == 0:
                try:
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os._exit(0)
            self._forked.add(pid)

    # What is asked of us

    def is_buried(self, member: str) -> bool:
        return member in self._tombstones

    def accept(self, spec: TaskSpec) -> RunningTask:
        """Makes it durable. On an `OSError` nothing has happened. It starts at the first look."""
        accepted = Accepted(spec, secrets.token_hex(16), time.time())
        task = RunningTask(accepted, self._home.accept(accepted))
        self._tasks[spec.member] = task
        return task

    def ask_to_end(self, task: RunningTask, request: EndRequest) -> None:
        """Writes it down, then wakes the supervisor; one that has not started yet reads it by itself."""
        if task.directory.add_end(request):
            self._wake(task)

    def bury(self, member: str) -> None:
        """A member that is not here will never start here."""
        if member in self._tombstones:
            return
        if len(self._tombstones) >= _TOMBSTONES_MAX:
            raise Conflict(f"{_TOMBSTONES_MAX} members that never started are remembered; release some")
        self._home.bury(member)
        self._tombstones.add(member)

    def forget(self, task: RunningTask) -> None:
        """A task that has not started will never start; one that has is a `Conflict`."""
        if task.stage is not Stage.ACCEPTED or task.pidfd is not None or task.set_aside:
            raise Conflict("it has started")
        lock = task.directory.try_lock()
        if lock is None:
            raise Conflict("it is starting")
        try:
            if task.directory.started() is not None:
                raise Conflict("it has started")
            self.bury(task.spec.member)
            self._remove(task)
        finally:
            os.close(lock)

    def release(self, member: str) -> None:
        """Nobody will ask for this member again."""
        task = self._tasks.get(member)
        if task is not None and task.stage is not Stage.ENDED:
            log(f"{member} is released, but has not ended; it is kept")
            return
        if task is not None:
            self._remove(task)
        if member in self._tombstones:
            self._tombstones.discard(member)
            self._home.unbury(member)

    def _remove(self, task: RunningTask) -> None:
        task.stage = Stage.ENDED
        del self._tasks[task.spec.member]
        with suppress(OSError):  # it is told again by the next agent, and released again
            self._home.remove(task.directory)


def log(text: str) -> None:
    """Into the agent's log, which is its stderr."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
    sys.stderr.flush()
