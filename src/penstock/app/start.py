"""`penstock start`: an instance in the background, ready when the command returns; or in the foreground."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click

from penstock.cli import exits
from penstock.cli.client import ApiClient
from penstock.cli.group import SETTINGS, json_option, state_option
from penstock.cli.terminal import ProgressLine, complain, say, say_json
from penstock.errors import BadRequest, Conflict, PenstockError, Unavailable
from penstock.paths import InstancePaths, make_paths, paths_of

__all__ = ["start"]

_READY_S: Final = 120.0
_END_S: Final = 30.0
_REPORT_MAX: Final = 64 << 10


@click.command(context_settings=SETTINGS)
@state_option
@json_option
@click.option(
    "--nodes", type=click.IntRange(1, 1024), help="How many node agents.  [default: as before, or 1]"
)
@click.option(
    "--cores", type=click.IntRange(1, 4096), help="Cores that each of them offers.  [default: the machine's]"
)
@click.option("--gpus", type=click.IntRange(0, 1024), help="GPUs that each of them offers.  [default: 0]")
@click.option("--policy", default="", metavar="POLICY", help="fcfs, easy, hybrid[:DEPTH] or conservative.")
@click.option(
    "--match-policy", default="", metavar="POLICY", help="Which nodes are preferred: lonode, first, pack, ..."
)
@click.option(
    "--queue-depth", type=click.IntRange(1), help="Jobs of a queue that one pass looks at.  [default: all]"
)
@click.option(
    "--config", "config", type=click.Path(path_type=Path, dir_okay=False), help="Queues and limits (TOML)."
)
@click.option(
    "--database", metavar="URL", help="A PostgreSQL database.  [default: our own, in the state directory]"
)
@click.option("--listen", default="", metavar="ADDRESS:PORT", help="Also serve the API on TCP, with a token.")
@click.option("--kube", is_flag=True, help="Schedule the pods of a Kubernetes cluster, not processes.")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False, resolve_path=True),
    help="With --kube: how to reach it.  [default: in-cluster, $KUBECONFIG or ~/.kube/config]",
)
@click.option("--context", default="", metavar="NAME", help="With --kube: a context of the kubeconfig.")
@click.option("--foreground", is_flag=True, help="Do not go to the background; for supervisors.")
@click.pass_context
def start(
    command: click.Context,
    state: str | None,
    output_format: str,
    nodes: int | None,
    cores: int | None,
    gpus: int | None,
    policy: str,
    match_policy: str,
    queue_depth: int | None,
    config: Path | None,
    database: str | None,
    listen: str,
    kube: bool,
    kubeconfig: Path | None,
    context: str,
    foreground: bool,
) -> int:
    """Start an instance: node agents as processes, a queue that survives, and its API.

    With --kube it is a scheduler of pods. Returns when it is ready, or stands by for the one that is the
    leader. The state directory names it: --state DIR, or PENSTOCK_STATE.
    """
    from penstock.app.configuration import read_configuration
    from penstock.app.identity import look
    from penstock.store.factory import check_database

    paths = paths_of(state, os.environ)
    _check_backend(kube, {"--nodes": nodes, "--cores": cores, "--gpus": gpus}, kubeconfig, context)
    configuration = read_configuration(
        config, policy=policy, match_policy=match_policy, queue_depth=queue_depth
    )
    if database:
        check_database(database)
    look(paths)
    if foreground:
        from penstock.app.daemon import DaemonOptions, ReadinessReport, run

        reach = replace(configuration.kube, kubeconfig=kubeconfig, context=context) if kube else None
        report = ReadinessReport(_report_descriptor())
        return run(DaemonOptions(paths, configuration, nodes, cores, gpus, database, listen, reach, report))
    if kube:
        from penstock.kube.access import find_access

        find_access(kubeconfig, context)  # What is wrong with it is said here, not in a log.
    _start_in_background(paths, _argv(command))
    status = ApiClient(paths).get("/v1/status")
    if output_format == "json":
        say_json(status)
        return exits.OK
    _tell_ready(status, paths)
    return exits.OK


def _check_backend(kube: bool, local: dict[str, int | None], kubeconfig: Path | None, context: str) -> None:
    """Options of one world make no sense in the other."""
    if kube:
        for name, value in local.items():
            if value is not None:
                raise BadRequest("nodes come from the cluster", where=name, expected="not with --kube")
    elif kubeconfig is not None or context:
        raise BadRequest("there is no cluster to reach", where="--kubeconfig, --context", expected="--kube")


def _tell_ready(status: dict[str, Any], paths: InstancePaths) -> None:
    settings = status["settings"]
    if status["instance"]["backend"] == "kubernetes":
        if not status["instance"]["ready"]:
            say(f"penstock: standing by: {settings['leader']} is the leader of {settings['server']}")
            return
        nodes = status["nodes"]["up"]
        names = ", ".join(settings["schedulers"])
        say(f"penstock: ready: {nodes} nodes of {settings['server']}; policy {settings['policy']}")
        say(f"pods with schedulerName {names} are ours; try `penstock jobs -a`, `penstock resource list`")
        return
    total = settings["nodes"] * settings["cores"]
    note = (
        f" (more than the {os.cpu_count()} of this machine: oversubscribed)"
        if settings["oversubscribed"]
        else ""
    )
    say(f"penstock: ready: {settings['nodes']} nodes, {total} cores{note}; policy {settings['policy']}")
    say(f"state {paths.state}; try `penstock run hostname`, `penstock jobs -a`, `penstock stop`")


def _argv(command: click.Context) -> list[str]:
    """The options as they were given, for the process in the background."""
    argv: list[str] = []
    for parameter in command.command.params:
        value = command.params.get(parameter.name or "")
        if parameter.name in ("state", "output_format", "foreground") or value in (None, "", False):
            continue
        option = max(parameter.opts, key=len)
        if value is True:
            argv.append(option)
        else:
            argv += [option, str(value.resolve() if isinstance(value, Path) else value)]
    return argv


def _report_descriptor() -> int | None:
    found = os.environ.pop("PENSTOCK_REPORT", "")
    return int(found) if found.isdigit() else None


def _start_in_background(paths: InstancePaths, argv: list[str]) -> None:
    """Starts the daemon, and waits for the line in which it says that it is ready, or why not."""
    make_paths(paths)
    reads, writes = os.pipe()
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "start",
        "--foreground",
        "--state",
        str(paths.state),
        *argv,
    ]
    environment = {**os.environ, "PENSTOCK_REPORT": str(writes)}
    try:
        log = os.open(paths.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(f"cannot write {paths.log}: {error.strerror}") from error
    daemon = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        pass_fds=(writes,),
        start_new_session=True,
        env=environment,
        cwd="/",
    )
    os.close(writes)
    os.close(log)
    try:
        told = _wait_for_report(reads, daemon)
    finally:
        os.close(reads)
    if "error" in told:
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(_END_S if not told.get("goes_on") else 0)  # What it took down is gone when we return.
        kinds = {"BadRequest": BadRequest, "Conflict": Conflict}
        kind: type[PenstockError] = kinds.get(str(told.get("kind")), Unavailable)
        raise kind(str(told["error"]))


def _wait_for_report(reads: int, daemon: subprocess.Popen[bytes]) -> dict[str, object]:
    began = time.monotonic()
    text = b""
    waiting = ""
    progress = ProgressLine("starting", int(_READY_S))
    try:
        while True:
            while b"\n" in text:
                line, _, text = text.partition(b"\n")
                told: dict[str, object] = json.loads(line)
                if "waiting" not in told:
                    return told
                if not waiting:
                    progress.close()
                    complain(f"not ready yet: {told['waiting']}")
                waiting = str(told["waiting"])
            passed = time.monotonic() - began
            if passed > _READY_S:
                why = f": {waiting}" if waiting else "; its log may say why"
                advice = "It goes on trying; `penstock stop` ends it"
                return {
                    "error": f"not ready after {_READY_S:g} s{why}. {advice}",
                    "kind": "Unavailable",
                    "goes_on": True,
                }
            progress.show(int(passed), "s")
            if select.select([reads], [], [], 0.2)[0]:
                piece = os.read(reads, _REPORT_MAX)
                if not piece:
                    code = daemon.wait()
                    return {
                        "error": f"the instance ended at once (exit {code}); its log may say why",
                        "kind": "Unavailable",
                    }
                text += piece
    finally:
        progress.close()
