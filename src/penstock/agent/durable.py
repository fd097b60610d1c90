"""Atomic and durable file replacement.

The content is written to a temporary file and synced, the file is renamed, and the directory is synced. A
reader sees either the old or the complete new content. Each file type has a failpoint before and one after
the write.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass

from penstock.failpoints import reach, register

__all__ = ["FailpointPair", "fsync_directory", "read_if_exists", "register_pair", "write_durably"]


@dataclass(frozen=True, slots=True)
class FailpointPair:
    before: str
    after: str


def register_pair(name: str, about: str) -> FailpointPair:
    return FailpointPair(
        register(f"{name}.before", f"before: {about}"),
        register(f"{name}.after", f"after: {about}"),
    )


def fsync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: str, data: bytes, points: FailpointPair) -> None:
    """Replaces a file. After an `OSError` the file is unchanged and no temporary file remains."""
    reach(points.before)
    temporary = f"{path}.tmp"
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            remaining = memoryview(data)
            while remaining:
                remaining = remaining[os.write(fd, remaining) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    fsync_directory(os.path.dirname(path))
    reach(points.after)


def read_if_exists(path: str) -> bytes | None:
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
