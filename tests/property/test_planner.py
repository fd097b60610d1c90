"""The planner against the most naive one there is: a list of spans, looked through at every instant."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.planner import FOREVER, Planner
from penstock.errors import Corrupt

LAST = 24  # Spans begin and end up to here, or never end.


@dataclass(frozen=True, slots=True)
class Span:
    start: int
    end: int
    units: int


@dataclass(slots=True)
class Naive:
    """All spans that are booked, each told by itself."""

    spans: list[Span] = field(default_factory=list)

    def level(self, at: int) -> int:
        return sum(span.units for span in self.spans if span.start <= at < span.end)

    def most(self, start: int, end: int) -> int:
        return max(self.level(at) for at in range(start, min(end, LAST + 2)))

    def earliest(self, capacity: int, units: int, duration: int, not_before: int) -> int | None:
        for start in range(not_before, max(not_before, LAST) + 2):
            if all(
                self.level(at) + units <= capacity for at in range(start, min(start + duration, 2 * LAST + 4))
            ):
                return start
        return None


TIMES = st.integers(0, LAST)
SPANS = st.builds(
    lambda start, length, units: Span(start, FOREVER if length is None else start + length, units),
    TIMES,
    st.integers(0, LAST) | st.none(),
    st.integers(0, 5),
).map(lambda span: span if span.end == FOREVER else Span(span.start, min(span.end, LAST), span.units))
SPAN_LISTS = st.lists(SPANS, max_size=12)


def planner_of(spans: list[Span]) -> Planner:
    planner = Planner()
    for span in spans:
        planner.add(span.start, span.end, span.units)
    return planner


@given(booked=SPAN_LISTS, removals=st.lists(st.integers(0, 11), max_size=12))
def test_every_instant_has_the_units_of_the_spans_that_are_left(
    booked: list[Span], removals: list[int]
) -> None:
    planner, naive = planner_of(booked), Naive(list(booked))
    for place in removals:
        if place < len(naive.spans):
            gone = naive.spans.pop(place)
            planner.remove(gone.start, gone.end, gone.units)
            planner.check()
    for at in range(LAST + 2):
        assert planner.booked_at(at) == naive.level(at)
    assert planner.booked_at(FOREVER - 1) == naive.level(LAST + 1)


@given(booked=SPAN_LISTS, start=TIMES, length=st.integers(1, LAST) | st.just(FOREVER))
def test_the_most_of_a_window_is_the_highest_of_its_instants(
    booked: list[Span], start: int, length: int
) -> None:
    planner = planner_of(booked)
    assert planner.booked_most(start, start + length) == Naive(booked).most(start, start + length)


@given(
    booked=SPAN_LISTS,
    capacity=st.integers(-3, 12),
    units=st.integers(0, 6),
    duration=st.integers(1, LAST) | st.just(FOREVER),
    not_before=TIMES,
)
def test_the_earliest_instant_is_the_first_one_that_fits(
    booked: list[Span], capacity: int, units: int, duration: int, not_before: int
) -> None:
    expected = Naive(booked).earliest(capacity, units, duration, not_before)
    assert planner_of(booked).earliest(capacity, units, duration, not_before) == expected


@given(booked=SPAN_LISTS, more=SPANS)
def test_adding_and_removing_a_span_is_the_identity(booked: list[Span], more: Span) -> None:
    planner = planner_of(booked)
    planner.add(more.start, more.end, more.units)
    planner.check()
    planner.remove(more.start, more.end, more.units)
    assert planner == planner_of(booked)


@given(booked=SPAN_LISTS, order=st.randoms(use_true_random=False))
def test_equal_bookings_give_equal_planners_in_any_order(booked: list[Span], order: Random) -> None:
    shuffled = list(booked)
    order.shuffle(shuffled)
    assert planner_of(shuffled) == planner_of(booked)


@given(booked=SPAN_LISTS)
def test_the_steps_are_canonical(booked: list[Span]) -> None:
    planner = planner_of(booked)
    planner.check()
    steps = list(planner.changes())
    assert [time for time, _ in steps] == sorted({time for time, _ in steps})
    levels = [0, *(level for _, level in steps)]
    assert all(before != after for before, after in pairwise(levels))
    naive = Naive(booked)
    assert planner.is_empty() == all(naive.level(at) == 0 for at in range(LAST + 2))


@given(booked=SPAN_LISTS)
def test_removing_all_spans_leaves_an_empty_planner(booked: list[Span]) -> None:
    planner = planner_of(booked)
    for span in booked:
        planner.remove(span.start, span.end, span.units)
    assert planner.is_empty()
    assert planner == Planner()


def test_a_span_is_free_again_at_its_end() -> None:
    planner = planner_of([Span(0, 10, 1)])
    assert planner.booked_at(9) == 1
    assert planner.booked_at(10) == 0
    assert planner.earliest(1, 1, 5, 0) == 10


def test_what_never_ends_leaves_no_instant() -> None:
    assert planner_of([Span(5, FOREVER, 1)]).earliest(1, 1, 5, 1) is None
    assert planner_of([Span(5, FOREVER, 1)]).earliest(1, 1, 5, 0) == 0


def test_a_negative_capacity_has_room_for_nothing() -> None:
    assert Planner().earliest(-1, 0, 1, 0) is None


def test_planners_differ_where_one_instant_differs() -> None:
    assert planner_of([Span(0, 10, 1)]) != planner_of([Span(0, 11, 1)])
    assert planner_of([Span(0, 10, 1)]) != planner_of([Span(0, 10, 2)])
    assert Planner() != 0


def test_a_planner_has_no_hash() -> None:
    with pytest.raises(TypeError):
        hash(Planner())


def test_a_planner_that_contradicts_itself_is_found_out() -> None:
    planner = planner_of([Span(0, 10, 1)])
    planner._levels[1] = 1
    with pytest.raises(Corrupt):
        planner.check()
