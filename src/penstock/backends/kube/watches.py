"""The resources that the Kubernetes backend watches, and what each change does to the cache.

A controller kind is watched for every row of `CONTROLLER_KINDS`. An object that cannot be decoded is
skipped, with two exceptions: a pod keeps its last known spec with its present node and phase, and a Node
its last known state. Otherwise their usage, or the pods on them, would be taken for gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from penstock.backends.kube.cache import ClusterCache
from penstock.errors import BadRequest
from penstock.kube.client import decode_metadata
from penstock.kube.resources import (
    NATIVE_PODGROUPS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    PODGROUPS,
    PODS,
    ApiResource,
)
from penstock.kube.types import (
    NativePodGroup,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodGroup,
    UnstructuredObject,
)
from penstock.podspec.controller_kinds import CONTROLLER_KINDS, ControllerKind
from penstock.podspec.controllers import Controller, controller_of
from penstock.podspec.pod_status import decode_partial_pod, full_name

__all__ = ["Watch", "read_controller", "resource_of_kind", "watches_of"]

_LOG: Final = logging.getLogger("penstock.kube")


@dataclass(frozen=True, slots=True)
class Watch:
    resource: ApiResource
    type: type[Any]
    replace: Callable[[tuple[Any, ...]], None]  # a complete list
    set: Callable[[Any], None]
    remove: Callable[[Any], None]
    decode_partial: Callable[[bytes], Any] = lambda _: None  # for an object that cannot be decoded


def resource_of_kind(kind: ControllerKind) -> ApiResource:
    return ApiResource(kind.api_version, kind.plural)


def read_controller(kind: ControllerKind, found: UnstructuredObject) -> Controller | None:
    """None, and a log entry, for an object that cannot be read."""
    try:
        return controller_of(kind, found)
    except Exception as error:
        is_expected = isinstance(error, BadRequest)
        name = full_name(found.metadata)
        _LOG.error("cannot read %s %s: %s", kind.name, name, error, exc_info=None if is_expected else error)
        return None


def watches_of(
    cache: ClusterCache, previous: Callable[[], ClusterCache], forget_condition: Callable[[str], None]
) -> list[Watch]:
    """`previous` is the cache in use until `cache` is complete. Bound and deleted pods need no condition."""

    def set_pod(pod: Pod) -> None:
        cache.set_pod(pod)
        if pod.spec.node_name:
            forget_condition(pod.metadata.uid)

    def remove_pod(pod: Pod) -> None:
        cache.remove_pod(pod)
        forget_condition(pod.metadata.uid)

    def partial_pod(raw: bytes) -> Pod | None:
        uid = decode_metadata(raw).uid
        return decode_partial_pod(raw, cache.pod(uid) or previous().pod(uid))

    def partial_node(raw: bytes) -> Node | None:
        name = decode_metadata(raw).name
        return cache.node(name) or previous().node(name)

    return [
        Watch(NODES, Node, cache.replace_nodes, cache.set_node, cache.remove_node, partial_node),
        Watch(PODS, Pod, cache.replace_pods, set_pod, remove_pod, partial_pod),
        Watch(
            PODGROUPS,
            PodGroup,
            cache.replace_pod_groups,
            cache.set_pod_group,
            partial(cache.set_pod_group, gone=True),
        ),
        Watch(
            NATIVE_PODGROUPS,
            NativePodGroup,
            cache.replace_native_groups,
            cache.set_native_group,
            partial(cache.set_native_group, gone=True),
        ),
        Watch(
            PERSISTENT_VOLUME_CLAIMS,
            PersistentVolumeClaim,
            cache.replace_claims,
            cache.set_claim,
            partial(cache.set_claim, gone=True),
        ),
        Watch(
            PERSISTENT_VOLUMES,
            PersistentVolume,
            cache.replace_volumes,
            cache.set_volume,
            partial(cache.set_volume, gone=True),
        ),
        *(_controller_watch(cache, kind) for kind in CONTROLLER_KINDS),
    ]


def _controller_watch(cache: ClusterCache, kind: ControllerKind) -> Watch:
    def replace_all(items: tuple[UnstructuredObject, ...]) -> None:
        controllers = (read_controller(kind, item) for item in items)
        cache.replace_controllers(kind, (one for one in controllers if one is not None))

    def set_one(item: UnstructuredObject) -> None:
        controller = read_controller(kind, item)
        if controller is not None:
            cache.set_controller(controller)

    def remove_one(item: UnstructuredObject) -> None:
        cache.remove_controller(item.metadata.uid)

    return Watch(resource_of_kind(kind), UnstructuredObject, replace_all, set_one, remove_one)
