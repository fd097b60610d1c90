"""The contract of `Store`, checked for both implementations."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from changes import EVERYTHING, ended, event, job_lifecycle, live, member, new, opened, slots

from penstock.errors import BadRequest, Corrupt
from penstock.failpoints import REGISTRY, Crash, armed
from penstock.model.job import JobState
from penstock.protocol.intents import IntentKind
from penstock.sched.records import (
    AllocationGone,
    AllocationNew,
    Change,
    ClaimSet,
    DrainGone,
    DrainSet,
    ExceptionRecord,
    IdHighest,
    IntentDone,
    IntentNew,
    JobNodeSet,
    JobSizes,
    MemberDropped,
    NodeForgotten,
    NodeNew,
    QueueSet,
    Recorded,
    SlotChanged,
    SlotRecord,
    SlotsFreed,
)
from penstock.store.audit_rows import AuditJob, AuditMember
from penstock.store.port import Fenced, JobFilter, Retention, Store
from penstock.store.transactions import SUBMISSION_KEY_TTL_S, TRANSACTIONS

Instances = Callable[[], Store]

READS = {"accepts", "jobs", "log", "members", "placed_jobs"}
LIFECYCLE = {"open", "close"}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def recorded_after(instance: Instances, *batches: tuple[Change, ...], now: float = 1000.0) -> Recorded:
    """Returns the state that a second instance reads after the first recorded the batches."""
    async with opened(instance, instance) as (first, second):
        epoch, _ = await first.take_over(now)
        for batch in batches:
            await first.record(epoch, batch)
        return (await second.take_over(now))[1]


def crash_at(name: str) -> Callable[[str], None]:
    def crash(point: str) -> None:
        if point == name:
            raise Crash(name)

    return crash


def test_the_first_take_over_sets_the_beginning(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            assert await store.take_over(500.0) == (1, Recorded(began_at=500.0))
            assert await store.take_over(600.0) == (2, Recorded(began_at=500.0))

    run(scenario())


def test_every_type_of_change_is_read_back_as_recorded(instance: Instances) -> None:
    async def scenario() -> None:
        found = await recorded_after(instance, EVERYTHING)
        assert [row.new for row in found.jobs] == list(EVERYTHING[:3])
        assert [row.live.state.value for row in found.jobs] == ["RUN", "NEW", "INACTIVE"]
        assert found.jobs[0].live == EVERYTHING[6]
        assert [logged.context for logged in found.jobs[0].log] == [{"note": "tab\tline\nback\\slash 漢"}, {}]
        assert [logged.name for logged in found.jobs[0].log] == ["submit", "vali\\date"]
        assert list(found.allocations) == list(EVERYTHING[8:10])
        assert found.intents == EVERYTHING[10:12]
        assert found.nodes == (NodeNew("n0", 0), NodeNew("n1", 1))
        assert found.drains == EVERYTHING[14:15]
        assert found.queues == EVERYTHING[15:16]
        assert found.inadmissible == EVERYTHING[16:17]
        assert found.claims == (ClaimSet(1, ("n1", "n\\0"), 5.5),)
        assert found.jobs[0].members == (EVERYTHING[18].member, EVERYTHING[17].member)
        assert found.jobs[1].members == ()
        nodes = {"n0": {"cpu": "500"}, "n1": {"core": "0-1", "gpu": "0"}}
        assert found.jobs[0].resources_by_node == nodes
        assert found.highest == IdHighest(3, 8, 1)
        assert found.keys == {"k1": (1, 2)}
        async with opened(instance) as (store,):
            assert await store.members(1) == list(found.jobs[0].members)
            assert await store.members(9) == []
            overviews = {row.new.id: row for row in await store.jobs(JobFilter())}
            assert overviews[1].live == found.jobs[0].live
            assert overviews[1].sizes == JobSizes(2, frozenset({"n0"}), nodes)
            assert overviews[2].sizes == JobSizes()

    run(scenario())


def test_one_batch_and_single_changes_have_the_same_effect(instance: Instances) -> None:
    async def scenario() -> None:
        together = await recorded_after(instance, EVERYTHING)
        async with opened(instance) as (store,):
            epoch, found = await store.take_over(1000.0)
            assert found == together
            again = tuple(
                (replace(change, id=change.id + 10) if hasattr(change, "id") else change)
                for change in EVERYTHING[:8]
            )
            for change in again:
                await store.record(epoch, [change])
            rows = await store.jobs(JobFilter(ids=(1, 2, 3, 11, 12, 13)))
            assert [row.live.state for row in rows[:3]] == [row.live.state for row in rows[3:]]
            assert await store.log(11) == await store.log(1)

    run(scenario())


def part(number: int, start_s: int, *held: int) -> AllocationNew:
    return AllocationNew(1, number, start_s, 9, {}, slots(*held))


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        (
            (part(0, 0, 0, 1), AllocationGone(1, 1.0), part(0, 5, 0)),
            [(5, (0,))],
        ),
        ((part(0, 0, 0, 1, 2), SlotsFreed(1, (2, 0))), [(0, (1,))]),
        ((part(0, 0, 0, 2), SlotsFreed(1, (2,)), part(1, 3, 3)), [(0, (0,)), (3, (3,))]),
        ((part(0, 0, 0, 2), part(1, 3, 3), SlotsFreed(1, (2, 0), (0,))), [(3, (3,))]),
        (
            (part(0, 0, 0, 2), part(1, 3, 3), SlotsFreed(1, (3,), (1,)), SlotsFreed(1, (0,)), part(1, 4, 4)),
            [(0, (2,)), (4, (4,))],
        ),
        ((part(0, 0, 0), SlotsFreed(1, (0,), (0,)), part(1, 7, 1)), [(7, (1,))]),
        ((part(0, 0, 0, 1), SlotsFreed(1, (0,)), AllocationGone(1, 2.0)), []),
    ],
    ids=["requeued", "partly free", "extended", "a part ends", "one ends, one shrinks", "renewed", "free"],
)
def test_allocations_follow_the_order_of_the_changes(
    instance: Instances, changes: tuple[Change, ...], left: list[tuple[int, tuple[int, ...]]]
) -> None:
    async def scenario() -> None:
        found = await recorded_after(instance, (new(1), *changes))
        kept = [(row.start_s, tuple(slot.number for slot in row.slots)) for row in found.allocations]
        assert kept == left
        one_by_one = await recorded_after(
            instance, (new(2),), *((replace(change, job=2),) for change in changes if hasattr(change, "job"))
        )
        assert [replace(row, job=1) for row in one_by_one.allocations if row.job == 2] == list(
            found.allocations
        )

    run(scenario())


def test_members_are_written_one_by_one_and_the_last_entry_wins(instance: Instances) -> None:
    async def scenario() -> None:
        found = await recorded_after(
            instance,
            (
                new(1),
                new(2),
                member(1, "a", number=1),
                member(1, "b", "running", "n0", number=0),
                member(2, "a", number=5),
                live(1, JobState.RUN),
            ),
            (
                member(1, "a", "placing", "n1", number=1),
                member(1, "c", number=2),
                member(1, "a", "placed", "n1", number=1),
                MemberDropped(1, "b"),
                MemberDropped(1, "never"),
                member(1, "d", number=3),
                MemberDropped(1, "d"),
                member(1, "d", number=4),
            ),
        )
        assert [(one.key, one.phase.value) for one in found.jobs[0].members] == [
            ("a", "placed"),
            ("c", "waiting"),
            ("d", "waiting"),
        ]
        assert [one.number for one in found.jobs[0].members] == [1, 2, 4]
        assert [one.key for one in found.jobs[1].members] == ["a"]

    run(scenario())


def test_an_inactive_job_keeps_its_members_until_it_is_pruned(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            epoch, _ = await store.take_over(0.0)
            nodes = JobNodeSet(1, "n0", {"core": "0"})
            await store.record(
                epoch, [new(1), new(2, depends_on=[1]), member(1, "a", "ended", "n0"), nodes, ended(1)]
            )
            _, found = await store.take_over(0.0)
            assert [(row.new.id, row.members, row.resources_by_node) for row in found.jobs] == [
                (1, (), {}),
                (2, (), {}),
            ]
            (row,) = await store.jobs(JobFilter(ids=(1,)))
            assert row.sizes == JobSizes(1, frozenset({"n0"}), {"n0": {"core": "0"}})
            assert [one.key for one in await store.members(1)] == ["a"]
            epoch, _ = await store.take_over(0.0)
            await store.record(epoch, [ended(2)])
            assert len(await store.prune(epoch, 1000.0, Retention(count=0))) == 2
            assert await store.members(1) == []

    run(scenario())


def test_the_last_setting_wins(instance: Instances) -> None:
    async def scenario() -> None:
        found = await recorded_after(
            instance,
            (NodeNew("a", 0), DrainSet("a", "1", "x", 1.0), DrainGone("a"), DrainSet("a", "2", "x", 2.0)),
            (DrainSet("b", "3", "x", 3.0), DrainGone("b"), DrainGone("never"), NodeForgotten("a")),
            (QueueSet("q", True, True), QueueSet("q", False, True, "why"), NodeNew("a", 7)),
            (IdHighest(9, 2, 7), IdHighest(4, 5, 1)),
        )
        assert found.drains == (DrainSet("a", "2", "x", 2.0),)
        assert found.queues == (QueueSet("q", False, True, "why"),)
        assert found.nodes == (NodeNew("a", 7),)
        assert found.highest == IdHighest(9, 5, 7)

    run(scenario())


def test_the_latest_data_of_a_slot_count(instance: Instances) -> None:
    def changed(slot: int, what: str, job: int = 1) -> SlotChanged:
        return SlotChanged(job, SlotRecord(slot, {"grants": [[what, 1]]}))

    changes = (
        *(new(1), part(0, 0, 0, 1), changed(0, "a"), changed(0, "b"), changed(1, "c")),
        *(SlotsFreed(1, (1,)), changed(0, "d"), part(1, 0, 2), changed(2, "e")),
        *(new(2), AllocationNew(2, 0, 0, 9, {}, slots(0)), changed(0, "f", 2)),
    )

    async def scenario() -> None:
        found = await recorded_after(instance, changes)
        kept = {
            (row.job, row.part): [(slot.number, slot.data) for slot in row.slots] for row in found.allocations
        }
        assert kept == {
            (1, 0): [(0, {"grants": [["d", 1]]})],
            (1, 1): [(2, {"grants": [["e", 1]]})],
            (2, 0): [(0, {"grants": [["f", 1]]})],
        }

    run(scenario())


CONTRADICTIONS: dict[str, tuple[Change, ...]] = {
    "a job created twice": (new(1),),
    "an event of no job": (event(9, 0),),
    "a repeated event": (event(1, 0),),
    "an event that skips a number": (event(1, 2),),
    "events with a gap": (event(1, 1), event(1, 3)),
    "a state of no job": (live(9),),
    "a state before its job is created": (live(9), new(9)),
    "an allocation of no job": (AllocationNew(9, 0, 0, 1, {}),),
    "an allocation before its job is created": (AllocationNew(9, 0, 0, 1, {}), new(9)),
    "a part allocated twice": (AllocationNew(1, 0, 0, 1, {}),),
    "a slot allocated twice": (AllocationNew(1, 1, 0, 1, {}, slots(5)),),
    "a slot freed twice": (SlotsFreed(1, (3,)),),
    "a freed slot changed": (SlotChanged(1, SlotRecord(3, {})),),
    "a slot changed before it is allocated": (
        SlotChanged(1, SlotRecord(6, {})),
        AllocationNew(1, 1, 0, 1, {}, slots(6)),
    ),
    "a slot freed twice in one change": (SlotsFreed(1, (5, 5)),),
    "slots freed without an allocation": (SlotsFreed(2, (0,)),),
    "a part ended that has slots": (SlotsFreed(1, (), (0,)),),
    "a part ended twice": (SlotsFreed(1, (5,), (0,)), SlotsFreed(1, (), (0,))),
    "a part ended before its slots": (SlotsFreed(1, (), (0,)), SlotsFreed(1, (5,))),
    "a member of no job": (member(9, "a"),),
    "a member before its job is created": (member(9, "a"), new(9)),
    "a node of no job": (JobNodeSet(9, "n0", {}),),
    "an allocation freed twice": (AllocationGone(1, 1.0), AllocationGone(1, 1.0)),
    "freeing without an allocation": (AllocationGone(2, 1.0),),
    "an intent created twice": (IntentNew(1, 1, IntentKind.PLACE, {}),),
    "an intent of no job": (IntentNew(5, 9, IntentKind.PLACE, {}),),
    "an intent completed twice": (IntentDone(1), IntentDone(1)),
    "an intent completed before it is created": (IntentDone(6), IntentNew(6, 1, IntentKind.END, {})),
    "a node registered twice": (NodeNew("n0", 4),),
    "a rank used twice": (NodeNew("n9", 0),),
    "an unknown node removed": (NodeForgotten("n9"),),
}


def test_contradictions_are_refused_and_change_nothing(instance: Instances) -> None:
    async def scenario() -> None:
        base = (
            *(new(1), new(2), event(1, 0), AllocationNew(1, 0, 0, 9, {}, slots(3, 5))),
            *(SlotsFreed(1, (3,)), member(1, "a")),
            *(IntentNew(1, 1, IntentKind.PLACE, {}), NodeNew("n0", 0), IdHighest(2, 1, 0)),
        )
        before = await recorded_after(instance, base)
        async with opened(instance) as (store,):
            epoch, _ = await store.take_over(1000.0)
            for name, changes in CONTRADICTIONS.items():
                with pytest.raises(Corrupt):
                    await store.record(
                        epoch, [QueueSet(name, True, True), new(50), *changes, IdHighest(99, 9, 9)]
                    )
                assert await store.jobs(JobFilter(ids=(50,))) == [], name
            assert (await store.take_over(1000.0))[1] == before

    run(scenario())


def test_values_that_cannot_be_stored_are_refused(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            epoch, _ = await store.take_over(1.0)
            refused = (
                new(1, x=object()),
                new(1, x=1j),
                new(1, x="a\0b"),
                new(1, name="\0"),
                live(7, incomplete_reason="\0"),
            )
            members = (member(7, "\0"), member(7, "a", cause="\0"), member(7, "a", name="\ud800"))
            for wrong in (*refused, *members, event(7, 0, "memo", x="\ud800"), event(7, 0, "\0")):
                with pytest.raises(BadRequest):
                    await store.record(epoch, [new(7), wrong])
            assert await store.jobs(JobFilter()) == []
            kept = [new(1, x="\\u0000"), event(1, 0, "memo", x="\0")]
            await store.record(epoch, kept)
            assert (await store.log(1))[0].context == {"x": "\0"}

    run(scenario())


def test_a_later_change_of_an_argument_does_not_change_the_record(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            epoch, _ = await store.take_over(1.0)
            context: dict[str, object] = {"a": [1]}
            await store.record(epoch, [new(1, list=context), event(1, 0, "memo", inner=context)])
            context["a"] = 2
            (await store.log(1))[0].context.clear()
            assert (await store.log(1))[0].context == {"inner": {"a": [1]}}
            assert (await store.jobs(JobFilter()))[0].new.spec == {"list": {"a": [1]}}

    run(scenario())


def test_an_older_epoch_is_fenced_and_writes_nothing(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance, instance) as (old, young):
            first, _ = await old.take_over(1.0)
            second, _ = await young.take_over(2.0)
            for changes in ([new(1)], []):
                with pytest.raises(Fenced) as caught:
                    await old.record(first, changes)
                assert (caught.value.ours, caught.value.theirs) == (first, second)
            with pytest.raises(Fenced):
                await old.prune(first, 3.0, Retention())
            assert await old.jobs(JobFilter()) == []
            await young.record(second, [])
            await young.record(second, [new(1)])

    run(scenario())


def test_the_state_belongs_to_the_first_cluster_that_claims_it(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance, instance) as (first, second):
            assert await first.claim_cluster("one") == "one"
            assert await second.claim_cluster("two") == "one"
            epoch, _ = await first.take_over(1.0)
            assert await second.claim_cluster("one") == "one"
            await first.record(epoch, [new(1)])  # A claim does not begin an epoch.

    run(scenario())


@pytest.mark.parametrize(("when", "kept"), [("before", "another"), ("after", "one")])
def test_a_crash_before_the_commit_of_a_claim_loses_it_and_one_after_keeps_it(
    instance: Instances, when: str, kept: str
) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            with armed(crash_at(f"store.claim_cluster.{when}")), pytest.raises(Crash):
                await store.claim_cluster("one")
        async with opened(instance) as (store,):
            assert await store.claim_cluster("another") == kept

    run(scenario())


@pytest.mark.parametrize("name", ["take_over", "record", "prune"])
def test_a_crash_before_the_commit_loses_all_and_one_after_loses_nothing(
    instance: Instances, name: str
) -> None:
    async def scenario() -> None:
        for when, kept in (("before", False), ("after", True)):
            async with opened(instance) as (store,):
                epoch, found = await store.take_over(1000.0)
                job = found.highest.job + 1
                await store.record(epoch, [new(job), ended(job, 10.0), event(job, 0), IdHighest(job, 0, 0)])
                attempts: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
                    "take_over": partial(store.take_over, 1000.0),
                    "record": partial(store.record, epoch, [event(job, 1), NodeNew(when, job)]),
                    "prune": partial(store.prune, epoch, 1e9, Retention(age_s=1.0)),
                }
                with armed(crash_at(f"store.{name}.{when}")), pytest.raises(Crash):
                    await attempts[name]()
            async with opened(instance) as (store,):
                later, found = await store.take_over(1000.0)
                happened = {
                    "take_over": later == epoch + 2,
                    "record": len(await store.log(job)) == 2 and found.nodes != (),
                    "prune": not await store.jobs(JobFilter(ids=(job,))),
                }
                assert happened[name] is kept

    run(scenario())


def test_every_writing_method_is_a_transaction_with_two_failpoints() -> None:
    for name in TRANSACTIONS:
        assert {f"store.{name}.before", f"store.{name}.after"} <= REGISTRY.keys()
    methods = {name for name in vars(Store) if not name.startswith("_")}
    assert methods - READS - LIFECYCLE == set(TRANSACTIONS) - {"migrate"}


def test_a_submission_key_outlives_its_pruned_jobs_until_it_expires(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            epoch, _ = await store.take_over(0.0)
            await store.record(epoch, [new(1, key="a", seen_at=10.0), new(2, key="a", seen_at=10.0), new(3)])
            await store.record(epoch, [new(4, key="b", seen_at=SUBMISSION_KEY_TTL_S)])
            await store.record(epoch, [ended(job) for job in (1, 2, 3, 4)])
            assert len(await store.prune(epoch, 1000.0, Retention(count=0))) == 4
            epoch, found = await store.take_over(1000.0)
            assert found.keys == {"a": (1, 2), "b": (4,)}
            epoch, found = await store.take_over(SUBMISSION_KEY_TTL_S + 11.0)
            assert found.keys == {"b": (4,)}
            await store.prune(epoch, SUBMISSION_KEY_TTL_S + 11.0, Retention())
            assert (await store.take_over(0.0))[1].keys == {"b": (4,)}

    run(scenario())


def test_prune_keeps_the_newest_jobs_the_dependencies_and_the_highest_ids(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            epoch, _ = await store.take_over(0.0)
            await store.record(epoch, [change for job in range(1, 7) for change in (new(job), event(job, 0))])
            await store.record(epoch, [ended(job, 100.0 * job) for job in range(1, 7)])
            await store.record(
                epoch, [new(7, depends_on=[2]), IntentNew(1, 3, IntentKind.END, {}), IdHighest(7, 1, -1)]
            )
            assert await store.prune(epoch, 1000.0, Retention(None, None)) == ()
            assert await store.prune(epoch, 550.0, Retention(age_s=100.0, count=None)) == (1, 4)
            assert [row.new.id for row in await store.jobs(JobFilter())] == [7, 6, 5, 3, 2]
            assert await store.prune(epoch, 550.0, Retention(age_s=None, count=1)) == (5,)
            assert await store.prune(epoch, 550.0, Retention(age_s=None, count=1)) == ()
            assert await store.log(1) == []
            _, found = await store.take_over(0.0)
            assert found.highest == IdHighest(7, 1, -1)
            assert [row.new.id for row in found.jobs] == [2, 7]
            assert len(found.jobs[0].log) == 1

    run(scenario())


FILTERED: list[tuple[JobFilter, list[int]]] = [
    (JobFilter(), [4, 3, 2, 1]),
    (JobFilter(limit=2), [4, 3]),
    (JobFilter(limit=0), []),
    (JobFilter(ids=(1, 4, 99)), [4, 1]),
    (JobFilter(ids=()), []),
    (JobFilter(states=("INACTIVE",)), [3, 2]),
    (JobFilter(states=("RUN", "NEW")), [4, 1]),
    (JobFilter(results=("FAILED",)), [3]),
    (JobFilter(queue="long"), [3]),
    (JobFilter(name="other"), [4]),
    (JobFilter(owner="ada", name="sleep"), [3, 2, 1]),
    (JobFilter(owner="bob"), []),
    (JobFilter(since=200.0), [3]),
]


def test_a_filter_returns_matching_jobs_newest_first(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            epoch, _ = await store.take_over(0.0)
            await store.record(epoch, [new(1), new(2), new(3), new(4, name="other"), event(1, 0)])
            await store.record(
                epoch, [live(1, JobState.RUN), ended(2, 200.0), ended(3, 300.0, "FAILED", "long")]
            )
            for job_filter, ids in FILTERED:
                rows = await store.jobs(job_filter)
                assert [row.new.id for row in rows] == ids, job_filter

    run(scenario())


def test_placed_jobs_are_the_active_jobs_with_an_assigned_member(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            epoch, _ = await store.take_over(0.0)
            await store.record(epoch, [new(job) for job in range(1, 7)])
            await store.record(
                epoch,
                [
                    live(4, JobState.RUN, exception=ExceptionRecord("cancel", 0, "")),
                    member(4, "g", "lost", "n1"),
                    live(1, JobState.RUN, placed_at=3.0, incomplete_since=4.0, incomplete_reason="why"),
                    member(1, "b", "waiting", number=1, seen_at=5.5),
                    member(1, "c", "ended", number=2),
                    member(1, "a", "running", "n0", number=0),
                    live(2, JobState.SCHED),
                    member(2, "d", "waiting"),
                    member(2, "e", "waiting"),
                    live(3, JobState.CLEANUP),
                    member(3, "f", "ended", "n0"),
                    ended(5),
                    member(5, "h", "running", "n0"),
                ],
            )
            members = (AuditMember("a", "n0", "running", 0.0), AuditMember("b", "", "waiting", 5.5))
            assert await store.placed_jobs() == [
                AuditJob(1, members, 3.0, 4.0, "why", ending=False),
                AuditJob(4, (AuditMember("g", "n1", "lost", 0.0),), None, None, "", ending=True),
            ]

    run(scenario())


def test_an_eventlog_is_read_in_order(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            epoch, _ = await store.take_over(0.0)
            await store.record(epoch, [new(1), *(event(1, number, f"e{number}") for number in range(12))])
            await store.record(epoch, [event(1, 12, "e12")])
            assert [logged.name for logged in await store.log(1)] == [f"e{number}" for number in range(13)]
            assert await store.log(2) == []

    run(scenario())


def test_many_complete_jobs_in_one_record_leave_only_history(instance: Instances) -> None:
    async def scenario() -> None:
        changes = [change for job in range(1, 301) for change in job_lifecycle(job)]
        found = await recorded_after(instance, tuple(changes))
        assert (found.jobs, found.allocations, found.intents) == ((), (), ())
        assert found.highest == IdHighest(300, 300, 0)
        async with opened(instance) as (store,):
            assert len(await store.jobs(JobFilter(states=("INACTIVE",)))) == 300
            assert len(await store.log(300)) == 11

    run(scenario())


# Changes that a store does not accept


def test_a_store_says_which_changes_it_would_not_accept_and_writes_nothing(instance: Instances) -> None:
    async def scenario() -> None:
        async with opened(instance) as (store,):
            epoch, before = await store.take_over(1000.0)
            good, bad = (new(1), live(1)), (new(2), replace(new(3), name="a\x00b"))
            assert await store.accepts(epoch, good)
            assert not await store.accepts(epoch, (*good, *bad))
            assert not await store.accepts(epoch, (IntentDone(77),))
            await store.record(epoch, good)
            assert await store.accepts(epoch, (live(1),))
            assert len(await store.jobs(JobFilter())) == 1
            later, _ = await store.take_over(1001.0)
            assert later == epoch + 1
            with pytest.raises(Fenced):
                await store.accepts(epoch, good)
            assert before.jobs == ()

    run(scenario())
