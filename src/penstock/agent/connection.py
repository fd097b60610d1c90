"""The agent's side of a socket connection: bounded line messages, accepted from the same user only.

A peer that does not read is disconnected when its write buffer exceeds a limit; it attaches again and gets
every report.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from penstock.agent import wire
from penstock.errors import BadRequest

__all__ = ["Channel", "serve_socket"]

_WRITE_BUFFER_MAX_BYTES: Final = 64 << 20


class Channel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def commands(self) -> AsyncIterator[wire.AgentCommand]:
        """Yields the commands of the peer; raises `BadRequest` for any other input."""
        while True:
            try:
                line = await self._reader.readline()
            except ValueError as error:
                raise BadRequest(
                    "the line is too long", expected=f"at most {wire.FRAME_MAX} bytes"
                ) from error
            if not line.endswith(b"\n"):
                return
            yield wire.decode_command(line)
            await asyncio.sleep(0)  # a peer with many buffered commands must not block the event loop

    def send(self, message: wire.AgentReply) -> bool:
        """Returns False if the peer is disconnected, also because its buffer was full."""
        if self._writer.is_closing():
            return False
        if self._writer.transport.get_write_buffer_size() > _WRITE_BUFFER_MAX_BYTES:
            self._writer.transport.abort()
            return False
        self._writer.write(wire.encode(message))
        return True

    def close(self) -> None:
        self._writer.close()

    def is_own_user(self) -> bool:
        peer: socket.socket = self._writer.get_extra_info("socket")
        credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return bool(struct.unpack("3i", credentials)[1] in (os.getuid(), 0))


async def serve_socket(path: Path, serve: Callable[[Channel], Awaitable[None]]) -> asyncio.Server:
    """Listens on a socket. The caller holds the agent's lock, so an existing socket file is stale."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        try:
            if channel.is_own_user():
                await serve(channel)
        except (ConnectionError, asyncio.CancelledError):
            pass  # Only the shutdown of the agent cancels this, and asyncio would log it as an error.
        finally:
            channel.close()

    with suppress(FileNotFoundError):
        path.unlink()
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    return await asyncio.start_unix_server(connected, sock=listener, limit=wire.FRAME_MAX)
