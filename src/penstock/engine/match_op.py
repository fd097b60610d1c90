"""The operations of a match, as Fluxion names them."""

from __future__ import annotations

import enum

__all__ = ["BOOKS_NOTHING", "MAY_WAIT", "MatchOp"]


class MatchOp(enum.Enum):
    ALLOCATE = "allocate"
    ALLOCATE_WITH_SATISFIABILITY = "allocate_with_satisfiability"
    ALLOCATE_ORELSE_RESERVE = "allocate_orelse_reserve"
    SATISFIABILITY = "satisfiability"
    WITHOUT_ALLOCATING = "without_allocating"
    WITHOUT_ALLOCATING_FUTURE = "without_allocating_future"


MAY_WAIT = frozenset({MatchOp.ALLOCATE_ORELSE_RESERVE, MatchOp.WITHOUT_ALLOCATING_FUTURE})
BOOKS_NOTHING = frozenset(
    {MatchOp.SATISFIABILITY, MatchOp.WITHOUT_ALLOCATING, MatchOp.WITHOUT_ALLOCATING_FUTURE}
)
