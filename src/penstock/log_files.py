"""Logs that a process writes to its standard error: bounded in size.

The log of an instance and those of its agents are files behind the descriptors 1 and 2, so that a traceback
of the interpreter and the messages of libraries are in them, too. `bound_log` renames a file that has become
too large and opens a new one behind the same descriptors. Processes that were started before keep the old
file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

__all__ = ["FORMER_LOGS", "LOG_SIZE_MAX", "bound_log"]

LOG_SIZE_MAX: Final = 10 << 20
FORMER_LOGS: Final = 3  # `NAME.1` is the newest one
_STDOUT, _STDERR = 1, 2


def bound_log(path: Path, size_max: int = LOG_SIZE_MAX) -> None:
    """Begins another file if the log at `path` is too large. Does nothing if stderr is not that file.

    A failure leaves the log as it is: nothing must fail because of its log.
    """
    with contextlib.suppress(OSError):
        found = os.fstat(_STDERR)
        if found.st_size < size_max or not os.path.samestat(found, os.lstat(path)):
            return
        for number in range(FORMER_LOGS, 1, -1):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f"{path}.{number - 1}", f"{path}.{number}")
        os.rename(path, f"{path}.1")
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(log, _STDOUT)
        os.dup2(log, _STDERR)
        os.close(log)
