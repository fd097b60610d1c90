"""One cluster at a time, a Penstock in it, and a namespace per test: `Lab`, and the `Room` that tests get.

A `Lab` keeps a simulated cluster and a Penstock from test to test, and starts others only when a test asks
for other ones; nodes are made and removed as tests want them. A `Room` is a namespace in which a test puts
its objects and looks at what becomes of them; when it is left, its pods are gone and their jobs are over.
Looking goes through the API and not through kubectl, which costs a process each time.
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

__all__ = ["Lab", "Room", "job_id", "workers"]

Document = dict[str, Any]

_PATHS = {  # by kind: where its objects are
    "Pod": "/api/v1/namespaces/{}/pods",
    "Service": "/api/v1/namespaces/{}/services",
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
    """The job of ours that a pod was bound for; empty if it was not."""
    return str((pod["metadata"].get("annotations") or {}).get("penstock.dev/job", ""))


@dataclass(frozen=True)
class _Kept:
    """What is running, and what it was asked for."""

    wanted: object
    stack: ExitStack


class Lab:
    def __init__(self) -> None:
        self._cluster: _Kept | None = None
        self._nodes: object = None
        self._replica: tuple[object, Replica] | None = None
        self._site: Site | None = None

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.stack.close()
        self._cluster = self._nodes = self._replica = self._site = None

    def site(self, *, native_gang: bool = False) -> Site:
        """The cluster that runs, or another one in its place. It has no nodes of its own."""
        if external_kubeconfig() is not None:
            pytest.skip("SKIPPED because it needs simulated nodes: another cluster is named for the tests")
        if self._cluster is None or self._cluster.wanted != native_gang:
            self.close()
            stack = ExitStack()
            self._site = stack.enter_context(
                simulated_site(DevSettings(nodes=0, zones=2, native_gang=native_gang))
            )
            self._cluster = _Kept(native_gang, stack)
        assert self._site is not None
        return self._site

    def have_nodes(self, count: int, shape: NodeShape, *, control_plane: bool = False) -> list[str]:
        """Workers, and perhaps one more node that is as a control plane's: tainted, for its own pods."""
        site = self.site_there()
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

    def penstock(self, *arguments: str, assemble: str = "1h") -> Replica:
        """The Penstock that runs, or one that was started in another way in its place."""
        site = self.site_there()
        wanted = (arguments, assemble)
        if self._replica is not None and self._replica[0] != wanted:
            self._replica[1].stop()
            self._replica = None
        if self._replica is None:
            site.assemble = assemble
            replica = site.replica(f"penstock-{uuid.uuid4().hex[:6]}", *arguments)
            self._replica = (wanted, replica.start().wait_ready())
        return self._replica[1]

    def site_there(self) -> Site:
        assert self._site is not None, "ask for a site first"
        return self._site

    @contextmanager
    def room(self, penstock: Replica) -> Iterator[Room]:
        """A namespace of its own; afterwards nothing of it is left to whoever comes next."""
        site = self.site_there()
        assert site.cluster is not None
        api = site.cluster.api
        name = f"t-{uuid.uuid4().hex[:8]}"
        api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_for(lambda: _found(site, account), "the default ServiceAccount", 120.0, every_s=0.02)
        room = Room(site, penstock, name)
        try:
            yield room
            assert site.overcommitted() == {}
        finally:
            room.clear()
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
class Room:
    site: Site
    penstock: Replica
    namespace: str
    _cluster_wide: list[str] = field(default_factory=list)

    # Putting and changing

    def put(self, *documents: Document) -> None:
        for document in documents:
            path = self._path(document["kind"], document["apiVersion"])
            self._api.post(path, document)
            if "{}" not in _PATHS.get(document["kind"], "{}"):
                self._cluster_wide.append(f"{path}/{document['metadata']['name']}")

    def delete(self, kind: str, name: str) -> None:
        self._api.delete(f"{self._path(kind)}/{name}", _AT_ONCE)

    def patch(self, kind: str, name: str, body: Document, subresource: str = "") -> None:
        """A merge patch."""
        path = f"{self._path(kind)}/{name}" + (f"/{subresource}" if subresource else "")
        self._api.request("PATCH", path, body, "application/merge-patch+json")

    def patch_list(self, kind: str, name: str, operations: Sequence[Document]) -> None:
        path = f"{self._path(kind)}/{name}"
        self._api.request("PATCH", path, list(operations), "application/json-patch+json")

    def clear(self) -> None:
        """Until nobody is there any more, here and in Penstock."""
        for kind in (*_CONTROLLERS, "Pod"):
            self._api.delete(self._path(kind), _AT_ONCE)
        wait_for(self._is_empty, f"the pods of {self.namespace} to go")
        for path in self._cluster_wide:
            self._api.delete(path)
        wait_for(lambda: not self.jobs(), f"the jobs of {self.namespace} to end")

    def _is_empty(self) -> bool:
        left = self._api.get(self._path("Pod"))["items"]
        for pod in left:
            # Controllers make pods until they have heard of their end.
            with contextlib.suppress(StatusError):
                self.delete("Pod", pod["metadata"]["name"])
        return not left

    def _path(self, kind: str, version: str = "") -> str:
        found = _POD_GROUPS.format(version) if kind == "PodGroup" else _PATHS[kind]
        return found.format(self.namespace)

    @property
    def _api(self) -> Any:
        assert self.site.cluster is not None
        return self.site.cluster.api

    # Looking

    def get(self, kind: str, name: str) -> Document:
        found: Document = self._api.get(f"{self._path(kind)}/{name}")
        return found

    def pods(self, app: str = "") -> list[Document]:
        """In the order of their names; `app` is the label of that name."""
        selector = f"?labelSelector={quote(f'app={app}')}" if app else ""
        found = self._api.get(self._path("Pod") + selector)["items"]
        return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))

    def bound(self, app: str = "") -> list[Document]:
        """Those that are on a node, and have not ended."""
        return [
            pod
            for pod in self.pods(app)
            if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed")
        ]

    def nodes_of(self, app: str = "") -> list[str]:
        return sorted(pod["spec"]["nodeName"] for pod in self.bound(app))

    def jobs(self) -> list[Document]:
        """Those of ours that are not over."""
        with contextlib.suppress(PenstockError, OSError):
            return [job for job in self.penstock.jobs() if job["owner"] == self.namespace]
        return []

    def why(self, app: str) -> str:
        """What the condition of the pods that wait says: reason and message."""
        for pod in self.pods(app):
            for condition in pod["status"].get("conditions", ()):
                if condition["type"] == "PodScheduled" and condition["status"] == "False":
                    return f"{condition.get('reason', '')}: {condition.get('message', '')}"
        return ""

    def events(self, pod: str = "") -> list[Document]:
        path = f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events"
        found = self._api.get(path)["items"]
        return [event for event in found if not pod or event["regarding"]["name"] == pod]

    def job_is(self, name: str, condition: str) -> Document | None:
        """The condition of a Job, once it is true."""
        for one in self.get("Job", name)["status"].get("conditions", ()):
            if one["type"] == condition and one["status"] == "True":
                return dict(one)
        return None

    # Waiting

    def wait(self, holds: Callable[[], object], what: Callable[[], str], limit_s: float = 30.0) -> None:
        """As `wait_for`; what is missing is said as it is at the end."""
        try:
            wait_for(holds, "it", limit_s, 0.05)
        except AssertionError:
            raise AssertionError(f"waited {limit_s:g} s in vain for {what()}") from None

    def wait_bound(self, app: str, count: int, limit_s: float = 30.0) -> list[Document]:
        self.wait(
            lambda: len(self.bound(app)) == count,
            lambda: f"{count} pods of {app} on nodes; there are {self._shown(app)}",
            limit_s,
        )
        return self.bound(app)

    def wait_told(self, app: str, *words: str, limit_s: float = 30.0) -> str:
        """Until the condition of pods that wait has all of the words."""
        self.wait(
            lambda: all(word in self.why(app) for word in words),
            lambda: f"{words} to be told to {app}; there are {self._shown(app)}",
            limit_s,
        )
        return self.why(app)

    def wait_looked_at(self, app: str) -> None:
        """Until Penstock has decided that pods have to wait, and has said so."""
        self.wait_told(app, ": ")

    def wait_gone(self, app: str) -> None:
        wait_for(lambda: not self.pods(app), f"the pods of {app} to go", every_s=0.05)

    def _shown(self, app: str) -> str:
        pods = [
            (pod["metadata"]["name"], pod["spec"].get("nodeName"), pod["status"].get("phase"))
            for pod in self.pods(app)
        ]
        return json.dumps({"pods": pods, "why": self.why(app), "log": self.penstock.log_tail(5)}, indent=1)
