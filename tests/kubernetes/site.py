"""A cluster with Penstock in it, for tests from end to end: a simulated one, or any with a kubeconfig.

Penstock always runs as its own user, with the rights of `deploy/rbac.yaml` and no more: in a simulated
cluster by a client certificate, elsewhere by a token of its ServiceAccount. Every replica is a real process
that can be killed; every namespace that a test makes is gone afterwards.
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
    "amounts_of",
    "external_kubeconfig",
    "simulated_site",
    "site_of",
    "wait_for",
]

ROOT = Path(__file__).parents[2]
MANIFESTS = (ROOT / "deploy" / "rbac.yaml", ROOT / "deploy" / "podgroup-crd.yaml")
SCHEDULERS = ("penstock", "fluence", "fluxnetes")
_CONFIG = """
gang_repair_timeout = "{whole}"
[kube]
audit_every = "{audit_every}"
assembly_timeout = "{assemble}"
"""
_DIFFERENCE = re.compile(r'^penstock_audit_differences\{kind="([^"]+)"\} (\S+)', re.M)
_ROUNDS = re.compile(r"^penstock_audit_rounds_total (\S+)", re.M)


def external_kubeconfig() -> Path | None:
    """The cluster that `make e2e KUBECONFIG=FILE` means; None: a simulated one of our own."""
    found = os.environ.get("PENSTOCK_E2E_KUBECONFIG", "")
    return Path(found) if found and Path(found).is_file() else None


def wait_for(holds: Callable[[], object], what: str, limit_s: float = 30.0, every_s: float = 0.1) -> Any:
    """Asks again and again until the answer is true; returns it."""
    deadline = time.monotonic() + limit_s
    while not (answer := holds()):
        assert time.monotonic() < deadline, f"waited {limit_s:g} s in vain for {what}"
        time.sleep(every_s)
    return answer


@dataclass
class Replica:
    """One Penstock: a process, its state directory, and what can be asked of it."""

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
        """In the foreground of a process of our own; `environ` for failpoints."""
        assert self.process is None or self.process.poll() is not None, f"{self.name} runs already"
        config = self.state.parent / f"{self.name}.toml"
        site = self.site
        config.write_text(
            _CONFIG.format(whole=site.whole, assemble=site.assemble, audit_every=site.audit_every)
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
        """Until it has died by itself, at a failpoint."""
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
        """A command for this instance."""
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
        """Until two more rounds of the auditor have found nothing."""
        before = self.rounds()
        wait_for(lambda: self.rounds() >= before + 2, "two rounds of the auditor", limit_s)
        wait_for(
            lambda: not self.differences(), f"an audit without findings, not {self.differences()}", limit_s
        )

    def log_tail(self, lines: int = 30) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])
        return "(no log)"


@dataclass
class Site:
    directory: Path
    kubeconfig: Path  # of somebody who may do everything
    penstock_kubeconfig: Path
    kubectl_path: Path
    cluster: DevCluster | None = None  # None: somebody else's
    whole: str = "20s"  # how long a half gang may last; short, so that tests need not wait
    assemble: str = "1h"
    audit_every: str = "2s"
    replicas: list[Replica] = field(default_factory=list)

    def replica(self, name: str = "penstock", *arguments: str, **environ: str) -> Replica:
        """A Penstock that is not started yet, stopped at the end with the site."""
        made = Replica(self, name, self.directory / name, arguments, environ)
        self.replicas.append(made)
        return made

    def kubectl(self, *arguments: str, input: str | None = None, check: bool = True) -> str:  # noqa: A002
        argv = [str(self.kubectl_path), "--kubeconfig", str(self.kubeconfig), *arguments]
        done = subprocess.run(argv, input=input, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def get(self, *arguments: str) -> Any:
        """What kubectl finds, as values; a list has its items under "items"."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def apply(self, manifest: Path | str | dict[str, Any] | list[dict[str, Any]], namespace: str) -> None:
        """A file as it is, or documents of our own."""
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
            120.0,  # After an outage of the API server its maker takes a while to come back.
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

    # What must hold whenever things have settled

    def overcommitted(self, blame_s: float | None = None) -> dict[str, dict[str, tuple[int, int]]]:
        """Nodes on which pods ask for more than there is, and one of them is ours: kind -> (asked, there).

        Two schedulers share no lock. With `blame_s`, what others were given later than that long before our
        last binding there does not count: we could not know of it.
        """
        live = [
            pod
            for pod in self.get("pods", "-A")["items"]
            if pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed")
        ]
        last: dict[str, float] = {}  # by node: our last binding
        for pod in live:
            if is_ours(pod):
                node = pod["spec"]["nodeName"]
                last[node] = max(last.get(node, 0.0), _bound_at(pod))
        asked: dict[str, dict[str, int]] = {node: {} for node in last}
        for pod in live:
            node = pod["spec"]["nodeName"]
            is_late = blame_s is not None and _bound_at(pod) > last.get(node, 0.0) - blame_s
            if node not in last or (is_late and not is_ours(pod)):
                continue
            for kind, units in amounts_of(pod).items():
                asked[node][kind] = asked[node].get(kind, 0) + units
        found: dict[str, dict[str, tuple[int, int]]] = {}
        for node in self.get("nodes")["items"]:
            has = {kind: _units(kind, text) for kind, text in node["status"]["allocatable"].items()}
            name = node["metadata"]["name"]
            over = {
                kind: (units, has.get(kind, 0))
                for kind, units in asked.get(name, {}).items()
                if units > has.get(kind, 0)
            }
            if over:
                found[name] = over
        return found

    def wait_sound(self, replica: Replica, limit_s: float = 60.0) -> None:
        """No node over-committed by us, and an auditor that finds nothing (no leak, nothing half)."""
        replica.wait_ready(limit_s)
        wait_for(lambda: not self.overcommitted(), f"no over-commitment, not {self.overcommitted()}", limit_s)
        replica.wait_audited(limit_s)


def amounts_of(pod: dict[str, Any]) -> dict[str, int]:
    """What a simple pod asks for (no init containers, no overhead); tests make no others."""
    total = {"pods": 1}
    for container in pod["spec"]["containers"]:
        for kind, text in container.get("resources", {}).get("requests", {}).items():
            total[kind] = total.get(kind, 0) + _units(kind, text)
    return total


def is_ours(pod: dict[str, Any]) -> bool:
    return pod["spec"]["schedulerName"] in SCHEDULERS


def _bound_at(pod: dict[str, Any]) -> float:
    """To the second; a pod that was made with its node was bound then."""
    for condition in pod["status"].get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "True":
            return datetime.fromisoformat(condition["lastTransitionTime"]).timestamp()
    return datetime.fromisoformat(pod["metadata"]["creationTimestamp"]).timestamp()


def _units(kind: str, text: str) -> int:
    return parse_quantity(text, scale=1000 if kind == "cpu" else 1)


@contextmanager
def simulated_site(settings: DevSettings, **more: str) -> Iterator[Site]:
    """A cluster of our own, with our manifests applied; everything is gone at the end."""
    parts = needs_controlplane()
    above = Path(tempfile.mkdtemp(prefix="penstock-site-"))
    above.chmod(0o755)
    cluster = DevCluster(above / "cluster", replace(settings, apply=MANIFESTS), binaries=parts)
    try:
        with cluster:
            site = Site(
                above, cluster.kubeconfig, cluster.penstock_kubeconfig, parts.kubectl, cluster, **more
            )
            with _stopping(site):
                yield site
    finally:
        shutil.rmtree(above, ignore_errors=True)


@contextmanager
def site_of(kubeconfig: Path, **more: str) -> Iterator[Site]:
    """A cluster of somebody else: our manifests are applied to it, and stay."""
    parts = needs_controlplane()
    above = Path(tempfile.mkdtemp(prefix="penstock-site-"))
    above.chmod(0o755)
    site = Site(above, kubeconfig, above / "penstock.kubeconfig", parts.kubectl, None, **more)
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
        shutil.rmtree(above, ignore_errors=True)


@contextmanager
def _stopping(site: Site) -> Iterator[None]:
    try:
        yield
    finally:
        for replica in site.replicas:
            with contextlib.suppress(AssertionError):
                replica.stop()
            # The embedded database outlives a killed instance, for the next one to find.
            subprocess.run(
                [sys.executable, "-m", "penstock.cli", "stop", "--state", str(replica.state)],
                capture_output=True,
                check=False,
            )
            shutil.rmtree(paths_of(str(replica.state), os.environ).runtime, ignore_errors=True)
