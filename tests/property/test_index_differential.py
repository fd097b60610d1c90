"""The node index gives the answers of the walker (see `index_histories`)."""

from __future__ import annotations

import pytest

from tests.property.index_histories import Twins, run


@pytest.mark.parametrize("first_seed", range(0, 160, 20))
def test_an_engine_with_an_index_answers_as_one_without(first_seed: int) -> None:
    operations, answered, passed_on = run(range(first_seed, first_seed + 20), 120)
    assert operations == 20 * 120
    assert answered > passed_on > 0  # both have taken part


def test_a_difference_would_be_noticed() -> None:
    """An index that loses a node is found out."""
    differences = 0
    for seed in range(40):
        twins = Twins(seed)
        index = twins.engines[0]._index
        count = index.candidates
        index.candidates = lambda *query, count=count: count(*query) & ~1  # type: ignore[method-assign]
        try:
            for _ in range(40):
                twins.step()
        except AssertionError:
            differences += 1
    assert differences > 10
