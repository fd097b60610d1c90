"""The API resources that Penstock uses, and their URL paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

__all__ = [
    "EVENTS",
    "JOBS",
    "LEASES",
    "NAMESPACES",
    "NATIVE_PODGROUPS",
    "NODES",
    "PERSISTENT_VOLUMES",
    "PERSISTENT_VOLUME_CLAIMS",
    "PODGROUPS",
    "PODS",
    "ApiResource",
]


@dataclass(frozen=True, slots=True)
class ApiResource:
    """Group, version and plural name of a resource, e.g. `ApiResource("batch/v1", "jobs")`."""

    group_version: str
    plural: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path. Without a namespace: all namespaces, or a cluster-scoped object. Names are quoted."""
        is_core_group = "/" not in self.group_version
        path = f"/api/{self.group_version}" if is_core_group else f"/apis/{self.group_version}"
        if namespace:
            path += f"/namespaces/{quote(namespace, safe='')}"
        path += f"/{self.plural}"
        if name:
            path += f"/{quote(name, safe='')}"
        return f"{path}/{subresource}" if subresource else path

    def __str__(self) -> str:
        group, _, _ = self.group_version.rpartition("/")
        return f"{self.plural}.{group}" if group else self.plural


PODS: Final = ApiResource("v1", "pods")
NODES: Final = ApiResource("v1", "nodes")
NAMESPACES: Final = ApiResource("v1", "namespaces")
PERSISTENT_VOLUME_CLAIMS: Final = ApiResource("v1", "persistentvolumeclaims")
PERSISTENT_VOLUMES: Final = ApiResource("v1", "persistentvolumes")
JOBS: Final = ApiResource("batch/v1", "jobs")
PODGROUPS: Final = ApiResource("scheduling.x-k8s.io/v1alpha1", "podgroups")
NATIVE_PODGROUPS: Final = ApiResource("scheduling.k8s.io/v1alpha2", "podgroups")
LEASES: Final = ApiResource("coordination.k8s.io/v1", "leases")
EVENTS: Final = ApiResource("events.k8s.io/v1", "events")
