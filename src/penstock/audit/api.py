"""What the cluster says: every node and every pod, listed afresh.

Lists come in pages, and what is not needed of an object is dropped as soon as its amounts are known. Other
work gets its turn every few hundred objects. A list that is not of one version of the cluster is none.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec

from penstock.audit.amounts import amounts_of, pod_amounts
from penstock.audit.readings import ApiNode, ApiPod, ApiReading
from penstock.errors import Unavailable
from penstock.kube.client import KubeClient, ListResult, object_name
from penstock.kube.resources import NODES, PODS, ApiResource
from penstock.kube.types import KubeObject, Node, PartialPod, Pod

__all__ = ["node_of", "pod_of", "read_api"]

T = TypeVar("T", bound=KubeObject)

_PAGE: Final = 500
_PAUSE_EVERY: Final = 200
_TERMINAL: Final = frozenset({"Succeeded", "Failed"})


async def read_api(client: KubeClient) -> ApiReading:
    listed_nodes = await _listed(client, NODES, Node)
    if listed_nodes.undecodable:
        raise Unavailable(f"{object_name(listed_nodes.undecodable[0])} is a node that cannot be read")
    nodes = {node.metadata.name: node_of(node) for node in listed_nodes.items}
    listed_pods = await _listed(client, PODS, Pod)
    pods: dict[str, ApiPod] = {}
    for count, pod in enumerate(listed_pods.items):
        pods[pod.metadata.uid] = pod_of(pod)
        if count % _PAUSE_EVERY == 0:
            await asyncio.sleep(0)
    for raw in listed_pods.undecodable:
        try:
            bare = msgspec.json.decode(raw, type=PartialPod)
        except msgspec.DecodeError as error:
            raise Unavailable(f"{object_name(raw)} is a pod that cannot be read: {error}") from error
        pods[bare.metadata.uid] = pod_of(bare)
    return ApiReading(nodes, pods)


async def _listed(client: KubeClient, resource: ApiResource, kind: type[T]) -> ListResult[T]:
    listed = await client.list(resource.path(), kind, page=_PAGE)
    if not listed.consistent:
        raise Unavailable(f"the list of {resource} changed while it was read")
    return listed


def node_of(node: Node) -> ApiNode:
    ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())
    return ApiNode(amounts_of(node.status.allocatable), ready)


def pod_of(pod: Pod | PartialPod) -> ApiPod:
    """One that is not readable as a whole is one pod, whatever else it uses."""
    return ApiPod(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        scheduler_name=pod.spec.scheduler_name,
        terminal=pod.status.phase in _TERMINAL,
        deleting=pod.metadata.deletion_timestamp is not None,
        amounts=pod_amounts(pod) if isinstance(pod, Pod) else {"pods": 1},
    )
