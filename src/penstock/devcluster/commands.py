"""The command lines of the parts, as functions of a directory, ports and settings.

Everything listens on 127.0.0.1 and asks for a certificate. The node lifecycle controller and the admission
plugin TaintNodesByCondition are both on, as in any cluster: the plugin taints a node that has just been made,
and the controller takes the taint off when the node is Ready. kwok plays the kubelets and renews their
leases. Rates of clients are far above what a machine can do, so that no limit of a client is measured.
"""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from penstock.devcluster.binaries import KUBERNETES_VERSION, Binaries
from penstock.devcluster.certificates import FRONT_PROXY, Credentials
from penstock.devcluster.settings import DevSettings
from penstock.errors import Unavailable

__all__ = ["AUDIT_POLICY", "COMMANDS", "KWOK_LABEL", "Ground", "ServerPorts", "choose_ports", "write_stages"]

KWOK_LABEL: Final = "kwok.x-k8s.io/node"  # a node without it has no kubelet
LEASE_S: Final = 40

AUDIT_POLICY: Final = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
"""

_KWOK_CONFIGURATION: Final = """\
apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  podPlayStageParallelism: 64
  nodePlayStageParallelism: 16
  nodeLeaseParallelism: 16
  podsOnNodeSyncParallelism: 4
"""
_GANG_GATES: Final = "--feature-gates=GenericWorkload=true,GangScheduling=true"
_GANG_API: Final = "--runtime-config=scheduling.k8s.io/v1alpha2=true"
# Below the ports that the kernel gives to outgoing connections: a client that tries to reach a server which
# is away could otherwise be given the server's own port, and would keep it from coming back.
_PORTS: Final = range(20_000, 32_000)
_PORT_TRIES: Final = 200
_JQ_MARK: Final = "@simulation@"
_VERSION_MARK: Final = "@kubernetes@"


@dataclass(frozen=True, slots=True)
class ServerPorts:
    api: int
    etcd: int
    etcd_peer: int


@dataclass(frozen=True, slots=True)
class Ground:
    """What a command line is made from."""

    directory: Path
    parts: Binaries
    credentials: Credentials
    ports: ServerPorts
    settings: DevSettings

    @property
    def audit_log(self) -> Path:
        return self.directory / "audit.log"

    @property
    def stages(self) -> Path:
        return self.directory / "stages.yaml"

    @property
    def audit_policy(self) -> Path:
        return self.directory / "audit-policy.yaml"


def choose_ports() -> ServerPorts:
    """Three ports of 127.0.0.1 that nobody listens on."""
    found: set[int] = set()
    for port in random.sample(_PORTS, _PORT_TRIES):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.add(port)
        if len(found) == 3:
            return ServerPorts(*found)
    raise Unavailable(f"no free ports between {_PORTS.start} and {_PORTS.stop} on 127.0.0.1")


def write_stages(path: Path) -> None:
    """Writes what kwok plays as one file: its settings, and our stages with their marks filled in."""
    folder = resources.files("penstock.devcluster") / "stages"
    lines = (folder / "simulation.jq").read_text("utf-8").splitlines()
    common = " ".join(line.strip() for line in lines if not line.startswith("#"))
    documents = [_KWOK_CONFIGURATION]
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            text = entry.read_text("utf-8").replace(_JQ_MARK, common)
            documents.append(text.replace(_VERSION_MARK, KUBERNETES_VERSION))
    path.write_text("---\n".join(documents), "utf-8")


def _etcd(ground: Ground) -> list[str]:
    given, url = ground.credentials, f"https://127.0.0.1:{ground.ports.etcd}"
    peer = f"https://127.0.0.1:{ground.ports.etcd_peer}"
    trusted, certificate, key = given.certificate("etcd-ca"), given.certificate("etcd"), given.key("etcd")
    return [
        "--name=dev",
        f"--data-dir={ground.directory / 'etcd'}",
        f"--listen-client-urls={url}",
        f"--advertise-client-urls={url}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=dev={peer}",
        "--client-cert-auth",
        f"--trusted-ca-file={trusted}",
        f"--cert-file={certificate}",
        f"--key-file={key}",
        "--peer-client-cert-auth",
        f"--peer-trusted-ca-file={trusted}",
        f"--peer-cert-file={certificate}",
        f"--peer-key-file={key}",
        "--log-level=warn",
    ]


def _apiserver(ground: Ground) -> list[str]:
    given = ground.credentials
    argv = [
        f"--etcd-servers=https://127.0.0.1:{ground.ports.etcd}",
        f"--etcd-cafile={given.certificate('etcd-ca')}",
        f"--etcd-certfile={given.certificate('etcd-client')}",
        f"--etcd-keyfile={given.key('etcd-client')}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={ground.ports.api}",
        f"--cert-dir={ground.directory}",
        f"--tls-cert-file={given.certificate('kube-apiserver')}",
        f"--tls-private-key-file={given.key('kube-apiserver')}",
        f"--client-ca-file={given.certificate('ca')}",
        f"--requestheader-client-ca-file={given.certificate('ca')}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={given.certificate(FRONT_PROXY)}",
        f"--proxy-client-key-file={given.key(FRONT_PROXY)}",
        f"--service-account-key-file={given.directory / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={given.key('service-accounts')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC",
        "--endpoint-reconciler-type=none",
        "--enable-admission-plugins=MutatingAdmissionWebhook,ValidatingAdmissionWebhook",
        "--allow-privileged=true",
        # Without it a server that is asked to end waits for its watches, which nobody closes.
        "--shutdown-watch-termination-grace-period=2s",
        "--max-requests-inflight=3000",
        "--max-mutating-requests-inflight=1000",
    ]
    if ground.settings.audit_log:
        argv += [f"--audit-policy-file={ground.audit_policy}", f"--audit-log-path={ground.audit_log}"]
    if ground.settings.native_gang:
        argv += [_GANG_GATES, _GANG_API]
    return argv


def _controller_manager(ground: Ground) -> list[str]:
    given = ground.credentials
    return [
        f"--kubeconfig={given.kubeconfig('kube-controller-manager')}",
        "--leader-elect=false",
        "--secure-port=0",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={given.key('service-accounts')}",
        f"--root-ca-file={given.certificate('ca')}",
        "--controllers=*,-node-ipam-controller",
        "--kube-api-qps=2000",
        "--kube-api-burst=4000",
        "--concurrent-job-syncs=20",
        *([_GANG_GATES] if ground.settings.native_gang else []),
    ]


def _scheduler(ground: Ground) -> list[str]:
    return [
        f"--kubeconfig={ground.credentials.kubeconfig('kube-scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=10000",
        "--kube-api-burst=20000",
        *([_GANG_GATES] if ground.settings.native_gang else []),
    ]


def _kwok(ground: Ground) -> list[str]:
    return [
        f"--kubeconfig={ground.credentials.kubeconfig('kwok')}",
        f"--config={ground.stages}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-label-selector={KWOK_LABEL}=fake",
        f"--node-lease-duration-seconds={LEASE_S}",
        "--cidr=10.64.0.0/10",
    ]


COMMANDS: Final[dict[str, Callable[[Ground], list[str]]]] = {
    "etcd": _etcd,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
    "kwok": _kwok,
}
