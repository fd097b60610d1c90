"""Kubernetes objects for tests: small, scheduled by Penstock and running without end by default."""

from __future__ import annotations

from typing import Any

__all__ = ["bare_pod", "deployment", "job", "native_group", "pod_group", "quota", "stateful_set", "template"]

Document = dict[str, Any]
UNLIMITED = "inf"


def template(
    app: str,
    cpu: str = "1",
    *,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    run: str = UNLIMITED,
    scheduler: str = "penstock",
    container: Document | None = None,
    **spec: Any,
) -> Document:
    """The pod template of `app`. `run` is the simulated run time; other arguments are fields of the spec."""
    main = {
        "name": "work",
        "image": "busybox:latest",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "infinity"],
        "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}},
        **(container or {}),
    }
    return {
        "metadata": {
            "labels": {"app": app, **(labels or {})},
            "annotations": {"penstock.dev/sim-run": run, **(annotations or {})},
        },
        "spec": {"schedulerName": scheduler, "containers": [main], **spec},
    }


def bare_pod(name: str, cpu: str = "1", *, app: str = "", **more: Any) -> Document:
    pod = template(app or name, cpu, restartPolicy="Never", **more)
    pod["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def job(name: str, count: int, cpu: str = "1", *, spec: Document | None = None, **more: Any) -> Document:
    """A gang: a Job whose parallelism equals its completions."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "completions": count,
            "parallelism": count,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": template(name, cpu, restartPolicy="Never", **more),
            **(spec or {}),
        },
    }


def deployment(name: str, count: int, cpu: str = "1", **more: Any) -> Document:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": count,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, cpu, **more),
        },
    }


def stateful_set(name: str, count: int, cpu: str = "1", *, policy: str = "Parallel", **more: Any) -> Document:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "replicas": count,
            "serviceName": name,
            "podManagementPolicy": policy,
            "selector": {"matchLabels": {"app": name}},
            "template": template(name, cpu, **more),
        },
    }


def quota(name: str, pods: int) -> Document:
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name},
        "spec": {"hard": {"pods": str(pods)}},
    }


def pod_group(name: str, members: int, timeout_s: int = 0) -> Document:
    """The PodGroup of the coscheduling plugin."""
    return {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": members, "scheduleTimeoutSeconds": timeout_s},
    }


def native_group(name: str, members: int) -> Document:
    """The PodGroup of Kubernetes itself."""
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": members}}},
    }
