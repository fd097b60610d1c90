"""Control characters in text from outside."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import BadRequest
from penstock.model.text import check_passable, check_printable, escape_controls, find_control


@pytest.mark.parametrize(
    ("text", "found"),
    [("a\x00b", "\\x00"), ("a\nb", "\\x0a"), ("\x7f", "\\x7f"), ("\x9b1m", "\\x9b"), ("\ud800", "\\ud800")],
)
def test_a_control_character_is_refused_with_its_place(text: str, found: str) -> None:
    with pytest.raises(BadRequest) as refused:
        check_printable(text, "note")
    assert refused.value.where == "note"
    assert found in refused.value.found


@pytest.mark.parametrize("text", ["", "a b", "größe", "作業", "emoji 😀", "a\u00a0b"])
def test_printable_text_of_any_language_is_accepted(text: str) -> None:
    check_printable(text, "note")
    assert find_control(text) == ""
    assert escape_controls(text) == text


def test_a_program_can_receive_everything_but_nul_and_lone_surrogates() -> None:
    check_passable("line\n\tanother\x1b[0m", "command")
    for text in ("a\x00", "\udfff"):
        with pytest.raises(BadRequest, match="no program can receive"):
            check_passable(text, "command")


@given(st.text(st.characters(codec=None)))
def test_escaped_text_can_be_stored_and_printed(text: str) -> None:
    escaped = escape_controls(text)
    assert find_control(escaped) == ""
    escaped.encode()
