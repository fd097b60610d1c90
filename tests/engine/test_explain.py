"""Every refusal says which clause failed, how many passed each step, and who stands in the way."""

from __future__ import annotations

import pytest

from builders import at, on, pools_of, request_with, request_with_groups, resource_of, sockets_of
from penstock.engine import Engine, MatchResult, Never, NotNow, Reason, Request, cluster_of, slot_request
from penstock.engine.allocation import Blocker, FunnelStage
from penstock.engine.graph_updates import set_status
from penstock.model.constraint import Properties


def reason_of(answer: MatchResult) -> Reason:
    assert isinstance(answer, NotNow | Never), answer
    return answer.reason


def steps(reason: Reason) -> list[tuple[str, int, int]]:
    return [(step.name, step.passed, step.needed) for step in reason.stages]


@pytest.mark.parametrize(
    ("request_", "clause"),
    [
        (slot_request({"gpu": 1}), "asks for gpu, and there is no gpu here"),
        (slot_request({"core": 5}), "asks for 5 cores together, the largest place has 4"),
        (slot_request({"core": 4}, slots=3), "asks for 3 slots, at most 2 fit when everything is free"),
        (
            slot_request({"core": 1}, constraint=Properties(("fast",))),
            "asks for nodes with a constraint that none of 2 meets",
        ),
        (
            request_with(resource_of("node", 3, exclusive=True)),
            "asks for 3 nodes, at most 2 fit when everything is free",
        ),
        (
            request_with(resource_of("slot", 2, resource_of("core", 4)), within="node"),
            "asks for 2 slots, at most 1 fit when everything is free inside one node",
        ),
    ],
)
def test_never_names_the_clause_that_cannot_be_met(request_: Request, clause: str) -> None:
    answer = Engine(cluster_of(nodes=2, cores=4)).match(1, request_, 0)
    assert isinstance(answer, Never)
    assert str(answer.reason) == clause
    assert answer.reason.stages


def test_never_is_said_although_everything_is_busy_and_down() -> None:
    engine = Engine(cluster_of(nodes=2, cores=4))
    engine.match(1, slot_request({"core": 4}, slots=2), 0)
    set_status(engine.graph.root, up=False)
    assert isinstance(engine.match(2, slot_request({"core": 5}), 0), Never)


def test_a_packing_that_the_walk_misses_is_not_never() -> None:
    """Pools of 3, 2, 2 and 1 hold two slots of 4, but not in the order of their ids."""
    answer = Engine(pools_of(3, 2, 2, 1), "low").match(1, slot_request({"memory": 4}, slots=2), 0)
    assert isinstance(answer, NotNow)


def test_the_steps_lead_from_all_nodes_to_those_with_room() -> None:
    engine = Engine(cluster_of(nodes=4, cores=2), "lonode")
    set_status(at(engine, "node3"), up=False)
    engine.match(1, slot_request({"core": 2}, duration_s=10), 0)
    reason = reason_of(
        engine.match(2, slot_request({"core": 2}, slots=3, constraint=on("node0", "node1", "node3")), 0)
    )
    assert steps(reason) == [
        ("nodes", 4, 3),
        ("match the constraint", 3, 3),
        ("up", 2, 3),
        ("large enough", 2, 3),
        ("with room", 1, 3),
        ("slots that fit", 1, 3),
    ]
    assert str(reason) == "asks for 3 slots; 2 nodes are up, it takes 3"
    assert reason.stages[0] == FunnelStage("nodes", 4, 3)


def test_who_is_in_the_way_is_told_with_the_time_it_ends() -> None:
    engine = Engine(cluster_of(nodes=3, cores=1), "lonode")
    engine.match(1, slot_request({"core": 1}, duration_s=90), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=30), 0)
    engine.external_usage.set("pod/x", at(engine, "node2"), {"core": 1})
    reason = reason_of(engine.match(3, slot_request({"core": 1}), 0))
    assert reason.blockers == (
        Blocker(external_usage="pod/x"),
        Blocker(2, until_s=30),
        Blocker(1, until_s=90),
    )
    assert [str(blocker) for blocker in reason.blockers] == ["pod/x", "job 2", "job 1"]
    assert str(reason) == "asks for 1 slot; 0 nodes with room (core: 0 of 1), it takes 1"


def test_what_overruns_is_told_to_end_at_the_next_instant_and_what_never_ends_first() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "lonode")
    engine.match(1, slot_request({"core": 1}), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=30), 0)
    reason = reason_of(engine.match(3, slot_request({"core": 1}), 50))
    assert reason.blockers == (Blocker(1), Blocker(2, until_s=51))


def test_only_those_who_hold_what_would_do_are_in_the_way() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "lonode")
    engine.match(1, slot_request({"core": 1}, duration_s=5, constraint=on("node0")), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=5, constraint=on("node1")), 0)
    reason = reason_of(engine.match(3, slot_request({"core": 1}, constraint=on("node1")), 0))
    assert reason.blockers == (Blocker(2, until_s=5),)


def test_few_blockers_are_told() -> None:
    engine = Engine(cluster_of(nodes=20, cores=1))
    for job in range(20):
        engine.match(job, slot_request({"core": 1}, duration_s=10 + job), 0)
    blockers = reason_of(engine.match(99, slot_request({"core": 1}), 0)).blockers
    assert [blocker.until_s for blocker in blockers] == list(range(10, 10 + len(blockers)))
    assert 3 <= len(blockers) < 20


def test_nodes_that_are_down_are_the_reason() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1))
    set_status(engine.graph.root, up=False)
    assert (
        str(reason_of(engine.match(1, slot_request({"core": 1}), 0)))
        == "asks for 1 slot; 0 nodes are up, it takes 1"
    )


def test_groups_in_each_others_way_are_told_so() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2))
    two = resource_of("slot", 1, resource_of("core", 2))
    reason = reason_of(engine.match(1, request_with_groups(two, two), 0))
    assert str(reason) == "asks for 4 cores in 2 groups together, there are 2"


def test_groups_that_only_fit_one_after_the_other_now_are_told_so() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2))
    engine.match(1, slot_request({"core": 2}, duration_s=60), 0)
    two = resource_of("slot", 1, resource_of("core", 2))
    reason = reason_of(engine.match(2, request_with_groups(two, two), 0))
    assert str(reason) == "asks for 2 groups together; each fits alone, not all at once"


def test_a_domain_that_is_too_crowded_is_told_so() -> None:
    engine = Engine(cluster_of(nodes=4, cores=1, racks=2), "low")
    for node in ("node0", "node2"):
        engine.match(int(node[-1]), slot_request({"core": 1}, constraint=on(node)), 0)
    reason = reason_of(
        engine.match(9, request_with(resource_of("slot", 2, resource_of("core")), within="rack"), 0)
    )
    assert str(reason) == "asks for 2 slots inside one rack; none has room for all"


def test_explain_answers_nothing_for_what_can_start() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    assert engine.explain(slot_request({"core": 1}), 0) is None
    engine.match(1, slot_request({"core": 1}), 0)
    reason = engine.explain(slot_request({"core": 1}), 0)
    assert reason is not None
    assert reason.blockers == (Blocker(1),)


def test_levels_that_do_not_exist_in_this_order_are_told_so() -> None:
    request = request_with(
        resource_of("cluster", 1, resource_of("socket", 1, resource_of("slot", 1, resource_of("core"))))
    )
    reason = reason_of(Engine(sockets_of()).match(1, request, 0))
    assert "socket" in str(reason)
