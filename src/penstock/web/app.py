"""The application: the table of endpoints as routes of Starlette, with every failure answered as JSON.

A function of an endpoint is only reached by a request that was read completely and found well formed. Who
may call is decided by the socket (see `penstock.web.server`), not here; jobs belong to the user who runs
the instance.
"""

from __future__ import annotations

import getpass
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.interface import Service
from penstock.errors import BadRequest
from penstock.web.bodies import NoBody, decode, read_body
from penstock.web.errors import UnknownPath, WrongMethod, error_response
from penstock.web.queries import read_query
from penstock.web.routes import ENDPOINTS, Answer, Call, Endpoint

__all__ = ["create_app"]


def create_app(service: Service, *, owner: str = "") -> Starlette:
    """`owner` is the user whose jobs they are; by default the user of this process."""
    name = owner or _user()
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

    def __init__(self, endpoint: Endpoint, service: Service, owner: str) -> None:
        self._endpoint = endpoint
        self._service = service
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp
        try:
            answer = await self._answer(Request(scope, receive))
        except ClientDisconnect:
            return
        except Exception as error:
            answer = error_response(error)
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Answer:
        endpoint = self._endpoint
        if request.method != endpoint.method:
            raise _wrong_method(request)  # HEAD comes along with GET.
        query = read_query(request.query_params, endpoint.query)
        text = await read_body(request, endpoint.body_bytes_max)
        if endpoint.body is NoBody and text:
            raise BadRequest("this endpoint takes no body", where="body", found=f"{len(text)} bytes")
        body = decode(text, endpoint.body)
        return await endpoint.answer(Call(self._service, self._owner, request.path_params, query, body))


async def _no_route(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        return error_response(_wrong_method(request))
    path = request.url.path
    return error_response(UnknownPath("no such endpoint", found=path, expected="see /v1/openapi.json"))


def _wrong_method(request: Request) -> WrongMethod:
    return WrongMethod(
        "no such method here", where=request.url.path, found=request.method, expected="see /v1/openapi.json"
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without an entry in the user database
        return "unknown"
