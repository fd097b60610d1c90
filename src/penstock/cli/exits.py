"""How commands end: a code that scripts can rely on, and at most one line that says why.

`Ended` carries both from anywhere in a command to `main`, which prints the line to standard error as
`penstock: ...`. The codes are the same for every command; `run` and `job attach` return the job's own code.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FAILED", "NO_INSTANCE", "OK", "TEXT", "USAGE", "Ended"]

OK: Final = 0
FAILED: Final = 1  # the job or the operation failed
USAGE: Final = 2  # the command line or the request is wrong
NO_INSTANCE: Final = 3  # no instance, or it cannot answer for now

TEXT: Final = (
    "Exit codes: 0 done; 1 the job or the operation failed; 2 wrong usage or request;\n"
    "3 no instance runs, or it cannot answer now. run and job attach exit as the job did."
)


class Ended(Exception):
    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
