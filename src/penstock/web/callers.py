"""The caller of an HTTP request.

A server wraps the application for its kind of socket, and the wrapper notes in the ASGI scope how requests
on that socket are authenticated. No header takes part in this, so a client cannot choose its method. All
callers act as the user who runs the instance and may see all namespaces: only that user can open the Unix
socket or read the token file.
"""

from __future__ import annotations

import getpass
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.identity import AuthenticationMethod, Caller

__all__ = ["AuthenticatedBy", "caller_of", "process_user"]

_SCOPE_KEY: Final = "penstock.authentication"


class AuthenticatedBy:
    """Marks every request as authenticated by one method."""

    def __init__(self, app: ASGIApp, method: AuthenticationMethod) -> None:
        self._app = app
        self._method = method

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app({**scope, _SCOPE_KEY: self._method}, receive, send)


def caller_of(scope: Scope, user: str) -> Caller:
    """`user` is the user who runs the instance. A scope without a mark did not come through a socket."""
    return Caller(user, scope.get(_SCOPE_KEY, AuthenticationMethod.IN_PROCESS), namespaces=None)


def process_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # The user id has no entry in the user database.
        return "unknown"
