"""The errors of Penstock: one root and four families.

A refusal ("not now", "never") is not an error but a value that the caller must inspect. The families are
invalid input (`BadRequest`), a change that the current state does not allow (`Conflict`), a dependency that
does not answer (`Unavailable`), and state that contradicts itself (`Corrupt`). Only `Conflict` and
`Unavailable` are worth a retry, and only the outermost loop retries. A `Defect` is none of them: an
exception that nobody expected, reported to whom it concerns.
"""

from __future__ import annotations

__all__ = ["BadRequest", "Conflict", "Corrupt", "Defect", "PenstockError", "Unavailable"]

_FOUND_MAX = 120
_WHERE_MAX = 400  # also for `expected`: both can contain names from the input


class PenstockError(Exception):
    """Root of all errors that Penstock raises deliberately."""


class BadRequest(PenstockError):
    """Invalid input.

    `summary` is one short sentence, `where` the position in the input (a path such as
    `resources[0].count.min`, or a line), `found` the value at that position, `expected` a valid value.
    """

    def __init__(self, summary: str, *, where: str = "", found: str = "", expected: str = "") -> None:
        self.summary = summary
        self.where = _cut(where, _WHERE_MAX)
        self.found = _cut(found, _FOUND_MAX)
        self.expected = _cut(expected, _WHERE_MAX)
        super().__init__(self._text())

    def at(self, where: str) -> BadRequest:
        """The same error at another position, for example at the option that the user typed."""
        return type(self)(self.summary, where=where, found=self.found, expected=self.expected)

    def _text(self) -> str:
        text = f"{self.where}: {self.summary}" if self.where else self.summary
        facts = []
        if self.found:
            facts.append(f"found {self.found}")
        if self.expected:
            facts.append(f"expected {self.expected}")
        return f"{text} ({'; '.join(facts)})" if facts else text


class Conflict(PenstockError):
    """The request is valid, but the current state does not allow it."""


class Unavailable(PenstockError):
    """A dependency does not answer. A later attempt may succeed."""


class Corrupt(PenstockError):
    """The state of Penstock contradicts itself. It is not repaired by guessing."""


class Defect(PenstockError):
    """An unexpected exception in Penstock; the request or object that it concerns may be valid."""


def _cut(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else text[:length_max] + "..."
