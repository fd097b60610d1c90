"""Servers: a Unix socket for the user who runs the instance, and optionally a TCP port.

The Unix socket is created under umask 077, so that other users cannot connect at any moment; uvicorn would
create it with mode 0666, so it gets the socket ready made. The file mode authenticates a
client of the Unix socket. TCP is open to all users of the machine, so every request there needs the bearer
token. On any other address than loopback the token would be readable on the network, so TLS is required.
Each socket has its own server and its own wrapper around the application, so that no header can make a
request on one socket look like a request on the other.

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
from penstock.web.tls import TlsFiles

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


def listen_tcp(address: str, *, has_tls: bool = False) -> socket.socket:
    """A listening socket for `ADDRESS:PORT` or `[ADDRESS]:PORT`; port 0 chooses a free one."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    expected = "127.0.0.1:PORT or [::1]:PORT, or an address of the machine with --tls-cert and --tls-key"
    try:
        parsed = ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        raise BadRequest(
            "invalid address", where="--listen", found=repr(address), expected=expected
        ) from None
    if not (parsed.is_loopback or has_tls):
        raise BadRequest(
            "the token would be readable on the network",
            where="--listen",
            found=repr(address),
            expected=expected,
        )
    if not 0 <= number <= 65535:
        raise BadRequest("invalid port", where="--listen", found=repr(address), expected="0 to 65535")
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
    """The bearer token in a file. If there is none, a random one is written, with mode 0600."""
    try:
        with open(path, encoding="utf-8", opener=_open_no_link) as stream:
            if stat.S_IMODE(os.fstat(stream.fileno()).st_mode) & 0o077:
                raise Conflict(f"other users may access {path}: run `chmod 600 {path}`")
            token = stream.read().strip()
    except FileNotFoundError:
        token = ""
    except ValueError:
        raise Conflict(f"{path} is not a token; remove it, and the next start creates one") from None
    except OSError as error:
        raise Conflict(f"cannot read {path}: {error.strerror}") from error
    return token or _write_token(path)


def _write_token(path: Path) -> str:
    """Replaces the file, so that a crash leaves a complete token or none."""
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    handle = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as stream:
        stream.write(token + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    fresh.rename(path)
    return token


def _open_no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


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


async def serve(
    app: ASGIApp, sockets: Sequence[socket.socket], token: str = "", tls: TlsFiles | None = None
) -> None:
    """Serves on all sockets until cancelled, then closes them and removes the files of Unix sockets.

    `tls` applies to TCP sockets.
    """
    servers: list[tuple[_Server, socket.socket]] = []
    for listening in sockets:
        config = _config(
            _authenticated(app, listening, token), None if listening.family == socket.AF_UNIX else tls
        )
        servers.append((_Server(config), listening))
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


def _config(app: ASGIApp, tls: TlsFiles | None) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        ssl_certfile=None if tls is None else tls.certificate,
        ssl_keyfile=None if tls is None else tls.key,
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
        http="h11",
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
        backlog=_BACKLOG,
    )
