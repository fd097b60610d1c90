"""Usage and host ports of each node by all pods, external ones included: the last check before a binding.

A pod that is being bound counts on its node from the request on (*assumed*), until the watch shows it there
or the binding has failed. So bindings in flight, and pods that another scheduler has bound meanwhile, add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from penstock.errors import BadRequest
from penstock.kube.types import Pod
from penstock.model.constraint import Constraint, matches
from penstock.model.exclusion_key import ExclusionKey
from penstock.podspec.exclusion_keys import host_port_keys
from penstock.podspec.pod_resources import pod_requests
from penstock.podspec.pod_status import is_terminal, usage_of
from penstock.protocol.facts import NodeSet

__all__ = ["NodeUsage"]

_Name = TypeVar("_Name", str, ExclusionKey)


@dataclass(frozen=True, slots=True)
class _LabelledNode:
    """A node as a subject of constraints."""

    name: str
    properties: Mapping[str, str]
    rank: int = -1


class NodeUsage:
    def __init__(self) -> None:
        self._usage: dict[str, dict[str, int]] = {}  # node -> resource -> units, without zeros
        self._host_ports: dict[str, dict[ExclusionKey, int]] = {}  # node -> port -> pods, without zeros
        self._assumed: dict[str, Pod] = {}  # by uid, as if they were on their nodes

    def assume(self, pod: Pod, node: str) -> None:
        """Counts a pod that is about to be bound."""
        self.drop_assumed(pod.metadata.uid)
        placed = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, node_name=node))
        self._count_pods(None, placed)
        self._assumed[pod.metadata.uid] = placed

    def drop_assumed(self, uid: str) -> None:
        self._count_pods(self._assumed.pop(uid, None), None)

    def replace(self, before: Pod | None, after: Pod | None) -> None:
        """Counts one version of a pod in place of another; None: the pod does not exist."""
        if before is not None and (after is None or after.spec.node_name or is_terminal(after)):
            self.drop_assumed(before.metadata.uid)
        self._count_pods(before, after)

    def _count_pods(self, before: Pod | None, after: Pod | None) -> None:
        for pod, sign in ((before, -1), (after, 1)):
            if pod is None or not pod.spec.node_name or is_terminal(pod):
                continue
            _count(self._usage, pod.spec.node_name, usage_of(pod), sign)
            ports = host_port_keys(pod)
            if ports:
                _count(self._host_ports, pod.spec.node_name, [(port, 1) for port in ports], sign)

    def problem(self, node: NodeSet, pod: Pod, constraint: Constraint) -> str:
        """Why a pod cannot be bound to a node as it is at present; "" if it can."""
        if not node.up:
            return f"node {node.node} is {node.why}"
        if not matches(constraint, _LabelledNode(node.node, dict(node.labels))):
            reason = node.why or "its taints or labels have changed"
            return f"node {node.node} no longer admits the pod: {reason}"
        if not self._fits(node, pod):
            return f"node {node.node} no longer has the requested resources"
        return ""

    def _fits(self, node: NodeSet, pod: Pod) -> bool:
        """Whether a node still has what a pod requests. Requests that cannot be read fit nowhere."""
        try:
            requests = pod_requests(pod)
        except BadRequest:
            return False
        if any(port in self._host_ports.get(node.node, ()) for port in host_port_keys(pod)):
            return False
        capacity = {one.resource: one.units for one in node.capacity}
        usage = self._usage.get(node.node, {})
        return all(units <= capacity.get(name, 0) - usage.get(name, 0) for name, units in requests)


def _count(
    counts: dict[str, dict[_Name, int]], node: str, usage: Iterable[tuple[_Name, int]], sign: int
) -> None:
    of_node = counts.setdefault(node, {})
    for name, units in usage:
        of_node[name] = of_node.get(name, 0) + sign * units
        if not of_node[name]:
            del of_node[name]
    if not of_node:
        del counts[node]
