"""Rounds of the auditor with prepared snapshots and recorded repairs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest
from prometheus_client.parser import text_string_to_metric_families

from penstock.audit.auditor import Auditor, AuditReport
from penstock.audit.differences import DifferenceKind, Repair
from penstock.errors import Unavailable
from tests.audit.snapshot_sets import NAMES, NOW, SnapshotSet, example

T = TypeVar("T")
Change = Callable[[SnapshotSet], None]


class Stopped(Exception):
    """Ends the audit loop of a test."""


@dataclass
class Rig:
    """A cluster that changes before every comparison, and a recorder of repairs."""

    changes: list[Change] = field(default_factory=list)  # one before each comparison
    repairs: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    now: float = NOW
    slept: list[float] = field(default_factory=list)
    snapshots: SnapshotSet = field(default_factory=example)
    comparisons: int = 0
    sleeps_max: int = 1_000

    async def snapshot(self) -> None:
        self._record("snapshot")

    async def release(self, members: Sequence[str]) -> None:
        self._record("release " + " ".join(members))

    async def restart(self, why: str) -> None:
        assert why
        self._record("restart")

    def _record(self, what: str) -> None:
        if what.split()[0] in self.failing:
            raise Unavailable("cannot be done")
        self.repairs.append(what)

    def reader(self, index: int, read: Callable[[Rig], T]) -> Callable[[], Awaitable[T]]:
        async def take() -> T:
            if index == 0:
                self.comparisons += 1
                if self.changes:
                    self.changes.pop(0)(self.snapshots)
            if ("api", "store", "graph")[index] in self.failing:
                raise Unavailable("not reachable")
            return read(self)

        return take

    async def sleep(self, for_s: float) -> None:
        self.slept.append(for_s)
        self.now += for_s
        if len(self.slept) >= self.sleeps_max:
            raise Stopped

    def auditor(self, **more: float) -> Auditor:
        return Auditor(
            self.reader(0, lambda rig: rig.snapshots.frozen()[0]),
            self.reader(1, lambda rig: rig.snapshots.frozen()[1]),
            self.reader(2, lambda rig: rig.snapshots.frozen()[2]),
            self,
            scheduler_names=NAMES,
            clock=lambda: self.now,
            sleep=self.sleep,
            **more,  # type: ignore[arg-type]
        )


def once(auditor: Auditor) -> AuditReport:
    return asyncio.run(auditor.once())


def metrics_of(auditor: Auditor) -> dict[str, float]:
    """Returns the samples by name and labels: `penstock_audit_repairs_total release`."""
    families = text_string_to_metric_families(auditor.metrics.render().decode())
    samples = [sample for family in families for sample in family.samples]
    return {" ".join([one.name, *one.labels.values()]): one.value for one in samples}


def all_of(*changes: Change) -> Change:
    def change(snapshots: SnapshotSet) -> None:
        for one in changes:
            one(snapshots)

    return change


def lose_pods(*uids: str) -> Change:
    def change(snapshots: SnapshotSet) -> None:
        for uid in uids:
            del snapshots.pods[uid]

    return change


def nothing(_snapshots: SnapshotSet) -> None: ...


def lose_node(snapshots: SnapshotSet) -> None:
    del snapshots.graph_nodes["n1"]


def find_node(snapshots: SnapshotSet) -> None:
    snapshots.graph_nodes["n1"] = example().graph_nodes["n1"]


def forget_member(snapshots: SnapshotSet) -> None:
    del snapshots.store_members["m1"]


def leave_group_half(snapshots: SnapshotSet) -> None:
    snapshots.graph_jobs[1] = replace(snapshots.graph_jobs[1], since=NOW - 500)


def test_without_differences_one_comparison_suffices() -> None:
    rig = Rig()
    assert once(rig.auditor()) == AuditReport()
    assert (rig.comparisons, rig.repairs, rig.slept) == (1, [], [])


def test_an_unconfirmed_difference_is_not_repaired() -> None:
    rig = Rig([lose_node, find_node])
    report = once(rig.auditor())
    assert [one.kind for one in report.seen] == [DifferenceKind.NODE_MISSING]
    assert (report.confirmed, report.repaired, rig.repairs) == ((), (), [])
    assert (rig.comparisons, rig.slept) == (2, [5.0])


def test_two_different_successive_differences_are_not_repaired() -> None:
    rig = Rig([lose_node, all_of(find_node, lose_pods("m0"))])
    report = once(rig.auditor())
    assert (report.confirmed, rig.repairs) == ((), [])


def test_opposite_disagreements_do_not_confirm_each_other() -> None:
    """Each time the store was read before the graph, or after it: nothing is wrong with either."""

    def just_placed(snapshots: SnapshotSet) -> None:
        del snapshots.graph_members["m1"]

    def just_ended(snapshots: SnapshotSet) -> None:
        snapshots.graph_members["m1"] = example().graph_members["m1"]
        del snapshots.store_members["m1"]

    rig = Rig([just_placed, just_ended])
    report = once(rig.auditor())
    assert [one.kind for one in report.seen] == [DifferenceKind.MEMBER_DISAGREED]
    assert (report.confirmed, rig.repairs) == ((), [])


@pytest.mark.parametrize(
    ("change", "kind", "repairs"),
    [
        (lose_node, DifferenceKind.NODE_MISSING, ["snapshot"]),
        (lose_pods("m0"), DifferenceKind.MEMBER_LEAKED, ["release m0"]),
        (forget_member, DifferenceKind.MEMBER_DISAGREED, ["restart"]),
        (leave_group_half, DifferenceKind.HALF_GANG, []),
    ],
)
def test_a_confirmed_difference_is_repaired_by_its_rule(
    change: Change, kind: DifferenceKind, repairs: list[str]
) -> None:
    rig = Rig([change])
    auditor = rig.auditor()
    report = once(auditor)
    assert [one.kind for one in report.confirmed] == [kind]
    assert report.repaired == (report.confirmed if repairs else ())
    assert rig.repairs == repairs
    assert metrics_of(auditor)[f"penstock_audit_differences {kind.value}"] == 1.0


def test_one_snapshot_serves_all_differences_and_members_are_released_too() -> None:
    rig = Rig([all_of(lose_node, lose_pods("m0", "f0"))])
    report = once(rig.auditor())
    assert len(report.repaired) == 3
    assert sorted(rig.repairs) == ["release m0", "snapshot"]


def test_a_restart_is_the_only_repair_and_is_rate_limited() -> None:
    rig = Rig([all_of(forget_member, lose_node)])
    auditor = rig.auditor(restart_interval_s=600.0)
    assert [one.kind for one in once(auditor).repaired] == [DifferenceKind.MEMBER_DISAGREED]
    report = once(auditor)
    assert [one.kind for one in report.held_back] == [DifferenceKind.MEMBER_DISAGREED]
    assert rig.repairs == ["restart", "snapshot"]
    rig.now += 600.0
    once(auditor)
    assert rig.repairs == ["restart", "snapshot", "restart"]
    assert metrics_of(auditor)["penstock_audit_held_back_total restart"] == 1.0


def test_releases_per_round_are_bounded() -> None:
    rig = Rig([lose_pods("m0", "m1", "m2")])
    auditor = rig.auditor(releases_max=2)
    report = once(auditor)
    assert rig.repairs == ["release m0 m1"]
    assert [one.subject for one in report.held_back] == ["m2"]
    assert metrics_of(auditor)["penstock_audit_repairs_total release"] == 2.0


def test_a_persistent_difference_is_only_reported_until_it_disappears() -> None:
    rig = Rig([lose_node])
    auditor = rig.auditor(repairs_per_difference_max=2)
    for _ in range(4):
        report = once(auditor)
    assert rig.repairs == ["snapshot", "snapshot"]
    assert [one.kind for one in report.held_back] == [DifferenceKind.NODE_MISSING]
    rig.changes = [find_node, lose_node]
    assert once(auditor).confirmed == ()
    once(auditor)
    assert rig.repairs == ["snapshot"] * 3


def test_an_unconfirmed_round_resets_the_repair_count() -> None:
    rig = Rig([lose_node])
    auditor = rig.auditor(repairs_per_difference_max=1)
    once(auditor)
    rig.changes = [nothing, find_node, lose_node]
    assert once(auditor).confirmed == ()
    assert once(auditor).held_back == ()
    assert rig.repairs == ["snapshot"] * 2


@pytest.mark.parametrize("name", ["api", "store", "graph"])
def test_a_failed_snapshot_is_counted_and_the_next_round_works(name: str) -> None:
    rig = Rig([lose_node], failing={name})
    auditor = rig.auditor()
    assert once(auditor) == AuditReport(failed=(name,))
    assert metrics_of(auditor)[f"penstock_audit_failed_snapshots_total {name}"] == 1.0
    assert metrics_of(auditor)["penstock_audit_last_round_timestamp_seconds"] == 0.0
    rig.failing.clear()
    assert [one.kind for one in once(auditor).repaired] == [DifferenceKind.NODE_MISSING]


def test_a_failed_second_snapshot_confirms_nothing() -> None:
    rig = Rig([lose_node, lambda _snapshots: rig.failing.add("api")])
    report = once(rig.auditor())
    assert [one.kind for one in report.seen] == [DifferenceKind.NODE_MISSING]
    assert (report.confirmed, report.failed, rig.repairs) == ((), ("api",), [])


def test_a_snapshot_that_times_out_is_a_failed_snapshot() -> None:
    rig = Rig()

    async def hang() -> None:
        await asyncio.Event().wait()

    auditor = rig.auditor(timeout_s=0.01)
    auditor._read_store = hang  # type: ignore[assignment]
    assert once(auditor) == AuditReport(failed=("store",))


def test_a_failed_repair_is_counted_and_the_others_run() -> None:
    rig = Rig([all_of(lose_node, lose_pods("m0"))], failing={"snapshot"})
    auditor = rig.auditor()
    report = once(auditor)
    assert rig.repairs == ["release m0"]
    assert report.failed == ("snapshot",)
    assert [one.kind for one in report.repaired] == [DifferenceKind.MEMBER_LEAKED]
    assert metrics_of(auditor)["penstock_audit_failed_repairs_total snapshot"] == 1.0


def test_rounds_run_at_the_interval_until_cancelled() -> None:
    rig = Rig([nothing, lose_node], sleeps_max=4)
    auditor = rig.auditor(interval_s=60.0, confirm_s=5.0)
    with pytest.raises(Stopped):
        asyncio.run(auditor.run())
    assert rig.slept == [60.0, 60.0, 5.0, 60.0]
    assert rig.repairs == ["snapshot"]
    assert metrics_of(auditor)["penstock_audit_rounds_total"] == 2.0


def test_all_metrics_exist_from_the_start_and_follow_the_rounds() -> None:
    rig = Rig([lose_node])
    auditor = rig.auditor()
    metrics = metrics_of(auditor)
    for kind in DifferenceKind:
        assert metrics[f"penstock_audit_differences {kind.value}"] == 0.0
    for repair in Repair:
        assert (f"penstock_audit_repairs_total {repair.value}" in metrics) is (repair is not Repair.NONE)
    once(auditor)
    metrics = metrics_of(auditor)
    assert metrics["penstock_audit_differences node_missing"] == 1.0
    assert metrics["penstock_audit_repairs_total snapshot"] == 1.0
    assert metrics["penstock_audit_last_round_timestamp_seconds"] == NOW + 5.0
    assert metrics["penstock_audit_last_round_duration_seconds"] == 5.0
    find_node(rig.snapshots)
    once(auditor)
    assert metrics_of(auditor)["penstock_audit_differences node_missing"] == 0.0


def test_two_auditors_share_no_metrics() -> None:
    first, second = Rig().auditor(), Rig().auditor()
    once(first)
    assert metrics_of(second)["penstock_audit_rounds_total"] == 0.0
