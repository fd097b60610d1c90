"""Readiness: what follows from each report in each state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock.instance.readiness import Readiness, ReadinessMonitor, ReadinessState

STARTING, STANDBY, TAKING_OVER, UNAVAILABLE, READY, SHUTTING_DOWN = (
    ReadinessState.STARTING,
    ReadinessState.STANDBY,
    ReadinessState.TAKING_OVER,
    ReadinessState.UNAVAILABLE,
    ReadinessState.READY,
    ReadinessState.SHUTTING_DOWN,
)

REPORTS: dict[str, Callable[[ReadinessMonitor], None]] = {
    "leader_is_another": lambda monitor: monitor.leader_is_another("why"),
    "became_leader": lambda monitor: monitor.became_leader(),
    "cluster_unverified": lambda monitor: monitor.cluster_unverified("why"),
    "takeover_waits": lambda monitor: monitor.takeover_waits("why"),
    "nodes_known": lambda monitor: monitor.nodes_known(),
    "store_waits": lambda monitor: monitor.store_waits("why"),
    "term_ended": lambda monitor: monitor.term_ended("why"),
    "shutdown_begun": lambda monitor: monitor.shutdown_begun(),
}

ALL = (STARTING, STANDBY, TAKING_OVER, UNAVAILABLE, READY, SHUTTING_DOWN)
NOT_READY = (STARTING, STANDBY, TAKING_OVER, UNAVAILABLE)

# By report: the state that follows; "same" if the report changes nothing.
TABLE: dict[str, dict[ReadinessState, Readiness | str]] = {
    "leader_is_another": dict.fromkeys(ALL, Readiness(STANDBY, "why")),
    "became_leader": dict.fromkeys(ALL, Readiness(TAKING_OVER)),
    "cluster_unverified": dict.fromkeys(ALL, Readiness(TAKING_OVER, "why")),
    "takeover_waits": {**dict.fromkeys(ALL, "same"), TAKING_OVER: Readiness(TAKING_OVER, "why")},
    "nodes_known": {**dict.fromkeys(ALL, Readiness(READY)), SHUTTING_DOWN: "same"},
    "store_waits": {
        **dict.fromkeys(NOT_READY, Readiness(UNAVAILABLE, "why")),
        READY: "same",
        SHUTTING_DOWN: "same",
    },
    "term_ended": dict.fromkeys(ALL, Readiness(UNAVAILABLE, "why")),
    "shutdown_begun": {
        **dict.fromkeys(NOT_READY, "same"),
        READY: Readiness(SHUTTING_DOWN),
        SHUTTING_DOWN: "same",
    },
}


def monitor_in(state: ReadinessState) -> ReadinessMonitor:
    monitor = ReadinessMonitor()
    match state:
        case ReadinessState.STANDBY:
            monitor.leader_is_another("before")
        case ReadinessState.TAKING_OVER:
            monitor.became_leader()
        case ReadinessState.UNAVAILABLE:
            monitor.term_ended("before")
        case ReadinessState.READY:
            monitor.nodes_known()
        case ReadinessState.SHUTTING_DOWN:
            monitor.nodes_known()
            monitor.shutdown_begun()
    assert monitor.current.state is state
    return monitor


@pytest.mark.parametrize("state", ALL)
@pytest.mark.parametrize("report", REPORTS)
def test_what_follows_from_each_report_in_each_state(state: ReadinessState, report: str) -> None:
    monitor = monitor_in(state)
    before = monitor.current
    REPORTS[report](monitor)
    expected = TABLE[report][state]
    assert monitor.current == (before if expected == "same" else expected)


def test_every_state_and_report_is_in_the_table() -> None:
    assert set(ALL) == set(ReadinessState)
    assert TABLE.keys() == REPORTS.keys()
    assert all(row.keys() == set(ALL) for row in TABLE.values())


def test_a_shutdown_outlasts_the_loss_of_the_store() -> None:
    monitor = monitor_in(SHUTTING_DOWN)
    monitor.term_ended("the database is away")
    assert not monitor.current.is_ready
    monitor.nodes_known()
    assert monitor.current.is_ready
    assert not monitor.current.may_start_jobs


@pytest.mark.parametrize(
    ("readiness", "text", "is_ready", "may_start_jobs"),
    [
        (Readiness(STARTING), "starting", False, False),
        (Readiness(STANDBY, "another is the leader"), "standing by: another is the leader", False, False),
        (Readiness(TAKING_OVER), "taking over", False, False),
        (Readiness(TAKING_OVER, "no access"), "taking over: no access", False, False),
        (Readiness(UNAVAILABLE, "the database is away"), "the database is away", False, False),
        (Readiness(READY), "ready", True, True),
        (Readiness(SHUTTING_DOWN), "shutting down", True, False),
    ],
)
def test_what_users_see(readiness: Readiness, text: str, is_ready: bool, may_start_jobs: bool) -> None:
    assert (str(readiness), readiness.is_ready, readiness.may_start_jobs) == (text, is_ready, may_start_jobs)


def test_waiting_ends_when_the_instance_is_ready() -> None:
    async def scenario() -> None:
        monitor = ReadinessMonitor()
        waiting = asyncio.create_task(monitor.until_ready())
        monitor.became_leader()
        await asyncio.sleep(0)
        assert not waiting.done()
        monitor.nodes_known()
        await waiting
        monitor.term_ended("gone")
        again = asyncio.create_task(monitor.until_ready())
        await asyncio.sleep(0)
        assert not again.done()
        again.cancel()

    asyncio.run(scenario())
