"""What an API server, or the way to it, can do to a request.

An answer that refuses is an `ApiError`, by its status; the ones worth another try are of the families
`Conflict` and `Unavailable` as well. Where there was no answer, one question matters to whoever wrote: can it
have been done? `Unreachable` and `WriteFenced` mean that nothing was sent, `OutcomeUnknown` that only a read
will tell. For a write, every answer of 500 and above is of the latter kind: a server says that too after its
own store timed out.
"""

from __future__ import annotations

import msgspec

from penstock.errors import Conflict, PenstockError, Unavailable

__all__ = [
    "AlreadyExists",
    "ApiConflict",
    "ApiError",
    "BadResponse",
    "Forbidden",
    "Gone",
    "Invalid",
    "NotFound",
    "OutcomeUnknown",
    "ServerError",
    "Status",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "WriteFenced",
    "answer_error",
    "status_error",
]

_MESSAGE_MAX = 2_000  # characters; the message of a server can hold a whole object
_RETRY_AFTER_MAX_S = 600.0


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    retry_after_seconds: int | None = None
    causes: tuple[Cause, ...] | None = None


class StatusMetadata(msgspec.Struct, frozen=True, kw_only=True):
    continuation: str = msgspec.field(default="", name="continue")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of a server that has no object to show."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None
    metadata: StatusMetadata = StatusMetadata()


class ApiError(PenstockError):
    """A server answered, and the answer was no.

    `reason` is the word of the server (`AlreadyExists`), `causes` are the words of the details,
    `continuation` is where an expired list can go on.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        *,
        asked: str = "",
        retry_after_s: float | None = None,
        causes: tuple[str, ...] = (),
        continuation: str = "",
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message if len(message) <= _MESSAGE_MAX else message[:_MESSAGE_MAX] + "..."
        self.asked = asked
        self.retry_after_s = retry_after_s
        self.causes = causes
        self.continuation = continuation
        word = f" {reason}" if reason else ""
        super().__init__(
            f"{asked}: {status}{word}: {self.message}" if asked else f"{status}{word}: {message}"
        )


class NotFound(ApiError):
    """404: no such object, or no such kind of object."""


class ApiConflict(ApiError, Conflict):
    """409: the object is not as the request supposes."""


class AlreadyExists(ApiConflict):
    """409: an object of this name exists."""


class Gone(ApiError):
    """410: the version that was asked for is no longer remembered."""


class Unauthorized(ApiError):
    """401: the credential was not accepted, and a renewed one was not either."""


class Forbidden(ApiError):
    """403: we are known, and not allowed to."""


class Invalid(ApiError):
    """422: the object does not pass validation."""


class TooManyRequests(ApiError, Unavailable):
    """429: the server has too much to do, or a disruption budget has nothing left."""

    @property
    def is_budget(self) -> bool:
        return "DisruptionBudget" in self.causes


class ServerError(ApiError, Unavailable):
    """500 and above, to a read."""


class BadResponse(ApiError, Unavailable):
    """The answer is no answer of an API server: not JSON, not of the type, or longer than we read."""


class Unreachable(Unavailable):
    """The request was never sent: no connection, or no credential to send with it."""


class WriteFenced(Unavailable):
    """A write was not sent: when its turn came, whoever wanted it was not allowed to write any more."""


class OutcomeUnknown(Unavailable):
    """A write may have been done, or not. `status` is 0 if there was no answer at all."""

    def __init__(self, text: str, *, status: int = 0, reason: str = "", message: str = "") -> None:
        self.status = status
        self.reason = reason
        self.message = message
        super().__init__(text)


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: ApiConflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}
_STATUS_DECODER = msgspec.json.Decoder(Status)


def answer_error(http_status: int, body: bytes, *, retry_after: str = "", asked: str = "") -> ApiError:
    """The error of an answer: a `Status`, or whatever text a proxy or an overloaded server sends."""
    try:
        status = _STATUS_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = Status()
    if status.kind != "Status":
        text = body[:_MESSAGE_MAX].decode(errors="replace").strip()
        status = Status(message=text or "(no text)")
    return status_error(status, http_status, retry_after=retry_after, asked=asked)


def status_error(status: Status, http_status: int, *, retry_after: str = "", asked: str = "") -> ApiError:
    details = status.details or StatusDetails()
    family = _BY_STATUS.get(http_status)
    if family is None:
        family = ServerError if http_status >= 500 else ApiError
    elif family is ApiConflict and status.reason == "AlreadyExists":
        family = AlreadyExists
    return family(
        http_status,
        status.reason,
        status.message,
        asked=asked,
        retry_after_s=_retry_after_s(retry_after, details.retry_after_seconds),
        causes=tuple(cause.reason for cause in details.causes or ()),
        continuation=status.metadata.continuation,
    )


def _retry_after_s(header: str, in_details: int | None) -> float | None:
    """Seconds only: an API server sends no dates. The header wins, being what proxies add too."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _RETRY_AFTER_MAX_S)
    if in_details is not None and in_details > 0:
        return min(float(in_details), _RETRY_AFTER_MAX_S)
    return None
