"""The database of an instance: its first contact with one, and its state for `penstock status`.

An address that the instance has not used before is saved only after the database has answered, so a mistyped
one changes nothing. Databases are not copied: an instance has the jobs of the database that it uses. The
records of its agents and the output of jobs belong to one database as well. If the agents have seen a later
epoch than the database has, the database has other jobs; then the records of the agents are dropped and the
output is moved aside, provided that no task runs any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from penstock.agent.task_dirs import AgentDirectory
from penstock.api.responses import DatabaseInfo
from penstock.errors import BadRequest, Conflict, PenstockError, Unavailable
from penstock.paths import InstancePaths
from penstock.store.address import mask_address
from penstock.store.binaries import POSTGRES_MAJOR
from penstock.store.factory import StoreHandle, recorded_epoch

__all__ = ["DatabaseMonitor", "first_contact"]

_LOG: Final = logging.getLogger("penstock")
_PROBE_EVERY_S: Final = 10.0


async def first_contact(
    handle: StoreHandle, paths: InstancePaths, *, address: str, former: str | None, may_migrate: bool
) -> None:
    """Raises if the database at `address` cannot be used; `former` is the saved address, None if none is."""
    kept = "" if former is None else f"; the instance keeps its database, {mask_address(former)}"
    try:
        epoch = await recorded_epoch(handle.url, may_migrate=may_migrate) if handle.url else 0
        if former is not None:
            await asyncio.to_thread(_separate_records, paths, epoch)
    except PenstockError as error:
        family = next((each for each in (BadRequest, Conflict) if isinstance(error, each)), Unavailable)
        raise family(f"cannot use {mask_address(address)}: {error}{kept}") from error
    _LOG.info("the database is %s", mask_address(address))


def _separate_records(paths: InstancePaths, epoch: int) -> None:
    """Drops the records of agents that belong to another database than the one with this epoch."""
    agents = [AgentDirectory(path) for path in sorted(_directories(paths.agents))]
    if all(agent.epoch() <= epoch for agent in agents):
        return
    for agent in agents:
        _require_idle(agent)
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    shutil.rmtree(paths.agents)
    with contextlib.suppress(FileNotFoundError):
        paths.output.rename(paths.output.with_name(f"{paths.output.name}.{stamp}"))
    _LOG.warning("the database has other jobs; the output of the former ones is in output.%s", stamp)


def _directories(path: Path) -> list[Path]:
    try:
        return [each for each in path.iterdir() if each.is_dir()]
    except FileNotFoundError:
        return []


def _require_idle(agent: AgentDirectory) -> None:
    locks: list[int | None] = []
    try:
        locks.append(agent.lock_agent())
        locks += [task.try_lock() for task in agent.tasks()]
        if None in locks:
            raise Conflict(
                f"tasks of jobs of another database still run on {agent.path.name}; start with that database"
                " and run `penstock stop` without --keep-tasks"
            )
    finally:
        for lock in locks:
            if lock is not None:
                os.close(lock)


class DatabaseMonitor:
    """Knows whether the database answers: from the store while it is used, else from a probe."""

    def __init__(self, handle: StoreHandle, address: str) -> None:
        self._handle = handle
        self._address = "" if handle.embedded is not None else mask_address(address)
        self._probed = ""  # why the last probe failed

    async def probe(self, is_standby: Callable[[], bool]) -> None:
        """Probes the database while the instance is a standby, whose store is not connected."""
        while True:
            self._probed = ""
            if is_standby() and self._handle.url and self._handle.embedded is None:
                try:
                    await recorded_epoch(self._handle.url, may_migrate=False)
                except PenstockError as error:
                    self._probed = str(error)
            await asyncio.sleep(_PROBE_EVERY_S)

    def info(self) -> DatabaseInfo:
        embedded = self._handle.embedded
        why = self._handle.outage() or self._probed
        if embedded is not None and not embedded.is_running():
            why = why or "PostgreSQL does not run"
        return DatabaseInfo(
            embedded.pid() if embedded is not None else None,
            embedded=embedded is not None,
            state="away" if why else "up",
            server_version=str(POSTGRES_MAJOR) if embedded is not None else "",
            why=why,
            address=self._address,
        )
