"""Usage of each node by all pods, external ones included: the last check before a binding."""

from __future__ import annotations

from penstock.errors import BadRequest
from penstock.kube.types import Pod
from penstock.podspec.pod_resources import pod_requests
from penstock.podspec.pod_status import is_terminal, usage_of
from penstock.protocol.facts import NodeSet

__all__ = ["NodeUsage"]


class NodeUsage:
    def __init__(self) -> None:
        self._usage: dict[str, dict[str, int]] = {}  # node -> resource -> units, without zeros

    def replace(self, before: Pod | None, after: Pod | None) -> None:
        """Counts one version of a pod in place of another; None: the pod does not exist."""
        for pod, sign in ((before, -1), (after, 1)):
            if pod is None or not pod.spec.node_name or is_terminal(pod):
                continue
            usage = self._usage.setdefault(pod.spec.node_name, {})
            for resource, units in usage_of(pod):
                usage[resource] = usage.get(resource, 0) + sign * units
                if not usage[resource]:
                    del usage[resource]
            if not usage:
                del self._usage[pod.spec.node_name]

    def fits(self, node: NodeSet, pod: Pod) -> bool:
        """Whether a node still has what a pod requests. Requests that cannot be read fit nowhere."""
        try:
            requests = pod_requests(pod)
        except BadRequest:
            return False
        capacity = {one.resource: one.units for one in node.capacity}
        usage = self._usage.get(node.node, {})
        return all(units <= capacity.get(name, 0) - usage.get(name, 0) for name, units in requests)
