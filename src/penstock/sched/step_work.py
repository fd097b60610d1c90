"""Work that the functions of one step leave for its end, where it is done once for all inputs.

All parts are ordered: a dict with values None is an ordered set.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.protocol.facts import MemberSet

__all__ = ["StepWork"]


@dataclass(slots=True)
class StepWork:
    jobs_to_advance: dict[int, None] = field(default_factory=dict)  # their members have changed
    jobs_to_assemble: dict[int, None] = field(default_factory=dict)  # their ready members are to be counted
    assembled_jobs: dict[int, None] = field(default_factory=dict)  # to be enqueued
    late_members: dict[tuple[int, str], None] = field(default_factory=dict)  # to be enqueued on their own
    members_to_readmit: list[MemberSet] = field(default_factory=list)
    slots_to_release: dict[int, list[int]] = field(default_factory=dict)  # by job

    def copy(self) -> StepWork:
        return StepWork(
            dict(self.jobs_to_advance),
            dict(self.jobs_to_assemble),
            dict(self.assembled_jobs),
            dict(self.late_members),
            list(self.members_to_readmit),
            {job: list(slots) for job, slots in self.slots_to_release.items()},
        )

    def advance(self, job: int) -> None:
        self.jobs_to_advance[job] = None

    def assemble(self, job: int) -> None:
        self.jobs_to_assemble[job] = None

    def enqueue_assembled(self, job: int) -> None:
        self.assembled_jobs[job] = None

    def enqueue_late(self, job: int, member: str) -> None:
        self.late_members[(job, member)] = None

    def release_slots(self, job: int, slots: list[int]) -> None:
        self.slots_to_release.setdefault(job, []).extend(slots)

    def take_jobs_to_advance(self) -> dict[int, None]:
        taken, self.jobs_to_advance = self.jobs_to_advance, {}
        return taken

    def take_jobs_to_assemble(self) -> dict[int, None]:
        taken, self.jobs_to_assemble = self.jobs_to_assemble, {}
        return taken

    def take_assembled_jobs(self) -> dict[int, None]:
        taken, self.assembled_jobs = self.assembled_jobs, {}
        return taken

    def take_late_members(self) -> dict[tuple[int, str], None]:
        taken, self.late_members = self.late_members, {}
        return taken

    def take_members_to_readmit(self) -> list[MemberSet]:
        taken, self.members_to_readmit = self.members_to_readmit, []
        return taken

    def take_slots_to_release(self) -> dict[int, list[int]]:
        taken, self.slots_to_release = self.slots_to_release, {}
        return taken

    def is_empty(self) -> bool:
        return not (
            self.jobs_to_advance
            or self.jobs_to_assemble
            or self.assembled_jobs
            or self.late_members
            or self.members_to_readmit
            or self.slots_to_release
        )
