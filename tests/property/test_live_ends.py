"""The earliest planned end of the running jobs at a vertex, against looking at all of them."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest

from penstock.engine.planner import FOREVER
from penstock.engine.vertex_state import Booking, VertexState


@pytest.mark.parametrize("seed", range(20))
def test_the_earliest_end_is_that_of_a_running_job(seed: int) -> None:
    chance = Random(seed)
    state = VertexState()
    for job in range(300):
        if state.bookings and chance.random() < (0.4 if job < 150 else 0.7):
            ends = sorted(state.bookings, key=lambda key: state.bookings[key].end)
            state.unbook(ends[0] if chance.random() < 0.7 else chance.choice(ends))
        else:
            end = chance.choice([FOREVER, *[chance.randrange(1, 40)] * 9])
            state.book((job, 0), Booking(0, end, chance.random() < 0.8, 0, False, {}))
        if chance.random() < 0.05:
            state = state.copy()
        live = [booking.end for booking in state.bookings.values() if booking.live]
        assert state.live_end_min == min(live, default=FOREVER)


def test_jobs_that_are_gone_leave_nothing_behind_beside_one_that_stays() -> None:
    state = VertexState()
    for job in range(20):
        state.book((job, 0), Booking(0, 1 if job < 2 else 10 + job, True, 0, False, {}))
    state.unbook((0, 0))  # From here on the ends are kept, and the job that ends at 1 overruns.

    def run(jobs: range) -> int:
        for job in jobs:
            state.book((job, 0), Booking(0, 1_000 + job, True, 0, False, {}))
            state.unbook((job, 0))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = run(range(100, 1_100))
        assert run(range(1_100, 11_100)) - before < 20_000
    finally:
        tracemalloc.stop()
    assert state.live_end_min == 1
