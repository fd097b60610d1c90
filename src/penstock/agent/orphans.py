"""What a dead agent has left behind, seen and ended by somebody else on the same machine.

Only for whoever holds the agent's lock, so that no agent can come back in the middle of it. A task counts as
ended when its supervisor is gone, a scan finds no process of it, and that is written down: an agent that
starts later in the same directory finds the exit and starts nothing.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.agent.processes import descendants_of, hold, kill_bearers
from penstock.agent.records import Accepted, Exited, Stage
from penstock.agent.task_dirs import TaskDir, TaskDirs, stage_of
from penstock.agent.wire import TaskReport
from penstock.errors import Corrupt

__all__ = ["end_all", "read_all"]

_POLL_S: Final = 0.02


def read_all(path: Path) -> list[TaskReport]:
    """The tasks in the directory of an agent, as their files tell. Changes nothing."""
    found = []
    for task in TaskDirs(path).tasks():
        with suppress(Corrupt, OSError):
            accepted = task.accepted()
            if accepted is not None:
                found.append(_report(task, accepted))
    return found


def _report(task: TaskDir, accepted: Accepted) -> TaskReport:
    stage, started, exited = stage_of(task)
    member, uses = accepted.spec.member, accepted.spec.uses
    if exited is not None:
        return TaskReport(member, stage, exited.ended_at, exited.status, exited.cause or exited.failure, uses)
    return TaskReport(member, stage, started.at if started else accepted.at, uses=uses)


def end_all(path: Path, cause: str, within_s: float) -> list[TaskReport] | None:
    """Kills every task and writes its exit; reports those that have ended. None: an agent lives there.

    What could not be ended in time is not among the reports; call it again. A supervisor that has just been
    forked looks like an agent for an instant: None may be followed by an answer.
    """
    home = TaskDirs(path)
    home.make()
    lock = home.lock_agent()
    if lock is None:
        return None
    try:
        until = time.monotonic() + within_s
        found = []
        for task in home.tasks():
            with suppress(Corrupt, OSError):
                accepted = task.accepted()
                if accepted is None:
                    continue
                if task.exited() is None:
                    _end(task, accepted, cause, until)
                report = _report(task, accepted)
                if report.stage is Stage.ENDED:
                    found.append(report)
        return found
    finally:
        os.close(lock)


def _end(task: TaskDir, accepted: Accepted, cause: str, until: float) -> None:
    lock = None
    while lock is None:
        lock = task.try_lock()
        if lock is None:
            _kill_supervisor(task)
            if time.monotonic() > until:
                return
            time.sleep(_POLL_S)
    try:
        if task.exited() is not None:
            return
        while kill_bearers(accepted.token):
            if time.monotonic() > until:
                return
            time.sleep(_POLL_S)
        started = task.started()
        at = started.at if started else None
        task.write_exit(Exited(signal.SIGKILL, time.time(), cause, "", at), by_supervisor=False)
    finally:
        os.close(lock)


def _kill_supervisor(task: TaskDir) -> None:
    """With all below it, as long as it is known what is below it; it is stopped, so that nothing is added."""
    started = task.started()
    pidfd = hold(started.pid, started.ticks) if started else None
    if started is None or pidfd is None:
        return
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
            for pid in descendants_of(started.pid):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    finally:
        os.close(pidfd)
