"""Workloads as a backend reports them, the job of each, and those that get no further job.

A workload is inadmissible after its job was cancelled or did not assemble in time, while members of it still
wait. It becomes admissible again with the next member that was not there at that time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.facts import MemberSet, WorkloadSet
from penstock.protocol.intents import StatusUpdate, WorkloadStatus
from penstock.sched.journal import Journal
from penstock.sched.records import InadmissibleGone, InadmissibleSet

__all__ = ["InadmissibleWorkload", "Workloads"]


@dataclass(slots=True)
class InadmissibleWorkload:
    """An inadmissible workload. After a restart its waiting members are reported again."""

    record: InadmissibleSet
    waiting: dict[str, MemberSet] = field(default_factory=dict)


class Workloads:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._facts: dict[str, WorkloadSet] = {}
        self._jobs: dict[str, int] = {}
        # Members that appeared while the job of their workload was ending. They form its next job.
        self._next_members: dict[str, dict[str, MemberSet]] = {}
        self._next_workload: dict[str, str] = {}  # by such a member
        self._inadmissible: dict[str, InadmissibleWorkload] = {}
        self._inadmissible_members: dict[str, str] = {}  # member -> workload
        self._accepted: dict[str, str] = {}  # workload -> queue that has accepted it
        self._last_status: dict[str, dict[str, StatusUpdate]] = {}  # by workload, by member ("": all)

    def copy(self, journal: Journal) -> Workloads:
        made = Workloads(journal)
        made._facts, made._jobs = dict(self._facts), dict(self._jobs)
        made._next_members = {workload: dict(members) for workload, members in self._next_members.items()}
        made._next_workload = dict(self._next_workload)
        made._inadmissible = {
            workload: InadmissibleWorkload(known.record, dict(known.waiting))
            for workload, known in self._inadmissible.items()
        }
        made._inadmissible_members = dict(self._inadmissible_members)
        made._accepted = dict(self._accepted)
        made._last_status = {workload: dict(last) for workload, last in self._last_status.items()}
        return made

    def __contains__(self, workload: str) -> bool:
        return workload in self._facts

    def get(self, workload: str) -> WorkloadSet | None:
        return self._facts.get(workload)

    def set(self, fact: WorkloadSet) -> bool:
        """Stores the description of a workload. Returns whether it has changed."""
        before = self._facts.get(fact.workload)
        self._facts[fact.workload] = fact
        return before != fact

    def remove(self, workload: str) -> None:
        self._facts.pop(workload, None)
        self._accepted.pop(workload, None)

    def known(self) -> list[str]:
        """All workloads that are known or inadmissible."""
        return list({**self._facts, **self._inadmissible})

    # Jobs

    def job_of(self, workload: str) -> int:
        """The number of the active job of a workload; 0 if it has none."""
        return self._jobs.get(workload, 0)

    def jobs(self) -> dict[str, int]:
        """The active jobs by workload."""
        return dict(self._jobs)

    def set_job(self, workload: str, job: int) -> None:
        self._jobs[workload] = job

    def accept(self, workload: str, queue: str) -> None:
        """A queue has accepted a job of a workload: the next ones continue it, and are no new work."""
        self._accepted[workload] = queue

    def is_accepted(self, workload: str, queue: str) -> bool:
        return self._accepted.get(workload) == queue

    def remove_job(self, workload: str) -> None:
        self._jobs.pop(workload, None)
        self._last_status.pop(workload, None)

    def add_next_member(self, fact: MemberSet) -> None:
        self._next_members.setdefault(fact.workload, {})[fact.member] = fact
        self._next_workload[fact.member] = fact.workload

    def take_next_members(self, workload: str) -> dict[str, MemberSet]:
        members = self._next_members.pop(workload, {})
        for member in members:
            self._next_workload.pop(member, None)
        return members

    def next_members(self) -> dict[str, str]:
        """The members that wait for the next job of their workload, and that workload."""
        return dict(self._next_workload)

    def drop_waiting_member(self, member: str) -> None:
        """Removes a deleted member that belongs to no job."""
        workload = self._next_workload.pop(member, None)
        if workload is not None:
            self._next_members[workload].pop(member, None)
        workload = self._inadmissible_members.pop(member, None)
        if workload is not None:
            del self._inadmissible[workload].waiting[member]

    # Inadmissible workloads

    def inadmissible(self, workload: str) -> InadmissibleWorkload | None:
        return self._inadmissible.get(workload)

    def all_inadmissible(self) -> dict[str, InadmissibleWorkload]:
        return dict(self._inadmissible)

    def restore_inadmissible(self, record: InadmissibleSet) -> None:
        self._inadmissible[record.workload] = InadmissibleWorkload(record)

    def mark_inadmissible(self, workload: str, waiting: dict[str, MemberSet], reason: str) -> None:
        """The waiting members of a workload get no further job until another member appears."""
        record = InadmissibleSet(workload, tuple(waiting), reason)
        self._inadmissible[workload] = InadmissibleWorkload(record, waiting)
        self._inadmissible_members.update(dict.fromkeys(waiting, workload))
        self._accepted.pop(workload, None)
        self._journal.add(record)

    def readmit(self, workload: str) -> dict[str, MemberSet]:
        """Makes a workload admissible again. Returns its waiting members."""
        known = self._inadmissible.pop(workload, None)
        if known is None:
            return {}
        self._journal.add(InadmissibleGone(workload))
        for member in known.waiting:
            del self._inadmissible_members[member]
        return known.waiting

    def add_inadmissible_member(self, fact: MemberSet) -> None:
        """Notes a waiting member of an inadmissible workload, and publishes the status again."""
        known = self._inadmissible[fact.workload]
        known.waiting[fact.member] = fact
        self._inadmissible_members[fact.member] = fact.workload
        self._journal.status_updates[fact.workload, ""] = StatusUpdate(
            fact.workload, 0, WorkloadStatus.INADMISSIBLE, known.record.reason
        )

    # Status

    def publish(self, update: StatusUpdate) -> None:
        """Publishes the status of a workload or of one member, unless the last one said the same."""
        last = self._last_status.setdefault(update.workload, {})
        if last.get(update.member) != update:
            last[update.member] = self._journal.status_updates[update.workload, update.member] = update

    def last_status(self, workload: str) -> WorkloadStatus | None:
        """The status of a workload that was published last."""
        update = self._last_status.get(workload, {}).get("")
        return update.status if update is not None else None

    def member_appeared(self, workload: str, member: str) -> None:
        """The last status has not reached a member: the next one is published even if it says the same."""
        last = self._last_status.get(workload, {})
        last.pop("", None)
        last.pop(member, None)

    def member_left(self, workload: str, member: str) -> None:
        """A member does not wait any more."""
        self._last_status.get(workload, {}).pop(member, None)
