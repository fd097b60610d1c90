"""A real control plane on this machine, with simulated nodes: started in seconds, gone without a trace.

etcd, API server, controller manager and scheduler are the real programs; kwok plays the kubelets, and how a
pod fares is said by its annotations and its command (`stages`). All of them are children of a guardian
process (`reaper`), which ends them and removes the directory when the owner is gone, however that happened.

The API is synchronous, for tests and for a command in the foreground. A part that is stopped or killed keeps
its port and its data and can be started again, which is how faults are made.
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

from penstock.devcluster.api import Api, ApiRefused
from penstock.devcluster.binaries import Binaries, find_binaries
from penstock.devcluster.certificates import make_credentials
from penstock.devcluster.commands import (
    AUDIT_POLICY,
    COMMANDS,
    KWOK_LABEL,
    Ground,
    choose_ports,
    write_stages,
)
from penstock.devcluster.nodes import is_usable, node_document
from penstock.devcluster.reaper import Leaves, PartState, Reaper
from penstock.devcluster.settings import DevSettings, NodeShape
from penstock.errors import BadRequest, Conflict, Unavailable
from penstock.paths import make_private, private_mode

__all__ = ["DevCluster", "KubectlFailed"]

_READY_S: Final = 90.0  # many times what a loaded machine needs
_STOP_S: Final = 20.0
_POLL_S: Final = 0.05
_KUBECTL_S: Final = 120.0
_LOG_TAIL_BYTES: Final = 2000
_SERVER: Final = "kube-apiserver"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"


class KubectlFailed(Conflict):
    """kubectl ended with an error, which `stderr` tells."""

    def __init__(self, arguments: tuple[str, ...], code: int, stderr: str) -> None:
        self.code = code
        self.stderr = stderr
        super().__init__(f"kubectl {' '.join(arguments)}: exit {code}: {stderr.strip()}")


class DevCluster:
    """One cluster in one directory, which it makes and removes."""

    def __init__(
        self,
        directory: Path,
        settings: DevSettings | None = None,
        *,
        parts: Binaries | None = None,
        progress: Callable[[str], None] | None = None,
        leaves: Leaves | None = None,
        keeps_open: tuple[int, ...] = (),
    ) -> None:
        """`progress` hears what is waited for. What else goes with the directory, whoever ends the cluster,
        is in `leaves`; descriptors in `keeps_open`, such as that of a lock, stay open until all is removed.
        """
        self.directory = Path(os.path.abspath(directory))
        self.settings = settings or DevSettings()
        self._parts = parts
        self._progress = progress or (lambda _: None)
        self._leaves = leaves or Leaves(())
        self._keeps_open = keeps_open
        self._reaper: Reaper | None = None
        self._ground: Ground | None = None
        self._api: Api | None = None
        self._nodes_made = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """Of somebody who may do everything."""
        return self._there().credentials.kubeconfig("admin")

    @property
    def penstock_kubeconfig(self) -> Path:
        """Of Penstock's ServiceAccount: what RBAC gives it, it may do."""
        return self._there().credentials.kubeconfig("penstock")

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self._there().ports.api}"

    @property
    def api(self) -> Api:
        """As somebody who may do everything."""
        self._there()
        assert self._api is not None
        return self._api

    @property
    def audit_log(self) -> Path:
        """A line of JSON for each request that was answered."""
        return self._there().audit_log

    @property
    def logs(self) -> Path:
        """The directory of what the parts print, `<part>.log`."""
        return self.directory / "logs"

    def start(self) -> None:
        """Returns when pods can be made and all nodes are usable. What fails leaves nothing behind."""
        if self._reaper is not None:
            raise Conflict(f"the cluster in {self.directory} has been started already")
        parts = self._parts or find_binaries()
        if self.directory.is_dir() and any(self.directory.iterdir()):
            raise Conflict(
                f"{self.directory} is not empty; a development cluster wants a directory that it can remove"
            )
        make_private(self.directory, private_mode())
        leaves = replace(self._leaves, trees=(self.directory, *self._leaves.trees))
        self._reaper = Reaper(leaves, self._keeps_open)
        try:
            self._start(parts)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Ends all parts and removes the directory. Can be called again."""
        reaper, self._reaper, self._ground = self._reaper, None, None
        if self._api is not None:
            self._api.close()
            self._api = None
        if reaper is not None:
            reaper.close()

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002 - as subprocess has it
        """What kubectl prints, as somebody who may do everything; `KubectlFailed` if it fails."""
        ground = self._there()
        done = subprocess.run(
            [ground.parts.kubectl, "--kubeconfig", self.kubeconfig, *arguments],
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
        """Makes nodes named `<prefix>-<number>`, going on where the last call ended; returns when they are
        usable, unless `wait` is off."""
        zones = max(1, self.settings.zones)
        names = []
        for index in range(self._nodes_made, self._nodes_made + count):
            name = f"{prefix}-{index}"
            zone = f"zone-{index % zones}"
            document = node_document(name, index, shape or self.settings.shape, zone, labels or {})
            self.api.post("/api/v1/nodes", document)
            names.append(name)
        self._nodes_made += count
        if wait:
            self._wait(f"{count} nodes to be usable", lambda: self._are_usable(names))
        return names

    def silence_node(self, name: str) -> None:
        """Lets the kubelet of a node die: its lease is not renewed, pods on it neither start nor go.

        It takes the controller manager 50 s to say so. A pod that was already to end still does: give it
        `penstock.dev/sim-run: inf`.
        """
        self._label_node(name, None)

    def wake_node(self, name: str) -> None:
        self._label_node(name, "fake")

    def part(self, name: str) -> PartState:
        """How a part is; `Unavailable` for one that was never started."""
        return self._guard().ask(name)

    def stop_part(self, name: str) -> None:
        """Asks a part to end and waits for it."""
        self._guard().end(_known(name), signal.SIGTERM, _STOP_S)

    def kill_part(self, name: str) -> None:
        self._guard().end(_known(name), signal.SIGKILL, _STOP_S)

    def start_part(self, name: str) -> None:
        """Starts a part with its port and its data; for the API server, returns when it is ready."""
        if name == "kwok" and self.part(name).exit_code is not None:
            self._free_leases()
        self._launch(_known(name))
        if name == _SERVER:
            self._wait("the API server to be ready", self._is_ready, (_SERVER,))

    def start_program(self, name: str, argv: list[str]) -> PartState:
        """Starts a program that is interrupted and waited for when the cluster ends."""
        return self._guard().start(name, argv, self.logs / f"{name}.log", signal.SIGINT)

    def log_tail(self, name: str) -> str:
        """The last things that a part or a program printed."""
        try:
            text = (self.logs / f"{name}.log").read_text("utf-8", "replace")
        except OSError:
            return "it has no log"
        return text[-_LOG_TAIL_BYTES:].strip() or "its log is empty"

    def _start(self, parts: Binaries) -> None:
        ports = choose_ports()
        self.logs.mkdir(mode=0o700)
        credentials = make_credentials(self.directory / "credentials", f"https://127.0.0.1:{ports.api}")
        self._ground = ground = Ground(self.directory, parts, credentials, ports, self.settings)
        ground.audit_policy.write_text(AUDIT_POLICY, "utf-8")
        write_stages(ground.stages)
        self._api = Api(credentials.kubeconfig("admin"))
        self._launch("etcd")
        self._launch(_SERVER)  # which waits for etcd by itself
        self._wait("the API server to be ready", self._is_ready, ("etcd", _SERVER))
        names = ["kube-controller-manager", "kwok", *(["kube-scheduler"] if self.settings.scheduler else [])]
        for name in names:
            self._launch(name)
        made = self.add_nodes(self.settings.nodes, wait=False)
        if self.settings.apply:
            self._progress("applying manifests")
            self.kubectl("apply", *(f"--filename={path}" for path in self.settings.apply))
        running = ("etcd", _SERVER, *names)
        self._wait("the default ServiceAccount", self._has_default_account, running)
        self._wait(f"{len(made)} nodes to be usable", lambda: self._are_usable(made), running)

    def _launch(self, name: str) -> None:
        ground = self._there()
        argv = [str(ground.parts.path(name)), *COMMANDS[name](ground)]
        self._guard().start(name, argv, self.logs / f"{name}.log")

    def _wait(self, what: str, is_so: Callable[[], bool], parts: tuple[str, ...] = ()) -> None:
        """Waits until something is so; gives up when one of the parts that it needs has ended."""
        self._progress(f"waiting for {what}")
        until = time.monotonic() + _READY_S
        while not is_so():
            for name in parts:
                state = self.part(name)
                if state.exit_code is not None:
                    raise Unavailable(f"{name} ended with {state.exit_code}: {self.log_tail(name)}")
            if time.monotonic() > until:
                tails = "; ".join(f"{name}: {self.log_tail(name)}" for name in parts)
                raise Unavailable(f"waited {_READY_S:g} s in vain for {what}; {tails}")
            time.sleep(_POLL_S)

    def _is_ready(self) -> bool:
        try:
            self.api.get("/readyz")
        except (ApiRefused, Unavailable):
            return False
        return True

    def _has_default_account(self) -> bool:
        try:
            self.api.get("/api/v1/namespaces/default/serviceaccounts/default")
        except (ApiRefused, Unavailable):
            return False
        return True

    def _label_node(self, name: str, value: str | None) -> None:
        body = {"metadata": {"labels": {KWOK_LABEL: value}}}
        self.api.request("PATCH", f"/api/v1/nodes/{name}", body, "application/merge-patch+json")

    def _are_usable(self, names: list[str]) -> bool:
        found = {node["metadata"]["name"]: node for node in self.api.get("/api/v1/nodes")["items"]}
        return all(name in found and is_usable(found[name]) for name in names)

    def _free_leases(self) -> None:
        """kwok has another identity each time it starts, and would wait for the leases of its former self."""
        if self._is_ready():
            self.api.delete(_LEASES)

    def _there(self) -> Ground:
        if self._ground is None:
            raise Conflict(f"the cluster in {self.directory} is not running")
        return self._ground

    def _guard(self) -> Reaper:
        if self._reaper is None:
            raise Conflict(f"the cluster in {self.directory} is not running")
        return self._reaper


def _known(name: str) -> str:
    if name not in COMMANDS:
        raise BadRequest("no such part", found=name, expected=f"one of {', '.join(COMMANDS)}")
    return name
