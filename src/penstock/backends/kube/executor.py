"""Executes intents on the API server: bind, evict, end. Every action is idempotent.

Each member of an intent is one action of an `ActionQueue`. Before every write an action checks what the
cache knows of the pod and its node, and whether this instance may still write (`may_act`: its Lease lasts
longer than the request can take). After a conflict, or a request with an unknown outcome, it reads the pod
and tries again if nothing was done. A binding that stays undecided is reported as unknown, and the
scheduler requests it again. Evictions, ends and probes are retried until their outcome is known.

After each snapshot the scheduler requests every open intent again; an intent that is still in progress is
not executed twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from math import ceil
from typing import Final, Protocol

from penstock import failpoints
from penstock.backends.kube.action_queue import Action, ActionQueue
from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.deadlines import (
    DeadlineUpdate,
    current_deadline_s,
    deadline_patch,
    required_deadline_s,
)
from penstock.backends.kube.pod_conditions import ObjectEvent, controller_reference, pod_reference
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, ObjectReference, PatchType
from penstock.kube.errors import ApiConflict, ApiError, NotFound, OutcomeUnknown, TooManyRequests
from penstock.kube.resources import JOBS, NATIVE_PODGROUPS, PODS
from penstock.kube.types import Pod
from penstock.model.jobid import encode_jobid
from penstock.podspec.controllers import Controller
from penstock.podspec.keys import JOB_ANNOTATION
from penstock.podspec.pod_status import full_name, is_bound_by_us, is_terminal
from penstock.protocol.facts import Fact, IntentResult, MemberGone, Outcome
from penstock.protocol.intents import Assignment, End, EndReason, Evict, Place

__all__ = ["ExecutorContext", "IntentExecutor"]

_LOG: Final = logging.getLogger("penstock.kube")
_BIND_PAUSES_S: Final = (0.1, 0.3, 1.0, 2.0, 4.0)  # between tries, before the outcome is reported as unknown
_RETRY_AFTER_S_MAX: Final = 5.0  # bound on the pause that a busy server requests
_RETRY_S: Final = 2.0  # between tries of an end or a probe
_DEADLINE_PAUSE_S_MAX: Final = 60.0
_END_TEXTS: Final = {
    EndReason.CANCEL: "job {job} was canceled",
    EndReason.TIMEOUT: "job {job} has reached its time limit",
    EndReason.JOB_FAILED: "job {job} has failed",
    EndReason.SIGNAL: "job {job} got a signal",
    EndReason.ORPHAN: "its job is over",
}
_EVICT_PAUSE_S: Final = 5.0  # a PodDisruptionBudget refuses evictions for a while

_BIND_BEFORE: Final = failpoints.register("kube.bind.before", "a pod is about to be bound")
_BIND_AFTER: Final = failpoints.register("kube.bind.after", "a pod was bound, not yet reported")
_EVICT_BEFORE: Final = failpoints.register("kube.evict.before", "a pod is about to be evicted")
_EVICT_AFTER: Final = failpoints.register("kube.evict.after", "a pod was evicted, not yet reported")
_END_BEFORE: Final = failpoints.register("kube.end.before", "a pod or its Job is about to be ended")
_END_AFTER: Final = failpoints.register("kube.end.after", "a pod or its Job was ended, not yet reported")


class ExecutorContext(Protocol):
    """What the executor needs of the backend."""

    @property
    def cache(self) -> ClusterCache: ...

    def may_act(self) -> bool: ...

    def report(self, fact: Fact) -> None: ...

    def scheduled(self, pod: Pod, node: str) -> None:
        """Called after each binding, to write the event."""

    def add_event(self, event: ObjectEvent) -> None:
        """Writes an event of a pod or its owner, some time."""


class IntentExecutor:
    def __init__(self, client: KubeClient, context: ExecutorContext, clock: Callable[[], float]) -> None:
        self._client = client
        self._context = context
        self._clock = clock
        self._queue = ActionQueue(self._after_fault)
        self._deadlines: dict[str, DeadlineUpdate] = {}  # by Job
        # By intent: members that are not bound yet; without an entry, a binding of the intent has failed.
        self._unbound: dict[int, set[str]] = {}
        self._blocked: set[str] = set()  # pods that a PodDisruptionBudget keeps, and whose owner knows

    def put(self, intent: Place | Evict | End) -> None:
        match intent:
            case Place():
                self._put_place(intent)
            case Evict():
                self._put_evict(intent)
            case End():
                self._put_end(intent)

    def put_probe(self, member: str) -> None:
        self._queue.put((0, member), partial(self._probe, member))

    async def run_worker(self) -> None:
        await self._queue.run_worker()

    def clear(self) -> None:
        """Drops what is not done; the scheduler requests it again after the next snapshot."""
        self._queue.clear()
        self._unbound.clear()
        self._deadlines.clear()
        self._blocked.clear()

    def _after_fault(self, action: Action, error: Exception) -> Action:
        """An action that reports results reports them as unknown; any other is run again."""
        if not action.members:
            return action
        return replace(action, run=partial(self._report_fault, action, f"internal error: {error}"))

    async def _report_fault(self, action: Action, why: str) -> None:
        self._unbound.pop(action.key[0], None)
        for member in action.members:
            self._report_result(action.key[0], member, Outcome.UNKNOWN, why)

    def _report_result(self, intent: int, member: str, outcome: Outcome, detail: str = "") -> None:
        self._context.report(IntentResult(intent, member, outcome, detail))

    # Binding

    def _put_place(self, intent: Place) -> None:
        cache = self._context.cache
        open_assignments = [assignment for assignment in intent.assignments if not assignment.already_placed]
        by_job: dict[str, tuple[Controller, list[str]]] = {}
        for assignment in open_assignments:
            pod = cache.pod(assignment.member)
            job = cache.job_of(pod) if pod is not None else None
            if job is not None:
                by_job.setdefault(job.uid, (job, []))[1].append(assignment.member)
        for job, members in by_job.values():
            has_limit = any(cache.own_limit_s(member) is not None for member in members)
            self._put_deadline(job, intent.end_at if has_limit else None, members)
        for assignment in open_assignments:
            member = assignment.member
            self._unbound.setdefault(intent.intent, set()).add(member)
            self._queue.put((intent.intent, member), partial(self._place, intent, assignment), [member])

    async def _place(self, intent: Place, assignment: Assignment) -> None:
        outcome, detail = await self._bind_with_retries(intent, assignment)
        if outcome is not None:
            self._report_result(intent.intent, assignment.member, outcome, detail)
        if outcome is not Outcome.APPLIED:
            self._unbound.pop(intent.intent, None)
            return
        unbound = self._unbound.get(intent.intent)
        if unbound is not None:
            unbound.discard(assignment.member)
            if not unbound:
                del self._unbound[intent.intent]
                await self._mark_pod_group_scheduled(intent.workload)

    async def _bind_with_retries(self, intent: Place, assignment: Assignment) -> tuple[Outcome | None, str]:
        """The outcome of a binding, and its detail; None: something else has been reported about the pod."""
        why, name, retry_after_s = "", assignment.member, 0.0
        for pause_s in (0.0, *_BIND_PAUSES_S):
            await asyncio.sleep(max(pause_s, retry_after_s))
            retry_after_s = 0.0
            if not self._context.may_act():
                why = "this instance may not write to the cluster"
                continue
            pod = self._context.cache.pod(assignment.member)
            if pod is None:
                return Outcome.GONE, "the pod does not exist"
            name = full_name(pod.metadata)
            known = self._known_outcome(pod, assignment)
            if known is not None:
                return known
            try:
                await self._bind(intent, pod, assignment.node)
            except NotFound:
                return Outcome.GONE, "the pod does not exist"
            except (ApiError, Unavailable) as error:
                why = str(error)
                if isinstance(error, TooManyRequests):
                    retry_after_s = min(error.retry_after_s or 0.0, _RETRY_AFTER_S_MAX)
                if isinstance(error, ApiConflict | OutcomeUnknown):
                    outcome = await self._read_outcome(pod, assignment)
                    if outcome is not None:
                        return outcome
                continue
            self._context.scheduled(pod, assignment.node)
            return Outcome.APPLIED, ""
        _LOG.warning("pod %s is not bound to node %s yet: %s", name, assignment.node, why)
        return Outcome.UNKNOWN, why

    def _known_outcome(self, pod: Pod, assignment: Assignment) -> tuple[Outcome | None, str] | None:
        """The outcome of a binding as far as the pod itself shows it; None: it has to be bound."""
        cache = self._context.cache
        if pod.spec.node_name == assignment.node:
            return Outcome.APPLIED, ""
        if pod.spec.node_name:
            self._report_bound_elsewhere(pod)
            return None, ""
        if pod.metadata.deletion_timestamp is not None:
            return Outcome.GONE, "the pod is being deleted"
        if is_terminal(pod):
            return Outcome.GONE, "the pod has ended without a node"
        problem = cache.bind_problem(assignment.node, pod)
        return (Outcome.CONFLICT, problem) if problem else None

    async def _bind(self, intent: Place, pod: Pod, node: str) -> None:
        metadata, cache = pod.metadata, self._context.cache

        def may_send() -> bool:
            """Checks the node again: the request has waited for a connection, and others may bind pods."""
            cache.drop_assumed(metadata.uid)
            if cache.bind_problem(node, pod):
                return False
            cache.assume_bound(pod, node)
            return True

        failpoints.reach(_BIND_BEFORE)
        try:
            await self._client.bind(
                metadata.namespace,
                metadata.name,
                metadata.uid,
                node,
                annotations={JOB_ANNOTATION: encode_jobid(intent.job)},
                may_send=may_send,
            )
        except BaseException:
            cache.drop_assumed(metadata.uid)
            raise
        failpoints.reach(_BIND_AFTER)

    async def _read_outcome(self, pod: Pod, assignment: Assignment) -> tuple[Outcome | None, str] | None:
        """The outcome of a binding as the API server has it; None: not bound, so it can be tried again."""
        found = await self._read(pod)
        if found is None:
            return None
        if found.metadata.uid != assignment.member:
            return Outcome.GONE, "another pod has the same name"
        if found.spec.scheduling_gates:
            return Outcome.CONFLICT, "the pod has scheduling gates"
        self._context.cache.set_pod_from_read(found)
        return self._known_outcome(found, assignment)

    async def _read(self, pod: Pod) -> Pod | None:
        """The pod on the API server, with an empty uid if it does not exist; None: it cannot be read now."""
        try:
            return await self._client.get(PODS.path(pod.metadata.namespace, pod.metadata.name), Pod)
        except NotFound:
            return Pod()
        except (ApiError, Unavailable):
            return None

    def _report_bound_elsewhere(self, pod: Pod) -> None:
        """A pod that another scheduler has bound is no member any more; the cache reports its usage."""
        if is_bound_by_us(pod):
            self._context.report(self._context.cache.member_status(pod, self._clock()))
        else:
            self._context.report(MemberGone(pod.metadata.uid))

    async def _mark_pod_group_scheduled(self, workload: str) -> None:
        """Sets the condition of a PodGroup of scheduling.k8s.io when all of its pods are bound."""
        namespace, _, name = self._context.cache.native_group(workload).partition("/")
        if not name or not self._context.may_act():
            return
        condition = {
            "type": "PodGroupInitiallyScheduled",
            "status": "True",
            "reason": "Scheduled",
            "message": "all pods of the group are bound to nodes",
            "lastTransitionTime": _time_text(self._clock()),
        }
        try:
            await self._client.patch(
                NATIVE_PODGROUPS.path(namespace, name, "status"),
                {"status": {"conditions": [condition]}},
                patch_type=PatchType.STRATEGIC,
            )
        except (ApiError, Unavailable) as error:
            _LOG.info("cannot set the condition of PodGroup %s/%s: %s", namespace, name, error)

    # Deadlines of Jobs

    def _put_deadline(self, job: Controller, end_at: float | None, members: Sequence[str]) -> None:
        """Sets the deadline of a Job to the end of its group; the latest request counts."""
        if end_at is not None or job.deadline_set_s is not None or job.uid in self._deadlines:
            self._deadlines[job.uid] = DeadlineUpdate(job, end_at, tuple(members))
            self._queue.put((0, job.uid), partial(self._update_deadline, job.uid))

    def restore_deadlines(self, workload: str) -> None:
        """Removes our deadlines from the Jobs of a group that waits: they belong to its last attempt."""
        cache = self._context.cache
        pods = cache.pods_of(workload)
        jobs = {job.uid: job for pod in pods if (job := cache.job_of(pod)) and job.deadline_set_s}
        if not jobs or any(pod.spec.node_name for pod in pods):
            return
        if self._queue.open_targets().isdisjoint(pod.metadata.uid for pod in pods):
            for job in jobs.values():
                self._put_deadline(job, None, ())

    async def _update_deadline(self, uid: str) -> float | None:
        update = self._deadlines.get(uid)
        if update is None:
            return None
        is_done = await self._set_deadline(update)
        update.tries += 1
        if self._deadlines.get(uid) is not update:
            return 0.0  # Another deadline has been requested meanwhile.
        if is_done or update.is_expired(self._clock()):
            del self._deadlines[uid]
            return None
        return min(_RETRY_S * update.tries, _DEADLINE_PAUSE_S_MAX)

    async def _set_deadline(self, update: DeadlineUpdate) -> bool:
        """Whether the Job has the deadline, or needs it no more."""
        cache = self._context.cache
        pods = [pod for member in update.members if (pod := cache.pod(member)) and not is_terminal(pod)]
        job = cache.job_of(pods[0]) if pods else None
        if job is None and update.end_at is None:
            job = update.job
        if job is None or job.is_finished:
            return True
        if update.end_at is not None and job.started_at is None:
            return False  # The Job controller sets the start time shortly.
        seconds = required_deadline_s(job, update.end_at)
        if seconds == current_deadline_s(job):
            return True
        if not self._context.may_act() or not await self._patch_job(job, deadline_patch(job, seconds)):
            return False
        if update.end_at is not None and pods:
            note = f"Penstock has set activeDeadlineSeconds to {seconds}, which is when its time limit ends"
            scheduler = pods[0].spec.scheduler_name
            event = ObjectEvent(controller_reference(job), scheduler, "DeadlineSet", "Binding", note, False)
            self._context.add_event(event)
        return True

    async def _patch_job(self, job: Controller, body: dict[str, object]) -> bool:
        try:
            await self._client.patch(JOBS.path(job.namespace, job.name), body, patch_type=PatchType.MERGE)
        except NotFound:
            return True
        except (ApiError, Unavailable) as error:
            _LOG.warning("cannot set the deadline of Job %s/%s: %s", job.namespace, job.name, error)
            return False
        return True

    # Evicting

    def _put_evict(self, intent: Evict) -> None:
        cache = self._context.cache
        for member in intent.members:
            pod = cache.pod(member)
            job = cache.job_of(pod) if pod is not None else None
            if job is not None:
                self._put_deadline(job, None, ())
            self._queue.put((intent.intent, member), partial(self._evict_member, intent, member), [member])

    async def _evict_member(self, intent: Evict, member: str) -> float | None:
        pod = self._context.cache.pod(member)
        if pod is None:
            self._blocked.discard(member)
            self._report_result(intent.intent, member, Outcome.GONE)
            return None
        evicted = await self._evict(pod) if self._context.may_act() else None
        if evicted is None:
            return _EVICT_PAUSE_S
        self._blocked.discard(member)
        self._report_result(intent.intent, member, evicted)
        return None

    async def _evict(self, pod: Pod) -> Outcome | None:
        """The outcome of an eviction; None: it has to be tried again."""
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
                _LOG.warning("cannot evict pod %s: %s", full_name(metadata), error)
            elif error.is_disruption_budget and metadata.uid not in self._blocked:
                self._blocked.add(metadata.uid)
                note = f"its group is to start again, but a PodDisruptionBudget keeps the pod: {error}"
                scheduler = pod.spec.scheduler_name
                event = ObjectEvent(pod_reference(pod), scheduler, "EvictionBlocked", "Evicting", note)
                self._context.add_event(event)
            return None
        return Outcome.APPLIED

    # Ending

    def _put_end(self, intent: End) -> None:
        """A Job is ended as a whole by its own controller; a pod without a Job is deleted."""
        cache = self._context.cache
        jobs: dict[str, tuple[Controller, list[str]]] = {}
        for member in intent.members:
            pod = cache.pod(member)
            job = cache.job_of(pod) if pod is not None else None
            if pod is None:
                self._report_result(intent.intent, member, Outcome.GONE)
            elif intent.grace_s is None:
                _LOG.warning("cannot signal pod %s: Kubernetes has no signals", full_name(pod.metadata))
                self._report_result(intent.intent, member, Outcome.APPLIED)
            elif job is not None:
                jobs.setdefault(job.uid, (job, []))[1].append(member)
            else:
                self._queue.put((intent.intent, member), partial(self._end_pod, intent, pod), [member])
        for uid, (job, members) in jobs.items():
            self._deadlines.pop(uid, None)
            self._queue.put((intent.intent, uid), partial(self._end_job, intent, job, members), members)

    async def _end_job(self, intent: End, job: Controller, members: list[str]) -> float | None:
        cache = self._context.cache
        pod = next((found for member in members if (found := cache.pod(member))), None)
        if pod is None:
            for member in members:
                self._report_result(intent.intent, member, Outcome.GONE)
            return None
        seconds = max(1, ceil(self._clock() - (job.started_at or self._clock())))
        current = current_deadline_s(job)
        is_ending = job.is_finished or (current is not None and current <= seconds)
        body: dict[str, object] = {
            "metadata": {"uid": job.uid},
            "spec": {"activeDeadlineSeconds": seconds},
        }
        failpoints.reach(_END_BEFORE)
        done = self._context.may_act() and (is_ending or await self._patch_job(job, body))
        failpoints.reach(_END_AFTER)
        if not done:
            return _RETRY_S
        self._context.add_event(_end_event(intent, controller_reference(job), pod))
        for member in members:
            self._report_result(intent.intent, member, Outcome.APPLIED)
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
                self._context.add_event(_end_event(intent, pod_reference(pod), pod))
            except (NotFound, ApiConflict):
                outcome = Outcome.GONE
            except (ApiError, Unavailable) as error:
                _LOG.warning("cannot delete pod %s: %s", full_name(metadata), error)
        if outcome is None:
            return _RETRY_S
        self._report_result(intent.intent, metadata.uid, outcome)
        return None

    # Probing

    async def _probe(self, member: str) -> float | None:
        """Reports the status of a member as read from the API server, as soon as the server responds."""
        known = self._context.cache.pod(member)
        if known is None:
            self._context.report(MemberGone(member))
            return None
        found = await self._read(known)
        if found is None:
            return _RETRY_S
        if found.metadata.uid != member:
            self._context.cache.remove_pod(known)
            self._context.report(MemberGone(member))
        else:
            self._context.cache.set_pod_from_read(found)
            self._context.report(self._context.cache.member_status(found, self._clock()))
        return None


def _end_event(intent: End, regarding: ObjectReference, pod: Pod) -> ObjectEvent:
    """Who ends a Job or a pod, and why: otherwise it looks as if it had failed by itself."""
    text = _END_TEXTS[intent.reason].format(job=encode_jobid(intent.job))
    note = f"Penstock ends it: {text}" + (f": {intent.note}" if intent.note else "")
    reason = "DeadlineExceeded" if intent.reason is EndReason.TIMEOUT else "Canceled"
    return ObjectEvent(regarding, pod.spec.scheduler_name, reason, "Ending", note)


def _time_text(at: float) -> str:
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
