"""The errors of Penstock: one root, four families, facts in every instance.

A refusal ("not now", "never") is no error: it is a value that the caller must look at. What is
raised here is bad input (`BadRequest`), a change that does not fit the present state (`Conflict`),
something that is away for now (`Unavailable`), or state that contradicts itself (`Corrupt`).
Only `Conflict` and `Unavailable` are worth another try, and only the outermost loop tries again.
"""

from __future__ import annotations

__all__ = ["BadRequest", "Conflict", "Corrupt", "PenstockError", "Unavailable"]

_FOUND_MAX = 120
_WHERE_MAX = 400  # names in a place and in what would be right come from outside as well


class PenstockError(Exception):
    """Root of everything that Penstock raises on purpose."""


class BadRequest(PenstockError):
    """Input that cannot be accepted.

    `summary` is one short sentence, `where` the place in the input (a path such as
    `resources[0].count.min`, or a line), `found` what stood there, `expected` what would be right.
    """

    def __init__(self, summary: str, *, where: str = "", found: str = "", expected: str = "") -> None:
        self.summary = summary
        self.where = _cut(where, _WHERE_MAX)
        self.found = _cut(found, _FOUND_MAX)
        self.expected = _cut(expected, _WHERE_MAX)
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


def _cut(text: str, length_max: int) -> str:
    return text if len(text) <= length_max else text[:length_max] + "..."
