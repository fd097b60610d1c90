"""Sizes of memory in the forms of Slurm, and units in jobspecs."""

from __future__ import annotations

import pytest

from penstock.errors import BadRequest
from penstock.model.memory_size import parse_memory_mib, unit_bytes


@pytest.mark.parametrize(
    ("text", "size_mib"),
    [
        ("0", 0),
        ("4000", 4000),
        ("512M", 512),
        ("4G", 4096),
        ("4GiB", 4096),
        ("2gb", 2048),
        ("1K", 1),
        ("1T", 1 << 20),
    ],
)
def test_a_size_without_a_unit_is_in_mib(text: str, size_mib: int) -> None:
    assert parse_memory_mib(text, "--mem") == size_mib


@pytest.mark.parametrize("text", ["", "G", "4X", "-1", "1.5G", "4 G", "9999T", "4iB", "\u0664"])
def test_another_size_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match=r"^--mem: "):
        parse_memory_mib(text, "--mem")


def test_a_unit_of_a_jobspec_is_known_or_refused() -> None:
    assert [unit_bytes(unit, "unit") for unit in ("", "B", "KiB", "M", "GB")] == [
        1 << 20,
        1,
        1 << 10,
        1 << 20,
        1 << 30,
    ]
    for unit in ("pages", "0", "i"):
        with pytest.raises(BadRequest, match="unknown unit of memory"):
            unit_bytes(unit, "unit")
