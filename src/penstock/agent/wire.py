"""The protocol between an agent and whoever drives it: JSON, one message a line, over a Unix socket.

    driver                     agent
    attach(version, epoch)     hello, a report for every task it knows, complete; then reports as they happen
    start, end, forget         answer: applied, conflict or gone
    probe                      a report, or answer gone
    release, shutdown          nothing
    anything it must refuse    refused, and the connection is closed

The newest attached connection is the one that counts. Every command has its epoch; an older one than was ever
seen is refused. A message has at most `FRAME_MAX` bytes.
"""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from penstock.agent.records import Stage, TaskSpec
from penstock.errors import BadRequest

__all__ = [
    "FRAME_MAX",
    "VERSION",
    "AgentReply",
    "Answered",
    "Attach",
    "Command",
    "Complete",
    "EndTask",
    "Forget",
    "Hello",
    "Probe",
    "Release",
    "Shutdown",
    "Start",
    "TaskAnswer",
    "TaskRefused",
    "TaskReport",
    "decode_command",
    "decode_reply",
    "encode",
]

VERSION: Final = 1
FRAME_MAX: Final = 4 << 20


class _Message(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower):
    pass


class Attach(_Message, frozen=True):
    version: int
    epoch: int


class Start(_Message, frozen=True):
    id: int
    epoch: int
    spec: TaskSpec


class EndTask(_Message, frozen=True):
    id: int
    epoch: int
    member: str
    key: str  # the same key again is the same request again
    signal: int
    grace_s: float | None
    why: str


class Forget(_Message, frozen=True):
    id: int
    epoch: int
    member: str


class Probe(_Message, frozen=True):
    id: int
    epoch: int
    member: str


class Release(_Message, frozen=True):
    """The end of these members is recorded: nobody will ask for them again."""

    epoch: int
    members: tuple[str, ...]


class Shutdown(_Message, frozen=True):
    epoch: int
    kill: bool


Command = Attach | Start | EndTask | Forget | Probe | Release | Shutdown


class Hello(_Message, frozen=True):
    version: int
    node: str
    pid: int
    tasks: int


class TaskReport(_Message, frozen=True):
    member: str
    stage: Stage
    at: float
    status: int = 0
    cause: str = ""
    uses: dict[str, int] = {}


class Complete(_Message, frozen=True):
    """Everything that is known has been told."""


class Answered(enum.Enum):
    APPLIED = "applied"
    CONFLICT = "conflict"
    GONE = "gone"


class TaskAnswer(_Message, frozen=True):
    id: int
    member: str
    outcome: Answered
    detail: str = ""


class TaskRefused(_Message, frozen=True):
    detail: str
    stale: bool = False  # a newer epoch has been seen


AgentReply = Hello | TaskReport | Complete | TaskAnswer | TaskRefused

_COMMANDS: Final[msgspec.json.Decoder[Command]] = msgspec.json.Decoder(Command)
_REPLIES: Final[msgspec.json.Decoder[AgentReply]] = msgspec.json.Decoder(AgentReply)
_ENCODER: Final = msgspec.json.Encoder()


def encode(message: Command | AgentReply) -> bytes:
    """One line. A message that is too long, or has text that is no text, is a `BadRequest`."""
    try:
        line = _ENCODER.encode(message) + b"\n"
    except UnicodeEncodeError as error:
        raise BadRequest("the message has text that is no Unicode", found=str(error)) from error
    if len(line) > FRAME_MAX:
        raise BadRequest(
            "the message is too long", found=f"{len(line)} bytes", expected=f"at most {FRAME_MAX} bytes"
        )
    return line


def decode_command(line: bytes) -> Command:
    try:
        return _COMMANDS.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest("the line is no command", found=repr(line[:80]), expected=str(error)) from error


def decode_reply(line: bytes) -> AgentReply:
    try:
        return _REPLIES.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest("the line is no reply", found=repr(line[:80]), expected=str(error)) from error
