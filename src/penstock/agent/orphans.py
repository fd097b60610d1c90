"""Reads and ends the tasks of a dead agent, from another process on the same machine.

`end_tasks` holds the agent's lock, so that no agent starts meanwhile. A task counts as ended when its
supervisor is gone, a scan finds no process of it, and its exit is written: an agent that starts later in the
same directory finds the exit and starts nothing.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.agent.processes import descendants_of, kill_processes_with_token, open_pidfd
from penstock.agent.records import AcceptedTask, TaskExited, TaskStage
from penstock.agent.task_dirs import AgentDirectory, TaskDirectory, read_stage
from penstock.agent.wire import TaskReport
from penstock.errors import Corrupt

__all__ = ["end_tasks", "read_tasks"]

_POLL_S: Final = 0.02


def read_tasks(path: Path) -> list[TaskReport]:
    """Reports the tasks in the directory of an agent from their files. Changes nothing."""
    reports = []
    for task in AgentDirectory(path).tasks():
        with suppress(Corrupt, OSError):
            accepted = task.accepted()
            if accepted is not None:
                reports.append(_task_report(task, accepted))
    return reports


def _task_report(task: TaskDirectory, accepted: AcceptedTask) -> TaskReport:
    stage, started, exited = read_stage(task)
    member, usage = accepted.spec.member, accepted.spec.usage
    if exited is not None:
        return TaskReport(
            member, stage, exited.ended_at, exited.status, exited.cause or exited.failure, usage
        )
    return TaskReport(member, stage, started.at if started else accepted.at, usage=usage)


def end_tasks(path: Path, cause: str, timeout_s: float) -> list[TaskReport] | None:
    """Kills every task, writes its exit, and reports the ended tasks. Returns None if an agent runs there.

    A task that could not be ended in time is not reported; call this again. A supervisor that was just forked
    briefly holds the agent's lock, so a later call may succeed after None.
    """
    directory = AgentDirectory(path)
    directory.make()
    lock = directory.lock_agent()
    if lock is None:
        return None
    try:
        deadline = time.monotonic() + timeout_s
        reports = []
        for task in directory.tasks():
            with suppress(Corrupt, OSError):
                accepted = task.accepted()
                if accepted is None:
                    continue
                if task.exited() is None:
                    _end_task(task, accepted, cause, deadline)
                report = _task_report(task, accepted)
                if report.stage is TaskStage.ENDED:
                    reports.append(report)
        return reports
    finally:
        os.close(lock)


def _end_task(task: TaskDirectory, accepted: AcceptedTask, cause: str, deadline: float) -> None:
    lock = None
    while lock is None:
        lock = task.try_lock()
        if lock is None:
            _kill_supervisor(task)
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)
    try:
        if task.exited() is not None:
            return
        while kill_processes_with_token(accepted.token):
            if time.monotonic() > deadline:
                return
            time.sleep(_POLL_S)
        started = task.started()
        at = started.at if started else None
        task.write_exit(TaskExited(signal.SIGKILL, time.time(), cause, "", at), by_supervisor=False)
    finally:
        os.close(lock)


def _kill_supervisor(task: TaskDirectory) -> None:
    """Kills a supervisor and its descendants. Stops it first, so that it adds no descendant meanwhile."""
    started = task.started()
    pidfd = open_pidfd(started.pid, started.ticks) if started else None
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
