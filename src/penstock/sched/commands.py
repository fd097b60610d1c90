"""What people wish: submit, cancel, change an urgency, stop a queue, drain a node.

A wish is checked in full before anything is changed, so that what is refused leaves no trace. What can
never run is refused at submission, with the clause that fails and the nearest thing that would fit.
"""

from __future__ import annotations

import signal
from dataclasses import replace
from typing import Final

from penstock.engine import Never
from penstock.engine.engine import MatchOp
from penstock.engine.request import Request
from penstock.errors import BadRequest, Conflict, PenstockError
from penstock.model.job import URGENCY_EXPEDITE, JobState
from penstock.model.jobid import encode_jobid
from penstock.protocol.commands import (
    Cancel,
    Drain,
    QueueChange,
    SetUrgency,
    Signal,
    Submission,
    Submit,
    Undrain,
    Wish,
)
from penstock.sched.dependencies import Progress, Scheme, Verdict, judge, refusal_of
from penstock.sched.job import Job
from penstock.sched.jobspec import JobSpec, counts_of, spec_of_submission
from penstock.sched.lifecycle import end_members, note_namesakes, prioritise, raise_exception, try_depend
from penstock.sched.records import DrainGone, DrainSet, JobNew, QueueSet
from penstock.sched.state import Core
from penstock.sched.suggestions import nearest_fit

__all__ = ["CanNeverRun", "QueueRefused", "UnknownJobId", "UnknownNode", "add_job", "fulfil"]

_NOTE_MAX: Final = 1024
_KEYS_MAX: Final = 100_000


class CanNeverRun(BadRequest):
    """Proven: not even on these resources alone and idle."""

    http_status = 422


class UnknownJobId(Conflict):
    def __init__(self, job: int, note: str = "unknown job id") -> None:
        super().__init__(f"{encode_jobid(job)}: {note}")
        self.job = job


class UnknownNode(Conflict):
    def __init__(self, node: str, known: list[str]) -> None:
        super().__init__(
            f"no node {node!r}; there are {', '.join(known[:8])}{', ...' if len(known) > 8 else ''}"
        )
        self.node = node


class QueueRefused(Conflict):
    """The queue takes no jobs now."""


def fulfil(core: Core, wish: Wish, now: float) -> object:
    """Does what was wished, or raises why not, with nothing done."""
    match wish:
        case Submit():
            return _submit(core, wish, now)
        case Cancel():
            return _cancel(core, wish, now)
        case SetUrgency():
            return _set_urgency(core, wish, now)
        case Signal():
            _signal(core, wish)
            return None
        case QueueChange():
            return _change_queue(core, wish)
        case Drain():
            return _drain(core, wish, now)
        case Undrain():
            return _undrain(core, wish)


# Submission


def _submit(core: Core, wish: Submit, now: float) -> tuple[int, ...]:
    if wish.key and wish.key in core.keys:
        return core.keys[wish.key]
    if not wish.jobs:
        raise BadRequest("no job", where="jobs", expected="at least one")
    if len(core.jobs) + len(wish.jobs) > core.settings.pending_max:
        raise QueueRefused(
            f"the queue is full: {len(core.jobs)} jobs are active, at most {core.settings.pending_max}"
        )
    checked: dict[Request, None] = {}
    past = {
        one.job: Progress(one.had_alloc, one.started, True, one.is_completed, one.had_exception)
        for one in wish.past
    }
    specs: list[JobSpec] = []
    for place, submission in enumerate(wish.jobs):
        try:
            specs.append(_checked(core, submission, checked, past))
        except BadRequest as error:
            raise _located(error, place, len(wish.jobs)) from error
    numbers = tuple(
        _create(core, submission, spec, now, wish.key, past)
        for submission, spec in zip(wish.jobs, specs, strict=True)
    )
    if wish.key:
        core.keys[wish.key] = numbers
        if len(core.keys) > _KEYS_MAX:
            del core.keys[next(iter(core.keys))]  # The oldest; nobody asks again after so many others.
    return numbers


def _located(error: BadRequest, place: int, count: int) -> BadRequest:
    if count == 1:
        return error
    where = f"jobs[{place}]" + (f".{error.where}" if error.where else "")
    return type(error)(error.summary, where=where, found=error.found, expected=error.expected)


def _checked(
    core: Core, submission: Submission, checked: dict[Request, None], past: dict[int, Progress]
) -> JobSpec:
    if not 0 <= submission.urgency <= URGENCY_EXPEDITE:
        raise BadRequest(
            "no such urgency", where="urgency", found=str(submission.urgency), expected="0 to 31"
        )
    spec = spec_of_submission(submission, core.settings)
    queue = core.queue_state(spec.queue)
    if not queue.enabled:
        reason = f": {queue.reason_disabled}" if queue.reason_disabled else ""
        raise QueueRefused(f"job submission to {spec.queue} is disabled{reason}")
    for dependency in spec.depends:
        if dependency.scheme is Scheme.SINGLETON:
            continue
        known = core.jobs.get(dependency.job)
        progress = known.progress() if known is not None else past.get(dependency.job)
        refusal = refusal_of(dependency, progress)
        if refusal is not None:
            raise refusal
    if spec.request not in checked:
        check_possible(core, spec.request)
        checked[spec.request] = None
    return spec


def check_possible(core: Core, request: Request) -> None:
    """Refuses what can never run; before all nodes are known, nothing is refused."""
    if not core.cluster.is_complete:
        return
    answer = core.cluster.engine.match(0, request, 0, MatchOp.SATISFIABILITY)
    if isinstance(answer, Never):
        nearest = nearest_fit(core.cluster.engine, request)
        told = f"unsatisfiable request: {answer.reason.clause}"
        raise CanNeverRun(f"{told}; {nearest}" if nearest else told, where="resources")


def _create(
    core: Core, submission: Submission, spec: JobSpec, now: float, key: str, past: dict[int, Progress]
) -> int:
    number = core.ids.next(now)
    plain: dict[str, object] = {
        "jobspec": submission.jobspec,
        "requeue": submission.requeue.value,
        "urgency": submission.urgency,
        **counts_of(spec),
    }
    targets = [dependency.job for dependency in spec.depends if dependency.job]
    if targets:
        plain["depends_on"] = targets
    job = Job(number, submission.owner, spec, plain, now, queue=spec.queue, urgency=submission.urgency)
    core.journal.add(JobNew(number, submission.owner, spec.name, now, plain, "", key))
    core.journal.log(
        job, "submit", now, userid=submission.owner, urgency=submission.urgency, flags=0, version=1
    )
    core.journal.log(job, "validate", now)
    for target in targets:
        if target not in core.jobs and target in past:
            core.past[target] = past[target]
    add_job(core, job, now)
    return number


def add_job(core: Core, job: Job, now: float) -> None:
    """Takes a job that is in DEPEND into the books, and lets it go on if nothing holds it."""
    core.jobs[job.id] = job
    core.namesakes.setdefault((job.owner, job.spec.name), {})[job.id] = None
    for dependency in job.spec.depends:
        if dependency.scheme is Scheme.SINGLETON:
            _open(core, job, dependency.description, now)
            core.singletons.add((job.owner, job.spec.name))
            continue
        target = core.jobs.get(dependency.job)
        progress = (
            target.progress() if target is not None else core.past.get(dependency.job, Progress(is_over=True))
        )
        if judge(dependency.scheme, progress) is Verdict.OPEN:
            _open(core, job, dependency.description, now)
            core.dependents.setdefault(dependency.job, set()).add(job.id)
    begin_at = job.spec.begin_at
    if begin_at is not None and begin_at > now:
        job.is_begin_waiting = True
        core.wake(begin_at, job.id)
        core.journal.log(job, "dependency-add", now, description=f"begin-time={begin_at:.3f}")
    if "singleton" in job.open_dependencies:
        note_namesakes(core, job.owner, job.spec.name, now)
    try_depend(core, job, now)


def _open(core: Core, job: Job, description: str, now: float) -> None:
    if description not in job.open_dependencies:
        job.open_dependencies.add(description)
        core.journal.log(job, "dependency-add", now, description=description)


# Jobs that are there


def _job(core: Core, number: int) -> Job:
    job = core.jobs.get(number)
    if job is None:
        raise UnknownJobId(number)
    return job


def _cancel(core: Core, wish: Cancel, now: float) -> dict[int, PenstockError | None]:
    """Each for itself: what cannot be cancelled is named, the others are."""
    done: dict[int, PenstockError | None] = {}
    for number in dict.fromkeys(wish.jobs):
        job = core.jobs.get(number)
        if job is None:
            done[number] = UnknownJobId(number)
            continue
        raise_exception(core, job, now, "cancel", wish.note[:_NOTE_MAX])
        done[number] = None
    return done


def _set_urgency(core: Core, wish: SetUrgency, now: float) -> int:
    job = _job(core, wish.job)
    if not 0 <= wish.urgency <= URGENCY_EXPEDITE:
        raise BadRequest("no such urgency", where="urgency", found=str(wish.urgency), expected="0 to 31")
    if not job.state.is_pending:
        raise Conflict("urgency cannot be changed once resources are allocated")
    before, job.urgency = job.urgency, wish.urgency
    if before == wish.urgency:
        return before
    core.journal.log(job, "urgency", now, userid=job.owner, urgency=wish.urgency)
    core.notable.append(f"the urgency of {encode_jobid(job.id)} was set to {wish.urgency}")
    if job.state is JobState.PRIORITY:
        prioritise(core, job, now)
    return before


def _signal(core: Core, wish: Signal) -> None:
    job = _job(core, wish.job)
    if not 1 <= wish.signal <= signal.SIGRTMAX:
        raise BadRequest(
            "no such signal", where="signal", found=str(wish.signal), expected=f"1 to {signal.SIGRTMAX}"
        )
    if not job.live_members():
        raise Conflict(f"{encode_jobid(job.id)} is not running")
    end_members(core, job, wish.signal, None, "signal")


# Queues and nodes


def _change_queue(core: Core, wish: QueueChange) -> QueueSet:
    name = core.settings.queue(wish.queue).name
    state = core.queue_state(name)
    if wish.enabled is not None:
        state = replace(state, enabled=wish.enabled, reason_disabled="" if wish.enabled else wish.reason)
    if wish.started is not None:
        state = replace(state, started=wish.started, reason_stopped="" if wish.started else wish.reason)
        core.disturb()
    core.queues[name] = state
    core.journal.add(state)
    return state


def _drain(core: Core, wish: Drain, now: float) -> tuple[str, ...]:
    for node in wish.nodes:
        if node not in core.cluster.nodes:
            raise UnknownNode(node, sorted(core.cluster.nodes))
    fresh = tuple(node for node in wish.nodes if wish.overwrite or node not in core.drains)
    for node in fresh:
        since = core.drains[node].at if node in core.drains else now
        core.drains[node] = DrainSet(node, wish.reason[:_NOTE_MAX], wish.by, since)
        core.journal.add(core.drains[node])
        core.cluster.drain(node, True)
        core.notable.append(f"{node} was drained")
    core.disturb()
    return fresh


def _undrain(core: Core, wish: Undrain) -> tuple[str, ...]:
    for node in wish.nodes:
        if node not in core.drains:
            if node not in core.cluster.nodes:
                raise UnknownNode(node, sorted(core.cluster.nodes))
            raise Conflict(f"{node} not drained")
    for node in wish.nodes:
        del core.drains[node]
        core.journal.add(DrainGone(node))
        core.cluster.drain(node, False)
    core.disturb()
    return wish.nodes
