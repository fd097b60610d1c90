"""Servers: a Unix socket for the user who runs the instance, and optionally a loopback TCP port.

The Unix socket is created under umask 077, so that other users cannot connect at any moment; uvicorn would
create it with mode 0666, so it gets the socket ready made. The file mode authenticates a
client of the Unix socket. TCP is open to all users of the machine, so every request there needs the bearer
token. Each socket has its own server and its own wrapper around the application, so that no header can make
a request on one socket look like a request on the other.

`serve` runs until it is cancelled. It installs no signal handlers.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import ipaddress
import os
import secrets
import socket
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.api.identity import AuthenticationMethod
from penstock.errors import BadRequest, Conflict
from penstock.paths import SOCKET_PATH_MAX
from penstock.web.callers import AuthenticatedBy
from penstock.web.errors import TokenRequired, error_response

__all__ = ["BearerOnly", "listen_tcp", "make_socket", "read_token", "serve"]

_BACKLOG: Final = 256
_PROBE_S: Final = 2.0
_GRACE_S: Final = 1  # how long responses may take to end when the server stops
_TOKEN_BYTES: Final = 32


def make_socket(path: Path) -> socket.socket:
    """A listening socket of mode 0600. Replaces a stale socket; raises if a server listens on the path."""
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise BadRequest(
            "the path is too long for a socket", where=str(path), expected=f"at most {SOCKET_PATH_MAX} bytes"
        )
    _remove_stale_socket(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    umask = os.umask(0o077)
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(f"another instance is listening on {path}") from None
        raise Conflict(f"cannot create a socket at {path}: {error.strerror}") from error
    finally:
        os.umask(umask)
    os.chmod(path, 0o600)
    listening.listen(_BACKLOG)
    listening.setblocking(False)
    return listening


def _remove_stale_socket(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise Conflict(f"{path} exists and is not a socket; remove it or name another state directory")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # A server listens, even if its backlog is full and the connection times out.
    raise Conflict(f"another instance is listening on {path}")


def listen_tcp(address: str) -> socket.socket:
    """A listening socket for `127.0.0.1:PORT` or `[::1]:PORT`; port 0 chooses a free one."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    expected = "127.0.0.1:PORT or [::1]:PORT; remote clients need a TLS proxy"
    try:
        parsed = ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        raise BadRequest(
            "invalid address", where="--listen", found=repr(address), expected=expected
        ) from None
    if not parsed.is_loopback or not 0 <= number <= 65535:
        raise BadRequest(
            "not a loopback address and port", where="--listen", found=repr(address), expected=expected
        )
    listening = socket.socket(socket.AF_INET6 if parsed.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, number))
    except OSError as error:
        listening.close()
        raise Conflict(f"cannot listen on {address}: {error.strerror}") from error
    listening.listen(_BACKLOG)
    listening.setblocking(False)
    return listening


def read_token(path: Path) -> str:
    """The bearer token in a file; creates the file with mode 0600 and a random token if it is missing."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        token = path.read_text().strip()
        if not token:
            raise Conflict(f"{path} is empty; remove it, and the next start creates a token") from None
        return token
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with os.fdopen(handle, "w") as stream:
        stream.write(token + "\n")
    return token


class BearerOnly:
    """Admits a request only if it carries the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        if not token:
            raise BadRequest("a TCP socket needs a token", where="token", found="an empty one")
        self._app = AuthenticatedBy(app, AuthenticationMethod.BEARER_TOKEN)
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                given = value
        scheme, _, token = given.partition(b" ")
        if scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token):
            await self._app(scope, receive, send)
            return
        error = TokenRequired(
            "a bearer token is required",
            where="header authorization",
            found="another token" if given else "no token",
            expected="Bearer TOKEN, with the token of the file in the state directory",
        )
        await error_response(error)(scope, receive, send)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the instance."""
        yield


async def serve(app: ASGIApp, sockets: Sequence[socket.socket], token: str = "") -> None:
    """Serves on all sockets until cancelled, then closes them and removes the files of Unix sockets."""
    servers: list[tuple[_Server, socket.socket]] = []
    for listening in sockets:
        servers.append((_Server(_config(_authenticated(app, listening, token))), listening))
    files = [(Path(each.getsockname()), _inode(each)) for each in sockets if each.family == socket.AF_UNIX]
    running = [asyncio.create_task(server.serve([listening])) for server, listening in servers]
    try:
        await asyncio.shield(asyncio.gather(*running))
    finally:
        for path, inode in files:
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:  # Another server may have replaced the file.
                    path.unlink()
        for server, _ in servers:
            server.should_exit = True
        await asyncio.wait(running)
        # uvicorn has cancelled requests that outlasted the grace period; their cleanup still has to run.
        cancelled = [task for server, _ in servers for task in server.server_state.tasks]
        if cancelled:
            await asyncio.wait(cancelled, timeout=_GRACE_S)
        for listening in sockets:
            listening.close()


def _authenticated(app: ASGIApp, listening: socket.socket, token: str) -> ASGIApp:
    if listening.family == socket.AF_UNIX:
        return AuthenticatedBy(app, AuthenticationMethod.UNIX_SOCKET)
    return BearerOnly(app, token)


def _inode(listening: socket.socket) -> int:
    try:
        return os.lstat(listening.getsockname()).st_ino
    except OSError:
        return 0


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
        http="h11",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=_BACKLOG,
    )
