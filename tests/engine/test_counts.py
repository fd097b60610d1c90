"""How many are taken where the request leaves it open: always the most that its operator reaches."""

from __future__ import annotations

import pytest

from builders import held, placed, pools_of, request_with, resource_of
from penstock.engine import Engine, Never, NotNow, cluster_of
from penstock.model.jobspec import UINT_MAX, Count


@pytest.mark.parametrize(
    ("count", "taken"),
    [
        (Count(3, 3), 3),
        (Count(1, 4), 4),
        (Count(1, UINT_MAX), 10),  # {min: 1} alone: all that can be found
        (Count(1, 9, "+", 3), 7),
        (Count(2, 9, "+", 3), 8),
        (Count(1, 10, "*", 2), 8),
        (Count(3, 10, "*", 2), 6),
        (Count(2, 100, "^", 2), 4),
        (Count(3, 100, "^", 2), 9),
        (Count(4, 100, "^", 2), 4),
    ],
)
def test_the_largest_count_that_is_allowed_and_there_is_taken(count: Count, taken: int) -> None:
    engine = Engine(cluster_of(nodes=2, cores=5), "low")
    answer = placed(engine.match(1, request_with(resource_of("slot", count, resource_of("core"))), 0))
    assert len(answer.slots) == taken
    assert len(held(answer)) == taken


def test_what_is_busy_lowers_a_count_but_not_below_its_least() -> None:
    engine = Engine(cluster_of(nodes=1, cores=8), "low")
    engine.match(1, request_with(resource_of("slot", 5, resource_of("core"))), 0)
    assert (
        len(
            placed(
                engine.match(
                    2, request_with(resource_of("slot", Count(1, 8, "*", 2), resource_of("core"))), 0
                )
            ).slots
        )
        == 2
    )
    assert isinstance(
        engine.match(3, request_with(resource_of("slot", Count(2, 8, "*", 2), resource_of("core"))), 0),
        NotNow,
    )


def test_a_least_that_is_not_there_is_never_met() -> None:
    engine = Engine(cluster_of(nodes=1, cores=8), "low")
    assert isinstance(
        engine.match(1, request_with(resource_of("slot", Count(9, 99), resource_of("core"))), 0), Never
    )


def test_a_range_inside_a_slot_gives_the_first_slot_all() -> None:
    engine = Engine(cluster_of(nodes=2, cores=3), "low")
    answer = placed(
        engine.match(1, request_with(resource_of("slot", 2, resource_of("core", Count(1, UINT_MAX)))), 0)
    )
    assert [len(slot.grants) for slot in answer.slots] == [3, 3]


def test_a_range_of_units_counts_units_and_not_pools() -> None:
    engine = Engine(pools_of(4, 4, 4), "low")
    answer = engine.match(1, request_with(resource_of("slot", 1, resource_of("memory", Count(1, 7)))), 0)
    assert held(answer) == ["node0/memory0:4", "node0/memory1:4"]


def test_a_range_of_vertices_without_a_slot() -> None:
    engine = Engine(cluster_of(nodes=3, cores=1), "low")
    answer = engine.match(1, request_with(resource_of("node", Count(2, UINT_MAX), exclusive=True)), 0)
    assert held(answer) == ["node0/core0", "node0", "node1/core0", "node1", "node2/core0", "node2"]
