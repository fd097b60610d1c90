"""The standard input of one task: a file, the spooled input of its job through a pipe, or nothing.

The supervisor feeds the pipe between its other duties, without a thread: the pipe does not block, and SIGIO
announces both more input in the spool (`F_NOTIFY` on its directory) and more room in the pipe (`O_ASYNC`).
SIGIO stays blocked and is received by `sigtimedwait`. Signals can be missed (not every file system notifies),
so the supervisor also looks every `poll_s` seconds while the input is open.
"""

from __future__ import annotations

import fcntl
import os
import signal
from typing import Final

from penstock.agent.input_spool import InputReader, PositionFile
from penstock.agent.launch import NOT_EXECUTABLE, LaunchError
from penstock.agent.records import TaskSpec

__all__ = ["TaskInput"]

_CHUNK: Final = 64 << 10
_CHUNKS_PER_CALL: Final = 16  # then the supervisor looks after its other duties
_POLL_S: Final = 1.0
_POLL_UNNOTIFIED_S: Final = 0.05


class TaskInput:
    """`stdin` is the descriptor for the command; close it with `started` after the fork."""

    def __init__(self, spec: TaskSpec) -> None:
        self._pipe = -1
        self._pending = b""
        self._position = 0
        self._is_behind = False  # there is more to read at once
        try:
            if not spec.spool:
                # O_NONBLOCK makes a named pipe without a writer an empty input instead of a block.
                path = spec.input or os.devnull
                self.stdin = os.open(path, os.O_RDONLY | os.O_NOCTTY | os.O_NONBLOCK)
                os.set_blocking(self.stdin, True)
                return
            os.makedirs(spec.spool, mode=0o700, exist_ok=True)
            self._reader = InputReader(spec.spool)
            self._position_file = PositionFile(spec.position)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            raise LaunchError(
                NOT_EXECUTABLE, f"could not open input file {spec.input or spec.spool}: {why}"
            ) from error
        self.stdin, self._pipe = os.pipe()
        self._directory_fd = os.open(spec.spool, os.O_RDONLY | os.O_DIRECTORY)
        self._is_notified = _notify(self._directory_fd, self._pipe)

    @property
    def poll_s(self) -> float | None:
        """After this time `feed` must be called without a signal; None: never again."""
        if self._pipe < 0:
            return None
        if self._is_behind:
            return 0.0
        return _POLL_S if self._is_notified else _POLL_UNNOTIFIED_S

    def started(self) -> None:
        os.close(self.stdin)

    def feed(self) -> None:
        """Writes to the task what is there and what it takes."""
        for _ in range(_CHUNKS_PER_CALL):
            if self._pipe < 0 or not self._feed_once():
                self._is_behind = False
                return
        self._is_behind = True

    def _feed_once(self) -> bool:
        """Returns whether to go on at once."""
        if not self._pending:
            has_ended = self._reader.has_ended()
            self._pending = self._reader.read(_CHUNK)
            if not self._pending:
                if has_ended:
                    self.close()
                return False
        try:
            written = os.write(self._pipe, self._pending)
        except BlockingIOError:
            return False
        except OSError:  # The task has closed its input.
            self.close()
            return False
        self._pending = self._pending[written:]
        self._position += written
        self._position_file.write(self._position)
        return True

    def close(self) -> None:
        """Ends the input of the task."""
        if self._pipe >= 0:
            os.close(self._pipe)
            os.close(self._directory_fd)
            self._pipe = -1
            self._position_file.finish()


def _notify(directory: int, pipe: int) -> bool:
    """Asks for SIGIO when the spool changes or the pipe has room; returns whether the kernel agrees."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGIO,))
    os.set_blocking(pipe, False)
    try:
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, fcntl.fcntl(pipe, fcntl.F_GETFL) | os.O_ASYNC)
        fcntl.fcntl(directory, fcntl.F_NOTIFY, fcntl.DN_MODIFY | fcntl.DN_CREATE | fcntl.DN_MULTISHOT)
    except OSError:
        return False
    return True
