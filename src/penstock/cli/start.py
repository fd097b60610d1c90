"""`penstock start`: launches the daemon of an instance and returns when it is ready.

The daemon checks its configuration and reports on a pipe: ready, waiting for something, or an error, which
the command prints as its own. With --foreground the command becomes the daemon, so that signals, exit code
and output are those of the daemon itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import time
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli import exits
from penstock.cli.client import KUBERNETES, ApiClient
from penstock.cli.daemon_process import DATABASE_VARIABLE, exec_daemon, spawn_daemon
from penstock.cli.group import SETTINGS, json_option, state_option
from penstock.cli.memory_option import MemorySize
from penstock.cli.terminal import ProgressLine, print_error, print_json, print_line
from penstock.errors import BadRequest, Conflict, PenstockError, Unavailable
from penstock.model.resource_types import format_count
from penstock.paths import InstancePaths, paths_of

__all__ = ["start"]

_READY_S: Final = 120.0
_EXIT_S: Final = 30.0
_REPORT_MAX: Final = 64 << 10
_ERRORS: Final[dict[str, type[PenstockError]]] = {"BadRequest": BadRequest, "Conflict": Conflict}
_NOT_FOR_DAEMON: Final = ("state", "output_format", "foreground", "database", "database_file")
_URL_MAX: Final = 16 << 10
_PASSWORD: Final = re.compile(r"://[^/]*:[^/]*@|password", re.IGNORECASE)


@click.command(context_settings=SETTINGS)
@state_option
@json_option
@click.option(
    "--nodes", type=click.IntRange(1, 1024), help="Number of node agents.  [default: as before, or 1]"
)
@click.option(
    "--cores", type=click.IntRange(1, 4096), help="Cores per node.  [default: as before, or the machine's]"
)
@click.option("--gpus", type=click.IntRange(0, 1024), help="GPUs per node.  [default: as before, or 0]")
@click.option(
    "--mem",
    type=MemorySize(),
    metavar="SIZE",
    help="Memory per node that jobs can request: 4000 (MiB), 16G, 0 for none.  [default: as before, or the"
    " machine's divided by the nodes]",
)
@click.option(
    "--policy",
    default="",
    metavar="POLICY",
    help="Queue policy: fcfs, easy, hybrid[:DEPTH] or conservative[:DEPTH].",
)
@click.option(
    "--match-policy",
    default="",
    metavar="POLICY",
    help="Order in which nodes are tried: lonode, hinode, first, ...",
)
@click.option(
    "--queue-depth",
    type=click.IntRange(1),
    help="Jobs per queue that one scheduling cycle considers.  [default: all]",
)
@click.option(
    "--config",
    "config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Configuration file with queues and limits (TOML).",
)
@click.option(
    "--database",
    metavar="URL",
    help="PostgreSQL database to use, or `embedded`.  [default: PENSTOCK_DATABASE, as before, or embedded]",
)
@click.option(
    "--database-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the URL of the database, which keeps a password out of the process list.",
)
@click.option(
    "--listen", default="", metavar="ADDRESS:PORT", help="Serve the API also on TCP, protected by a token."
)
@click.option(
    "--tls-cert",
    type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
    help="With --listen: certificate (PEM), needed for any other address than loopback.",
)
@click.option(
    "--tls-key",
    type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
    help="With --listen: key of the certificate (PEM).",
)
@click.option(
    "--defaults",
    is_flag=True,
    help="Forget the configuration file, policies and queue depth of the last start.",
)
@click.option("--kube", is_flag=True, help="Schedule the pods of a Kubernetes cluster instead of processes.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
    help="With --kube: kubeconfig file.  [default: in-cluster, $KUBECONFIG or ~/.kube/config]",
)
@click.option("--context", default="", metavar="NAME", help="With --kube: context of the kubeconfig.")
@click.option(
    "--foreground", is_flag=True, help="Run in the foreground, for example under a service manager."
)
@click.pass_context
def start(
    command: click.Context,
    /,
    state: str | None,
    output_format: str,
    nodes: int | None,
    cores: int | None,
    gpus: int | None,
    mem: int | None,
    kube: bool,
    kubeconfig: Path | None,
    context: str,
    database: str | None,
    database_file: Path | None,
    foreground: bool,
    **_: object,
) -> int:
    """Start an instance, or restart one with its jobs and queues as they were.

    Options that are not given are those of the last start, and what has changed since then is printed. Nodes
    are agent processes on this machine; with --kube they are the nodes of a Kubernetes cluster. With fewer
    --nodes than before, the last ones leave when their jobs have ended. The command returns when the instance
    is ready, or when it is a standby of another leader. The state directory identifies the instance: --state
    DIR, or PENSTOCK_STATE.
    """
    paths = paths_of(state, os.environ)
    _check_backend(
        kube, {"--nodes": nodes, "--cores": cores, "--gpus": gpus, "--mem": mem}, kubeconfig, context
    )
    options = _daemon_options(command)
    address = _database(database, database_file)
    if foreground:
        exec_daemon(paths, options, address)
    report = _start_in_background(paths, options, address)
    for text in report.get("warnings", ()):
        print_error(f"warning: {text}")
    status = ApiClient(paths).get("/v1/status")
    if output_format == "json":
        print_json(status)
        return exits.OK
    _say_ready(status, paths)
    for text in report.get("changes", ()):
        print_line(f"changed since the last start: {text}")
    for text in report.get("notes", ()):
        print_line(text)
    if report.get("api_url"):
        print_line(f"API at {report['api_url']}, with the token in {paths.token}")
    return exits.OK


def _check_backend(kube: bool, local: dict[str, int | None], kubeconfig: Path | None, context: str) -> None:
    """Refuses an option that only the other backend has."""
    if kube:
        for name, value in local.items():
            if value is not None:
                raise BadRequest("not allowed with --kube: the cluster defines the nodes", where=name)
    elif kubeconfig is not None or context:
        raise BadRequest("needs --kube", where="--kubeconfig" if kubeconfig is not None else "--context")


def _database(database: str | None, file: Path | None) -> str:
    """The address of the database; empty for the one of the last start."""
    if database is not None and file is not None:
        raise BadRequest("not allowed with --database", where="--database-file")
    if database is not None:
        if _PASSWORD.search(database):
            print_error(
                "warning: other users can read a password on the command line; use --database-file or"
                f" {DATABASE_VARIABLE}"
            )
        return _stated(database, "--database")
    if file is not None:
        try:
            text = file.read_bytes()[:_URL_MAX].decode()
        except (OSError, ValueError) as error:
            cause = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise BadRequest(f"cannot read {file}: {cause}", where="--database-file") from None
        return _stated(text, f"--database-file {file}")
    return os.environ.get(DATABASE_VARIABLE, "")


def _stated(text: str, where: str) -> str:
    if not text.strip():
        raise BadRequest(
            "empty", where=where, expected="the URL of a database, or `embedded` for the embedded one"
        )
    return text.strip()


def _daemon_options(command: click.Context) -> list[str]:
    """The options that the user gave, for the daemon. Relative paths stay as typed, for its messages."""
    options: list[str] = []
    for parameter in command.command.params:
        value = command.params.get(parameter.name or "")
        if parameter.name in _NOT_FOR_DAEMON or value is None or value is False or value == "":
            continue
        option = max(parameter.opts, key=len)
        options.append(option if value is True else f"{option}={value}")
    return options


def _say_ready(status: dict[str, Any], paths: InstancePaths) -> None:
    settings = status["settings"]
    if status["instance"]["backend"] == KUBERNETES:
        if not status["instance"]["ready"]:
            print_line(f"penstock: standby: the leader for {settings['server']} is {settings['leader']}")
            return
        nodes = format_count(status["nodes"]["up"], "node")
        names = ", ".join(settings["schedulers"])
        print_line(f"penstock: ready: {nodes} of {settings['server']}; policy {settings['policy']}")
        print_line(
            f"schedules pods with schedulerName {names}; try `penstock jobs -a`, `penstock resource list`"
        )
        return
    nodes, cores = format_count(settings["nodes"], "node"), format_count(settings["cores"], "core")
    each = " each" if settings["nodes"] > 1 else ""
    machine = format_count(os.cpu_count() or 1, "core")
    note = f" (oversubscribed: this machine has {machine})" if settings["oversubscribed"] else ""
    print_line(f"penstock: ready: {nodes} with {cores}{each}{note}; policy {settings['policy']}")
    print_line(f"state {paths.state}; try `penstock run hostname`, `penstock jobs -a`, `penstock stop`")


def _start_in_background(paths: InstancePaths, options: list[str], database: str) -> dict[str, Any]:
    """Starts the daemon and waits for its report, which is returned. An error that it reports is raised."""
    report_fd, daemon_fd = os.pipe()
    try:
        daemon = spawn_daemon(paths, options, daemon_fd, database)
    finally:
        os.close(daemon_fd)
    try:
        report = _wait_for_report(report_fd, daemon)
    finally:
        os.close(report_fd)
    if "error" in report:
        if not report.get("keeps_trying"):
            # The daemon still stops what it had started; wait, so that nothing is left behind.
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(_EXIT_S)
        raise _ERRORS.get(str(report.get("kind")), Unavailable)(str(report["error"]))
    return report


def _wait_for_report(report_fd: int, daemon: subprocess.Popen[bytes]) -> dict[str, object]:
    """The final report. What the daemon waits for is printed once, when it first reports that it waits."""
    began = time.monotonic()
    text = b""
    waiting = ""
    progress = ProgressLine("starting", int(_READY_S))
    try:
        while True:
            while b"\n" in text:
                line, _, text = text.partition(b"\n")
                report: dict[str, object] = json.loads(line)
                if "waiting" not in report:
                    return report
                if not waiting:
                    progress.close()
                    print_error(f"not ready yet: {report['waiting']}")
                waiting = str(report["waiting"])
            elapsed_s = time.monotonic() - began
            if elapsed_s > _READY_S:
                why = f": {waiting}" if waiting else "; see its log"
                advice = "It keeps trying; `penstock stop` ends it"
                return {"error": f"not ready after {_READY_S:g} s{why}. {advice}", "keeps_trying": True}
            progress.show(int(elapsed_s), "s")
            if select.select([report_fd], [], [], 0.2)[0]:
                piece = os.read(report_fd, _REPORT_MAX)
                if not piece:
                    code = daemon.wait()
                    return {"error": f"the daemon exited during start-up (exit code {code}); see its log"}
                text += piece
    finally:
        progress.close()
