"""`penstock stop`: requests a shutdown and returns when the instance's socket and process are gone.

An instance that was killed leaves its embedded database running, for the next start. `penstock stop` stops
that database if no instance runs.
"""

from __future__ import annotations

import os
import time
from typing import Final

import click

from penstock.cli import exits
from penstock.cli.client import KUBERNETES, ApiClient, NoInstance, RequestRefused, StreamBroken
from penstock.cli.daemon_process import stop_database
from penstock.cli.group import SETTINGS, json_option, with_client
from penstock.cli.terminal import ProgressLine, print_json, print_line
from penstock.errors import Unavailable
from penstock.model.text import count_of

__all__ = ["stop"]

_POLL_S: Final = 0.1


class _Seconds(click.FloatRange):
    name = "number of seconds"  # for the error message


@click.command(context_settings=SETTINGS)
@with_client
@json_option
@click.option("--keep-tasks", is_flag=True, help="Leave running jobs running; the next start resumes them.")
@click.option(
    "--timeout",
    type=_Seconds(min=0),
    default=120.0,
    metavar="SECONDS",
    show_default=True,
    help="How long to wait for the instance to stop.",
)
def stop(client: ApiClient, keep_tasks: bool, timeout: float, output_format: str) -> int:
    """Stop the instance. Pending jobs are kept; running jobs are cancelled unless --keep-tasks.

    An instance that schedules the pods of a Kubernetes cluster leaves them running.
    """
    try:
        instance = client.get("/v1/status")["instance"]
    except NoInstance:
        database_pid = stop_database(client.paths) if client.server is None else None
        if database_pid is None:
            raise
        if output_format == "json":
            print_json({"stopped": None, "database": database_pid})
        else:
            print_line("no instance was running; the database that a killed instance had left was stopped")
        return exits.OK
    pid, has_tasks = int(instance["pid"]), instance.get("backend") != KUBERNETES
    client.post("/v1/shutdown", {"keep_tasks": keep_tasks})
    began = time.monotonic()
    progress = ProgressLine("stopping", max(1, int(timeout)))
    while _is_running(client, pid):
        elapsed_s = time.monotonic() - began
        if elapsed_s > timeout:
            progress.close()
            raise exits.CommandExit(
                exits.FAILED, f"the instance (pid {pid}) has not stopped after {timeout:g} s"
            )
        progress.show(int(elapsed_s), f"s{_running_jobs(client) if has_tasks else ''}")
        time.sleep(_POLL_S)
    progress.close()
    if output_format == "json":
        print_json({"stopped": pid, "seconds": round(time.monotonic() - began, 3)})
    return exits.OK


def _is_running(client: ApiClient, pid: int) -> bool:
    if client.server is not None:
        return _answers(client)
    if client.paths.socket.exists():
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return not _is_zombie(pid)


def _answers(client: ApiClient) -> bool:
    try:
        client.get("/v1/status")
    except (NoInstance, StreamBroken):
        return False
    except RequestRefused:
        pass
    return True


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def _running_jobs(client: ApiClient) -> str:
    """How many jobs still run, as a note for the progress line; empty if the instance does not answer."""
    try:
        running = client.get("/v1/status")["jobs"]["running"]
    except (NoInstance, StreamBroken, RequestRefused, Unavailable):
        return ""
    return f", {count_of(running, 'job')} still running"
