"""What is written into the directory of a task, as values.

`spec.json` says what to run (`Accepted`), `start.json` who runs it (`Started`), `end.json` which signals were
asked for (`Ends`), `exit.json` how it ended (`Exited`). Unknown fields are ignored when read, so an agent may
meet the files of a later version; a field is never given another meaning.
"""

from __future__ import annotations

import enum
from typing import Final, TypeVar

import msgspec

from penstock.errors import Corrupt

__all__ = [
    "CAUSE_TIMEOUT",
    "CAUSE_UNKNOWN",
    "GRACE_S",
    "MEMBER_MAX",
    "Accepted",
    "EndRequest",
    "Ends",
    "Exited",
    "Stage",
    "Started",
    "TaskSpec",
    "Warn",
    "decode_record",
    "encode_record",
]

MEMBER_MAX: Final = 64  # characters of a member's key; quoted threefold it still is a file's name
GRACE_S: Final = 5.0
CAUSE_TIMEOUT: Final = "timeout"
CAUSE_UNKNOWN: Final = "unknown"


class Stage(enum.Enum):
    """How far a task has come."""

    ACCEPTED = "accepted"  # its spec is durable
    RUNNING = "running"  # its command runs, or may run
    ENDED = "ended"  # none of its processes is left


class Warn(msgspec.Struct, frozen=True):
    """A signal some time before the limit."""

    signum: int
    timeleft: float


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One task, with nothing left to look up: whoever sends it has expanded every template."""

    member: str
    job: int
    job_f58: str
    rank: int
    command: tuple[str, ...]
    cwd: str
    environment: dict[str, str]
    size: int = 1
    nnodes: int = 1
    local_id: int = 0
    stdout: str
    stderr: str = ""  # empty: the same file as stdout
    marks: str = ""  # a directory: each output file is emptied once for all tasks that share it
    attempt: int = 1
    file_mode: int = 0o600
    label_io: bool = False
    end_at: float | None = None
    grace_s: float = GRACE_S
    warn: Warn | None = None
    tmpdir: str = ""
    gpus: str = "-1"
    cores: tuple[int, ...] = ()  # the cores to be bound to; none: not bound
    node: str = ""
    granted: tuple[int, ...] = ()  # the cores that it got, bound to them or not
    uses: dict[str, int] = {}  # how much of its node it has, by kind: told again with every report


class Accepted(msgspec.Struct, frozen=True):
    spec: TaskSpec
    token: str  # in the environment of every process of the task, and nowhere else
    at: float


class Started(msgspec.Struct, frozen=True):
    pid: int  # of the supervisor
    ticks: int  # when that process began, as the kernel counts: a pid alone may be another process
    at: float


class EndRequest(msgspec.Struct, frozen=True):
    key: str  # the same key again is the same request again
    signal: int
    grace_s: float | None  # None: only the signal
    why: str


class Ends(msgspec.Struct, frozen=True):
    requests: tuple[EndRequest, ...] = ()


class Exited(msgspec.Struct, frozen=True):
    status: int  # a wait(2) status
    ended_at: float
    cause: str = ""
    failure: str = ""  # why the command could not be started
    started_at: float | None = None


Record = TypeVar("Record", bound=msgspec.Struct)


def encode_record(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record)


def decode_record(data: bytes, kind: type[Record], where: str) -> Record:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{where} is damaged: {error}") from error
