"""A small number of fuzzed inputs in every run of the tests; `make fuzz` handles many."""

from __future__ import annotations

import pytest

from penstock.store.memory import MemoryStore
from tests.fuzz.harness import Fuzzer


@pytest.mark.parametrize(("seed", "policy"), [(1, "easy"), (2, "fcfs"), (3, "conservative")])
def test_no_input_ends_or_stalls_an_instance(seed: int, policy: str) -> None:
    fuzzer = Fuzzer(seed, MemoryStore(), policy=policy)
    fuzzer.feed(1000)
    assert fuzzer.ended
