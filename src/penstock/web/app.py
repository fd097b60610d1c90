"""The ASGI application: the table of endpoints as Starlette routes, with every failure answered as JSON.

A service method is called only with a completely read and well-formed request. Which callers are admitted is
decided per socket (`penstock.web.server`); the `Caller` of a request is built in one place
(`penstock.web.callers`). Long lists are sent in slices with a pause in between, so that one large response
does not block the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.interface import Service
from penstock.api.requests import RequestBody, SubmitRequest
from penstock.api.responses import ResponseBody
from penstock.errors import BadRequest
from penstock.web.bodies import decode, decode_submission, read_body
from penstock.web.callers import caller_of, process_user
from penstock.web.errors import UnknownPath, WrongMethod, error_response, json_response
from penstock.web.queries import read_query
from penstock.web.routes import ENDPOINTS, Call, CallResult, Endpoint
from penstock.web.streams import EventStream, frames

__all__ = ["create_app"]

_SLICE: Final = 500


def create_app(service: Service, *, user: str = "") -> Starlette:
    """`user` is the user who runs the instance; by default the user of this process."""
    name = user or process_user()
    routes = [
        Route(endpoint.path, _Handler(endpoint, service, name), methods=[endpoint.method])
        for endpoint in ENDPOINTS
    ]
    handlers: dict[type[Exception], Callable[[Request, Exception], Awaitable[Response]]] = {
        HTTPException: _no_route
    }
    return Starlette(routes=routes, exception_handlers=handlers)


class _Handler:
    """One endpoint as an ASGI application."""

    def __init__(self, endpoint: Endpoint, service: Service, user: str) -> None:
        self._endpoint = endpoint
        self._service = service
        self._user = user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: ASGIApp
        try:
            response = await self._respond(Request(scope, receive))
        except ClientDisconnect:
            return
        except Exception as error:
            response = error_response(error)
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> ASGIApp:
        endpoint = self._endpoint
        if request.method != endpoint.method:
            raise _wrong_method(request)  # Starlette routes HEAD to the endpoint of GET.
        query = read_query(request.query_params, endpoint.query)
        body = await _read_request(request, endpoint)
        caller = caller_of(request.scope, self._user)
        result = await endpoint.call(Call(self._service, caller, request.path_params, query, body))
        return _response(endpoint, result)


async def _read_request(request: Request, endpoint: Endpoint) -> RequestBody | None:
    text = await read_body(request, endpoint.body_bytes_max)
    if endpoint.request is SubmitRequest:
        return await decode_submission(text)
    if endpoint.request is not None:
        return decode(text, endpoint.request)
    if text:
        raise BadRequest("this endpoint takes no body", where="body", found=f"{len(text)} bytes")
    return None


def _response(endpoint: Endpoint, result: CallResult) -> ASGIApp:
    if isinstance(result, bytes):
        return Response(result, endpoint.status, media_type=endpoint.media_type)
    if isinstance(result, ResponseBody):
        return _json(result, endpoint.status)
    return EventStream(frames(result, endpoint.stream))


def _json(document: ResponseBody, status: int) -> Response:
    fields = document.__struct_encode_fields__
    rows = getattr(document, document.__struct_fields__[0]) if len(fields) == 1 else None
    if not isinstance(rows, list) or len(rows) <= _SLICE:
        return json_response(document, status)
    return StreamingResponse(_slices(fields[0], rows), status, media_type="application/json")


async def _slices(key: str, rows: list[object]) -> AsyncIterator[bytes]:
    yield b'{"%s":[' % key.encode()
    for start in range(0, len(rows), _SLICE):
        body = msgspec.json.encode(rows[start : start + _SLICE])[1:-1]
        yield b"," + body if start else body
        await asyncio.sleep(0)
    yield b"]}"


async def _no_route(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        return error_response(_wrong_method(request))
    path = request.url.path
    return error_response(UnknownPath("no such endpoint", found=path, expected="see /v1/openapi.json"))


def _wrong_method(request: Request) -> WrongMethod:
    return WrongMethod(
        "no such method here", where=request.url.path, found=request.method, expected="see /v1/openapi.json"
    )
