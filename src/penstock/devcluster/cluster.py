"""Runs a real control plane with simulated nodes on this machine. It starts in seconds and leaves no files.

etcd, API server, controller manager and scheduler are the real programs. kwok simulates the kubelets: the
annotations and the command of a pod determine how long it runs and how it exits (`stages`). All processes are
children of a reaper process (`reaper`), which stops them and removes the directory when the owner exits or
dies.

The API is synchronous, for tests and for a foreground command. A component that is stopped or killed keeps
its port and its data and can be started again; tests use that to inject faults.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.devcluster.binaries import Binaries, find_binaries
from penstock.devcluster.certificates import make_credentials
from penstock.devcluster.client import StatusError, SyncClient
from penstock.devcluster.commands import (
    AUDIT_POLICY,
    COMMANDS,
    KWOK_LABEL,
    ClusterLayout,
    choose_ports,
    write_stages,
)
from penstock.devcluster.nodes import is_usable, node_document
from penstock.devcluster.reaper import CleanupPaths, ProcessState, Reaper
from penstock.devcluster.settings import DevSettings, NodeShape
from penstock.errors import BadRequest, Conflict, Unavailable
from penstock.paths import make_private, passage_mode

__all__ = ["DevCluster", "KubectlFailed"]

_READY_S: Final = 90.0  # far more than a loaded machine needs
_STOP_S: Final = 20.0
_POLL_S: Final = 0.05
_KUBECTL_S: Final = 120.0
_LOG_TAIL_BYTES: Final = 2000
_SERVER: Final = "kube-apiserver"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class KubectlFailed(Conflict):
    """kubectl exited with an error code; `stderr` has its message."""

    def __init__(self, arguments: tuple[str, ...], code: int, stderr: str) -> None:
        self.code = code
        self.stderr = stderr
        super().__init__(f"kubectl {' '.join(arguments)}: exit {code}: {stderr.strip()}")


class DevCluster:
    """One cluster in one directory, which it creates and removes."""

    def __init__(
        self,
        directory: Path,
        settings: DevSettings | None = None,
        *,
        binaries: Binaries | None = None,
        progress: Callable[[str], None] | None = None,
        cleanup: CleanupPaths | None = None,
        inherited_fds: tuple[int, ...] = (),
    ) -> None:
        """`progress` is called with each step of the start. `cleanup` names files that are removed together
        with the directory. The reaper keeps `inherited_fds`, such as a lock, open until that is done.
        """
        self.directory = Path(os.path.abspath(directory))
        self.settings = settings or DevSettings()
        self._binaries = binaries
        self._progress = progress or (lambda _: None)
        self._cleanup = cleanup or CleanupPaths(())
        self._inherited_fds = inherited_fds
        self._reaper: Reaper | None = None
        self._layout: ClusterLayout | None = None
        self._api: SyncClient | None = None
        self._nodes_created = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """The kubeconfig of the cluster administrator."""
        return self._running_layout().credentials.kubeconfig("admin")

    @property
    def penstock_kubeconfig(self) -> Path:
        """The kubeconfig of Penstock's ServiceAccount, with the permissions that RBAC grants it."""
        return self._running_layout().credentials.kubeconfig("penstock")

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self._running_layout().ports.api}"

    @property
    def api(self) -> SyncClient:
        """A client with the credentials of the cluster administrator."""
        self._running_layout()
        assert self._api is not None
        return self._api

    @property
    def audit_log(self) -> Path:
        """The audit log of the API server: one line of JSON per completed request."""
        return self._running_layout().audit_log

    @property
    def logs(self) -> Path:
        """The directory of the components' output, `<component>.log`."""
        return self.directory / "logs"

    def start(self) -> None:
        """Returns when pods can be created and all nodes are usable. A failed start leaves no files."""
        if self._reaper is not None:
            raise Conflict(f"the cluster in {self.directory} is already started")
        binaries = self._binaries or find_binaries()
        if self.directory.is_dir() and any(self.directory.iterdir()):
            raise Conflict(
                f"{self.directory} is not empty; a development cluster needs a new or empty directory, "
                "which it removes when it ends"
            )
        make_private(self.directory, passage_mode())
        cleanup = replace(self._cleanup, trees=(self.directory, *self._cleanup.trees))
        self._reaper = Reaper(cleanup, self._inherited_fds)
        try:
            self._start(binaries)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stops all components and removes the directory. Idempotent."""
        reaper, self._reaper, self._layout = self._reaper, None, None
        if self._api is not None:
            self._api.close()
            self._api = None
        if reaper is not None:
            reaper.close()

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - the name that subprocess uses
        """The output of kubectl, run as the cluster administrator. Raises `KubectlFailed` if it fails."""
        layout = self._running_layout()
        done = subprocess.run(
            [layout.binaries.kubectl, "--kubeconfig", self.kubeconfig, *arguments],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=_KUBECTL_S,
            check=False,
            env={**os.environ, "KUBECACHEDIR": str(self.directory / "kubectl")},
        )
        if done.returncode != 0:
            raise KubectlFailed(arguments, done.returncode, done.stderr)
        return done.stdout

    def add_nodes(
        self,
        count: int,
        *,
        shape: NodeShape | None = None,
        labels: Mapping[str, str] | None = None,
        prefix: str = "node",
        wait: bool = True,
    ) -> list[str]:
        """Creates nodes named `<prefix>-<number>`, numbered on from the last call. Returns when they are
        usable, or at once without `wait`."""
        zones = max(1, self.settings.zones)
        names = []
        for index in range(self._nodes_created, self._nodes_created + count):
            name = f"{prefix}-{index}"
            zone = f"zone-{index % zones}"
            document = node_document(name, index, shape or self.settings.shape, zone, labels or {})
            self.api.post("/api/v1/nodes", document)
            names.append(name)
        self._nodes_created += count
        if wait:
            self._wait(f"{count} nodes to be usable", lambda: self._are_usable(names))
        return names

    def stop_kubelet(self, name: str) -> None:
        """Simulates a dead kubelet: the node's lease is not renewed, pods on it neither start nor terminate.

        The controller manager marks the node NotReady after 50 s. A pod whose end is already scheduled in
        kwok still ends; give it `penstock.dev/sim-run: inf` to avoid that.
        """
        self._label_node(name, None)

    def start_kubelet(self, name: str) -> None:
        self._label_node(name, "fake")

    def component(self, name: str) -> ProcessState:
        """The state of a component or program. Raises `Unavailable` if it was never started."""
        return self._running_reaper().state(name)

    def stop_component(self, name: str) -> None:
        """Sends SIGTERM to a component and waits until it exits."""
        self._running_reaper().stop(_known(name), signal.SIGTERM, _STOP_S)

    def kill_component(self, name: str) -> None:
        self._running_reaper().stop(_known(name), signal.SIGKILL, _STOP_S)

    def start_component(self, name: str) -> None:
        """Starts a component with its port and data. For the API server it returns when that is ready."""
        if name == "kwok" and self.component(name).exit_code is not None:
            self._delete_node_leases()
        self._launch(_known(name))
        if name == _SERVER:
            self._wait("the API server to be ready", self._is_ready, (_SERVER,))

    def start_program(self, name: str, argv: list[str]) -> ProcessState:
        """Starts another program. When the cluster ends, it sends SIGINT to it and waits for its exit."""
        return self._running_reaper().start(name, argv, self.logs / f"{name}.log", signal.SIGINT)

    def log_tail(self, name: str) -> str:
        """The end of the output of a component or program."""
        try:
            text = (self.logs / f"{name}.log").read_text("utf-8", "replace")
        except OSError:
            return "no log file"
        return text[-_LOG_TAIL_BYTES:].strip() or "empty log file"

    def _start(self, binaries: Binaries) -> None:
        ports = choose_ports()
        self.logs.mkdir(mode=0o700)
        credentials = make_credentials(self.directory / "credentials", f"https://127.0.0.1:{ports.api}")
        self._layout = layout = ClusterLayout(self.directory, binaries, credentials, ports, self.settings)
        layout.audit_policy.write_text(AUDIT_POLICY, "utf-8")
        write_stages(layout.stages)
        self._api = SyncClient(credentials.kubeconfig("admin"))
        self._launch("etcd")
        self._launch(_SERVER)  # The API server itself waits for etcd.
        self._wait("the API server to be ready", self._is_ready, ("etcd", _SERVER))
        names = ["kube-controller-manager", "kwok", *(["kube-scheduler"] if self.settings.scheduler else [])]
        for name in names:
            self._launch(name)
        created = self.add_nodes(self.settings.nodes, wait=False)
        if self.settings.apply:
            self._progress("applying manifests")
            self.kubectl("apply", *(f"--filename={path}" for path in self.settings.apply))
        running = ("etcd", _SERVER, *names)
        self._wait("the default ServiceAccount", self._has_default_account, running)
        self._wait(f"{len(created)} nodes to be usable", lambda: self._are_usable(created), running)

    def _launch(self, name: str) -> None:
        layout = self._running_layout()
        argv = [str(layout.binaries.path(name)), *COMMANDS[name](layout)]
        self._running_reaper().start(name, argv, self.logs / f"{name}.log")

    def _wait(self, goal: str, is_reached: Callable[[], bool], needs: tuple[str, ...] = ()) -> None:
        """Waits for a condition; fails early when one of the components that it needs has exited."""
        self._progress(f"waiting for {goal}")
        until = time.monotonic() + _READY_S
        while not is_reached():
            for name in needs:
                state = self.component(name)
                if state.exit_code is not None:
                    raise Unavailable(f"{name} exited with code {state.exit_code}: {self.log_tail(name)}")
            if time.monotonic() > until:
                tails = "; ".join(f"{name}: {self.log_tail(name)}" for name in needs)
                raise Unavailable(f"timed out after {_READY_S:g} s waiting for {goal}; {tails}")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        try:
            self.api.get("/readyz")
        except (StatusError, Unavailable):
            return False
        return True

    def _has_default_account(self) -> bool:
        try:
            self.api.get("/api/v1/namespaces/default/serviceaccounts/default")
        except (StatusError, Unavailable):
            return False
        return True

    def _label_node(self, name: str, value: str | None) -> None:
        body = {"metadata": {"labels": {KWOK_LABEL: value}}}
        self.api.request("PATCH", f"/api/v1/nodes/{name}", body, "application/merge-patch+json")

    def _are_usable(self, names: list[str]) -> bool:
        found = {node["metadata"]["name"]: node for node in self.api.get("/api/v1/nodes")["items"]}
        return all(name in found and is_usable(found[name]) for name in names)

    def _delete_node_leases(self) -> None:
        """kwok gets another identity at each start and would wait for its previous leases to expire."""
        needs = ("etcd", _SERVER)
        if all(self.component(name).exit_code is None for name in needs):
            self._wait("the API server to be ready", self._is_ready, needs)
            self.api.delete(_LEASES)

    def _running_layout(self) -> ClusterLayout:
        if self._layout is None:
            raise Conflict(f"the cluster in {self.directory} is not running")
        return self._layout

    def _running_reaper(self) -> Reaper:
        if self._reaper is None:
            raise Conflict(f"the cluster in {self.directory} is not running")
        return self._reaper


def _known(name: str) -> str:
    if name not in COMMANDS:
        raise BadRequest("unknown component", found=name, expected=f"one of {', '.join(COMMANDS)}")
    return name
