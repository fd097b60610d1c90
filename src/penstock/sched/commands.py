"""Commands: submit, cancel, set an urgency, send a signal, change a queue, drain a node.

A command is validated completely before it changes anything, so a refused command has no effect. Submission
refuses a request that can never run, names the clause that fails, and suggests the nearest one that fits.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Final, cast

from penstock.engine.request import Request
from penstock.errors import BadRequest, Conflict, PenstockError
from penstock.model.job import URGENCY_EXPEDITE, ExceptionType
from penstock.model.jobid import encode_jobid
from penstock.model.queue_rules import QueueRules
from penstock.protocol.commands import (
    Cancel,
    Command,
    Drain,
    QueueChange,
    SetUrgency,
    Signal,
    Submission,
    Submit,
    Undrain,
)
from penstock.protocol.intents import EndReason
from penstock.sched import vacancies
from penstock.sched.command_texts import check_command_texts, check_spec_texts
from penstock.sched.dependencies import (
    DependencyState,
    JobProgress,
    Scheme,
    begin_time_text,
    dependency_error,
    dependency_state,
)
from penstock.sched.job import Job
from penstock.sched.jobspec import SchedulingSpec, counts_of, payload_of, spec_of_submission
from penstock.sched.lifecycle import (
    end_members,
    leave_depend,
    raise_exception,
    release_singleton,
    set_urgency,
)
from penstock.sched.records import DrainSet, JobNew, QueueSet
from penstock.sched.set_aside_cancel import cancel_set_aside
from penstock.sched.state import SchedulerState, SlipCause
from penstock.sched.submitted_jobs import SUBMITTED
from penstock.sched.suggestions import nearest_fit

__all__ = [
    "CanNeverRun",
    "QueueRefused",
    "UnknownJobId",
    "UnknownNode",
    "UnknownObject",
    "UnknownQueue",
    "add_job",
    "apply_command",
]

_NOTE_MAX: Final = 1024
_NAMED_MAX: Final = 8  # nodes in a message


class CanNeverRun(BadRequest):
    """Proven: the request does not fit even if the cluster is idle."""


class UnknownObject(Conflict):
    """The request names an object that does not exist."""


class UnknownJobId(UnknownObject):
    def __init__(self, job: int, note: str = "no such job") -> None:
        super().__init__(f"{encode_jobid(job)}: {note}")
        self.job = job


class UnknownNode(UnknownObject):
    def __init__(self, node: str, known: list[str]) -> None:
        super().__init__(
            f"no node {node!r}; there are {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
        )
        self.node = node


class UnknownQueue(UnknownObject):
    def __init__(self, queue: str, known: list[str]) -> None:
        super().__init__(f"no such queue {queue!r}; there are {', '.join(known)}")
        self.queue = queue


class QueueRefused(Conflict):
    """The queue is full, or submission to it is disabled."""


def apply_command(state: SchedulerState, command: Command, now: float) -> object:
    """Executes a command, or raises the error that refuses it, with nothing changed."""
    check_command_texts(command)
    match command:
        case Submit():
            return _submit(state, command, now)
        case Cancel():
            return _cancel(state, command, now)
        case SetUrgency():
            return _set_urgency(state, command, now)
        case Signal():
            _signal(state, command)
            return None
        case QueueChange():
            return _change_queue(state, command, now)
        case Drain():
            return _drain(state, command, now)
        case Undrain():
            return _undrain(state, command)


# Submission


def _submit(state: SchedulerState, command: Submit, now: float) -> tuple[int, ...]:
    known = state.queue.submitted_as(command.key) if command.key else None
    if known is not None:
        return known
    if not command.jobs:
        raise BadRequest("no job", where="jobs", expected="at least one")
    if len(state.jobs) + len(command.jobs) > state.settings.pending_max:
        raise QueueRefused(
            f"the queue is full: {len(state.jobs)} jobs are active, at most {state.settings.pending_max}"
        )
    checked: dict[Request, None] = {}
    finished_jobs = {
        one.job: JobProgress(one.had_alloc, one.started, True, one.is_completed, one.had_exception)
        for one in command.finished_jobs
    }
    specs: list[SchedulingSpec] = []
    for index, submission in enumerate(command.jobs):
        try:
            specs.append(_validated(state, submission, checked, finished_jobs))
        except BadRequest as error:
            raise _located(error, index, len(command.jobs)) from error
    numbers = tuple(
        _create(state, submission, spec, now, command.key, finished_jobs)
        for submission, spec in zip(command.jobs, specs, strict=True)
    )
    if command.key:
        state.queue.remember_submission(command.key, numbers)
    return numbers


def _located(error: BadRequest, index: int, count: int) -> BadRequest:
    if count == 1:
        return error
    return error.at(f"jobs[{index}]" + (f".{error.where}" if error.where else ""))


def _validated(
    state: SchedulerState,
    submission: Submission,
    checked: dict[Request, None],
    finished_jobs: dict[int, JobProgress],
) -> SchedulingSpec:
    if not 0 <= submission.urgency <= URGENCY_EXPEDITE:
        raise BadRequest(
            "no such urgency", where="urgency", found=str(submission.urgency), expected="0 to 31"
        )
    spec = spec_of_submission(submission, state.settings)
    check_spec_texts(spec, payload_of(submission.jobspec))
    tasks, most = counts_of(spec)["ntasks"], state.settings.group_size_max
    if cast(int, tasks) > most:
        raise BadRequest("too many tasks", where="tasks", found=str(tasks), expected=f"at most {most}")
    if not submission.by_operator:
        _check_rules(state.settings.queue(spec.queue).rules, submission.owner, submission.urgency)
    queue = state.queue.state_of(spec.queue)
    if not queue.enabled:
        reason = f": {queue.reason_disabled}" if queue.reason_disabled else ""
        raise QueueRefused(f"job submission to {spec.queue} is disabled{reason}")
    for dependency in spec.depends:
        if dependency.scheme is Scheme.SINGLETON:
            continue
        known = state.jobs.get(dependency.job)
        progress = known.progress() if known is not None else finished_jobs.get(dependency.job)
        refusal = dependency_error(dependency, progress)
        if refusal is not None:
            raise refusal
    if spec.request not in checked:
        check_satisfiable(state, spec.request)
        checked[spec.request] = None
    return spec


def _check_rules(rules: QueueRules, owner: str, urgency: int) -> None:
    """Refuses what a queue does not allow its users."""
    if not rules.admits(owner):
        raise BadRequest(
            f"queue {rules.name} does not admit jobs of {owner}",
            where="attributes.system.queue",
            found=repr(rules.name),
            expected="another queue",
        )
    if urgency > rules.urgency_max:
        raise BadRequest(
            "the urgency is higher than the queue allows",
            where="urgency",
            found=str(urgency),
            expected=f"0 to {rules.urgency_max} in queue {rules.name}",
        )


def check_satisfiable(state: SchedulerState, request: Request) -> None:
    """Refuses a request that can never run. Before the first snapshot nothing is refused."""
    if not state.cluster.is_synced:
        return
    reason = state.satisfiability.reason_of(request)
    if reason:
        nearest = nearest_fit(state.cluster.engine, request)
        summary = f"unsatisfiable request: {reason}"
        raise CanNeverRun(f"{summary}; {nearest}" if nearest else summary, where="resources")


def _create(
    state: SchedulerState,
    submission: Submission,
    spec: SchedulingSpec,
    now: float,
    key: str,
    finished_jobs: dict[int, JobProgress],
) -> int:
    number = state.ids.next(now)
    document: dict[str, object] = {
        "jobspec": submission.jobspec,
        "requeue": submission.requeue.value,
        "urgency": submission.urgency,
        **counts_of(spec),
    }
    targets = [dependency.job for dependency in spec.depends if dependency.job]
    if targets:
        document["depends_on"] = targets
    job = Job(
        number,
        submission.owner,
        spec,
        document,
        now,
        SUBMITTED,
        queue=spec.queue,
        urgency=submission.urgency,
    )
    state.journal.add(JobNew(number, submission.owner, spec.name, now, document, "", key))
    state.journal.log(
        job, "submit", now, userid=submission.owner, urgency=submission.urgency, flags=0, version=1
    )
    state.journal.log(job, "validate", now)
    for target in targets:
        if target not in state.jobs and target in finished_jobs:
            state.dependencies.add_finished(target, finished_jobs[target])
    add_job(state, job, now)
    return number


def add_job(state: SchedulerState, job: Job, now: float) -> None:
    """Adds a job in state DEPEND to the state, and enqueues it if it has no open dependency."""
    state.jobs[job.id] = job
    state.dependencies.add_name(job)
    for dependency in job.spec.depends:
        if dependency.scheme is Scheme.SINGLETON:
            _open(state, job, dependency.description, now)
            state.dependencies.add_singleton(job.owner, job.spec.name)
            continue
        target = state.jobs.get(dependency.job)
        progress = (
            target.progress()
            if target is not None
            else state.dependencies.progress_of(dependency.job) or JobProgress(is_over=True)
        )
        if dependency_state(dependency.scheme, progress) is DependencyState.PENDING:
            _open(state, job, dependency.description, now)
            state.dependencies.add(job.id, dependency.job)
    begin_at = job.spec.begin_at
    if begin_at is not None and begin_at > now:
        job.waits_for_begin_time = True
        state.wake(begin_at, job.id)
        state.journal.log(job, "dependency-add", now, description=begin_time_text(begin_at))
    if "singleton" in job.open_dependencies:
        release_singleton(state, job.owner, job.spec.name, now)
    leave_depend(state, job, now)


def _open(state: SchedulerState, job: Job, description: str, now: float) -> None:
    if description not in job.open_dependencies:
        job.open_dependencies.add(description)
        state.journal.log(job, "dependency-add", now, description=description)


# Active jobs


def _job(state: SchedulerState, number: int) -> Job:
    job = state.jobs.get(number)
    if job is None:
        raise UnknownJobId(number)
    return job


def _cancel(state: SchedulerState, command: Cancel, now: float) -> dict[int, PenstockError | None]:
    """Cancels each job independently. Returns the error of each job that cannot be cancelled."""
    done: dict[int, PenstockError | None] = {}
    for number in dict.fromkeys(command.jobs):
        job = state.jobs.get(number)
        if job is None:
            done[number] = _cancel_set_aside(state, number, command.note[:_NOTE_MAX], now)
            continue
        raise_exception(state, job, now, ExceptionType.CANCEL, command.note[:_NOTE_MAX])
        done[number] = None
    return done


def _cancel_set_aside(state: SchedulerState, number: int, note: str, now: float) -> PenstockError | None:
    aside = state.set_aside.get(number)
    if aside is None:
        return UnknownJobId(number)
    if aside.row.new.workload:
        return Conflict(
            f"{encode_jobid(number)} cannot be cancelled; delete its pods instead: {aside.reason}"
        )
    cancel_set_aside(state, aside, note, now)
    return None


def _set_urgency(state: SchedulerState, command: SetUrgency, now: float) -> int:
    job = _job(state, command.job)
    if not 0 <= command.urgency <= URGENCY_EXPEDITE:
        raise BadRequest("no such urgency", where="urgency", found=str(command.urgency), expected="0 to 31")
    if not job.state.is_pending:
        raise Conflict("urgency cannot be changed once resources are allocated")
    if not command.by_operator:
        _check_rules(state.settings.queue_of_job(job.queue).rules, job.owner, command.urgency)
    before = job.urgency
    set_urgency(state, job, command.urgency, now)
    return before


def _signal(state: SchedulerState, command: Signal) -> None:
    job = _job(state, command.job)
    if not 1 <= command.signal <= signal.SIGRTMAX:
        raise BadRequest(
            "no such signal", where="signal", found=str(command.signal), expected=f"1 to {signal.SIGRTMAX}"
        )
    if not job.live_members():
        raise Conflict(f"{encode_jobid(job.id)} is not running")
    end_members(state, job, command.signal, None, EndReason.SIGNAL)


# Queues and nodes


def _change_queue(state: SchedulerState, command: QueueChange, now: float) -> QueueSet:
    known = [queue.name for queue in state.settings.queues]
    if command.queue not in known:
        raise UnknownQueue(command.queue, known)
    changed = state.queue.state_of(command.queue)
    if command.enabled is not None:
        changed = replace(
            changed, enabled=command.enabled, reason_disabled="" if command.enabled else command.reason
        )
        if command.enabled:
            _accept_waiting(state, command.queue)
    if command.started is not None:
        changed = replace(
            changed, started=command.started, reason_stopped="" if command.started else command.reason
        )
        state.queue.mark_dirty()
    state.queue.set_state(changed, now)
    state.journal.add(changed)
    return changed


def _accept_waiting(state: SchedulerState, queue: str) -> None:
    """Accepts the workloads that appeared while their queue was disabled."""
    for job in state.jobs.values():
        if job.awaits_queue and job.queue == queue:
            job.awaits_queue = False
            state.workloads.accept(job.workload, job.queue)
            state.journal.touch(job)
            if job.is_assembled:
                state.worklist.enqueue_assembled(job.id)


def _drain(state: SchedulerState, command: Drain, now: float) -> tuple[str, ...]:
    for node in command.nodes:
        if node not in state.cluster.nodes:
            raise UnknownNode(node, sorted(state.cluster.nodes))
    if not command.overwrite:
        _check_reasons(state, command)
    fresh = tuple(node for node in command.nodes if command.overwrite or node not in state.nodes.drains)
    for node in fresh:
        since = state.nodes.drains[node].at if node in state.nodes.drains else now
        state.nodes.drain(DrainSet(node, command.reason[:_NOTE_MAX], command.by, since))
        state.cluster.drain(node, True)
        state.claims.node_changed(node)
        vacancies.check_kept_slots(state, node)
        state.plans.slip_cause = SlipCause(f"{node} was drained")
    state.queue.mark_dirty()
    return fresh


def _check_reasons(state: SchedulerState, command: Drain) -> None:
    """Refuses a reason that would not be recorded, because some nodes are drained for another one."""
    reason = command.reason[:_NOTE_MAX]
    drains = [drain for node in command.nodes if (drain := state.nodes.drains.get(node)) is not None]
    others = [drain for drain in drains if reason not in ("", drain.reason)]
    if others:
        named = ", ".join(f"{drain.node} ({drain.reason or 'no reason'})" for drain in others[:_NAMED_MAX])
        more = f" and {len(others) - _NAMED_MAX} more" if len(others) > _NAMED_MAX else ""
        raise Conflict(
            f"already drained with another reason: {named}{more}; "
            "--force (`overwrite` in the API) replaces the reason"
        )


def _undrain(state: SchedulerState, command: Undrain) -> tuple[str, ...]:
    for node in command.nodes:
        if node not in state.nodes.drains:
            if node not in state.cluster.nodes:
                raise UnknownNode(node, sorted(state.cluster.nodes))
            raise Conflict(f"{node} not drained")
    for node in dict.fromkeys(command.nodes):
        state.nodes.undrain(node)
        state.cluster.drain(node, False)
    state.queue.mark_dirty()
    return command.nodes
