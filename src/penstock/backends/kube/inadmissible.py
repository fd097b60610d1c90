"""Inadmissible workloads: their job has ended while pods of theirs still wait for the user to act.

The pods that waited at that time are remembered. A pod that arrives later makes the workload schedulable
again, together with all of them. After a restart the conditions of the pods serve as memory: if all waiting
pods have the reason `GroupInadmissible`, the workload is inadmissible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.kube.types import Pod
from penstock.podspec.pod_status import inadmissible_message
from penstock.podspec.problems import GROUP_INADMISSIBLE, PodProblem

__all__ = ["InadmissibleWorkloads"]


class InadmissibleWorkloads:
    """`waiting_pods` returns those of a workload; `mark_pods` receives pods to examine again."""

    def __init__(
        self, waiting_pods: Callable[[str], list[Pod]], mark_pods: Callable[[Iterable[str]], None]
    ) -> None:
        self._waiting_pods = waiting_pods
        self._mark_pods = mark_pods
        self._workloads: dict[str, tuple[frozenset[str], PodProblem]] = {}  # pods at that time, and why

    def workloads(self) -> Iterable[str]:
        return self._workloads

    def add(self, workload: str, problem: PodProblem) -> None:
        waiting = [pod.metadata.uid for pod in self._waiting_pods(workload)]
        if waiting:
            self._workloads[workload] = (frozenset(waiting), problem)
            self._mark_pods(waiting)

    def inherit(self, before: InadmissibleWorkloads) -> None:
        self._workloads = dict(before._workloads)

    def remove(self, workload: str) -> None:
        self._workloads.pop(workload, None)

    def problem_of(self, pod: Pod, workload: str) -> PodProblem | None:
        """Why the workload of a waiting pod is inadmissible, by memory or by the conditions of its pods."""
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
                PodProblem(GROUP_INADMISSIBLE, inadmissible_message(pod)),
            )
        if found[0].issuperset(waiting):
            return found[1]
        del self._workloads[workload]  # A pod has arrived since then.
        self._mark_pods(waiting)
        return None
