"""Helpers of the fault tests: gangs and foreign pods as objects, failpoints, and the checks after a fault.

A gang here fills the cluster: each of its pods requests more than half a node. Resources that a fault leaks
or books twice therefore keep the next gang from starting, which `check_next_gang` detects.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.devcluster.client import StatusError, SyncClient
from penstock.errors import Unavailable
from tests.kubernetes.site import Replica, Site, wait_for

__all__ = [
    "UNLIMITED",
    "Binding",
    "Failpoints",
    "api_of",
    "bare_gang",
    "bindings",
    "check_bound_once",
    "check_next_gang",
    "clean_namespace",
    "create",
    "delete_lease",
    "foreign_pod",
    "incomplete_reasons",
    "job_gang",
    "new_namespace",
    "phases",
    "replica_set_gang",
    "wait_all_bound",
    "wait_phases",
]

Document = dict[str, Any]

UNLIMITED = "inf"
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/penstock-system/leases/penstock"
_CREDENTIAL = "authentication.kubernetes.io/credential-id"


def api_of(site: Site) -> SyncClient:
    assert site.cluster is not None
    return site.cluster.api


# Objects


def _spec(cpu: str, scheduler: str) -> Document:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    return {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }


def bare_gang(name: str, size: int = 3, *, cpu: str = "3", run: str = "1s", **more: str) -> list[Document]:
    """Pods without a controller that form one group; `more` are further penstock.dev annotations."""
    annotations = {
        "penstock.dev/group": name,
        "penstock.dev/group-size": str(size),
        "penstock.dev/sim-run": run,
        **{f"penstock.dev/{key.replace('_', '-')}": value for key, value in more.items()},
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": f"{name}-{index}", "annotations": dict(annotations)},
            "spec": _spec(cpu, "penstock"),
        }
        for index in range(size)
    ]


def job_gang(name: str, size: int = 3, *, cpu: str = "3", run: str = "1s", **more: str) -> Document:
    annotations = {
        "penstock.dev/sim-run": run,
        **{f"penstock.dev/{key.replace('_', '-')}": value for key, value in more.items()},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": size,
            "parallelism": size,
            "completionMode": "Indexed",
            "backoffLimit": 20,
            "template": {"metadata": {"annotations": annotations}, "spec": _spec(cpu, "penstock")},
        },
    }


def replica_set_gang(name: str, size: int = 3, *, cpu: str = "3", **more: str) -> Document:
    """A ReplicaSet: its pods run without end, and it replaces a missing pod at once."""
    annotations = {f"penstock.dev/{key.replace('_', '-')}": value for key, value in more.items()}
    labels = {"gang": name}
    spec = {**_spec(cpu, "penstock"), "restartPolicy": "Always"}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": size,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": spec},
        },
    }


def foreign_pod(name: str, *, cpu: str = "3", node: str = "", run: str = UNLIMITED) -> Document:
    """A pod of another scheduler: created with a nodeName, or left to the default scheduler."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"penstock.dev/sim-run": run}},
        "spec": {**_spec(cpu, "default-scheduler"), **({"nodeName": node} if node else {})},
    }


def create(site: Site, namespace: str, *documents: Document) -> None:
    for document in documents:
        version = document["apiVersion"]
        group = f"apis/{version}" if "/" in version else f"api/{version}"
        plural = f"{document['kind'].lower()}s"
        api_of(site).post(f"/{group}/namespaces/{namespace}/{plural}", document)


# The state of pods


def pods(site: Site, namespace: str, prefix: str = "") -> list[Document]:
    found = api_of(site).get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [pod for pod in found if pod["metadata"]["name"].startswith(prefix)]


def phases(site: Site, namespace: str, prefix: str = "") -> Counter[str]:
    """The number of pods by phase; a pending pod with a node counts as `Bound`."""

    def phase(pod: Document) -> str:
        reported = str(pod["status"]["phase"])
        return "Bound" if reported == "Pending" and pod["spec"].get("nodeName") else reported

    return Counter(phase(pod) for pod in pods(site, namespace, prefix))


def wait_phases(site: Site, namespace: str, prefix: str = "", limit_s: float = 60.0, **wanted: int) -> None:
    """Waits until each named phase has the wanted number of pods; other phases are ignored."""

    def is_reached() -> bool:
        with contextlib.suppress(StatusError, Unavailable):
            found = phases(site, namespace, prefix)
            return all(found[phase] == count for phase, count in wanted.items())
        return False

    try:
        wait_for(is_reached, f"{prefix or 'pods'} to be {wanted}", limit_s)
    except AssertionError as error:
        logs = "\n".join(replica.log_tail(25) for replica in site.replicas)
        raise AssertionError(f"{error}; they are {phases(site, namespace, prefix)}; {logs}") from None


def wait_all_bound(site: Site, namespace: str, prefix: str = "", limit_s: float = 60.0) -> dict[str, str]:
    """Waits until all pods are bound. Returns the node by pod name."""

    def nodes_by_pod() -> dict[str, str]:
        found = {
            pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods(site, namespace, prefix)
        }
        return found if found and all(found.values()) else {}

    bound: dict[str, str] = wait_for(nodes_by_pod, f"{prefix or 'pods'} to be bound", limit_s)
    return bound


def incomplete_reasons(replica: Replica) -> list[str]:
    return [job["incomplete_reason"] for job in replica.jobs() if job["incomplete_reason"]]


# Requests in the audit log of the API server


@dataclass(frozen=True, slots=True)
class Binding:
    pod: str  # NAMESPACE/NAME
    code: int
    credential: str  # the credential id of the client
    at: str  # timestamp of the audit log


def audited(site: Site, since: int = 0) -> Iterator[Document]:
    assert site.cluster is not None
    with site.cluster.audit_log.open("rb") as log:
        log.seek(since)
        for line in log:
            with contextlib.suppress(ValueError):  # A killed API server can leave an incomplete line.
                yield json.loads(line)


def credential_of(request: Document) -> str:
    return str(request["user"].get("extra", {}).get(_CREDENTIAL, [""])[0])


def bindings(site: Site, namespace: str) -> list[Binding]:
    found = []
    for request in audited(site):
        about = request.get("objectRef", {})
        if about.get("subresource") == "binding" and about.get("namespace") == namespace:
            code = request.get("responseStatus", {}).get("code", 0)
            at = str(request["requestReceivedTimestamp"])
            found.append(Binding(f"{namespace}/{about['name']}", code, credential_of(request), at))
    return found


def check_bound_once(site: Site, namespace: str) -> None:
    """Every pod of the namespace was bound, and none was bound twice.

    The server records 504 for a binding whose client was killed before the answer, also if the pod was bound
    by it: such a pod has a node, and no other binding of it succeeded.
    """
    requests = bindings(site, namespace)
    done = Counter(one.pod for one in requests if one.code == 201)
    assert set(done.values()) <= {1}, done
    cut_off = {one.pod for one in requests if one.code == 504}
    on_node = {
        f"{namespace}/{pod['metadata']['name']}": bool(pod["spec"].get("nodeName"))
        for pod in pods(site, namespace)
    }
    assert all(on_node.values()), (on_node, requests)
    assert on_node.keys() <= done.keys() | cut_off, (on_node.keys() - done.keys(), requests)


# Crashes and restarts


@dataclass(frozen=True, slots=True)
class Failpoints:
    """Failpoints that can be armed in a running Penstock: a file per armed failpoint."""

    directory: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"PENSTOCK_FAILPOINTS": f"@{self.directory}"}

    def arm(self, point: str) -> None:
        (self.directory / point).touch()


def delete_lease(site: Site) -> None:
    """Deletes the lease of a Penstock that is known to be dead, so that the next one need not wait for it."""
    with contextlib.suppress(StatusError):
        api_of(site).delete(_LEASE)


def restart(replica: Replica, **environ: str) -> Replica:
    assert not replica.is_alive()
    delete_lease(replica.site)
    return replica.start(**environ)


# Checks after a fault


def check_next_gang(site: Site, namespace: str) -> None:
    """Checks that a gang that needs the whole cluster can start, so no resources have leaked."""
    name = f"next{time.monotonic_ns()}"
    create(site, namespace, *bare_gang(name, run="100ms"))
    wait_phases(site, namespace, name, Succeeded=3)


@contextmanager
def clean_namespace(site: Site, replica: Replica) -> Iterator[str]:
    """A namespace for one test. At the end its pods are deleted and Penstock has no active jobs."""
    with new_namespace(site) as namespace:
        yield namespace
    wait_for(lambda: not pods(site, namespace), f"{namespace} to be empty", 60.0)
    wait_for(lambda: not replica.jobs(), "no jobs to be left", 60.0)


@contextmanager
def new_namespace(site: Site) -> Iterator[str]:
    api, name = api_of(site), f"t-{uuid.uuid4().hex[:8]}"
    api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_for(lambda: _exists(api, account), "the default ServiceAccount", 120.0)
    try:
        yield name
    finally:
        at_once = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        api.delete(f"/apis/batch/v1/namespaces/{name}/jobs", at_once)
        api.delete(f"/apis/apps/v1/namespaces/{name}/replicasets", at_once)
        api.delete(f"/api/v1/namespaces/{name}/pods", at_once)
        api.delete(f"/api/v1/namespaces/{name}")


def _exists(api: SyncClient, path: str) -> bool:
    with contextlib.suppress(StatusError):
        return bool(api.get(path))
    return False
