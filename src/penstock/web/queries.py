"""Query parameters: a table for each endpoint, read strictly.

A parameter that the endpoint does not know is an error that names those it knows, and so is one that is
given twice: silence would answer another question than the one that was asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import QueryParams

from penstock.api.interface import ACTIVE, LIMIT_DEFAULT, JobsQuery
from penstock.errors import BadRequest
from penstock.model.job import JobState, Result
from penstock.model.jobid import parse_jobid

__all__ = ["JOBS_QUERY", "LIMIT_MAX", "Parameter", "jobs_query", "number", "parse_states", "read_query"]

LIMIT_MAX: Final = 1_000_000
_IDS_MAX: Final = 10_000
_STATES: Final = {state.value.lower(): frozenset([state]) for state in JobState if state is not JobState.NEW}
_STATES_MANY: Final = {
    "pending": frozenset(state for state in JobState if state.is_pending),
    "running": frozenset([JobState.RUN, JobState.CLEANUP]),
    "active": ACTIVE,
}
_STATE_NAMES: Final = {**_STATES, **_STATES_MANY}
_RESULTS: Final = {result.value.lower(): result for result in Result}


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    about: str
    read: Callable[[str, str], Any]  # (name, text) -> value
    schema: Mapping[str, object]


def read_query(given: QueryParams, known: Iterable[Parameter]) -> dict[str, Any]:
    """The values of the parameters that were given and are not empty."""
    table = {parameter.name: parameter for parameter in known}
    values: dict[str, Any] = {}
    seen: set[str] = set()
    for name, text in given.multi_items():
        parameter = table.get(name)
        if parameter is None:
            names = ", ".join(table) or "no parameters at all"
            raise BadRequest(
                "unknown query parameter", where="query", found=repr(name), expected=f"one of {names}"
            )
        if name in seen:
            raise BadRequest("query parameter given twice", where=f"query {name}", found=repr(text))
        seen.add(name)
        if text:
            values[name] = parameter.read(name, text)
    return values


def parse_states(words: Iterable[str], where: str) -> frozenset[JobState]:
    found: frozenset[JobState] = frozenset()
    for word in words:
        states = _STATE_NAMES.get(word.strip().lower())
        if states is None:
            raise BadRequest(
                "unknown state", where=where, found=repr(word), expected="any of " + ", ".join(_STATE_NAMES)
            )
        found |= states
    return found


def number(
    name: str, about: str, *, least: float = 0, most: float = math.inf, whole: bool = False
) -> Parameter:
    def read(name: str, text: str) -> float | int:
        kind = "a whole number" if whole else "a number"
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or math.isinf(value):
            limits = f"{kind} from {least:g}" + ("" if math.isinf(most) else f" to {most:g}")
            raise BadRequest(
                "not a number in range", where=f"query {name}", found=repr(text), expected=limits
            )
        return value

    schema: dict[str, object] = {"type": "integer" if whole else "number", "minimum": least}
    return Parameter(name, about, read, schema if math.isinf(most) else {**schema, "maximum": most})


def flag(name: str, about: str) -> Parameter:
    def read(name: str, text: str) -> bool:
        if text not in ("0", "1"):
            raise BadRequest("not a flag", where=f"query {name}", found=repr(text), expected="0 or 1")
        return text == "1"

    return Parameter(name, about, read, {"type": "integer", "enum": [0, 1]})


def _text(name: str, about: str) -> Parameter:
    return Parameter(name, about, lambda _, text: text, {"type": "string"})


def _read_states(name: str, text: str) -> frozenset[JobState]:
    return parse_states(text.split(","), f"query {name}")


def _read_results(name: str, text: str) -> frozenset[Result]:
    found: set[Result] = set()
    for word in text.split(","):
        result = _RESULTS.get(word.strip().lower())
        if result is None:
            expected = "any of " + ", ".join(_RESULTS)
            raise BadRequest("unknown result", where=f"query {name}", found=repr(word), expected=expected)
        found.add(result)
    return frozenset(found)


def _read_ids(name: str, text: str) -> tuple[int, ...]:
    words = text.split(",")
    if len(words) > _IDS_MAX:
        raise BadRequest(
            "too many ids", where=f"query {name}", found=str(len(words)), expected=f"at most {_IDS_MAX}"
        )
    return tuple(parse_jobid(word) for word in words)


_WORDS: Final[Mapping[str, object]] = {"type": "string"}

JOBS_QUERY: Final = (
    Parameter("states", "states, with commas between; also pending, running, active", _read_states, _WORDS),
    Parameter(
        "results", "results, with commas between; adds inactive jobs that ended so", _read_results, _WORDS
    ),
    _text("queue", "jobs of this queue"),
    _text("name", "jobs of this name"),
    _text("owner", "jobs of this user"),
    number("since", "inactive jobs only if they ended after this time (seconds since 1970)"),
    number("limit", "at most so many jobs", least=0, most=LIMIT_MAX, whole=True),
    Parameter("ids", "these jobs, with commas between, whatever their state", _read_ids, _WORDS),
)


def jobs_query(values: dict[str, Any]) -> JobsQuery:
    """Without states and results: the active jobs, or, if ids are given, those in any state."""
    states = values.get("states")
    results = values.get("results", frozenset())
    ids = values.get("ids")
    if states is None:
        states = frozenset() if results else (frozenset(JobState) if ids is not None else ACTIVE)
    return JobsQuery(
        states=states,
        results=results,
        queue=values.get("queue", ""),
        name=values.get("name", ""),
        owner=values.get("owner", ""),
        since=values.get("since"),
        limit=values.get("limit", LIMIT_DEFAULT),
        ids=ids,
    )
