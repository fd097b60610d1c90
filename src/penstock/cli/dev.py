"""`penstock dev`: a real control plane with simulated nodes on this machine, and Penstock in it.

`dev cluster` runs in the foreground until Ctrl-C or SIGTERM and removes everything when it ends; its guardian
does the same if it is killed. Penstock is a child like the others, with its state in the cluster's directory.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import penstock
from penstock.cli import exits
from penstock.cli.client import ApiClient
from penstock.cli.daemon_process import serve_command
from penstock.cli.group import SETTINGS
from penstock.cli.terminal import command_name
from penstock.devcluster.registry import (
    CLUSTER,
    PENSTOCK,
    ClusterEntry,
    claim,
    registry_directory,
    release,
    running_clusters,
    write_entry,
)
from penstock.devcluster.settings import DevSettings
from penstock.errors import BadRequest, Conflict, Unavailable
from penstock.paths import InstancePaths, paths_of

if TYPE_CHECKING:
    from penstock.devcluster.cluster import DevCluster

__all__ = ["dev"]

_MANIFESTS: Final = ("deploy/rbac.yaml", "deploy/podgroup-crd.yaml")
_LOOK_S: Final = 0.5
_READY_S: Final = 90.0
_QUANTITY: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[kMGTPE]i?|m)?")
_PENSTOCK: Final = "penstock"
_OURS: Final = '{"spec":{"schedulerName":"penstock"}}'


@click.group(context_settings=SETTINGS)
def dev() -> None:
    """A real control plane with simulated nodes, for development."""


@dev.command(context_settings=SETTINGS)
@click.option("--nodes", type=click.IntRange(0, 10_000), default=4, show_default=True, help="How many nodes.")
@click.option("--cpu", type=click.IntRange(1), default=8, show_default=True, help="CPUs of each.")
@click.option("--memory", default="32Gi", show_default=True, metavar="QUANTITY", help="Memory of each.")
@click.option("--gpus", type=click.IntRange(0), default=0, show_default=True, help="GPUs of each.")
@click.option("--zones", type=click.IntRange(1), default=1, show_default=True, help="Zones they lie in.")
@click.option("--native-gang", is_flag=True, help="Switch on Kubernetes' own gang scheduling.")
@click.option("--no-penstock", is_flag=True, help="Only the cluster, without Penstock in it.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where it keeps its things; new or empty, and removed at the end.  [default: one of the user's]",
)
def cluster(
    nodes: int,
    cpu: int,
    memory: str,
    gpus: int,
    zones: int,
    native_gang: bool,
    no_penstock: bool,
    directory: Path | None,
) -> int:
    """Run a cluster until Ctrl-C: etcd and Kubernetes are real, nodes and pods are simulated.

    How long a pod runs is said by its annotation penstock.dev/sim-run (5s, inf), else by its command
    (sleep 30).
    """
    from penstock.devcluster.binaries import find_binaries
    from penstock.devcluster.cluster import DevCluster
    from penstock.devcluster.reaper import CleanupPaths

    if not _QUANTITY.fullmatch(memory):
        raise BadRequest("not a quantity", where="--memory", found=memory, expected="such as 32Gi")
    parts = find_binaries()
    home = registry_directory(os.environ)
    place = Path(os.path.abspath(directory)) if directory is not None else home / CLUSTER
    settings = DevSettings(
        nodes=nodes,
        cpu=cpu,
        memory=memory,
        gpus=gpus,
        zones=zones,
        native_gang=native_gang,
        apply=_manifests(),
    )
    inside = paths_of(str(place / PENSTOCK), os.environ)
    began = time.monotonic()
    pointer, held = claim(home, place)
    made = DevCluster(
        place,
        settings,
        binaries=parts,
        progress=lambda text: click.echo(f"{time.monotonic() - began:5.1f} s  {text}", err=True),
        cleanup=CleanupPaths((inside.runtime, pointer), (inside.runtime.parent, home)),
        inherited_fds=(held,),
    )
    with _terminated_as_interrupted():
        try:
            with made:
                write_entry(held, ClusterEntry(place, made.kubeconfig, parts.kubectl, os.getpid()))
                if not no_penstock:
                    _start_penstock(made, inside)
                _tell(made, inside, no_penstock, time.monotonic() - began)
                _watch(made, inside, no_penstock)
        except KeyboardInterrupt:
            click.echo("stopped; nothing is left", err=True)
        finally:
            release(home, pointer, held)
    return exits.OK


@dev.command(
    context_settings={**SETTINGS, "ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[--directory DIR]",
)
@click.option("--directory", type=click.Path(path_type=Path), help="Which cluster, if several run.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(directory: Path | None, arguments: tuple[str, ...]) -> None:
    """Run kubectl, of the right version, on the development cluster."""
    found = running_clusters(registry_directory(os.environ))
    if directory is not None:
        found = [one for one in found if one.directory == Path(os.path.abspath(directory))]
    if not found:
        raise Unavailable("no development cluster runs here; start one with `penstock dev cluster`")
    if len(found) > 1:
        names = ", ".join(str(one.directory) for one in found)
        raise Conflict(f"several development clusters run; name one with --directory: {names}")
    told = {"KUBECONFIG": str(found[0].kubeconfig), "KUBECACHEDIR": str(found[0].directory / "kubectl")}
    sys.stdout.flush()
    os.execve(found[0].kubectl, ["kubectl", *arguments], {**os.environ, **told})


def _manifests() -> tuple[Path, ...]:
    """What Penstock needs in a cluster; it lies in the checkout, beside the sources."""
    checkout = Path(penstock.__file__).resolve().parents[2]
    return tuple(path for name in _MANIFESTS if (path := checkout / name).is_file())


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start_penstock(made: DevCluster, inside: InstancePaths) -> None:
    click.echo("starting Penstock", err=True)
    options = ["--kube", "--kubeconfig", str(made.penstock_kubeconfig)]
    made.start_program(_PENSTOCK, serve_command(inside, options))
    until = time.monotonic() + _READY_S
    while True:
        _check(made, _PENSTOCK)
        try:
            instance = ApiClient(inside).get("/v1/status")["instance"]
            if instance["ready"]:
                return
            why = instance["why_not_ready"]
        except Unavailable as error:
            why = str(error)
        if time.monotonic() > until:
            raise Unavailable(f"Penstock is not ready after {_READY_S:g} s: {why}")
        time.sleep(_LOOK_S)


def _check(made: DevCluster, name: str) -> None:
    state = made.component(name)
    if state.exit_code is not None:
        raise Unavailable(f"{name} ended with {state.exit_code}: {made.log_tail(name)}")


def _tell(made: DevCluster, inside: InstancePaths, no_penstock: bool, took_s: float) -> None:
    given = made.settings
    gpus = f", {given.gpus} gpus" if given.gpus else ""
    lines = [
        f"ready after {took_s:.1f} s: {given.nodes} nodes of {given.cpu} cpus, {given.memory}{gpus}",
        "",
        f"  export KUBECONFIG={made.kubeconfig}",
    ]
    tries = ["get nodes", "create job hello --image=busybox -- sleep 30"]
    if not no_penstock:
        lines.append(f"  export PENSTOCK_STATE={inside.state}")
        tries[1] = f"run hello --image=busybox --restart=Never --overrides='{_OURS}' -- sleep 30"
    us = command_name()
    lines += ["", "try, in another terminal,", *(f"  {us} dev kubectl {text}" for text in tries)]
    if not no_penstock:
        lines.append(f"  {us} jobs -a")
    lines += ["", "Ctrl-C ends it and removes everything."]
    click.echo("\n".join(lines))


def _watch(made: DevCluster, inside: InstancePaths, no_penstock: bool) -> None:
    """Until somebody interrupts, or a part ends that should not. Penstock is started again if it dies."""
    names = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]
    while True:
        for name in names:
            _check(made, name)
        if not no_penstock:
            code = made.component(_PENSTOCK).exit_code
            if code is not None:
                click.echo(f"Penstock ended with {code}, and is started again", err=True)
                _start_penstock(made, inside)
        time.sleep(_LOOK_S)
