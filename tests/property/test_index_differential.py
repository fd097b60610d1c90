"""The node index gives the answers of the walker (see `index_histories`)."""

from __future__ import annotations

import pytest

from penstock.engine import Engine, Group, MatchOp, Request, cluster_of
from penstock.model.jobspec import Count, Resource
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


def test_the_times_at_which_nodes_are_counted_again_stay_few() -> None:
    """Each short job beside a long one has noted the end of the long one once more."""
    engine = Engine(cluster_of(nodes=1, cores=4), policy="lonode")
    engine.match(1, one_core(10**6), 0)
    for number in range(2, 3000):
        now = 10 * number
        engine.match(number, one_core(5), now)
        engine.match(0, one_core(5), now + 1, MatchOp.WITHOUT_ALLOCATING)
        engine.release(number)
    assert len(engine._index._expiry) < 2000


def one_core(duration_s: int) -> Request:
    core = Resource("core", Count(1, 1))
    return Request((Group((Resource("slot", Count(1, 1), with_=(core,), label="x"),)),), duration_s)
