"""The address of an instance on TCP: `--server URL` or PENSTOCK_SERVER, with a token from the environment.

The token is not an option, because other users can read the command line of a process. It is sent over TLS,
or to the machine itself; any other address is refused.
"""

from __future__ import annotations

import http.client
import ipaddress
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from penstock.errors import BadRequest

__all__ = ["SERVER_VARIABLE", "TOKEN_FILE_VARIABLE", "TOKEN_VARIABLE", "ServerAddress", "find_server"]

SERVER_VARIABLE: Final = "PENSTOCK_SERVER"
TOKEN_VARIABLE: Final = "PENSTOCK_TOKEN"
TOKEN_FILE_VARIABLE: Final = "PENSTOCK_TOKEN_FILE"

_TOKEN_MAX: Final = 4096
_EXPECTED: Final = "https://HOST:PORT, or http://127.0.0.1:PORT"


@dataclass(frozen=True, slots=True)
class ServerAddress:
    url: str
    host: str
    port: int
    is_tls: bool
    token: str

    def connection(self, timeout_s: float) -> http.client.HTTPConnection:
        """A connection that is not open yet. The certificate is verified by the system's trust store."""
        if self.is_tls:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(self.host, self.port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout_s)


def find_server(option: str | None, environ: Mapping[str, str]) -> ServerAddress | None:
    """The instance that `--server` or PENSTOCK_SERVER names; None if neither is set."""
    url = option or environ.get(SERVER_VARIABLE, "")
    if not url:
        return None
    where = "--server" if option else SERVER_VARIABLE
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except (ValueError, KeyError):
        raise BadRequest("not the URL of an instance", where=where, found=url, expected=_EXPECTED) from None
    host = parts.hostname or ""
    if not host or parts.path not in ("", "/") or parts.query or parts.fragment or parts.username:
        raise BadRequest("not the URL of an instance", where=where, expected=_EXPECTED)
    if parts.scheme == "http" and not _is_loopback(host):
        raise BadRequest(
            "the token would be readable on the network", where=where, found=url, expected=_EXPECTED
        )
    return ServerAddress(url.rstrip("/"), host, port, parts.scheme == "https", _token(environ))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _token(environ: Mapping[str, str]) -> str:
    token = environ.get(TOKEN_VARIABLE, "")
    file = environ.get(TOKEN_FILE_VARIABLE, "")
    if not token and file:
        try:
            with open(Path(file).expanduser(), encoding="ascii") as stream:
                token = stream.read(_TOKEN_MAX)
        except (OSError, ValueError) as error:
            cause = error.strerror if isinstance(error, OSError) else "it is not a token"
            raise BadRequest(f"cannot read {file}: {cause}", where=TOKEN_FILE_VARIABLE) from None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise BadRequest(
            "an instance on TCP needs its token",
            where=TOKEN_VARIABLE,
            found="no token" if not token else "a text that is not a token",
            expected=f"the content of the file `token` in its state directory, or its path in"
            f" {TOKEN_FILE_VARIABLE}",
        )
    return token
