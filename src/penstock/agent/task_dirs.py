"""The directory of an agent, and the meaning of its files.

    agent.lock        locked by the agent while it runs; contains its pid
    agent.log         what the agent writes to stderr; `agent.log.1` and so on are older
    epoch             the newest epoch that the agent has seen
    tasks/<name>/     one task: lock, spec.json, start.json, end.json, exit.json
    gone/<name>       a tombstone: this member must never start here
    trash/            directories that are being deleted
    tmp/              temporary directories of jobs

The state of a task follows from its files. Without `start.json` and with a free lock it has never run and may
start. With `start.json`, without `exit.json` and with a free lock its supervisor has died. With a held lock
its supervisor runs. A directory without `spec.json` was never accepted. A task is removed by a rename into
`trash`, so it cannot lose `start.json` before `spec.json`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from penstock.agent.durable import fsync_directory, read_if_exists, register_pair, write_durably
from penstock.agent.records import (
    MEMBER_MAX,
    AcceptedTask,
    EndRequest,
    EndRequests,
    TaskExited,
    TaskStage,
    TaskStarted,
    decode_record,
    encode_record,
)
from penstock.errors import BadRequest, Conflict, Corrupt
from penstock.failpoints import reach
from penstock.paths import make_private

__all__ = ["END_REQUESTS_MAX", "AgentDirectory", "TaskDirectory", "read_stage", "try_lock"]

END_REQUESTS_MAX: Final = 1000  # per task

_SPEC: Final = register_pair("agent.spec", "the agent writes the spec of a task")
_END: Final = register_pair("agent.end", "the agent writes a request to end or signal a task")
_EPOCH: Final = register_pair("agent.epoch", "the agent writes the newest epoch")
_TOMBSTONE: Final = register_pair("agent.gone", "the agent writes a tombstone")
_EXIT: Final = register_pair("agent.exit", "the agent writes the exit of a task whose supervisor died")
_RELEASE: Final = register_pair("agent.release", "the agent removes a task")
_START: Final = register_pair("supervisor.start", "the supervisor writes that the command starts")
_SUPERVISOR_EXIT: Final = register_pair("supervisor.exit", "the supervisor writes the exit of the command")


def try_lock(path: str) -> int | None:
    """Returns a file descriptor that holds the lock; None if another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except BaseException:
        os.close(fd)
        raise
    return fd


class TaskDirectory:
    """The files of one task."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def try_lock(self) -> int | None:
        return try_lock(f"{self.path}/lock")

    def accepted(self) -> AcceptedTask | None:
        data = read_if_exists(f"{self.path}/spec.json")
        return decode_record(data, AcceptedTask, f"{self.path}/spec.json") if data is not None else None

    def started(self) -> TaskStarted | None:
        data = read_if_exists(f"{self.path}/start.json")
        return decode_record(data, TaskStarted, f"{self.path}/start.json") if data is not None else None

    def ends(self) -> tuple[EndRequest, ...]:
        data = read_if_exists(f"{self.path}/end.json")
        return decode_record(data, EndRequests, f"{self.path}/end.json").requests if data is not None else ()

    def exited(self) -> TaskExited | None:
        data = read_if_exists(f"{self.path}/exit.json")
        return decode_record(data, TaskExited, f"{self.path}/exit.json") if data is not None else None

    def write_spec(self, accepted: AcceptedTask) -> None:
        write_durably(f"{self.path}/spec.json", encode_record(accepted), _SPEC)

    def write_start(self, started: TaskStarted) -> None:
        write_durably(f"{self.path}/start.json", encode_record(started), _START)

    def write_exit(self, exited: TaskExited, *, by_supervisor: bool) -> None:
        write_durably(
            f"{self.path}/exit.json", encode_record(exited), _SUPERVISOR_EXIT if by_supervisor else _EXIT
        )

    def add_end(self, request: EndRequest) -> bool:
        """Persists the request; returns False if its key is already known."""
        requests = self.ends()
        if any(known.key == request.key for known in requests):
            return False
        if len(requests) >= END_REQUESTS_MAX:
            raise Conflict(f"a task accepts at most {END_REQUESTS_MAX} signals")
        write_durably(f"{self.path}/end.json", encode_record(EndRequests((*requests, request))), _END)
        return True


class AgentDirectory:
    """The directory of one agent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tasks = str(path / "tasks")
        self._gone = str(path / "gone")
        self._trash = str(path / "trash")
        self.tmp = str(path / "tmp")
        self.log = path / "agent.log"

    def make(self) -> None:
        for path in (self.path, *map(Path, (self._tasks, self._gone, self._trash, self.tmp))):
            make_private(path)

    def lock_agent(self) -> int | None:
        """Locks the directory for changes by this process; returns None if another process has the lock."""
        return try_lock(str(self.path / "agent.lock"))

    def name_of(self, member: str) -> str:
        if not 0 < len(member) <= MEMBER_MAX or len(member.encode()) > MEMBER_MAX:
            raise BadRequest(
                "the member key has an invalid length",
                where="member",
                found=f"{len(member)} characters",
                expected=f"1 to {MEMBER_MAX} bytes",
            )
        return "m" + quote(member, safe="")

    def task(self, member: str) -> TaskDirectory:
        return TaskDirectory(f"{self._tasks}/{self.name_of(member)}")

    def tasks(self) -> Iterator[TaskDirectory]:
        """Yields every task directory, also those of tasks that were not accepted completely."""
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._tasks)):
                yield TaskDirectory(f"{self._tasks}/{name}")

    def accept(self, accepted: AcceptedTask) -> TaskDirectory:
        """Persists a task. After an `OSError` no directory remains."""
        task = self.task(accepted.spec.member)
        os.mkdir(task.path, 0o700)
        try:
            task.write_spec(accepted)
            fsync_directory(self._tasks)
        except OSError:
            shutil.rmtree(task.path, ignore_errors=True)
            raise
        return task

    def remove(self, task: TaskDirectory) -> None:
        reach(_RELEASE.before)
        trashed = f"{self._trash}/{os.path.basename(task.path)}"
        shutil.rmtree(trashed, ignore_errors=True)
        os.rename(task.path, trashed)
        reach(_RELEASE.after)
        shutil.rmtree(trashed, ignore_errors=True)

    def empty_trash(self) -> None:
        for name in os.listdir(self._trash):
            shutil.rmtree(f"{self._trash}/{name}", ignore_errors=True)

    def tombstones(self) -> set[str]:
        return {unquote(name[1:]) for name in os.listdir(self._gone) if not name.endswith(".tmp")}

    def add_tombstone(self, member: str) -> None:
        """Forbids that this member ever starts here."""
        write_durably(f"{self._gone}/{self.name_of(member)}", b"", _TOMBSTONE)

    def remove_tombstone(self, member: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._gone}/{self.name_of(member)}")

    def epoch(self) -> int:
        data = read_if_exists(str(self.path / "epoch"))
        if data is None:
            return 0
        try:
            return int(data)
        except ValueError as error:
            raise Corrupt(f"{self.path / 'epoch'} is damaged: {data[:40]!r}") from error

    def write_epoch(self, epoch: int) -> None:
        write_durably(str(self.path / "epoch"), f"{epoch}\n".encode(), _EPOCH)


def read_stage(task: TaskDirectory) -> tuple[TaskStage, TaskStarted | None, TaskExited | None]:
    """Derives the stage from the files of a task. Reads the exit first, because it is written last."""
    exited = task.exited()
    started = task.started()
    if exited is not None:
        return TaskStage.ENDED, started, exited
    return (TaskStage.RUNNING if started else TaskStage.ACCEPTED), started, None
