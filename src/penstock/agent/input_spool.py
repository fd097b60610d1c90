"""The standard input of a job, spooled in files between the instance and the supervisors of its tasks.

The instance appends what a client sends (`InputSpool`); the supervisor of every task reads it at its own pace
(`InputReader`) and writes how far it got to a position file. The bytes are stored in segments of
`SEGMENT_BYTES`, named by their number, so that what all tasks have read can be removed. `end` marks the end
of the input. The size of the last segment says how much is stored: whoever restarts, on either side,
continues at the right byte.

The files are not synced: after a power failure the tasks that read them are gone as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

__all__ = ["SEGMENT_BYTES", "WINDOW_BYTES", "InputReader", "InputSpool", "PositionFile", "read_position"]

SEGMENT_BYTES: Final = 256 << 10
WINDOW_BYTES: Final = 4 << 20  # stored at most, beyond what the slowest task has read

_END: Final = "end"
_FINISHED: Final = 1 << 62  # the position of a task that reads no more
_DIGITS: Final = 20


class InputSpool:
    """The writing side. One process uses it at a time."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def size(self) -> int:
        """How many bytes have ever been appended."""
        numbers = self._segments()
        if not numbers:
            return 0
        last = max(numbers)
        return last * SEGMENT_BYTES + (self._directory / str(last)).stat().st_size

    @property
    def has_ended(self) -> bool:
        return (self._directory / _END).exists()

    def append(self, data: bytes) -> None:
        """Appends after the last byte. If the disk is full, a part of the data may have been appended."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        at = self.size
        while data:
            room = SEGMENT_BYTES - at % SEGMENT_BYTES
            path = self._directory / str(at // SEGMENT_BYTES)
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                written = os.write(fd, data[:room])
            finally:
                os.close(fd)
            at += written
            data = data[written:]

    def end(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._directory / _END).touch(mode=0o600)

    def discard(self, before: int) -> None:
        """Removes the segments that end before this position, except the last one, which shows the size."""
        numbers = self._segments()
        for number in numbers:
            if (number + 1) * SEGMENT_BYTES <= before and number != max(numbers):
                with suppress(FileNotFoundError):
                    (self._directory / str(number)).unlink()

    def position(self, files: Iterable[Path]) -> int | None:
        """How far the slowest of these tasks has read; None without tasks."""
        found = [read_position(path) for path in files]
        return min(*found, self.size) if found else None

    def _segments(self) -> list[int]:
        try:
            return [int(name) for name in os.listdir(self._directory) if name.isdigit()]
        except FileNotFoundError:
            return []


class InputReader:
    """The reading side, for one task. Reads each byte once, in order."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._position = 0

    def has_ended(self) -> bool:
        """Whether all bytes are there. Ask before reading: the last ones may be appended in between."""
        return os.path.exists(f"{self._directory}/{_END}")

    def read(self, size_max: int) -> bytes:
        """The next bytes; empty if there are none yet."""
        number, offset = divmod(self._position, SEGMENT_BYTES)
        try:
            fd = os.open(f"{self._directory}/{number}", os.O_RDONLY)
        except FileNotFoundError:
            return b""
        try:
            data = os.pread(fd, size_max, offset)
        finally:
            os.close(fd)
        self._position += len(data)
        return data


class PositionFile:
    """Tells the writer how far a task has read: a number of fixed width, replaced by a single write."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)

    def write(self, position: int) -> None:
        with suppress(OSError):  # On a full disk the input stops. The task itself can still end.
            os.pwrite(self._fd, f"{position:0{_DIGITS}}".encode(), 0)

    def finish(self) -> None:
        """The task reads no more: the writer does not wait for it."""
        self.write(_FINISHED)
        os.close(self._fd)


def read_position(path: Path) -> int:
    """The position of a task; 0 if it has not started."""
    try:
        return int(path.read_bytes() or b"0")
    except (FileNotFoundError, ValueError):
        return 0
