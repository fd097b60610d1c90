"""The timeline: what it shows of one node at one time fits on that node."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.api.responses import TimelineNode
from penstock.api.timeline import live_timeline
from tests.sched.driving import Driver, nodes_of, settings_of, submission

CORES = 4


def overcommitted(node: TimelineNode) -> list[tuple[float, float]]:
    """Times at which the spans of a node have more cores than it has, with their cores."""
    found = []
    for span in node.spans:
        at = span.from_
        used = sum(one.cores for one in node.spans if one.from_ <= at and (one.to is None or at < one.to))
        if used > CORES:
            found.append((at, used))
    return found


@pytest.mark.parametrize("policy", ["easy", "hybrid:2", "conservative"])
@given(
    jobs=st.lists(st.tuples(st.integers(1, CORES), st.integers(1, 3), st.integers(5, 90)), max_size=12),
    begin=st.floats(0.0, 3.0),
)
def test_planned_spans_do_not_overlap(policy: str, jobs: list[tuple[int, int, int]], begin: float) -> None:
    driver = Driver(nodes_of(2, CORES), settings_of(policy))
    driver.run_until(begin)
    for cores, tasks, limit_s in jobs:
        if cores * tasks <= 2 * CORES and (cores < 3 or tasks < 3):
            driver.submit(submission(slots=tasks, cores=cores, duration_s=limit_s))
    driver.plan()
    for node in live_timeline(driver.scheduler, driver.now, 0.0).nodes:
        assert overcommitted(node) == []


def test_back_to_back_reservations_meet_exactly() -> None:
    driver = Driver(nodes_of(1, CORES), settings_of("conservative"))
    driver.run_until(0.5)
    for _ in range(4):
        driver.submit(submission(cores=CORES, duration_s=60))
    driver.plan()
    (node,) = live_timeline(driver.scheduler, driver.now, 0.0).nodes
    planned = sorted((span.from_, span.to) for span in node.spans if span.kind in ("reserved", "forecast"))
    assert planned == [(61.0, 121.0), (121.0, 181.0), (181.0, 241.0)]
