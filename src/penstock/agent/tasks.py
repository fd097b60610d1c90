"""The tasks of an agent and their lifecycle.

An `AgentTask` is a copy of the task's files. `reconcile` reads the files and does what they require; it is
safe to call at any time. Three events trigger it: the end of a supervisor (a pidfd), a line in the pipe that
all supervisors share, and a timer. So a supervisor that a dead agent forked is treated like any other. The
agent is a subreaper too: processes that a dead supervisor leaves become its children, and a child that the
agent did not fork is killed.
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

from penstock.agent.launch import NOT_EXECUTABLE, FileLimits
from penstock.agent.processes import children_of, kill_processes_with_token, open_pidfd, set_subreaper
from penstock.agent.records import (
    CAUSE_UNKNOWN,
    AcceptedTask,
    EndRequest,
    TaskExited,
    TaskSpec,
    TaskStage,
    TaskStarted,
)
from penstock.agent.supervisor import BLOCKED, supervise
from penstock.agent.task_dirs import AgentDirectory, TaskDirectory, read_stage
from penstock.errors import Conflict, Corrupt
from penstock.failpoints import reach, register
from penstock.log_files import bound_log

__all__ = ["AgentTask", "Tasks", "log"]

_FORKED: Final = register("agent.fork.after", "after: the agent has forked a supervisor")
_SWEEP_S: Final = 1.0
_POLL_S: Final = 0.02
_FORKS_MAX: Final = 20  # per task, of supervisors that die before the start
_FORK_RETRY_S: Final = 0.05
_FORK_RETRY_MAX_S: Final = 5.0
_TOMBSTONES_MAX: Final = 100_000


class AgentTask:
    """The in-memory state of a task."""

    __slots__ = (
        "accepted",
        "directory",
        "exited",
        "fork_at",
        "forks",
        "is_unmanaged",
        "pidfd",
        "stage",
        "started",
    )

    def __init__(self, accepted: AcceptedTask, directory: TaskDirectory) -> None:
        self.accepted = accepted
        self.directory = directory
        self.stage = TaskStage.ACCEPTED
        self.started: TaskStarted | None = None
        self.exited: TaskExited | None = None
        self.pidfd: int | None = None
        self.forks = 0
        self.fork_at = 0.0  # earliest time of the next fork, monotonic clock
        self.is_unmanaged = False  # a background task ends it, or its files are damaged: not reconciled

    @property
    def spec(self) -> TaskSpec:
        return self.accepted.spec


class Tasks:
    def __init__(
        self, directory: AgentDirectory, open_files: FileLimits, report: Callable[[AgentTask], None]
    ) -> None:
        self._directory = directory
        self._open_files = open_files
        self._report = report
        self._tasks: dict[str, AgentTask] = {}
        self._tombstones: set[str] = set()
        self._forked: set[int] = set()  # children that this agent forked
        self._to_recheck: set[str] = set()  # members to reconcile again soon
        self._recheck_event = asyncio.Event()
        self._notify_pipe = (-1, -1)
        self._partial_line = b""
        self._background: set[asyncio.Task[None]] = set()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, member: str) -> AgentTask | None:
        return self._tasks.get(member)

    def all(self) -> list[AgentTask]:
        return list(self._tasks.values())

    def unfinished(self) -> list[AgentTask]:
        return [task for task in self._tasks.values() if task.stage is not TaskStage.ENDED]

    def open(self) -> None:
        """Loads existing tasks. Requires the agent's lock and a running event loop."""
        set_subreaper()
        self._notify_pipe = os.pipe()
        for fd in self._notify_pipe:
            os.set_blocking(fd, False)
        asyncio.get_running_loop().add_reader(self._notify_pipe[0], self._read_notifications)
        self._directory.empty_trash()
        self._tombstones = self._directory.tombstones()
        for directory in self._directory.tasks():
            try:
                accepted = directory.accepted()
            except Corrupt as error:
                log(f"{error}; the task is ignored")
                continue
            if accepted is None:
                shutil.rmtree(directory.path, ignore_errors=True)
            else:
                self._tasks[accepted.spec.member] = AgentTask(accepted, directory)
        for task in self.all():
            self.reconcile(task)
        for name in os.listdir(self._directory.tmp):
            self._remove_tmpdir(f"{self._directory.tmp}/{name}")

    def close(self) -> None:
        """Starts nothing from here on; running tasks continue."""
        self._closed = True
        for background in tuple(self._background):
            background.cancel()

    # Lifecycle

    def reconcile(self, task: AgentTask) -> None:
        """Reads a task's files and does what they require. Idempotent."""
        if task.stage is TaskStage.ENDED or task.is_unmanaged:
            return
        self._to_recheck.discard(task.spec.member)
        try:
            if self._refresh(task):
                return
            lock = task.directory.try_lock()
            if lock is None:
                self._watch(task)
                return
            # Read again: the supervisor may have written between the first read and its end.
            if self._refresh(task):
                os.close(lock)
            elif task.stage is TaskStage.RUNNING:
                task.is_unmanaged = True
                self._run_in_background(self._end_orphan(task, lock))
            else:
                self._fork(task, lock)
        except Corrupt as error:
            task.is_unmanaged = True
            log(f"{error}; {task.spec.member} is ignored")

    def _refresh(self, task: AgentTask) -> bool:
        """Updates the state from the files; returns whether the task has ended."""
        stage, task.started, exited = read_stage(task.directory)
        if exited is not None:
            self._record_exit(task, exited)
            return True
        if stage is TaskStage.RUNNING and task.stage is TaskStage.ACCEPTED:
            task.stage = stage
            self._report(task)
        return False

    def _record_exit(self, task: AgentTask, exited: TaskExited) -> None:
        task.exited, task.stage = exited, TaskStage.ENDED
        self._report(task)
        self._remove_tmpdir(task.spec.tmpdir)

    def _watch(self, task: AgentTask) -> None:
        """Watches a running supervisor through its pidfd."""
        if task.pidfd is not None:
            return
        if task.started is not None:
            task.pidfd = open_pidfd(task.started.pid, task.started.ticks)
        if task.pidfd is None:
            self._recheck_soon(task)
            return
        asyncio.get_running_loop().add_reader(task.pidfd, self._supervisor_ended, task)
        self._wake(task)  # an agent may have died after it wrote an end request and before the signal

    def _recheck_soon(self, task: AgentTask) -> None:
        self._to_recheck.add(task.spec.member)
        self._recheck_event.set()

    def _wake(self, task: AgentTask) -> None:
        if task.pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(task.pidfd, signal.SIGUSR1)

    def _supervisor_ended(self, task: AgentTask) -> None:
        if task.pidfd is not None:
            asyncio.get_running_loop().remove_reader(task.pidfd)
            os.close(task.pidfd)
            task.pidfd = None
        self._reap()
        self.reconcile(task)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while pid := os.waitpid(-1, os.WNOHANG)[0]:
                self._forked.discard(pid)

    async def _end_orphan(self, task: AgentTask, lock: int) -> None:
        """Ends a task whose supervisor died: kills its processes and writes its exit, while holding the
        lock."""
        try:
            log(f"the supervisor of {task.spec.member} died; killing the remaining processes of the task")
            while kill_processes_with_token(task.accepted.token) + self._kill_adopted() > 0:
                await asyncio.sleep(_POLL_S)
            at = task.started.at if task.started else None
            await self._write_exit(task, TaskExited(signal.SIGKILL, time.time(), CAUSE_UNKNOWN, "", at))
        finally:
            os.close(lock)

    def _kill_adopted(self) -> int:
        """Kills children that this agent did not fork; returns how many there were."""
        self._reap()
        strays = [pid for pid in children_of(os.getpid()) if pid not in self._forked]
        for pid in strays:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        return len(strays)

    async def _write_exit(self, task: AgentTask, exited: TaskExited) -> None:
        while True:
            try:
                task.directory.write_exit(exited, by_supervisor=False)
                break
            except OSError as error:
                log(f"cannot write the exit of {task.spec.member}, retrying: {error}")
                await asyncio.sleep(_SWEEP_S)
        self._record_exit(task, exited)

    def _fork(self, task: AgentTask, lock: int) -> None:
        """Forks a supervisor, which inherits the lock. Only for a task that has never run."""
        try:
            if self._closed:
                return
            if task.forks >= _FORKS_MAX:
                text = f"start failed: {task.forks} supervisors died before the start"
                task.is_unmanaged = True
                self._run_in_background(
                    self._write_exit(task, TaskExited(NOT_EXECUTABLE, time.time(), "", text))
                )
                return
            if time.monotonic() < task.fork_at:
                self._recheck_soon(task)
                return
            task.forks += 1
            task.fork_at = time.monotonic() + min(_FORK_RETRY_S * 2**task.forks, _FORK_RETRY_MAX_S)
            pid = self._fork_with_blocked_signals(task, lock)
        except OSError as error:
            log(f"cannot fork a supervisor for {task.spec.member}, retrying: {error}")
            self._recheck_soon(task)
            return
        finally:
            os.close(lock)
        reach(_FORKED)
        self._forked.add(pid)
        task.pidfd = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(task.pidfd, self._supervisor_ended, task)

    def _fork_with_blocked_signals(self, task: AgentTask, lock: int) -> int:
        signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)
        try:
            pid = os.fork()
            if pid == 0:
                supervise(task.directory, task.accepted, lock, self._notify_pipe[1], self._open_files)
            return pid
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)

    # Triggers of reconciliation

    def _read_notifications(self) -> None:
        """Reconciles the tasks that supervisors announced in the pipe."""
        try:
            data = os.read(self._notify_pipe[0], 1 << 16)
        except BlockingIOError:
            return
        *members, self._partial_line = (self._partial_line + data).split(b"\n")
        for member in dict.fromkeys(members):
            task = self._tasks.get(member.decode(errors="replace"))
            if task is not None:
                self.reconcile(task)

    async def sweep(self) -> None:
        """Reconciles periodically what no event announces; sooner for members that wait for a retry."""
        swept_at = time.monotonic()
        while True:
            self._recheck_event.clear()
            if not self._to_recheck:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_SWEEP_S):
                        await self._recheck_event.wait()
            await asyncio.sleep(_POLL_S)
            for member in tuple(self._to_recheck):
                task = self._tasks.get(member)
                if task is None:
                    self._to_recheck.discard(member)
                else:
                    self.reconcile(task)
            if time.monotonic() - swept_at >= _SWEEP_S:
                swept_at = time.monotonic()
                bound_log(self._directory.log)
                self._reap()
                for task in self.all():
                    if task.stage is TaskStage.ACCEPTED:
                        self.reconcile(task)

    def _run_in_background(self, coroutine: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Temporary directories of jobs

    def _remove_tmpdir(self, path: str) -> None:
        """Removes the directory of a job whose last task here has ended."""
        if os.path.dirname(path) != self._directory.tmp or any(
            t.spec.tmpdir == path for t in self.unfinished()
        ):
            return
        try:
            os.rmdir(path)
        except FileNotFoundError:
            pass
        except OSError:
            self._remove_tree(path)

    def _remove_tree(self, path: str) -> None:
        """Removes a tree in a child process: it may take long, and threads and fork do not mix."""
        with suppress(OSError):
            pid = os.fork()
            if pid == 0:
                try:
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os._exit(0)
            self._forked.add(pid)

    # Commands

    def has_tombstone(self, member: str) -> bool:
        return member in self._tombstones

    def accept(self, spec: TaskSpec) -> AgentTask:
        """Persists a task. After an `OSError` nothing has changed. The first `reconcile` starts it."""
        accepted = AcceptedTask(spec, secrets.token_hex(16), time.time())
        task = AgentTask(accepted, self._directory.accept(accepted))
        self._tasks[spec.member] = task
        return task

    def request_end(self, task: AgentTask, request: EndRequest) -> None:
        """Persists the request, then signals the supervisor. A supervisor that starts later reads the
        file."""
        if task.directory.add_end(request):
            self._wake(task)

    def add_tombstone(self, member: str) -> None:
        """Forbids that a member which is unknown here ever starts here."""
        if member in self._tombstones:
            return
        if len(self._tombstones) >= _TOMBSTONES_MAX:
            raise Conflict(f"the agent has {_TOMBSTONES_MAX} tombstones, the maximum; release some members")
        self._directory.add_tombstone(member)
        self._tombstones.add(member)

    def release(self, member: str) -> None:
        """Removes an ended task or a tombstone; its end is recorded elsewhere."""
        task = self._tasks.get(member)
        if task is not None and task.stage is not TaskStage.ENDED:
            log(f"{member} was released, but has not ended; it is kept")
            return
        if task is not None:
            self._remove(task)
        if member in self._tombstones:
            self._tombstones.discard(member)
            self._directory.remove_tombstone(member)

    def _remove(self, task: AgentTask) -> None:
        task.stage = TaskStage.ENDED
        del self._tasks[task.spec.member]
        with suppress(OSError):  # the next agent reports it again, and it is released again
            self._directory.remove(task.directory)


def log(text: str) -> None:
    """Writes to the agent's log, which is its stderr."""
    sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}\n")
    sys.stderr.flush()
