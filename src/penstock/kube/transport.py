"""The road that all requests take: bounded in number, time and size, and honest about what became of them.

Reads are tried again, with growing pauses, on anything that may pass. Writes are tried again only if the
server cannot have done them: it was never reached, or said that it has too much to do. Whatever else happens
to a write is `OutcomeUnknown`, and whoever wrote has to look.

Whoever may lose the right to write says so by `may_write`, which is asked when the body of a request is about
to be written to its connection, and not earlier: a write that had to wait, for a place, for a credential, for
a connection or for its next try, is `WriteFenced` if that took too long.

The number of requests in flight is bounded; the wait for a place is not timed, so that a burst of thousands
of writes is a queue and no fault. What keeps an office (leases) is `urgent` and does not stand in that queue,
and streams do not count.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import aiohttp
import msgspec

from penstock.errors import BadRequest
from penstock.kube.access import Access
from penstock.kube.credentials import ClientIdentity
from penstock.kube.errors import (
    BadResponse,
    OutcomeUnknown,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    WriteFenced,
    answer_error,
)
from penstock.kube.tls import TlsContexts

__all__ = ["READS", "RetryPolicy", "Transport"]

_LOG: Final = logging.getLogger(__name__)
_KEEP_S: Final = 30.0  # below the 90 s after which an API server closes an idle connection
_CONNECT_S: Final = 5.0
_ERROR_BODY_MAX_BYTES: Final = 1 << 20
READS: Final = frozenset({"GET"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """At most `tries`; pauses double from `first_s` to `pause_s_max`, and none ends after `total_s`.

    Who looks again before every write, and tries again by itself, has them sent once: `write_attempts`.
    """

    tries: int = 5
    write_attempts: int | None = None  # None: as reads
    first_s: float = 0.1
    pause_s_max: float = 5.0
    total_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Request:
    verb: str
    path: str
    query: Mapping[str, str]
    data: bytes | None = None
    content_type: str = ""

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class _Lost(Exception):
    """The connection broke after the request may have been sent.

    Being no error of aiohttp's, it is not tried again by that library, which does so for PUT and DELETE on
    connections that it kept.
    """


class _LastLook(aiohttp.BytesPayload):
    """The body of a write, and with it the headers: nothing leaves before, nothing is awaited in between."""

    def __init__(self, data: bytes, may_write: Callable[[], bool]) -> None:
        super().__init__(data)
        self.is_withheld = False
        self._may_write = may_write

    async def write_with_length(
        self, writer: aiohttp.abc.AbstractStreamWriter, content_length: int | None
    ) -> None:
        if not self._may_write():
            self.is_withheld = True
            raise RuntimeError("we may not write any more")  # Ends the connection.
        await super().write_with_length(writer, content_length)


async def _no_second_try(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    try:
        return await handler(request)
    except (
        aiohttp.ClientConnectorError,
        aiohttp.ClientConnectorCertificateError,
        aiohttp.ConnectionTimeoutError,
    ):
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Lost(str(error) or type(error).__name__) from error


def _make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """Probed by the kernel when idle, so that it notices a peer that vanished."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # Linux has them all
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


class Transport:
    """Connections to one server, and the requests on them."""

    def __init__(
        self,
        access: Access,
        *,
        in_flight_max: int,
        timeout_s: float,
        user_agent: str,
        body_max_bytes: int,
        retries: RetryPolicy,
        may_write: Callable[[], bool],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.access = access
        self.timeout_s = timeout_s
        self._body_max_bytes = body_max_bytes
        self._retries = retries
        self._may_write = may_write
        self._jitter = jitter
        self._places = asyncio.Semaphore(in_flight_max)
        self._tls = TlsContexts(access.tls)
        self._is_tls = access.server.startswith("https:")
        self._session: aiohttp.ClientSession | None = None
        # Most servers are near: what compression saves on the wire, both sides pay for in time.
        self._headers = (
            *access.headers,
            ("User-Agent", user_agent),
            ("Accept", "application/json"),
            ("Accept-Encoding", "identity"),
        )

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    @asynccontextmanager
    async def stream(
        self, path: str, query: Mapping[str, str], *, open_s: float
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """An answer without an end; whoever reads it minds the silence. Tried once."""
        request = _Request("GET", path, query)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(_CONNECT_S, open_s))
        try:
            async with asyncio.timeout(open_s):
                response = await self._open(request, timeout)
        except TimeoutError as error:
            raise Unreachable(f"{request}: no answer within {open_s:g} s") from error
        except (_Lost, aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{request}: {str(error) or type(error).__name__}") from error
        try:
            yield response.content
        finally:
            response.close()  # the connection too: there may be more to come on it

    async def ask(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        urgent: bool = False,
        timeout_s: float | None = None,
    ) -> bytes:
        data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        request = _Request(verb, path, query or {}, data, content_type)
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        pause_s = self._retries.first_s
        retries = self._retries
        tries = retries.tries if verb in READS or retries.write_attempts is None else retries.write_attempts
        for left in range(tries - 1, -1, -1):
            try:
                if urgent:
                    return await self._try(request, timeout_s)
                async with self._places:
                    return await self._try(request, timeout_s)
            except (Unreachable, TooManyRequests, ServerError) as error:
                wait_s = self._wait_s(error, pause_s)
                if wait_s is None or not left or time.monotonic() + wait_s > started + self._retries.total_s:
                    raise
                _LOG.debug("tried again in %.1f s: %s", wait_s, error)
            await asyncio.sleep(wait_s)
            pause_s = min(2 * pause_s, self._retries.pause_s_max)
        raise AssertionError("unreachable: the last try returns or raises")

    def _wait_s(self, error: Unreachable | TooManyRequests | ServerError, pause_s: float) -> float | None:
        """How long until the next try; None: there is none. Writes come here with no `ServerError`."""
        pause_s *= 0.5 + 0.5 * self._jitter()
        if isinstance(error, Unreachable):
            return pause_s
        if isinstance(error, TooManyRequests) and error.is_budget:
            return None
        return max(pause_s, error.retry_after_s or 0.0)

    async def _try(self, request: _Request, timeout_s: float) -> bytes:
        """One request and its whole answer; faults as this package has them."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(_CONNECT_S, timeout_s))
        try:
            response = await self._open(request, timeout)
            async with response:
                body = await _read_bounded(response.content, self._body_max_bytes)
        except ServerError as error:
            if request.verb in READS:
                raise
            raise OutcomeUnknown(
                f"outcome unknown: {error}", status=error.status, reason=error.reason, message=error.message
            ) from error
        except (TimeoutError, _Lost, aiohttp.ClientError, OSError) as error:
            what = f"no answer within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            text = f"{request}: {what or type(error).__name__}"
            if request.verb in READS:
                raise Unreachable(text) from error  # for a read it makes no difference
            raise OutcomeUnknown(f"outcome unknown: {text}") from error
        if body is None:
            text = f"the answer is longer than {self._body_max_bytes} bytes"
            if request.verb in READS:
                raise BadResponse(response.status, "TooLarge", text, asked=str(request))
            raise OutcomeUnknown(f"outcome unknown: {request}: {text}", status=response.status)
        return body

    async def _open(self, request: _Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """An answer that is not a refusal, its body unread. A 401 is met with another credential, once."""
        identity = await self.access.credential.identity()
        try:
            return await self._send(request, timeout, identity)
        except Unauthorized:
            if not self.access.credential.refused(identity):
                raise
        identity = await self.access.credential.identity()
        return await self._send(request, timeout, identity)

    async def _send(
        self, request: _Request, timeout: aiohttp.ClientTimeout, identity: ClientIdentity
    ) -> aiohttp.ClientResponse:
        headers = list(self._headers)
        if identity.token:
            headers.append(("Authorization", f"Bearer {identity.token}"))
        if request.data is not None:
            headers.append(("Content-Type", request.content_type))
        params = {name: value for name, value in request.query.items() if value}
        url = self.access.server + request.path + (f"?{urlencode(params)}" if params else "")
        sent = None if request.data is None else _LastLook(request.data, self._may_write)
        try:
            context: ssl.SSLContext | bool = self._tls.context(identity) if self._is_tls else True
            response = await self._live_session().request(
                request.verb,
                url,
                data=sent,
                headers=headers,
                timeout=timeout,
                ssl=context,
                server_hostname=self.access.tls.server_name or None if self._is_tls else None,
                proxy=self.access.proxy or None,
                allow_redirects=False,
            )
        except (
            aiohttp.ClientConnectorError,
            aiohttp.ClientConnectorCertificateError,
            aiohttp.ConnectionTimeoutError,
            aiohttp.ClientHttpProxyError,
            aiohttp.InvalidURL,
        ) as error:
            raise Unreachable(f"{request}: {_said(error)}") from error
        except BadRequest as error:  # TLS material
            raise Unreachable(f"{request}: {error}") from error
        except aiohttp.ClientConnectionError as error:
            if sent is None or not sent.is_withheld:
                raise
            raise WriteFenced(f"{request}: not sent, as we may not write any more") from error
        if 200 <= response.status < 300:
            return response
        async with response:
            body = await _read_bounded(response.content, _ERROR_BODY_MAX_BYTES) or b""
        retry_after = response.headers.get("Retry-After", "")
        raise answer_error(response.status, body, retry_after=retry_after, asked=str(request))

    def _live_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_S, socket_factory=_make_socket)
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_no_second_try,),
                auto_decompress=True,
                read_bufsize=1 << 18,
            )
        return self._session


async def _read_bounded(content: aiohttp.StreamReader, bytes_max: int) -> bytes | None:
    """None if there is more than that."""
    first = await content.readany()
    if content.at_eof():
        return first if len(first) <= bytes_max else None
    parts, size = [first], len(first)
    while chunk := await content.readany():
        size += len(chunk)
        if size > bytes_max:
            return None
        parts.append(chunk)
    return b"".join(parts)


def _said(error: Exception) -> str:
    """What a person can use of it: the text of a failed connection names an object of the TLS library."""
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        cause = os.strerror(error.errno) if error.errno else str(error.os_error)
        return f"cannot connect to {error.host}:{error.port}: {cause}"
    return str(error) or type(error).__name__
