"""Server-sent events: an iterator of the service on one side, a reader that may leave on the other.

A comment line goes out every 15 seconds if there is nothing to say, so that both ends notice a dead
connection. The reader's leaving is watched for all the time, because a stream that waits for the next
event would otherwise never learn of it; the iterator is closed then. An error after the first byte cannot
be a status any more and is sent as an event `error`, after which the stream ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Final, TypeAlias

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.web.errors import error_document

__all__ = ["KEEP_ALIVE_S", "EventStream", "Frame", "encode_frame"]

KEEP_ALIVE_S: Final = 15.0

Frame: TypeAlias = tuple[str, str, object]  # event name or "", id or "", document

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class EventStream:
    """An ASGI answer that lasts as long as the iterator and the reader do."""

    def __init__(self, frames: AsyncGenerator[Frame, None], keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._frames = frames
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope  # The answer is the same for every request.
        gone = asyncio.create_task(_gone(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await _write(send, b": penstock\n\n")  # The reader sees at once that it is connected.
            await self._pump(send, gone)
            if not gone.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # The reader left while we wrote.
        finally:
            gone.cancel()
            await self._frames.aclose()

    async def _pump(self, send: Send, gone: asyncio.Task[None]) -> None:
        upcoming: asyncio.Task[Frame | None] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.create_task(_next(self._frames))
                done, _ = await asyncio.wait(
                    {upcoming, gone}, timeout=self._keep_alive_s, return_when=asyncio.FIRST_COMPLETED
                )
                if gone in done:
                    return
                if not done:
                    await _write(send, b": still here\n\n")
                    continue
                try:
                    frame = upcoming.result()
                except Exception as error:
                    frame, upcoming = ("error", "", error_document(error)), None
                    await _write(send, encode_frame(frame))
                    return
                if frame is None:
                    return
                upcoming = None
                await _write(send, encode_frame(frame))
        finally:
            if upcoming is not None and not upcoming.done():
                upcoming.cancel()
                await asyncio.wait({upcoming})


def encode_frame(frame: Frame) -> bytes:
    name, number, document = frame
    head = (f"event: {name}\n" if name else "") + (f"id: {number}\n" if number else "")
    return head.encode() + b"data: " + msgspec.json.encode(document) + b"\n\n"


async def _next(frames: AsyncGenerator[Frame, None]) -> Frame | None:
    """None at the end."""
    return await anext(frames, None)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
