"""The pauses between terms."""

from __future__ import annotations

import asyncio
import logging

import pytest

from penstock.backends.sim.mock import MockBackend
from penstock.errors import Unavailable
from penstock.instance.backoff import Backoff
from penstock.instance.loop import Instance
from penstock.protocol.backend import Sink
from penstock.sched.settings import Settings
from penstock.store.memory import MemoryStore


def terms_within(duration_s: float, term_s: float, jitter: float) -> int:
    """How many terms of one length begin within a time, on a virtual clock."""
    now, terms, backoff = 0.0, 0, Backoff()
    while now < duration_s:
        terms += 1
        now += term_s
        backoff = backoff.after_term(term_s)
        now += backoff.pause_s(jitter)
    return terms


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_terms_that_fail_at_once_become_rare(jitter: float) -> None:
    assert terms_within(60.0, 0.0, jitter) <= 12
    assert terms_within(86_400.0, 0.0, jitter) < 86_400 / 15 + 12


def test_the_pause_doubles_up_to_a_bound_and_is_spread_by_jitter() -> None:
    backoff, pauses = Backoff(), []
    for _ in range(12):
        backoff = backoff.after_term(0.0)
        pauses.append(backoff.pause_s(1.0))
    assert pauses[:5] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6])
    assert pauses[-1] == 30.0
    assert backoff.pause_s(0.0) == 15.0
    assert Backoff(10_000).pause_s(1.0) == 30.0


def test_a_term_that_lasted_a_minute_starts_over() -> None:
    backoff = Backoff(9)
    assert backoff.after_term(59.0) == Backoff(10)
    assert backoff.after_term(60.0) == Backoff(1)
    assert terms_within(600.0, 60.0, 1.0) == 10


class AwayBackend(MockBackend):
    async def run(self, epoch: int, sink: Sink) -> None:
        del epoch, sink
        raise Unavailable("the API server is away")


def test_an_unavailable_backend_costs_few_epochs_and_each_term_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario() -> tuple[int, str]:
        instance = Instance(Settings(), MemoryStore(), AwayBackend(1, 1))
        running = asyncio.create_task(instance.run())
        await asyncio.sleep(1.0)
        reason = str(instance.readiness.current)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return instance.epoch, reason

    with caplog.at_level(logging.INFO, "penstock.instance"):
        epochs, reason = asyncio.run(scenario())
    assert 2 <= epochs <= 6
    assert "the API server is away" in reason
    messages = [record.getMessage() for record in caplog.records]
    assert sum("began" in message for message in messages) == epochs
    assert sum("ended after" in message and "is away" in message for message in messages) == epochs
