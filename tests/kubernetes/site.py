"""A cluster with Penstock, for end-to-end tests: a simulated cluster, or any cluster with a kubeconfig.

Penstock always has exactly the permissions of `deploy/rbac.yaml`: in a simulated cluster through a client
certificate, elsewhere through a token of its ServiceAccount. Every replica is a real process that can be
killed. Namespaces that tests create are deleted afterwards.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from penstock.cli.client import ApiClient
from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.settings import DevSettings
from penstock.errors import PenstockError
from penstock.model.quantity import parse_quantity
from penstock.paths import paths_of
from tests.clusters import needs_controlplane

__all__ = [
    "ROOT",
    "SCHEDULERS",
    "Replica",
    "Site",
    "external_kubeconfig",
    "requests_of",
    "simulated_site",
    "site_of",
    "wait_for",
]

ROOT = Path(__file__).parents[2]
MANIFESTS = (ROOT / "deploy" / "rbac.yaml", ROOT / "deploy" / "podgroup-crd.yaml")
SCHEDULERS = ("penstock", "fluence", "fluxnetes")
_CONFIG = """
{configuration}
gang_repair_timeout = "{gang_repair_timeout}"
[kube]
audit_every = "{audit_every}"
assembly_timeout = "{assembly_timeout}"
"""
_DIFFERENCE = re.compile(r'^penstock_audit_differences\{kind="([^"]+)"\} (\S+)', re.M)
_ROUNDS = re.compile(r"^penstock_audit_rounds_total (\S+)", re.M)


def external_kubeconfig() -> Path | None:
    """The kubeconfig of `make e2e KUBECONFIG=FILE`, None for a simulated cluster."""
    found = os.environ.get("PENSTOCK_E2E_KUBECONFIG", "")
    return Path(found) if found and Path(found).is_file() else None


def wait_for(poll: Callable[[], object], goal: str, limit_s: float = 30.0, every_s: float = 0.1) -> Any:
    """Calls `poll` until its result is true, and returns that result."""
    deadline = time.monotonic() + limit_s
    while not (result := poll()):
        assert time.monotonic() < deadline, f"timed out after {limit_s:g} s waiting for {goal}"
        time.sleep(every_s)
    return result


@dataclass
class Replica:
    """One Penstock instance: its process, its state directory, and queries to its API."""

    site: Site
    name: str
    state: Path
    arguments: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def client(self) -> ApiClient:
        return ApiClient(paths_of(str(self.state), os.environ))

    @property
    def log(self) -> Path:
        return self.state.parent / f"{self.name}.log"

    def start(self, **environ: str) -> Replica:
        """Starts it in the foreground of a child process. `environ` can set failpoints."""
        assert self.process is None or self.process.poll() is not None, f"{self.name} is already running"
        config = self.state.parent / f"{self.name}.toml"
        site = self.site
        config.write_text(
            _CONFIG.format(
                configuration=site.configuration,
                gang_repair_timeout=site.gang_repair_timeout,
                assembly_timeout=site.assembly_timeout,
                audit_every=site.audit_every,
            )
        )
        argv = [
            *(sys.executable, "-m", "penstock.cli", "start", "--foreground", "--kube"),
            *("--state", str(self.state), "--kubeconfig", str(self.site.penstock_kubeconfig)),
            *("--config", str(config), *self.arguments),
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                argv, stdout=log, stderr=log, env={**os.environ, **self.environ, **environ}
            )
        return self

    def wait_ready(self, limit_s: float = 60.0) -> Replica:
        wait_for(self.is_ready, f"{self.name} to be ready; its log: {self.log_tail()}", limit_s)
        return self

    def is_ready(self) -> bool:
        with contextlib.suppress(PenstockError, OSError):
            return bool(self.client.get("/v1/status")["instance"]["ready"])
        return False

    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def wait_dead(self, limit_s: float = 60.0) -> None:
        """Waits until it has died at a failpoint."""
        wait_for(lambda: not self.is_alive(), f"{self.name} to die at its failpoint", limit_s, 0.02)

    def stop(self) -> None:
        if self.is_alive():
            assert self.process is not None
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(f"{self.name} did not stop in time: {self.log_tail()}") from None

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a `penstock` command on this instance."""
        environ = {**os.environ, "PENSTOCK_STATE": str(self.state), "COLUMNS": "200"}
        argv = [sys.executable, "-m", "penstock.cli", *arguments]
        return subprocess.run(argv, capture_output=True, text=True, env=environ, check=False)

    def jobs(self, states: str = "active") -> list[dict[str, Any]]:
        found = self.client.get("/v1/jobs", states=states)["jobs"]
        return list(found)

    def metrics(self) -> str:
        done = subprocess.run(
            [
                "curl",
                "-s",
                "--unix-socket",
                str(paths_of(str(self.state), os.environ).socket),
                "http://x/metrics",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def rounds(self) -> float:
        found = _ROUNDS.search(self.metrics())
        return float(found[1]) if found else 0.0

    def differences(self) -> dict[str, float]:
        return {kind: float(count) for kind, count in _DIFFERENCE.findall(self.metrics()) if float(count)}

    def wait_audited(self, limit_s: float = 60.0) -> None:
        """Waits until two more audit rounds have finished and the last one shows no differences."""
        before = self.rounds()
        wait_for(lambda: self.rounds() >= before + 2, "two audit rounds", limit_s)
        wait_for(
            lambda: not self.differences(),
            f"an audit without differences; it has {self.differences()}",
            limit_s,
        )

    def log_tail(self, lines: int = 30) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])
        return "(no log)"


@dataclass
class Site:
    directory: Path
    kubeconfig: Path  # of the cluster administrator
    penstock_kubeconfig: Path
    kubectl_path: Path
    cluster: DevCluster | None = None  # None: an external cluster
    gang_repair_timeout: str = "20s"  # short, so that tests do not have to wait long
    assembly_timeout: str = "1h"
    audit_every: str = "2s"
    configuration: str = ""  # further settings, before the first section of the file
    replicas: list[Replica] = field(default_factory=list)

    def replica(self, name: str = "penstock", *arguments: str, **environ: str) -> Replica:
        """A Penstock instance that is not started yet. It is stopped with the site."""
        replica = Replica(self, name, self.directory / name, arguments, environ)
        self.replicas.append(replica)
        return replica

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:  # noqa: A002
        argv = [str(self.kubectl_path), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(argv, input=input, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """The output of `kubectl get` as a document; a list has its objects under "items"."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, manifest: Path | str | dict[str, Any] | list[dict[str, Any]], namespace: str) -> None:
        """Applies a file or documents."""
        if isinstance(manifest, Path):
            self.kubectl("apply", "-n", namespace, "-f", str(manifest))
            return
        documents = [manifest] if isinstance(manifest, dict) else manifest
        text = documents if isinstance(documents, str) else yaml.safe_dump_all(documents)
        self.kubectl("apply", "-n", namespace, "-f", "-", input=text)

    def pods(self, namespace: str, selector: str = "") -> list[dict[str, Any]]:
        more = ("-l", selector) if selector else ()
        return list(self.get("pods", "-n", namespace, *more)["items"])

    @contextmanager
    def namespace(self) -> Iterator[str]:
        name = f"t-{uuid.uuid4().hex[:8]}"
        self.kubectl("create", "namespace", name)
        wait_for(
            lambda: self.kubectl("get", "serviceaccount", "default", "-n", name, check=False),
            "the default ServiceAccount",
            120.0,  # After an outage of the API server its controller takes a while to resume.
        )
        try:
            yield name
        finally:
            for kind in ("deployments,replicasets,statefulsets,jobs", "pods"):
                self.kubectl(
                    *("delete", kind, "--all", "-n", name, "--wait=false", "--grace-period=0", "--force"),
                    check=False,
                )
            self.kubectl("delete", "namespace", name, "--wait=false", check=False)

    # Invariants

    def overcommitted(self, blame_s: float | None = None) -> dict[str, dict[str, tuple[int, int]]]:
        """Over-committed nodes with at least one pod of Penstock: resource -> (requested, allocatable).

        Two schedulers share no lock. With `blame_s`, foreign pods that were bound later than `blame_s`
        seconds before Penstock's last binding on the node are ignored: Penstock could not know of them.
        """
        live = [
            pod
            for pod in self.get("pods", "-A")["items"]
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        last: dict[str, float] = {}  # by node: time of Penstock's last binding
        for pod in live:
            if is_ours(pod):
                node = pod["spec"]["nodeName"]
                last[node] = max(last.get(node, 0.0), _bound_at(pod))
        requested: dict[str, dict[str, int]] = {node: {} for node in last}
        for pod in live:
            node = pod["spec"]["nodeName"]
            is_late = blame_s is not None and _bound_at(pod) > last.get(node, 0.0) - blame_s
            if node not in last or (is_late and not is_ours(pod)):
                continue
            for resource, units in requests_of(pod).items():
                requested[node][resource] = requested[node].get(resource, 0) + units
        found: dict[str, dict[str, tuple[int, int]]] = {}
        for node in self.get("nodes")["items"]:
            allocatable = {
                resource: _units(resource, text) for resource, text in node["status"]["allocatable"].items()
            }
            name = node["metadata"]["name"]
            over = {
                resource: (units, allocatable.get(resource, 0))
                for resource, units in requested.get(name, {}).items()
                if units > allocatable.get(resource, 0)
            }
            if over:
                found[name] = over
        return found

    def wait_consistent(self, replica: Replica, limit_s: float = 60.0) -> None:
        """Waits until no node is over-committed by Penstock and the auditor shows no differences."""
        replica.wait_ready(limit_s)
        wait_for(
            lambda: not self.overcommitted(),
            f"no over-committed node; there are {self.overcommitted()}",
            limit_s,
        )
        replica.wait_audited(limit_s)


def requests_of(pod: dict[str, Any]) -> dict[str, int]:
    """The requests of a pod without init containers and overhead; tests create no others."""
    total = {"pods": 1}
    for container in pod["spec"]["containers"]:
        for resource, text in container.get("resources", {}).get("requests", {}).items():
            total[resource] = total.get(resource, 0) + _units(resource, text)
    return total


def is_ours(pod: dict[str, Any]) -> bool:
    return pod["spec"]["schedulerName"] in SCHEDULERS


def _bound_at(pod: dict[str, Any]) -> float:
    """The binding time in whole seconds; for a pod created with a nodeName its creation time."""
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            return datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()


def _units(resource: str, text: str) -> int:
    return parse_quantity(text, scale=1000 if resource == "cpu" else 1)


@contextmanager
def simulated_site(settings: DevSettings, **more: str) -> Iterator[Site]:
    """A simulated cluster with Penstock's manifests applied. Everything is removed at the end."""
    binaries = needs_controlplane()
    directory = Path(tempfile.mkdtemp(prefix="penstock-site-"))
    directory.chmod(0o755)
    cluster = DevCluster(directory / "cluster", replace(settings, apply=MANIFESTS), binaries=binaries)
    try:
        with cluster:
            site = Site(
                directory, cluster.kubeconfig, cluster.penstock_kubeconfig, binaries.kubectl, cluster, **more
            )
            with _stopping(site):
                yield site
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def site_of(kubeconfig: Path, **more: str) -> Iterator[Site]:
    """An external cluster. Penstock's manifests are applied to it and stay there."""
    binaries = needs_controlplane()
    directory = Path(tempfile.mkdtemp(prefix="penstock-site-"))
    directory.chmod(0o755)
    site = Site(directory, kubeconfig, directory / "penstock.kubeconfig", binaries.kubectl, None, **more)
    try:
        for manifest in MANIFESTS:
            site.kubectl("apply", "-f", str(manifest))
        token = wait_for(
            lambda: site.kubectl("create", "token", "penstock", "-n", "penstock-system", check=False),
            "a token",
        )
        config = yaml.safe_load(site.kubectl("config", "view", "--raw", "--minify", "--flatten"))
        config["users"] = [
            {"name": user["name"], "user": {"token": token.strip()}} for user in config["users"]
        ]
        site.penstock_kubeconfig.write_text(yaml.safe_dump(config))
        site.penstock_kubeconfig.chmod(0o600)
        with _stopping(site):
            yield site
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _stopping(site: Site) -> Iterator[None]:
    try:
        yield
    finally:
        for replica in site.replicas:
            with contextlib.suppress(AssertionError):
                replica.stop()
            # The embedded database outlives a killed instance, so it is stopped separately.
            subprocess.run(
                [sys.executable, "-m", "penstock.cli", "stop", "--state", str(replica.state)],
                capture_output=True,
                check=False,
            )
            shutil.rmtree(paths_of(str(replica.state), os.environ).runtime, ignore_errors=True)
