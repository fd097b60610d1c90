"""Works that were given up: their job has ended while pods of theirs still wait for somebody to act.

We remember who waited then. When somebody comes who did not, the work is tried again, with all of them. After
a restart the pods themselves say it: if all that wait do, the work was given up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.kube.types import Pod
from penstock.podspec.pod_status import GROUP_INADMISSIBLE, Problem, inadmissible_message

__all__ = ["InadmissibleWorkloads"]


class InadmissibleWorkloads:
    """`waiting_pods` are those of a work, `touch` is called with pods that are to be looked at again."""

    def __init__(
        self, waiting_pods: Callable[[str], list[Pod]], touch: Callable[[Iterable[str]], None]
    ) -> None:
        self._waiting_pods = waiting_pods
        self._touch = touch
        self._workloads: dict[str, tuple[frozenset[str], Problem]] = {}  # its pods then, and why

    def workloads(self) -> Iterable[str]:
        return self._workloads

    def add(self, workload: str, problem: Problem) -> None:
        waiting = [pod.metadata.uid for pod in self._waiting_pods(workload)]
        if waiting:
            self._workloads[workload] = (frozenset(waiting), problem)
            self._touch(waiting)

    def inherit(self, before: InadmissibleWorkloads) -> None:
        self._workloads = dict(before._workloads)

    def forget(self, workload: str) -> None:
        self._workloads.pop(workload, None)

    def why(self, pod: Pod, workload: str) -> Problem | None:
        """Whether the work of a waiting pod was given up, by our memory or by what all of its pods say."""
        found = self._workloads.get(workload)
        if found is None and not inadmissible_message(pod):
            return None
        pods = self._waiting_pods(workload)
        waiting = [one.metadata.uid for one in pods]
        if found is None:
            if not all(map(inadmissible_message, pods)):
                return None
            found = self._workloads[workload] = (
                frozenset(waiting),
                Problem(GROUP_INADMISSIBLE, inadmissible_message(pod)),
            )
        if found[0].issuperset(waiting):
            return found[1]
        del self._workloads[workload]  # Somebody has come since: it is tried again, with all of them.
        self._touch(waiting)
        return None
