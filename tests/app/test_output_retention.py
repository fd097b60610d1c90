"""The output of jobs: removed with its job, or when the job has ended long ago; never that of others."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from penstock.app.output_retention import OutputRetention
from penstock.backends.sim.mock import MockBackend
from penstock.instance.loop import Instance
from penstock.protocol.commands import QueueChange, Submission, Submit
from penstock.sched.settings import DEFAULT_QUEUE, Settings
from penstock.store.memory import MemoryStore
from penstock.store.port import JobFilter
from tests.sched.test_memory import jobspec_text

_DAY_S = 86400.0


async def _until(condition: object) -> None:
    assert callable(condition)
    async with asyncio.timeout(30.0):
        while not condition():
            await asyncio.sleep(0.01)


def test_output_goes_with_its_job_or_when_it_is_old(tmp_path: Path) -> None:
    """Old directories of a job that has just ended, of an active one, and of one that does not exist."""

    async def scenario() -> None:
        retention = OutputRetention(tmp_path, _DAY_S)
        instance = Instance(Settings(), MemoryStore(), MockBackend(1, 1), on_pruned=retention.jobs_pruned)
        running = asyncio.create_task(instance.run())
        await instance.readiness.until_ready()
        ended = await _submit(instance)
        while not await instance.store.jobs(JobFilter(states=("INACTIVE",))):
            await asyncio.sleep(0.01)
        await instance.execute(QueueChange(DEFAULT_QUEUE, started=False))
        active = await _submit(instance)
        unknown, fresh = 4711, 4712
        long_ago = time.time() - 2 * _DAY_S
        for job in (ended, active, unknown, fresh):
            (tmp_path / str(job)).mkdir()
            (tmp_path / str(job) / "1-0.out").write_text("output")
        (tmp_path / "notes").mkdir()
        for job in (ended, active, unknown, "notes"):
            os.utime(tmp_path / str(job), (long_ago, long_ago))
        sweeping = asyncio.create_task(retention.run(instance))
        await _until(lambda: not (tmp_path / str(unknown)).exists())
        retention.jobs_pruned([fresh])
        await _until(lambda: not (tmp_path / str(fresh)).exists())
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["notes", str(ended), str(active)])
        for task in (sweeping, running):
            task.cancel()
        await asyncio.gather(sweeping, running, return_exceptions=True)

    asyncio.run(scenario())


async def _submit(instance: Instance) -> int:
    submitted = await instance.execute(Submit((Submission(jobspec_text(1, {}), "me"),)))
    found: object = getattr(submitted, "ids", submitted)
    assert isinstance(found, tuple)
    return int(found[0])
