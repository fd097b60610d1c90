"""Exit codes that scripts can rely on, and the exception that ends a command with one of them.

`CommandExit` carries a code and at most one line to `main`, which prints the line to standard error as
`penstock: ...`. The codes are the same for every command; `run`, `job attach`,
`job wait` and `submit --wait` return the job's own code.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FAILED", "NO_INSTANCE", "OK", "TEXT", "USAGE", "CommandExit"]

OK: Final = 0
FAILED: Final = 1  # the job or the operation failed, or the request is unsatisfiable
USAGE: Final = 2  # the command line or the request is invalid
NO_INSTANCE: Final = 3  # no instance runs, or it does not answer

TEXT: Final = (
    "Exit codes: 0 success; 1 the job or the operation failed, or the job can\n"
    "never run here; 2 invalid usage or request; 3 no instance runs, or it does\n"
    "not answer. run, job attach, job wait and submit --wait exit with the job's\n"
    "code."
)


class CommandExit(Exception):
    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
