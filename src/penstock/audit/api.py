"""Takes the snapshot of the cluster: lists every node and every pod.

Lists are paged, and an object is dropped as soon as its usage is computed. The event loop runs other tasks
every few hundred objects. A list whose pages belong to different versions of the cluster is rejected.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec

from penstock.audit.pod_usage import allocatable_units, pod_usage
from penstock.audit.snapshots import ApiNode, ApiPod, ApiSnapshot
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, ListResult, object_name
from penstock.kube.resources import NODES, PODS, ApiResource
from penstock.kube.types import KubeObject, Node, PartialPod, Pod

__all__ = ["node_of", "pod_of", "read_api"]

T = TypeVar("T", bound=KubeObject)

_PAGE: Final = 500
_YIELD_EVERY: Final = 200
_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


async def read_api(client: KubeClient) -> ApiSnapshot:
    listed_nodes = await _list(client, NODES, Node)
    if listed_nodes.undecodable:
        raise Unavailable(f"cannot decode node {object_name(listed_nodes.undecodable[0])}")
    nodes = {node.metadata.name: node_of(node) for node in listed_nodes.items}
    listed_pods = await _list(client, PODS, Pod)
    pods: dict[str, ApiPod] = {}
    for count, pod in enumerate(listed_pods.items):
        pods[pod.metadata.uid] = pod_of(pod)
        if count % _YIELD_EVERY == 0:
            await asyncio.sleep(0)
    for raw in listed_pods.undecodable:
        try:
            partial = msgspec.json.decode(raw, type=PartialPod)
        except msgspec.DecodeError as error:
            raise Unavailable(f"cannot decode pod {object_name(raw)}: {error}") from error
        pods[partial.metadata.uid] = pod_of(partial)
    return ApiSnapshot(nodes, pods)


async def _list(client: KubeClient, resource: ApiResource, object_type: type[T]) -> ListResult[T]:
    listed = await client.list(resource.path(), object_type, page=_PAGE)
    if not listed.consistent:
        raise Unavailable(f"the list of {resource} changed while it was read")
    return listed


def node_of(node: Node) -> ApiNode:
    ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())
    return ApiNode(allocatable_units(node.status.allocatable), ready)


def pod_of(pod: Pod | PartialPod) -> ApiPod:
    """A pod that cannot be decoded completely counts as one pod without other usage."""
    return ApiPod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        scheduler_name=pod.spec.scheduler_name,
        terminal=pod.status.phase in _TERMINAL,
        deleting=pod.metadata.deletion_timestamp is not None,
        usage=pod_usage(pod) if isinstance(pod, Pod) else {"pods": 1},
    )
