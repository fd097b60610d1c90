"""Rounds of the auditor, with readings that are handed to it and repairs that are only noted."""

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
from tests.audit.triples import NAMES, NOW, Triple, example

T = TypeVar("T")
Change = Callable[[Triple], None]


class Stopped(Exception):
    """The test has seen enough."""


@dataclass
class Rig:
    """A cluster that changes from reading to reading, as it is told."""

    changes: list[Change] = field(default_factory=list)  # one before each reading
    asked: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    now: float = NOW
    slept: list[float] = field(default_factory=list)
    triple: Triple = field(default_factory=example)
    readings: int = 0
    naps_max: int = 1_000

    async def snapshot(self) -> None:
        self._ask("snapshot")

    async def release(self, members: Sequence[str]) -> None:
        self._ask("release " + " ".join(members))

    async def restart(self, why: str) -> None:
        assert why
        self._ask("restart")

    def _ask(self, what: str) -> None:
        if what.split()[0] in self.failing:
            raise Unavailable("cannot be done")
        self.asked.append(what)

    def reader(self, place: int, read: Callable[[Rig], T]) -> Callable[[], Awaitable[T]]:
        async def reading() -> T:
            if place == 0:
                self.readings += 1
                if self.changes:
                    self.changes.pop(0)(self.triple)
            if ("api", "store", "graph")[place] in self.failing:
                raise Unavailable("it is away")
            return read(self)

        return reading

    async def sleep(self, for_s: float) -> None:
        self.slept.append(for_s)
        self.now += for_s
        if len(self.slept) >= self.naps_max:
            raise Stopped

    def auditor(self, **more: float) -> Auditor:
        return Auditor(
            self.reader(0, lambda rig: rig.triple.readings()[0]),
            self.reader(1, lambda rig: rig.triple.readings()[1]),
            self.reader(2, lambda rig: rig.triple.readings()[2]),
            self,
            scheduler_names=NAMES,
            clock=lambda: self.now,
            sleep=self.sleep,
            **more,  # type: ignore[arg-type]
        )


def once(auditor: Auditor) -> AuditReport:
    return asyncio.run(auditor.once())


def figures(auditor: Auditor) -> dict[str, float]:
    """By name and label: `penstock_audit_repairs_total release`."""
    families = text_string_to_metric_families(auditor.metrics.render().decode())
    samples = [sample for family in families for sample in family.samples]
    return {" ".join([one.name, *one.labels.values()]): one.value for one in samples}


def all_of(*changes: Change) -> Change:
    def change(triple: Triple) -> None:
        for one in changes:
            one(triple)

    return change


def lose_pods(*uids: str) -> Change:
    def change(triple: Triple) -> None:
        for uid in uids:
            del triple.pods[uid]

    return change


def nothing(_triple: Triple) -> None: ...


def lose_node(triple: Triple) -> None:
    del triple.graph_nodes["n1"]


def find_node(triple: Triple) -> None:
    triple.graph_nodes["n1"] = example().graph_nodes["n1"]


def forget_member(triple: Triple) -> None:
    del triple.store_members["m1"]


def leave_group_half(triple: Triple) -> None:
    triple.graph_jobs[1] = replace(triple.graph_jobs[1], since=NOW - 500)


def test_where_nothing_is_wrong_one_reading_is_enough() -> None:
    rig = Rig()
    assert once(rig.auditor()) == AuditReport()
    assert (rig.readings, rig.asked, rig.slept) == (1, [], [])


def test_what_is_seen_once_is_not_repaired() -> None:
    rig = Rig([lose_node, find_node])
    report = once(rig.auditor())
    assert [one.kind for one in report.seen] == [DifferenceKind.NODE_MISSING]
    assert (report.confirmed, report.repaired, rig.asked) == ((), (), [])
    assert (rig.readings, rig.slept) == (2, [5.0])


def test_two_different_things_seen_one_after_the_other_are_not_repaired() -> None:
    rig = Rig([lose_node, all_of(find_node, lose_pods("m0"))])
    report = once(rig.auditor())
    assert (report.confirmed, rig.asked) == ((), [])


def test_a_member_that_was_just_placed_and_then_just_ended_is_no_lasting_disagreement() -> None:
    """Each time the store was read before the graph, or after it: nothing is wrong with either."""

    def just_placed(triple: Triple) -> None:
        del triple.graph_members["m1"]

    def just_ended(triple: Triple) -> None:
        triple.graph_members["m1"] = example().graph_members["m1"]
        del triple.store_members["m1"]

    rig = Rig([just_placed, just_ended])
    report = once(rig.auditor())
    assert [one.kind for one in report.seen] == [DifferenceKind.MEMBER_DISAGREED]
    assert (report.confirmed, rig.asked) == ((), [])


@pytest.mark.parametrize(
    ("change", "kind", "asked"),
    [
        (lose_node, DifferenceKind.NODE_MISSING, ["snapshot"]),
        (lose_pods("m0"), DifferenceKind.MEMBER_LEAKED, ["release m0"]),
        (forget_member, DifferenceKind.MEMBER_DISAGREED, ["restart"]),
        (leave_group_half, DifferenceKind.HALF_GANG, []),
    ],
)
def test_what_is_seen_twice_is_repaired_by_its_rule(
    change: Change, kind: DifferenceKind, asked: list[str]
) -> None:
    rig = Rig([change])
    auditor = rig.auditor()
    report = once(auditor)
    assert [one.kind for one in report.confirmed] == [kind]
    assert report.repaired == (report.confirmed if asked else ())
    assert rig.asked == asked
    assert figures(auditor)[f"penstock_audit_differences {kind.value}"] == 1.0


def test_one_snapshot_is_enough_for_all_and_members_are_released_beside_it() -> None:
    rig = Rig([all_of(lose_node, lose_pods("m0", "f0"))])
    report = once(rig.auditor())
    assert len(report.repaired) == 3
    assert sorted(rig.asked) == ["release m0", "snapshot"]


def test_a_restart_comes_alone_and_not_again_for_a_while() -> None:
    rig = Rig([all_of(forget_member, lose_node)])
    auditor = rig.auditor(restart_every_s=600.0)
    assert [one.kind for one in once(auditor).repaired] == [DifferenceKind.MEMBER_DISAGREED]
    report = once(auditor)
    assert [one.kind for one in report.held_back] == [DifferenceKind.MEMBER_DISAGREED]
    assert rig.asked == ["restart", "snapshot"]
    rig.now += 600.0
    once(auditor)
    assert rig.asked == ["restart", "snapshot", "restart"]
    assert figures(auditor)["penstock_audit_held_back_total restart"] == 1.0


def test_no_more_members_are_released_in_a_round_than_is_allowed() -> None:
    rig = Rig([lose_pods("m0", "m1", "m2")])
    auditor = rig.auditor(releases_max=2)
    report = once(auditor)
    assert rig.asked == ["release m0 m1"]
    assert [one.subject for one in report.held_back] == ["m2"]
    assert figures(auditor)["penstock_audit_repairs_total release"] == 2.0


def test_what_survives_its_repairs_is_only_told_until_it_is_gone_and_comes_again() -> None:
    rig = Rig([lose_node])
    auditor = rig.auditor(repairs_of_one_max=2)
    for _ in range(4):
        report = once(auditor)
    assert rig.asked == ["snapshot", "snapshot"]
    assert [one.kind for one in report.held_back] == [DifferenceKind.NODE_MISSING]
    rig.changes = [find_node, lose_node]
    assert once(auditor).confirmed == ()
    once(auditor)
    assert rig.asked == ["snapshot"] * 3


def test_repairs_are_counted_anew_for_what_was_right_in_between_if_only_at_a_second_look() -> None:
    rig = Rig([lose_node])
    auditor = rig.auditor(repairs_of_one_max=1)
    once(auditor)
    rig.changes = [nothing, find_node, lose_node]
    assert once(auditor).confirmed == ()
    assert once(auditor).held_back == ()
    assert rig.asked == ["snapshot"] * 2


@pytest.mark.parametrize("name", ["api", "store", "graph"])
def test_a_reading_that_fails_is_counted_and_the_next_round_works(name: str) -> None:
    rig = Rig([lose_node], failing={name})
    auditor = rig.auditor()
    assert once(auditor) == AuditReport(failed=(name,))
    assert figures(auditor)[f"penstock_audit_failed_readings_total {name}"] == 1.0
    assert figures(auditor)["penstock_audit_last_round_timestamp_seconds"] == 0.0
    rig.failing.clear()
    assert [one.kind for one in once(auditor).repaired] == [DifferenceKind.NODE_MISSING]


def test_a_second_reading_that_fails_confirms_nothing() -> None:
    rig = Rig([lose_node, lambda _triple: rig.failing.add("api")])
    report = once(rig.auditor())
    assert [one.kind for one in report.seen] == [DifferenceKind.NODE_MISSING]
    assert (report.confirmed, report.failed, rig.asked) == ((), ("api",), [])


def test_a_reading_that_hangs_is_a_reading_that_fails() -> None:
    rig = Rig()

    async def hang() -> None:
        await asyncio.Event().wait()

    auditor = rig.auditor(reading_s=0.01)
    auditor._read_store = hang  # type: ignore[assignment]
    assert once(auditor) == AuditReport(failed=("store",))


def test_a_repair_that_fails_is_counted_and_the_others_are_made() -> None:
    rig = Rig([all_of(lose_node, lose_pods("m0"))], failing={"snapshot"})
    auditor = rig.auditor()
    report = once(auditor)
    assert rig.asked == ["release m0"]
    assert report.failed == ("snapshot",)
    assert [one.kind for one in report.repaired] == [DifferenceKind.MEMBER_LEAKED]
    assert figures(auditor)["penstock_audit_failed_repairs_total snapshot"] == 1.0


def test_rounds_come_at_their_times_until_it_is_stopped() -> None:
    rig = Rig([nothing, lose_node], naps_max=4)
    auditor = rig.auditor(every_s=60.0, confirm_s=5.0)
    with pytest.raises(Stopped):
        asyncio.run(auditor.run())
    assert rig.slept == [60.0, 60.0, 5.0, 60.0]
    assert rig.asked == ["snapshot"]
    assert figures(auditor)["penstock_audit_rounds_total"] == 2.0


def test_everything_is_told_from_the_start_and_figures_follow_the_rounds() -> None:
    rig = Rig([lose_node])
    auditor = rig.auditor()
    told = figures(auditor)
    for kind in DifferenceKind:
        assert told[f"penstock_audit_differences {kind.value}"] == 0.0
    for repair in Repair:
        assert (f"penstock_audit_repairs_total {repair.value}" in told) is (repair is not Repair.NONE)
    once(auditor)
    told = figures(auditor)
    assert told["penstock_audit_differences node_missing"] == 1.0
    assert told["penstock_audit_repairs_total snapshot"] == 1.0
    assert told["penstock_audit_last_round_timestamp_seconds"] == NOW + 5.0
    assert told["penstock_audit_last_round_duration_seconds"] == 5.0
    find_node(rig.triple)
    once(auditor)
    assert figures(auditor)["penstock_audit_differences node_missing"] == 0.0


def test_two_auditors_share_no_figures() -> None:
    first, second = Rig().auditor(), Rig().auditor()
    once(first)
    assert figures(second)["penstock_audit_rounds_total"] == 0.0
