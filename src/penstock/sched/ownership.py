"""What differs between a job that a user submitted and one that a controller owns.

`Ownership` is chosen once, when a job is created or restored; other modules ask it instead of the job's
origin. `submitted_jobs` and `controlled_jobs` implement it.

The members of a submitted job are tasks that exist only while they are placed, and the job ends with its
first failure. The members of a controlled job (pods of a workload) exist apart from their placement: they are
reported before they are placed, and wait again if they did not start. Their owner decides what follows a
failure, and may create further members at any time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.engine.allocation import Slot
    from penstock.protocol.facts import MemberStatus
    from penstock.sched.job import Job, Member
    from penstock.sched.settings import Settings
    from penstock.sched.state import SchedulerState

__all__ = ["Ownership"]


class Ownership(Protocol):
    @property
    def is_controlled(self) -> bool:
        """Whether members are reported by the backend, and the owner wants to know the status of the job."""

    def slots_of_members(self, job: Job, slots: Sequence[Slot]) -> list[tuple[Member, Slot]]:
        """The members that start, each with its slot; `slots` are in the order of the nodes' ranks."""

    def backend_spec(self, job: Job) -> dict[str, object]:
        """What a backend needs to start the members; empty if it knows them."""

    def is_elsewhere(self, member: Member, fact: MemberStatus) -> bool:
        """Whether a member is on a node that the scheduler did not choose."""

    def member_ended(
        self, state: SchedulerState, job: Job, member: Member, fact: MemberStatus, now: float
    ) -> None:
        """Decides what follows the end of a member, which is already recorded."""

    def member_vanished(self, state: SchedulerState, job: Job, member: Member, now: float) -> None:
        """Decides what follows the unknown end of a member."""

    def node_failed(self, state: SchedulerState, job: Job, member: Member, now: float) -> None:
        """Decides what follows the end of a member whose node has failed."""

    def is_replaced(self, state: SchedulerState, job: Job, member: Member) -> bool:
        """Whether the owner may create another member in place of this one, which has ended."""

    def replacement_overdue(self, state: SchedulerState, job: Job, note: str, now: float) -> None:
        """Decides what happens to a started group for which a replacement has not appeared in time."""

    def repair_failed(self, state: SchedulerState, job: Job, note: str, now: float) -> None:
        """Decides what happens to a started group that was not completed in time."""

    def has_unplaced_members(self, job: Job) -> bool:
        """Whether members of a started group wait for a node that it must get to be complete."""

    def may_grow(self, job: Job) -> bool:
        """Whether a started job without live members goes on, because further members may appear."""

    def keeps_allocation(self, job: Job) -> bool:
        """Whether slots are released one by one although no live member is left."""

    def may_requeue(self, job: Job, settings: Settings) -> bool:
        """Whether a finished job starts another attempt."""

    def is_ended_at_limit(self, state: SchedulerState, job: Job) -> bool:
        """Whether the scheduler must end the job at its limit, if the backend has not done so."""

    def backend_enforces_limit(self, state: SchedulerState, job: Job) -> bool: ...
