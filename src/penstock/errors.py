"""The errors of Penstock: one root, four families, facts in every instance.

A refusal ("not now", "never") is no error: it is a value that the caller must look at. What is
raised here is bad input (`BadRequest`), a change that does not fit the present state (`Conflict`),
something that is away for now (`Unavailable`), or state that contradicts itself (`Corrupt`).
Only `Conflict` and `Unavailable` are worth another try, and only the outermost loop tries again.
"""

from __future__ import annotations

__all__ = ["BadRequest", "Conflict", "Corrupt", "PenstockError", "Unavailable"]

_FOUND_SHOWN_MAX = 120


class PenstockError(Exception):
    """Root of everything that Penstock raises on purpose."""


class BadRequest(PenstockError):
    """Input that cannot be accepted.

    `summary` is one short sentence, `where` the place in the input (a path such as
    `resources[0].count.min`, or a line), `found` what stood there, `expected` what would be right.
    """

    def __init__(self, summary: str, *, where: str = "", found: str = "", expected: str = "") -> None:
        self.summary = summary
        self.where = where
        self.found = found if len(found) <= _FOUND_SHOWN_MAX else found[:_FOUND_SHOWN_MAX] + "..."
        self.expected = expected
        super().__init__(self._text())

    def _text(self) -> str:
        text = f"{self.where}: {self.summary}" if self.where else self.summary
        facts = []
        if self.found:
            facts.append(f"found {self.found}")
        if self.expected:
            facts.append(f"expected {self.expected}")
        return f"{text} ({'; '.join(facts)})" if facts else text


class Conflict(PenstockError):
    """The request is well formed, but the present state does not allow it."""


class Unavailable(PenstockError):
    """Something we depend on does not answer now; it may later."""


class Corrupt(PenstockError):
    """Our own state contradicts itself. Nothing is repaired by guessing."""
