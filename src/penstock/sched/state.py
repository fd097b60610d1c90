"""The state of the scheduler: the active jobs, and parts with one responsibility each.

Only the functions of this package modify a `SchedulerState`. A step (one batch of inputs, or one scheduling
cycle) collects its changes in the journal. The caller commits them before any intent is applied and before
any command is answered.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import PenstockError
from penstock.model.jobid import JobIds, encode_jobid
from penstock.protocol.intents import StatusUpdate, WorkloadStatus
from penstock.sched.admission import Admission
from penstock.sched.claims import NodeClaims
from penstock.sched.cluster import Cluster
from penstock.sched.dependency_index import DependencyIndex
from penstock.sched.forecast import PlannedStart
from penstock.sched.job import Job
from penstock.sched.job_queue import JobQueue
from penstock.sched.journal import Journal
from penstock.sched.member_index import MemberIndex
from penstock.sched.node_records import NodeRecords
from penstock.sched.open_intents import OpenIntents
from penstock.sched.records import Change, IdHighest
from penstock.sched.satisfiability import Satisfiability
from penstock.sched.set_aside import SetAsideJobs
from penstock.sched.settings import Settings
from penstock.sched.step_work import StepWork
from penstock.sched.subjects import Noted
from penstock.sched.timers import Timers
from penstock.sched.workloads import Workloads

__all__ = ["Plans", "Reply", "SchedulerState", "SlipCause"]


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one command: a value, or the error that refused it."""

    value: object = None
    error: PenstockError | None = None


@dataclass(frozen=True, slots=True)
class SlipCause:
    """What may have delayed planned starts: a text, with the name of a job in it if there is one."""

    before: str
    job: int = 0  # 0: none
    after: str = ""
    namespace: str = ""  # of the job

    def text(self, namespace: str) -> str:
        """The cause for users of a namespace, who do not see the names of jobs in others."""
        if not self.job:
            return self.before
        name = encode_jobid(self.job) if namespace == self.namespace else "a job in another namespace"
        return f"{self.before}{name}{self.after}"


@dataclass(slots=True)
class Plans:
    """What the last cycles have planned, and what may have delayed it since."""

    reservations: dict[int, float] = field(default_factory=dict)  # job -> start, from the last cycle
    heads: dict[str, int] = field(default_factory=dict)  # strict queue -> the job that blocks it
    planned_starts: dict[int, PlannedStart] = field(default_factory=dict)
    slip_cause: SlipCause | None = None  # the last event since the last forecasts that may delay a start
    overrun_cause: SlipCause | None = None  # the same if an expected end has moved, which takes precedence

    def copy(self) -> Plans:
        return Plans(
            dict(self.reservations),
            dict(self.heads),
            dict(self.planned_starts),
            self.slip_cause,
            self.overrun_cause,
        )

    def forget(self, job: int) -> None:
        self.reservations.pop(job, None)
        self.planned_starts.pop(job, None)


class SchedulerState:
    def __init__(self, settings: Settings, cluster: Cluster, ids: JobIds, highest: IdHighest) -> None:
        self.settings = settings
        self.ids = ids
        self.jobs: dict[int, Job] = {}  # active ones
        self.journal = Journal()
        self.cluster = cluster
        self.nodes = NodeRecords(self.journal, highest.rank)
        self.workloads = Workloads(self.journal)
        self.members = MemberIndex()
        self.claims = NodeClaims(self.journal)
        self.queue = JobQueue(settings, self.claims)
        self.dependencies = DependencyIndex()
        self.intents = OpenIntents(self.journal, highest.intent)
        self.timers = Timers()
        self.plans = Plans()
        self.satisfiability = Satisfiability(cluster)
        self.admission = Admission(settings)
        self.worklist = StepWork()
        self.set_aside = SetAsideJobs()
        self.subject: Noted = None  # what is being looked at, see `subjects`
        self._recorded_highest = highest

    def copy(self) -> SchedulerState:
        """A copy that shares nothing that can change, at a cost in proportion to the whole state."""
        assert self.journal.is_empty(), "a step is not complete"
        made = SchedulerState(self.settings, self.cluster.copy(), self.ids.copy(), self._recorded_highest)
        made.jobs = {number: job.copy() for number, job in self.jobs.items()}
        made.nodes = self.nodes.copy(made.journal)
        made.workloads = self.workloads.copy(made.journal)
        made.members = self.members.copy()
        made.claims = self.claims.copy(made.journal)
        made.queue = self.queue.copy(made.claims)
        made.dependencies = self.dependencies.copy()
        made.intents = self.intents.copy(made.journal)
        made.timers = self.timers.copy()
        made.plans = self.plans.copy()
        made.satisfiability = self.satisfiability.copy(made.cluster)
        made.admission = self.admission.copy()
        made.worklist = self.worklist.copy()
        made.set_aside = self.set_aside.copy()
        return made

    def job_of_member(self, member: str) -> Job | None:
        return self.jobs.get(self.members.job_of(member))

    def job_of_workload(self, workload: str) -> Job | None:
        return self.jobs.get(self.workloads.job_of(workload))

    def wake(self, at: float, job: int) -> None:
        """Looks at the deadlines of a job at this time."""
        self.timers.sweep(self.jobs)
        self.timers.add(at, job)

    def take_changes(self) -> tuple[Change, ...]:
        changes = self.journal.take()
        highest = IdHighest(self.ids.highest, self.intents.highest, self.nodes.rank_highest)
        if highest != self._recorded_highest:
            self._recorded_highest = highest
            changes = (*changes, highest)
        return changes

    def update_outside(self, job: Job) -> bool:
        """Notes whether a job waits outside the queue because of a limit of its namespace."""
        job.outside_reason = self.admission.outside_reason(job.id)
        self.journal.touch_status(job)
        return bool(job.outside_reason)

    def publish_status(
        self,
        job: Job,
        status: WorkloadStatus,
        reason: str,
        start_at: float | None = None,
        *,
        member: str = "",
        is_head: bool = False,
    ) -> None:
        """Publishes the status of a job, or of one member, to the owner of its workload."""
        if job.ownership.is_controlled:
            update = StatusUpdate(job.workload, job.id, status, reason, start_at, member, is_head)
            self.workloads.publish(update)
