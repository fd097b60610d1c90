from __future__ import annotations

from fractions import Fraction
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.model.quantity import QUANTITY_MAX, BadQuantity, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "scale", "value"),
    [
        ("0", 1, 0),
        ("1", 1, 1),
        ("+1", 1, 1),
        ("-1", 1, -1),
        ("1", 1000, 1000),
        ("500m", 1000, 500),
        ("0.5", 1000, 500),
        (".5", 1000, 500),
        ("5.", 1, 5),
        ("1.5", 1, 2),
        ("-1.5", 1, -2),
        ("100m", 1, 1),
        ("1n", 1000, 1),
        ("1u", 1000, 1),
        ("1001u", 1000, 2),
        ("1k", 1, 1000),
        ("1M", 1, 10**6),
        ("1G", 1, 10**9),
        ("1T", 1, 10**12),
        ("1P", 1, 10**15),
        ("1E", 1, 10**18),
        ("1Ki", 1, 1024),
        ("1.5Gi", 1, 3 << 29),
        ("1Mi", 1, 1 << 20),
        ("1Ti", 1, 1 << 40),
        ("1Pi", 1, 1 << 50),
        ("1Ei", 1, 1 << 60),
        ("1e3", 1, 1000),
        ("1E3", 1, 1000),
        ("1.25e+2", 1, 125),
        ("1e-3", 1000, 1),
        ("1e-999", 1, 1),
        ("0e999", 1, 0),
        ("9223372036854775807", 1, QUANTITY_MAX),
        ("-9223372036854775807", 1, -QUANTITY_MAX),
    ],
)
def test_a_quantity_is_an_integer_after_scaling(text: str, scale: int, value: int) -> None:
    assert parse_quantity(text, scale=scale) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "+",
        "-",
        "m",
        "Ki",
        "1 ",
        " 1",
        "1 Gi",
        "1K",
        "1ki",
        "1mi",
        "1gb",
        "1e",
        "1e+",
        "1e3Ki",
        "1Ee3",
        "1e1000",
        "0x10",
        "1_000",
        "1,5",
        "1.2.3",
        "--1",
        "nan",
        "inf",
        "١",
        "1\n",
        "1" * 65,
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(BadQuantity) as caught:
        parse_quantity(text)
    assert caught.value.summary == "not a quantity"
    assert (caught.value.where, caught.value.found) == ("quantity", repr(text))
    assert caught.value.expected


@pytest.mark.parametrize(
    ("text", "scale"),
    [("9223372036854775808", 1), ("-9223372036854775808", 1), ("8Ei", 1), ("10E", 1000), ("1e999", 1)],
)
def test_what_needs_more_than_63_bits_is_refused(text: str, scale: int) -> None:
    with pytest.raises(BadQuantity, match="quantity out of range"):
        parse_quantity(text, scale=scale)


@pytest.mark.parametrize(
    ("value", "scale", "binary", "text"),
    [
        (0, 1, False, "0"),
        (0, 1000, True, "0"),
        (1, 1, False, "1"),
        (1500, 1000, False, "1500m"),
        (2000, 1000, False, "2"),
        (-1500, 1000, False, "-1500m"),
        (2_000_000, 1000, False, "2k"),
        (1000, 1, False, "1k"),
        (1001, 1, False, "1001"),
        (10**18, 1, False, "1E"),
        (1, 10**6, False, "1u"),
        (1, 10**9, False, "1n"),
        (2048, 1, True, "2Ki"),
        (2049, 1, True, "2049"),
        (-2048, 1, True, "-2Ki"),
        (3 << 29, 1, True, "1536Mi"),
        (1 << 60, 1, True, "1Ei"),
        (1000, 1, True, "1k"),
        (1023, 1, True, "1023"),
        (2048_500, 1000, True, "2048500m"),
    ],
)
def test_a_quantity_is_written_canonically(value: int, scale: int, binary: bool, text: str) -> None:
    assert format_quantity(value, scale=scale, binary=binary) == text


@pytest.mark.parametrize("scale", [0, -1, 3, 1024, 10**10])
def test_a_scale_that_cannot_be_written_exactly_is_a_mistake_of_the_caller(scale: int) -> None:
    with pytest.raises(ValueError, match="is not a divisor"):
        format_quantity(1, scale=scale)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(-QUANTITY_MAX, QUANTITY_MAX) | st.integers(-(10**4), 10**4).map(lambda n: n * 1024),
    st.sampled_from([1, 10, 1000, 10**6, 10**9]),
    st.booleans(),
)
def test_what_is_written_is_read_back(value: int, scale: int, binary: bool) -> None:
    assert parse_quantity(format_quantity(value, scale=scale, binary=binary), scale=scale) == value


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 10**9),
    st.from_regex(r"[0-9]{0,9}", fullmatch=True),
    st.sampled_from(["n", "u", "m", "", "k", "M", "Ki", "Mi", "e2", "E-2"]),
    st.sampled_from([1, 1000]),
)
def test_rounding_agrees_with_exact_fractions(whole: int, fraction: str, suffix: str, scale: int) -> None:
    factors = {
        "n": Fraction(1, 10**9),
        "u": Fraction(1, 10**6),
        "m": Fraction(1, 1000),
        "": Fraction(1),
        "k": Fraction(1000),
        "M": Fraction(10**6),
        "Ki": Fraction(1024),
        "Mi": Fraction(1 << 20),
        "e2": Fraction(100),
        "E-2": Fraction(1, 100),
    }
    exact = Fraction(f"{whole}.{fraction or '0'}") * factors[suffix] * scale
    assert parse_quantity(f"{whole}.{fraction}{suffix}", scale=scale) == ceil(exact)
    assert parse_quantity(f"-{whole}.{fraction}{suffix}", scale=scale) == -ceil(exact)
