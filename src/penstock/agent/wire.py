"""The protocol between an agent and a backend: one JSON message per line, over a Unix socket.

    backend                     agent
    attach(version, epoch)      hello, a report for every known task, complete; later, reports of changes
    start, end                  result: applied, conflict or gone
    probe                       a report, or result gone
    release, shutdown           no reply
    any invalid command         rejected; the agent closes the connection

Only the latest attached connection is served. Every command carries an epoch; the agent rejects an epoch that
is older than the newest it has seen. A message has at most `FRAME_MAX` bytes. The `type` of a message is
fixed by its `tag`, independent of the class name.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from penstock.agent.records import TaskSpec, TaskStage
from penstock.errors import BadRequest

__all__ = [
    "FRAME_MAX",
    "VERSION",
    "AgentCommand",
    "AgentReply",
    "Attach",
    "CommandOutcome",
    "CommandRejected",
    "CommandResult",
    "EndTask",
    "Hello",
    "ProbeTask",
    "ReleaseTasks",
    "ReportsComplete",
    "Shutdown",
    "StartTask",
    "TaskReport",
    "decode_command",
    "decode_reply",
    "encode",
]

VERSION: Final = 1
FRAME_MAX: Final = 4 << 20


class _Message(msgspec.Struct, frozen=True, tag_field="type"):
    pass


class Attach(_Message, frozen=True, tag="attach"):
    version: int
    epoch: int


class StartTask(_Message, frozen=True, tag="start"):
    """Idempotent by member: a known task is reported, not started again."""

    id: int
    epoch: int
    spec: TaskSpec


class EndTask(_Message, frozen=True, tag="end"):
    id: int
    epoch: int
    member: str
    key: str  # idempotency key: a repeated key is the same request
    signal: int
    grace_s: float | None
    why: str


class ProbeTask(_Message, frozen=True, tag="probe"):
    id: int
    epoch: int
    member: str


class ReleaseTasks(_Message, frozen=True, tag="release"):
    """The end of these members is recorded durably; the agent may remove them."""

    epoch: int
    members: tuple[str, ...]


class Shutdown(_Message, frozen=True, tag="shutdown"):
    epoch: int
    kill: bool


AgentCommand = Attach | StartTask | EndTask | ProbeTask | ReleaseTasks | Shutdown


class Hello(_Message, frozen=True, tag="hello"):
    version: int
    node: str
    pid: int
    tasks: int


class TaskReport(_Message, frozen=True, tag="report"):
    member: str
    stage: TaskStage
    at: float
    status: int = 0
    cause: str = ""
    usage: dict[str, int] = {}


class ReportsComplete(_Message, frozen=True, tag="complete"):
    """Follows the reports of all known tasks."""


class CommandOutcome(enum.Enum):
    APPLIED = "applied"
    CONFLICT = "conflict"
    GONE = "gone"


class CommandResult(_Message, frozen=True, tag="result"):
    id: int
    member: str
    outcome: CommandOutcome
    detail: str = ""


class CommandRejected(_Message, frozen=True, tag="rejected"):
    detail: str
    stale: bool = False  # the agent has seen a newer epoch


AgentReply = Hello | TaskReport | ReportsComplete | CommandResult | CommandRejected

_COMMANDS: Final[msgspec.json.Decoder[AgentCommand]] = msgspec.json.Decoder(AgentCommand)
_REPLIES: Final[msgspec.json.Decoder[AgentReply]] = msgspec.json.Decoder(AgentReply)
_ENCODER: Final = msgspec.json.Encoder()


def encode(message: AgentCommand | AgentReply) -> bytes:
    """Encodes a message as one line. Raises `BadRequest` if it is too long or contains invalid Unicode."""
    try:
        line = _ENCODER.encode(message) + b"\n"
    except UnicodeEncodeError as error:
        raise BadRequest("the message contains invalid Unicode", found=str(error)) from error
    if len(line) > FRAME_MAX:
        raise BadRequest(
            "the message is too long", found=f"{len(line)} bytes", expected=f"at most {FRAME_MAX} bytes"
        )
    return line


def decode_command(line: bytes) -> AgentCommand:
    try:
        return _COMMANDS.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(
            "not a command of the agent protocol", found=repr(line[:80]), expected=str(error)
        ) from error


def decode_reply(line: bytes) -> AgentReply:
    try:
        return _REPLIES.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(
            "not a reply of the agent protocol", found=repr(line[:80]), expected=str(error)
        ) from error
