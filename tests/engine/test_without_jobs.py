"""Matches on chosen nodes only, and matches as if all jobs had ended."""

from __future__ import annotations

import pytest

from builders import on, request_with_groups, resource_of, sockets_of
from penstock.engine import Allocation, AllocationKind, Engine, MatchOp, MatchResult, Request
from penstock.engine.request import Placement, slot_request
from penstock.model.exclusion_key import ExclusionKey
from tests.engine.test_exclusion_keys import engine_of, racks

PORT = ExclusionKey("node", "host port 80/TCP")


def indexes(engine: Engine, *names: str) -> frozenset[int]:
    return frozenset(node.index for node in engine.graph.of_type("node") if node.name in names)


def names(engine: Engine, request: Request, *excluded: str) -> list[str] | None:
    found = engine.nodes_without_jobs(request, indexes(engine, *excluded))
    return None if found is None else sorted(node.name for node in found)


def matched(engine: Engine, request: Request, *excluded: str, op: MatchOp = MatchOp.ALLOCATE) -> MatchResult:
    stages = engine.match_stepwise(1, request, 0, op, excluded_nodes=indexes(engine, *excluded))
    while True:
        try:
            next(stages)
        except StopIteration as done:
            return done.value


def nodes_of(answer: MatchResult) -> list[str]:
    assert isinstance(answer, Allocation), answer
    return sorted({slot.node.name for slot in answer.slots if slot.node is not None})


def test_a_match_does_not_use_excluded_nodes_now_or_later() -> None:
    engine = engine_of(nodes=3)
    assert nodes_of(matched(engine, slot_request({"cpu": 10}), "node0")) == ["node1"]
    engine.match(2, slot_request({"cpu": 10}, duration_s=5), 0)
    engine.match(3, slot_request({"cpu": 10}, duration_s=9), 0)
    engine.release(1)
    later = matched(engine, slot_request({"cpu": 10}, slots=2), "node0", op=MatchOp.ALLOCATE_ORELSE_RESERVE)
    assert nodes_of(later) == ["node1", "node2"]
    assert isinstance(later, Allocation)
    assert later.start_s == 9


def test_an_extension_does_not_use_excluded_nodes() -> None:
    engine = engine_of(nodes=3)
    spread = slot_request({"cpu": 1}, placement=Placement(distinct_nodes=True))
    engine.match(1, spread, 0)
    answer = engine.extend(1, spread, 0, excluded_nodes=indexes(engine, "node1"))
    assert nodes_of(answer) == ["node2"]


def test_without_jobs_everything_that_is_booked_is_free() -> None:
    engine = engine_of(nodes=2)
    engine.match(1, slot_request({"cpu": 10}, slots=2), 0)
    engine.match(2, slot_request({"cpu": 10}, slots=2, duration_s=5), 0, MatchOp.ALLOCATE_ORELSE_RESERVE)
    whole = slot_request({"cpu": 10}, slots=2)
    assert names(engine, whole) == ["node0", "node1"]
    assert names(engine, whole, "node1") is None
    assert names(engine, slot_request({"cpu": 10}), "node0") == ["node1"]


def test_external_usage_and_nodes_that_are_down_count_without_jobs() -> None:
    engine = engine_of(nodes=3)
    node0, node1, _ = engine.graph.of_type("node")
    engine.set_status(node0, False)
    engine.external_usage.set("other", node1, {"cpu": 1})
    assert names(engine, slot_request({"cpu": 10})) == ["node2"]
    assert names(engine, slot_request({"cpu": 9}, slots=2)) == ["node1", "node2"]
    assert names(engine, slot_request({"cpu": 10}, slots=2)) is None


def test_groups_share_nodes_without_jobs_as_they_would_in_a_match() -> None:
    engine = Engine(racks(1, 2), "lonode")
    engine.match(1, slot_request({"cpu": 10}, slots=2), 0)
    six = resource_of("slot", 1, resource_of("cpu", 6))
    assert names(engine, request_with_groups(six, six)) == ["node0", "node1"]
    assert names(engine, request_with_groups(six, six), "node1") is None
    assert names(engine, request_with_groups(six, six, six)) is None


def test_placement_and_keys_hold_without_jobs() -> None:
    engine = Engine(racks(2, 2), "lonode")
    server = slot_request({"cpu": 1}, brings=(PORT,), forbids=(PORT,))
    engine.match(1, server, 0)
    engine.external_usage.set("other", engine.graph.of_type("node")[1], {"cpu": 1}, brings=(PORT,))
    assert names(engine, server) == ["node0"]
    assert names(engine, server, "node0") == ["node2"]
    close = slot_request({"cpu": 10}, slots=2, placement=Placement(within="rack"))
    assert names(engine, close) == ["node2", "node3"]
    assert names(engine, close, "node3") is None


@pytest.mark.parametrize("policy", ["first", "firstnodex", "hinode", "lonode", "lonodex", "pack", "spread"])
def test_asking_without_jobs_changes_nothing(policy: str) -> None:
    engine = Engine(sockets_of(nodes=3), policy)
    request = request_with_groups(
        resource_of("node", 1, resource_of("slot", 1, resource_of("socket", 1, resource_of("core", 1)))),
        resource_of("slot", 1, resource_of("core", 1)),
    )
    first = engine.match(1, request, 0)
    assert isinstance(first, Allocation)
    assert engine.nodes_without_jobs(request) is not None
    state = [(vertex.path(), vertex.state is None) for vertex in engine.graph.vertices.values()]
    engine.release(1)
    assert all(vertex.state is None for vertex in engine.graph.vertices.values())
    assert any(not is_idle for _, is_idle in state)


def test_constraints_hold_without_jobs() -> None:
    engine = engine_of(nodes=3)
    assert names(engine, slot_request({"cpu": 1}, constraint=on("node2"))) == ["node2"]
    assert names(engine, slot_request({"cpu": 1}, constraint=on("node2")), "node2") is None


def test_a_start_is_reserved_at_one_instant() -> None:
    engine = engine_of(nodes=2)
    engine.match(1, slot_request({"cpu": 10}, duration_s=5), 0)
    engine.match(2, slot_request({"cpu": 10}), 0)
    whole = slot_request({"cpu": 10})
    assert engine.reserve(3, whole, 4, 0, frozenset()) is None
    assert engine.reserve(3, whole, 5, 0, indexes(engine, "node0")) is None
    tried = engine.reserve(3, whole, 5, 0, frozenset(), book=False)
    assert tried is not None
    assert 3 not in engine.jobs
    found = engine.reserve(3, whole, 5, 0, frozenset())
    assert found is not None
    assert (nodes_of(found), found.start_s, found.kind) == (["node0"], 5, AllocationKind.RESERVED)


def test_a_match_leaves_the_excluded_nodes_of_its_caller_as_they_are() -> None:
    engine = Engine(racks(1, 4), "lonode")
    excluded = set(indexes(engine, "node0"))
    slot = resource_of("slot", 1, resource_of("cpu", 6))
    answer = engine.match(1, request_with_groups(slot, slot, distinct_nodes=True), 0, excluded_nodes=excluded)
    assert nodes_of(answer) == ["node1", "node2"]
    assert excluded == indexes(engine, "node0")
