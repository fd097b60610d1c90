"""Listening: a Unix socket for the owner, and maybe a TCP port of this machine for who has the token.

The Unix socket is made under umask 077, so there is no moment at which others could connect; that is why
it is handed to uvicorn ready made, which would otherwise open it to everybody. Whoever can connect to it
is the owner, so nothing else is asked. TCP is open to all users of the machine, so every request there
needs the bearer token; each kind of socket has its own server, and no header can tell one for the other.

`serve` runs until it is cancelled. Signals stay with the caller.
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

from penstock.errors import BadRequest, Conflict
from penstock.paths import SOCKET_PATH_MAX
from penstock.web.errors import TokenRequired, error_response

__all__ = ["BearerOnly", "listen_tcp", "make_socket", "read_token", "serve"]

_BACKLOG: Final = 256
_PROBE_S: Final = 2.0
_GRACE_S: Final = 1  # how long answers may take to end when we stop
_TOKEN_BYTES: Final = 32


def make_socket(path: Path) -> socket.socket:
    """A listening socket of mode 0600. A dead one is replaced, a living one is left alone."""
    if len(os.fsencode(path)) > SOCKET_PATH_MAX:
        raise BadRequest(
            "the path is too long for a socket", where=str(path), expected=f"at most {SOCKET_PATH_MAX} bytes"
        )
    _clear_the_way(path)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    before = os.umask(0o077)
    try:
        made.bind(str(path))
    except OSError as error:
        made.close()
        if error.errno == errno.EADDRINUSE:
            raise Conflict(f"another instance is listening on {path}") from None
        raise Conflict(f"no socket can be made at {path}: {error.strerror}") from error
    finally:
        os.umask(before)
    os.chmod(path, 0o600)
    made.listen(_BACKLOG)
    made.setblocking(False)
    return made


def _clear_the_way(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise Conflict(f"{path} is not a socket; it is not ours to remove")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(_PROBE_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            path.unlink(missing_ok=True)
            return
        except OSError:
            pass  # Somebody is there, if slow: a full queue of connections is a sign of life.
    raise Conflict(f"another instance is listening on {path}")


def listen_tcp(address: str) -> socket.socket:
    """A listening socket for `127.0.0.1:PORT` or `[::1]:PORT`; port 0 takes a free one."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    expected = "127.0.0.1:PORT or [::1]:PORT; for other machines put a proxy with TLS before it"
    try:
        parsed = ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        raise BadRequest("not an address to listen on", found=repr(address), expected=expected) from None
    if not parsed.is_loopback or not 0 <= number <= 65535:
        raise BadRequest("only this machine may be served", found=repr(address), expected=expected)
    made = socket.socket(socket.AF_INET6 if parsed.version == 6 else socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, number))
    except OSError as error:
        made.close()
        raise Conflict(f"cannot listen on {address}: {error.strerror}") from error
    made.listen(_BACKLOG)
    made.setblocking(False)
    return made


def read_token(path: Path) -> str:
    """The token for TCP; made with mode 0600 if there is none yet."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        token = path.read_text().strip()
        if not token:
            raise Conflict(f"{path} holds no token; remove it, and one is made") from None
        return token
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    with os.fdopen(handle, "w") as stream:
        stream.write(token + "\n")
    return token


class BearerOnly:
    """Lets a request through only if it carries the token."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        if not token:
            raise BadRequest("a TCP socket needs a token", where="token", found="an empty one")
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                given = value
        kind, _, token = given.partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token):
            await self._app(scope, receive, send)
            return
        error = TokenRequired(
            "a token is needed",
            where="header authorization",
            found="another token" if given else "no token",
            expected="Bearer TOKEN, with the token of the file in the state directory",
        )
        await error_response(error)(scope, receive, send)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the instance's business."""
        yield


async def serve(app: ASGIApp, sockets: Sequence[socket.socket], token: str = "") -> None:
    """Answers on all sockets until cancelled, then closes them and removes the files of Unix sockets."""
    servers: list[tuple[_Server, socket.socket]] = []
    for each in sockets:
        guarded = app if each.family == socket.AF_UNIX else BearerOnly(app, token)
        servers.append((_Server(_config(guarded)), each))
    files = [(Path(each.getsockname()), _inode(each)) for each in sockets if each.family == socket.AF_UNIX]
    running = [asyncio.create_task(server.serve([each])) for server, each in servers]
    try:
        await asyncio.shield(asyncio.gather(*running))
    finally:
        for path, inode in files:
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:  # Not if somebody else has put theirs there.
                    path.unlink()
        for server, _ in servers:
            server.should_exit = True
        await asyncio.wait(running)
        # What has not ended within the grace was cancelled; its ends are still to be tied up.
        late = [task for server, _ in servers for task in server.server_state.tasks]
        if late:
            await asyncio.wait(late, timeout=_GRACE_S)
        for each in sockets:
            each.close()


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
