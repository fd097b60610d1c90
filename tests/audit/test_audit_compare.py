"""Comparison of snapshots: every error is found as its kind, and consistent snapshots give no difference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.audit.compare import HALF_GANG_S
from penstock.audit.differences import REPAIRS, Difference, DifferenceKind, Repair
from penstock.audit.snapshots import EXCESS_PREFIX, ORPHAN_PREFIX, GraphExternalUsage, JobAssignments
from tests.audit.snapshot_sets import CORRUPTIONS, NAMES, NOW, Pick, SnapshotSet, example

Corruption = Callable[[SnapshotSet, Pick], tuple[DifferenceKind, str] | None]


def test_consistent_snapshots_have_no_difference() -> None:
    assert example().compare() == ()


@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda corrupt: corrupt.__name__)
def test_each_error_is_found_as_its_kind_and_disappears_when_corrected(
    corrupt: Corruption,
) -> None:
    snapshots = example()
    expected = corrupt(snapshots, lambda names: names[0])
    assert expected is not None
    assert snapshots.found() == [expected]
    (difference,) = snapshots.compare()
    assert difference.detail
    assert example().compare(previous=[difference]) == ()


def test_every_kind_has_a_corruption_and_exactly_one_repair() -> None:
    found = {corrupt(example(), lambda names: names[0]) for corrupt in CORRUPTIONS}
    assert {one[0] for one in found if one is not None} == set(DifferenceKind)
    assert set(REPAIRS) == set(DifferenceKind)
    assert set(REPAIRS.values()) == set(Repair)


def usage() -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(
        {"cpu": st.integers(1, 500)},
        optional={"memory": st.integers(1, 1 << 30), "example.com/gpu": st.just(1), "odd/kind": st.just(1)},
    )


@st.composite
def snapshot_sets(draw: st.DrawFn) -> SnapshotSet:
    """Few enough pods that no node is overcommitted."""
    snapshots = SnapshotSet()
    names = [f"n{number}" for number in range(draw(st.integers(1, 4)))]
    for name in names:
        snapshots.node(name, ready=draw(st.booleans()))
    node = st.sampled_from(names)
    for number in range(draw(st.integers(0, 8))):
        uid, requests = f"u{number}", draw(usage())
        match draw(st.sampled_from(("foreign", "left over", "member", "grown", "waiting", "over"))):
            case "foreign":
                snapshots.foreign(uid, draw(node), requests)
            case "left over":
                snapshots.left_over(uid, draw(node), requests)
            case "member":
                snapshots.member(uid, draw(node), requests, job=draw(st.integers(1, 3)))
            case "grown":
                snapshots.member(uid, draw(node), requests, more_cpu=draw(st.integers(1, 100)))
            case "waiting":
                snapshots.pod(
                    uid, "", requests, scheduler=draw(st.sampled_from(("default-scheduler", *NAMES)))
                )
            case "over":
                snapshots.pod(uid, draw(node), requests, scheduler=NAMES[0])
                snapshots.pods[uid] = replace(snapshots.pods[uid], terminal=True)
        if draw(st.booleans()):
            snapshots.pods[uid] = replace(snapshots.pods[uid], deleting=True)
    return snapshots.recompute_bookings()


@given(snapshot_sets())
def test_random_consistent_snapshots_have_no_difference(snapshots: SnapshotSet) -> None:
    assert snapshots.compare() == ()


@given(snapshot_sets(), st.sampled_from(CORRUPTIONS), st.data())
def test_one_corruption_gives_exactly_one_difference(
    snapshots: SnapshotSet, corrupt: Corruption, data: st.DataObject
) -> None:
    expected = corrupt(snapshots, lambda names: data.draw(st.sampled_from(list(names))))
    assume(expected is not None)
    assert snapshots.found() == [expected]


def test_a_difference_absent_from_the_previous_comparison_is_not_returned() -> None:
    snapshots = example()
    del snapshots.graph_nodes["n0"]
    del snapshots.pods["f1"]
    first = Difference(DifferenceKind.EXTERNAL_USAGE_SURPLUS, "f1", "in other words")
    unlike = Difference(DifferenceKind.NODE_SURPLUS, "n0")
    assert [one.kind for one in snapshots.compare(previous=[first, unlike])] == [
        DifferenceKind.EXTERNAL_USAGE_SURPLUS
    ]
    assert snapshots.compare(previous=()) == ()


def unbound_while_it_is_being_placed(snapshots: SnapshotSet) -> None:
    snapshots.pods["m0"] = replace(snapshots.pods["m0"], node="")
    snapshots.graph_members["m0"] = replace(snapshots.graph_members["m0"], phase="placing")


def bound_but_still_recorded_as_placing(snapshots: SnapshotSet) -> None:
    snapshots.store_members["m0"] = replace(snapshots.store_members["m0"], phase="placing")


def pods_of_a_node_that_is_gone(snapshots: SnapshotSet) -> None:
    for uid, scheduler in (("a", "default-scheduler"), ("b", NAMES[0])):
        snapshots.pod(uid, "gone", {"cpu": 100}, scheduler=scheduler)


def a_pod_of_this_scheduler_on_a_node_that_is_not_ready(snapshots: SnapshotSet) -> None:
    snapshots.pod("a", "n2", {"cpu": 100}, scheduler=NAMES[0])


def a_pod_of_this_scheduler_that_its_controller_bound(snapshots: SnapshotSet) -> None:
    snapshots.pod("a", "n0", {"cpu": 100}, scheduler=NAMES[0])
    snapshots.external_usage["a"] = GraphExternalUsage("n0", snapshots.pods["a"].usage)
    snapshots.recompute_bookings()


def external_usage_without_counted_resources(snapshots: SnapshotSet) -> None:
    snapshots.external_usage["a"] = GraphExternalUsage("n0", {"odd/kind": 1})
    snapshots.recompute_bookings()


def a_group_that_is_marked_incomplete(snapshots: SnapshotSet) -> None:
    snapshots.store_jobs[1] = snapshots.graph_jobs[1] = JobAssignments(
        3, 2, is_marked_incomplete=True, since=NOW - 1000
    )


def a_group_that_is_half_for_a_short_time(snapshots: SnapshotSet) -> None:
    snapshots.store_jobs[1] = snapshots.graph_jobs[1] = JobAssignments(
        3, 2, is_marked_incomplete=False, since=NOW - HALF_GANG_S
    )


def a_node_that_others_alone_overcommit(snapshots: SnapshotSet) -> None:
    snapshots.foreign("crowd", "n2", {"cpu": 1_000_000})
    snapshots.recompute_bookings()


@pytest.mark.parametrize(
    "change",
    [
        unbound_while_it_is_being_placed,
        bound_but_still_recorded_as_placing,
        pods_of_a_node_that_is_gone,
        a_pod_of_this_scheduler_on_a_node_that_is_not_ready,
        a_pod_of_this_scheduler_that_its_controller_bound,
        external_usage_without_counted_resources,
        a_group_that_is_marked_incomplete,
        a_group_that_is_half_for_a_short_time,
        a_node_that_others_alone_overcommit,
    ],
    ids=lambda change: change.__name__,
)
def test_legitimate_states_are_no_difference(change: Callable[[SnapshotSet], None]) -> None:
    snapshots = example()
    change(snapshots)
    assert snapshots.compare() == ()


def test_a_pod_with_two_entries_has_surplus_external_usage() -> None:
    snapshots = example()
    snapshots.external_usage["l0"] = snapshots.external_usage[ORPHAN_PREFIX + "l0"]
    snapshots.recompute_bookings()
    assert snapshots.found() == [(DifferenceKind.EXTERNAL_USAGE_SURPLUS, ORPHAN_PREFIX + "l0")]


def test_excess_usage_that_a_member_does_not_have_is_surplus() -> None:
    snapshots = example()
    snapshots.external_usage[EXCESS_PREFIX + "m0"] = GraphExternalUsage("n0", {"cpu": 10})
    snapshots.recompute_bookings()
    assert snapshots.found() == [(DifferenceKind.EXTERNAL_USAGE_SURPLUS, EXCESS_PREFIX + "m0")]


def test_excess_usage_that_only_brings_keys_is_no_difference() -> None:
    snapshots = example()
    snapshots.external_usage[EXCESS_PREFIX + "m0"] = GraphExternalUsage("n0", {})
    snapshots.recompute_bookings()
    assert snapshots.compare() == ()


def test_a_member_with_another_scheduler_name_is_still_a_member() -> None:
    snapshots = example()
    snapshots.pods["m0"] = replace(snapshots.pods["m0"], scheduler_name="default-scheduler")
    assert snapshots.compare() == ()


def test_a_member_on_another_node_has_one_difference() -> None:
    snapshots = example()
    snapshots.pods["m2"] = replace(snapshots.pods["m2"], node="n0")
    assert snapshots.found() == [(DifferenceKind.MEMBER_ELSEWHERE, "m2")]


def test_a_member_whose_pod_failed_before_it_had_a_node_is_leaked() -> None:
    snapshots = example()
    snapshots.pods["m0"] = replace(snapshots.pods["m0"], node="", terminal=True)
    snapshots.graph_members["m0"] = replace(snapshots.graph_members["m0"], phase="placing")
    assert snapshots.found() == [(DifferenceKind.MEMBER_LEAKED, "m0")]


def test_a_member_missing_in_the_graph_has_one_difference() -> None:
    snapshots = example()
    del snapshots.graph_members["m0"]
    snapshots.external_usage[ORPHAN_PREFIX + "m0"] = GraphExternalUsage("n0", snapshots.pods["m0"].usage)
    snapshots.recompute_bookings()
    assert snapshots.found() == [(DifferenceKind.MEMBER_DISAGREED, "m0")]


def test_external_usage_of_no_pod_on_a_missing_node_is_surplus() -> None:
    """It would reduce the capacity of the node as soon as the node appears."""
    snapshots = example()
    snapshots.external_usage["ghost"] = GraphExternalUsage("n9", {"cpu": 100})
    assert snapshots.found() == [(DifferenceKind.EXTERNAL_USAGE_SURPLUS, "ghost")]
