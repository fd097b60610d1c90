"""What all fuzz tests of readers share: edits, a bound on memory, and what a refusal must say."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from penstock.errors import BadRequest

__all__ = ["Text", "answers", "bounded", "edited"]

Text = TypeVar("Text", str, bytes)


@contextmanager
def bounded(memory_max: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < memory_max
    finally:
        tracemalloc.stop()


def answers(read: Callable[[Text], object], text: Text) -> None:
    """A value, or a refusal that says where, what and why in a line of bounded length."""
    try:
        read(text)
    except BadRequest as error:
        refusal = error
    else:
        return
    assert refusal.summary
    assert refusal.where
    assert refusal.found
    assert refusal.expected
    assert len(str(refusal)) < 4096


def edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    for place, length, piece in edits:
        start = place % (len(text) + 1)
        text = text[:start] + piece + text[start + length :]
    return text
