"""A cluster without a control plane, as far as an instance needs one to come into office."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kube.fake_api import FakeApi, status
from tests.kube.raw_server import Answer, Request

__all__ = ["FakeCluster", "kubeconfig"]


class FakeCluster:
    """Nodes, pods, one lease and the namespace by which a cluster is known; other kinds are not served."""

    def __init__(self, uid: str = "cluster-1") -> None:
        self.uid = uid
        self.forbidden: set[str] = set()  # the last words of paths
        self.kinds = {"nodes": FakeApi(), "pods": FakeApi()}
        self.lease: dict[str, Any] | None = None

    @property
    def holder(self) -> str:
        return str(self.lease["spec"]["holderIdentity"]) if self.lease is not None else ""

    async def __call__(self, request: Request, answer: Answer) -> None:
        last = request.path.rpartition("/")[2]
        if last in self.forbidden:
            answer.send(403, status(403, "Forbidden", f"you cannot read {last}"))
        elif "/leases" in request.path:
            self._lease(request, answer)
        elif request.path == "/api/v1/namespaces/kube-system":
            answer.send(200, {"metadata": {"name": "kube-system", "uid": self.uid}})
        elif last in self.kinds:
            await self.kinds[last](request, answer)
        else:
            answer.send(404, b"404 page not found\n")

    def _lease(self, request: Request, answer: Answer) -> None:
        if request.verb == "GET":
            answer.send(*((200, self.lease) if self.lease is not None else (404, status(404, "NotFound"))))
            return
        version = "1" if self.lease is None else str(int(self.lease["metadata"]["resourceVersion"]) + 1)
        found: dict[str, Any] = json.loads(request.body)
        self.lease = {**found, "metadata": {**found["metadata"], "resourceVersion": version}}
        answer.send(200, self.lease)


def kubeconfig(path: Path, url: str) -> Path:
    path.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{url}'}}}}]\n"
        "users: [{name: u, user: {}}]\n"
    )
    return path
