"""Host ports that pods of ours ask for: of each, every node has one, while somebody asks for it.

Others may use any port. One that nobody of ours asks for keeps nobody away, and nodes do not tell of it.
"""

from __future__ import annotations

from penstock.kube.types import Pod
from penstock.podspec.pod_resources import host_port_kinds

__all__ = ["HostPorts"]


class HostPorts:
    def __init__(self) -> None:
        self._asked: dict[str, tuple[str, ...]] = {}  # by pod; of those that ask for any
        self._askers: dict[str, int] = {}  # by kind

    def kinds(self) -> dict[str, int]:
        """What each node has of every kind that somebody asks for."""
        return dict.fromkeys(self._askers, 1)

    def note(self, uid: str, pod: Pod | None) -> None:
        """A pod as it is; None: it asks for nothing any more."""
        before = self._asked.get(uid, ())
        after = host_port_kinds(pod) if pod is not None else ()
        if before == after:
            return
        for kind in after:
            self._count(kind, 1)
        for kind in before:
            self._count(kind, -1)
        if after:
            self._asked[uid] = after
        else:
            del self._asked[uid]

    def _count(self, kind: str, more: int) -> None:
        askers = self._askers.get(kind, 0) + more
        if askers:
            self._askers[kind] = askers
        else:
            del self._askers[kind]
