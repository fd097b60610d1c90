"""The life of a job as a table: every pair of state and event is decided, and a log leads to its state."""

from __future__ import annotations

import pytest

from penstock.errors import Corrupt
from penstock.model.job import (
    ANYTIME,
    EVENTS,
    TABLE,
    JobEvent,
    JobState,
    Result,
    next_state,
    result_of,
    state_after,
)


def event(name: str, **context: object) -> JobEvent:
    if name == "warning":
        return JobEvent(1.0, "exception", {"severity": 2})
    if name == "exception" and not context:
        context = {"severity": 0, "type": "cancel"}
    return JobEvent(1.0, name, context)


@pytest.mark.parametrize("state", JobState)
@pytest.mark.parametrize("name", EVENTS)
def test_every_pair_of_state_and_event_is_decided(state: JobState, name: str) -> None:
    if (state, name) in TABLE:
        assert next_state(state, event(name)) is TABLE[(state, name)]
    elif name in ANYTIME and state.is_active:
        assert next_state(state, event(name)) is state
    else:
        with pytest.raises(Corrupt, match="cannot come in state"):
            next_state(state, event(name))


@pytest.mark.parametrize("name", EVENTS)
def test_nothing_follows_the_end(name: str) -> None:
    with pytest.raises(Corrupt):
        next_state(JobState.INACTIVE, event(name))


def test_every_state_can_be_reached_and_left_but_the_last() -> None:
    assert {state for state, _ in TABLE} == set(JobState) - {JobState.INACTIVE}
    assert set(TABLE.values()) == set(JobState)


def usual(*more: JobEvent) -> list[JobEvent]:
    return [event(name) for name in ("submit", "validate", "depend", "priority", "alloc", "start")] + list(
        more
    )


@pytest.mark.parametrize(
    ("ending", "result", "status"),
    [
        ([event("finish", status=0)], Result.COMPLETED, 0),
        ([event("finish", status=512)], Result.FAILED, 512),
        (
            [event("exception", severity=0, type="cancel"), event("finish", status=36608)],
            Result.CANCELED,
            36608,
        ),
        (
            [event("exception", severity=0, type="timeout"), event("finish", status=36352)],
            Result.TIMEOUT,
            36352,
        ),
        ([event("exception", severity=0, type="exec")], Result.FAILED, 256),
        ([event("warning"), event("finish", status=0)], Result.COMPLETED, 0),
    ],
)
def test_the_result_is_what_flux_would_tell(ending: list[JobEvent], result: Result, status: int) -> None:
    assert result_of(usual(*ending)) == (result, status)


def test_what_came_before_a_second_attempt_does_not_count() -> None:
    again = [event("exception", severity=0, type="exec"), event("free"), event("requeue"), event("priority")]
    log = usual(*again, event("alloc"), event("start"), event("finish", status=0))
    assert result_of(log) == (Result.COMPLETED, 0)
    assert state_after(log) is JobState.CLEANUP
