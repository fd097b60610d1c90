"""Carrying out intents on an API server: bind, evict, end. Everything here can be done twice.

Each member of an intent is one action, taken by one of a bounded number of workers. Before every write the
action looks again: at what is known of the pod and its node, and whether we may still act (`may_act`: the
lease lasts longer than the request can take). What a server says no to is looked up; what is unknown is
looked up too, and done again if it was not done. A binding whose outcome cannot be found out is told as
unknown, and the scheduler asks for it again; what is to be taken away, and what is asked, is tried until it
is known. Who waits for that keeps no worker. What is wanted again while it waits, pauses or is under way is
not done a second time beside that: a scheduler that has taken in a snapshot wants all that is open again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from math import ceil
from typing import Final, Protocol

from penstock import failpoints
from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.deadlines import Deadline, stands_s, wanted_s, with_deadline
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, PatchType
from penstock.kube.errors import ApiConflict, ApiError, NotFound, OutcomeUnknown, TooManyRequests
from penstock.kube.resources import JOBS, NATIVE_PODGROUPS, PODS
from penstock.kube.types import Pod
from penstock.model.jobid import encode_jobid
from penstock.podspec.grouping import JOB_ANNOTATION, Controller
from penstock.podspec.pod_status import is_over, is_placed_by_us
from penstock.protocol.facts import Fact, IntentResult, MemberGone, Outcome
from penstock.protocol.intents import Assignment, End, Place, Retract, RetractMode

__all__ = ["IntentExecutor"]

_LOG: Final = logging.getLogger("penstock.kube")
_PAUSES_S: Final = (0.1, 0.3, 1.0, 2.0, 4.0)  # between tries, before the outcome is told as unknown
_ASKED_S_MAX: Final = 5.0  # of the pause that a busy server may ask for
_AGAIN_S: Final = 2.0  # until an end or a question is tried again
_DEADLINE_PAUSE_S_MAX: Final = 60.0
_EVICT_PAUSE_S: Final = 5.0  # a disruption budget refuses for a while

_BIND_BEFORE: Final = failpoints.register("kube.bind.before", "a pod is about to be bound")
_BIND_AFTER: Final = failpoints.register("kube.bind.after", "a pod was bound, which nobody was told")
_EVICT_BEFORE: Final = failpoints.register("kube.evict.before", "a pod is about to be evicted")
_EVICT_AFTER: Final = failpoints.register("kube.evict.after", "a pod was evicted, which nobody was told")
_END_BEFORE: Final = failpoints.register("kube.end.before", "a pod or its Job is about to be ended")
_END_AFTER: Final = failpoints.register("kube.end.after", "a pod or its Job was ended, which nobody was told")


class ExecutorContext(Protocol):
    """What an action needs of the world around it."""

    @property
    def cache(self) -> ClusterCache: ...

    def may_act(self) -> bool: ...

    def report(self, fact: Fact) -> None: ...

    def scheduled(self, pod: Pod, node: str) -> None:
        """Lets people know that a pod has its node."""


@dataclass(frozen=True, slots=True)
class _Action:
    """What one worker does at a time. There is one of each `key`: an intent (0: a question), and for whom."""

    key: tuple[int, str]
    take: Callable[[], Awaitable[float | None]]  # the pause until it is taken again; None: it is done
    members: tuple[str, ...] = ()  # who is told as unknown if it fails; nobody: it is taken again


class IntentExecutor:
    def __init__(self, client: KubeClient, context: ExecutorContext, clock: Callable[[], float]) -> None:
        self._client = client
        self._context = context
        self._clock = clock
        self._open: set[tuple[int, str]] = set()  # keys of what waits, pauses or is under way
        self._queue: asyncio.Queue[_Action] = asyncio.Queue()
        self._pausing: set[asyncio.TimerHandle] = set()
        self._deadlines: dict[str, Deadline] = {}  # by Job
        self._unplaced: dict[int, set[str]] = {}  # by intent: who is still to be placed, if all were so far

    def put(self, intent: Place | Retract | End) -> None:
        match intent:
            case Place():
                self._put_place(intent)
            case Retract():
                self._put_retract(intent)
            case End():
                self._put_end(intent)

    async def workload(self) -> None:
        """One worker. A fault of ours in an action is told as unknown, after a pause; it ends no worker."""
        while True:
            action = await self._queue.get()
            try:
                pause_s = await action.take()
            except Exception as error:
                _LOG.exception("an action for %s has failed", action.key[1])
                if action.members:
                    action = replace(action, take=partial(self._failed, action, f"a fault of ours: {error}"))
                pause_s = _AGAIN_S
            if pause_s is None:
                self._open.discard(action.key)
            else:
                self._later(pause_s, action)

    def drop(self) -> None:
        """What was not begun is not done: who wanted it will want it again. Nobody works meanwhile."""
        for handle in self._pausing:
            handle.cancel()
        self._pausing.clear()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._open.clear()
        self._unplaced.clear()
        self._deadlines.clear()

    def _put(
        self,
        intent: int,
        whom: str,
        take: Callable[[], Awaitable[float | None]],
        members: Sequence[str] = (),
    ) -> None:
        key = (intent, whom)
        if key not in self._open:
            self._open.add(key)
            self._queue.put_nowait(_Action(key, take, tuple(members)))

    async def _failed(self, action: _Action, why: str) -> None:
        self._unplaced.pop(action.key[0], None)
        for member in action.members:
            self._settle(action.key[0], member, Outcome.UNKNOWN, why)

    def _later(self, pause_s: float, action: _Action) -> None:
        """Has an action taken after a pause, by whichever worker is free then."""

        def put() -> None:
            self._pausing.discard(handle)
            self._queue.put_nowait(action)

        handle = asyncio.get_running_loop().call_later(pause_s, put)
        self._pausing.add(handle)

    def _settle(self, intent: int, member: str, outcome: Outcome, detail: str = "") -> None:
        self._context.report(IntentResult(intent, member, outcome, detail))

    # Placing

    def _put_place(self, intent: Place) -> None:
        cache = self._context.cache
        open_assignments = [assignment for assignment in intent.assignments if not assignment.already_placed]
        made: dict[str, tuple[Controller, list[str]]] = {}
        for assignment in open_assignments:
            pod = cache.pod(assignment.member)
            job = cache.job_of(pod) if pod is not None else None
            if job is not None:
                made.setdefault(job.uid, (job, []))[1].append(assignment.member)
        for job, members in made.values():
            is_limited = any(cache.own_limit_s(member) is not None for member in members)
            self._want_deadline(job, intent.end_at if is_limited else None, members)
        for assignment in open_assignments:
            self._unplaced.setdefault(intent.intent, set()).add(assignment.member)
            self._put(
                intent.intent,
                assignment.member,
                partial(self._place, intent, assignment),
                [assignment.member],
            )

    async def _place(self, intent: Place, assignment: Assignment) -> None:
        outcome, detail = await self._bound(intent, assignment)
        if outcome is not None:
            self._settle(intent.intent, assignment.member, outcome, detail)
        if outcome is not Outcome.APPLIED:
            self._unplaced.pop(intent.intent, None)
            return
        left = self._unplaced.get(intent.intent)
        if left is not None:
            left.discard(assignment.member)
            if not left:
                del self._unplaced[intent.intent]
                await self._note_group(intent.workload)

    async def _bound(self, intent: Place, assignment: Assignment) -> tuple[Outcome | None, str]:
        """What became of a binding; None: something else than its outcome was told."""
        why, shown, asked_s = "", assignment.member, 0.0
        for pause_s in (0.0, *_PAUSES_S):
            await asyncio.sleep(max(pause_s, asked_s))
            asked_s = 0.0
            if not self._context.may_act():
                why = "we may not act"
                continue
            pod = self._context.cache.pod(assignment.member)
            if pod is None:
                return Outcome.GONE, "there is no such pod any more"
            shown = f"{pod.metadata.namespace}/{pod.metadata.name}"
            found = self._looked_at(pod, assignment)
            if found is not None:
                return found
            try:
                await self._bind(intent, pod, assignment.node)
            except NotFound:
                return Outcome.GONE, "there is no such pod any more"
            except (ApiError, Unavailable) as error:
                why = str(error)
                if isinstance(error, TooManyRequests):
                    asked_s = min(error.retry_after_s or 0.0, _ASKED_S_MAX)
                if isinstance(error, ApiConflict | OutcomeUnknown):
                    outcome = await self._look_up(pod, assignment)
                    if outcome is not None:
                        return outcome
                continue
            self._context.scheduled(pod, assignment.node)
            return Outcome.APPLIED, ""
        _LOG.warning("%s is not bound to %s yet: %s", shown, assignment.node, why)
        return Outcome.UNKNOWN, why

    def _looked_at(self, pod: Pod, assignment: Assignment) -> tuple[Outcome | None, str] | None:
        """What is known of a pod already, if that answers everything."""
        cache = self._context.cache
        if pod.spec.node_name == assignment.node:
            return Outcome.APPLIED, ""
        if pod.spec.node_name:
            self._tell_elsewhere(pod)
            return None, ""
        if pod.metadata.deletion_timestamp is not None:
            return Outcome.GONE, "it is being deleted"
        if is_over(pod):
            return Outcome.GONE, "it has ended without a node"
        if not cache.has_node(assignment.node):
            return Outcome.CONFLICT, f"there is no node {assignment.node} any more"
        if not cache.has_room(assignment.node, pod):
            return Outcome.CONFLICT, f"others have taken what was free on {assignment.node}"
        return None

    async def _bind(self, intent: Place, pod: Pod, node: str) -> None:
        metadata = pod.metadata
        failpoints.reach(_BIND_BEFORE)
        await self._client.bind(
            metadata.namespace,
            metadata.name,
            metadata.uid,
            node,
            annotations={JOB_ANNOTATION: encode_jobid(intent.job)},
        )
        failpoints.reach(_BIND_AFTER)

    async def _look_up(self, pod: Pod, assignment: Assignment) -> tuple[Outcome | None, str] | None:
        """Reads the pod itself; None: it is as it was, so it can be tried again."""
        found = await self._read(pod)
        if found is None:
            return None
        if found.metadata.uid != assignment.member:
            return Outcome.GONE, "there is another pod of that name"
        if found.spec.scheduling_gates:
            return Outcome.CONFLICT, "it has scheduling gates"
        self._context.cache.pod_read(found)
        return self._looked_at(found, assignment)

    async def _read(self, pod: Pod) -> Pod | None:
        """The pod as it is; None: that cannot be found out now. One that is gone has another uid: none."""
        try:
            return await self._client.get(PODS.path(pod.metadata.namespace, pod.metadata.name), Pod)
        except NotFound:
            return Pod()
        except (ApiError, Unavailable):
            return None

    def _tell_elsewhere(self, pod: Pod) -> None:
        """One that others have placed is no member any more: the mirror tells what it uses."""
        if is_placed_by_us(pod):
            self._context.report(self._context.cache.seen(pod, self._clock()))
        else:
            self._context.report(MemberGone(pod.metadata.uid))

    async def _patch_job(self, job: Controller, body: dict[str, object]) -> bool:
        try:
            await self._client.patch(JOBS.path(job.namespace, job.name), body, patch_type=PatchType.MERGE)
        except NotFound:
            return True
        except (ApiError, Unavailable) as error:
            _LOG.warning("Job %s/%s: its deadline was not set: %s", job.namespace, job.name, error)
            return False
        return True

    async def _note_group(self, workload: str) -> None:
        """Tells a PodGroup of Kubernetes' own that it has started."""
        namespace, _, name = self._context.cache.native_group(workload).partition("/")
        if not name or not self._context.may_act():
            return
        condition = {
            "type": "PodGroupInitiallyScheduled",
            "status": "True",
            "reason": "Scheduled",
            "message": "all of its pods have their nodes",
            "lastTransitionTime": _time_text(self._clock()),
        }
        try:
            await self._client.patch(
                NATIVE_PODGROUPS.path(namespace, name, "status"),
                {"status": {"conditions": [condition]}},
                patch_type=PatchType.STRATEGIC,
            )
        except (ApiError, Unavailable) as error:
            _LOG.info("PodGroup %s/%s was not told that it has started: %s", namespace, name, error)

    # Limits

    def _want_deadline(self, job: Controller, end_at: float | None, members: Sequence[str]) -> None:
        """Has the Job controller end a Job when its group's time is over; the newest wish is what counts."""
        if end_at is not None or job.deadline_set_s is not None or job.uid in self._deadlines:
            self._deadlines[job.uid] = Deadline(job, end_at, tuple(members))
            self._put(0, job.uid, partial(self._keep_deadline, job.uid))

    def take_back_deadlines(self, workload: str) -> None:
        """Of a group that waits: what stands there was meant for its last attempt."""
        cache = self._context.cache
        pods = cache.pods_of(workload)
        jobs = {job.uid: job for pod in pods if (job := cache.job_of(pod)) and job.deadline_set_s}
        if jobs and not any(pod.spec.node_name for pod in pods):
            being_placed = {whom for _, whom in self._open}
            if being_placed.isdisjoint(pod.metadata.uid for pod in pods):
                for job in jobs.values():
                    self._want_deadline(job, None, ())

    async def _keep_deadline(self, uid: str) -> float | None:
        command = self._deadlines.get(uid)
        if command is None:
            return None
        is_done = await self._has_deadline(command)
        command.tries += 1
        if self._deadlines.get(uid) is not command:
            return 0.0  # Something else is wanted by now.
        if is_done or command.is_over(self._clock()):
            del self._deadlines[uid]
            return None
        return min(_AGAIN_S * command.tries, _DEADLINE_PAUSE_S_MAX)

    async def _has_deadline(self, command: Deadline) -> bool:
        """Whether a Job ends when it should, or need not any more."""
        cache = self._context.cache
        pods = [pod for member in command.members if (pod := cache.pod(member)) and not is_over(pod)]
        job = cache.job_of(pods[0]) if pods else None
        if job is None and command.end_at is None:
            job = command.job
        if job is None or job.is_over:
            return True
        if command.end_at is not None and job.started_at is None:
            return False  # It will have, in a moment.
        seconds = wanted_s(job, command.end_at)
        if seconds == stands_s(job):
            return True
        return self._context.may_act() and await self._patch_job(job, with_deadline(job, seconds))

    # Taking away

    def _put_retract(self, intent: Retract) -> None:
        cache = self._context.cache
        for member in intent.members:
            pod = cache.pod(member)
            job = cache.job_of(pod) if pod is not None else None
            if job is not None and intent.mode is RetractMode.EVICT:
                self._want_deadline(job, None, ())
            self._put(intent.intent, member, partial(self._retract, intent, member), [member])

    async def _retract(self, intent: Retract, member: str) -> float | None:
        pod = self._context.cache.pod(member)
        if pod is None:
            self._settle(intent.intent, member, Outcome.GONE)
            return None
        if intent.mode is RetractMode.FORGET:
            forgotten = Outcome.CONFLICT if pod.spec.node_name else Outcome.APPLIED
            self._settle(intent.intent, member, forgotten)
            return None
        outcome = await self._evicted(pod) if self._context.may_act() else None
        if outcome is None:
            return _EVICT_PAUSE_S
        self._settle(intent.intent, member, outcome)
        return None

    async def _evicted(self, pod: Pod) -> Outcome | None:
        """What became of an eviction; None: it is to be tried again."""
        metadata = pod.metadata
        try:
            failpoints.reach(_EVICT_BEFORE)
            await self._client.evict(metadata.namespace, metadata.name, metadata.uid)
            failpoints.reach(_EVICT_AFTER)
        except NotFound:
            return Outcome.GONE
        except ApiConflict:
            found = await self._read(pod)
            return Outcome.GONE if found is not None and found.metadata.uid != metadata.uid else None
        except (ApiError, Unavailable) as error:
            if not isinstance(error, TooManyRequests):
                _LOG.warning("%s/%s was not evicted: %s", metadata.namespace, metadata.name, error)
            return None
        return Outcome.APPLIED

    # Ending

    def _put_end(self, intent: End) -> None:
        """A Job is ended as a whole, by its own controller; a pod by itself is deleted."""
        cache = self._context.cache
        jobs: dict[str, tuple[Controller, list[str]]] = {}
        for member in intent.members:
            pod = cache.pod(member)
            job = cache.job_of(pod) if pod is not None else None
            if pod is None:
                self._settle(intent.intent, member, Outcome.GONE)
            elif intent.grace_s is None:
                _LOG.warning("%s: a pod cannot be sent a signal", pod.metadata.name)
                self._settle(intent.intent, member, Outcome.APPLIED)
            elif job is not None:
                jobs.setdefault(job.uid, (job, []))[1].append(member)
            else:
                self._put(intent.intent, member, partial(self._end_pod, intent, pod), [member])
        for uid, (job, members) in jobs.items():
            self._deadlines.pop(uid, None)
            self._put(intent.intent, uid, partial(self._end_job, intent, job, members), members)

    async def _end_job(self, intent: End, job: Controller, members: list[str]) -> float | None:
        cache = self._context.cache
        if not any(cache.pod(member) for member in members):
            for member in members:
                self._settle(intent.intent, member, Outcome.GONE)
            return None
        seconds = max(1, ceil(self._clock() - (job.started_at or self._clock())))
        stands = stands_s(job)
        is_ending = job.is_over or (stands is not None and stands <= seconds)
        body: dict[str, object] = {
            "metadata": {"uid": job.uid},
            "spec": {"activeDeadlineSeconds": seconds},
        }
        failpoints.reach(_END_BEFORE)
        done = self._context.may_act() and (is_ending or await self._patch_job(job, body))
        failpoints.reach(_END_AFTER)
        if not done:
            return _AGAIN_S
        for member in members:
            self._settle(intent.intent, member, Outcome.APPLIED)
        return None

    async def _end_pod(self, intent: End, pod: Pod) -> float | None:
        metadata = pod.metadata
        grace_s = None if intent.grace_s is None else ceil(intent.grace_s)
        outcome = None
        if self._context.may_act():
            try:
                failpoints.reach(_END_BEFORE)
                path = PODS.path(metadata.namespace, metadata.name)
                await self._client.delete(path, uid=metadata.uid, grace_s=grace_s)
                failpoints.reach(_END_AFTER)
                outcome = Outcome.APPLIED
            except (NotFound, ApiConflict):
                outcome = Outcome.GONE
            except (ApiError, Unavailable) as error:
                _LOG.warning("%s/%s was not ended: %s", metadata.namespace, metadata.name, error)
        if outcome is None:
            return _AGAIN_S
        self._settle(intent.intent, metadata.uid, outcome)
        return None

    # Finding out

    async def _probe(self, member: str) -> float | None:
        """Says what became of a member, from the server itself, as soon as that answers."""
        known = self._context.cache.pod(member)
        if known is None:
            self._context.report(MemberGone(member))
            return None
        found = await self._read(known)
        if found is None:
            return _AGAIN_S
        if found.metadata.uid != member:
            self._context.cache.pod_gone(known)
            self._context.report(MemberGone(member))
        else:
            self._context.cache.pod_read(found)
            self._context.report(self._context.cache.seen(found, self._clock()))
        return None

    def put_probe(self, member: str) -> None:
        self._put(0, member, partial(self._probe, member))


def _time_text(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
