"""What all pods together use on each node, whoever has placed them: the last look before a binding."""

from __future__ import annotations

from penstock.errors import BadRequest
from penstock.kube.types import Pod
from penstock.podspec.pod_resources import pod_requests
from penstock.podspec.pod_status import is_over, usage_of
from penstock.protocol.facts import NodeSet

__all__ = ["NodeUsage"]


class NodeUsage:
    def __init__(self) -> None:
        self._use: dict[str, dict[str, int]] = {}  # by node; nothing that is zero

    def count(self, before: Pod | None, after: Pod | None) -> None:
        """Counts a pod as it is, and no longer as it was."""
        for pod, sign in ((before, -1), (after, 1)):
            if pod is None or not pod.spec.node_name or is_over(pod):
                continue
            used = self._use.setdefault(pod.spec.node_name, {})
            for kind, units in usage_of(pod):
                used[kind] = used.get(kind, 0) + sign * units
                if not used[kind]:
                    del used[kind]
            if not used:
                del self._use[pod.spec.node_name]

    def has(self, node: NodeSet, pod: Pod) -> bool:
        """Whether a node still has what a pod asks for. What cannot be counted fits nowhere."""
        try:
            asked = pod_requests(pod)
        except BadRequest:
            return False
        free = {capacity.resource: capacity.units for capacity in node.capacity}
        used = self._use.get(node.node, {})
        return all(units <= free.get(kind, 0) - used.get(kind, 0) for kind, units in asked)
