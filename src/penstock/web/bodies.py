"""Request bodies: read within a byte limit, then decoded into the request struct of the endpoint.

The size is bounded before anything is decoded. The jobs of a submission are decoded in slices with a pause
in between, so that a submission of 100,000 jobs does not block the event loop. Messages of
msgspec are rewritten into the three parts of a `BadRequest`: what is wrong, where, what would be valid.
"""

from __future__ import annotations

import asyncio
import re
from typing import Annotated, Any, Final, TypeVar

import msgspec
from starlette.requests import Request

from penstock.api.requests import JOBS_MAX, JobSubmission, RequestBody, SubmitRequest
from penstock.errors import BadRequest
from penstock.web.errors import TooLarge

__all__ = ["BODY_BYTES_MAX", "SUBMIT_BYTES_MAX", "decode", "decode_submission", "read_body"]

SUBMIT_BYTES_MAX: Final = 64 << 20
BODY_BYTES_MAX: Final = 8 << 20
_SLICE: Final = 500

_B = TypeVar("_B", bound=RequestBody)

_MESSAGE: Final = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_EXPECTED: Final = re.compile(r"^Expected (.*?)(?:, got (.*))?$", re.DOTALL)


class _UndecodedSubmission(RequestBody, frozen=True):
    """A `SubmitRequest` whose jobs are still JSON text."""

    jobs: list[msgspec.Raw]
    key: Annotated[str, msgspec.Meta(max_length=200)] = ""


async def read_body(request: Request, bytes_max: int) -> bytes:
    """The whole body; raises `TooLarge` as soon as the size is known to exceed the limit."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise _too_large(f"{declared} bytes", bytes_max)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > bytes_max:
            raise _too_large(f"more than {bytes_max} bytes", bytes_max)
        chunks.append(chunk)
    return b"".join(chunks)


def decode(text: bytes, body_type: type[_B], where: str = "") -> _B:
    """The body as a struct; an empty body is `{}`."""
    try:
        return msgspec.json.decode(text or b"{}", type=body_type)
    except msgspec.ValidationError as error:
        raise _explained(str(error), body_type, where) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(
            "the body is not JSON", where=where or "body", found=str(error), expected="a JSON object in UTF-8"
        ) from None


async def decode_submission(text: bytes) -> SubmitRequest:
    undecoded = decode(text, _UndecodedSubmission)
    if len(undecoded.jobs) > JOBS_MAX:
        raise TooLarge(
            "too many jobs",
            where="jobs",
            found=f"{len(undecoded.jobs)} jobs",
            expected=f"at most {JOBS_MAX} a call",
        )
    if not undecoded.jobs:
        raise BadRequest("no jobs", where="jobs", found="an empty list", expected="at least one job")
    jobs: list[JobSubmission] = []
    for index, raw in enumerate(undecoded.jobs):
        if index % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        where = f"jobs[{index}]"
        job = decode(bytes(raw), JobSubmission, where)
        jobspec = bytes(job.jobspec).strip()
        if not jobspec.startswith(b"{"):
            raise BadRequest(
                "a jobspec is an object",
                where=f"{where}.jobspec",
                found=jobspec[:40].decode(errors="replace"),
                expected="an object with version, resources, tasks and attributes",
            )
        # `Raw` refers to the buffer that it was decoded from; the stripped copy does not.
        jobs.append(JobSubmission(msgspec.Raw(jobspec), job.urgency, job.requeue))
    return SubmitRequest(jobs, undecoded.key)


def _too_large(found: str, bytes_max: int) -> TooLarge:
    return TooLarge("the body is too large", where="body", found=found, expected=f"at most {bytes_max} bytes")


def _explained(text: str, body_type: type[RequestBody], where: str) -> BadRequest:
    """A message of msgspec as a `BadRequest`."""
    match = _MESSAGE.match(text)
    words, field = (match[1], match[2] or "") if match else (text, "")
    path = ".".join(part for part in (where, field) if part).replace(".[", "[") or "body"
    words = words.replace("`", "")
    fields: tuple[Any, ...] = body_type.__struct_fields__
    if words.startswith("Object contains unknown field "):
        known = ", ".join(fields) or "no field at all"
        name = words.removeprefix("Object contains unknown field ")
        return BadRequest("unknown field", where=path, found=repr(name), expected=f"one of {known}")
    if words.startswith("Object missing required field "):
        name = words.removeprefix("Object missing required field ")
        return BadRequest("a field is missing", where=path, found="no such field", expected=f"a field {name}")
    expected = _EXPECTED.match(words)
    if expected:
        return BadRequest(
            "not the right kind of value", where=path, found=expected[2] or "", expected=expected[1]
        )
    return BadRequest("not the right value", where=path, found=words)
