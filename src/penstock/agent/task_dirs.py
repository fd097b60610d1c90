"""The directory of an agent, and what its files mean.

    agent.lock        held by the agent while it lives; has its pid
    epoch             the newest epoch that was ever seen
    tasks/<name>/     one task: lock, spec.json, start.json, end.json, exit.json
    gone/<name>       a member that must never start here
    trash/            what is being deleted
    tmp/              directories of jobs

A task's state is read off its files. No `start.json` and its lock free: never ran, may be started.
`start.json` without `exit.json` and its lock free: its supervisor died. Its lock held: its supervisor lives.
A directory without `spec.json` was never accepted. A task leaves by a rename into `trash`, so that it cannot
lose its `start.json` before its `spec.json`.
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

from penstock.agent.durable import read_if_there, register_pair, sync_directory, write_durably
from penstock.agent.records import (
    MEMBER_MAX,
    Accepted,
    EndRequest,
    Ends,
    Exited,
    Stage,
    Started,
    decode_record,
    encode_record,
)
from penstock.errors import BadRequest, Conflict, Corrupt
from penstock.failpoints import reach
from penstock.paths import make_private

__all__ = ["ENDS_MAX", "TaskDir", "TaskDirs", "stage_of", "try_lock"]

ENDS_MAX: Final = 1000  # signals to one task

_SPEC: Final = register_pair("agent.spec", "the agent writes what a task is to run")
_END: Final = register_pair("agent.end", "the agent writes that a task is to be signalled")
_EPOCH: Final = register_pair("agent.epoch", "the agent writes the newest epoch")
_GONE: Final = register_pair("agent.gone", "the agent writes that a member must never start")
_EXIT: Final = register_pair("agent.exit", "the agent writes the exit of a task whose supervisor died")
_RELEASE: Final = register_pair("agent.release", "the agent takes a task away")
_START: Final = register_pair("supervisor.start", "the supervisor writes that the command is to run")
_DONE: Final = register_pair("supervisor.exit", "the supervisor writes how the command ended")


def try_lock(path: str) -> int | None:
    """A file descriptor that holds the lock; None if somebody else holds it."""
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


class TaskDir:
    """The files of one task."""

    __slots__ = ("path",)

    def __init__(self, path: str) -> None:
        self.path = path

    def try_lock(self) -> int | None:
        return try_lock(f"{self.path}/lock")

    def accepted(self) -> Accepted | None:
        data = read_if_there(f"{self.path}/spec.json")
        return decode_record(data, Accepted, f"{self.path}/spec.json") if data is not None else None

    def started(self) -> Started | None:
        data = read_if_there(f"{self.path}/start.json")
        return decode_record(data, Started, f"{self.path}/start.json") if data is not None else None

    def ends(self) -> tuple[EndRequest, ...]:
        data = read_if_there(f"{self.path}/end.json")
        return decode_record(data, Ends, f"{self.path}/end.json").requests if data is not None else ()

    def exited(self) -> Exited | None:
        data = read_if_there(f"{self.path}/exit.json")
        return decode_record(data, Exited, f"{self.path}/exit.json") if data is not None else None

    def write_spec(self, accepted: Accepted) -> None:
        write_durably(f"{self.path}/spec.json", encode_record(accepted), _SPEC)

    def write_start(self, started: Started) -> None:
        write_durably(f"{self.path}/start.json", encode_record(started), _START)

    def write_exit(self, exited: Exited, *, by_supervisor: bool) -> None:
        write_durably(f"{self.path}/exit.json", encode_record(exited), _DONE if by_supervisor else _EXIT)

    def add_end(self, request: EndRequest) -> bool:
        """Writes the request down; False if it was there already."""
        requests = self.ends()
        if any(known.key == request.key for known in requests):
            return False
        if len(requests) >= ENDS_MAX:
            raise Conflict(f"more than {ENDS_MAX} signals to one task")
        write_durably(f"{self.path}/end.json", encode_record(Ends((*requests, request))), _END)
        return True


class TaskDirs:
    """The files of one agent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tasks = str(path / "tasks")
        self._gone = str(path / "gone")
        self._trash = str(path / "trash")
        self.tmp = str(path / "tmp")

    def make(self) -> None:
        for path in (self.path, *map(Path, (self._tasks, self._gone, self._trash, self.tmp))):
            make_private(path)

    def lock_agent(self) -> int | None:
        """Makes this process the one that may change the directory; None if another is."""
        return try_lock(str(self.path / "agent.lock"))

    def name_of(self, member: str) -> str:
        if not 0 < len(member) <= MEMBER_MAX or len(member.encode()) > MEMBER_MAX:
            raise BadRequest(
                "the key of a member has a bad length",
                where="member",
                found=f"{len(member)} characters",
                expected=f"1 to {MEMBER_MAX} bytes",
            )
        return "m" + quote(member, safe="")

    def task(self, member: str) -> TaskDir:
        return TaskDir(f"{self._tasks}/{self.name_of(member)}")

    def tasks(self) -> Iterator[TaskDir]:
        """All tasks that were accepted or may have been."""
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self._tasks)):
                yield TaskDir(f"{self._tasks}/{name}")

    def accept(self, accepted: Accepted) -> TaskDir:
        """Makes a task durable. On an `OSError` there is no trace of it."""
        task = self.task(accepted.spec.member)
        os.mkdir(task.path, 0o700)
        try:
            task.write_spec(accepted)
            sync_directory(self._tasks)
        except OSError:
            shutil.rmtree(task.path, ignore_errors=True)
            raise
        return task

    def remove(self, task: TaskDir) -> None:
        reach(_RELEASE.before)
        away = f"{self._trash}/{os.path.basename(task.path)}"
        shutil.rmtree(away, ignore_errors=True)
        os.rename(task.path, away)
        reach(_RELEASE.after)
        shutil.rmtree(away, ignore_errors=True)

    def empty_trash(self) -> None:
        for name in os.listdir(self._trash):
            shutil.rmtree(f"{self._trash}/{name}", ignore_errors=True)

    def tombstones(self) -> set[str]:
        return {unquote(name[1:]) for name in os.listdir(self._gone) if not name.endswith(".tmp")}

    def bury(self, member: str) -> None:
        """Nothing may start this member here any more."""
        write_durably(f"{self._gone}/{self.name_of(member)}", b"", _GONE)

    def unbury(self, member: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(f"{self._gone}/{self.name_of(member)}")

    def epoch(self) -> int:
        data = read_if_there(str(self.path / "epoch"))
        if data is None:
            return 0
        try:
            return int(data)
        except ValueError as error:
            raise Corrupt(f"{self.path / 'epoch'} is damaged: {data[:40]!r}") from error

    def write_epoch(self, epoch: int) -> None:
        write_durably(str(self.path / "epoch"), f"{epoch}\n".encode(), _EPOCH)


def stage_of(task: TaskDir) -> tuple[Stage, Started | None, Exited | None]:
    """What the files of a task say. The exit is looked for first: it is written last."""
    exited = task.exited()
    started = task.started()
    if exited is not None:
        return Stage.ENDED, started, exited
    return (Stage.RUNNING if started else Stage.ACCEPTED), started, None
