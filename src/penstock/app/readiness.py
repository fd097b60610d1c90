"""What the daemon reports to the process that started it, and the exit codes that go with it.

`penstock start` reads JSON lines from a pipe: `{"waiting": WHY}` any number of times, then once either
`{"ready": true, "pid": PID, "api_url": URL}` or `{"error": TEXT, "kind": FAMILY}`. The URL is that of the TCP
socket, or empty. The family of an error lets the command raise the same error and exit with the same code as
the daemon.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Final

from penstock.errors import BadRequest, Conflict, PenstockError

__all__ = ["ReadinessReport", "error_family", "exit_code"]

# The codes are those of the commands: wrong request, failed operation, not available.
_FAMILIES: Final = {BadRequest: 2, Conflict: 1}
_EXIT_UNAVAILABLE: Final = 3


class ReadinessReport:
    """The pipe to `penstock start`, or none in the foreground. The final report closes it."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def send(self, message: dict[str, object], *, is_final: bool = True) -> None:
        """Writes one line. An error on the pipe is ignored: `penstock start` may have been interrupted."""
        if self._descriptor is None:
            return
        descriptor = self._descriptor
        with contextlib.suppress(OSError):
            os.write(descriptor, json.dumps(message).encode() + b"\n")
        if is_final:
            self._descriptor = None
            with contextlib.suppress(OSError):
                os.close(descriptor)


def error_family(error: PenstockError) -> str:
    """`BadRequest` or `Conflict` for these and their subclasses, else `Unavailable`."""
    return next((family.__name__ for family in _FAMILIES if isinstance(error, family)), "Unavailable")


def exit_code(error: PenstockError) -> int:
    return next((code for family, code in _FAMILIES.items() if isinstance(error, family)), _EXIT_UNAVAILABLE)
