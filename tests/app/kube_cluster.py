"""A fake API server with as much of a cluster as an instance needs to become leader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kube.fake_api import FakeApi, status
from tests.kube.raw_server import Request, ResponseWriter

__all__ = ["FakeCluster", "kubeconfig"]


class FakeCluster:
    """Serves nodes, pods, one Lease and the namespace kube-system, whose uid identifies the cluster."""

    def __init__(self, uid: str = "cluster-1") -> None:
        self.uid = uid
        self.forbidden: set[str] = set()  # Last components of request paths.
        self.resources = {"nodes": FakeApi(), "pods": FakeApi()}
        self.lease: dict[str, Any] | None = None

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease is not None else ""

    async def __call__(self, request: Request, response: ResponseWriter) -> None:
        last = request.path.rpartition("/")[2]
        if last in self.forbidden:
            response.send(403, status(403, "Forbidden", f"you cannot read {last}"))
        elif "/leases" in request.path:
            self._lease(request, response)
        elif request.path == "/api/v1/namespaces/kube-system":
            response.send(200, {"metadata": {"name": "kube-system", "uid": self.uid}})
        elif last in self.resources:
            await self.resources[last](request, response)
        else:
            response.send(404, b"404 page not found\n")

    def _lease(self, request: Request, response: ResponseWriter) -> None:
        if request.verb == "GET":
            response.send(*((200, self.lease) if self.lease is not None else (404, status(404, "NotFound"))))
            return
        version = "1" if self.lease is None else str(int(self.lease["metadata"]["resourceVersion"]) + 1)
        body: dict[str, Any] = json.loads(request.body)
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": version}}
        response.send(200, self.lease)


def kubeconfig(path: Path, url: str) -> Path:
    path.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
        "users: [{name: u, user: {}}]\n"
    )
    return path
