"""Tests use public interfaces: only one module of them looks inside a scheduler."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
INSIDE = re.compile(r"(scheduler|\bit|\bworld|\bcopied)\.state\b(?!\.value)|\bviolations\([a-z_.]*state\)")
ALLOWED = {"sched/internals.py", "sched/test_internals.py"}


def test_no_other_module_reads_the_state_of_a_scheduler() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{number}: {line.strip()}"
        for path in sorted(TESTS.rglob("*.py"))
        if str(path.relative_to(TESTS)) not in ALLOWED
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if INSIDE.search(line)
    ]
    assert found == []
