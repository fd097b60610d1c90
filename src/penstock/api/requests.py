"""Typed requests of the service: bodies of changes, and queries.

A body is a msgspec struct. Decoding enforces its limits (lengths, ranges, enumerations) and rejects unknown
fields, because a misspelt field that is ignored would do the opposite of what the client meant. Checks that
need more than one field are methods, so that every protocol adapter applies the same ones.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from penstock.errors import BadRequest
from penstock.model.job import URGENCY_DEFAULT, JobState, Result
from penstock.model.jobid import parse_jobid
from penstock.protocol.facts import Requeue

__all__ = [
    "ACTIVE",
    "INPUT_BYTES_MAX",
    "JOBS_MAX",
    "LIMIT_DEFAULT",
    "RESULT_NAMES",
    "STATE_NAMES",
    "WAIT_DEFAULT_S",
    "WAIT_MAX_S",
    "CancelRequest",
    "CancelSelection",
    "DrainRequest",
    "InputRequest",
    "JobSubmission",
    "JobsQuery",
    "QueueAction",
    "QueueRequest",
    "RequestBody",
    "ShutdownRequest",
    "SignalRequest",
    "SubmitRequest",
    "TimelineQuery",
    "UndrainRequest",
    "UrgencyRequest",
    "parse_results",
    "parse_states",
]

JOBS_MAX: Final = 100_000  # in one submission
LIMIT_DEFAULT: Final = 1000
WAIT_DEFAULT_S: Final = 30.0
WAIT_MAX_S: Final = 600.0
INPUT_BYTES_MAX: Final = 1 << 20  # in one request
ACTIVE: Final = frozenset(state for state in JobState if state.is_active)

STATE_NAMES: Final = {
    **{state.value.lower(): frozenset([state]) for state in JobState if state is not JobState.NEW},
    "pending": frozenset(state for state in JobState if state.is_pending),
    "running": frozenset([JobState.RUN, JobState.CLEANUP]),
    "active": ACTIVE,
}
RESULT_NAMES: Final = {result.value.lower(): result for result in Result}

_Text = Annotated[str, msgspec.Meta(max_length=4096)]
_Urgency = Annotated[int, msgspec.Meta(ge=0, le=31)]
_Jobspec = Annotated[
    msgspec.Raw,
    msgspec.Meta(
        description="a jobspec, version 1 (RFC 25) or higher (RFC 14)", extra_json_schema={"type": "object"}
    ),
]


class RequestBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all request bodies."""


class JobSubmission(RequestBody, frozen=True):
    """One job to submit. The jobspec stays JSON text, because the jobspec parser reads text."""

    jobspec: _Jobspec
    urgency: _Urgency = URGENCY_DEFAULT
    requeue: Requeue = Requeue.NEVER


class SubmitRequest(RequestBody, frozen=True):
    """Jobs that are all accepted or all rejected.

    A repeated request with the same non-empty `key` creates no jobs and returns the ids of the first one.
    """

    jobs: Annotated[list[JobSubmission], msgspec.Meta(min_length=1, max_length=JOBS_MAX)]
    key: Annotated[str, msgspec.Meta(max_length=200)] = ""


@dataclass(frozen=True, slots=True)
class CancelSelection:
    """Either the jobs in `ids`, or (`ids` is None) every job in `states`, restricted to `queue` if set."""

    ids: tuple[int, ...] | None
    states: frozenset[JobState] = ACTIVE
    queue: str = ""


class CancelRequest(RequestBody, frozen=True):
    """Jobs by `ids`, or with `all` every active job, optionally restricted by `states` and `queue`."""

    ids: list[_Text] | None = None
    all: bool = False
    states: list[_Text] | None = None
    queue: _Text = ""
    note: _Text = ""

    def selection(self) -> CancelSelection:
        if (self.ids is None) == (not self.all):
            raise BadRequest(
                "the jobs to cancel are not clear",
                where="body",
                found="both ids and all" if self.all else "neither ids nor all",
                expected='either "ids" or "all": true',
            )
        if self.ids is None:
            states = ACTIVE if self.states is None else parse_states(self.states, "states") & ACTIVE
            return CancelSelection(None, states, self.queue)
        if self.states is not None or self.queue:
            raise BadRequest(
                "states and queue cannot be combined with ids",
                where="body",
                expected='"all": true instead of "ids"',
            )
        return CancelSelection(tuple(parse_jobid(text) for text in self.ids))


class UrgencyRequest(RequestBody, frozen=True):
    urgency: _Urgency


class SignalRequest(RequestBody, frozen=True):
    signal: Annotated[int, msgspec.Meta(ge=1, le=64)]


class InputRequest(RequestBody, frozen=True):
    """Standard input for the tasks. `offset` is the position of its first byte, so it can be repeated."""

    offset: Annotated[int, msgspec.Meta(ge=0)]
    data: Annotated[bytes, msgspec.Meta(max_length=INPUT_BYTES_MAX, description="bytes as base64")] = b""
    end: bool = False  # no more input follows


class DrainRequest(RequestBody, frozen=True):
    """`targets` is a hostlist of node names or an idset of ranks."""

    targets: str
    reason: _Text = ""
    overwrite: bool = False


class UndrainRequest(RequestBody, frozen=True):
    """`targets` is a hostlist of node names or an idset of ranks."""

    targets: str


class QueueRequest(RequestBody, frozen=True):
    reason: _Text = ""


class ShutdownRequest(RequestBody, frozen=True):
    """With `keep_tasks`, running tasks survive the instance and are adopted by its next start."""

    keep_tasks: bool = False


class QueueAction(enum.Enum):
    ENABLE = "enable"
    DISABLE = "disable"
    START = "start"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class JobsQuery:
    """Which jobs to list: those in `states` or with one of `results`, restricted by all other fields."""

    states: frozenset[JobState] = ACTIVE
    results: frozenset[Result] = frozenset()
    queue: str = ""  # "": any
    name: str = ""
    owner: str = ""
    since: float | None = None  # restricts inactive jobs to those that ended after this time
    limit: int = LIMIT_DEFAULT
    ids: tuple[int, ...] | None = None  # None: any


@dataclass(frozen=True, slots=True)
class TimelineQuery:
    """From `since_s` seconds before the present to `until_s` seconds after it; None: the service chooses."""

    since_s: float | None = None
    until_s: float | None = None


def parse_states(names: Iterable[str], where: str) -> frozenset[JobState]:
    found: frozenset[JobState] = frozenset()
    for name in names:
        states = STATE_NAMES.get(name.strip().lower())
        if states is None:
            expected = "any of " + ", ".join(STATE_NAMES)
            raise BadRequest("unknown state", where=where, found=repr(name), expected=expected)
        found |= states
    return found


def parse_results(names: Iterable[str], where: str) -> frozenset[Result]:
    found: set[Result] = set()
    for name in names:
        result = RESULT_NAMES.get(name.strip().lower())
        if result is None:
            expected = "any of " + ", ".join(RESULT_NAMES)
            raise BadRequest("unknown result", where=where, found=repr(name), expected=expected)
        found.add(result)
    return frozenset(found)
