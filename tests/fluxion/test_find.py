"""The `find` expression language: predicates, operators, results and rejected expressions."""

from __future__ import annotations

import pytest

from builders import at, on, request_with, resource_of, short, sockets_of
from penstock.engine import Engine, MatchOp, slot_request
from penstock.fluxion.find import BadExpression, find, parse_expression


def busy_engine() -> Engine:
    """node0: job 1 on a socket. node1: job 2 on core 0, job 3 reserved, property fast. node2: down."""
    engine = Engine(sockets_of(nodes=3, sockets=1, cores=2), "low")
    engine.match(1, slot_request({"socket": 1}, constraint=on("node0")), 0)
    engine.match(2, slot_request({"core": 1}, duration_s=10, constraint=on("node1")), 0)
    waits = request_with(resource_of("slot", 1, resource_of("core", 2)), duration_s=5, constraint=on("node1"))
    engine.match(3, waits, 0, MatchOp.ALLOCATE_ORELSE_RESERVE)
    engine.set_property(at(engine, "node1"), "fast", "very")
    engine.set_status(at(engine, "node2"), up=False)
    return engine


def names(engine: Engine, text: str) -> list[str]:
    """The vertices found, without the vertices above them."""
    picks = [short(pick.vertex) for pick in find(engine.graph.root, parse_expression(text))]
    return [
        path
        for path in picks
        if not any(other.startswith(f"{path}/") or (not path and other) for other in picks)
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("status=down", ["node2/socket0/core0", "node2/socket0/core1"]),
        ("sched-now=allocated", ["node0/socket0/core0", "node0/socket0/core1", "node1/socket0/core0"]),
        ("sched-future=reserved", ["node1/socket0/core0", "node1/socket0/core1"]),
        ("jobid-alloc=1", ["node0/socket0"]),
        ("jobid-alloc=2", ["node1/socket0/core0"]),
        ("jobid-alloc=3", []),
        ("jobid-reserved=3", ["node1/socket0/core0", "node1/socket0/core1"]),
        ("jobid-reserved=2", []),
        ("jobid-span=2", ["node1/socket0"]),
        ("jobid-tag=2", ["node1/socket0/core0"]),
        ("names=node[1-2]", ["node1", "node2"]),
        ("property=fast", ["node1"]),
        ("property=slow", []),
        ("agfilter=false", []),
        ("sched-now=allocated and sched-future=reserved", ["node1/socket0/core0"]),
        ("sched-now=allocated sched-future=reserved", ["node1/socket0/core0"]),
        ("names=node0 or names=node2", ["node0", "node2"]),
        ("names=node0 or names=node2 and status=up", ["node0"]),
        ("names=node0 or ( names=node2 and status=up )", ["node0"]),
        ("names=node2 or ( names=node0 and status=up )", ["node0", "node2"]),
        ("(names=node2 or names=node0) and status=up", ["node0"]),
        ("STATUS=down", None),
        ("status=DOWN", ["node2/socket0/core0", "node2/socket0/core1"]),
    ],
)
def test_an_expression_finds_the_vertices_that_satisfy_it(text: str, expected: list[str] | None) -> None:
    if expected is None:
        with pytest.raises(BadExpression):
            parse_expression(text)
    else:
        assert names(busy_engine(), text) == expected


def test_operators_are_evaluated_from_left_to_right() -> None:
    engine = Engine(sockets_of(nodes=1))
    assert find(engine.graph.root, parse_expression("status=up or status=down and status=down")) == ()
    assert find(engine.graph.root, parse_expression("status=up or ( status=down and status=down )")) != ()


def test_found_vertices_are_listed_with_their_ancestors_children_first() -> None:
    engine = busy_engine()
    picks = find(engine.graph.root, parse_expression("jobid-alloc=2"))
    paths = ["/cluster0/node1/socket0/core0", "/cluster0/node1/socket0", "/cluster0/node1", "/cluster0"]
    assert [pick.vertex.path() for pick in picks] == paths
    assert all(pick.exclusive and pick.units == pick.vertex.size for pick in picks)
    assert [pick.depth for pick in picks] == [4, 3, 2, 1]


def test_every_vertex_of_an_idle_graph_is_free() -> None:
    engine = Engine(sockets_of(nodes=2))
    assert len(
        find(engine.graph.root, parse_expression("status=up sched-now=free sched-future=free"))
    ) == len(engine.graph)


def test_an_expression_records_its_job_and_whether_usage_is_shown() -> None:
    assert parse_expression("jobid-alloc=7 or jobid-tag=9").job == 9
    assert parse_expression("status=up").job is None
    assert parse_expression("agfilter=true").with_usage
    assert not parse_expression("agfilter=f").with_usage


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "status",
        "status=",
        "status=sideways",
        "=",
        "and",
        "status=up and",
        "( status=up",
        "status=up )",
        "()",
        "jobid-alloc=x",
        "jobid-alloc=-1",
        "jobid-alloc=",
        "property=",
        "nosuch=1",
        "(" * 100,
        "status=up " * 1000,
        "sched-now=reserved",
        "agfilter=maybe",
        "jobid-tag=" + "9" * 30,
    ],
)
def test_an_invalid_expression_is_rejected(text: str) -> None:
    with pytest.raises(BadExpression):
        parse_expression(text)
