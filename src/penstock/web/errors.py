"""Errors as HTTP responses: one status and one JSON body for every error that Penstock raises.

`STATUS_BY_ERROR` is the only place that relates error types to HTTP statuses; the most specific type in
the table wins. Every body has the same fields: programs compare `kind`, people read `message`.
An exception that is not a `PenstockError` is a defect: it is logged and answered with 500, and its text
is not sent to the client.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec
from starlette.responses import Response

from penstock.api.errors import CanNeverRun, UnknownObject
from penstock.api.responses import ErrorInfo, ErrorResponse
from penstock.errors import BadRequest, Conflict, PenstockError, Unavailable

__all__ = [
    "STATUS_BY_ERROR",
    "TokenRequired",
    "TooLarge",
    "UnknownPath",
    "WrongMethod",
    "error_document",
    "error_response",
    "json_response",
]

_log = logging.getLogger(__name__)


class TooLarge(BadRequest):
    """The request has more bytes or more jobs than one call may carry."""


class UnknownPath(BadRequest):
    """No endpoint has this path."""


class WrongMethod(BadRequest):
    """The endpoint exists, but not for this method."""


class TokenRequired(BadRequest):
    """The bearer token is missing or wrong."""


STATUS_BY_ERROR: Final[dict[type[PenstockError], int]] = {
    PenstockError: 500,
    BadRequest: 400,
    TokenRequired: 401,
    UnknownPath: 404,
    UnknownObject: 404,
    WrongMethod: 405,
    Conflict: 409,
    TooLarge: 413,
    CanNeverRun: 422,
    Unavailable: 503,
}


def json_response(document: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def error_response(error: Exception) -> Response:
    """The response to a request that failed with `error`."""
    if isinstance(error, PenstockError):
        status = _status(error)
    else:
        _log.error("request failed", exc_info=error)
        status = 500
    response = json_response(error_document(error), status)
    if status == 401:
        response.headers["www-authenticate"] = "Bearer"
    if status == 503:
        response.headers["retry-after"] = "1"
    return response


def error_document(error: Exception) -> ErrorResponse:
    if not isinstance(error, PenstockError):
        message = "internal error; see the log of the instance"
        return ErrorResponse(ErrorInfo("Defect", message, "", "", "", message))
    message = str(error)
    summary, where, found, expected = message, "", "", ""
    if isinstance(error, BadRequest):
        summary, where, found, expected = error.summary, error.where, error.found, error.expected
    return ErrorResponse(ErrorInfo(type(error).__name__, summary, where, found, expected, message))


def _status(error: PenstockError) -> int:
    return next(STATUS_BY_ERROR[kind] for kind in type(error).__mro__ if kind in STATUS_BY_ERROR)
