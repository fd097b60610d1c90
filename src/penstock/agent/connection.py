"""The agent's end of a socket: lines in, lines out, nothing unbounded, only our own user.

A peer that does not read is let go when too much waits for it; it attaches again and is told everything.
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

_WAITING_MAX: Final = 64 << 20  # bytes that wait for a peer to read


class Channel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def commands(self) -> AsyncIterator[wire.Command]:
        """The commands as they come; what is none is a `BadRequest`."""
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
            await asyncio.sleep(0)  # a full buffer of commands must not keep others from their turn

    def send(self, message: wire.AgentReply) -> bool:
        """False if the peer is gone or has been let go."""
        if self._writer.is_closing():
            return False
        if self._writer.transport.get_write_buffer_size() > _WAITING_MAX:
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
    """Listens; whoever calls this holds the agent's lock, so a socket that is there is nobody's."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        channel = Channel(reader, writer)
        try:
            if channel.is_own_user():
                await serve(channel)
        except (ConnectionError, asyncio.CancelledError):
            pass  # only the end of the agent cancels this, and asyncio would log it as a fault
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
