from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.idset import ID_MAX, BadIdset, encode_idset, parse_idset


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("", ()),
        ("[]", ()),
        ("2", (2,)),
        ("0", (0,)),
        ("[0]", (0,)),
        ("1,7-9,16", (1, 7, 8, 9, 16)),
        ("[2-5]", (2, 3, 4, 5)),
        ("1,2,3,5,6,42", (1, 2, 3, 5, 6, 42)),
        ("[1-3,5-6,42]", (1, 2, 3, 5, 6, 42)),
        ("5-5", (5,)),
        (str(ID_MAX), (ID_MAX,)),
    ],
)
def test_an_idset_is_read(text: str, ids: tuple[int, ...]) -> None:
    assert parse_idset(text) == ids


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("01,2", "not an id"),
        ("00", "not an id"),
        ("1,02", "not an id"),
        ("3,2", "ids are not strictly ascending"),
        ("3-0", "descending range"),
        ("2,2,2", "ids are not strictly ascending"),
        ("1-3,3", "ids are not strictly ascending"),
        ("[0", "unbalanced brackets"),
        ("0]", "unbalanced brackets"),
        ("[", "unbalanced brackets"),
        ("]", "unbalanced brackets"),
        ("[[0]]", "not an id"),
        ("0-", "not an id"),
        ("-5", "not an id"),
        ("4.2", "not an id"),
        ("x", "not an id"),
        (" 1", "not an id"),
        ("1 ", "not an id"),
        ("1, 2", "not an id"),
        (" ", "not an id"),
        ("1,", "not an id"),
        (",1", "not an id"),
        ("1,,2", "not an id"),
        ("1-2-3", "not an id"),
        ("١", "not an id"),
        ("1\n", "not an id"),
        (str(ID_MAX + 1), "id out of range"),
        ("9" * 10_000, "id out of range"),
        ("0-" + "9" * 10_000, "id out of range"),
    ],
)
def test_what_is_no_idset_is_refused(text: str, summary: str) -> None:
    with pytest.raises(BadIdset) as caught:
        parse_idset(text)
    assert caught.value.summary == summary
    assert caught.value.where.startswith("idset, character ")
    assert caught.value.found
    assert caught.value.expected


def test_the_place_of_the_error_is_told() -> None:
    with pytest.raises(BadIdset) as caught:
        parse_idset("[1,2,2]")
    assert caught.value.where == "idset, character 6"


def test_too_many_ids_are_refused_before_they_are_expanded() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(BadIdset, match="at most 1048576 ids"):
            parse_idset(f"0-{ID_MAX}")
        assert tracemalloc.get_traced_memory()[1] < 64 << 10
    finally:
        tracemalloc.stop()


def test_exactly_the_bound_passes() -> None:
    assert len(parse_idset("0-3,5", ids_max=5)) == 5
    with pytest.raises(BadIdset, match="too many ids"):
        parse_idset("0-3,5-6", ids_max=5)


@pytest.mark.parametrize(
    ("ids", "text", "bracketed"),
    [
        ([], "", ""),
        ([7], "7", "7"),
        ([1, 2], "1-2", "[1-2]"),
        ([3, 1, 1, 2, 9], "1-3,9", "[1-3,9]"),
        ([0, 2, 4], "0,2,4", "[0,2,4]"),
    ],
)
def test_ids_are_written_sorted_and_in_ranges(ids: list[int], text: str, bracketed: str) -> None:
    assert encode_idset(ids) == text
    assert encode_idset(ids, brackets=True) == bracketed


@pytest.mark.parametrize("ids", [[-1, 3], [ID_MAX + 1]])
def test_an_id_out_of_range_cannot_be_written(ids: list[int]) -> None:
    with pytest.raises(BadIdset, match="id out of range"):
        encode_idset(ids)


@settings(max_examples=150, deadline=None)
@given(st.sets(st.integers(0, 40) | st.integers(0, ID_MAX)), st.booleans())
def test_what_is_written_is_read_back(ids: set[int], brackets: bool) -> None:
    assert parse_idset(encode_idset(ids, brackets=brackets)) == tuple(sorted(ids))
