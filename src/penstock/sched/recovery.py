"""A scheduler made from what was recorded, as if nothing had happened.

Jobs, queues, drains, open intents and ids are there at once; what jobs hold is booked when the first
snapshot of the world has told which nodes there are. Each difference between the two is repaired by one
rule (the table in ARCHITECTURE.md); the rules are those of `Snapshot` in `state`, because a world that was
out of sight for a while and a scheduler that was are the same case.
"""

from __future__ import annotations

from typing import cast

from penstock.errors import Corrupt
from penstock.model.job import JobState, state_after
from penstock.model.jobid import JobIds
from penstock.protocol.commands import Submission
from penstock.protocol.facts import Requeue, WorkSet
from penstock.protocol.intents import End, How, Intent, Place, Retract, Seat
from penstock.sched.cluster import Cluster
from penstock.sched.dependencies import Scheme, Verdict, judge
from penstock.sched.job import Job, MemberPhase, take_in
from penstock.sched.jobspec import JobSpec, spec_of_submission, spec_of_work
from penstock.sched.lifecycle import remember_intent
from penstock.sched.records import AllocationRow, IntentDone, IntentNew, JobRow, Recorded
from penstock.sched.scheduler import Scheduler
from penstock.sched.settings import Settings
from penstock.sched.state import Core, GivenUp

__all__ = ["scheduler_from"]


def scheduler_from(settings: Settings, recorded: Recorded, now: float) -> Scheduler:
    highest = recorded.highest
    core = Core(settings, Cluster(settings.match_policy), JobIds(recorded.began_at, highest.job))
    core.intent_highest, core.rank_highest, core.recorded_highest = highest.intent, highest.rank, highest
    core.ranks = {node.node: node.rank for node in recorded.nodes}
    core.drains = {drain.node: drain for drain in recorded.drains}
    core.queues = {queue.queue: queue for queue in recorded.queues}
    core.keys = dict(recorded.keys)
    core.given_up = {one.work: GivenUp(one) for one in recorded.given_up}
    for row in recorded.jobs:
        job = _job(core, row)
        if job.state is JobState.INACTIVE:
            core.past[job.id] = job.progress()
        else:
            core.jobs[job.id] = job
    for job in core.jobs.values():
        _take_up(core, job, now)
    _allocations(core, recorded.allocations)
    for intent in recorded.intents:
        found = _intent(core, intent)
        waits_for = set(cast(list[str], intent.payload["members"]))
        waits_for -= {key for key in waits_for if _is_settled(core, found, key)}
        if waits_for:
            remember_intent(core, found, waits_for)
        else:
            core.journal.add(IntentDone(intent.id))
    return Scheduler(core)


def _job(core: Core, row: JobRow) -> Job:
    new, live = row.new, row.live
    job = Job(new.id, new.owner, _spec(core, row), new.spec, new.seen_at, new.work)
    job.log = list(row.log)
    job.state, job.queue, job.urgency, job.priority = live.state, live.queue, live.urgency, live.priority
    job.result, job.status = live.result, live.status
    job.started_at, job.ended_at = live.started_at, live.ended_at
    take_in(job, live.detail)
    if row.log and state_after(row.log) is not job.state:
        raise Corrupt(
            f"job {job.id} is in {job.state.value}, but its log leads to {state_after(row.log).value}"
        )
    return job


def _spec(core: Core, row: JobRow) -> JobSpec:
    plain = row.new.spec
    if row.new.work:
        return spec_of_work(WorkSet(row.new.work, row.new.name, 1), [], core.settings, None)[0]
    submission = Submission(
        cast(str, plain["jobspec"]),
        row.new.owner,
        cast(int, plain.get("urgency", 16)),
        Requeue(plain.get("requeue", "never")),
    )
    return spec_of_submission(submission, core.settings)


def _take_up(core: Core, job: Job, now: float) -> None:
    """Puts an active job back into every index that it was in."""
    core.namesakes.setdefault((job.owner, job.spec.name), {})[job.id] = None
    if job.work:
        core.job_of_work[job.work] = job.id
    for member in job.members.values():
        core.job_of_member[member.key] = job.id
        if member.phase.is_live:
            core.seat(job, member.key, member.node)
        for node in member.refused_by:
            core.refusals.setdefault(node, {})[(job.id, member.key)] = None
        if member.phase is MemberPhase.LOST:
            core.wake((member.lost_at or now) + core.settings.lost_s, job.id)
    if job.state is JobState.DEPEND:
        _take_up_dependencies(core, job)
    for at in (job.end_at, _plus(job.incomplete_since, core.settings.whole_s)):
        if at is not None:
            core.wake(at, job.id)
    core.unsettled[job.id] = None
    core.enqueue(job)
    if job.state is JobState.RUN and not job.work:
        for member in job.members.values():
            if member.phase is MemberPhase.WAITING:
                core.late[(job.id, member.key)] = None


def _plus(at: float | None, more_s: float) -> float | None:
    return None if at is None else at + more_s


def _take_up_dependencies(core: Core, job: Job) -> None:
    removed = {
        str(event.context.get("description")) for event in job.log if event.name == "dependency-remove"
    }
    for dependency in job.spec.depends:
        if dependency.description in removed:
            continue
        if dependency.scheme is Scheme.SINGLETON:
            core.singletons.add((job.owner, job.spec.name))
            job.open_dependencies.add("singleton")
            continue
        target = core.jobs.get(dependency.job)
        progress = target.progress() if target is not None else core.past.get(dependency.job)
        if progress is None or judge(dependency.scheme, progress) is Verdict.OPEN:
            job.open_dependencies.add(dependency.description)
            core.dependents.setdefault(dependency.job, set()).add(job.id)
    begin_at = job.spec.begin_at
    if begin_at is not None and f"begin-time={begin_at:.3f}" not in removed:
        job.is_begin_waiting = True
        core.wake(begin_at, job.id)


def _allocations(core: Core, rows: tuple[AllocationRow, ...]) -> None:
    by_job: dict[int, list[AllocationRow]] = {}
    for row in rows:
        by_job.setdefault(row.part.job, []).append(row)
    for number, parts in by_job.items():
        told = [(row.part.part, row.part.data, row.part.start_s, row.part.end_s) for row in parts]
        freed = tuple(sorted({slot for row in parts for slot in row.freed}))
        core.to_lay.append((number, told, freed))
        if number in core.jobs:
            core.jobs[number].holds_units = True


def _intent(core: Core, row: IntentNew) -> Intent:
    members = tuple(cast(list[str], row.payload["members"]))
    if row.kind == "end":
        grace_s = cast(float | None, row.payload.get("grace_s"))
        return End(
            row.id, row.job, members, cast(int, row.payload["signal"]), grace_s, str(row.payload["why"])
        )
    if row.kind == "retract":
        return Retract(row.id, row.job, members, How(row.payload["how"]))
    job = core.jobs[row.job]
    seats = tuple(
        Seat(member.key, member.index, member.node, member.grants)
        for key in members
        if (member := job.members.get(key)) is not None
    )
    return Place(
        row.id,
        row.job,
        job.work,
        seats,
        cast(float | None, row.payload["end_at"]),
        len(job.members),
        core.driver_spec(job),
    )


def _is_settled(core: Core, intent: Intent, key: str) -> bool:
    """Whether what an intent wants of a member is known to have come about."""
    job = core.jobs.get(intent.job)
    member = job.members.get(key) if job is not None else None
    if member is None:
        return intent.job != 0
    if isinstance(intent, Place):
        was_silent = member.phase is MemberPhase.LOST and member.started_at is None
        return member.phase is not MemberPhase.PLACING and not was_silent
    return member.phase is MemberPhase.ENDED
