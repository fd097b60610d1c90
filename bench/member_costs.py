"""What members cost: one event in a large group, and the restore of a workload with many ended members.

The event is the end of a member, from the fact to the statements for PostgreSQL: CPU time, and the bytes that
the store is sent. The restore is measured from the recorded state to the end of the first snapshot; its time
must follow the live members, not the ended ones. The eventlog is read at a restore too: members that are
replaced one at a time, each alone on its node, log the most. `before` is what the same functions measured at
commit 3a9de8e, on the machine on which both were last compared.

`python -m bench.member_costs` prints a table.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.protocol.facts import Capacity, MemberSet, MemberStatus, NodeSet, Phase, Snapshot, WorkloadSet
from penstock.sched.records import Change, Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.scheduler import Scheduler, Step
from penstock.sched.settings import Settings
from penstock.store.batch import build_batch
from penstock.store.memory import MemoryStore

__all__ = ["MemberEventCost", "Restore", "measure_member_event", "measure_restore"]

_NOW: Final = 1_000_000.0
_GROUP: Final = 5_000
_NODES: Final = 500
_LIVE: Final = 100
_ROUNDS: Final = 15
_ALONE: Final = 4_000  # members that are replaced one at a time


@dataclass(frozen=True, slots=True)
class MemberEventCost:
    cpu_s: float  # median
    written_bytes: int  # median


@dataclass(frozen=True, slots=True)
class Restore:
    cpu_s: float
    events: int  # in the eventlogs that are read


_BEFORE_EVENT: Final = MemberEventCost(0.070, 1_029_428)
_BEFORE_RESTORE_S: Final[dict[int, float | None]] = {4_000: 0.707, 40_000: None}  # None: took too long


class _Run:
    """A scheduler with one workload, and a store that records its steps."""

    def __init__(self, nodes: int, *, keep: bool) -> None:
        self.nodes = tuple(_node(number) for number in range(nodes))
        self.scheduler = scheduler_from(Settings(forecast_depth=0), Recorded(), _NOW)
        self.store = MemoryStore() if keep else None
        if self.store is not None:
            asyncio.run(self.store.take_over(_NOW))
        self.handle(Snapshot(nodes=self.nodes))

    def handle(self, *facts: Snapshot | WorkloadSet | MemberSet | MemberStatus) -> Step:
        step = self.scheduler.handle(facts, _NOW)
        self._record(step.changes)
        return step

    def start(self) -> None:
        """Runs cycles until nothing more starts, and reports every placed member as running."""
        while self.scheduler.is_dirty:
            cycle = self.scheduler.plan(_NOW, deep=False)
            while True:
                try:
                    next(cycle)
                except StopIteration as done:
                    self._record(done.value.changes)
                    break
        waiting = [
            member
            for job in self.scheduler.jobs.values()
            for member in job.live_members()
            if member.started_at is None
        ]
        self.handle(*(MemberStatus(one.key, Phase.RUNNING, _NOW, one.node) for one in waiting))

    def _record(self, changes: Sequence[Change]) -> None:
        if self.store is not None:
            asyncio.run(self.store.record(1, changes))


def measure_member_event(members: int = _GROUP, nodes: int = _NODES) -> MemberEventCost:
    """One member of a running group ends."""
    run = _Run(nodes, keep=False)
    run.handle(WorkloadSet("w", "w", members), *(_member(number) for number in range(members)))
    run.start()
    (job,) = run.scheduler.jobs.values()
    ends = [MemberStatus(one.key, Phase.ENDED, _NOW, one.node) for one in job.live_members()]
    spent: list[float] = []
    written: list[int] = []
    gc.collect()
    for end in ends[: _ROUNDS + 1]:
        began = time.process_time()
        step = run.scheduler.handle([end], _NOW)
        batch = build_batch(step.changes)
        spent.append(time.process_time() - began)
        rows = sum(len(statement.rows) for statement in batch.statements)
        written.append(rows + len(batch.jobs) + len(batch.events))
    return MemberEventCost(statistics.median(spent[1:]), int(statistics.median(written[1:])))


def measure_restore(ended: int, live: int = _LIVE, *, one_at_a_time: bool = False) -> Restore:
    """The restore of a running workload in which `ended` members have ended and were replaced.

    They end in large batches, or one at a time, each alone on its node.
    """
    cpu_milli = 16_000 if one_at_a_time else 1_000
    run = _Run(live, keep=True)
    workload = WorkloadSet("w", "w", live)
    run.handle(workload, *(_member(number, cpu_milli) for number in range(live)))
    run.start()
    assert run.store is not None
    number = live
    while number < live + ended:
        (job,) = run.scheduler.jobs.values()
        left = 1 if one_at_a_time else min(live // 2, live + ended - number)
        gone = job.live_members()[:left]
        run.handle(*(MemberStatus(one.key, Phase.ENDED, _NOW, one.node) for one in gone))
        run.handle(*(_member(number + more, cpu_milli) for more in range(left)))
        run.start()
        number += left
    (job,) = run.scheduler.jobs.values()
    members = job.live_members()
    snapshot = Snapshot(
        nodes=run.nodes,
        workloads=(workload,),
        members=tuple(_member(one.index, cpu_milli) for one in members),
        statuses=tuple(MemberStatus(one.key, Phase.RUNNING, _NOW, one.node) for one in members),
    )
    _, recorded = asyncio.run(run.store.take_over(_NOW))
    gc.collect()
    began = time.process_time()
    scheduler: Scheduler = scheduler_from(Settings(), recorded, _NOW)
    scheduler.handle([snapshot], _NOW)
    spent_s = time.process_time() - began
    (again,) = scheduler.jobs.values()
    assert [one.key for one in again.live_members()] == [one.key for one in members]
    return Restore(spent_s, sum(len(row.log) for row in recorded.jobs))


def _node(number: int) -> NodeSet:
    units = {"cpu": 16_000, "memory": 64 << 30, "pods": 110}
    return NodeSet(
        f"node{number}", tuple(Capacity(resource, count, divisible=True) for resource, count in units.items())
    )


def _member(number: int, cpu_milli: int = 1_000) -> MemberSet:
    requests = (("cpu", cpu_milli), ("memory", 1 << 30), ("pods", 1))
    return MemberSet("w", f"w-{number}", number, requests, recreated=True)


def main() -> None:
    event = measure_member_event()
    before = _BEFORE_EVENT
    print(f"one member event in a group of {_GROUP:,}:")
    print(f"  CPU time {1e3 * before.cpu_s:.2f} -> {1e3 * event.cpu_s:.2f} ms")
    print(f"  written  {before.written_bytes:,} -> {event.written_bytes:,} bytes")
    for ended, before_s in _BEFORE_RESTORE_S.items():
        was = "too long to measure" if before_s is None else f"{before_s:.2f} s"
        restore = measure_restore(ended)
        print(f"restore of {_LIVE} live and {ended:,} ended members: {was} -> {restore.cpu_s:.2f} s")
    alone = measure_restore(_ALONE, one_at_a_time=True)
    print(f"the same, {_ALONE:,} ended one at a time: {alone.cpu_s:.2f} s, {alone.events:,} events read")


if __name__ == "__main__":
    main()
