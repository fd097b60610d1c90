"""Every minute: read everything afresh, compare, look again, repair what is still wrong.

A difference counts if two successive readings show it, a few seconds apart: the readings are not of one
instant, and on a busy cluster something always happens in between. What counts is told, and repaired by the
one rule of its kind (`differences`). Repairs are bounded, since an auditor that is wrong must not do more
harm than what it looks for: so many members a round, one snapshot a round, one restart in ten minutes, and a
difference that has survived a few repairs is only told from then on. A restart comes alone: what else was
wrong may be gone with it.

Nothing that fails here ends it: a reading that cannot be taken, or a repair that cannot be made, is counted,
and the next round comes.
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
from penstock.audit.readings import ApiReading, GraphReading, StoreReading

__all__ = ["AuditReport", "Auditor", "Repairer"]

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)
_TOLD_MAX: Final = 20  # lines of a round in the log


class Repairer(Protocol):
    """What an auditor can ask for. Each may be asked for again, and may then have nothing to do."""

    async def snapshot(self) -> None:
        """Has the driver read the world afresh, and tell all of it."""

    async def release(self, members: Sequence[str]) -> None:
        """Tells the scheduler that these members are gone, and has the driver read the world afresh."""

    async def restart(self, why: str) -> None:
        """Drops the state in memory and makes it anew from the store."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What one round has found and done."""

    seen: tuple[Difference, ...] = ()  # by the first readings
    confirmed: tuple[Difference, ...] = ()  # by the second as well
    repaired: tuple[Difference, ...] = ()
    held_back: tuple[Difference, ...] = ()  # a repair is due, but beyond a bound
    failed: tuple[str, ...] = ()  # readings and repairs that did not come about


class Auditor:
    def __init__(
        self,
        read_api: Callable[[], Awaitable[ApiReading]],
        read_store: Callable[[], Awaitable[StoreReading]],
        read_graph: Callable[[], Awaitable[GraphReading]],
        repairer: Repairer,
        *,
        scheduler_names: Collection[str],
        metrics: AuditMetrics | None = None,
        every_s: float = 60.0,
        confirm_s: float = 5.0,
        reading_s: float = 60.0,  # how long one reading or one repair may take
        releases_max: int = 100,  # members a round
        repairs_of_one_max: int = 3,  # after so many in a row a difference is only told
        restart_every_s: float = 600.0,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.metrics: Final = metrics if metrics is not None else AuditMetrics()
        self._read_api = read_api
        self._read_store = read_store
        self._read_graph = read_graph
        self._repairer = repairer
        self._names = frozenset(scheduler_names)
        self._every_s = every_s
        self._confirm_s = confirm_s
        self._reading_s = reading_s
        self._releases_max = releases_max
        self._repairs_of_one_max = repairs_of_one_max
        self._restart_every_s = restart_every_s
        self._clock = clock
        self._sleep = sleep
        self._repairs_of: dict[tuple[DifferenceKind, str, str], int] = {}  # in successive rounds
        self._restarted_at: float | None = None

    async def run(self) -> None:
        """Goes on until it is cancelled."""
        while True:
            await self._sleep(self._every_s)
            await self.once()

    async def once(self) -> AuditReport:
        """One round."""
        began_at = self._clock()
        report = await self._round()
        self.metrics.round_over(max(0.0, self._clock() - began_at))
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
        self._repairs_of = {
            difference.identity: self._repairs_of[difference.identity]
            for difference in confirmed
            if difference.identity in self._repairs_of
        }
        _tell(confirmed)
        chosen, held_back = self._chosen(confirmed)
        for difference in held_back:
            self.metrics.held_back(difference.repair)
        repaired, failed = await self._repair(chosen)
        return AuditReport(seen, confirmed, repaired, held_back, failed)

    async def _differences(
        self, grace: Collection[Difference] | None
    ) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
        """What differs, or which readings could not be taken."""
        api, store, graph = await asyncio.gather(
            self._taken("api", self._read_api),
            self._taken("store", self._read_store),
            self._taken("graph", self._read_graph),
        )
        if api is None or store is None or graph is None:
            missing = (("api", api), ("store", store), ("graph", graph))
            return (), tuple(name for name, reading in missing if reading is None)
        # Readings are values of ours alone, so that the loop can go on meanwhile.
        now = self._clock()
        found = await asyncio.to_thread(compare, api, store, graph, self._names, now=now, grace=grace)
        return found, ()

    async def _taken(self, name: str, read: Callable[[], Awaitable[T]]) -> T | None:
        try:
            async with asyncio.timeout(self._reading_s):
                return await read()
        except Exception as error:
            self.metrics.reading_failed(name)
            _LOG.warning("audit: the reading of the %s failed: %s", name, _said(error))
            return None

    # Repairs

    def _chosen(
        self, confirmed: Sequence[Difference]
    ) -> tuple[dict[Repair, list[Difference]], tuple[Difference, ...]]:
        """What to repair in this round, and what must wait."""
        due: dict[Repair, list[Difference]] = {}
        held_back: list[Difference] = []
        for difference in confirmed:
            if difference.repair is Repair.NONE:
                continue
            if self._repairs_of.get(difference.identity, 0) >= self._repairs_of_one_max:
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
        return self._restarted_at is None or self._clock() - self._restarted_at >= self._restart_every_s

    async def _repair(
        self, chosen: dict[Repair, list[Difference]]
    ) -> tuple[tuple[Difference, ...], tuple[str, ...]]:
        repaired: list[Difference] = []
        failed: list[str] = []
        for repair, differences in chosen.items():
            for difference in differences:
                self._repairs_of[difference.identity] = self._repairs_of.get(difference.identity, 0) + 1
            try:
                async with asyncio.timeout(self._reading_s):
                    await self._carry_out(repair, differences)
            except Exception as error:
                failed.append(repair.value)
                self.metrics.repair_failed(repair)
                _LOG.warning("audit: the repair by %s failed: %s", repair.value, _said(error))
                continue
            repaired.extend(differences)
            self.metrics.repaired(repair, len(differences) if repair is Repair.RELEASE else 1)
        return tuple(repaired), tuple(failed)

    async def _carry_out(self, repair: Repair, differences: Sequence[Difference]) -> None:
        match repair:
            case Repair.SNAPSHOT:
                await self._repairer.snapshot()
            case Repair.RELEASE:
                await self._repairer.release([difference.subject for difference in differences])
            case Repair.RESTART:
                self._restarted_at = self._clock()
                await self._repairer.restart(f"the audit found {len(differences)}, such as {differences[0]}")
            case Repair.NONE:
                raise AssertionError("what is only told is not repaired")


def _tell(confirmed: Sequence[Difference]) -> None:
    for difference in confirmed[:_TOLD_MAX]:
        _LOG.warning("audit: %s (repair: %s)", difference, difference.repair.value)
    if len(confirmed) > _TOLD_MAX:
        _LOG.warning("audit: and %d more", len(confirmed) - _TOLD_MAX)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
