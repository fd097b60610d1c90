"""Throughput of a whole instance: jobs are submitted through the socket and run to their end, all durable.

Two workloads are compared with a Flux instance on the same kind of machine: no-op jobs on simulated nodes (a
mock backend; queue, PostgreSQL with fsync, API and socket are real), and real processes on four agents. The
third measurement is a scheduling cycle over a long queue, in one process and without a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from penstock.api.responses import DatabaseInfo, InstanceSettings
from penstock.api.service import InstanceService, ServiceContext
from penstock.backends.sim.mock import MockBackend
from penstock.cli.client import ApiClient
from penstock.instance.loop import Instance
from penstock.paths import InstancePaths, make_paths, paths_of
from penstock.protocol.commands import Submission, Submit
from penstock.protocol.facts import Capacity, NodeSet, Snapshot
from penstock.sched.records import Recorded
from penstock.sched.recovery import scheduler_from
from penstock.sched.settings import DEFAULT_QUEUE, QueueSettings, Settings, parse_backfill
from penstock.store.factory import open_store
from penstock.web.app import create_app
from penstock.web.server import make_socket, serve

__all__ = [
    "InstanceReport",
    "LongQueue",
    "Throughput",
    "measure_long_queue",
    "measure_mock",
    "measure_processes",
]

FLUX_MOCK = (66.0, 94.0)  # jobs a second, submit to inactive
FLUX_REAL = (23.0, 29.0)
_CHUNK = 1000
_READY_S = 60.0


@dataclass(frozen=True)
class Throughput:
    name: str
    jobs: int
    seconds: float
    flux: tuple[float, float]
    events: int

    @property
    def rate(self) -> float:
        return self.jobs / self.seconds


@dataclass(frozen=True)
class LongQueue:
    """CPU time of two cycles over a long queue: the first fills the cluster, the next starts nothing."""

    jobs: int
    shapes: int
    started: int
    first_cpu_s: float
    next_cpu_s: float


@dataclass(frozen=True)
class InstanceReport:
    figures: tuple[Throughput, ...]
    queue: LongQueue

    def plain(self) -> dict[str, object]:
        figures = [{**dataclasses.asdict(figure), "rate": figure.rate} for figure in self.figures]
        return {"figures": figures, "queue": dataclasses.asdict(self.queue)}

    def markdown(self) -> str:
        lines = [
            "| whole instance, submit to inactive | jobs | jobs/s | Flux, jobs/s | ratio | event rows |",
            "|---|---|---|---|---|---|",
        ]
        for figure in self.figures:
            low, high = figure.flux
            ratio = f"{figure.rate / high:.1f} to {figure.rate / low:.1f}"
            cells = (
                f"{figure.jobs:,} | {figure.rate:,.0f} | {low:g} to {high:g} | {ratio} | {figure.events:,}"
            )
            lines.append(f"| {figure.name} | {cells} |")
        queue = self.queue
        lines += [
            "",
            f"Scheduling cycles over {queue.jobs:,} pending jobs of {queue.shapes} shapes: "
            f"{queue.first_cpu_s:.2f} CPU s to start {queue.started:,} of them; "
            f"{queue.next_cpu_s * 1000:.0f} CPU ms when nothing can start.",
        ]
        return "\n".join(lines)


def jobspec(cores: int = 1, duration_s: int = 60, command: str = "true") -> dict[str, Any]:
    slot = {"type": "slot", "count": 1, "label": "task", "with": [{"type": "core", "count": cores}]}
    return {
        "version": 1,
        "resources": [slot],
        "tasks": [{"command": [command], "slot": "task", "count": {"per_slot": 1}}],
        "attributes": {
            "system": {"duration": duration_s, "environment": {"PATH": "/usr/bin:/bin"}, "cwd": "/tmp"}
        },
    }


@contextlib.contextmanager
def _scratch() -> Iterator[InstancePaths]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as base:
        os.chmod(base, 0o711)
        yield paths_of(f"{base}/s", {**os.environ, "PENSTOCK_RUNTIME": base})


def measure_mock(jobs: int, nodes: int, cores: int = 4) -> Throughput:
    """No-op jobs on simulated nodes, EASY backfill, match policy `first`."""
    with _scratch() as paths:
        command = [sys.executable, "-m", "bench.instance", str(paths.state), str(nodes), str(cores)]
        environment = {**os.environ, "PENSTOCK_RUNTIME": str(paths.state.parent)}
        with subprocess.Popen(command, env=environment) as served:
            try:
                return _submit_and_wait("no-op jobs", paths, jobs, FLUX_MOCK)
            finally:
                served.terminate()


def measure_processes(jobs: int, nodes: int = 4, cores: int = 4) -> Throughput:
    """Real `true` processes on real agents."""
    with _scratch() as paths:
        environment = {**os.environ, "PENSTOCK_RUNTIME": str(paths.state.parent)}
        start = [sys.executable, "-m", "penstock.cli", "start", "--state", str(paths.state)]
        start += ["--nodes", str(nodes), "--cores", str(cores), "--match-policy", "first"]
        subprocess.run(start, env=environment, check=True, stdout=subprocess.DEVNULL)
        try:
            return _submit_and_wait("real `true` processes", paths, jobs, FLUX_REAL)
        finally:
            stop = [sys.executable, "-m", "penstock.cli", "stop", "--state", str(paths.state)]
            subprocess.run(stop, env=environment, check=False)


def _submit_and_wait(name: str, paths: InstancePaths, jobs: int, flux: tuple[float, float]) -> Throughput:
    client = ApiClient(paths)
    deadline = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(Exception):
            if client.get("/v1/status")["instance"]["ready"]:
                break
        if time.monotonic() > deadline:
            raise TimeoutError(f"the instance was not ready within {_READY_S:g} s")
        time.sleep(0.1)
    began = time.monotonic()
    submission = {"jobspec": jobspec(), "urgency": 16, "requeue": "never"}
    for first in range(0, jobs, _CHUNK):
        client.post("/v1/jobs", {"jobs": [submission] * min(_CHUNK, jobs - first)})
    while True:
        counts = client.get("/v1/status")["jobs"]
        if not counts["pending"] and not counts["running"]:
            break
        time.sleep(0.02)
    seconds = time.monotonic() - began
    return Throughput(name, jobs, seconds, flux, _events(paths, jobs))


def _events(paths: InstancePaths, jobs: int) -> int:
    """The number of rows in `job_events`. Checks that all jobs are inactive and that fsync is on."""
    from penstock.store.embedded import EmbeddedPostgres

    with psycopg.connect(EmbeddedPostgres(paths).start()) as connection:
        counted = connection.execute("SELECT count(*) FROM job_events").fetchone()
        ended = connection.execute("SELECT count(*) FROM jobs WHERE state = 'INACTIVE'").fetchone()
        fsync = connection.execute("SHOW fsync").fetchone()
    assert counted is not None
    assert ended is not None
    assert ended[0] == jobs, f"only {ended[0]} of {jobs} jobs have ended"
    assert fsync == ("on",)
    return int(counted[0])


def measure_long_queue(jobs: int, shapes: int, nodes: int = 1000, cores: int = 4) -> LongQueue:
    """Measures two consecutive cycles over a queue in which almost nothing fits."""
    queue = QueueSettings(DEFAULT_QUEUE, parse_backfill("easy"))
    scheduler = scheduler_from(Settings(queues=(queue,), match_policy="first"), Recorded(), 0.0)
    node_set = tuple(NodeSet(f"node{number}", (Capacity("core", cores),)) for number in range(nodes))
    scheduler.handle([Snapshot(nodes=node_set)], 0.0)
    texts = [json.dumps(jobspec(1 + shape % cores, 600 + shape)) for shape in range(shapes)]
    submissions = tuple(Submission(texts[number % shapes], "bench") for number in range(jobs))
    for first in range(0, jobs, _CHUNK):
        scheduler.handle([Submit(submissions[first : first + _CHUNK])], 1.0)
    spent: list[float] = []
    for now in (2.0, 3.0):
        began = resource.getrusage(resource.RUSAGE_SELF).ru_utime
        scheduler.state.queue.mark_dirty()
        while scheduler.is_dirty:
            for _ in scheduler.plan(now, deep=False):
                pass
        spent.append(resource.getrusage(resource.RUSAGE_SELF).ru_utime - began)
    return LongQueue(jobs, shapes, jobs - scheduler.queue_length, spent[0], spent[1])


async def _serve_mock(paths: InstancePaths, nodes: int, cores: int) -> None:
    make_paths(paths)
    listening = make_socket(paths.socket)
    opened = await open_store(None, paths)
    queue = QueueSettings(DEFAULT_QUEUE, parse_backfill("easy"))
    settings = Settings(queues=(queue,), match_policy="first")
    instance = Instance(settings, opened.store, MockBackend(nodes, cores))
    context = ServiceContext(
        instance_id="bench",
        version="",
        state_dir=str(paths.state),
        started_at=0.0,
        backend="mock",
        agents=list,
        database=lambda: DatabaseInfo(None, embedded=True, state="up"),
        settings=lambda: InstanceSettings(
            policy="easy",
            match_policy=settings.match_policy,
            queue_depth=settings.queue_depth,
            forecast_depth=settings.forecast_depth,
        ),
        output_paths=None,
        shutdown=lambda _keep: None,
    )
    running = asyncio.create_task(instance.run())
    serving = asyncio.create_task(serve(create_app(InstanceService(instance, context)), [listening]))
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(15, stopping.set)
    try:
        waiting = {asyncio.ensure_future(stopping.wait()), running, serving}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        running.cancel()
        serving.cancel()
        await asyncio.gather(running, serving, return_exceptions=True)
        await opened.store.close()
        if opened.embedded is not None:
            opened.embedded.stop()


if __name__ == "__main__":
    _state, _nodes, _cores = sys.argv[1:4]
    asyncio.run(_serve_mock(paths_of(_state, os.environ), int(_nodes), int(_cores)))
