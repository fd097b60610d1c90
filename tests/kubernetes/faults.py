"""What tests of faults are made of: gangs and strangers as documents, deaths, and the verdict afterwards.

A gang here fills the cluster: each of its pods asks for more than half a node. So whatever a fault leaks or
books twice keeps the next gang from starting, and nobody has to look for it.
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
    "ENDLESS",
    "Binding",
    "Points",
    "a_namespace",
    "api_of",
    "bare_gang",
    "bindings",
    "bound_once",
    "broken",
    "check_next_gang",
    "create",
    "foreign_pod",
    "free_lease",
    "job_gang",
    "missing",
    "one_cluster",
    "phases",
    "set_gang",
    "wait_phases",
    "wait_placed",
]

Doc = dict[str, Any]

ENDLESS = "inf"
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/penstock-system/leases/penstock"
_CREDENTIAL = "authentication.kubernetes.io/credential-id"


def api_of(site: Site) -> SyncClient:
    assert site.cluster is not None
    return site.cluster.api


# Documents


def _spec(cpu: str, scheduler: str) -> Doc:
    container = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": cpu}}}
    return {
        "schedulerName": scheduler,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }


def bare_gang(name: str, size: int = 3, *, cpu: str = "3", run: str = "1s", **said: str) -> list[Doc]:
    """Pods without an owner that are one group; `said` are more annotations of ours."""
    annotations = {
        "penstock.dev/group": name,
        "penstock.dev/group-size": str(size),
        "penstock.dev/sim-run": run,
        **{f"penstock.dev/{key.replace('_', '-')}": value for key, value in said.items()},
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


def job_gang(name: str, size: int = 3, *, cpu: str = "3", run: str = "1s", **said: str) -> Doc:
    annotations = {
        "penstock.dev/sim-run": run,
        **{f"penstock.dev/{key.replace('_', '-')}": value for key, value in said.items()},
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


def set_gang(name: str, size: int = 3, *, cpu: str = "3", **said: str) -> Doc:
    """A ReplicaSet: its pods run for ever, and whoever is missing is made again at once."""
    annotations = {f"penstock.dev/{key.replace('_', '-')}": value for key, value in said.items()}
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


def foreign_pod(name: str, *, cpu: str = "3", node: str = "", run: str = ENDLESS) -> Doc:
    """Of nobody we know: on its node from the start, or for the default scheduler."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {"penstock.dev/sim-run": run}},
        "spec": {**_spec(cpu, "default-scheduler"), **({"nodeName": node} if node else {})},
    }


def create(site: Site, namespace: str, *documents: Doc) -> None:
    for document in documents:
        version = document["apiVersion"]
        group = f"apis/{version}" if "/" in version else f"api/{version}"
        plural = f"{document['kind'].lower()}s"
        api_of(site).post(f"/{group}/namespaces/{namespace}/{plural}", document)


# How pods are


def pods(site: Site, namespace: str, prefix: str = "") -> list[Doc]:
    found = api_of(site).get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [pod for pod in found if pod["metadata"]["name"].startswith(prefix)]


def phases(site: Site, namespace: str, prefix: str = "") -> Counter[str]:
    """How many pods are in which phase; one that is bound and not started yet is `Bound`."""

    def phase(pod: Doc) -> str:
        told = str(pod["status"]["phase"])
        return "Bound" if told == "Pending" and pod["spec"].get("nodeName") else told

    return Counter(phase(pod) for pod in pods(site, namespace, prefix))


def wait_phases(site: Site, namespace: str, prefix: str = "", limit_s: float = 60.0, **wanted: int) -> None:
    """Until as many pods as wanted are in each phase, whatever others there are."""

    def holds() -> bool:
        with contextlib.suppress(StatusError, Unavailable):
            found = phases(site, namespace, prefix)
            return all(found[phase] == count for phase, count in wanted.items())
        return False

    try:
        wait_for(holds, f"{prefix or 'pods'} to be {wanted}", limit_s)
    except AssertionError as error:
        logs = "\n".join(replica.log_tail(25) for replica in site.replicas)
        raise AssertionError(f"{error}; they are {phases(site, namespace, prefix)}; {logs}") from None


def wait_placed(site: Site, namespace: str, prefix: str = "", limit_s: float = 60.0) -> dict[str, str]:
    """Until all are on nodes; pod -> node."""

    def holds() -> dict[str, str]:
        found = {
            pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods(site, namespace, prefix)
        }
        return found if found and all(found.values()) else {}

    placed: dict[str, str] = wait_for(holds, f"{prefix or 'pods'} to be on nodes", limit_s)
    return placed


def broken(replica: Replica) -> list[str]:
    return [job["incomplete_reason"] for job in replica.jobs() if job["incomplete_reason"]]


# What the API server was asked


@dataclass(frozen=True, slots=True)
class Binding:
    pod: str  # NAMESPACE/NAME
    code: int
    credential: str  # who has sent it
    at: str  # as the server writes times


def audited(site: Site, since: int = 0) -> Iterator[Doc]:
    assert site.cluster is not None
    with site.cluster.audit_log.open("rb") as log:
        log.seek(since)
        for line in log:
            with contextlib.suppress(ValueError):  # A server that was killed leaves half a line.
                yield json.loads(line)


def credential_of(request: Doc) -> str:
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


def bound_once(site: Site, namespace: str) -> None:
    """Every pod of the namespace was bound, and none was bound twice.

    The API server may complete a binding whose client was killed, and still log it as timed out (504): such a
    pod has no 201.
    """
    requests = bindings(site, namespace)
    done = Counter(one.pod for one in requests if one.code == 201)
    assert set(done.values()) <= {1}, done
    interrupted = {one.pod for one in requests if one.code in (0, 504)}
    existing = {f"{namespace}/{pod['metadata']['name']}" for pod in pods(site, namespace)}
    assert existing <= done.keys() | interrupted, requests


# Deaths


@dataclass(frozen=True, slots=True)
class Points:
    """Failpoints that are armed one at a time, for a Penstock that runs already."""

    directory: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"PENSTOCK_FAILPOINTS": f"@{self.directory}"}

    def arm(self, point: str) -> None:
        (self.directory / point).touch()


def free_lease(site: Site) -> None:
    """Spares the next Penstock the wait for the lease of one that is known to be dead."""
    with contextlib.suppress(StatusError):
        api_of(site).delete(_LEASE)


def revive(replica: Replica, **environ: str) -> Replica:
    assert not replica.is_alive()
    free_lease(replica.site)
    return replica.start(**environ)


# The verdict


def check_next_gang(site: Site, namespace: str) -> None:
    """A gang that needs everything can start: nothing has leaked."""
    name = f"next{time.monotonic_ns()}"
    create(site, namespace, *bare_gang(name, run="100ms"))
    wait_phases(site, namespace, name, Succeeded=3)


def missing(site: Site, namespace: str) -> list[str]:
    """Pods that wait although nothing is in their way: to be asked when things have settled."""
    return [pod["metadata"]["name"] for pod in pods(site, namespace) if not pod["spec"].get("nodeName")]


@contextmanager
def one_cluster(site: Site, replica: Replica) -> Iterator[str]:
    """A namespace for one test; afterwards everything in it is gone, and Penstock knows."""
    with a_namespace(site) as namespace:
        yield namespace
    wait_for(lambda: not pods(site, namespace), f"{namespace} to be empty", 60.0)
    wait_for(lambda: not replica.jobs(), "no jobs to be left", 60.0)


@contextmanager
def a_namespace(site: Site) -> Iterator[str]:
    api, name = api_of(site), f"t-{uuid.uuid4().hex[:8]}"
    api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
    wait_for(lambda: _is_there(api, account), "the default ServiceAccount", 120.0)
    try:
        yield name
    finally:
        at_once = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        api.delete(f"/apis/batch/v1/namespaces/{name}/jobs", at_once)
        api.delete(f"/apis/apps/v1/namespaces/{name}/replicasets", at_once)
        api.delete(f"/api/v1/namespaces/{name}/pods", at_once)
        api.delete(f"/api/v1/namespaces/{name}")


def _is_there(api: SyncClient, path: str) -> bool:
    with contextlib.suppress(StatusError):
        return bool(api.get(path))
    return False
