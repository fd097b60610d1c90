"""The ways in which a request to the API server can fail.

An error response is an `ApiError`, with a subclass per HTTP status; those that a retry may cure are also
`Conflict` or `Unavailable`. Without a response, the caller of a write must know whether the write can have
taken effect: `Unreachable` and `WriteFenced` mean that nothing was sent, `OutcomeUnknown` that the caller has
to read the object. A response of 500 or above to a write is an `OutcomeUnknown`, too: a server also sends it
when its own store timed out.
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
    "error_from_response",
    "error_from_status",
]

_MESSAGE_MAX = 2_000  # Characters. A server's message can contain an entire object.
_RETRY_AFTER_MAX_S = 600.0


class StatusCause(msgspec.Struct, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""
    field: str = ""


class StatusDetails(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    retry_after_seconds: int | None = None
    causes: tuple[StatusCause, ...] | None = None


class StatusMetadata(msgspec.Struct, frozen=True, kw_only=True):
    continue_token: str = msgspec.field(default="", name="continue")


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The `Status` object that a server returns instead of a resource."""

    kind: str = ""
    status: str = ""
    message: str = ""
    reason: str = ""
    code: int = 0
    details: StatusDetails | None = None
    metadata: StatusMetadata = StatusMetadata()


class ApiError(PenstockError):
    """An error response of the server.

    `reason` is the server's (e.g. `AlreadyExists`), `causes` are the reasons in its details. With
    `continue_token`, an expired list can be continued at a newer resourceVersion.
    """

    def __init__(
        self,
        status: int,
        reason: str = "",
        message: str = "",
        *,
        request: str = "",
        retry_after_s: float | None = None,
        causes: tuple[str, ...] = (),
        continue_token: str = "",
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message if len(message) <= _MESSAGE_MAX else message[:_MESSAGE_MAX] + "..."
        self.request = request
        self.retry_after_s = retry_after_s
        self.causes = causes
        self.continue_token = continue_token
        code = f"{status} {reason}" if reason else str(status)
        super().__init__(f"{request}: {code}: {self.message}" if request else f"{code}: {message}")


class NotFound(ApiError):
    """404: no such object, or the server does not serve the resource."""


class ApiConflict(ApiError, Conflict):
    """409: the object is not in the state that the request requires."""


class AlreadyExists(ApiConflict):
    """409 AlreadyExists: an object of this name exists."""


class Gone(ApiError):
    """410: the server no longer has the requested resourceVersion."""


class Unauthorized(ApiError):
    """401: the server rejected the credential, and a renewed one as well."""


class Forbidden(ApiError):
    """403: RBAC does not allow the request."""


class Invalid(ApiError):
    """422: the object failed validation."""


class TooManyRequests(ApiError, Unavailable):
    """429: the server is overloaded, or a PodDisruptionBudget does not allow the eviction."""

    @property
    def is_disruption_budget(self) -> bool:
        return "DisruptionBudget" in self.causes


class ServerError(ApiError, Unavailable):
    """500 and above, in response to a read."""


class BadResponse(ApiError, Unavailable):
    """The response is not a valid API response: not JSON, of another type, or too large."""


class Unreachable(Unavailable):
    """The request was not sent: no connection, or no credential."""


class WriteFenced(Unavailable):
    """A write was not sent: `may_write` returned false when the request was about to leave."""


class OutcomeUnknown(Unavailable):
    """A write that may or may not have taken effect. `status` is 0 if there was no response."""

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


def error_from_response(
    http_status: int, body: bytes, *, retry_after: str = "", request: str = ""
) -> ApiError:
    """The body is a `Status`, or plain text from a proxy or an overloaded server."""
    try:
        status = _STATUS_DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        status = Status()
    if status.kind != "Status":
        text = body[:_MESSAGE_MAX].decode(errors="replace").strip()
        status = Status(message=text or "(no text)")
    return error_from_status(status, http_status, retry_after=retry_after, request=request)


def error_from_status(
    status: Status, http_status: int, *, retry_after: str = "", request: str = ""
) -> ApiError:
    details = status.details or StatusDetails()
    error_class = _BY_STATUS.get(http_status)
    if error_class is None:
        error_class = ServerError if http_status >= 500 else ApiError
    elif error_class is ApiConflict and status.reason == "AlreadyExists":
        error_class = AlreadyExists
    return error_class(
        http_status,
        status.reason,
        status.message,
        request=request,
        retry_after_s=_retry_after_s(retry_after, details.retry_after_seconds),
        causes=tuple(cause.reason for cause in details.causes or ()),
        continue_token=status.metadata.continue_token,
    )


def _retry_after_s(header: str, in_details: int | None) -> float | None:
    """The header takes precedence, since proxies set it too. API servers send seconds, never dates."""
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _RETRY_AFTER_MAX_S)
    if in_details is not None and in_details > 0:
        return min(float(in_details), _RETRY_AFTER_MAX_S)
    return None
