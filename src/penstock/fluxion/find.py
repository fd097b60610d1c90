"""The `find` command: searches vertices by an expression such as `status=down and sched-now=free`.

Predicates are joined by `and` or `or`, evaluated from left to right without precedence; two predicates
without a word between them are joined by `and`. Parentheses group. Status and scheduling state apply to the
whole subtree: a core below a down node is down, a core below an allocated socket is allocated.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from penstock.engine.allocation import Pick
from penstock.engine.graph import Vertex
from penstock.engine.vertex_state import Booking, TimeView, Window, free_below
from penstock.errors import BadRequest
from penstock.model.hostlist import parse_hostlist

__all__ = ["BadExpression", "Expression", "find", "parse_expression", "usage_below"]

_LENGTH_MAX: Final = 4096
_DEPTH_MAX: Final = 32
_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "status": ("up", "down"),
    "sched-now": ("allocated", "free"),
    "sched-future": ("reserved", "free"),
    "agfilter": ("true", "t", "false", "f"),
}
_JOB_PREDICATES: Final = ("jobid-alloc", "jobid-span", "jobid-tag", "jobid-reserved")


class BadExpression(BadRequest):
    """A search expression that cannot be parsed."""


@dataclass(frozen=True, slots=True)
class _Inherited:
    """Status and scheduling state of a vertex, including what it inherits from the vertices above."""

    down: bool
    allocated: bool
    reserved: bool


_Test = Callable[[Vertex, _Inherited], bool]


class _Operator(enum.Enum):
    AND = "and"
    OR = "or"


@dataclass(frozen=True, slots=True)
class Expression:
    test: _Test
    job: int | None  # the last job that the expression names
    with_usage: bool  # agfilter=true: show the usage of filter types below every vertex


def parse_expression(text: str) -> Expression:
    if len(text) > _LENGTH_MAX:
        raise BadExpression(
            "expression too long",
            where="expression",
            found=f"{len(text)} characters",
            expected=f"at most {_LENGTH_MAX}",
        )
    parser = _Parser(text.replace("\t", " "))
    test = parser.expression(0)
    if parser.rest():
        raise BadExpression(
            "unbalanced parentheses", where="expression", found=repr(parser.rest()), expected="as many ) as ("
        )
    return Expression(test, parser.job, parser.with_usage)


def find(root: Vertex, expression: Expression) -> tuple[Pick, ...]:
    """The matching vertices and all vertices above them, children first, each exclusive with its full size.

    With `with_usage`, a vertex that has no usage counts (for the named job) is omitted.
    """
    picks: list[Pick] = []
    _visit(root, _Inherited(False, False, False), 1, expression, picks, set())
    return tuple(picks)


def _visit(
    vertex: Vertex,
    above: _Inherited,
    depth: int,
    expression: Expression,
    picks: list[Pick],
    seen: set[int],
) -> bool:
    if vertex.index in seen:
        return False
    seen.add(vertex.index)
    state = vertex.state
    bookings = state.bookings.values() if state is not None else ()
    status = _Inherited(
        above.down or not vertex.up,
        above.allocated or any(b.live and b.units for b in bookings),
        above.reserved or any(not b.live and b.units for b in bookings),
    )
    is_found = False
    for child in vertex.below():
        is_found = _visit(child, status, depth + 1, expression, picks, seen) or is_found
    if not is_found and not expression.test(vertex, status):
        return False
    if expression.with_usage and not _counts(vertex, expression.job):
        return False
    picks.append(Pick(vertex, vertex.size, True, depth, vertex.parent()))
    return True


def usage_below(picks: tuple[Pick, ...], job: int | None, now: int) -> dict[int, dict[str, str]]:
    """By vertex index: the usage of each filter type below the vertex, by all jobs or by one job."""
    window = Window(now, now + 1, now, TimeView.LATER)
    usage: dict[int, dict[str, str]] = {}
    for pick in picks:
        vertex = pick.vertex
        used: dict[str, str] = {}
        for resource_type, total in (vertex.totals or {}).items():
            if job is None:
                units = total - free_below(vertex, resource_type, window)
            else:
                units = sum(booking.below.get(resource_type, 0) for booking in _bookings(vertex, job))
            used[resource_type] = f"used:{units}, total:{total}"
        usage[vertex.index] = used
    return usage


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.job: int | None = None
        self.with_usage = False

    def rest(self) -> str:
        return self._text[self._at :].strip()

    def expression(self, depth: int) -> _Test:
        if depth > _DEPTH_MAX:
            raise BadExpression(
                "parentheses nested too deep",
                where="expression",
                found=f"{depth} open parentheses",
                expected=f"at most {_DEPTH_MAX}",
            )
        test = self._operand(depth)
        while True:
            operator = self._operator(depth)
            if operator is None:
                return test
            test = _combined(test, operator, self._operand(depth))

    def _operator(self, depth: int) -> _Operator | None:
        word = self._peek()
        if not word or (depth and word.startswith(")")):
            return None
        if word in ("and", "or"):
            self._skip(word)
            return _Operator.AND if word == "and" else _Operator.OR
        return _Operator.AND

    def _operand(self, depth: int) -> _Test:
        word = self._peek()
        if word.startswith("("):
            self._skip("(")
            inner = self.expression(depth + 1)
            if not self._peek().startswith(")"):
                raise BadExpression(
                    "unbalanced parentheses",
                    where="expression",
                    found=repr(self._text),
                    expected="as many ) as (",
                )
            self._skip(")")
            return inner
        word = word.rstrip(")") if depth else word
        self._skip(word)
        return self._predicate(word)

    def _peek(self) -> str:
        found = re.compile(r"\s*([()]|[^\s]+)").match(self._text, self._at)
        return found.group(1) if found else ""

    def _skip(self, word: str) -> None:
        self._at = self._text.index(word, self._at) + len(word)

    def _predicate(self, word: str) -> _Test:
        key, equals, value = word.partition("=")
        low = value.lower()
        choices = _CHOICES.get(key)
        if not equals or (choices is not None and low not in choices):
            raise BadExpression(
                "invalid criteria",
                where="expression",
                found=repr(word),
                expected=f"{key}={'|'.join(choices)}" if choices else "KEY=VALUE",
            )
        if key in _JOB_PREDICATES:
            return self._job_test(key, value)
        if key == "names":
            hosts = frozenset(parse_hostlist(low))
            return lambda vertex, _: vertex.name in hosts
        if key == "property" and low:
            return lambda vertex, _: low in vertex.properties
        if key == "agfilter":
            self.with_usage = low in ("true", "t")
            wanted = self.with_usage
            return lambda _vertex, _status: wanted
        if choices is None:
            known = ", ".join([*_CHOICES, *_JOB_PREDICATES, "names", "property"])
            raise BadExpression(
                "invalid criteria", where="expression", found=repr(word), expected=f"one of {known}"
            )
        return _status_test(key, low)

    def _job_test(self, key: str, value: str) -> _Test:
        if not (value.isascii() and value.isdigit() and len(value) <= 20):
            raise BadExpression(
                "invalid criteria",
                where="expression",
                found=repr(f"{key}={value}"),
                expected=f"{key}=N, with the number of a job",
            )
        job = int(value)
        self.job = job
        if key == "jobid-tag":
            return lambda vertex, _: bool(_bookings(vertex, job))
        if key == "jobid-span":
            return lambda vertex, _: _counts(vertex, job)
        live = key == "jobid-alloc"
        return lambda vertex, _: any(b.live is live and b.units > 0 for b in _bookings(vertex, job))


def _combined(left: _Test, operator: _Operator, right: _Test) -> _Test:
    if operator is _Operator.AND:
        return lambda vertex, status: left(vertex, status) and right(vertex, status)
    return lambda vertex, status: left(vertex, status) or right(vertex, status)


def _status_test(key: str, value: str) -> _Test:
    if key == "status":
        return (lambda _, status: status.down) if value == "down" else (lambda _, status: not status.down)
    if key == "sched-now":
        return (
            (lambda _, status: status.allocated)
            if value == "allocated"
            else (lambda _, status: not status.allocated)
        )
    return (
        (lambda _, status: status.reserved)
        if value == "reserved"
        else (lambda _, status: not status.reserved)
    )


def _bookings(vertex: Vertex, job: int) -> list[Booking]:
    if vertex.state is None:
        return []
    return [booking for (number, _), booking in vertex.state.bookings.items() if number == job]


def _counts(vertex: Vertex, job: int | None) -> bool:
    """Whether the vertex counts usage of filter types (by one job, if given)."""
    return bool(vertex.totals) and (job is None or any(booking.below for booking in _bookings(vertex, job)))
