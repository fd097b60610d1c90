"""Why controllers do not create the pods that they want: a ResourceQuota, an admission webhook.

The scheduler sees only that members of a group are missing. The reason is in an event of the controller. A
watch of all events would be the largest stream of the cluster, so the events of one controller are read while
it has fewer pods than it wants, after a moment of patience and at growing intervals. The number of reads is
bounded, whatever the size of the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from penstock.backends.kube.cache import ClusterCache
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient
from penstock.kube.errors import ApiError
from penstock.kube.resources import EVENTS
from penstock.kube.types import Event
from penstock.podspec.controllers import Controller
from penstock.podspec.timestamps import epoch_seconds
from penstock.protocol.intents import StatusUpdate, WorkloadStatus

__all__ = ["CreationProblems", "Shortages", "creation_problem", "shortage_text"]

_LOG: Final = logging.getLogger("penstock.kube")
_EVERY_S: Final = 2.0
_PATIENCE_S: Final = 4.0  # controllers create pods within moments
_PAUSE_S, _PAUSE_S_MAX = 15.0, 240.0  # between reads about one controller
_READS_MAX: Final = 10  # in each round
_RECENT_S: Final = 20 * 60.0  # controllers try again at least so often
_TEXT_MAX: Final = 400
_ASSEMBLING_MAX: Final = 100_000
_FORBIDDEN: Final = re.compile(r'^.*?pods "[^"]*" is forbidden: ')  # Each try has another name.


@dataclass(slots=True)
class _Short:
    """A controller with fewer pods than it wants."""

    read_at: float  # when to read next
    pause_s: float = _PAUSE_S
    workload: str = ""
    problem: str = ""


class CreationProblems:
    """`on_change` gets a workload, its controller, and why that one creates no pods; "": it does."""

    def __init__(
        self,
        client: KubeClient,
        on_change: Callable[[str, Controller, str], None],
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._clock = clock
        self._monotonic = monotonic
        self._short: dict[str, _Short] = {}  # by controller
        self._known: dict[str, Controller] = {}

    async def run(self, cache: ClusterCache) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.look(cache)
            except Exception:  # Nothing but explanations depends on it.
                _LOG.exception("cannot find out why controllers create no pods")

    async def look(self, cache: ClusterCache) -> None:
        """One round: reads the events of the controllers that are due, and reports what has changed."""
        now = self._monotonic()
        found = {controller.uid: (workload, controller) for workload, controller in cache.short_controllers()}
        for uid in [uid for uid in self._short if uid not in found]:
            short, controller = self._short.pop(uid), self._known.pop(uid)
            if short.problem:
                self._on_change(short.workload, controller, "")
        for uid, (workload, controller) in found.items():
            short = self._short.setdefault(uid, _Short(now + _PATIENCE_S))
            short.workload, self._known[uid] = workload, controller
        due = sorted((one.read_at, uid) for uid, one in self._short.items() if one.read_at <= now)
        for _, uid in due[:_READS_MAX]:
            await self._read(self._short[uid], self._known[uid])

    async def _read(self, short: _Short, controller: Controller) -> None:
        selector = f"regarding.uid={controller.uid},reason=FailedCreate"
        try:
            path = EVENTS.path(controller.namespace)
            events = (await self._client.list(path, Event, field_selector=selector)).items
        except (ApiError, Unavailable) as error:
            name = f"{controller.namespace}/{controller.name}"
            _LOG.debug("cannot read the events of %s %s: %s", controller.kind.name, name, error)
            events = ()
        problem = creation_problem(events, self._clock())
        short.pause_s = _PAUSE_S if problem else short.pause_s
        short.read_at = self._monotonic() + short.pause_s
        short.pause_s = min(2 * short.pause_s, _PAUSE_S_MAX)
        if problem and problem != short.problem:
            short.problem = problem
            self._on_change(short.workload, controller, problem)


class Shortages:
    """The problems of workloads, and the last status of those that wait for members that are not created."""

    def __init__(self) -> None:
        self._problems: dict[str, dict[str, str]] = {}  # workload -> controller -> text
        self._assembling: dict[str, StatusUpdate] = {}  # as the scheduler has published it

    def set(self, workload: str, controller: Controller, problem: str) -> StatusUpdate | None:
        """Returns the status to publish again, if the workload has last waited for members."""
        of_workload = self._problems.setdefault(workload, {})
        if problem:
            of_workload[controller.uid] = shortage_text(controller, problem)
        else:
            of_workload.pop(controller.uid, None)
        if not of_workload:
            del self._problems[workload]
        return self._assembling.get(workload)

    def of_update(self, update: StatusUpdate) -> StatusUpdate:
        """The status with the problem in its reason, if it is that of a workload that waits for members."""
        if update.member:
            return update
        if update.status is not WorkloadStatus.ASSEMBLING:
            self._assembling.pop(update.workload, None)
            return update
        if len(self._assembling) < _ASSEMBLING_MAX:
            self._assembling[update.workload] = update
        texts = (update.reason, *self._problems.get(update.workload, {}).values())
        return replace(update, reason="; ".join(text for text in texts if text))


def shortage_text(controller: Controller, problem: str) -> str:
    return f"{controller.kind.name} {controller.name} cannot create pods: {problem}"


def creation_problem(events: tuple[Event, ...], now: float) -> str:
    """The text of the latest of these events, if it is recent."""
    latest = max(events, key=_happened_at, default=None)
    if latest is None or now - _happened_at(latest) > _RECENT_S:
        return ""
    text = _FORBIDDEN.sub("", latest.note)
    return text if len(text) <= _TEXT_MAX else f"{text[: _TEXT_MAX - 3]}..."


def _happened_at(event: Event) -> float:
    series = event.series.last_observed_time if event.series is not None else None
    times = (series, event.deprecated_last_timestamp, event.event_time, event.metadata.creation_timestamp)
    for text in times:
        if text:
            try:
                return epoch_seconds(text)
            except ValueError:
                continue
    return 0.0
