"""The earliest planned end of the running jobs at a vertex, against looking at all of them."""

from __future__ import annotations

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
