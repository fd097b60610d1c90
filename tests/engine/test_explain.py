"""A refusal names the failed clause, how many nodes pass each stage, and what blocks the request."""

from __future__ import annotations

import pytest

from builders import at, on, pools_of, request_with, request_with_groups, resource_of, sockets_of
from penstock.engine import (
    Engine,
    ExclusionKey,
    MatchResult,
    Never,
    NotNow,
    Placement,
    Reason,
    Request,
    cluster_of,
    slot_request,
)
from penstock.engine.allocation import Blocker, FunnelStage
from penstock.model.constraint import Properties


def reason_of(answer: MatchResult) -> Reason:
    assert isinstance(answer, NotNow | Never), answer
    return answer.reason


def stages(reason: Reason) -> list[tuple[str, int, int]]:
    return [(stage.name, stage.passed, stage.needed) for stage in reason.stages]


@pytest.mark.parametrize(
    ("request_", "clause"),
    [
        (slot_request({"gpu": 1}), "needs 1 gpu, the cluster has no gpu"),
        (slot_request({"core": 5}), "needs 5 cores per slot, the largest node has 4"),
        (
            slot_request({"core": 4}, slots=3),
            "needs 3 slots with 4 cores each, the cluster fits at most 2",
        ),
        (
            slot_request({"core": 1}, constraint=Properties(("fast",))),
            "0 of 2 nodes match; 2 nodes: constraint fast does not match",
        ),
        (
            request_with(resource_of("node", 3, exclusive=True)),
            "needs 3 nodes, the cluster fits at most 2",
        ),
        (
            request_with(resource_of("slot", 2, resource_of("core", 4)), within="node"),
            "needs 2 slots with 4 cores each inside one node, a node fits at most 1",
        ),
        (
            slot_request({"core": 1}, placement=Placement(within="rack")),
            "needs one rack for all slots, the cluster has no rack",
        ),
        (
            request_with(resource_of("core", 1, resource_of("slot", 1, resource_of("node")))),
            "needs resources nested as core->slot->node, the cluster does not nest them so",
        ),
    ],
)
def test_never_names_the_clause_that_cannot_be_satisfied(request_: Request, clause: str) -> None:
    answer = Engine(cluster_of(nodes=2, cores=4)).match(1, request_, 0)
    assert isinstance(answer, Never)
    assert str(answer.reason) == clause
    assert answer.reason.stages


def test_never_is_proven_also_when_all_nodes_are_busy_and_down() -> None:
    engine = Engine(cluster_of(nodes=2, cores=4))
    engine.match(1, slot_request({"core": 4}, slots=2), 0)
    engine.set_status(engine.graph.root, up=False)
    assert isinstance(engine.match(2, slot_request({"core": 5}), 0), Never)


def test_a_packing_that_the_walker_misses_is_not_never() -> None:
    """Pools of 3, 2, 2 and 1 hold two slots of 4, but not in the order of their ids."""
    answer = Engine(pools_of(3, 2, 2, 1), "low").match(1, slot_request({"memory": 4}, slots=2), 0)
    assert isinstance(answer, NotNow)


def test_the_stages_count_down_from_all_nodes_to_those_with_enough_free() -> None:
    engine = Engine(cluster_of(nodes=4, cores=2), "lonode")
    engine.set_status(at(engine, "node3"), up=False)
    engine.match(1, slot_request({"core": 2}, duration_s=10), 0)
    reason = reason_of(
        engine.match(2, slot_request({"core": 2}, slots=3, constraint=on("node0", "node1", "node3")), 0)
    )
    assert stages(reason) == [
        ("nodes", 4, 3),
        ("match the constraint", 3, 3),
        ("up", 2, 3),
        ("large enough", 2, 3),
        ("enough free", 1, 3),
        ("slots that fit", 1, 3),
    ]
    assert str(reason) == "needs 3 slots with 2 cores each; 2 of 3 nodes are up, 3 are needed"
    assert reason.stages[0] == FunnelStage("nodes", 4, 3)


def test_a_blocker_has_the_time_at_which_it_ends() -> None:
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
    assert str(reason) == "needs 1 slot with 1 free core, 0 of 3 nodes have it"


def test_an_overdue_blocker_ends_at_the_next_instant_and_one_without_an_end_comes_first() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "lonode")
    engine.match(1, slot_request({"core": 1}), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=30), 0)
    reason = reason_of(engine.match(3, slot_request({"core": 1}), 50))
    assert reason.blockers == (Blocker(1), Blocker(2, until_s=51))


def test_only_jobs_on_suitable_nodes_are_blockers() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1), "lonode")
    engine.match(1, slot_request({"core": 1}, duration_s=5, constraint=on("node0")), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=5, constraint=on("node1")), 0)
    reason = reason_of(engine.match(3, slot_request({"core": 1}, constraint=on("node1")), 0))
    assert reason.blockers == (Blocker(2, until_s=5),)


def test_the_number_of_blockers_is_limited() -> None:
    engine = Engine(cluster_of(nodes=20, cores=1))
    for job in range(20):
        engine.match(job, slot_request({"core": 1}, duration_s=10 + job), 0)
    blockers = reason_of(engine.match(99, slot_request({"core": 1}), 0)).blockers
    assert [blocker.until_s for blocker in blockers] == list(range(10, 10 + len(blockers)))
    assert 3 <= len(blockers) < 20


def test_nodes_that_are_down_are_named_as_the_reason() -> None:
    engine = Engine(cluster_of(nodes=2, cores=1))
    engine.set_status(engine.graph.root, up=False)
    assert (
        str(reason_of(engine.match(1, slot_request({"core": 1}), 0)))
        == "needs 1 slot with 1 core; 0 of 2 nodes are up, 1 is needed"
    )


def test_groups_that_need_more_together_than_the_cluster_has_are_refused() -> None:
    engine = Engine(cluster_of(nodes=1, cores=2))
    two = resource_of("slot", 1, resource_of("core", 2))
    reason = reason_of(engine.match(1, request_with_groups(two, two), 0))
    assert str(reason) == "needs 4 cores in 2 groups, the cluster has 2"


def test_groups_that_fit_alone_but_not_together_are_explained() -> None:
    engine = Engine(cluster_of(nodes=2, cores=2))
    engine.match(1, slot_request({"core": 2}, duration_s=60), 0)
    two = resource_of("slot", 1, resource_of("core", 2))
    reason = reason_of(engine.match(2, request_with_groups(two, two), 0))
    assert str(reason) == "needs 2 groups at once, each fits alone but not together"


def test_a_placement_that_no_domain_has_enough_free_for_is_explained() -> None:
    engine = Engine(cluster_of(nodes=4, cores=1, racks=2), "low")
    for node in ("node0", "node2"):
        engine.match(int(node[-1]), slot_request({"core": 1}, constraint=on(node)), 0)
    reason = reason_of(
        engine.match(9, request_with(resource_of("slot", 2, resource_of("core")), within="rack"), 0)
    )
    assert str(reason) == "needs 2 slots with 1 free core each inside one rack, no rack has enough free"


@pytest.mark.parametrize(
    ("requests", "slots", "clause"),
    [
        (
            {"cpu": 500, "memory": 1 << 30},
            1,
            "needs 1 slot with 500m free cpu and 1Gi free memory, 0 of 2 nodes have them; "
            "cpu: needs 500m, the largest free node has 250m",
        ),
        (
            {"cpu": 250, "memory": 4 << 30},
            1,
            "needs 1 slot with 250m free cpu and 4Gi free memory, 0 of 2 nodes have them; "
            "memory: needs 4Gi, the largest free node has 3Gi",
        ),
        (
            {"cpu": 2000},
            3,
            "needs 3 slots with 2 free cpu each; 0 of 2 nodes fit a slot, at least 2 nodes are needed; "
            "cpu: needs 2, the largest free node has 250m",
        ),
        (
            {"cpu": 100, "pods": 1},
            1,
            "needs 1 slot with 100m free cpu, 0 of 2 nodes qualify; the limit of pods per node is reached",
        ),
    ],
)
def test_the_clause_names_the_resource_that_is_short(
    requests: dict[str, int], slots: int, clause: str
) -> None:
    pools = {
        "cpu": 4000,
        "memory": 4 << 30,
        "pods": 1,
    }
    engine = Engine(cluster_of(nodes=2, pools=pools))
    for job in (1, 2):
        engine.match(job, slot_request(pools | {"cpu": 3750, "memory": 1 << 30}), 0)
    assert str(reason_of(engine.match(3, slot_request(requests, slots=slots), 0))) == clause


@pytest.mark.parametrize(
    ("requests", "clause"),
    [
        (
            {"cpu": 100},
            "needs 1 slot with 100m free cpu, 0 of 2 nodes qualify; host port 80/TCP excludes 2 nodes",
        ),
        (
            {"cpu": 500},
            "needs 1 slot with 500m free cpu, 0 of 2 nodes have it; "
            "cpu: needs 500m, the largest free node has 250m",
        ),
    ],
)
def test_the_clause_names_the_key_only_where_enough_is_free(requests: dict[str, int], clause: str) -> None:
    port = (ExclusionKey("node", "host port 80/TCP"),)
    engine = Engine(cluster_of(nodes=2, pools={"cpu": 4000}))
    for job in (1, 2):
        engine.match(job, slot_request({"cpu": 3750}, brings=port, forbids=port), 0)
    assert str(reason_of(engine.match(3, slot_request(requests, brings=port, forbids=port), 0))) == clause


def test_the_clause_of_a_node_request_counts_the_nodes_that_have_enough_free() -> None:
    engine = Engine(cluster_of(nodes=4, cores=2), "low")
    engine.match(1, slot_request({"core": 1}, slots=3, placement=Placement(distinct_nodes=True)), 0)
    four_nodes = resource_of("node", 4, resource_of("slot", 1, resource_of("core", 2)))
    reason = reason_of(engine.match(2, request_with(four_nodes), 0))
    assert str(reason) == "needs 4 nodes with 2 free cores each, 1 of 4 has them"
    idle_nodes = resource_of("node", 2, exclusive=True)
    reason = reason_of(engine.match(2, request_with(idle_nodes), 0))
    assert str(reason) == "needs 2 idle nodes, 1 of 4 qualifies"


def test_free_units_that_do_not_combine_are_explained() -> None:
    answer = Engine(pools_of(3, 2, 2, 1), "low").match(1, slot_request({"memory": 4}, slots=2), 0)
    assert str(reason_of(answer)) == "needs 2 slots with 4 free memory each, the free units are too scattered"


def test_explain_returns_none_for_a_request_that_can_start() -> None:
    engine = Engine(cluster_of(nodes=1, cores=1))
    assert engine.explain(slot_request({"core": 1}), 0) is None
    engine.match(1, slot_request({"core": 1}), 0)
    reason = engine.explain(slot_request({"core": 1}), 0)
    assert reason is not None
    assert reason.blockers == (Blocker(1),)


def test_a_nesting_that_the_graph_does_not_have_is_named() -> None:
    request = request_with(
        resource_of("cluster", 1, resource_of("socket", 1, resource_of("slot", 1, resource_of("core"))))
    )
    reason = reason_of(Engine(sockets_of()).match(1, request, 0))
    assert "socket" in str(reason)
