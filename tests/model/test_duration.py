from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.duration import BadDuration, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("90", 90.0),
        ("2.5", 2.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        ("1.5E-1s", 0.15),
        ("100ms", 0.1),
        ("1500ms", 1.5),
        ("10s", 10.0),
        ("1m", 60.0),
        ("1.5h", 5400.0),
        ("2d", 172800.0),
        ("inf", math.inf),
        ("infinity", math.inf),
        ("INF", math.inf),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "-1",
        "-inf",
        "+1",
        "nan",
        "x",
        "s",
        "1x",
        "1 s",
        " 1",
        "1s ",
        "1sm",
        "1h30m",
        "1.2.3",
        ".",
        "0x10",
        "1_000",
        "infs",
        "1M",
        "1e",
        "١",
        "1e99999",
        "1" * 65,
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadDuration) as caught:
        parse_duration(text)
    assert caught.value.summary == "invalid duration"
    assert caught.value.where == "duration"
    assert caught.value.found == repr(text)
    assert caught.value.expected


@pytest.mark.parametrize("text", ["1e400", "1e308d"])
def test_a_number_beyond_all_floats_is_refused(text: str) -> None:
    with pytest.raises(BadDuration, match="duration out of range"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.0009, "0s"),
        (0.001, "0.001s"),
        (1.5, "1.500s"),
        (9.999, "9.999s"),
        (10.0, "10s"),
        (59.99, "59.99s"),
        (60.0, "1m"),
        (90.0, "1.5m"),
        (600, "10m"),
        (3600.0, "1h"),
        (5000.0, "1.389h"),
        (86400.0, "1d"),
        (1e6, "11.57d"),
        (86400.0 * 123456, "1.235e+05d"),
        (math.inf, "inf"),
    ],
)
def test_a_duration_is_printed_in_the_unit_that_suits_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("seconds", [-1.0, -math.inf, math.nan])
def test_what_is_no_duration_cannot_be_printed(seconds: float) -> None:
    with pytest.raises(BadDuration, match="invalid duration"):
        format_duration(seconds)


@settings(max_examples=200, deadline=None)
@given(st.floats(0.0, 1e15))
def test_what_is_printed_is_read_back_within_its_digits(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=5e-4, abs=1e-3)
