"""A copy of a cluster is for trying things out: the original does not notice."""

from __future__ import annotations

from dataclasses import replace

from penstock.engine import Allocation, NotNow, slot_request
from penstock.protocol.facts import Capacity, ExternalUsageSet, NodeSet
from penstock.sched.cluster import Cluster
from tests.costs import instructions

CPU = Capacity("cpu", 4, divisible=True)
ONE = slot_request({"cpu": 4})


def a_node(number: int, *, zone: str = "a", **labels: str) -> NodeSet:
    return NodeSet(f"node{number}", (CPU,), (("zone", zone),), tuple(labels.items()))


def a_cluster(nodes: int) -> Cluster:
    cluster = Cluster("lonode")
    for number in range(nodes):
        cluster.set_node(a_node(number), number, is_drained=False)
    cluster.apply_updates()
    return cluster


def test_each_goes_its_own_way() -> None:
    cluster = a_cluster(2)
    cluster.engine.match(1, ONE, 0)
    other = cluster.copy()
    other.set_node(a_node(2), 2, is_drained=False)
    other.set_node(a_node(0, fast="yes"), 0, is_drained=False)
    other.remove_node("node1")
    other.drain("node0", is_drained=True)
    other.set_external_usage(ExternalUsageSet("other", "node2", (("cpu", 1),)))
    other.apply_updates()
    assert sorted(cluster.nodes) == ["node0", "node1"]
    assert cluster.nodes["node0"].vertex.properties == {}
    assert cluster.external_usage_keys() == []
    answer = cluster.engine.match(2, ONE, 0)
    assert isinstance(answer, Allocation)
    assert [slot.node.name for slot in answer.slots if slot.node is not None] == ["node1"]
    assert isinstance(other.engine.match(2, ONE, 0), NotNow)
    cluster.engine.release(1)
    assert list(other.engine.jobs) == [1]
    other.engine.release(1)


def test_what_is_still_to_be_done_is_done_in_both() -> None:
    cluster = a_cluster(1)
    cluster.set_node(a_node(0, zone="b"), 0, is_drained=False)
    other = cluster.copy()
    other.apply_updates()
    assert other.nodes["node0"].vertex.path() == "/cluster0/b/node0"
    assert cluster.nodes["node0"].vertex.path() == "/cluster0/a/node0"
    cluster.apply_updates()
    assert cluster.nodes["node0"].vertex.path() == "/cluster0/b/node0"


def test_a_changed_node_costs_the_same_in_a_large_cluster() -> None:
    def cost(nodes: int) -> int:
        cluster = a_cluster(nodes)
        changed = replace(a_node(1, fast="yes"), capacity=(replace(CPU, units=2), Capacity("gpu", 2)))

        def change() -> None:
            cluster.set_node(changed, 1, is_drained=False)
            cluster.set_node(a_node(1, zone="b"), 1, is_drained=False)
            cluster.apply_updates()

        return instructions(change)

    assert cost(400) <= 1.1 * cost(20)
