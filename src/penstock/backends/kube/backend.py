"""The Kubernetes backend: watches fill a cache, the cache yields facts, intents become actions.

A term (`run`) starts with a complete list of every watched resource and one `Snapshot`. From then on the
watches deliver changes, and facts follow in batches, so that the load is bounded. `refresh` lists
everything again within the term, to resolve a doubt about the cache; the old cache stays in use until the
new one is complete, since a cache that is being filled would report every pod as gone.

Nothing is written unless `may_act` holds: this instance is the leader, and stays so for longer than a
request takes. Intents that arrive before the first snapshot of a term are dropped: the scheduler sends
every open intent again once it has handled the snapshot.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from penstock.backends.kube.cache import ClusterCache
from penstock.backends.kube.condition_queue import PodCondition, Precedence
from penstock.backends.kube.creation_problems import CreationProblems, Shortages, shortage_text
from penstock.backends.kube.declaration_warnings import DeclarationWarnings
from penstock.backends.kube.executor import IntentExecutor
from penstock.backends.kube.pod_conditions import (
    ConditionWriter,
    ObjectEvent,
    condition_of_problem,
    condition_of_update,
    pod_reference,
)
from penstock.backends.kube.pod_group_status import PodGroupStatusWriter
from penstock.backends.kube.settings import KubeSettings
from penstock.backends.kube.watches import Watch, read_controller, resource_of_kind, watches_of
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient
from penstock.kube.errors import ApiError, NotFound
from penstock.kube.resources import ApiResource
from penstock.kube.types import OwnerReference, Pod, UnstructuredObject
from penstock.kube.watch import Deleted, Relisted, Upserted, WatchEvent, WatchState, reflect
from penstock.model.jobid import encode_jobid
from penstock.podspec.controller_kinds import require_controller_kind
from penstock.podspec.controllers import Controller
from penstock.podspec.pod_status import full_name
from penstock.podspec.problems import GROUP_INADMISSIBLE
from penstock.protocol.backend import Sink
from penstock.protocol.facts import Fact, IntentResult, Outcome
from penstock.protocol.intents import Intent, Place, StatusUpdate, WorkloadStatus

__all__ = ["KubeBackend"]

_LOG: Final = logging.getLogger("penstock.kube")
_SILENCE_S: Final = 60.0  # a watch that is interrupted for longer is a problem
_HEAD_PODS_MAX: Final = 64  # pods of one group that are told as the head of the queue
_TOLD_REFERENCES_MAX: Final = 64  # pods and owners that get an event about their group
_TOLD_MAX: Final = 10_000  # groups whose last event is known
_BATCH_S: Final = 0.01  # changes within this time are reported together


class KubeBackend:
    def __init__(
        self,
        client: KubeClient,
        settings: KubeSettings,
        *,
        identity: str,
        may_act: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._warnings = DeclarationWarnings()
        self.cache = ClusterCache(settings, self._warnings)
        self._client = client
        self._settings = settings
        self._is_leader = may_act
        self._clock = clock
        self._epoch: int | None = None  # None: no term is running
        self._has_snapshot = False  # the first snapshot of this term has been reported
        self._sink: Sink | None = None
        self._changed = asyncio.Event()
        self._refresh = asyncio.Event()
        self._synced: set[ApiResource] = set()
        self._states: dict[ApiResource, WatchState] = {}
        self._told_owners: dict[str, str] = {}  # by workload: what its owners were told last
        self._shortages = Shortages()
        self._creation_problems = CreationProblems(client, self._creation_changed, clock)
        self._executor = IntentExecutor(client, self, clock)
        self._condition_writer = ConditionWriter(client, settings, self._pod, self.may_act, clock, identity)
        self._pod_group_writer = PodGroupStatusWriter(client, lambda: self.cache.pod_groups, self.may_act)

    # The `Backend` protocol

    async def run(self, epoch: int, sink: Sink) -> None:
        self._epoch, self._sink, self._has_snapshot = epoch, sink, False
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(self._settings.binds_in_flight_max):
                    tasks.create_task(self._executor.run_worker())
                tasks.create_task(self._condition_writer.run())
                tasks.create_task(self._pod_group_writer.run())
                while True:
                    await self._reflect_until_refreshed()
        except BaseExceptionGroup as group:
            raise _decisive_error(group) from group  # The caller retries after `Unavailable` only.
        finally:
            self._epoch = self._sink = None
            self._states.clear()
            self._executor.clear()

    async def apply(self, epoch: int, intents: Sequence[Intent]) -> None:
        if epoch == self._epoch and self._has_snapshot:
            for intent in intents:
                try:
                    self._executor.put(intent)
                except Exception as error:
                    _LOG.exception("cannot execute intent %d", intent.intent)
                    self._refuse(intent, f"internal error: {error}")

    def _refuse(self, intent: Intent, why: str) -> None:
        members = (
            intent.members if not isinstance(intent, Place) else [one.member for one in intent.assignments]
        )
        for member in members:
            self.report(IntentResult(intent.intent, member, Outcome.CONFLICT, why))

    async def probe(self, members: Sequence[str]) -> None:
        if self._epoch is not None and self._has_snapshot:
            for member in members:
                self._executor.put_probe(member)

    def forget(self, members: Sequence[str]) -> None:
        for member in members:
            self._condition_writer.forget(member)

    def publish_status(self, status_updates: Sequence[StatusUpdate]) -> None:
        for update in status_updates:
            try:
                self._publish(update)
            except Exception:
                _LOG.exception("cannot publish the status of workload %s", update.workload)

    def _publish(self, update: StatusUpdate) -> None:
        update = self._shortages.of_update(update)
        if update.status is WorkloadStatus.FINISHED:
            return
        condition = condition_of_update(update)
        is_over = update.status is WorkloadStatus.INADMISSIBLE
        # The job of a member that is told by itself has started: its deadline is that of this attempt.
        if not is_over and not update.member and self._epoch is not None and self._has_snapshot:
            self._executor.restore_deadlines(update.workload)
        if not update.member:
            self._tell_owners(update)
        pods = self.cache.pods_to_inform(update.workload, update.member)
        for number, pod in enumerate(pods):
            self._condition_writer.set(pod.metadata.uid, condition, _precedence(update, condition, number))

    def _tell_owners(self, update: StatusUpdate) -> None:
        """Tells the PodGroup and the controllers of a group that Penstock cannot complete or does not start.

        The pods of an incomplete group that are on nodes are told as well: they have no condition for it.
        """
        is_incomplete = update.status is WorkloadStatus.INCOMPLETE
        if not is_incomplete and update.status is not WorkloadStatus.INADMISSIBLE:
            self._told_owners.pop(update.workload, None)
            return
        note = f"Penstock does not start the group: {update.reason}"
        if is_incomplete:
            note = f"the group of {encode_jobid(update.job)} is incomplete: {update.reason}"
        if self._told_owners.get(update.workload) == note:
            return
        if len(self._told_owners) >= _TOLD_MAX:
            self._told_owners.clear()
        self._told_owners[update.workload] = note
        pods = self.cache.pods_of(update.workload) if is_incomplete else ()
        reason = "GroupIncomplete" if is_incomplete else GROUP_INADMISSIBLE
        self._add_events(update.workload, [pod for pod in pods if pod.spec.node_name], reason, note)

    def _add_events(self, workload: str, pods: Sequence[Pod], reason: str, note: str) -> None:
        """Events of the owners of a workload and of some pods."""
        any_pod = next(iter(self.cache.pods_of(workload)), None)
        scheduler = any_pod.spec.scheduler_name if any_pod else self._settings.scheduler_names[0]
        references = self.cache.owners(workload) + [pod_reference(pod) for pod in pods]
        for reference in references[:_TOLD_REFERENCES_MAX]:
            self.add_event(ObjectEvent(reference, scheduler, reason, "Scheduling", note))

    def _creation_changed(self, workload: str, controller: Controller, problem: str) -> None:
        """Tells why a controller creates no pods: in the conditions of a group that waits, else as events."""
        last = self._shortages.set(workload, controller, problem)
        pods = [pod for pod in self.cache.pods_of(workload) if pod.spec.node_name]
        if last is not None and not pods:
            self._publish(last)
        elif problem:
            note = f"the group lacks pods: {shortage_text(controller, problem)}"
            self._add_events(workload, pods, "PodCreationBlocked", note)

    def problem(self) -> str:
        """Why the cache may be out of date, for longer than a watch takes to be opened again."""
        now = time.monotonic()
        for state in self._states.values():
            received_at = state.last_received_at
            is_silent = received_at is None or now - received_at > _SILENCE_S
            if state.problem and not state.is_unserved and (is_silent or not state.is_synced):
                return state.problem
        return ""

    # The `ExecutorContext` protocol

    def may_act(self) -> bool:
        return self._epoch is not None and self._has_snapshot and self._is_leader()

    def report(self, fact: Fact) -> None:
        if self._sink is not None:
            self._sink(fact)

    def scheduled(self, pod: Pod, node: str) -> None:
        self._condition_writer.scheduled(pod, node)

    def add_event(self, event: ObjectEvent) -> None:
        self._condition_writer.add_event(event)

    def _pod(self, uid: str) -> Pod | None:
        return self.cache.pod(uid)

    # Watches

    def refresh(self) -> None:
        """Lists everything again and reports a snapshot."""
        self._refresh.set()

    async def _reflect_until_refreshed(self) -> None:
        cache = ClusterCache(self._settings, self._warnings)
        self._synced = set()
        self._refresh.clear()
        watches = watches_of(cache, lambda: self.cache, self._condition_writer.forget)
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(self._reflect(watch)) for watch in watches]
            running.append(tasks.create_task(self._report_changes(cache, len(watches))))
            running.append(tasks.create_task(self._read_missing_controllers(cache)))
            running.append(tasks.create_task(self._creation_problems.run(cache)))
            await self._refresh.wait()
            _LOG.info("listing all resources again")
            for task in running:
                task.cancel()

    async def _reflect(self, watch: Watch) -> None:
        def on(change: WatchEvent[Any]) -> None:
            match change:
                case Relisted(items):
                    watch.replace(items)
                    self._synced.add(watch.resource)
                case Upserted(item):
                    _isolated(watch, watch.set, item)
                case Deleted(item):
                    _isolated(watch, watch.remove, item)
            self._changed.set()

        state = self._states[watch.resource] = WatchState()
        await reflect(
            self._client, watch.resource, watch.type, on, decode_partial=watch.decode_partial, state=state
        )

    async def _report_changes(self, cache: ClusterCache, watches: int) -> None:
        """Reports a snapshot as soon as all watches are synced, and then the changes."""
        while len(self._synced) < watches:
            await self._next_batch()
        self._changed.clear()
        self.cache = cache
        self.report(cache.snapshot(self._clock()))
        self._has_snapshot = True
        self._condition_writer.sweep()
        self._write_problems()
        while True:
            await self._next_batch()
            for fact in cache.facts(self._clock()):
                self.report(fact)
            self._write_problems()

    async def _next_batch(self) -> None:
        await self._changed.wait()
        await asyncio.sleep(_BATCH_S)
        self._changed.clear()

    def _write_problems(self) -> None:
        for uid, problem in self.cache.take_problem_changes().items():
            if problem is None:
                self._condition_writer.forget(uid)
            else:
                self._condition_writer.set(uid, condition_of_problem(problem), Precedence.FIRST)
        for event in self._warnings.take_events():
            self.add_event(event)

    # Controllers that the watches have not delivered

    async def _read_missing_controllers(self, cache: ClusterCache) -> None:
        """Watches of different resources are not ordered: a controller that lags behind its pods is read."""
        missing_since: dict[str, float] = {}
        while True:
            await asyncio.sleep(self._settings.controller_wait_s / 2)
            missing = cache.missing_controllers()
            now = time.monotonic()
            missing_since = {uid: missing_since.get(uid, now) for uid in missing}
            for uid, (namespace, owner) in missing.items():
                if now - missing_since[uid] >= self._settings.controller_wait_s:
                    await self._read_controller(cache, namespace, owner)
                    self._changed.set()

    async def _read_controller(self, cache: ClusterCache, namespace: str, owner: OwnerReference) -> None:
        kind = require_controller_kind(owner.api_version, owner.kind)
        try:
            path = resource_of_kind(kind).path(namespace, owner.name)
            found = await self._client.get(path, UnstructuredObject)
        except NotFound:
            cache.mark_controller_absent(owner.uid)
        except (ApiError, Unavailable) as error:
            _LOG.warning("cannot read %s %s/%s: %s", owner.kind, namespace, owner.name, error)
        else:
            if found.metadata.uid != owner.uid:
                cache.mark_controller_absent(owner.uid)
                return
            controller = read_controller(kind, found)
            if controller is not None:
                cache.set_controller_from_read(controller)


def _precedence(update: StatusUpdate, condition: PodCondition, number: int) -> Precedence:
    """The precedence of a pod, of the given number among the waiting pods of its group."""
    if condition.is_urgent and number == 0:
        return Precedence.URGENT
    if update.is_head and number < _HEAD_PODS_MAX:
        return Precedence.HEAD
    return Precedence.FIRST if number == 0 and not update.member else Precedence.REST


def _isolated(watch: Watch, action: Callable[[Any], None], item: Any) -> None:
    """Lets one object of a watch fail by itself."""
    try:
        action(item)
    except Exception:
        _LOG.exception("cannot handle %s %s", watch.resource.plural, full_name(item.metadata))


def _decisive_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error that is not `Unavailable`, which a retry would only hide; else the first one."""
    errors: list[BaseException] = []
    remaining: list[BaseException] = [group]
    while remaining:
        error = remaining.pop(0)
        if isinstance(error, BaseExceptionGroup):
            remaining.extend(error.exceptions)
        else:
            errors.append(error)
    return next((error for error in errors if not isinstance(error, Unavailable)), errors[0])
