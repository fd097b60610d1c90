"""Query parameters: a table for each endpoint, parsed strictly.

An unknown parameter is an error that names the known ones, and a repeated parameter is an error too: ignoring
either would answer a different request than the client meant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from starlette.datastructures import QueryParams

from penstock.api.requests import ACTIVE, LIMIT_DEFAULT, JobsQuery, parse_results, parse_states
from penstock.errors import BadRequest
from penstock.model.job import JobState, Result
from penstock.model.jobid import parse_jobid

__all__ = ["JOBS_QUERY", "LIMIT_MAX", "Parameter", "flag", "jobs_query", "number", "read_query"]

LIMIT_MAX: Final = 1_000_000
_IDS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    description: str
    parse: Callable[[str, str], Any]  # (name, text) -> value
    schema: Mapping[str, object]


def read_query(given: QueryParams, known: Iterable[Parameter]) -> dict[str, Any]:
    """The values of the parameters that are given and not empty."""
    table = {parameter.name: parameter for parameter in known}
    values: dict[str, Any] = {}
    names: set[str] = set()
    for name, text in given.multi_items():
        parameter = table.get(name)
        if parameter is None:
            expected = f"one of {', '.join(table)}" if table else "no query parameter"
            raise BadRequest("unknown query parameter", where="query", found=repr(name), expected=expected)
        if name in names:
            raise BadRequest("query parameter given twice", where=f"query {name}", found=repr(text))
        names.add(name)
        if text:
            values[name] = parameter.parse(name, text)
    return values


def number(
    name: str, description: str, *, least: float = 0, most: float = math.inf, whole: bool = False
) -> Parameter:
    def parse(name: str, text: str) -> float | int:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or math.isinf(value):
            noun = "a whole number" if whole else "a number"
            expected = f"{noun} from {least:g}" + ("" if math.isinf(most) else f" to {most:g}")
            raise BadRequest(
                "not a number in range", where=f"query {name}", found=repr(text), expected=expected
            )
        return value

    schema: dict[str, object] = {"type": "integer" if whole else "number", "minimum": least}
    return Parameter(name, description, parse, schema if math.isinf(most) else {**schema, "maximum": most})


def flag(name: str, description: str) -> Parameter:
    def parse(name: str, text: str) -> bool:
        if text not in ("0", "1"):
            raise BadRequest("not a flag", where=f"query {name}", found=repr(text), expected="0 or 1")
        return text == "1"

    return Parameter(name, description, parse, {"type": "integer", "enum": [0, 1]})


def _text(name: str, description: str) -> Parameter:
    return Parameter(name, description, lambda _, text: text, {"type": "string"})


def _parse_states(name: str, text: str) -> frozenset[JobState]:
    return parse_states(text.split(","), f"query {name}")


def _parse_results(name: str, text: str) -> frozenset[Result]:
    return parse_results(text.split(","), f"query {name}")


def _parse_ids(name: str, text: str) -> tuple[int, ...]:
    ids = text.split(",")
    if len(ids) > _IDS_MAX:
        raise BadRequest(
            "too many ids", where=f"query {name}", found=str(len(ids)), expected=f"at most {_IDS_MAX}"
        )
    return tuple(parse_jobid(job_id) for job_id in ids)


_LIST: Final[Mapping[str, object]] = {"type": "string"}

JOBS_QUERY: Final = (
    Parameter("states", "states, separated by commas; also pending, running, active", _parse_states, _LIST),
    Parameter(
        "results",
        "results, separated by commas; adds inactive jobs that have them",
        _parse_results,
        _LIST,
    ),
    _text("queue", "jobs of this queue"),
    _text("name", "jobs with this name"),
    _text("owner", "jobs of this user"),
    number("since", "inactive jobs only if they ended after this time (seconds since 1970)"),
    number("limit", "the maximum number of jobs", least=0, most=LIMIT_MAX, whole=True),
    Parameter("ids", "jobs with these ids, separated by commas, in any state", _parse_ids, _LIST),
)


def jobs_query(values: dict[str, Any]) -> JobsQuery:
    """Without states and results: the active jobs, or the jobs in `ids` in any state."""
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
