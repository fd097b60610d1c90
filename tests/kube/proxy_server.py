"""An HTTP proxy as a process of its own: `python -m tests.kube.proxy_server TARGET_PORT USER:PASSWORD`.

It prints its port, then the line `CONNECT host:port` or `GET http://host:port/...` of each request. Whatever
host a client names, it connects to 127.0.0.1:TARGET_PORT: so a test can use names that nothing resolves.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def _serve(target_port: int, password: str) -> None:
    expected = f"proxy-authorization: basic {base64.b64encode(password.encode()).decode()}".lower()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *headers = head.decode().split("\r\n")
        verb, target, version = first.split(" ")
        sys.stdout.write(f"{verb} {target}\n")
        sys.stdout.flush()
        if password and expected not in (header.lower() for header in headers):
            writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            writer.close()
            return
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", target_port)
        if verb == "CONNECT":
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            other_writer.write("\r\n".join([f"{verb} {target} {version}", *headers]).encode())
        await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await server.serve_forever()


class ProxyProcess:
    def __init__(self, target_port: int, password: str = "") -> None:
        argv = [sys.executable, "-m", "tests.kube.proxy_server", str(target_port), password]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def stop(self) -> list[str]:
        """Ends it and returns the requests that it got."""
        self._process.terminate()
        return self._process.communicate()[0].splitlines()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(int(sys.argv[1]), sys.argv[2]))
