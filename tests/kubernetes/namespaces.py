"""A cluster that tests share (`SharedCluster`) and a namespace per test (`Namespace`).

A `SharedCluster` keeps a simulated cluster and a Penstock running from test to test and replaces them only
for a test that needs other settings; it creates and deletes nodes as tests require. In a `Namespace` a test
creates objects and inspects them; at the end its pods are deleted and their jobs are inactive. Inspection
uses the API directly, because kubectl costs a process each time.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import pytest

from penstock.devcluster.client import StatusError
from penstock.devcluster.settings import DevSettings, NodeShape
from penstock.errors import PenstockError
from tests.kubernetes.site import Replica, Site, external_kubeconfig, simulated_site, wait_for

__all__ = ["Namespace", "SharedCluster", "job_id", "workers"]

Document = dict[str, Any]

_PATHS = {  # API path by kind
    "Pod": "/api/v1/namespaces/{}/pods",
    "Service": "/api/v1/namespaces/{}/services",
    "ResourceQuota": "/api/v1/namespaces/{}/resourcequotas",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "Deployment": "/apis/apps/v1/namespaces/{}/deployments",
    "ReplicaSet": "/apis/apps/v1/namespaces/{}/replicasets",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
    "PriorityClass": "/apis/scheduling.k8s.io/v1/priorityclasses",
}
_POD_GROUPS = "/apis/{}/namespaces/{{}}/podgroups"
_CONTROLLERS = ("Deployment", "ReplicaSet", "StatefulSet", "Job")
_AT_ONCE = {"gracePeriodSeconds": 0, "propagationPolicy": "Background"}


def job_id(pod: Document) -> str:
    """The Penstock job for which a pod was bound, empty for other pods."""
    return str((pod["metadata"].get("annotations") or {}).get("penstock.dev/job", ""))


@dataclass(frozen=True)
class _RunningCluster:
    """A running cluster and whether it has native gang scheduling."""

    native_gang: bool
    stack: ExitStack


class SharedCluster:
    def __init__(self) -> None:
        self._cluster: _RunningCluster | None = None
        self._nodes: object = None
        self._replica: tuple[object, Replica] | None = None
        self._site: Site | None = None

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.stack.close()
        self._cluster = self._nodes = self._replica = self._site = None

    def site(self, *, native_gang: bool = False) -> Site:
        """The running cluster, replaced if `native_gang` differs. A new one has no nodes."""
        if external_kubeconfig() is not None:
            pytest.skip("SKIPPED because it needs simulated nodes and KUBECONFIG names another cluster")
        if self._cluster is None or self._cluster.native_gang != native_gang:
            self.close()
            stack = ExitStack()
            self._site = stack.enter_context(
                simulated_site(DevSettings(nodes=0, zones=2, native_gang=native_gang))
            )
            self._cluster = _RunningCluster(native_gang, stack)
        assert self._site is not None
        return self._site

    def ensure_nodes(self, count: int, shape: NodeShape, *, control_plane: bool = False) -> list[str]:
        """Creates `count` worker nodes, and with `control_plane` one more node with the usual taint."""
        site = self.current_site()
        assert site.cluster is not None
        wanted = (count, shape, control_plane)
        if self._nodes != wanted:
            for node in site.cluster.api.get("/api/v1/nodes")["items"]:
                site.cluster.api.delete(f"/api/v1/nodes/{node['metadata']['name']}")
            site.cluster.add_nodes(count, shape=shape)
            if control_plane:
                role = "node-role.kubernetes.io/control-plane"
                (name,) = site.cluster.add_nodes(1, shape=shape, labels={role: ""}, prefix="control-plane")
                site.kubectl("taint", "node", name, f"{role}=:NoSchedule")
            self._nodes = wanted
        return workers(site)

    def penstock(self, *arguments: str, assembly_timeout: str = "1h") -> Replica:
        """The running Penstock, replaced if its arguments differ."""
        site = self.current_site()
        wanted = (arguments, assembly_timeout)
        if self._replica is not None and self._replica[0] != wanted:
            self._replica[1].stop()
            self._replica = None
        if self._replica is None:
            site.assembly_timeout = assembly_timeout
            replica = site.replica(f"penstock-{uuid.uuid4().hex[:6]}", *arguments)
            self._replica = (wanted, replica.start().wait_ready())
        return self._replica[1]

    def current_site(self) -> Site:
        assert self._site is not None, "call site() first"
        return self._site

    @contextmanager
    def namespace(self, penstock: Replica) -> Iterator[Namespace]:
        """A new namespace. At the end all its objects are deleted, before the next test starts."""
        site = self.current_site()
        assert site.cluster is not None
        api = site.cluster.api
        name = f"t-{uuid.uuid4().hex[:8]}"
        api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_for(lambda: _found(site, account), "the default ServiceAccount", 120.0, every_s=0.02)
        namespace = Namespace(site, penstock, name)
        try:
            yield namespace
            assert site.overcommitted() == {}
        finally:
            namespace.clear()
            api.delete(f"/api/v1/namespaces/{name}")


def workers(site: Site) -> list[str]:
    assert site.cluster is not None
    nodes = site.cluster.api.get("/api/v1/nodes")["items"]
    return sorted(node["metadata"]["name"] for node in nodes if not node["spec"].get("taints"))


def _found(site: Site, path: str) -> Document | None:
    assert site.cluster is not None
    with contextlib.suppress(StatusError):
        return site.cluster.api.get(path)
    return None


@dataclass
class Namespace:
    site: Site
    penstock: Replica
    name: str
    _cluster_wide: list[str] = field(default_factory=list)

    # Creating and changing objects

    def create(self, *documents: Document) -> None:
        for document in documents:
            path = self._path(document["kind"], document["apiVersion"])
            self._api.post(path, document)
            if "{}" not in _PATHS.get(document["kind"], "{}"):
                self._cluster_wide.append(f"{path}/{document['metadata']['name']}")

    def delete(self, kind: str, name: str) -> None:
        self._api.delete(f"{self._path(kind)}/{name}", _AT_ONCE)

    def patch(self, kind: str, name: str, body: Document, subresource: str = "") -> None:
        """Applies a merge patch."""
        path = f"{self._path(kind)}/{name}" + (f"/{subresource}" if subresource else "")
        self._api.request("PATCH", path, body, "application/merge-patch+json")

    def json_patch(self, kind: str, name: str, operations: Sequence[Document]) -> None:
        path = f"{self._path(kind)}/{name}"
        self._api.request("PATCH", path, list(operations), "application/json-patch+json")

    def clear(self) -> None:
        """Deletes all objects, and waits until the pods are gone and Penstock has no active job for them."""
        for kind in (*_CONTROLLERS, "Pod"):
            self._api.delete(self._path(kind), _AT_ONCE)
        wait_for(self._is_empty, f"the pods of {self.name} to be deleted")
        for path in self._cluster_wide:
            self._api.delete(path)
        wait_for(lambda: not self.jobs(), f"the jobs of {self.name} to end")

    def _is_empty(self) -> bool:
        left = self._api.get(self._path("Pod"))["items"]
        for pod in left:
            # A controller creates pods until it has noticed its own deletion.
            with contextlib.suppress(StatusError):
                self.delete("Pod", pod["metadata"]["name"])
        return not left

    def _path(self, kind: str, version: str = "") -> str:
        found = _POD_GROUPS.format(version) if kind == "PodGroup" else _PATHS[kind]
        return found.format(self.name)

    @property
    def _api(self) -> Any:
        assert self.site.cluster is not None
        return self.site.cluster.api

    # Inspecting objects

    def get(self, kind: str, name: str, version: str = "") -> Document:
        found: Document = self._api.get(f"{self._path(kind, version)}/{name}")
        return found

    def pods(self, app: str = "") -> list[Document]:
        """The pods sorted by name; `app` selects by the label `app`."""
        selector = f"?labelSelector={quote(f'app={app}')}" if app else ""
        found = self._api.get(self._path("Pod") + selector)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def bound(self, app: str = "") -> list[Document]:
        """The pods that are bound and not in a terminal phase."""
        return [
            pod
            for pod in self.pods(app)
            if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed")
        ]

    def nodes_of(self, app: str = "") -> list[str]:
        return sorted(pod["spec"]["nodeName"] for pod in self.bound(app))

    def jobs(self, states: str = "active") -> list[Document]:
        """The Penstock jobs of this namespace."""
        with contextlib.suppress(PenstockError, OSError):
            return [job for job in self.penstock.jobs(states) if job["owner"] == self.name]
        return []

    def pending_reason(self, app: str) -> str:
        """Reason and message of the condition PodScheduled=False of the pods of `app`."""
        for pod in self.pods(app):
            for condition in pod["status"].get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    return f"{condition.get('reason', '')}: {condition.get('message', '')}"
        return ""

    def events(self, pod: str = "") -> list[Document]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.name}/events"
        found = self._api.get(path)["items"]
        return [event for event in found if not pod or event["regarding"]["name"] == pod]

    def regarded(self, reason: str) -> dict[str, Document]:
        """The last event with a reason of each object, by its name."""
        return {event["regarding"]["name"]: event for event in self.events() if event["reason"] == reason}

    def job_condition(self, name: str, condition_type: str) -> Document | None:
        """The condition of a Job if its status is True."""
        for condition in self.get("Job", name)["status"].get("conditions", ()):
            if condition["type"] == condition_type and condition["status"] == "True":
                return dict(condition)
        return None

    # Waiting

    def wait(self, poll: Callable[[], object], goal: Callable[[], str], limit_s: float = 30.0) -> None:
        """Like `wait_for`, with a message that is computed at the end."""
        try:
            wait_for(poll, "", limit_s, 0.05)
        except AssertionError:
            raise AssertionError(f"timed out after {limit_s:g} s waiting for {goal()}") from None

    def wait_bound(self, app: str, count: int, limit_s: float = 30.0) -> list[Document]:
        self.wait(
            lambda: len(self.bound(app)) == count,
            lambda: f"{count} bound pods of {app}; found {self._describe(app)}",
            limit_s,
        )
        return self.bound(app)

    def wait_reason(self, app: str, *words: str, limit_s: float = 30.0) -> str:
        """Waits until the condition of the pending pods contains all the words."""
        self.wait(
            lambda: all(word in self.pending_reason(app) for word in words),
            lambda: f"{words} in the condition of {app}; found {self._describe(app)}",
            limit_s,
        )
        return self.pending_reason(app)

    def wait_any_reason(self, app: str) -> None:
        """Waits until Penstock has decided that the pods must wait and has written a condition."""
        self.wait_reason(app, ": ")

    def wait_gone(self, app: str) -> None:
        wait_for(lambda: not self.pods(app), f"the pods of {app} to be deleted", every_s=0.05)

    def _describe(self, app: str) -> str:
        pods = [
            (pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"].get("phase"))
            for pod in self.pods(app)
        ]
        found = {"pods": pods, "reason": self.pending_reason(app), "log": self.penstock.log_tail(5)}
        return json.dumps(found, indent=1)
