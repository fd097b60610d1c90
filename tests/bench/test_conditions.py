"""The report of `bench.conditions`: which pods count, from when, and what is missing."""

from __future__ import annotations

from bench.conditions import Conditions, delays, queue_of, report
from bench.kube.plane import Group
from bench.kube.usage import UsageDelta
from penstock.kube.types import Condition, ObjectMeta, Pod, PodStatus
from penstock.kube.watch import Upserted


def pod(name: str, reason: str = "", message: str = "") -> Pod:
    conditions = (Condition(type="PodScheduled", status="False", reason=reason, message=message),)
    return Pod(metadata=ObjectMeta(name=name), status=PodStatus(conditions=conditions if reason else ()))


def test_a_queue_has_gangs_and_single_pods() -> None:
    groups = queue_of(20)
    assert [group.size for group in groups] == [8, 1, 8, 1, 2]
    assert groups[0].labels == {"penstock.dev/group": "group-0", "penstock.dev/group-size": "8"}
    assert groups[1].labels == {}


def test_only_a_true_condition_counts_from_the_creation_of_the_whole_gang() -> None:
    seen = Conditions()
    for name in ("a-0", "a-1", "b-0"):
        seen.handle(Upserted(pod(name)))
    seen.created_s = {"a-0": 10.0, "a-1": 12.0, "b-0": 10.0}
    seen.handle(Upserted(pod("a-0", "GroupIncomplete", "1 of 2 members are there")))
    seen.handle(Upserted(pod("a-1", "Unschedulable", "the next scheduling cycle will consider it")))
    assert seen.told_s == {}
    seen.handle(Upserted(pod("a-0", "Unschedulable", "cpu: needs 1, no node has any")))
    assert list(seen.told_s) == ["a-0"]
    seen.told_s["a-0"] = 15.0
    groups = [Group("a", 2), Group("b", 1)]
    assert delays(groups, seen) == [3.0, None, None]
    table = report(groups, groups[1:], seen, UsageDelta(2.0, {"scheduler": 0.5}, 0.25), 1.0)
    assert table[1].split() == ["head", "(1", "jobs)", "1", "0", "0.0", "0.0", "0.0", "5"]
    assert table[2].split() == ["all", "3", "1", "3.0", "3.0", "3.0", "30"]
    assert "scheduler 0.5 s" in table[-1]
    assert "unrelated processes 25%" in table[-1]
