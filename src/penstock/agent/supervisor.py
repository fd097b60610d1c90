"""The supervisor process of one task: starts the command, enforces its limit, ends it on request, writes its
exit.

It is forked from the agent without an exec. It shares with the agent a lock, which proves that it runs, and a
pipe, on which it announces changed files. Everything else goes through files: a request to end is `end.json`
followed by SIGUSR1, so it is not lost when the agent dies. The supervisor is a subreaper: every process that
the command leaves behind becomes its child and is killed before the exit is written.

It handles one signal at a time (`sigtimedwait`), so there is no signal handler and no race. The limit is
measured with CLOCK_BOOTTIME, which nobody can set and which advances during suspend. The wall clock is
checked as well, so that a task does not run past its end time when the clock is set forward. A failed write
is retried every second.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import time
import traceback
from contextlib import suppress
from typing import Final, NoReturn

from penstock.agent.launch import FileLimits, LaunchError, enter_cwd, label, open_outputs, spawn
from penstock.agent.processes import descendants_of, set_subreaper, start_ticks
from penstock.agent.records import CAUSE_TIMEOUT, AcceptedTask, EndRequest, TaskExited, TaskStarted
from penstock.agent.task_dirs import TaskDirectory
from penstock.agent.task_input import TaskInput
from penstock.failpoints import reach, register

__all__ = ["BLOCKED", "supervise"]

# Blocked before the fork and not unblocked: either `sigtimedwait` receives them, or they are ignored.
BLOCKED: Final = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_AWAITED_SIGNALS: Final = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGIO)
_RETRY_S: Final = 1.0
_WALL_CHECK_S: Final = 30.0
_IDLE_S: Final = 3600.0
_KILL_RETRY_S: Final = 0.05
_KILL_RETRY_MAX_S: Final = 1.0
_LABEL_DRAIN_S: Final = 5.0
_COMMAND_STARTED: Final = register(
    "supervisor.command.after", "after: the supervisor has started the command"
)
_SWEPT: Final = register("supervisor.sweep.after", "after: no process of the task is left")


def supervise(
    task: TaskDirectory, accepted: AcceptedTask, lock: int, notify_fd: int, open_files: FileLimits
) -> NoReturn:
    """Runs the supervisor and exits the process. Call it in a forked child with `BLOCKED` signals blocked."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in BLOCKED:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _close_all_except(lock, notify_fd)
        set_subreaper()
        gc.disable()
        _Supervisor(task, accepted, lock, notify_fd, open_files).run()
        code = 0
    except SystemExit:
        pass
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _close_all_except(*kept: int) -> None:
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _boottime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Supervisor:
    def __init__(
        self, task: TaskDirectory, accepted: AcceptedTask, lock: int, notify_fd: int, open_files: FileLimits
    ) -> None:
        self._task = task
        self._accepted = accepted
        self._spec = accepted.spec
        self._lock = lock
        self._notify_fd = notify_fd
        self._open_files = open_files
        self._command_pid = 0
        self._labeller_pid = 0
        self._input: TaskInput | None = None
        self._status: int | None = None
        self._cause = ""
        self._failure = ""
        self._started_at: float | None = None
        self._handled_requests: set[str] = set()
        self._kill_at: float | None = None  # CLOCK_BOOTTIME, like the next two
        self._limit_at: float | None = None
        self._warn_at: float | None = None

    def run(self) -> None:
        self._write_start()
        self._notify_agent()
        if not self._ended_before_start():
            try:
                self._launch()
            except LaunchError as failure:
                self._status, self._failure = failure.status, failure.text
            else:
                reach(_COMMAND_STARTED)
                self._wait()
        if self._input is not None:
            self._input.close()
        self._sweep()
        self._drain_labeller()
        reach(_SWEPT)
        exited = TaskExited(self._status or 0, time.time(), self._cause, self._failure, self._started_at)
        while True:
            try:
                self._task.write_exit(exited, by_supervisor=True)
                break
            except OSError:
                self._exit_if_removed()
                signal.sigtimedwait(_AWAITED_SIGNALS, _RETRY_S)
        self._notify_agent()

    def _notify_agent(self) -> None:
        """Announces changed files to the agent. Without an agent nothing is lost: the next one reads the
        files."""
        with suppress(OSError):
            os.write(self._notify_fd, f"{self._spec.member}\n".encode())

    def _write_start(self) -> None:
        pid = os.getpid()
        ticks = start_ticks(pid)
        while True:
            self._started_at = time.time()
            try:
                self._task.write_start(TaskStarted(pid, ticks or 0, self._started_at))
                return
            except OSError:
                self._exit_if_removed()
                signal.sigtimedwait((signal.SIGUSR1,), _RETRY_S)

    def _exit_if_removed(self) -> None:
        """Ends the supervisor if the directory of its task was removed: no reader of the exit is left."""
        if not os.path.isdir(self._task.path):
            raise SystemExit

    def _ended_before_start(self) -> bool:
        for request in self._task.ends():
            if request.grace_s is not None:
                self._status, self._cause = request.signal, request.why
                return True
        if self._spec.end_at is not None and time.time() >= self._spec.end_at:
            self._status, self._cause = signal.SIGALRM, CAUSE_TIMEOUT
            return True
        return False

    def _launch(self) -> None:
        host = socket.gethostname()
        warning = enter_cwd(self._spec, host)
        if self._spec.tmpdir:
            with suppress(OSError):
                os.makedirs(self._spec.tmpdir, mode=0o700, exist_ok=True)
        outputs = open_outputs(self._spec)
        if warning:
            with suppress(OSError):
                os.write(outputs.stderr, warning.encode(errors="replace"))
        if self._spec.label_io:
            self._labeller_pid, outputs = label(self._spec.rank, outputs, self._close_inherited)
        if self._spec.end_at is not None:
            self._limit_at = _boottime_s() + self._spec.end_at - time.time()
            if self._spec.warn is not None:
                self._warn_at = self._limit_at - self._spec.warn.timeleft
        try:
            # After the fork of the labeller, which must not keep the input open.
            self._input = TaskInput(self._spec)
            self._command_pid = spawn(self._accepted, self._input.stdin, outputs, self._open_files)
            self._input.started()
        except LaunchError as failure:
            text = f"task {self._spec.rank} (host {host}): {failure.text}"
            raise LaunchError(failure.status, text) from failure
        finally:
            for fd in {outputs.stdout, outputs.stderr}:
                os.close(fd)

    def _close_inherited(self) -> None:
        """Runs in the labeller, which must not keep the lock: it would look like a live supervisor."""
        os.close(self._lock)
        os.close(self._notify_fd)

    def _wait(self) -> None:
        self._read_end_requests()
        while self._status is None:
            timeout = _IDLE_S if self._limit_at is None else _WALL_CHECK_S
            if self._input is not None:
                self._input.feed()
                if self._input.poll_s is not None:
                    timeout = min(timeout, self._input.poll_s)
            deadlines = [at for at in (self._kill_at, self._limit_at, self._warn_at) if at is not None]
            if deadlines:
                timeout = min(timeout, max(0.0, min(deadlines) - _boottime_s()))
            received = signal.sigtimedwait(_AWAITED_SIGNALS, timeout)
            if received is not None and received.si_signo == signal.SIGUSR1:
                self._read_end_requests()
            self._reap()
            if self._status is None:
                self._check_deadlines()

    def _check_deadlines(self) -> None:
        now, end_at = _boottime_s(), self._spec.end_at
        if self._warn_at is not None and now >= self._warn_at and self._spec.warn is not None:
            self._warn_at = None
            self._signal(self._spec.warn.signum)
        if self._limit_at is not None and (
            now >= self._limit_at or (end_at is not None and time.time() >= end_at)
        ):
            self._limit_at = self._warn_at = None
            self._cause = self._cause or CAUSE_TIMEOUT
            self._signal(signal.SIGALRM)
            self._kill_by(now + self._spec.grace_s)
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_descendants()
            self._kill_at = now + _KILL_RETRY_MAX_S

    def _read_end_requests(self) -> None:
        for request in self._task.ends():
            if request.key not in self._handled_requests:
                self._handled_requests.add(request.key)
                self._handle(request)

    def _handle(self, request: EndRequest) -> None:
        self._signal(request.signal)
        if request.grace_s is not None:
            self._cause = self._cause or request.why
            self._kill_by(_boottime_s() + request.grace_s)

    def _kill_by(self, at: float) -> None:
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _signal(self, number: int) -> None:
        """Signals the command's process group. The command is not reaped yet, so its pid is not reused."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._command_pid, number)

    def _kill_descendants(self) -> None:
        for pid in descendants_of(os.getpid(), exclude=self._labeller_pid):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> bool:
        """Reaps every ended child; returns whether a child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._command_pid:
                self._status = status
            elif pid == self._labeller_pid:
                self._labeller_pid = 0

    def _sweep(self) -> None:
        """Kills and reaps until no process of the task is left."""
        retry_s = _KILL_RETRY_S
        while self._reap():
            if self._labeller_pid and not descendants_of(os.getpid(), exclude=self._labeller_pid):
                return
            self._kill_descendants()
            signal.sigtimedwait((signal.SIGCHLD,), retry_s)
            retry_s = min(retry_s * 2, _KILL_RETRY_MAX_S)

    def _drain_labeller(self) -> None:
        deadline = _boottime_s() + _LABEL_DRAIN_S
        while self._labeller_pid and self._reap():
            remaining_s = deadline - _boottime_s()
            if remaining_s <= 0:
                os.kill(self._labeller_pid, signal.SIGKILL)
            signal.sigtimedwait((signal.SIGCHLD,), max(remaining_s, _KILL_RETRY_S))
