"""What differs is found, by its right name; what does not differ is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.audit.compare import HALF_GANG_S
from penstock.audit.differences import REPAIRS, Difference, DifferenceKind, Repair
from penstock.audit.readings import LEFT_OVER, MORE, GraphExternalUsage, JobAssignments
from tests.audit.triples import CORRUPTIONS, NAMES, NOW, Pick, Triple, example

Corruption = Callable[[Triple, Pick], tuple[DifferenceKind, str] | None]


def test_readings_that_agree_have_no_difference() -> None:
    assert example().compare() == ()


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_one_thing_that_is_wrong_is_found_by_its_name_and_gone_when_it_is_right_again(
    corrupt: Corruption,
) -> None:
    triple = example()
    expected = corrupt(triple, lambda names: names[0])
    assert expected is not None
    assert triple.found() == [expected]
    (difference,) = triple.compare()
    assert difference.detail
    assert example().compare(grace=[difference]) == ()


def test_every_kind_has_a_way_to_go_wrong_and_exactly_one_repair() -> None:
    found = {corrupt(example(), lambda names: names[0]) for corrupt in CORRUPTIONS}
    assert {one[0] for one in found if one is not None} == set(DifferenceKind)
    assert set(REPAIRS) == set(DifferenceKind)
    assert set(REPAIRS.values()) == set(Repair)


def amounts() -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(
        {"cpu": st.integers(1, 500)},
        optional={"memory": st.integers(1, 1 << 30), "example.com/gpu": st.just(1), "odd/kind": st.just(1)},
    )


@st.composite
def triples(draw: st.DrawFn) -> Triple:
    """At most a dozen pods: whatever they ask for, no node is too small."""
    triple = Triple()
    names = [f"n{number}" for number in range(draw(st.integers(1, 4)))]
    for name in names:
        triple.node(name, ready=draw(st.booleans()))
    node = st.sampled_from(names)
    for number in range(draw(st.integers(0, 8))):
        uid, asked = f"u{number}", draw(amounts())
        match draw(st.sampled_from(("foreign", "left over", "member", "grown", "waiting", "over"))):
            case "foreign":
                triple.foreign(uid, draw(node), asked)
            case "left over":
                triple.left_over(uid, draw(node), asked)
            case "member":
                triple.member(uid, draw(node), asked, job=draw(st.integers(1, 3)))
            case "grown":
                triple.member(uid, draw(node), asked, more_cpu=draw(st.integers(1, 100)))
            case "waiting":
                triple.pod(uid, "", asked, scheduler=draw(st.sampled_from(("default-scheduler", *NAMES))))
            case "over":
                triple.pod(uid, draw(node), asked, scheduler=NAMES[0])
                triple.pods[uid] = replace(triple.pods[uid], terminal=True)
        if draw(st.booleans()):
            triple.pods[uid] = replace(triple.pods[uid], deleting=True)
    return triple.settle()


@given(triples())
def test_nothing_is_found_where_nothing_is_wrong(triple: Triple) -> None:
    assert triple.compare() == ()


@given(triples(), st.sampled_from(CORRUPTIONS), st.data())
def test_exactly_the_one_thing_is_found_that_is_wrong(
    triple: Triple, corrupt: Corruption, data: st.DataObject
) -> None:
    expected = corrupt(triple, lambda names: data.draw(st.sampled_from(list(names))))
    assume(expected is not None)
    assert triple.found() == [expected]


def test_what_the_previous_readings_did_not_show_has_grace() -> None:
    triple = example()
    del triple.graph_nodes["n0"]
    del triple.pods["f1"]
    first = Difference(DifferenceKind.EXTERNAL_USAGE_SURPLUS, "f1", "in other words")
    unlike = Difference(DifferenceKind.NODE_SURPLUS, "n0")
    assert [one.kind for one in triple.compare(grace=[first, unlike])] == [
        DifferenceKind.EXTERNAL_USAGE_SURPLUS
    ]
    assert triple.compare(grace=()) == ()


def unbound_while_it_is_being_placed(triple: Triple) -> None:
    triple.pods["m0"] = replace(triple.pods["m0"], node="")
    triple.graph_members["m0"] = replace(triple.graph_members["m0"], phase="placing")


def bound_before_anybody_noticed(triple: Triple) -> None:
    triple.store_members["m0"] = replace(triple.store_members["m0"], phase="placing")


def pods_of_a_node_that_is_gone(triple: Triple) -> None:
    for uid, scheduler in (("a", "default-scheduler"), ("b", NAMES[0])):
        triple.pod(uid, "gone", {"cpu": 100}, scheduler=scheduler)


def a_pod_of_ours_on_a_node_that_is_silent(triple: Triple) -> None:
    triple.pod("a", "n2", {"cpu": 100}, scheduler=NAMES[0])


def a_pod_of_ours_that_was_bound_by_its_maker(triple: Triple) -> None:
    triple.pod("a", "n0", {"cpu": 100}, scheduler=NAMES[0])
    triple.holds["a"] = GraphExternalUsage("n0", triple.pods["a"].amounts)
    triple.settle()


def a_hold_that_takes_nothing(triple: Triple) -> None:
    triple.holds["a"] = GraphExternalUsage("n0", {"odd/kind": 1})
    triple.settle()


def a_group_that_says_it_is_broken(triple: Triple) -> None:
    triple.store_jobs[1] = triple.graph_jobs[1] = JobAssignments(3, 2, broken=True, since=NOW - 1000)


def a_group_that_is_half_for_a_short_time(triple: Triple) -> None:
    triple.store_jobs[1] = triple.graph_jobs[1] = JobAssignments(3, 2, broken=False, since=NOW - HALF_GANG_S)


def a_node_that_others_alone_overcommit(triple: Triple) -> None:
    triple.foreign("crowd", "n2", {"cpu": 1_000_000})
    triple.settle()


@pytest.mark.parametrize(
    "change",
    [
        unbound_while_it_is_being_placed,
        bound_before_anybody_noticed,
        pods_of_a_node_that_is_gone,
        a_pod_of_ours_on_a_node_that_is_silent,
        a_pod_of_ours_that_was_bound_by_its_maker,
        a_hold_that_takes_nothing,
        a_group_that_says_it_is_broken,
        a_group_that_is_half_for_a_short_time,
        a_node_that_others_alone_overcommit,
    ],
    ids=lambda change: change.__name__,
)
def test_what_is_in_order_is_not_told(change: Callable[[Triple], None]) -> None:
    triple = example()
    change(triple)
    assert triple.compare() == ()


def test_a_pod_that_is_held_twice_has_one_hold_too_many() -> None:
    triple = example()
    triple.holds["l0"] = triple.holds[LEFT_OVER + "l0"]
    triple.settle()
    assert triple.found() == [(DifferenceKind.EXTERNAL_USAGE_SURPLUS, LEFT_OVER + "l0")]


def test_more_than_a_member_uses_is_a_hold_too_many() -> None:
    triple = example()
    triple.holds[MORE + "m0"] = GraphExternalUsage("n0", {"cpu": 10})
    triple.settle()
    assert triple.found() == [(DifferenceKind.EXTERNAL_USAGE_SURPLUS, MORE + "m0")]


def test_what_keeps_pods_apart_is_known_to_the_graph_alone() -> None:
    triple = example()
    kind = "anti-affinity/default/app=db"
    for name, node in triple.graph_nodes.items():
        triple.graph_nodes[name] = replace(node, capacity={**node.capacity, kind: 1024})
    for uid, assignment in triple.graph_members.items():
        triple.graph_members[uid] = replace(assignment, amounts={**assignment.amounts, kind: 1})
    triple.holds[MORE + "m0"] = GraphExternalUsage("n0", {kind: 1023})
    triple.settle()
    assert triple.compare() == ()


def test_a_member_of_a_pod_with_another_schedulers_name_is_ours_all_the_same() -> None:
    triple = example()
    triple.pods["m0"] = replace(triple.pods["m0"], scheduler_name="default-scheduler")
    assert triple.compare() == ()


def test_of_a_member_that_is_elsewhere_nothing_else_is_said() -> None:
    triple = example()
    triple.pods["m2"] = replace(triple.pods["m2"], node="n0")
    assert triple.found() == [(DifferenceKind.MEMBER_ELSEWHERE, "m2")]


def test_a_member_whose_pod_failed_before_it_had_a_node_is_leaked() -> None:
    triple = example()
    triple.pods["m0"] = replace(triple.pods["m0"], node="", terminal=True)
    triple.graph_members["m0"] = replace(triple.graph_members["m0"], phase="placing")
    assert triple.found() == [(DifferenceKind.MEMBER_LEAKED, "m0")]


def test_of_a_member_that_the_graph_has_forgotten_nothing_else_is_said() -> None:
    triple = example()
    del triple.graph_members["m0"]
    triple.holds[LEFT_OVER + "m0"] = GraphExternalUsage("n0", triple.pods["m0"].amounts)
    triple.settle()
    assert triple.found() == [(DifferenceKind.MEMBER_DISAGREED, "m0")]


def test_a_hold_of_nobody_on_a_node_that_is_not_there_is_one_too_many() -> None:
    """It would take something as soon as the node comes."""
    triple = example()
    triple.holds["ghost"] = GraphExternalUsage("n9", {"cpu": 100})
    assert triple.found() == [(DifferenceKind.EXTERNAL_USAGE_SURPLUS, "ghost")]
