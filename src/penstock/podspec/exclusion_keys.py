"""The exclusion keys of pods: host ports, and required anti-affinity on the host name.

A pod brings and forbids its host ports. Of two pods on one node, neither may be selected by an anti-affinity
rule that the other carries, whichever came first: a pod that carries a rule forbids what a selected pod
brings, and the reverse. Pods that are only selected do not exclude each other, nor do carriers that are not
selected. Which rules a pod carries or is selected by is found in `penstock.backends.kube.anti_affinity`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from penstock.kube.types import Pod
from penstock.model.exclusion_key import ExclusionKey
from penstock.podspec.anti_affinity import AntiAffinityRule, selector_text

__all__ = ["carrier_key", "host_port_keys", "selected_key"]

_NODE: Final = "node"
_SIDECAR: Final = "Always"  # the restart policy that makes an init container one


def host_port_keys(pod: Pod) -> tuple[ExclusionKey, ...]:
    """The host ports of containers and sidecars, sorted and without duplicates. The host IP is ignored."""
    spec = pod.spec
    if spec.init_containers is None and not any(container.ports for container in spec.containers):
        return ()
    sidecars = (one for one in spec.init_containers or () if one.restart_policy == _SIDECAR)
    ports = {
        _host_port_key(port.protocol or "TCP", port.host_port)
        for container in (*spec.containers, *sidecars)
        for port in container.ports or ()
        if port.host_port > 0
    }
    return tuple(sorted(ports))


@lru_cache(maxsize=4096)
def _host_port_key(protocol: str, port: int) -> ExclusionKey:
    return ExclusionKey(_NODE, f"host port {port}/{protocol}")


@lru_cache(maxsize=4096)
def carrier_key(rule: AntiAffinityRule) -> ExclusionKey:
    """In use where a pod carries the rule."""
    return ExclusionKey(_NODE, f"anti-affinity with {selector_text(rule)}", f"{rule.namespace}/carrier")


@lru_cache(maxsize=4096)
def selected_key(rule: AntiAffinityRule) -> ExclusionKey:
    """In use where a pod is selected by the rule."""
    return ExclusionKey(_NODE, f"anti-affinity with {selector_text(rule)}", f"{rule.namespace}/selected")
