"""The daemon of an instance: creates all parts, serves until shutdown, and stops them in order.

`penstock start` runs it in the background and waits on a pipe for the report that it is ready, or for an
error. Ctrl-C and `penstock stop` cancel running jobs; SIGTERM leaves tasks running, and the next start
resumes them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from penstock.api.responses import InstanceSettings
from penstock.api.service import InstanceService, ServiceContext
from penstock.app.configuration import Configuration
from penstock.app.database import DatabaseMonitor, first_contact
from penstock.app.identity import InstanceIdentity, StartOptions, lock, read_identity, write_identity
from penstock.app.kube import KubeRuntime
from penstock.app.kube_options import KubeOptions
from penstock.app.memory import trim_memory
from penstock.app.readiness import ReadinessReport, error_family, exit_code
from penstock.app.runtime import LocalRuntime, Runtime, cores_here, memory_here_mib
from penstock.app.setting_changes import setting_changes, settings_in_force
from penstock.errors import Conflict, PenstockError, Unavailable
from penstock.instance.loop import Instance
from penstock.log_files import bound_log
from penstock.model.jobid import encode_jobid
from penstock.model.text import count_of
from penstock.paths import InstancePaths
from penstock.protocol.commands import Cancel
from penstock.sched.scheduler import Scheduler
from penstock.store.factory import StoreHandle, choose_store
from penstock.store.port import Fenced
from penstock.web.app import create_app
from penstock.web.server import listen_tcp, make_socket, read_token, serve
from penstock.web.tls import TlsFiles

__all__ = ["DaemonOptions", "run"]

_LOG: Final = logging.getLogger("penstock")
_CANCEL_S: Final = 20.0
_POLL_S: Final = 0.5
_HELD_NAMED_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class DaemonOptions:
    paths: InstancePaths
    configuration: Configuration
    start_options: StartOptions  # those of this start that the next one uses again
    nodes: int | None
    cores: int | None
    gpus: int | None
    memory_mib: int | None
    database: str | None  # None: as before; "": the embedded one
    listen: str  # the address of a TCP socket for the API; empty: none
    tls: TlsFiles | None  # for that socket
    kube: KubeOptions | None  # None: the local backend
    report: ReadinessReport


class _LogHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to stderr. In the background that is a file in the state directory, which is kept small."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        bound_log(self._path)


def run(options: DaemonOptions) -> int:
    """Runs until a signal or a shutdown request; returns an exit code. The directories exist."""
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[_LogHandler(options.paths.log)],
    )
    try:
        descriptor = lock(options.paths)
        asyncio.run(_serve(options, read_identity(options.paths)))
        os.close(descriptor)
    except PenstockError as error:
        _report_error(options.report, error)
        _LOG.error("%s", error)
        return exit_code(error)
    except OSError as error:
        cause = Unavailable(f"{error.filename}: {error.strerror}" if error.filename else str(error))
        _report_error(options.report, cause)
        _LOG.exception("%s", cause)
        return exit_code(cause)
    return 0


def _report_error(report: ReadinessReport, error: PenstockError) -> None:
    report.send({"error": str(error), "kind": error_family(error)})


def _identity(options: DaemonOptions, found: InstanceIdentity | None) -> InstanceIdentity:
    """The identity of the state directory with the options of this start."""
    backend = KubeRuntime.kind if options.kube is not None else LocalRuntime.kind
    if found is None:
        memory_mib = memory_here_mib() // (options.nodes or 1) if backend == LocalRuntime.kind else 0
        found = InstanceIdentity(uuid.uuid4().hex, 1, cores_here(), 0, "", backend, memory_mib=memory_mib)
    elif found.backend != backend:
        raise Conflict(
            f"{options.paths.state} has an instance of the {found.backend} backend; use another --state"
        )
    return InstanceIdentity(
        found.id,
        options.nodes or found.nodes,
        options.cores or found.cores,
        options.gpus if options.gpus is not None else found.gpus,
        options.database if options.database is not None else found.database,
        found.backend,
        options.start_options,
        settings_in_force(options.configuration),
        options.memory_mib if options.memory_mib is not None else found.memory_mib,
    )


def _runtime(options: DaemonOptions, identity: InstanceIdentity) -> Runtime:
    settings = options.configuration.settings
    if options.kube is not None:
        return KubeRuntime(options.kube, settings, identity.id)
    return LocalRuntime(options.paths, identity, settings, options.configuration.retention)


async def _open_database(
    options: DaemonOptions,
    identity: InstanceIdentity,
    found: InstanceIdentity | None,
    report_outage: Callable[[str], None],
) -> StoreHandle:
    """Chooses the store. The identity is saved when a database that was not used before has answered."""
    if found is None and not identity.database:
        write_identity(options.paths, identity)  # A data directory must not be without an identity.
    handle = await choose_store(identity.database or None, options.paths, on_outage=report_outage)
    former = None if found is None else found.database
    if identity.database != (former or ""):
        try:
            await first_contact(
                handle,
                options.paths,
                address=identity.database,
                former=former,
                may_migrate=options.kube is None,
            )
        except BaseException:
            if handle.embedded is not None:
                await asyncio.to_thread(handle.embedded.stop)
            raise
    write_identity(options.paths, identity)
    return handle


async def _serve(options: DaemonOptions, found: InstanceIdentity | None) -> None:
    """`found` is the identity of the state directory; None for the first start."""
    paths = options.paths
    identity = _identity(options, found)
    loop = asyncio.get_running_loop()
    stopping: asyncio.Future[bool] = loop.create_future()

    def stop(keep_tasks: bool) -> None:
        if not stopping.done():
            stopping.set_result(keep_tasks)

    def report_outage(text: str) -> None:
        _LOG.warning("%s", text)
        instance.readiness.store_waits(text)
        if not instance.readiness.current.is_ready:
            options.report.send({"waiting": text}, is_final=False)

    loop.add_signal_handler(signal.SIGTERM, stop, True)
    loop.add_signal_handler(signal.SIGINT, stop, False)
    tcp = [listen_tcp(options.listen, has_tls=options.tls is not None)] if options.listen else []
    token = read_token(paths.token) if tcp else ""
    api_url = _url(tcp[0], has_tls=options.tls is not None) if tcp else ""
    listening = [make_socket(paths.socket)]
    try:
        runtime = _runtime(options, identity)
        handle = await _open_database(options, identity, found, report_outage)
    except BaseException:
        paths.socket.unlink(missing_ok=True)
        raise
    retention = options.configuration.retention
    instance = Instance(
        runtime.settings,
        handle.store,
        runtime.backend,
        retention=retention,
        on_pruned=runtime.jobs_pruned,
    )
    monitor = DatabaseMonitor(handle, identity.database)
    context = _service_context(options, identity, monitor, runtime, instance, stop)
    app = create_app(InstanceService(instance, context))
    servers = [asyncio.create_task(serve(app, [*listening, *tcp], token, options.tls))]
    running = asyncio.create_task(_run(runtime, instance))
    watching = [
        asyncio.create_task(
            _report_ready(instance, runtime, options.report, api_url, _changes(found, identity))
        ),
        asyncio.create_task(monitor.probe(runtime.is_standby)),
        asyncio.create_task(trim_memory()),
    ]
    try:
        await _first_of(stopping, running, *servers)
        if stopping.done():
            keep_tasks = stopping.result() or not runtime.ends_tasks
            await _stop(instance, runtime, running, keep_tasks=keep_tasks)
    finally:
        await _take_down(paths, handle, [*watching, running, *servers])
    if not stopping.done():
        _raise_cause(running, servers)


async def _run(runtime: Runtime, instance: Instance) -> None:
    await runtime.run(instance, instance.run)


async def _first_of(stopping: asyncio.Future[bool], *tasks: asyncio.Task[None]) -> None:
    """Waits for a shutdown request, or until a task of the daemon ends."""
    waiting: set[asyncio.Future[bool] | asyncio.Future[None]] = {stopping, *tasks}
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)


def _raise_cause(running: asyncio.Task[None], servers: list[asyncio.Task[None]]) -> None:
    for task in (running, *servers):
        if task.done() and not task.cancelled() and task.exception() is not None:
            error = task.exception()
            assert error is not None
            if isinstance(error, Fenced):
                raise Conflict(f"another instance has taken over: {error}") from error
            raise error


def _url(listening: socket.socket, *, has_tls: bool) -> str:
    host, port = listening.getsockname()[:2]
    return f"{'https' if has_tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _changes(found: InstanceIdentity | None, identity: InstanceIdentity) -> list[str]:
    """What differs from the last start, in words."""
    if found is None:
        return []
    changes = setting_changes(found.settings, identity.settings)
    for name in ("nodes", "cores", "gpus", "memory_mib"):
        before, after = getattr(found, name), getattr(identity, name)
        changes += [f"{name.replace('_mib', ' (MiB)')}: {before} -> {after}"] if before != after else []
    return changes


def _held_jobs(scheduler: Scheduler, _now: float) -> list[str]:
    """Jobs that the configuration does not admit any more, each with the reason."""
    held = [job for job in scheduler.jobs.values() if job.settings_reason]
    named = [f"{encode_jobid(job.id)} is held: {job.settings_reason}" for job in held[:_HELD_NAMED_MAX]]
    more = len(held) - len(named)
    return [*named, f"{count_of(more, 'more job')} held, see `penstock jobs -o why`"] if more else named


async def _report_ready(
    instance: Instance, runtime: Runtime, report: ReadinessReport, api_url: str, changes: list[str]
) -> None:
    """Reports that the instance is ready or a standby, and until then what it waits for."""
    reported = ""
    ready = {"ready": True, "pid": os.getpid(), "api_url": api_url}
    readiness = instance.readiness
    while not readiness.current.is_ready:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(readiness.until_ready(), _POLL_S)
        if not readiness.current.is_ready and runtime.is_standby():
            report.send(ready)
            _LOG.info("standby: another instance is the leader")
            await readiness.until_ready()
        elif runtime.problem() not in ("", reported):
            reported = runtime.problem()
            report.send({"waiting": reported}, is_final=False)
    # Freeze the object graph, so that full collections skip it.
    gc.collect()
    gc.freeze()
    warnings = await instance.query(_held_jobs)
    notes = await runtime.settle(instance)
    report.send({**ready, "changes": changes, "notes": notes, "warnings": warnings})
    for text in changes:
        _LOG.info("changed since the last start: %s", text)
    for text in notes:
        _LOG.info("%s", text)
    for text in warnings:
        _LOG.warning("%s", text)
    _LOG.info("ready: epoch %d", instance.epoch)


async def _stop(
    instance: Instance, runtime: Runtime, running: asyncio.Task[None], *, keep_tasks: bool
) -> None:
    _LOG.info("stopping; running tasks are %s", "kept" if keep_tasks else "cancelled")
    if not keep_tasks and instance.readiness.current.is_ready:
        with contextlib.suppress(PenstockError):
            await _cancel_jobs(instance)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await runtime.stop(keep_tasks=keep_tasks)


async def _cancel_jobs(instance: Instance) -> None:
    """Cancels running jobs and waits until they have ended. No job starts meanwhile."""
    instance.readiness.shutdown_begun()
    ids = await instance.query(
        lambda scheduler, _: tuple(job.id for job in scheduler.jobs.values() if not job.state.is_pending)
    )
    if ids:
        await instance.execute(Cancel(ids, "the instance was stopped"))
    deadline = time.monotonic() + _CANCEL_S
    while time.monotonic() < deadline:
        left = await instance.query(
            lambda scheduler, _: sum(1 for job in scheduler.jobs.values() if not job.state.is_pending)
        )
        if not left:
            return
        await asyncio.sleep(0.05)
    _LOG.warning("some jobs have not ended within %g s; their tasks are killed", _CANCEL_S)


async def _take_down(paths: InstancePaths, handle: StoreHandle, tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await handle.store.close()
    if handle.embedded is not None:
        await asyncio.to_thread(handle.embedded.stop)
    with contextlib.suppress(FileNotFoundError):
        paths.socket.unlink()


def _service_context(
    options: DaemonOptions,
    identity: InstanceIdentity,
    monitor: DatabaseMonitor,
    runtime: Runtime,
    instance: Instance,
    stop: Callable[[bool], None],
) -> ServiceContext:
    settings = options.configuration.settings
    began = time.time()

    def instance_settings() -> InstanceSettings:
        return runtime.describe(
            InstanceSettings(
                policy=", ".join(dict.fromkeys(str(queue.backfill) for queue in settings.queues)),
                match_policy=settings.match_policy,
                queue_depth=settings.queue_depth,
                forecast_depth=settings.forecast_depth,
            )
        )

    return ServiceContext(
        instance_id=identity.id,
        version=version("penstock"),
        state_dir=str(options.paths.state),
        started_at=began,
        backend=runtime.kind,
        agents=runtime.agents,
        database=monitor.info,
        settings=instance_settings,
        output_paths=runtime.output_paths(),
        input_paths=runtime.input_paths(),
        shutdown=stop,
        metrics=lambda: runtime.metrics() + instance.metrics(),
        accepts_submissions=runtime.ends_tasks,
    )
