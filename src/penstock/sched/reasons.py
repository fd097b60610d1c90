"""Why a job waits: one cause, one sentence, and the facts behind it. Every pending job has a reason.

Causes that are properties of the job or of its queue (held, dependencies, a stopped queue) take precedence.
Otherwise the engine explains the request against the present allocations, without reservations. If the
request does not fit, the reason names the missing resources and the jobs that hold them. If it fits, the job
waits because its start would delay a reservation of a job before it in the queue. In a strict queue (`fcfs`)
a job behind the head waits for the start of the head, whatever is free.

A started job whose members wait for a node has the reason of the first of them in the queue.

A reason names jobs and pods that hold resources or come first. Whoever may not see their namespaces gets
their number instead (`redacted`): users of a namespace in conditions and events, and callers of the API that
are not operators.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from penstock.engine.allocation import Blocker, FunnelStage
from penstock.engine.planner import FOREVER
from penstock.engine.request import Request
from penstock.model.duration import format_duration
from penstock.model.job import URGENCY_HOLD, JobState
from penstock.model.jobid import encode_jobid
from penstock.model.text import count_of
from penstock.sched import vacancies
from penstock.sched.claim_reasons import claims_in_the_way, describe_claim
from penstock.sched.job import Job
from penstock.sched.member_states import MemberPhase
from penstock.sched.queue import QueueEntry
from penstock.sched.state import SchedulerState

__all__ = [
    "ReasonMemo",
    "WaitBlocker",
    "WaitCause",
    "WaitReason",
    "jobs_ahead",
    "member_wait_reason",
    "own_reason",
    "redacted",
    "stopped_reason",
    "wait_reason",
]


_BLOCKERS_NAMED_MAX: Final = 3
_NODES_NAMED_MAX: Final = 3
_OWN_JOB: Final = "other members of this job"


class WaitCause(enum.Enum):
    """What a job waits for. The values are part of the HTTP API."""

    NONE = ""  # it does not wait
    LIMIT = "limit"  # outside the queue: its namespace has as many jobs or requests as it may have
    ASSEMBLING = "assembling"  # the workload has fewer ready members than it needs
    DEPENDENCY = "depends"
    BEGIN_TIME = "begin-time"
    HELD = "held"  # urgency 0
    QUEUE_DISABLED = "queue-disabled"  # its queue has not accepted it
    QUEUE_STOPPED = "queue-stopped"
    UNSATISFIABLE = "never"  # no set of nodes of this cluster could ever meet the request
    RESOURCES = "resources"
    PRIORITY = "behind"  # it fits, but would delay a reservation of a job before it
    QUEUE_ORDER = "queue-order"  # its queue is strict, and the head of the queue waits
    CLAIMED = "claimed"  # it fits only on nodes that a job before it claims
    UNPLANNED = "unplanned"  # it fits, and no scheduling cycle has considered it yet
    INCOMPLETE = "incomplete"  # it runs, and some of its members have no node
    SET_ASIDE = "set-aside"  # handling it has failed with an unexpected exception


@dataclass(frozen=True, slots=True)
class WaitBlocker:
    """A holder of resources that a job waits for."""

    name: str
    job: int | None = None  # None: external usage
    until: float | None = None  # None: no known end
    has_overrun: bool = False  # it runs past its limit: `until` is when it is expected to end, if it is known
    namespace: str = ""
    title: str = ""  # what users call it, besides its id

    def text(self) -> str:
        details = [self.title] if self.title else []
        if self.has_overrun:
            details.append("past its limit")
        return f"{self.name} ({', '.join(details)})" if details else self.name


@dataclass(frozen=True, slots=True)
class WaitReason:
    cause: WaitCause
    message: str = ""
    clause: str = ""
    stages: tuple[FunnelStage, ...] = ()
    blockers: tuple[WaitBlocker, ...] = ()
    around: tuple[str, str] = ("", "")  # the message before and after the names of the blockers


ReasonMemo: TypeAlias = dict[tuple[str, int, int], WaitReason]  # by question, shape, and job or 0


def _naming(
    cause: WaitCause,
    around: tuple[str, str],
    blockers: tuple[WaitBlocker, ...],
    clause: str,
    stages: tuple[FunnelStage, ...] = (),
) -> WaitReason:
    """A reason whose message names the blockers."""
    message = f"{around[0]}{_names(blockers)}{around[1]}"
    return WaitReason(cause, message, clause, stages, blockers, around)


def redacted(reason: WaitReason, namespaces: Collection[str] | None) -> WaitReason:
    """The reason for a reader of some namespaces: other jobs and pods are counted. None: of all."""
    if namespaces is None:
        return reason
    hidden = [blocker for blocker in reason.blockers if blocker.namespace not in namespaces]
    if not hidden:
        return reason
    visible = [blocker for blocker in reason.blockers if blocker.namespace in namespaces]
    jobs = [blocker for blocker in hidden if blocker.job is not None]
    pods = [blocker for blocker in hidden if blocker.job is None]
    counted = [_counted(some, word) for some, word in ((jobs, "job"), (pods, "pod")) if some]
    is_named = any(blocker.name in reason.clause for blocker in hidden)
    blockers = (*counted, *visible)  # The counts first: they must not be among those that are not named.
    clause = f"behind {_names(blockers)}" if is_named else reason.clause
    return _naming(reason.cause, reason.around, blockers, clause, reason.stages)


def _counted(blockers: list[WaitBlocker], word: str) -> WaitBlocker:
    count = len(blockers)
    name = f"1 {word} in another namespace" if count == 1 else f"{count} {word}s in other namespaces"
    ends = [blocker.until for blocker in blockers if blocker.until is not None]
    return WaitBlocker(name, until=max(ends) if len(ends) == count else None)


def wait_reason(state: SchedulerState, job: Job, now: float, memo: ReasonMemo | None = None) -> WaitReason:
    """The reason of one job. A `memo` shared by one pass over the queue explains equal requests once."""
    if job.state is JobState.RUN:
        return _running_reason(state, job, now, memo)
    found = own_reason(state, job)
    if found is not None:
        return found
    if job.state is not JobState.SCHED:
        return WaitReason(WaitCause.NONE)
    entry = state.queue.entry(job.id)
    behind_head = _behind_head(state, job.queue, entry)
    if behind_head is not None:
        return behind_head
    found = _explained_once(state, job.shape, job.spec.request, now, memo)
    if found.cause is WaitCause.PRIORITY:
        return _behind(state, entry, job.shape, now, memo)
    claim = describe_claim(state, job, now)
    if not claim:
        return found
    around = (found.around[0], f"{found.around[1]}; {claim}")
    return replace(found, message=f"{found.message}; {claim}", around=around)


def member_wait_reason(
    state: SchedulerState, entry: QueueEntry, now: float, memo: ReasonMemo | None = None
) -> WaitReason:
    """The reason of a member that is queued by itself, because its job has started."""
    job = state.jobs[entry.job]
    stopped = stopped_reason(state, job.queue)
    if stopped is not None:
        return stopped
    shape = state.queue.shape_of(entry)
    found = _explained_once(state, shape, state.queue.request_of(shape), now, memo, job)
    if found.cause is WaitCause.PRIORITY:
        return _behind(state, entry, shape, now, memo)
    if not any(blocker.job == job.id for blocker in found.blockers):
        return found
    others = tuple(blocker for blocker in found.blockers if blocker.job != job.id)
    blockers = (*others[: _BLOCKERS_NAMED_MAX - 1], WaitBlocker(_OWN_JOB, job.id, namespace=job.owner))
    return _naming(
        found.cause,
        found.around,
        (*blockers, *others[_BLOCKERS_NAMED_MAX - 1 :]),
        found.clause,
        found.stages,
    )


def _running_reason(state: SchedulerState, job: Job, now: float, memo: ReasonMemo | None) -> WaitReason:
    """Why members of a started job have no node; no reason if all have one."""
    if job.incomplete_reason:
        return WaitReason(WaitCause.INCOMPLETE, job.incomplete_reason)
    if job.vacancies:
        return WaitReason(WaitCause.INCOMPLETE, vacancies.describe(state, job, now))
    count = job.members_by_phase[MemberPhase.WAITING]
    if not count or job.is_ending:
        return WaitReason(WaitCause.NONE)
    waiting = [one for one in job.members.values() if one.phase is MemberPhase.WAITING]
    text = f"{count} of {count + job.live_count} members {'waits' if count == 1 else 'wait'} for a node"
    if job.incomplete_since is not None:
        text += vacancies.describe_repair(state, job)
    entries = [entry for one in waiting if (entry := state.queue.entry(job.id, one.key)) is not None]
    if not entries:
        gated = "; not ready" if not any(one.is_ready for one in waiting) else ""
        return WaitReason(WaitCause.INCOMPLETE, f"{text}{gated}")
    found = member_wait_reason(state, min(entries), now, memo)
    around = (f"{text}: {found.around[0] or found.message}", found.around[1])
    return replace(found, cause=WaitCause.INCOMPLETE, message=f"{text}: {found.message}", around=around)


def _explained_once(
    state: SchedulerState,
    shape: int,
    request: Request,
    now: float,
    memo: ReasonMemo | None,
    extended: Job | None = None,
) -> WaitReason:
    """`extended` is the job of a late member; its placement rules keep the member off some nodes."""
    rules = extended.spec.request.placement if extended is not None else None
    has_rules = rules is not None and (rules.distinct_nodes or bool(rules.within))
    number = extended.id if extended is not None and has_rules else 0
    found = memo.get(("why", shape, number)) if memo is not None else None
    if found is None:
        found = _explained(state, request, now, number)
        if memo is not None:
            memo["why", shape, number] = found
    return found


def own_reason(state: SchedulerState, job: Job) -> WaitReason | None:
    """The reason that follows from a job that has not started, its workload or its queue.

    None if only resources and other jobs decide.
    """
    if not job.state.is_pending:
        return WaitReason(WaitCause.NONE)
    queue = state.queue.state_of(job.queue)
    if job.awaits_queue:
        reason = f": {queue.reason_disabled}" if queue.reason_disabled else ""
        text = f"queue {job.queue} is disabled and takes no new jobs{reason}"
        return WaitReason(WaitCause.QUEUE_DISABLED, f"{text}; it is taken when the queue is enabled again")
    if job.outside_reason:
        return WaitReason(WaitCause.LIMIT, job.outside_reason)
    if not job.is_assembled:
        return WaitReason(WaitCause.ASSEMBLING, _assembling(state, job))
    if job.open_dependencies:
        return WaitReason(WaitCause.DEPENDENCY, f"depends on {', '.join(sorted(job.open_dependencies))}")
    if job.waits_for_begin_time:
        return WaitReason(WaitCause.BEGIN_TIME, "starts no earlier than its begin time")
    if job.urgency == URGENCY_HOLD:
        return WaitReason(WaitCause.HELD, f"held; `penstock release {encode_jobid(job.id)}` releases it")
    if job.settings_reason:
        advice = "cancel it, or start the instance with a configuration that admits it"
        return WaitReason(WaitCause.HELD, f"held: {job.settings_reason}; {advice}")
    stopped = stopped_reason(state, job.queue)
    if stopped is not None:
        return stopped
    if job.unsatisfiable_reason:
        message = f"it can never run here: {job.unsatisfiable_reason}"
        return WaitReason(WaitCause.UNSATISFIABLE, message, job.unsatisfiable_reason)
    return None


def stopped_reason(state: SchedulerState, queue: str) -> WaitReason | None:
    """The reason of what waits in a stopped queue, late members included; None if the queue is started."""
    found = state.queue.state_of(queue)
    if found.started:
        return None
    why = f": {found.reason_stopped}" if found.reason_stopped else ""
    return WaitReason(WaitCause.QUEUE_STOPPED, f"queue {queue} is stopped{why}")


def _assembling(state: SchedulerState, job: Job) -> str:
    """How many members are ready, how long the group waits for the others, and what happens then."""
    workload = state.workloads.get(job.workload)
    ready = job.members_ready
    if workload is None:
        return f"{count_of(ready, 'member')} {'is' if ready == 1 else 'are'} ready"
    text = f"{ready} of {max(workload.size, 1)} members are ready"
    if workload.assembly_timeout_s is None:
        return f"{text}; it waits for the others without a limit"
    within = format_duration(workload.assembly_timeout_s)
    return f"{text}; if none appears for {within}, the group is inadmissible until a further one does"


def _explained(state: SchedulerState, request: Request, now: float, extended: int) -> WaitReason:
    state.cluster.apply_updates()
    reason = state.cluster.engine.explain(request, int(now), extended)
    if reason is None:
        return WaitReason(WaitCause.PRIORITY)
    blockers = tuple(_blocker(state, blocker, now) for blocker in reason.blockers)
    clause = reason.clause + _down(state, reason.down)
    if not blockers:
        return WaitReason(WaitCause.RESOURCES, clause, clause, reason.stages)
    return _naming(WaitCause.RESOURCES, (f"{clause}; held by ", ""), blockers, clause, reason.stages)


def _down(state: SchedulerState, nodes: Sequence[str]) -> str:
    """Which nodes would do if they were up, and why they are not."""
    if not nodes:
        return ""
    texts = [f"{node} {_why_down(state, node)}" for node in nodes[:_NODES_NAMED_MAX]]
    more = len(nodes) - len(texts)
    return f"; {', '.join(texts)}{f' and {more} more' if more else ''}"


def _why_down(state: SchedulerState, node: str) -> str:
    drain, known = state.nodes.drains.get(node), state.cluster.nodes.get(node)
    if drain is not None:
        return f"is drained ({drain.reason})" if drain.reason else "is drained"
    why = known.fact.why if known is not None and not known.fact.up else ""
    return f"is down ({why})" if why else "is down"


def _blocker(state: SchedulerState, blocker: Blocker, now: float) -> WaitBlocker:
    """A job by its id, external usage by its name."""
    number = blocker.job
    if number is None:
        usage = state.cluster.external_usage(blocker.external_usage)
        name = (usage.name if usage is not None else "") or blocker.external_usage
        return WaitBlocker(name, namespace=usage.owner if usage is not None else "")
    job = state.jobs.get(number)
    end_at = job.end_at if job is not None else None
    if end_at is None or end_at > now:
        return _job_blocker(state, number, end_at)
    holder = state.cluster.engine.jobs.get(number)
    is_expected = holder is not None and now < holder.end < FOREVER
    until = float(holder.end) if holder is not None and is_expected else None
    return replace(_job_blocker(state, number, until), has_overrun=True)


def _job_blocker(state: SchedulerState, number: int, until: float | None = None) -> WaitBlocker:
    job = state.jobs.get(number)
    if job is None:
        return WaitBlocker(encode_jobid(number), number, until)
    title = f"{job.owner}/{job.spec.name}" if job.workload and job.owner else job.spec.name
    return WaitBlocker(encode_jobid(number), number, until, namespace=job.owner, title=title)


def _names(blockers: Sequence[WaitBlocker]) -> str:
    names = ", ".join(blocker.text() for blocker in blockers[:_BLOCKERS_NAMED_MAX])
    others = len(blockers) - _BLOCKERS_NAMED_MAX
    return f"{names}{f' and {others} more' if others > 0 else ''}"


def _behind_head(state: SchedulerState, queue: str, entry: QueueEntry | None) -> WaitReason | None:
    """The reason of a job behind the head that blocked its strict queue in the last cycle, if that waits."""
    number = state.plans.heads.get(queue)
    head = state.queue.entry(number) if number is not None else None
    if head is None or entry is None or not head < entry:
        return None
    name = encode_jobid(head.job)
    around = (f"queue {queue} is strict first-come, first-served, and ", " at its head waits")
    return _naming(WaitCause.QUEUE_ORDER, around, (_job_blocker(state, head.job),), f"behind {name}")


def _behind(
    state: SchedulerState,
    entry: QueueEntry | None,
    shape: int,
    now: float,
    memo: ReasonMemo | None,
) -> WaitReason:
    """The request fits, but only on claimed nodes, or a start would delay the first reservation before it."""
    kept_away = _kept_away(state, entry, shape, now, memo)
    if kept_away.cause is WaitCause.CLAIMED:
        return kept_away
    before = [
        (start, number)
        for number, start in state.plans.reservations.items()
        if (other := state.queue.entry(number)) is not None and entry is not None and other < entry
    ]
    if not before:
        return WaitReason(WaitCause.UNPLANNED, "the next scheduling cycle will consider it")
    start, number = min(before)
    name = encode_jobid(number)
    around = ("starting it now would delay ", ", which is ahead of it")
    return _naming(WaitCause.PRIORITY, around, (_job_blocker(state, number, start),), f"behind {name}")


def _kept_away(
    state: SchedulerState,
    entry: QueueEntry | None,
    shape: int,
    now: float,
    memo: ReasonMemo | None,
) -> WaitReason:
    """Whether claims keep an entry from starting; entries of one shape are looked at once."""
    found = memo.get(("claims", shape, 0)) if memo is not None else None
    if found is None:
        found = WaitReason(WaitCause.PRIORITY)
        claimers = claims_in_the_way(state, entry, shape, now) if entry is not None else ()
        if claimers:
            limit = format_duration(state.settings.claim_backfill_max_s)
            rule = f"only jobs with an enforced limit of at most {limit} start there"
            around = ("what is free is on nodes claimed by ", f", ahead of it; {rule}")
            blockers = tuple(_job_blocker(state, number) for number in claimers)
            found = _naming(WaitCause.CLAIMED, around, blockers, f"behind {_names(blockers)}")
        if memo is not None:
            memo["claims", shape, 0] = found
    return found


def jobs_ahead(state: SchedulerState) -> dict[int, int]:
    """For every job in the queue, the number of entries before it."""
    return {entry.job: position for position, entry in enumerate(state.queue.in_order()) if not entry.member}
