"""The process above one task: starts the command, waits, ends it when asked or in time, writes down how.

It is forked from the agent without an exec and shares nothing with it but a lock, which tells that it lives,
and a pipe into which it says that something is to be read. All other words go through files: requests to end
come as `end.json` with SIGUSR1, so that neither is lost when the agent dies. It is a subreaper: whatever the
command leaves behind, however it hides, becomes its child and is killed before the exit is written.

It handles one signal at a time (`sigtimedwait`), so there is no handler and no race. The limit is measured on
a clock that nobody sets and that goes on while a laptop sleeps; the wall clock is looked at as well, so that
a task whose end has passed by anyone's watch does not go on. What cannot be written is tried each second.
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

from penstock.agent.launch import Failure, Limits, enter_cwd, label, open_outputs, spawn
from penstock.agent.processes import descendants_of, set_subreaper, start_ticks
from penstock.agent.records import CAUSE_TIMEOUT, Accepted, EndRequest, Exited, Started
from penstock.agent.task_dirs import TaskDir
from penstock.failpoints import reach, register

__all__ = ["BLOCKED", "supervise"]

# Blocked before the fork and for ever: these are waited for, or have no business here.
BLOCKED: Final = (signal.SIGCHLD, signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_WATCHED: Final = (signal.SIGCHLD, signal.SIGUSR1)
_RETRY_S: Final = 1.0
_WALL_CHECK_S: Final = 30.0
_IDLE_S: Final = 3600.0
_KILL_AGAIN_S: Final = 0.05
_KILL_AGAIN_MAX_S: Final = 1.0
_LABEL_DRAIN_S: Final = 5.0
_RUNNING: Final = register("supervisor.command.after", "after: the supervisor has started the command")
_SWEPT: Final = register("supervisor.sweep.after", "after: no process of the task is left")


def supervise(task: TaskDir, accepted: Accepted, lock: int, notice: int, open_files: Limits) -> NoReturn:
    """Never returns. Call it in a forked child whose `BLOCKED` signals are blocked."""
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in BLOCKED:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        _close_all_but(lock, notice)
        set_subreaper()
        gc.disable()
        _Supervisor(task, accepted, lock, notice, open_files).run()
        code = 0
    except SystemExit:
        pass
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(code)


def _close_all_but(*kept: int) -> None:
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))


def _steady() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class _Supervisor:
    def __init__(self, task: TaskDir, accepted: Accepted, lock: int, notice: int, open_files: Limits) -> None:
        self._task = task
        self._accepted = accepted
        self._spec = accepted.spec
        self._lock = lock
        self._notice = notice
        self._open_files = open_files
        self._main = 0
        self._labeller = 0
        self._status: int | None = None
        self._cause = ""
        self._failure = ""
        self._started_at: float | None = None
        self._done_ends: set[str] = set()
        self._kill_at: float | None = None  # by the steady clock, as the next two
        self._limit_at: float | None = None
        self._warn_at: float | None = None

    def run(self) -> None:
        self._write_start()
        self._say()
        if not self._ended_before_start():
            try:
                self._launch()
            except Failure as failure:
                self._status, self._failure = failure.status, failure.text
            else:
                reach(_RUNNING)
                self._wait()
        self._sweep()
        self._drain_labeller()
        reach(_SWEPT)
        exited = Exited(self._status or 0, time.time(), self._cause, self._failure, self._started_at)
        while True:
            try:
                self._task.write_exit(exited, by_supervisor=True)
                break
            except OSError:
                self._leave_if_forgotten()
                signal.sigtimedwait(_WATCHED, _RETRY_S)
        self._say()

    def _say(self) -> None:
        """Tells the agent that there is something to read. If it is away it will look by itself."""
        with suppress(OSError):
            os.write(self._notice, f"{self._spec.member}\n".encode())

    def _write_start(self) -> None:
        pid = os.getpid()
        ticks = start_ticks(pid)
        while True:
            self._started_at = time.time()
            try:
                self._task.write_start(Started(pid, ticks or 0, self._started_at))
                return
            except OSError:
                self._leave_if_forgotten()
                signal.sigtimedwait((signal.SIGUSR1,), _RETRY_S)

    def _leave_if_forgotten(self) -> None:
        """Whoever removed the directory of a task wants to know nothing more of it."""
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
        complaint = enter_cwd(self._spec, host)
        if self._spec.tmpdir:
            with suppress(OSError):
                os.makedirs(self._spec.tmpdir, mode=0o700, exist_ok=True)
        outputs = open_outputs(self._spec)
        if complaint:
            with suppress(OSError):
                os.write(outputs.stderr, complaint.encode(errors="replace"))
        if self._spec.label_io:
            self._labeller, outputs = label(self._spec.rank, outputs, self._let_go)
        if self._spec.end_at is not None:
            self._limit_at = _steady() + self._spec.end_at - time.time()
            if self._spec.warn is not None:
                self._warn_at = self._limit_at - self._spec.warn.timeleft
        try:
            self._main = spawn(self._accepted, outputs, self._open_files)
        except Failure as failure:
            place = f"task {self._spec.rank} (host {host}): {failure.text}"
            raise Failure(failure.status, place) from failure
        finally:
            for fd in {outputs.stdout, outputs.stderr}:
                os.close(fd)

    def _let_go(self) -> None:
        """In the labeller: it must not look like a living supervisor."""
        os.close(self._lock)
        os.close(self._notice)

    def _wait(self) -> None:
        self._take_ends()
        while self._status is None:
            timeout = _IDLE_S if self._limit_at is None else _WALL_CHECK_S
            moments = [at for at in (self._kill_at, self._limit_at, self._warn_at) if at is not None]
            if moments:
                timeout = min(timeout, max(0.0, min(moments) - _steady()))
            got = signal.sigtimedwait(_WATCHED, timeout)
            if got is not None and got.si_signo == signal.SIGUSR1:
                self._take_ends()
            self._reap()
            if self._status is None:
                self._look_at_clock()

    def _look_at_clock(self) -> None:
        at, end_at = _steady(), self._spec.end_at
        if self._warn_at is not None and at >= self._warn_at and self._spec.warn is not None:
            self._warn_at = None
            self._signal(self._spec.warn.signum)
        if self._limit_at is not None and (
            at >= self._limit_at or (end_at is not None and time.time() >= end_at)
        ):
            self._limit_at = self._warn_at = None
            self._cause = self._cause or CAUSE_TIMEOUT
            self._signal(signal.SIGALRM)
            self._kill_by(at + self._spec.grace_s)
        if self._kill_at is not None and at >= self._kill_at:
            self._kill_descendants()
            self._kill_at = at + _KILL_AGAIN_MAX_S

    def _take_ends(self) -> None:
        for request in self._task.ends():
            if request.key not in self._done_ends:
                self._done_ends.add(request.key)
                self._end(request)

    def _end(self, request: EndRequest) -> None:
        self._signal(request.signal)
        if request.grace_s is not None:
            self._cause = self._cause or request.why
            self._kill_by(_steady() + request.grace_s)

    def _kill_by(self, at: float) -> None:
        self._kill_at = at if self._kill_at is None else min(self._kill_at, at)

    def _signal(self, number: int) -> None:
        """To the command's process group. It has not been reaped, so the number is still its own."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._main, number)

    def _kill_descendants(self) -> None:
        for pid in descendants_of(os.getpid(), but=self._labeller):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> bool:
        """Takes every child that has ended; returns whether any is left that is not the labeller."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._main:
                self._status = status
            elif pid == self._labeller:
                self._labeller = 0

    def _sweep(self) -> None:
        """Kills and reaps until nothing of the task is left."""
        again_s = _KILL_AGAIN_S
        while self._reap():
            if self._labeller and not descendants_of(os.getpid(), but=self._labeller):
                return
            self._kill_descendants()
            signal.sigtimedwait((signal.SIGCHLD,), again_s)
            again_s = min(again_s * 2, _KILL_AGAIN_MAX_S)

    def _drain_labeller(self) -> None:
        until = _steady() + _LABEL_DRAIN_S
        while self._labeller and self._reap():
            left_s = until - _steady()
            if left_s <= 0:
                os.kill(self._labeller, signal.SIGKILL)
            signal.sigtimedwait((signal.SIGCHLD,), max(left_s, _KILL_AGAIN_S))
