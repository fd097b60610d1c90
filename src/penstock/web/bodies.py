"""Bodies of requests: what they may hold, how large they may be, and what is wrong with them.

Unknown fields are errors, because a misspelt field that is ignored does the opposite of what was meant.
The size is bounded before a byte is decoded. Jobs are decoded in slices with a pause between, so that a
hundred thousand of them do not stop everybody else; the jobspec inside stays text, which is what its own
reader wants.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from starlette.requests import Request

from penstock.api.interface import Submission
from penstock.errors import BadRequest
from penstock.model.job import URGENCY_DEFAULT
from penstock.web.errors import TooLarge

__all__ = [
    "BODY_BYTES_MAX",
    "JOBS_MAX",
    "SUBMIT_BYTES_MAX",
    "CancelBody",
    "DrainBody",
    "NoBody",
    "QueueBody",
    "ShutdownBody",
    "SignalBody",
    "SubmissionBody",
    "SubmitBody",
    "UndrainBody",
    "UrgencyBody",
    "decode",
    "read_body",
    "submissions",
]

JOBS_MAX: Final = 100_000
SUBMIT_BYTES_MAX: Final = 64 << 20
BODY_BYTES_MAX: Final = 8 << 20
_SLICE: Final = 500

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Urgency = Annotated[int, msgspec.Meta(ge=0, le=31)]


class Body(msgspec.Struct, forbid_unknown_fields=True):
    """The root of all bodies."""


class SubmissionBody(Body):
    jobspec: msgspec.Raw
    urgency: _Urgency = URGENCY_DEFAULT
    requeue: Literal["never", "node-failure", "always"] = "never"


class SubmitBody(Body):
    jobs: list[msgspec.Raw]
    key: Annotated[str, msgspec.Meta(max_length=200)] = ""


class CancelBody(Body):
    ids: list[_Text] | None = None
    all: bool = False
    states: list[_Text] | None = None
    queue: _Text = ""
    note: _Text = ""


class UrgencyBody(Body):
    urgency: _Urgency


class SignalBody(Body):
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)]


class DrainBody(Body):
    targets: str
    reason: _Text = ""
    overwrite: bool = False


class UndrainBody(Body):
    targets: str


class QueueBody(Body):
    reason: _Text = ""


class ShutdownBody(Body):
    keep_tasks: bool = False


class NoBody(Body):
    """For endpoints that take none."""


_B = TypeVar("_B", bound=Body)

_PLACE: Final = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_EXPECTED: Final = re.compile(r"^Expected (.*?)(?:, got (.*))?$", re.DOTALL)


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The whole body, or `TooLarge` as soon as that is known."""
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > bytes_max:
        raise _too_large(f"{told} bytes", bytes_max)
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max:
            raise _too_large(f"more than {bytes_max} bytes", bytes_max)
        parts.append(part)
    return b"".join(parts)


def decode(text: bytes, kind: type[_B], where: str = "") -> _B:
    """The body as a value; an empty one is `{}`."""
    try:
        return msgspec.json.decode(text or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), kind, where) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            "the body is not JSON", where=where or "body", found=str(error), expected="a JSON object in UTF-8"
        ) from None


async def submissions(body: SubmitBody) -> list[Submission]:
    """The jobs of a call, each with a checked form."""
    if len(body.jobs) > JOBS_MAX:
        raise TooLarge(
            "too many jobs",
            where="jobs",
            found=f"{len(body.jobs)} jobs",
            expected=f"at most {JOBS_MAX} a call",
        )
    if not body.jobs:
        raise BadRequest("no jobs", where="jobs", found="an empty list", expected="at least one job")
    made: list[Submission] = []
    for index, raw in enumerate(body.jobs):
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        where = f"jobs[{index}]"
        one = decode(bytes(raw), SubmissionBody, where)
        jobspec = bytes(one.jobspec).strip()
        if not jobspec.startswith(b"{"):
            raise BadRequest(
                "a jobspec is an object",
                where=f"{where}.jobspec",
                found=jobspec[:40].decode(errors="replace"),
                expected="an object with version, resources, tasks and attributes",
            )
        made.append(Submission(jobspec, one.urgency, one.requeue))
    return made


def _too_large(found: str, bytes_max: int) -> TooLarge:
    return TooLarge("the body is too large", where="body", found=found, expected=f"at most {bytes_max} bytes")


def _explained(text: str, kind: type[Body], where: str) -> BadRequest:
    """msgspec's sentence as facts."""
    match = _PLACE.match(text)
    words, place = (match[1], match[2] or "") if match else (text, "")
    path = ".".join(part for part in (where, place) if part).replace(".[", "[") or "body"
    words = words.replace("`", "")
    fields: tuple[Any, ...] = kind.__struct_fields__
    if words.startswith("Object contains unknown field "):
        known = ", ".join(fields) or "no field at all"
        name = words.removeprefix("Object contains unknown field ")
        return BadRequest("unknown field", where=path, found=repr(name), expected=f"one of {known}")
    if words.startswith("Object missing required field "):
        name = words.removeprefix("Object missing required field ")
        return BadRequest("a field is missing", where=path, found="no such field", expected=f"a field {name}")
    told = _EXPECTED.match(words)
    if told:
        return BadRequest("not the right kind of value", where=path, found=told[2] or "", expected=told[1])
    return BadRequest("not the right value", where=path, found=words)
