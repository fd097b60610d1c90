"""Kubernetes objects for tests, in short form."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from penstock.kube.types import (
    NativePodGroup,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
    UnstructuredObject,
)
from penstock.podspec.controller_kinds import require_controller_kind
from penstock.podspec.controllers import Controller, controller_of
from penstock.podspec.keys import JOB_ANNOTATION

GROUPS = {"Job": "batch/v1", "ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "Deployment": "apps/v1"}
Keys = dict[str, str] | None


def anti_affinity_to(*selectors: Keys | dict[str, Any], **more: Any) -> dict[str, Any]:
    """Required anti-affinity on the host name, one term per set of labels or selector."""
    terms = [
        {
            "topologyKey": "kubernetes.io/hostname",
            "labelSelector": selector if "matchExpressions" in selector else {"matchLabels": selector},
            **more,
        }
        for selector in selectors
        if selector is not None
    ]
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def time_text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def owned_by(kind: str, name: str, uid: str = "", api_version: str = "") -> list[dict[str, Any]]:
    version = api_version or GROUPS.get(kind, "example.com/v1")
    return [
        {"apiVersion": version, "kind": kind, "name": name, "uid": uid or f"uid-{name}", "controller": True}
    ]


def metadata(name: str, *, labels: Keys = None, annotations: Keys = None, **more: Any) -> dict[str, Any]:
    found = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": "1", **more}
    if labels:
        found["labels"] = labels
    if annotations:
        found["annotations"] = annotations
    return found


def pod(
    name: str = "a",
    *,
    cpu: str = "1",
    node: str = "",
    ours: bool = True,
    placed: bool = False,
    phase: str = "Pending",
    owner: list[dict[str, Any]] | None = None,
    created: float = 1000.0,
    labels: Keys = None,
    annotations: Keys = None,
    gated: bool = False,
    claim: str = "",
    status: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    **more: Any,
) -> Pod:
    """`placed`: with the annotation of our binding."""
    annotations = {**(annotations or {}), JOB_ANNOTATION: "f1"} if placed else annotations
    raw: dict[str, Any] = {
        "metadata": metadata(
            name, labels=labels, annotations=annotations, creationTimestamp=time_text(created), **more
        ),
        "spec": {
            "schedulerName": "penstock" if ours else "default-scheduler",
            "containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}],
            **(spec or {}),
        },
        "status": {"phase": phase, **(status or {})},
    }
    if node:
        raw["spec"]["nodeName"] = node
    if owner:
        raw["metadata"]["ownerReferences"] = owner
    if gated:
        raw["spec"]["schedulingGates"] = [{"name": "wait"}]
    if claim:
        raw["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
    return msgspec.convert(raw, Pod)


def template(labels: Keys = None, annotations: Keys = None, scheduler: str = "penstock") -> dict[str, Any]:
    return {"metadata": {"labels": labels, "annotations": annotations}, "spec": {"schedulerName": scheduler}}


def unstructured(kind: str, raw: dict[str, Any]) -> UnstructuredObject:
    return msgspec.convert({"apiVersion": GROUPS[kind], "kind": kind, **raw}, UnstructuredObject)


def as_controller(found: UnstructuredObject) -> Controller:
    return controller_of(require_controller_kind(found.api_version, found.kind), found)


def job(
    name: str = "train",
    *,
    wants: int = 2,
    of: dict[str, Any] | None = None,
    over: str = "",
    started: float | None = None,
    succeeded: int = 0,
    labels: Keys = None,
    annotations: Keys = None,
    **spec: Any,
) -> UnstructuredObject:
    status: dict[str, Any] = {"succeeded": succeeded}
    if over:
        status["conditions"] = [{"type": over, "status": "True"}]
    if started is not None:
        status["startTime"] = time_text(started)
    whole = {"parallelism": wants, "completions": wants, "template": of or template(), **spec}
    raw = {
        "metadata": metadata(name, labels=labels, annotations=annotations),
        "spec": whole,
        "status": status,
    }
    return unstructured("Job", raw)


def replica_set(
    name: str = "web-1",
    *,
    wants: int = 2,
    deployment: str = "",
    of: dict[str, Any] | None = None,
    labels: Keys = None,
    annotations: Keys = None,
) -> UnstructuredObject:
    more = {"ownerReferences": owned_by("Deployment", deployment)} if deployment else {}
    raw = {
        "metadata": metadata(name, labels=labels, annotations=annotations, **more),
        "spec": {"replicas": wants, "template": of or template()},
    }
    return unstructured("ReplicaSet", raw)


def stateful_set(
    name: str = "db", *, wants: int = 3, parallel: bool = False, labels: Keys = None
) -> UnstructuredObject:
    policy = "Parallel" if parallel else "OrderedReady"
    spec = {"replicas": wants, "podManagementPolicy": policy, "template": template()}
    return unstructured("StatefulSet", {"metadata": metadata(name, labels=labels), "spec": spec})


def deployment(name: str = "web", *, labels: Keys = None, annotations: Keys = None) -> UnstructuredObject:
    return unstructured("Deployment", {"metadata": metadata(name, labels=labels, annotations=annotations)})


def node(name: str = "n1", *, cpu: str = "4", ready: bool = True, **more: Any) -> Node:
    status = {
        "allocatable": {"cpu": cpu, "pods": "110"},
        "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
    }
    raw = {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", **more}, "status": status}
    return msgspec.convert(raw, Node)


def pod_group(name: str = "g", size: int = 2, *, timeout_s: int | None = None, **status: Any) -> PodGroup:
    spec = {"minMember": size, "scheduleTimeoutSeconds": timeout_s}
    return msgspec.convert({"metadata": metadata(name), "spec": spec, "status": status}, PodGroup)


def native_group(name: str = "g", size: int = 2) -> NativePodGroup:
    policy = {"gang": {"minCount": size}} if size else {"basic": {}}
    return msgspec.convert({"metadata": metadata(name), "spec": {"schedulingPolicy": policy}}, NativePodGroup)


def claim(name: str = "c", *, volume: str = "") -> PersistentVolumeClaim:
    annotations = {"pv.kubernetes.io/bind-completed": "yes"} if volume else None
    raw = {"metadata": metadata(name, annotations=annotations), "spec": {"volumeName": volume}}
    return msgspec.convert(raw, PersistentVolumeClaim)


def volume(name: str = "v", *, zone: str = "") -> PersistentVolume:
    labels = {"topology.kubernetes.io/zone": zone} if zone else None
    return msgspec.convert({"metadata": {"name": name, "labels": labels}}, PersistentVolume)
