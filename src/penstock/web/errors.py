"""Errors as HTTP answers: one status and one JSON body for every error that Penstock raises.

The body always has the same keys, so that a program can look at `kind` and a person can read `message`.
An error that carries an integer `http_status` is answered with it: that is how "can never run" becomes
422 and "too large" 413 without this module knowing who raises them.
"""

from __future__ import annotations

import logging

import msgspec
from starlette.responses import Response

from penstock.errors import BadRequest, Conflict, PenstockError, Unavailable

__all__ = [
    "TokenRequired",
    "TooLarge",
    "UnknownPath",
    "WrongMethod",
    "error_document",
    "json_response",
    "refusal",
]

_log = logging.getLogger(__name__)


class TooLarge(BadRequest):
    """More than this endpoint takes in one call."""

    http_status = 413


class UnknownPath(BadRequest):
    """There is no such endpoint."""

    http_status = 404


class WrongMethod(BadRequest):
    """The endpoint exists, the method does not."""

    http_status = 405


class TokenRequired(BadRequest):
    """No token, or not the right one."""

    http_status = 401


def json_response(document: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(document), status, media_type="application/json")


def refusal(error: Exception) -> Response:
    """The answer to a request that failed with `error`."""
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


def error_document(error: Exception) -> dict[str, object]:
    known = isinstance(error, PenstockError)
    message = str(error) if known else "the instance has a defect; its log says more"
    facts = {name: str(getattr(error, name, "")) if known else "" for name in ("where", "found", "expected")}
    return {
        "error": {
            "kind": type(error).__name__ if known else "Defect",
            "summary": str(getattr(error, "summary", "")) or message,
            **facts,
            "message": message,
        }
    }


def _status(error: PenstockError) -> int:
    own = getattr(error, "http_status", None)
    if isinstance(own, int):
        return own
    if isinstance(error, BadRequest):
        return 400
    if isinstance(error, Conflict):
        return 404 if type(error).__name__.startswith("Unknown") else 409
    if isinstance(error, Unavailable):
        return 503
    return 500
