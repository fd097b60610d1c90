"""The control plane of a measurement, and its nodes, pods and groups.

It is a development cluster without kwok. Its controller manager is restarted with a longer node monitor grace
period, because no kubelet renews the leases; otherwise it runs as usual. Objects are created and deleted with
as many requests in flight as Penstock itself uses.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from penstock.devcluster.cluster import DevCluster
from penstock.devcluster.nodes import is_usable, node_document
from penstock.devcluster.settings import DevSettings, NodeShape
from penstock.errors import Unavailable
from penstock.kube.access import from_kubeconfig
from penstock.kube.client import KubeClient
from penstock.kube.errors import AlreadyExists, NotFound
from penstock.kube.resources import NATIVE_PODGROUPS, NODES, PODS
from penstock.kube.types import KubeObject, Pod

__all__ = ["NAMESPACE", "NODE_CPUS", "Group", "Plane", "control_plane"]

NODE_CPUS: Final = 32
NAMESPACE: Final = "default"
_SHAPE: Final = NodeShape(cpu=str(NODE_CPUS), memory="256Gi", pods=110)
_MANIFESTS: Final = Path(__file__).resolve().parents[2] / "deploy"
_APPLIED: Final = (_MANIFESTS / "rbac.yaml", _MANIFESTS / "podgroup-crd.yaml")
_CONTROLLER_MANAGER: Final = "kube-controller-manager"
_PATIENT_MANAGER: Final = "patient-controller-manager"
_IN_FLIGHT: Final = 64
_TIMEOUT_S: Final = 60.0
_CLEAR_S: Final = 300.0
_CLEAR_PAUSE_S: Final = 1.0
_USABLE_S: Final = 300.0
_READY: Final = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "simulated"}

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Group:
    """Identical pods. `labels` make them a gang for Penstock, `is_native` one for kube-scheduler."""

    name: str
    size: int
    is_native: bool = False
    labels: dict[str, str] = field(default_factory=dict)

    def pods(self, scheduler: str, node: str = "") -> list[Document]:
        spec: Document = {
            "schedulerName": scheduler,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "work",
                    "image": "busybox",
                    "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                }
            ],
        }
        if node:
            spec["nodeName"] = node
        if self.is_native:
            spec["schedulingGroup"] = {"podGroupName": self.name}
        return [
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": f"{self.name}-{index}", "labels": self.labels},
                "spec": spec,
            }
            for index in range(self.size)
        ]

    def native(self) -> Document:
        return {
            "apiVersion": NATIVE_PODGROUPS.group_version,
            "kind": "PodGroup",
            "metadata": {"name": self.name},
            "spec": {"schedulingPolicy": {"gang": {"minCount": self.size}}},
        }


class Plane:
    def __init__(self, cluster: DevCluster, client: KubeClient, directory: Path, *, is_native: bool) -> None:
        self.cluster = cluster
        self.client = client
        self.directory = directory  # for state and logs of contenders
        self.is_native = is_native  # whether Kubernetes' own gang scheduling is enabled
        self.nodes = 0

    def processes(self) -> dict[str, int]:
        components = {"API server": "kube-apiserver", "etcd": "etcd", "kcm": _PATIENT_MANAGER}
        return {label: self.cluster.component(name).pid for label, name in components.items()}

    async def grow(self, nodes: int) -> None:
        """Creates nodes until there are `nodes`, and waits until all are usable."""
        documents = []
        for index in range(self.nodes, nodes):
            document = node_document(f"node-{index}", index, _SHAPE, "zone-0", {})
            document["status"]["conditions"] = [_READY]
            documents.append(document)
        await self._all(documents, lambda one: self._create(NODES.path(), one))
        self.nodes = max(self.nodes, nodes)
        deadline = asyncio.get_running_loop().time() + _USABLE_S
        while not await self._are_usable():
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"not all of the {self.nodes} nodes are usable after {_USABLE_S:g} s")
            await asyncio.sleep(0.5)

    async def _are_usable(self) -> bool:
        listed = await self.client.list(NODES.path(), dict)
        return sum(map(is_usable, listed.items)) >= self.nodes

    async def create(self, groups: Iterable[Group], scheduler: str) -> int:
        """Creates the pods of the groups, in order, and returns how many."""
        groups = list(groups)
        natives = [group.native() for group in groups if group.is_native]
        await self._all(natives, lambda one: self._create(NATIVE_PODGROUPS.path(NAMESPACE), one))
        documents = [pod for group in groups for pod in group.pods(scheduler)]
        await self.create_pods(documents)
        return len(documents)

    async def create_pods(self, documents: list[Document]) -> None:
        await self._all(documents, lambda one: self._create(PODS.path(NAMESPACE), one))

    async def _create(self, path: str, document: Document) -> None:
        """Retries a request without an answer: among tens of thousands a few time out."""
        for is_last in (False, False, True):
            try:
                await self.client.create(path, document)
            except AlreadyExists:
                return
            except Unavailable:
                if is_last:
                    raise
            else:
                return

    async def placed(self) -> dict[str, int]:
        """The number of pods per node."""
        counts: dict[str, int] = {}
        for pod in (await self.client.list(PODS.path(NAMESPACE), Pod)).items:
            if pod.spec.node_name:
                counts[pod.spec.node_name] = counts.get(pod.spec.node_name, 0) + 1
        return counts

    async def clear(self) -> None:
        """Deletes all pods and groups. Single deletes in parallel are faster than deleting the collection.

        Groups have a finalizer, which the controller manager removes at its own pace.
        """
        deadline = time.monotonic() + _CLEAR_S
        for resource in (PODS, NATIVE_PODGROUPS) if self.is_native else (PODS,):
            while (listed := await self.client.list(resource.path(NAMESPACE), KubeObject)).items:
                if time.monotonic() > deadline:
                    raise Unavailable(f"{len(listed.items)} {resource} are not deleted after {_CLEAR_S:g} s")
                live = [one.metadata for one in listed.items if one.metadata.deletion_timestamp is None]
                await self._all([resource.path(NAMESPACE, one.name) for one in live], self._delete)
                if not live:
                    await asyncio.sleep(_CLEAR_PAUSE_S)

    async def _delete(self, path: str) -> None:
        with suppress(NotFound, Unavailable):  # The next list shows what is left.
            await self.client.delete(path, grace_s=0)

    async def _all(self, items: Iterable[Any], act: Callable[[Any], Awaitable[None]]) -> None:
        left = iter(items)

        async def act_on_next() -> None:
            for item in left:
                await act(item)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(_IN_FLIGHT):
                    tasks.create_task(act_on_next())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from group  # The first error is enough to explain a failed measurement.


@asynccontextmanager
async def control_plane(*, is_native: bool, log: Callable[[str], None]) -> AsyncIterator[Plane]:
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    directory.chmod(0o711)  # The account that runs Penstock's database must be able to enter it.
    settings = DevSettings(nodes=0, native_gang=is_native, scheduler=False, audit_log=False, apply=_APPLIED)
    cluster = DevCluster(directory / "cluster", settings, progress=log)
    try:
        await asyncio.to_thread(cluster.start)
        cluster.stop_component("kwok")
        _restart_controller_manager(cluster)
        access = from_kubeconfig(cluster.kubeconfig)
        async with KubeClient(access, in_flight_max=_IN_FLIGHT, timeout_s=_TIMEOUT_S) as client:
            yield Plane(cluster, client, directory, is_native=is_native)
    finally:
        await asyncio.to_thread(cluster.stop)
        shutil.rmtree(directory, ignore_errors=True)


def _restart_controller_manager(cluster: DevCluster) -> None:
    """Restarts the controller manager with a grace period of a day for nodes without heartbeats."""
    pid = cluster.component(_CONTROLLER_MANAGER).pid
    argv = Path(f"/proc/{pid}/cmdline").read_text("utf-8").rstrip("\0").split("\0")
    cluster.stop_component(_CONTROLLER_MANAGER)
    cluster.start_program(_PATIENT_MANAGER, [*argv, "--node-monitor-grace-period=24h"])
