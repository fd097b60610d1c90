"""Writing a file so that it is there whole or not at all, whatever dies when.

The text goes to a file beside it and to the disk, then takes the name, then the directory goes to the disk.
Whoever reads the name sees the old content or the new. Each kind of file has a failpoint before and after.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from penstock.failpoints import reach, register

__all__ = ["Points", "read_if_there", "register_pair", "sync_directory", "write_durably"]


@dataclass(frozen=True, slots=True)
class Points:
    before: str
    after: str


def register_pair(name: str, about: str) -> Points:
    return Points(
        register(f"{name}.before", f"before: {about}"),
        register(f"{name}.after", f"after: {about}"),
    )


def sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: str, data: bytes, points: Points) -> None:
    """Replaces a file. On an `OSError` nothing has changed, and nothing is left over."""
    reach(points.before)
    beside = f"{path}.tmp"
    try:
        fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            left = memoryview(data)
            while left:
                left = left[os.write(fd, left) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(beside, path)
    except OSError:
        with suppress(OSError):
            os.unlink(beside)
        raise
    sync_directory(os.path.dirname(path))
    reach(points.after)


def read_if_there(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
