"""The order of equal keys must be that of libstdc++'s `std::sort`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fluxion import sort
from penstock.fluxion.sort import CANDIDATES_MAX, lowest, ranking

SCORES = st.lists(st.integers(0, 8), max_size=300) | st.lists(st.integers(-(1 << 70), 1 << 70), max_size=100)


@pytest.mark.parametrize("count", [0, 1, 2, 16])
def test_up_to_16_equals_keep_their_order(count: int) -> None:
    assert ranking([7] * count) == list(range(count))


def test_17_equals_are_ordered_as_by_libstdcxx() -> None:
    assert ranking([7] * 17) == [8, 16, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1]


def test_above_the_bound_equals_keep_their_order() -> None:
    assert ranking([7] * CANDIDATES_MAX) != list(range(CANDIDATES_MAX))
    assert ranking([7] * (CANDIDATES_MAX + 1)) == list(range(CANDIDATES_MAX + 1))


@given(SCORES)
def test_a_ranking_lists_every_position_once_in_ascending_order(keys: list[int]) -> None:
    positions = ranking(keys)
    assert sorted(positions) == list(range(len(keys)))
    assert [keys[position] for position in positions] == sorted(keys)


@given(SCORES, st.integers(1, 310))
def test_the_lowest_are_the_first_of_a_ranking(keys: list[int], count: int) -> None:
    assert lowest(keys, count) == ranking(keys)[:count]


@given(st.integers(2, 400))
def test_a_ranking_depends_on_the_order_of_keys_and_not_on_their_values(spread: int) -> None:
    keys = [(position * 37) % 23 for position in range(200)]
    assert ranking([key * spread - 5 for key in keys]) == ranking(keys)


class _Late:
    """A key whose value is decided at the first comparison, to make the sort as slow as possible."""

    def __init__(self, adversary: _Adversary) -> None:
        self.adversary = adversary
        self.value: int | None = None

    def __lt__(self, other: _Late) -> bool:
        self.adversary.decide(self, other)
        mine, others = (key.adversary.open if key.value is None else key.value for key in (self, other))
        return mine < others


class _Adversary:
    """McIlroy's quicksort adversary (1999): decides keys so that every pivot is one of the smallest."""

    def __init__(self, size: int) -> None:
        self.open = size  # larger than every decided value
        self.decided = 0
        self.pivot: _Late | None = None

    def decide(self, one: _Late, other: _Late) -> None:
        if one.value is None and other.value is None:
            chosen = one if one is self.pivot else other
            chosen.value = self.decided
            self.decided += 1
        undecided = [key for key in (one, other) if key.value is None]
        self.pivot = undecided[0] if undecided else self.pivot


def killer(size: int) -> list[int]:
    """Keys for which the median of three is always a bad pivot."""
    adversary = _Adversary(size)
    keys = [_Late(adversary) for _ in range(size)]
    ranking(keys)  # type: ignore[arg-type]
    return [size if key.value is None else key.value for key in keys]


@pytest.mark.parametrize("size", [64, 500, 4000])
@pytest.mark.parametrize("of_each", [1, 2])
def test_too_deep_a_recursion_falls_back_to_heapsort(
    size: int, of_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key // of_each for key in killer(size)]
    heaps: list[int] = []
    heap_sorted = sort._heap_sorted

    def spy(positions: list[int], keys: list[int]) -> list[int]:
        heaps.append(len(positions))
        return heap_sorted(positions, keys)

    monkeypatch.setattr(sort, "_heap_sorted", spy)
    positions = ranking(keys)
    assert heaps
    assert sorted(positions) == list(range(size))
    assert [keys[position] for position in positions] == sorted(keys)


def test_heapsort_orders_equals_as_libstdcxx_does() -> None:
    assert sort._heap_sorted(list(range(10)), [0] * 10) == [8, 9, 4, 7, 5, 3, 1, 0, 2, 6]
