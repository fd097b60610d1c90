"""An HTTP server with control over the connection: it can reset, stall, or send half a line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from penstock.kube.access import Access
from penstock.kube.client import KubeClient
from penstock.kube.transport import RetryPolicy

QUICK = RetryPolicy(attempts=4, backoff_s_min=0.001, backoff_s_max=0.01, total_s=5.0)


@dataclass
class Request:
    verb: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, object]:
        body = json.loads(self.body)
        assert isinstance(body, dict)
        return body


class ResponseWriter:
    """Writes the response of one request. A handler that writes nothing closes the connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        self.keep_alive = False  # The connection accepts another request.

    def send(self, status: int, body: object = None, headers: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + data)
        self.keep_alive = True

    def begin(self) -> None:
        self.writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")

    def chunk(self, data: bytes) -> None:
        self.writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def event(self, event_type: str, body: object) -> None:
        self.chunk(json.dumps({"type": event_type, "object": body}, separators=(",", ":")).encode() + b"\n")

    def end(self) -> None:
        self.writer.write(b"0\r\n\r\n")
        self.keep_alive = True

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Closes the connection with a TCP RST, as a rebooted host does."""
        sock: socket.socket | None = self.writer.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def hang(self) -> None:
        await asyncio.Event().wait()


Handler = Callable[[Request, ResponseWriter], Awaitable[None]]


@dataclass
class RawServer:
    handler: Handler
    url: str = ""
    port: int = 0
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    peers: list[object] = field(default_factory=list)  # Client certificates, as `getpeercert` returns them.

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.peers.append(writer.get_extra_info("peercert"))
        try:
            while (request := await _read_request(reader)) is not None:
                self.requests.append(request)
                response = ResponseWriter(writer)
                await self.handler(request, response)
                if not response.keep_alive:
                    break
                await writer.drain()
        except (ConnectionError, ssl.SSLError):
            pass
        finally:
            with contextlib.suppress(Exception):
                writer.close()


async def _read_request(reader: asyncio.StreamReader) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    first, *rest = head.decode().split("\r\n")
    verb, target, _ = first.split(" ")
    headers = {}
    for line in rest:
        name, _, value = line.partition(": ")
        if name:
            headers[name.lower()] = f"{headers[name.lower()]},{value}" if name.lower() in headers else value
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return Request(verb, parts.path, query, headers, body)


@asynccontextmanager
async def raw_server(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[RawServer]:
    running = RawServer(handler)
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(running.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    running.port = server.sockets[0].getsockname()[1]
    running.url = f"{'https' if context else 'http'}://127.0.0.1:{running.port}"
    try:
        yield running
    finally:
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def quick_client(url: str, **settings: object) -> KubeClient:
    return KubeClient(Access(url), **{"retries": QUICK, "timeout_s": 5.0, **settings})  # type: ignore[arg-type]


async def eventually(condition: Callable[[], bool], message: str = "", limit_s: float = 10.0) -> None:
    """Waits until the condition holds."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.002)
    assert condition(), message


@asynccontextmanager
async def running(awaitable: Awaitable[object]) -> AsyncIterator[asyncio.Future[object]]:
    """Runs a task beside the block and cancels it at the end; if the task failed, the test fails."""
    task = asyncio.ensure_future(awaitable)
    try:
        yield task
        if task.done():
            task.result()
    finally:
        task.cancel()
        with contextlib.suppress(BaseException):
            await task
