"""`penstock stop`: asks the instance to stop, and returns when it is gone: socket and process.

An instance that was killed leaves its own database running, for the next start to find; if there is no next
start, this ends it.
"""

from __future__ import annotations

import os
import time
from typing import Final

import click

from penstock.cli import exits
from penstock.cli.client import KUBERNETES, ApiClient, NoInstance, RequestRefused, StreamBroken
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import ProgressLine, say, say_json
from penstock.errors import Unavailable
from penstock.paths import InstancePaths

__all__ = ["stop"]

_ASK_S: Final = 0.1


@click.command(context_settings=SETTINGS)
@with_client
@json_option
@click.option("--keep-tasks", is_flag=True, help="Leave running jobs alone; the next start takes them up.")
@click.option("--timeout", type=click.FloatRange(min=0), default=120.0, metavar="SECONDS", show_default=True)
def stop(client: ApiClient, keep_tasks: bool, timeout: float, output_format: str) -> int:
    """Stop the instance. Jobs that wait are kept; jobs that run are ended unless --keep-tasks.

    One that schedules the pods of a Kubernetes cluster leaves them alone: they go on without it.
    """
    try:
        instance = client.get("/v1/status")["instance"]
    except NoInstance:
        pid_left = _stop_database(client.paths)
        if pid_left is None:
            raise
        if output_format == "json":
            say_json({"stopped": None, "database": pid_left})
        else:
            say("no instance ran here; the database that a former one had left was stopped")
        return exits.OK
    pid, has_tasks = int(instance["pid"]), instance.get("backend") != KUBERNETES
    client.post("/v1/shutdown", {"keep_tasks": keep_tasks})
    began = time.monotonic()
    progress = ProgressLine("stopping", max(1, int(timeout)))
    while _is_there(client, pid):
        passed = time.monotonic() - began
        if passed > timeout:
            progress.close()
            raise exits.Ended(exits.FAILED, f"the instance (pid {pid}) has not stopped after {timeout:g} s")
        progress.show(int(passed), f"s{_running(client) if has_tasks else ''}")
        time.sleep(_ASK_S)
    progress.close()
    if output_format == "json":
        say_json({"stopped": pid, "seconds": round(time.monotonic() - began, 3)})
    return exits.OK


def _stop_database(paths: InstancePaths) -> int | None:
    """Ends the database of an instance that is dead; tells which process it was, None if there is none."""
    from penstock.app.identity import lock
    from penstock.store.embedded import EmbeddedPostgres

    if not paths.database.is_dir():
        return None
    held = lock(paths)  # Nobody may start meanwhile.
    try:
        database = EmbeddedPostgres(paths)
        pid = database.pid()
        if pid is not None:
            database.stop()
        return pid
    finally:
        os.close(held)


def _is_there(client: ApiClient, pid: int) -> bool:
    if client.paths.socket.exists():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _running(client: ApiClient) -> str:
    """How many jobs still run, if it can be asked."""
    try:
        running = client.get("/v1/status")["jobs"]["running"]
    except (NoInstance, StreamBroken, RequestRefused, Unavailable):
        return ""
    return f", {running} jobs still run"
