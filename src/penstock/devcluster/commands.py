"""The command lines of the components, as functions of the cluster's layout.

All servers listen on 127.0.0.1 and require client certificates. The node lifecycle controller and the
admission plugin TaintNodesByCondition are enabled, as in any cluster: the plugin taints a new node as not
ready, and the controller removes the taint when the node is Ready. kwok simulates the kubelets and renews
their leases. The client rate limits are far above what one machine reaches, so that they do not distort
measurements.
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

__all__ = [
    "AUDIT_POLICY",
    "COMMANDS",
    "KWOK_LABEL",
    "ClusterLayout",
    "ServerPorts",
    "choose_ports",
    "write_stages",
]

KWOK_LABEL: Final = "kwok.x-k8s.io/node"  # kwok simulates a kubelet for nodes with this label
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
# Below the kernel's ephemeral port range: a client that reconnects while a server is down could otherwise be
# assigned the server's own port and keep the server from starting again.
_PORTS: Final = range(20_000, 32_000)
_PORT_TRIES: Final = 200
_JQ_PLACEHOLDER: Final = "@simulation@"
_VERSION_PLACEHOLDER: Final = "@kubernetes@"


@dataclass(frozen=True, slots=True)
class ServerPorts:
    api: int
    etcd: int
    etcd_peer: int


@dataclass(frozen=True, slots=True)
class ClusterLayout:
    """Directory, programs, credentials, ports and settings of one cluster."""

    directory: Path
    binaries: Binaries
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
    """Three free ports of 127.0.0.1."""
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
    raise Unavailable(f"cannot find three free ports from {_PORTS.start} to {_PORTS.stop} on 127.0.0.1")


def write_stages(path: Path) -> None:
    """Writes kwok's configuration and stages into one file, with the placeholders of the stages replaced."""
    folder = resources.files("penstock.devcluster") / "stages"
    lines = (folder / "simulation.jq").read_text("utf-8").splitlines()
    common = " ".join(line.strip() for line in lines if not line.startswith("#"))
    documents = [_KWOK_CONFIGURATION]
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            text = entry.read_text("utf-8").replace(_JQ_PLACEHOLDER, common)
            documents.append(text.replace(_VERSION_PLACEHOLDER, KUBERNETES_VERSION))
    path.write_text("---\n".join(documents), "utf-8")


def _etcd(layout: ClusterLayout) -> list[str]:
    credentials, url = layout.credentials, f"https://127.0.0.1:{layout.ports.etcd}"
    peer = f"https://127.0.0.1:{layout.ports.etcd_peer}"
    trusted, certificate, key = (
        credentials.certificate("etcd-ca"),
        credentials.certificate("etcd"),
        credentials.key("etcd"),
    )
    return [
        "--name=dev",
        f"--data-dir={layout.directory / 'etcd'}",
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


def _apiserver(layout: ClusterLayout) -> list[str]:
    credentials = layout.credentials
    argv = [
        f"--etcd-servers=https://127.0.0.1:{layout.ports.etcd}",
        f"--etcd-cafile={credentials.certificate('etcd-ca')}",
        f"--etcd-certfile={credentials.certificate('etcd-client')}",
        f"--etcd-keyfile={credentials.key('etcd-client')}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={layout.ports.api}",
        f"--cert-dir={layout.directory}",
        f"--tls-cert-file={credentials.certificate('kube-apiserver')}",
        f"--tls-private-key-file={credentials.key('kube-apiserver')}",
        f"--client-ca-file={credentials.certificate('ca')}",
        f"--requestheader-client-ca-file={credentials.certificate('ca')}",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--proxy-client-cert-file={credentials.certificate(FRONT_PROXY)}",
        f"--proxy-client-key-file={credentials.key(FRONT_PROXY)}",
        f"--service-account-key-file={credentials.directory / 'service-accounts.pub'}",
        f"--service-account-signing-key-file={credentials.key('service-accounts')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--authorization-mode=Node,RBAC",
        "--endpoint-reconciler-type=none",
        "--enable-admission-plugins=MutatingAdmissionWebhook,ValidatingAdmissionWebhook",
        "--allow-privileged=true",
        # By default a stopping server waits for its clients to close their watches.
        "--shutdown-watch-termination-grace-period=2s",
        "--max-requests-inflight=3000",
        "--max-mutating-requests-inflight=1000",
    ]
    if layout.settings.audit_log:
        argv += [f"--audit-policy-file={layout.audit_policy}", f"--audit-log-path={layout.audit_log}"]
    if layout.settings.native_gang:
        argv += [_GANG_GATES, _GANG_API]
    return argv


def _controller_manager(layout: ClusterLayout) -> list[str]:
    credentials = layout.credentials
    return [
        f"--kubeconfig={credentials.kubeconfig('kube-controller-manager')}",
        "--leader-elect=false",
        "--secure-port=0",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={credentials.key('service-accounts')}",
        f"--root-ca-file={credentials.certificate('ca')}",
        "--controllers=*,-node-ipam-controller",
        "--kube-api-qps=2000",
        "--kube-api-burst=4000",
        "--concurrent-job-syncs=20",
        *([_GANG_GATES] if layout.settings.native_gang else []),
    ]


def _scheduler(layout: ClusterLayout) -> list[str]:
    return [
        f"--kubeconfig={layout.credentials.kubeconfig('kube-scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
        "--kube-api-qps=10000",
        "--kube-api-burst=20000",
        *([_GANG_GATES] if layout.settings.native_gang else []),
    ]


def _kwok(layout: ClusterLayout) -> list[str]:
    return [
        f"--kubeconfig={layout.credentials.kubeconfig('kwok')}",
        f"--config={layout.stages}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-label-selector={KWOK_LABEL}=fake",
        f"--node-lease-duration-seconds={LEASE_S}",
        "--cidr=10.64.0.0/10",
    ]


COMMANDS: Final[dict[str, Callable[[ClusterLayout], list[str]]]] = {
    "etcd": _etcd,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
    "kwok": _kwok,
}
