"""The store in memory, for tests and the simulator. It gives the same answers as PostgreSQL.

The state is in `MemoryTables`, which outlives a store: a second store on the same tables acts as a second
instance, and dropping a store acts as a crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from penstock.errors import PenstockError
from penstock.model.job import JobEvent, JobState
from penstock.sched.member_states import MemberPhase
from penstock.sched.records import (
    Change,
    JobLive,
    JobNew,
    JobOverview,
    JobRow,
    JobSizes,
    MemberRecord,
    NodeResources,
    Recorded,
    SlotRecord,
    member_count,
)
from penstock.store.audit_rows import AuditJob, AuditMember
from penstock.store.memory_tables import (
    Applier,
    MemoryTables,
    Transaction,
    copy_event,
    copy_live,
    copy_new,
    json_copy,
)
from penstock.store.port import Fenced, JobFilter, Retention
from penstock.store.transactions import PRUNE_BATCH_MAX, SUBMISSION_KEY_TTL_S

__all__ = ["MemoryStore"]


class MemoryStore:
    def __init__(self, shared: MemoryTables | None = None) -> None:
        self.tables: Final = shared if shared is not None else MemoryTables()

    async def open(self) -> None:
        """Does nothing: memory is always available."""

    async def close(self) -> None:
        """Does nothing: the state stays in the tables."""

    async def claim_cluster(self, cluster: str) -> str:
        instance = self.tables.instance
        transaction = Transaction()

        def claim() -> None:
            transaction.put(instance, "cluster", instance["cluster"] or cluster)

        transaction.run("claim_cluster", claim)
        return str(instance["cluster"])

    async def take_over(self, now: float) -> tuple[int, Recorded]:
        instance = self.tables.instance
        transaction = Transaction()

        def begin() -> None:
            transaction.put(instance, "epoch", instance["epoch"] + 1)
            if instance["began_at"] is None:
                transaction.put(instance, "began_at", now)

        transaction.run("take_over", begin)
        return instance["epoch"], self._recorded(now)

    async def record(self, epoch: int, changes: Sequence[Change]) -> None:
        transaction = Transaction()

        def write() -> None:
            self._check_epoch(epoch)
            applier = Applier(self.tables, transaction)
            for change in changes:
                applier.apply(change)

        transaction.run("record", write)

    async def accepts(self, epoch: int, changes: Sequence[Change]) -> bool:
        self._check_epoch(epoch)
        transaction = Transaction()
        try:
            applier = Applier(self.tables, transaction)
            for change in changes:
                applier.apply(change)
        except PenstockError:
            return False
        finally:
            transaction.undo()
        return True

    async def jobs(self, job_filter: JobFilter) -> list[JobOverview]:
        limit = max(0, job_filter.limit)
        found: list[JobOverview] = []
        for number in sorted(self.tables.new, reverse=True):
            if len(found) == limit:
                break
            new, live = self.tables.new[number], self.tables.live[number]
            if _matches(new, live, job_filter):
                found.append(JobOverview(copy_new(new), copy_live(live), self._sizes(number)))
        return found

    def _sizes(self, job: int) -> JobSizes:
        members = self.tables.members.get(job, {}).values()
        nodes = frozenset(member.node for member in members if member.node)
        return JobSizes(member_count(members), nodes, self._nodes_of(job))

    def _nodes_of(self, job: int) -> dict[str, NodeResources]:
        nodes = self.tables.job_nodes.get(job, {})
        return {node: dict(resources) for node, resources in sorted(nodes.items())}

    async def members(self, job: int) -> list[MemberRecord]:
        return list(self._members_of(job))

    def _members_of(self, job: int) -> tuple[MemberRecord, ...]:
        members = self.tables.members.get(job, {}).values()
        return tuple(sorted(members, key=lambda member: (member.number, member.key)))

    def _slots_of(self, job: int, part: int) -> tuple[SlotRecord, ...]:
        slots = self.tables.slots.get(job, {})
        return tuple(
            replace(slot, data=json_copy(slot.data)) for _, (of, slot) in sorted(slots.items()) if of == part
        )

    async def log(self, job: int) -> list[JobEvent]:
        return [copy_event(event) for event in self.tables.logs.get(job, ())]

    async def placed_jobs(self) -> list[AuditJob]:
        active = sorted(job for job, live in self.tables.live.items() if live.state is not JobState.INACTIVE)
        found: list[AuditJob] = []
        for job in active:
            members = tuple(
                AuditMember(member.key, member.node, member.phase.value, member.seen_at)
                for member in self._members_of(job)
                if member.phase is not MemberPhase.ENDED
            )
            if any(member.phase != MemberPhase.WAITING.value for member in members):
                record = self.tables.live[job].record
                found.append(
                    AuditJob(
                        job,
                        members,
                        record.placed_at,
                        record.incomplete_since,
                        record.incomplete_reason,
                        record.exception is not None,
                    )
                )
        return found

    async def prune(self, epoch: int, now: float, retention: Retention) -> tuple[int, ...]:
        transaction = Transaction()
        pruned: list[int] = []

        def delete() -> None:
            self._check_epoch(epoch)
            pruned.extend(self._prunable(now, retention))
            tables = self.tables
            for job in pruned:
                of_jobs = (
                    tables.new,
                    tables.live,
                    tables.logs,
                    tables.members,
                    tables.job_nodes,
                    tables.claims,
                )
                for table in of_jobs:
                    transaction.remove(table, job)
            for key, jobs in list(self.tables.submissions.items()):
                kept = tuple(job for job in jobs if job[1] >= now - SUBMISSION_KEY_TTL_S)
                if not kept:
                    transaction.remove(self.tables.submissions, key)
                elif kept != jobs:
                    transaction.put(self.tables.submissions, key, kept)

        transaction.run("prune", delete)
        return tuple(sorted(pruned))

    def _prunable(self, now: float, retention: Retention) -> list[int]:
        tables = self.tables
        ends = {
            job: live.ended_at if live.ended_at is not None else tables.new[job].seen_at
            for job, live in tables.live.items()
            if live.state is JobState.INACTIVE
        }
        oldest_first = sorted(ends, key=lambda job: (ends[job], job))
        excess = 0 if retention.count is None else max(0, len(oldest_first) - retention.count)
        before = None if retention.age_s is None else now - retention.age_s
        needed = self._dependency_targets() | set(tables.allocations)
        needed |= {intent.job for intent in tables.intents.values()}
        prunable = [
            job
            for position, job in enumerate(oldest_first)
            if (position < excess or (before is not None and ends[job] < before)) and job not in needed
        ]
        return prunable[:PRUNE_BATCH_MAX]

    def _check_epoch(self, epoch: int) -> None:
        current = self.tables.instance["epoch"]
        if epoch != current:
            raise Fenced(epoch, current)

    def _dependency_targets(self) -> set[int]:
        """Returns the jobs that an active job depends on."""
        found: set[int] = set()
        for job, live in self.tables.live.items():
            if live.state is not JobState.INACTIVE:
                depends_on = self.tables.new[job].spec.get("depends_on")
                if isinstance(depends_on, list):
                    found.update(item for item in depends_on if type(item) is int)
        return found

    def _row(self, job: int, is_active: bool) -> JobRow:
        new, live = copy_new(self.tables.new[job]), copy_live(self.tables.live[job])
        log = tuple(copy_event(event) for event in self.tables.logs.get(job, ()))
        if not is_active:
            return JobRow(new, live, log)
        return JobRow(new, live, log, self._members_of(job), self._nodes_of(job))

    def _recorded(self, now: float) -> Recorded:
        tables = self.tables
        active = {job for job, live in tables.live.items() if live.state is not JobState.INACTIVE}
        jobs = sorted(active | (self._dependency_targets() & tables.new.keys()))
        keys = {
            key: tuple(sorted(job for job, seen_at in known if seen_at >= now - SUBMISSION_KEY_TTL_S))
            for key, known in sorted(tables.submissions.items())
        }
        return Recorded(
            began_at=tables.instance["began_at"],
            highest=tables.instance["highest"],
            jobs=tuple(self._row(job, job in active) for job in jobs),
            allocations=tuple(
                replace(part, data=json_copy(part.data), slots=self._slots_of(job, number))
                for job in sorted(tables.allocations)
                for number, part in sorted(tables.allocations[job].items())
            ),
            intents=tuple(
                replace(intent, payload=json_copy(intent.payload))
                for _, intent in sorted(tables.intents.items())
            ),
            nodes=tuple(sorted(tables.nodes.values(), key=lambda node: node.rank)),
            drains=tuple(drain for _, drain in sorted(tables.drains.items())),
            queues=tuple(queue for _, queue in sorted(tables.queues.items())),
            inadmissible=tuple(one for _, one in sorted(tables.inadmissible.items())),
            claims=tuple(claim for _, claim in sorted(tables.claims.items())),
            keys={key: ids for key, ids in keys.items() if ids},
        )


def _matches(new: JobNew, live: JobLive, job_filter: JobFilter) -> bool:
    return (
        (job_filter.ids is None or new.id in job_filter.ids)
        and (job_filter.states is None or live.state.value in job_filter.states)
        and (job_filter.results is None or live.result in job_filter.results)
        and (job_filter.queue is None or live.queue == job_filter.queue)
        and (job_filter.name is None or new.name == job_filter.name)
        and (job_filter.owner is None or new.owner == job_filter.owner)
        and (job_filter.since is None or (live.ended_at is not None and live.ended_at > job_filter.since))
    )
