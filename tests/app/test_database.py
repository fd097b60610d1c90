"""What `penstock status` says about the database of a standby, whose store is not connected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from penstock.api.responses import DatabaseInfo
from penstock.app.database import DatabaseMonitor
from penstock.store.factory import StoreHandle
from penstock.store.postgres import PostgresStore

UNREACHABLE = "postgresql://u:s3cr3t@127.0.0.1:9/jobs"


def probed(is_expected: Callable[[DatabaseInfo], bool]) -> DatabaseInfo:
    """What the monitor of a standby reports once the condition holds."""

    async def scenario() -> DatabaseInfo:
        monitor = DatabaseMonitor(StoreHandle(PostgresStore(UNREACHABLE), None, UNREACHABLE), UNREACHABLE)
        probing = asyncio.create_task(monitor.probe(lambda: True))
        try:
            async with asyncio.timeout(20):
                while not is_expected(monitor.info()):
                    await asyncio.sleep(0.01)
            return monitor.info()
        finally:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing

    return asyncio.run(scenario())


def test_a_standby_notices_that_its_database_is_away() -> None:
    found = probed(lambda info: info.state == "away")
    assert found.why.startswith("the database does not answer: ")
    assert (found.address, found.embedded) == ("postgresql://u:***@127.0.0.1:9/jobs", False)
    assert "s3cr3t" not in repr(found)
