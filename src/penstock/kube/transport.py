"""HTTP requests to the API server, bounded in number, time and size, with retries.

Reads are retried with exponential backoff on every error that may be transient. Writes are retried only if
the server cannot have applied them: it was not reached, or it responded with 429. Any other failure of a
write is `OutcomeUnknown`: the caller has to read the object.

`may_write` fences the writes of an instance that may lose leadership. It is called when the body of the
request is about to be written to the connection, not earlier: a write can wait for the in-flight limit, for
a credential, for a connection or for a retry, and fails with `WriteFenced` if leadership ended meanwhile. A
caller can add a check of its own for one request (`may_send`), at the same moment.

The number of requests in flight is limited. Waiting for that limit has no timeout, so a burst of thousands
of writes queues up and does not fail. Watches and `urgent` requests (for leases) are exempt.
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
    error_from_response,
)
from penstock.kube.tls import TlsContexts

__all__ = ["READS", "RetryPolicy", "Transport"]

_LOG: Final = logging.getLogger(__name__)
_KEEPALIVE_S: Final = 30.0  # API servers close idle connections after 90 s.
_CONNECT_S: Final = 5.0
_ERROR_BODY_MAX_BYTES: Final = 1 << 20
READS: Final = frozenset({"GET"})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff from `backoff_s_min` to `backoff_s_max`; no retry starts after `total_s`.

    A caller that retries by itself, after reading the object again, sets `write_attempts` to 1.
    """

    attempts: int = 5
    write_attempts: int | None = None  # None: as for reads.
    backoff_s_min: float = 0.1
    backoff_s_max: float = 5.0
    total_s: float = 30.0


@dataclass(frozen=True, slots=True)
class _Request:
    verb: str
    path: str
    query: Mapping[str, str]
    data: bytes | None = None
    content_type: str = ""
    may_send: Callable[[], bool] | None = None  # for a write

    def __str__(self) -> str:
        return f"{self.verb} {self.path}"


class _ConnectionLost(Exception):
    """The connection failed after the request may have been sent.

    It is not an aiohttp error on purpose: aiohttp retries PUT and DELETE after its own errors on reused
    connections.
    """


class _FencedPayload(aiohttp.BytesPayload):
    """The body of a write, which calls `may_write` and `may_send` immediately before it is sent.

    aiohttp sends the headers together with the body: nothing leaves before this check, and nothing is awaited
    between the check and the write to the connection.
    """

    def __init__(
        self, data: bytes, may_write: Callable[[], bool], may_send: Callable[[], bool] | None
    ) -> None:
        super().__init__(data)
        self.fenced_by = ""  # why it was not sent
        self._may_write = may_write
        self._may_send = may_send

    async def write_with_length(
        self, writer: aiohttp.abc.AbstractStreamWriter, content_length: int | None
    ) -> None:
        if not self._may_write():
            self.fenced_by = "this process is no longer the leader"
        elif self._may_send is not None and not self._may_send():
            self.fenced_by = "the caller has withdrawn it"
        if self.fenced_by:
            raise RuntimeError(self.fenced_by)  # aiohttp closes the connection.
        await super().write_with_length(writer, content_length)


async def _prevent_aiohttp_retry(
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
        raise _ConnectionLost(str(error) or type(error).__name__) from error


def _make_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    """A socket with TCP keepalive, so that an idle connection to a dead peer is detected."""
    family, kind, protocol, _, _ = address
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):  # Linux has all three.
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return sock


class Transport:
    """The connections to one server and the requests on them."""

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
        self._in_flight = asyncio.Semaphore(in_flight_max)
        self._tls = TlsContexts(access.tls)
        self._is_tls = access.server.startswith("https:")
        self._session: aiohttp.ClientSession | None = None
        # Most API servers are near: compression costs more CPU time than it saves in transfer.
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
        """The body of a watch. Not retried; the reader has to detect a silent connection."""
        request = _Request("GET", path, query)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=min(_CONNECT_S, open_s))
        try:
            async with asyncio.timeout(open_s):
                response = await self._open(request, timeout)
        except TimeoutError as error:
            raise Unreachable(f"{request}: no response within {open_s:g} s") from error
        except (_ConnectionLost, aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{request}: {str(error) or type(error).__name__}") from error
        try:
            yield response.content
        finally:
            response.close()  # Closes the connection: the server may still be sending.

    async def request(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        urgent: bool = False,
        timeout_s: float | None = None,
        may_send: Callable[[], bool] | None = None,
    ) -> bytes:
        data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        request = _Request(verb, path, query or {}, data, content_type, may_send)
        timeout_s = self.timeout_s if timeout_s is None else timeout_s
        started = time.monotonic()
        retries = self._retries
        backoff_s = retries.backoff_s_min
        is_read = verb in READS
        attempts = retries.attempts if is_read or retries.write_attempts is None else retries.write_attempts
        for attempts_left in range(attempts - 1, -1, -1):
            try:
                if urgent:
                    return await self._attempt(request, timeout_s)
                async with self._in_flight:
                    return await self._attempt(request, timeout_s)
            except (Unreachable, TooManyRequests, ServerError) as error:
                wait_s = self._retry_delay_s(error, backoff_s)
                if (
                    wait_s is None
                    or not attempts_left
                    or time.monotonic() + wait_s > started + retries.total_s
                ):
                    raise
                _LOG.debug("retrying in %.1f s: %s", wait_s, error)
            await asyncio.sleep(wait_s)
            backoff_s = min(2 * backoff_s, retries.backoff_s_max)
        raise AssertionError("the last attempt returns or raises")

    def _retry_delay_s(
        self, error: Unreachable | TooManyRequests | ServerError, backoff_s: float
    ) -> float | None:
        """Delay before the next attempt; None: no retry. A write never fails with `ServerError` here."""
        backoff_s *= 0.5 + 0.5 * self._jitter()
        if isinstance(error, Unreachable):
            return backoff_s
        if isinstance(error, TooManyRequests) and error.is_disruption_budget:
            return None
        return max(backoff_s, error.retry_after_s or 0.0)

    async def _attempt(self, request: _Request, timeout_s: float) -> bytes:
        """Sends one request and reads the response; raises the errors of `penstock.kube.errors`."""
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
        except (TimeoutError, _ConnectionLost, aiohttp.ClientError, OSError) as error:
            what = f"no response within {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
            text = f"{request}: {what or type(error).__name__}"
            if request.verb in READS:
                raise Unreachable(text) from error  # A read has no outcome that could be unknown.
            raise OutcomeUnknown(f"outcome unknown: {text}") from error
        if body is None:
            text = f"the response is larger than {self._body_max_bytes} bytes"
            if request.verb in READS:
                raise BadResponse(response.status, "TooLarge", text, request=str(request))
            raise OutcomeUnknown(f"outcome unknown: {request}: {text}", status=response.status)
        return body

    async def _open(self, request: _Request, timeout: aiohttp.ClientTimeout) -> aiohttp.ClientResponse:
        """Returns a successful response, its body unread. After a 401, retries once with a new credential."""
        identity = await self.access.credential.identity()
        try:
            return await self._send(request, timeout, identity)
        except Unauthorized:
            if not self.access.credential.invalidate(identity):
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
        payload = None
        if request.data is not None:
            payload = _FencedPayload(request.data, self._may_write, request.may_send)
        try:
            context: ssl.SSLContext | bool = self._tls.context(identity) if self._is_tls else True
            response = await self._open_session().request(
                request.verb,
                url,
                data=payload,
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
            raise Unreachable(f"{request}: {_describe(error)}") from error
        except BadRequest as error:  # Unusable TLS files.
            raise Unreachable(f"{request}: {error}") from error
        except aiohttp.ClientConnectionError as error:
            if payload is None or not payload.fenced_by:
                raise
            raise WriteFenced(f"{request}: not sent: {payload.fenced_by}") from error
        if 200 <= response.status < 300:
            return response
        async with response:
            body = await _read_bounded(response.content, _ERROR_BODY_MAX_BYTES) or b""
        retry_after = response.headers.get("Retry-After", "")
        raise error_from_response(response.status, body, retry_after=retry_after, request=str(request))

    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(
                limit=0, keepalive_timeout=_KEEPALIVE_S, socket_factory=_make_socket
            )
            self._session = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                middlewares=(_prevent_aiohttp_retry,),
                auto_decompress=True,
                read_bufsize=1 << 18,
            )
        return self._session


async def _read_bounded(content: aiohttp.StreamReader, bytes_max: int) -> bytes | None:
    """Returns None if the body is larger than `bytes_max`."""
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


def _describe(error: Exception) -> str:
    """The text of aiohttp's connection errors has the repr of an SSLContext, or the password of a proxy."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        proxy = error.request_info.real_url
        return f"the proxy {proxy.host}:{proxy.port} refused it: {error.status} {error.message}"
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"cannot connect to the proxy {error.host}:{error.port}: {error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, aiohttp.ClientSSLError):
        cause = os.strerror(error.errno) if error.errno else str(error.os_error)
        return f"cannot connect to {error.host}:{error.port}: {cause}"
    return str(error) or type(error).__name__
