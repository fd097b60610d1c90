"""The files in the directory of a task, as typed records.

`spec.json` is the accepted task (`AcceptedTask`), `start.json` identifies its supervisor (`TaskStarted`),
`end.json` lists the requested signals (`EndRequests`), and `exit.json` is the exit (`TaskExited`). Unknown
fields are ignored, so an agent can read the files of a later version; the meaning of a field never changes.
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
    "AcceptedTask",
    "EndRequest",
    "EndRequests",
    "TaskExited",
    "TaskSpec",
    "TaskStage",
    "TaskStarted",
    "WarningSignal",
    "decode_record",
    "encode_record",
]

MEMBER_MAX: Final = 64  # bytes of a member key; percent-encoded (3 bytes each) it is still a valid file name
GRACE_S: Final = 5.0
CAUSE_TIMEOUT: Final = "timeout"
CAUSE_UNKNOWN: Final = "unknown"


class TaskStage(enum.Enum):
    """The progress of a task."""

    ACCEPTED = "accepted"  # its spec is durable
    RUNNING = "running"  # its command runs, or may run
    ENDED = "ended"  # none of its processes is left


class WarningSignal(msgspec.Struct, frozen=True):
    """A signal that is sent some seconds before the time limit."""

    signum: int
    timeleft: float


class TaskSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A task to run. The sender has expanded every template, so the agent looks nothing up."""

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
    markers: str = ""  # directory of marker files: tasks that share an output file truncate it once
    attempt: int = 1
    file_mode: int = 0o600
    label_io: bool = False
    input: str = ""  # file for stdin; empty, and without a spool: /dev/null
    spool: str = ""  # directory of the job's spooled input, and the file for this task's position in it
    position: str = ""
    end_at: float | None = None
    grace_s: float = GRACE_S
    warn: WarningSignal | None = None
    tmpdir: str = ""
    gpus: str = "-1"
    cores: tuple[int, ...] = ()  # the cores to bind to; empty: no binding
    node: str = ""
    granted: tuple[int, ...] = ()  # the allocated cores, with or without binding
    usage: dict[str, int] = {}  # allocated units by resource; repeated in every report


class AcceptedTask(msgspec.Struct, frozen=True):
    spec: TaskSpec
    token: str  # in the environment of every process of the task and of no other process
    at: float


class TaskStarted(msgspec.Struct, frozen=True):
    pid: int  # of the supervisor
    ticks: int  # start time of the process in kernel ticks; detects a reused pid
    at: float


class EndRequest(msgspec.Struct, frozen=True):
    key: str  # idempotency key: a repeated key is the same request
    signal: int
    grace_s: float | None  # seconds until SIGKILL; None: only the signal
    why: str


class EndRequests(msgspec.Struct, frozen=True):
    requests: tuple[EndRequest, ...] = ()


class TaskExited(msgspec.Struct, frozen=True):
    status: int  # a wait(2) status
    ended_at: float
    cause: str = ""
    failure: str = ""  # why the command could not be started
    started_at: float | None = None


Record = TypeVar("Record", bound=msgspec.Struct)


def encode_record(record: msgspec.Struct) -> bytes:
    return msgspec.json.encode(record)


def decode_record(data: bytes, record_type: type[Record], path: str) -> Record:
    try:
        return msgspec.json.decode(data, type=record_type)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path} is damaged: {error}") from error
