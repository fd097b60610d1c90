"""Server-sent events: the items of an async generator, sent to a client that may disconnect.

A comment line is sent after 15 seconds without an item, so that both ends notice a dead connection. The
disconnect of the client is watched for all the time, because a stream that waits for its next item would
otherwise never notice it; the generator is closed then. An error after the response has started cannot
be a status any more: it is sent as an event `error`, and the stream ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Final, TypeAlias

import msgspec
from starlette.types import Receive, Scope, Send

from penstock.api.responses import InstanceEvent, ResponseBody
from penstock.web.errors import error_document

__all__ = ["KEEP_ALIVE_S", "EventStream", "Frame", "encode_frame", "frames"]

KEEP_ALIVE_S: Final = 15.0

Frame: TypeAlias = tuple[str, str, object]  # event name or "", id or "", data

_HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


async def frames(
    items: AsyncGenerator[ResponseBody, None], names: Mapping[type[ResponseBody], str]
) -> AsyncGenerator[Frame, None]:
    """Each item with the event name of its type. The id of an instance event is its sequence number."""
    try:
        async for item in items:
            number = str(item.seq) if isinstance(item, InstanceEvent) else ""
            yield names[type(item)], number, item
    finally:
        await items.aclose()


class EventStream:
    """An ASGI response that lasts until the generator ends or the client disconnects."""

    def __init__(self, frames: AsyncGenerator[Frame, None], keep_alive_s: float = KEEP_ALIVE_S) -> None:
        self._frames = frames
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope  # The response does not depend on the request.
        disconnected = asyncio.create_task(_disconnected(receive))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
            await _write(send, b": penstock\n\n")  # The client sees at once that it is connected.
            await self._send_frames(send, disconnected)
            if not disconnected.done():
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except OSError:
            pass  # The client disconnected during a write.
        finally:
            disconnected.cancel()
            await self._frames.aclose()

    async def _send_frames(self, send: Send, disconnected: asyncio.Task[None]) -> None:
        upcoming: asyncio.Task[Frame | None] | None = None
        try:
            while True:
                upcoming = upcoming or asyncio.create_task(_next(self._frames))
                done, _ = await asyncio.wait(
                    {upcoming, disconnected}, timeout=self._keep_alive_s, return_when=asyncio.FIRST_COMPLETED
                )
                if disconnected in done:
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
    name, number, data = frame
    head = (f"event: {name}\n" if name else "") + (f"id: {number}\n" if number else "")
    return head.encode() + b"data: " + msgspec.json.encode(data) + b"\n\n"


async def _next(frames: AsyncGenerator[Frame, None]) -> Frame | None:
    """None at the end."""
    return await anext(frames, None)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _write(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})
