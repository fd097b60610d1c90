"""Which nodes are busy when, against planners that are read instant by instant."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from penstock.engine.busy_times import BusyTimes
from penstock.engine.planner import FOREVER, Planner

NODES = 6
LAST = 30  # Spans begin and end up to here, or never end.


@pytest.mark.parametrize("seed", range(20))
def test_the_busy_nodes_of_a_window_are_those_with_a_booking_in_it(seed: int) -> None:
    chance = Random(seed)
    busy = BusyTimes()
    planners = [Planner() for _ in range(NODES)]
    booked: list[tuple[int, int, int]] = []
    for _ in range(120):
        if booked and chance.random() < 0.45:
            node, start, end = booked.pop(chance.randrange(len(booked)))
            planners[node].remove(start, end, 1)
        else:
            node, start = chance.randrange(NODES), chance.randrange(LAST)
            end = chance.choice([FOREVER, *[start + chance.randrange(1, 9)] * 5])
            planners[node].add(start, end, 1)
            booked.append((node, start, end))
        busy.put(node, planners[node] if chance.random() < 0.9 or not planners[node].is_empty() else None)
        start = chance.randrange(LAST)
        end = chance.choice([start + 1, start + chance.randrange(1, 12), FOREVER])
        expected = sum(1 << node for node in range(NODES) if planners[node].booked_most(start, end) > 0)
        assert busy.during(start, end) == expected


@pytest.mark.parametrize("seed", range(20))
def test_the_spans_above_a_level_are_the_instants_with_more_booked(seed: int) -> None:
    chance = Random(seed)
    planner = Planner()
    for _ in range(chance.randrange(12)):
        start = chance.randrange(LAST)
        planner.add(start, chance.choice([FOREVER, start + chance.randrange(1, 9)]), chance.randrange(1, 4))
    most = chance.randrange(5)
    spans = planner.spans_above(most)
    inside = {at for at in range(LAST + 20) if any(start <= at < end for start, end in spans)}
    assert inside == {at for at in range(LAST + 20) if planner.booked_at(at) > most}
    assert all(before[1] < after[0] for before, after in pairwise(spans))
