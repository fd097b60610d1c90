"""When: half-open spans, reservations, jobs that overrun, and the six operations."""

from __future__ import annotations

import pytest

from builders import at, held, placed, request_with, resource_of, sockets_of
from penstock.engine import (
    Allocation,
    AllocationKind,
    Engine,
    MatchOp,
    MatchResult,
    Never,
    NotNow,
    Satisfiable,
    cluster_of,
    slot_request,
)
from penstock.engine.engine import BadTime
from penstock.errors import Conflict

RESERVE = MatchOp.ALLOCATE_ORELSE_RESERVE
LOOK_LATER = MatchOp.WITHOUT_ALLOCATING_FUTURE


def full(until_s: int | None = 100, nodes: int = 1) -> Engine:
    """Nodes of two cores, each with one job on both."""
    engine = Engine(cluster_of(nodes=nodes, cores=2), "low")
    for job in range(nodes):
        placed(engine.match(job, slot_request({"core": 2}, duration_s=until_s), 0))
    return engine


def span(answer: MatchResult) -> tuple[AllocationKind, int, int | None]:
    allocation = placed(answer)
    return allocation.kind, allocation.start_s, allocation.end_s


def test_an_allocation_starts_now_and_ends_after_its_duration() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2))
    assert span(engine.match(1, slot_request({"core": 1}, duration_s=60), 7)) == (
        AllocationKind.ALLOCATED,
        7,
        67,
    )
    assert span(engine.match(2, slot_request({"core": 1}), 7)) == (AllocationKind.ALLOCATED, 7, None)


def test_a_reservation_starts_exactly_at_an_end() -> None:
    engine = full(100)
    assert span(engine.match(9, slot_request({"core": 1}, duration_s=10), 0, RESERVE)) == (
        AllocationKind.RESERVED,
        100,
        110,
    )


def test_reservations_queue_up_behind_each_other() -> None:
    engine = full(100)
    starts = [
        placed(engine.match(n, slot_request({"core": 2}, duration_s=10), 0, RESERVE)).start_s
        for n in (7, 8, 9)
    ]
    assert starts == [100, 110, 120]


def test_a_short_job_slips_in_before_a_reservation() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    engine.match(1, slot_request({"core": 1}, duration_s=100), 0)
    assert placed(engine.match(2, slot_request({"core": 2}, duration_s=50), 0, RESERVE)).start_s == 100
    assert span(engine.match(3, slot_request({"core": 1}, duration_s=100), 0)) == (
        AllocationKind.ALLOCATED,
        0,
        100,
    )
    engine.release(3)
    longer = engine.match(4, slot_request({"core": 1}, duration_s=101), 0)
    assert isinstance(longer, NotNow)
    assert longer.earliest_s == 150


def test_a_reservation_starts_at_the_start_or_end_of_something() -> None:
    engine = Engine(cluster_of(nodes=1, cores=3), "low")
    for job, end in ((1, 40), (2, 70), (3, 90)):
        engine.match(job, slot_request({"core": 1}, duration_s=end), 0)
    starts = [
        placed(engine.match(n, slot_request({"core": n}, duration_s=5), 0, LOOK_LATER)).start_s
        for n in (1, 2, 3)
    ]
    assert starts == [40, 70, 90]


def test_what_waits_for_a_job_without_an_end_has_no_time() -> None:
    engine = full(None)
    answer = engine.match(9, slot_request({"core": 1}, duration_s=5), 0, RESERVE)
    assert isinstance(answer, NotNow)
    assert answer.earliest_s is None
    assert 9 not in engine.jobs


def test_a_job_that_overruns_holds_on_and_is_planned_to_end_at_the_next_instant() -> None:
    engine = full(10)
    answer = engine.match(9, slot_request({"core": 1}, duration_s=5), 25)
    assert isinstance(answer, NotNow)
    assert answer.earliest_s == 26
    assert span(engine.match(9, slot_request({"core": 1}, duration_s=5), 25, RESERVE)) == (
        AllocationKind.RESERVED,
        26,
        31,
    )


def test_the_planned_end_of_a_live_job_is_not_its_release() -> None:
    engine = full(10)
    assert isinstance(engine.match(9, slot_request({"node": 1}), 10), NotNow)
    engine.release(0)
    assert isinstance(engine.match(9, slot_request({"node": 1}), 10), Allocation)


def test_an_end_that_is_moved_moves_what_is_planned_behind_it() -> None:
    engine = full(10)
    asked = slot_request({"core": 1}, duration_s=5)
    for end, start in ((40, 40), (12, 26), (90, 90)):
        engine.set_end(0, end)
        assert engine.allocation(0).end_s == end
        assert span(engine.match(9, asked, 25, LOOK_LATER)) == (AllocationKind.MATCHED, start, start + 5)
    engine.set_end(0, None)
    assert engine.allocation(0).end_s is None
    assert isinstance(engine.match(9, asked, 25, LOOK_LATER), NotNow)
    assert engine.instants(0) == []


def test_the_end_of_a_reservation_cannot_be_moved_and_no_end_before_a_start() -> None:
    engine = full(10)
    engine.match(9, slot_request({"core": 1}, duration_s=5), 0, RESERVE)
    with pytest.raises(Conflict, match="job 9 is reserved"):
        engine.set_end(9, 50)
    with pytest.raises(BadTime):
        engine.set_end(0, 0)
    assert engine.allocation(0).end_s == 10


def test_a_part_of_a_pool_that_overruns_is_still_in_use() -> None:
    engine = Engine(cluster_of(nodes=1, pools={"memory": 8}), "low")
    engine.match(1, slot_request({"memory": 5}, duration_s=10), 0)
    answer = engine.match(2, slot_request({"memory": 4}, duration_s=5), 30)
    assert isinstance(answer, NotNow)
    assert answer.earliest_s == 31
    assert held(engine.match(2, slot_request({"memory": 3}, duration_s=5), 30)) == ["node0/memory0:3"]


def test_a_reservation_that_is_over_is_in_nobodys_way() -> None:
    engine = full(10)
    engine.match(8, slot_request({"core": 2}, duration_s=5), 0, RESERVE)
    engine.release(0)
    assert isinstance(engine.match(9, slot_request({"core": 2}, duration_s=5), 15), Allocation)


def test_an_overrun_with_a_reservation_behind_it_takes_nothing_from_other_nodes() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "low")
    engine.match(1, slot_request({"core": 1}, duration_s=10), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=20), 0)
    assert placed(engine.match(3, slot_request({"core": 1}, duration_s=100), 0, RESERVE)).start_s == 10
    engine.release(2)
    assert held(engine.match(4, slot_request({"core": 1}, duration_s=5), 12)) == ["node1/core0"]


def test_satisfiable_is_what_fits_when_all_is_up_and_free() -> None:
    engine = full(None)
    engine.set_status(at(engine, "node0"), up=False)
    assert engine.match(9, slot_request({"core": 2}), 0, MatchOp.SATISFIABILITY) == Satisfiable()
    assert isinstance(engine.match(9, slot_request({"core": 3}), 0, MatchOp.SATISFIABILITY), Never)
    assert engine.could_ever(slot_request({"core": 2}))
    assert not engine.could_ever(slot_request({"core": 3}))


def test_a_structure_that_does_not_exist_is_not_satisfiable() -> None:
    engine = Engine(sockets_of())
    request = request_with(resource_of("node", 1, resource_of("slot", 1, resource_of("core"))))
    assert isinstance(engine.match(1, request, 0, MatchOp.SATISFIABILITY), Never)


@pytest.mark.parametrize("op", list(MatchOp))
def test_busy_and_impossible_differ_for_every_operation(op: MatchOp) -> None:
    engine = full(None)
    if op is not MatchOp.SATISFIABILITY:
        assert isinstance(engine.match(9, slot_request({"core": 1}), 0, op), NotNow)
    assert isinstance(engine.match(9, slot_request({"core": 3}), 0, op), Never)


@pytest.mark.parametrize("op", [MatchOp.WITHOUT_ALLOCATING, LOOK_LATER])
def test_looking_leaves_no_trace(op: MatchOp) -> None:
    engine = Engine(cluster_of(nodes=1, cores=2), "low")
    answer = engine.match(1, slot_request({"core": 2}, duration_s=5), 3, op)
    assert span(answer) == (AllocationKind.MATCHED, 3, 8)
    assert not engine.jobs
    assert all(vertex.state is None for vertex in engine.graph.vertices.values())


def test_looking_further_finds_the_earliest_time() -> None:
    engine = full(100)
    assert isinstance(
        engine.match(9, slot_request({"core": 1}, duration_s=5), 0, MatchOp.WITHOUT_ALLOCATING), NotNow
    )
    assert span(engine.match(9, slot_request({"core": 1}, duration_s=5), 0, LOOK_LATER)) == (
        AllocationKind.MATCHED,
        100,
        105,
    )
    assert 9 not in engine.jobs


def test_a_job_number_is_used_once_at_a_time() -> None:
    engine = full()
    with pytest.raises(Conflict):
        engine.match(0, slot_request({"core": 1}), 0)
    assert isinstance(engine.match(0, slot_request({"core": 1}), 0, MatchOp.WITHOUT_ALLOCATING), NotNow)


@pytest.mark.parametrize(("now", "duration_s"), [(-1, 5), (0, 0), (0, -3)])
def test_time_runs_forward(now: int, duration_s: int) -> None:
    with pytest.raises(BadTime):
        Engine(cluster_of(nodes=1, cores=1)).match(1, slot_request({"core": 1}, duration_s=duration_s), now)


def test_what_would_end_beyond_the_horizon_ends_there() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1), horizon_s=100)
    assert span(engine.match(1, slot_request({"core": 1}), 0)) == (AllocationKind.ALLOCATED, 0, 100)
    assert isinstance(engine.match(2, slot_request({"core": 1}, duration_s=1), 0, RESERVE), NotNow)
    engine.release(1)
    assert span(engine.match(3, slot_request({"core": 1}, duration_s=60), 50)) == (
        AllocationKind.ALLOCATED,
        50,
        100,
    )


def test_a_cheap_refusal_says_less_but_the_same() -> None:
    engine = full(100)
    cheap = engine.match(9, slot_request({"core": 1}), 0, explain=False)
    assert isinstance(cheap, NotNow)
    assert not cheap.reason.stages
    assert isinstance(engine.match(9, slot_request({"core": 3}), 0, explain=False), Never)


def test_a_request_may_start_at_the_end_of_a_reservation_too() -> None:
    engine = full(10)
    engine.match(8, slot_request({"core": 2}, duration_s=10), 0, RESERVE)
    assert span(engine.match(9, slot_request({"core": 2}), 0, RESERVE)) == (AllocationKind.RESERVED, 20, None)
