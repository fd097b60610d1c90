"""Tracks the host ports that pods of ours request. Every node has one unit of each while a pod requests it.

Ports that only external pods use exclude no pod of ours, so nodes do not report them.
"""

from __future__ import annotations

from penstock.kube.types import Pod
from penstock.podspec.pod_resources import host_port_resources

__all__ = ["HostPortTracker"]


class HostPortTracker:
    def __init__(self) -> None:
        self._ports: dict[str, tuple[str, ...]] = {}  # by pod, without pods that request none
        self._pods: dict[str, int] = {}  # port -> number of pods that request it

    def node_resources(self) -> dict[str, int]:
        """The units that every node has of each requested port."""
        return dict.fromkeys(self._pods, 1)

    def set(self, uid: str, pod: Pod) -> None:
        self._set(uid, host_port_resources(pod))

    def remove(self, uid: str) -> None:
        self._set(uid, ())

    def _set(self, uid: str, ports: tuple[str, ...]) -> None:
        before = self._ports.get(uid, ())
        if before == ports:
            return
        for port in ports:
            self._count(port, 1)
        for port in before:
            self._count(port, -1)
        if ports:
            self._ports[uid] = ports
        else:
            del self._ports[uid]

    def _count(self, port: str, change: int) -> None:
        pods = self._pods.get(port, 0) + change
        if pods:
            self._pods[port] = pods
        else:
            del self._pods[port]
