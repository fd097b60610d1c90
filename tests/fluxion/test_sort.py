from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.fluxion import sort
from penstock.fluxion.sort import CANDIDATES_MAX, ranking

SCORES = st.lists(st.integers(0, 8), max_size=300) | st.lists(st.integers(-(1 << 70), 1 << 70), max_size=100)


@pytest.mark.parametrize("count", [0, 1, 2, 16])
def test_up_to_16_equals_keep_their_order(count: int) -> None:
    assert ranking([7] * count) == list(range(count))


def test_17_equals_come_out_as_the_c_plus_plus_library_leaves_them() -> None:
    assert ranking([7] * 17) == [8, 16, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1]


def test_beyond_the_bound_equals_keep_their_order() -> None:
    assert ranking([7] * CANDIDATES_MAX) != list(range(CANDIDATES_MAX))
    assert ranking([7] * (CANDIDATES_MAX + 1)) == list(range(CANDIDATES_MAX + 1))


@given(SCORES)
def test_a_ranking_names_every_place_once_in_ascending_order(keys: list[int]) -> None:
    paths = ranking(keys)
    assert sorted(paths) == list(range(len(keys)))
    assert [keys[place] for place in paths] == sorted(keys)


@given(st.integers(2, 400))
def test_places_depend_on_the_order_of_keys_and_not_on_their_size(spread: int) -> None:
    keys = [(place * 37) % 23 for place in range(200)]
    assert ranking([key * spread - 5 for key in keys]) == ranking(keys)


class _Late:
    """A key whose value is only decided when it is compared, as badly for the sort as can be."""

    def __init__(self, game: _Game) -> None:
        self.game = game
        self.value: int | None = None

    def __lt__(self, other: _Late) -> bool:
        self.game.decide(self, other)
        mine, others = (key.game.open if key.value is None else key.value for key in (self, other))
        return mine < others


class _Game:
    """An adversary of quicksorts (M. D. McIlroy, 1999): the pivot always turns out to be small."""

    def __init__(self, size: int) -> None:
        self.open = size  # larger than everything that is decided
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
    game = _Game(size)
    keys = [_Late(game) for _ in range(size)]
    ranking(keys)  # type: ignore[arg-type]
    return [size if key.value is None else key.value for key in keys]


@pytest.mark.parametrize("size", [64, 500, 4000])
@pytest.mark.parametrize("of_each", [1, 2])
def test_a_split_that_goes_badly_ends_in_a_heap_sort(
    size: int, of_each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key // of_each for key in killer(size)]
    heaps: list[int] = []
    heap_sorted = sort._heap_sorted

    def spy(paths: list[int], keys: list[int]) -> list[int]:
        heaps.append(len(paths))
        return heap_sorted(paths, keys)

    monkeypatch.setattr(sort, "_heap_sorted", spy)
    paths = ranking(keys)
    assert heaps
    assert sorted(paths) == list(range(size))
    assert [keys[place] for place in paths] == sorted(keys)


def test_the_heap_leaves_equals_as_the_c_plus_plus_library_does() -> None:
    assert sort._heap_sorted(list(range(10)), [0] * 10) == [8, 9, 4, 7, 5, 3, 1, 0, 2, 6]
