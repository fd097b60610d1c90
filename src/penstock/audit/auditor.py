"""The audit loop: every minute, takes snapshots, compares them, confirms the differences and repairs them.

A difference counts if two successive comparisons show it, a few seconds apart: the snapshots are not taken at
the same instant, and on a busy cluster something always changes in between. A confirmed difference is logged
and repaired by the one rule of its kind (`differences`). Repairs are bounded, because a wrong auditor must
not do more damage than the errors it looks for: a number of members per round, one snapshot per round, one
restart in ten minutes. After several repairs in a row a persistent difference is only reported. A restart is
the only repair of its round, because it may resolve the other differences as well.

No failure ends the loop: a failed snapshot or repair is counted, and the next round follows.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from penstock.audit.compare import compare
from penstock.audit.differences import Difference, DifferenceKind, Repair
from penstock.audit.metrics import AuditMetrics
from penstock.audit.snapshots import ApiSnapshot, GraphSnapshot, StoreSnapshot

__all__ = ["AuditReport", "Auditor", "Repairer"]

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)
_LOGGED_MAX: Final = 20  # differences per round


class Repairer(Protocol):
    """Executes repairs. Every method is idempotent."""

    async def snapshot(self) -> None:
        """Makes the backend read the cluster again and report a full snapshot."""

    async def release(self, members: Sequence[str]) -> None:
        """Reports these members as gone to the scheduler, and makes the backend read the cluster again."""

    async def restart(self, why: str) -> None:
        """Drops the state in memory and reloads it from the store."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The result of one round."""

    seen: tuple[Difference, ...] = ()  # in the first comparison
    confirmed: tuple[Difference, ...] = ()  # in the second comparison as well
    repaired: tuple[Difference, ...] = ()
    held_back: tuple[Difference, ...] = ()  # not repaired because of a bound
    failed: tuple[str, ...] = ()  # names of failed snapshots and repairs


class Auditor:
    def __init__(
        self,
        read_api: Callable[[], Awaitable[ApiSnapshot]],
        read_store: Callable[[], Awaitable[StoreSnapshot]],
        read_graph: Callable[[], Awaitable[GraphSnapshot]],
        repairer: Repairer,
        *,
        scheduler_names: Collection[str],
        metrics: AuditMetrics | None = None,
        interval_s: float = 60.0,
        confirm_s: float = 5.0,
        timeout_s: float = 60.0,  # of one snapshot or one repair
        releases_max: int = 100,  # members per round
        repairs_per_difference_max: int = 3,  # consecutive rounds; then it is only reported
        restart_interval_s: float = 600.0,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.metrics: Final = metrics if metrics is not None else AuditMetrics()
        self._read_api = read_api
        self._read_store = read_store
        self._read_graph = read_graph
        self._repairer = repairer
        self._scheduler_names = frozenset(scheduler_names)
        self._interval_s = interval_s
        self._confirm_s = confirm_s
        self._timeout_s = timeout_s
        self._releases_max = releases_max
        self._repairs_per_difference_max = repairs_per_difference_max
        self._restart_interval_s = restart_interval_s
        self._clock = clock
        self._sleep = sleep
        self._repair_counts: dict[tuple[DifferenceKind, str, str], int] = {}  # in successive rounds
        self._restarted_at: float | None = None

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self._sleep(self._interval_s)
            await self.once()

    async def once(self) -> AuditReport:
        """Runs one round."""
        began_at = self._clock()
        report = await self._round()
        self.metrics.round_ended(max(0.0, self._clock() - began_at))
        return report

    async def _round(self) -> AuditReport:
        seen, failed = await self._differences(None)
        if failed:
            return AuditReport(failed=failed)
        confirmed: tuple[Difference, ...] = ()
        if seen:
            await self._sleep(self._confirm_s)
            confirmed, failed = await self._differences(seen)
            if failed:
                return AuditReport(seen, failed=failed)
        self.metrics.compared(confirmed, self._clock())
        self._repair_counts = {
            difference.identity: self._repair_counts[difference.identity]
            for difference in confirmed
            if difference.identity in self._repair_counts
        }
        _log_differences(confirmed)
        chosen, held_back = self._select_repairs(confirmed)
        for difference in held_back:
            self.metrics.held_back(difference.repair)
        repaired, failed = await self._repair(chosen)
        return AuditReport(seen, confirmed, repaired, held_back, failed)

    async def _differences(
        self, previous: Collection[Difference] | None
    ) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
        """Returns the differences, or the names of the failed snapshots."""
        api, store, graph = await asyncio.gather(
            self._take_snapshot("api", self._read_api),
            self._take_snapshot("store", self._read_store),
            self._take_snapshot("graph", self._read_graph),
        )
        if api is None or store is None or graph is None:
            missing = (("api", api), ("store", store), ("graph", graph))
            return (), tuple(name for name, snapshot in missing if snapshot is None)
        # No other code refers to the snapshots, so a thread can compare them.
        now = self._clock()
        found = await asyncio.to_thread(
            compare, api, store, graph, self._scheduler_names, now=now, previous=previous
        )
        return found, ()

    async def _take_snapshot(self, name: str, read: Callable[[], Awaitable[T]]) -> T | None:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await read()
        except Exception as error:
            self.metrics.snapshot_failed(name)
            _LOG.warning("audit: the snapshot of the %s failed: %s", name, _error_text(error))
            return None

    # Repairs

    def _select_repairs(
        self, confirmed: Sequence[Difference]
    ) -> tuple[dict[Repair, list[Difference]], tuple[Difference, ...]]:
        """Selects the repairs of this round; also returns the differences that must wait."""
        due: dict[Repair, list[Difference]] = {}
        held_back: list[Difference] = []
        for difference in confirmed:
            if difference.repair is Repair.NONE:
                continue
            if self._repair_counts.get(difference.identity, 0) >= self._repairs_per_difference_max:
                held_back.append(difference)
            else:
                due.setdefault(difference.repair, []).append(difference)
        if Repair.RESTART in due:
            if self._may_restart():
                return {Repair.RESTART: due[Repair.RESTART]}, tuple(held_back)
            held_back.extend(due.pop(Repair.RESTART))
        released = due.get(Repair.RELEASE, [])
        held_back.extend(released[self._releases_max :])
        del released[self._releases_max :]
        return due, tuple(held_back)

    def _may_restart(self) -> bool:
        return self._restarted_at is None or self._clock() - self._restarted_at >= self._restart_interval_s

    async def _repair(
        self, chosen: dict[Repair, list[Difference]]
    ) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
        repaired: list[Difference] = []
        failed: list[str] = []
        for repair, differences in chosen.items():
            for difference in differences:
                self._repair_counts[difference.identity] = self._repair_counts.get(difference.identity, 0) + 1
            try:
                async with asyncio.timeout(self._timeout_s):
                    await self._run_repair(repair, differences)
            except Exception as error:
                failed.append(repair.value)
                self.metrics.repair_failed(repair)
                _LOG.warning("audit: the repair %s failed: %s", repair.value, _error_text(error))
                continue
            repaired.extend(differences)
            self.metrics.repaired(repair, len(differences) if repair is Repair.RELEASE else 1)
        return tuple(repaired), tuple(failed)

    async def _run_repair(self, repair: Repair, differences: Sequence[Difference]) -> None:
        match repair:
            case Repair.SNAPSHOT:
                await self._repairer.snapshot()
            case Repair.RELEASE:
                await self._repairer.release([difference.subject for difference in differences])
            case Repair.RESTART:
                self._restarted_at = self._clock()
                await self._repairer.restart(
                    f"the audit found {len(differences)} differences, such as {differences[0]}"
                )
            case Repair.NONE:
                raise AssertionError("Repair.NONE has no action")


def _log_differences(confirmed: Sequence[Difference]) -> None:
    for difference in confirmed[:_LOGGED_MAX]:
        _LOG.warning("audit: %s (repair: %s)", difference, difference.repair.value)
    if len(confirmed) > _LOGGED_MAX:
        _LOG.warning("audit: and %d more", len(confirmed) - _LOGGED_MAX)


def _error_text(error: Exception) -> str:
    return str(error) or type(error).__name__
