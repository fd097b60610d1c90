from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest, Corrupt
from penstock.model.jobid import ENCODINGS, ID_MAX, BadJobId, JobIds, encode_jobid, parse_jobid

KNOWN = [
    (0, "0x0", "ƒ1"),
    (1, "0x1", "ƒ2"),
    (57, "0x39", "ƒz"),
    (58, "0x3a", "ƒ21"),
    (1234, "0x4d2", "ƒNH"),
    (4294967295, "0xffffffff", "ƒ7YXq9G"),
    (16777216000, "0x3e8000000", "ƒSZYcoq"),
    (1006632960000, "0xea60000000", "ƒTSfi3Sf"),
    (1449551462403077, "0x5265c00000c05", "ƒCKWG1yesW"),
    (6731191091817518, "0x17e9fb8df16c2e", "ƒuZZybuNNy"),
    (18446744073709551615, "0xffffffffffffffff", "ƒjpXCZedGfVQ"),
]


@pytest.mark.parametrize(("number", "hexadecimal", "f58"), KNOWN)
def test_ids_are_written_as_flux_writes_them(number: int, hexadecimal: str, f58: str) -> None:
    assert encode_jobid(number) == f58
    assert encode_jobid(number, "hex") == hexadecimal
    assert parse_jobid(f58) == parse_jobid(hexadecimal) == number


def test_dotted_forms() -> None:
    assert encode_jobid(6731191091817518, "dothex") == "0017.e9fb.8df1.6c2e"
    assert encode_jobid(6731191091817518, "kvs") == "job.0017.e9fb.8df1.6c2e"
    assert parse_jobid("1.2.3.4") == 0x0001_0002_0003_0004
    assert parse_jobid(" f111 ") == 0


@given(st.integers(0, ID_MAX), st.sampled_from(ENCODINGS))
def test_every_form_is_read_back(number: int, encoding: str) -> None:
    assert parse_jobid(encode_jobid(number, encoding)) == number


@given(st.text(max_size=80))
def test_no_text_makes_anything_else_than_an_id_or_a_refusal(text: str) -> None:
    refusal: BadJobId | None = None
    number = 0
    try:
        number = parse_jobid(text)
    except BadJobId as error:
        refusal = error
    assert 0 <= number <= ID_MAX
    assert refusal is None or (refusal.where and refusal.found and refusal.expected)


@pytest.mark.parametrize(
    "text",
    ["", "f", "ƒ", "f0", "fO", "fl", "-1", "1 2", "0x", "18446744073709551616", "fjpXCZedGfVR",
     "f" + "z" * 12, "f1111111111111", "1.2.3", "1.2.3.4.5", "12345.0.0.0", "g1", "٣", "0x1ffffffffffffffff"],
)  # fmt: skip
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(BadJobId):
        parse_jobid(text)


def test_what_cannot_be_written_is_refused() -> None:
    for number, encoding in ((-1, "dec"), (ID_MAX + 1, "dec"), (1, "emoji")):
        with pytest.raises(BadRequest):
            encode_jobid(number, encoding)


def test_an_id_holds_the_milliseconds_since_the_beginning() -> None:
    ids = JobIds(1000.0)
    assert ids.next(1000.0) == 1 << 24
    assert ids.next(1060.0) == 60_000 << 24
    assert ids.next(1060.0) == (60_000 << 24) + 1


def test_a_millisecond_holds_1024_ids_and_the_next_takes_the_rest() -> None:
    ids = JobIds(0.0)
    given_ = [ids.next(1.0) for _ in range(1025)]
    assert given_[1023] == (1000 << 24) + 1023
    assert given_[1024] == 1001 << 24


def test_after_a_restart_ids_go_on_even_if_the_clock_went_back() -> None:
    assert JobIds(0.0, highest=(5000 << 24) + 3).next(1.0) == (5000 << 24) + 4
    assert JobIds(0.0, highest=(5000 << 24) + (3 << 10) + 7).next(1.0) == 5001 << 24


def test_the_end_of_all_ids_is_an_error() -> None:
    with pytest.raises(Corrupt):
        JobIds(0.0, highest=ID_MAX).next(1.0)


@given(st.integers(0, 2**50), st.lists(st.floats(-10, 1e6), max_size=50))
def test_ids_strictly_increase_whatever_the_clock_does(highest: int, times: list[float]) -> None:
    ids = JobIds(0.0, highest)
    last = highest
    for now in times:
        found = ids.next(now)
        assert last < found < ID_MAX
        assert found & 0xFFFFFF <= 1023 or found == last + 1
        last = found
    assert ids.highest == last
