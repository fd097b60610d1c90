"""`penstock dev`: a Kubernetes control plane with simulated nodes on this machine, scheduled by Penstock.

`dev cluster` runs in the foreground until ctrl-C or SIGTERM and removes everything when it ends; the reaper
process does the same if the command is killed. Penstock is one of the cluster's child processes and keeps its
state in the cluster's directory.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

import penstock
from penstock.cli import exits
from penstock.cli.client import ApiClient
from penstock.cli.daemon_process import DATABASE_VARIABLE, serve_command
from penstock.cli.group import SETTINGS
from penstock.cli.interrupts import interruptible
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
from penstock.model.resource_types import format_count
from penstock.paths import InstancePaths, paths_of

if TYPE_CHECKING:
    from penstock.devcluster.cluster import DevCluster

__all__ = ["dev"]

_MANIFESTS: Final = ("deploy/rbac.yaml", "deploy/podgroup-crd.yaml")
_POLL_S: Final = 0.5
_READY_S: Final = 90.0
_QUANTITY: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[kMGTPE]i?|m)?")
_PENSTOCK: Final = "penstock"
_POD_OVERRIDES: Final = '{"spec":{"schedulerName":"penstock"}}'


@click.group(context_settings=SETTINGS)
def dev() -> None:
    """Run a Kubernetes control plane with simulated nodes, for development."""


@dev.command(context_settings=SETTINGS, short_help="Run a development cluster until ctrl-C.")
@click.option(
    "--nodes", type=click.IntRange(0, 10_000), default=4, show_default=True, help="Number of nodes."
)
@click.option("--cpu", type=click.IntRange(1), default=8, show_default=True, help="CPUs per node.")
@click.option("--memory", default="32Gi", show_default=True, metavar="QUANTITY", help="Memory per node.")
@click.option("--gpus", type=click.IntRange(0), default=0, show_default=True, help="GPUs per node.")
@click.option(
    "--zones",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of zones to spread the nodes over.",
)
@click.option("--native-gang", is_flag=True, help="Enable the gang scheduling of Kubernetes.")
@click.option("--no-penstock", is_flag=True, help="Start the cluster without Penstock.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory of the cluster; must be new or empty, and is removed at the end.",
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
    """Run a cluster until ctrl-C: etcd and Kubernetes are real, nodes and pods are simulated.

    The annotation penstock.dev/sim-run (5s, inf) sets how long a pod runs; without it, its command does
    (sleep 30).
    """
    from penstock.devcluster.binaries import find_binaries
    from penstock.devcluster.cluster import DevCluster
    from penstock.devcluster.reaper import CleanupPaths

    if not _QUANTITY.fullmatch(memory):
        raise BadRequest("invalid quantity", where="--memory", found=memory, expected="for example 32Gi")
    binaries = find_binaries()
    os.environ.pop(DATABASE_VARIABLE, None)  # A temporary instance does not use the user's database.
    home = registry_directory(os.environ)
    cluster_dir = Path(os.path.abspath(directory)) if directory is not None else home / CLUSTER
    settings = DevSettings(
        nodes=nodes,
        cpu=cpu,
        memory=memory,
        gpus=gpus,
        zones=zones,
        native_gang=native_gang,
        apply=_manifests(),
    )
    paths = paths_of(str(cluster_dir / PENSTOCK), os.environ)
    began = time.monotonic()
    entry_path, descriptor = claim(home, cluster_dir)
    dev_cluster = DevCluster(
        cluster_dir,
        settings,
        binaries=binaries,
        progress=lambda text: click.echo(f"{time.monotonic() - began:5.1f} s  {text}", err=True),
        cleanup=CleanupPaths((paths.runtime, entry_path), (paths.runtime.parent, home)),
        inherited_fds=(descriptor,),
    )
    with interruptible(signal.SIGTERM):
        try:
            with dev_cluster:
                write_entry(
                    descriptor,
                    ClusterEntry(cluster_dir, dev_cluster.kubeconfig, binaries.kubectl, os.getpid()),
                )
                if not no_penstock:
                    _start_penstock(dev_cluster, paths)
                _print_ready(dev_cluster, paths, no_penstock, time.monotonic() - began)
                _watch(dev_cluster, paths, no_penstock)
        except KeyboardInterrupt:
            click.echo("stopped and removed", err=True)
        finally:
            release(home, entry_path, descriptor)
    return exits.OK


@dev.command(
    context_settings={**SETTINGS, "ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="[--directory DIR]",
)
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Directory of the cluster, if several run."
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(directory: Path | None, arguments: tuple[str, ...]) -> None:
    """Run the matching version of kubectl on the development cluster."""
    found = running_clusters(registry_directory(os.environ))
    if directory is not None:
        found = [one for one in found if one.directory == Path(os.path.abspath(directory))]
    if not found:
        raise Unavailable("no development cluster runs; start one with `penstock dev cluster`")
    if len(found) > 1:
        names = ", ".join(str(one.directory) for one in found)
        raise Conflict(f"several development clusters run; select one with --directory: {names}")
    environment = {
        "KUBECONFIG": str(found[0].kubeconfig),
        "KUBECACHEDIR": str(found[0].directory / "kubectl"),
    }
    sys.stdout.flush()
    os.execve(found[0].kubectl, ["kubectl", *arguments], {**os.environ, **environment})


def _manifests() -> tuple[Path, ...]:
    """The manifests that Penstock needs in a cluster. They are in the source checkout."""
    checkout = Path(penstock.__file__).resolve().parents[2]
    return tuple(path for name in _MANIFESTS if (path := checkout / name).is_file())


def _start_penstock(dev_cluster: DevCluster, paths: InstancePaths) -> None:
    click.echo("starting Penstock", err=True)
    options = ["--kube", "--kubeconfig", str(dev_cluster.penstock_kubeconfig)]
    dev_cluster.start_program(_PENSTOCK, serve_command(paths, options))
    until = time.monotonic() + _READY_S
    while True:
        _check(dev_cluster, _PENSTOCK)
        try:
            instance = ApiClient(paths).get("/v1/status")["instance"]
            if instance["ready"]:
                return
            why = instance["why_not_ready"]
        except Unavailable as error:
            why = str(error)
        if time.monotonic() > until:
            raise Unavailable(f"Penstock is not ready after {_READY_S:g} s: {why}")
        time.sleep(_POLL_S)


def _check(dev_cluster: DevCluster, name: str) -> None:
    state = dev_cluster.component(name)
    if state.exit_code is not None:
        raise Unavailable(f"{name} exited with {state.exit_code}: {dev_cluster.log_tail(name)}")


def _print_ready(dev_cluster: DevCluster, paths: InstancePaths, no_penstock: bool, took_s: float) -> None:
    settings = dev_cluster.settings
    gpus = f", {format_count(settings.gpus, 'GPU')}" if settings.gpus else ""
    size = f"{settings.cpu} CPUs, {settings.memory} memory{gpus}"
    lines = [
        f"ready after {took_s:.1f} s: {format_count(settings.nodes, 'node')}, each with {size}",
        "",
        f"  export KUBECONFIG={dev_cluster.kubeconfig}",
    ]
    examples = ["get nodes", "create job hello --image=busybox -- sleep 30"]
    if not no_penstock:
        lines.append(f"  export PENSTOCK_STATE={paths.state}")
        examples[1] = f"run hello --image=busybox --restart=Never --overrides='{_POD_OVERRIDES}' -- sleep 30"
    name = command_name()
    lines += ["", "try in another terminal:", *(f"  {name} dev kubectl {text}" for text in examples)]
    if not no_penstock:
        lines.append(f"  {name} jobs -a")
    lines += ["", "Ctrl-C stops the cluster and removes its files."]
    click.echo("\n".join(lines))


def _watch(dev_cluster: DevCluster, paths: InstancePaths, no_penstock: bool) -> None:
    """Runs until an interrupt or until a control plane process exits. Restarts Penstock if it exits."""
    names = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok"]
    while True:
        for name in names:
            _check(dev_cluster, name)
        if not no_penstock:
            code = dev_cluster.component(_PENSTOCK).exit_code
            if code is not None:
                click.echo(f"Penstock exited with {code}; restarting it", err=True)
                _start_penstock(dev_cluster, paths)
        time.sleep(_POLL_S)
