"""Forwards the standard input of `penstock run` to the tasks of its job.

A thread reads from the descriptor and posts what it has read, with the position of the first byte. If the
instance restarts or the connection breaks, the same request is sent again: the instance skips the bytes that
it already has. The instance accepts no more than its tasks read, so the thread reads no faster than they do.
A process in the background of a terminal does not read from it (the read fails, because SIGTTIN is ignored),
and tries again later.
"""

from __future__ import annotations

import base64
import errno
import os
import threading
import time
from contextlib import suppress
from typing import Final

from penstock.cli.client import ApiClient, RequestRefused, job_path
from penstock.cli.terminal import print_error
from penstock.errors import Unavailable

__all__ = ["InputSender", "has_input"]

_STDIN: Final = 0
_CHUNK: Final = 256 << 10
_RETRY_S: Final = 1.0


def has_input() -> bool:
    """Whether there is a standard input to forward: not if it is closed or /dev/null."""
    try:
        return os.fstat(_STDIN).st_rdev != os.stat(os.devnull).st_rdev
    except OSError:
        return False


class InputSender:
    """`offset` is the number of bytes that the job has already been sent."""

    def __init__(self, client: ApiClient, job: str, offset: int = 0) -> None:
        self._client = client
        self._job = job
        self._path = job_path(job, "input")
        self._offset = offset

    def start(self) -> None:
        # A daemon thread: a read from a terminal cannot be interrupted when the job ends.
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            while data := _read():
                self._send(data, end=False)
            self._send(b"", end=True)
        except RequestRefused as error:
            self._report(error)

    def _report(self, error: RequestRefused) -> None:
        """Warns, unless the job has ended: then nobody needs the rest of the input."""
        with suppress(RequestRefused, Unavailable):
            if self._client.get(job_path(self._job))["state"] != "INACTIVE":
                print_error(f"standard input is not forwarded any more: {error}")

    def _send(self, data: bytes, *, end: bool) -> None:
        while True:
            body = {"offset": self._offset, "data": base64.b64encode(data).decode("ascii"), "end": end}
            try:
                found = self._client.post(self._path, body)
            except (Unavailable, RequestRefused) as error:
                if isinstance(error, RequestRefused) and not error.is_temporary:
                    raise
                time.sleep(_RETRY_S)  # `attach` reports it, and gives up after a while.
                continue
            accepted = int(found["size"]) - self._offset
            self._offset += accepted
            data = data[accepted:]
            if not data:
                return


def _read() -> bytes:
    """The next bytes; empty at the end of the input."""
    while True:
        try:
            return os.read(_STDIN, _CHUNK)
        except BlockingIOError:
            time.sleep(_RETRY_S / 10)  # Another process made the terminal non-blocking.
        except OSError as error:
            if error.errno != errno.EIO or not os.isatty(_STDIN):
                return b""
            time.sleep(_RETRY_S)  # In the background of the terminal.
